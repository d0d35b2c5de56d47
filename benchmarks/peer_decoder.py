"""The decoder as one would write it in plain PyTorch: the peer that the ensemble is measured against."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from joma.models import DecoderConfig


def sinusoids(context: int, width: int) -> Tensor:
    """sin and cos of position / 10000^(2i/width), interleaved, (context, width)."""
    angle = torch.arange(context)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10_000) / width))
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(1)[:, :width]


class PeerBlock(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        width = config.width
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width) if config.projection else nn.Identity()
        self.up, self.down = nn.Linear(width, config.mlp), nn.Linear(config.mlp, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = config.dropout

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).chunk(3, -1)
        logits = query @ key.mT / math.sqrt(x.shape[-1])
        mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        attention = F.dropout(logits.masked_fill(mask, -math.inf).softmax(-1), self.dropout)
        x = self.norm1(x + F.dropout(self.projection(attention @ value), self.dropout))
        return self.norm2(x + F.dropout(self.down(F.dropout(F.relu(self.up(x)), self.dropout)), self.dropout))


class PeerDecoder(nn.Module):
    """One post-norm, one-head, causal network. forward gives logits at every position."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(PeerBlock(config) for _ in range(config.layers))
        self.out = nn.Linear(config.width, config.outputs or config.vocabulary)
        self.register_buffer("positions", sinusoids(config.context, config.width))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) * math.sqrt(self.config.width) + self.positions
        x = F.dropout(x, self.config.dropout)
        for block in self.blocks:
            x = block(x)
        return self.out(x if self.config.outputs is None else x[:, -1])


def peer_step(
    network: PeerDecoder, optimizer: torch.optim.Optimizer, tokens: Tensor, targets: Tensor, *, clip: float | None
) -> None:
    loss = F.cross_entropy(network(tokens).flatten(0, -2), targets.flatten())
    optimizer.zero_grad()
    loss.backward()
    if clip is not None:
        nn.utils.clip_grad_norm_(network.parameters(), clip)
    optimizer.step()

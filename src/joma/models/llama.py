"""A plain LLaMA: one network, RMSNorm before each branch, rotary positions, SwiGLU, a head of its own.

It reads like the public one and computes the same numbers from the same weights (tests compare it with transformers').
Unlike `joma.models.decoder` it is no ensemble: its matrices are `nn.Linear`, so that any optimizer can be tried on it.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from joma.host.words import brief, counted
from joma.models._positions import turned, turning

_STANDARD_DEVIATION = 0.02  # of all initial matrices, as in the public configurations


@dataclass(frozen=True)
class LlamaConfig:
    """The shape of a LLaMA. The default is the one with 60 million parameters of the GaLore paper.

    - vocabulary: number of tokens
    - width: of the residual stream
    - mlp: hidden width of the MLP
    - heads: attention heads per block
    - layers: number of blocks
    - context: the longest sequence
    - theta: the base of the rotary positions; the slowest turns once in about 2π theta tokens
    - eps: what RMSNorm adds to a mean square

    >>> LlamaConfig(width=30, heads=2)
    Traceback (most recent call last):
    ValueError: width 30 cannot be shared by 2 heads of an even width, which rotary positions need
    """

    vocabulary: int = 32_000
    width: int = 512
    mlp: int = 1376
    heads: int = 8
    layers: int = 8
    context: int = 256
    theta: float = 10_000.0
    eps: float = 1e-6

    def __repr__(self) -> str:
        return brief(self)

    def __post_init__(self) -> None:
        for name in ("vocabulary", "width", "mlp", "heads", "layers", "context"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.width % (2 * self.heads):
            heads = f"{self.heads} heads of an even width, which rotary positions need"
            raise ValueError(f"width {self.width} cannot be shared by {heads}")
        if not self.theta > 0 or not self.eps > 0:
            raise ValueError(f"theta and eps must be positive, got {self.theta} and {self.eps}")


class Llama(nn.Module):
    """A LLaMA with initial weights drawn from N(0, 0.02²), all from one seed.

    `forward` gives the logits at every position, (batch, length, vocabulary), for tokens (batch, length).

    >>> llama = Llama(LlamaConfig(vocabulary=50, width=16, mlp=40, heads=2, layers=1, context=8), seed=0)
    >>> llama(torch.zeros(4, 8, dtype=torch.long)).shape
    torch.Size([4, 8, 50])
    """

    turns: Tensor
    """(2, context, head width): cosines and sines of the rotary positions."""

    def __init__(self, config: LlamaConfig, seed: int = 0) -> None:
        """A network of the shape that `config` gives; `seed` decides its initial weights."""
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, config.eps)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        turns = turning(config.context, config.width // config.heads, config.theta)
        self.register_buffer("turns", turns, persistent=False)
        self.initialise(seed)

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Draw all weights anew, in place; drawn on the CPU, so that a seed means the same on every device."""
        source = torch.Generator().manual_seed(seed)
        for weight in self.parameters():
            if weight.ndim == 1:
                weight.fill_(1.0)
            else:
                weight.copy_(torch.randn(weight.shape, generator=source) * _STANDARD_DEVIATION)

    def features(self, tokens: Tensor) -> Tensor:
        """What the head reads, (batch, length, width)."""
        length = tokens.shape[-1]
        if length > self.config.context:
            raise ValueError(f"tokens must be at most {self.config.context} long, the context, got {length}")
        stream = self.embedding(tokens)
        turns = self.turns[:, :length].to(stream.dtype)
        for block in self.blocks:
            stream = block(stream, turns)
        return self.norm(stream)  # type: ignore[no-any-return]

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits, (batch, length, vocabulary)."""
        return self.head(self.features(tokens))  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        parameters = sum(weight.numel() for weight in self.parameters())
        return f"Llama({counted(parameters, 'parameter')}, {counted(self.config.layers, 'layer')})"


class _Block(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        width, mlp = config.width, config.mlp
        self.heads = config.heads
        self.before_attention, self.before_mlp = (nn.RMSNorm(width, config.eps) for _ in range(2))
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, mlp, bias=False) for _ in range(2))
        self.down = nn.Linear(mlp, width, bias=False)

    def forward(self, stream: Tensor, turns: Tensor) -> Tensor:
        x = self.before_attention(stream)
        query, key, value = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )  # (batch, heads, length, head width)
        mixed = F.scaled_dot_product_attention(turned(query, turns), turned(key, turns), value, is_causal=True)
        stream = stream + self.out(mixed.transpose(1, 2).flatten(-2))
        x = self.before_mlp(stream)
        return stream + self.down(F.silu(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]

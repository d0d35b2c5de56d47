"""Small networks, a text for them, and a training loop that can be monitored or not."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

TOKENS, LENGTH, WIDTH = 17, 8, 8
TEXT = torch.randint(TOKENS, (24, 4, LENGTH), generator=torch.Generator().manual_seed(1))
PROBE = torch.randint(TOKENS, (3, LENGTH), generator=torch.Generator().manual_seed(2))


class Attention(nn.Module):
    """Causal attention of two heads, by scaled_dot_product_attention."""

    def __init__(self, width=WIDTH):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (each.unflatten(-1, (2, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention, then batch norm, dropout and an MLP; it counts tokens in a buffer and passes in an attribute."""

    def __init__(self):
        super().__init__()
        self.attn, self.norm, self.drop = Attention(), nn.BatchNorm1d(WIDTH), nn.Dropout(0.2)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, WIDTH))
        self.register_buffer("load", torch.zeros(()))
        self.passes, self.seen = 0, torch.zeros(1)

    def forward(self, x):
        # In evaluation mode too, as counters of experts do; the result depends on all of it.
        self.load += x.shape[0]
        self.passes += 1
        self.seen.add_(1.0)
        self.last = x.detach()
        x = x + self.drop(self.attn(x)) * (1 + 0.001 * self.load + 0.001 * self.passes + 0.001 * self.seen)
        return x + self.mlp(self.norm(x.transpose(1, 2)).transpose(1, 2))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.h = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.h:
            x = block(x)
        return self.head(x)


class Steady(nn.Module):
    """Blocks of attention alone, so that an oracle is short; dropout is on."""

    def __init__(self, layers=3, kind=Attention):
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.h = nn.ModuleList(kind() for _ in range(layers))
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(WIDTH, TOKENS)

    def forward(self, ids):
        x = self.drop(self.embed(ids))
        for block in self.h:
            x = self.drop(x + block(x))
        return self.head(x)


def made(kind=Model, seed=0):
    torch.manual_seed(seed)
    return kind()


def gpt2(kind="GPT2LMHeadModel", **shape):
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": TOKENS, "n_positions": LENGTH, "n_embd": 8, "n_layer": 2, "n_head": 2}
    return getattr(transformers, kind)(transformers.GPT2Config(**sizes | shape))


def llama(kind="LlamaForCausalLM", **shape):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2}
    return getattr(transformers, kind)(transformers.LlamaConfig(vocab_size=TOKENS, **sizes | shape))


def loss_of(model, ids):
    return F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def train(model, monitor=None, *, steps=6, loss=loss_of, accumulate=1, rate=1e-2, called=None):
    """Adam on the text; `monitor` is a Monitor or None. Weights, buffers, and the random numbers that come next."""
    torch.manual_seed(7)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    batches = iter(TEXT.repeat(20, 1, 1))
    with monitor or contextlib.nullcontext():
        for _ in range(steps):
            for _ in range(accumulate):
                (loss(model if called is None else called, next(batches)) / accumulate).backward()
            optimizer.step()
            if monitor is not None:
                monitor.step()
            optimizer.zero_grad()
    return {name: each.clone() for name, each in model.state_dict().items()} | {"random": torch.rand(4)}


def same(one, other):
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])] == []

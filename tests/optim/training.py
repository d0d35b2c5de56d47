"""A small network and its training, for the tests of GaLore."""

import warnings
from contextlib import contextmanager

import torch
from torch import nn

from joma.optim import Projected

IN_8_BITS = Projected(basis_dtype=torch.int8)
KERNELS, EXPERTS, FOLDED = Projected(conv=True), Projected(experts=True), Projected(conv=True, experts=True)


def network(dtype=torch.float32):
    torch.manual_seed(0)
    return Net().to(dtype)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(30, 24)
        self.layers = nn.Sequential(nn.Linear(24, 40), nn.ReLU(), nn.Linear(40, 24), nn.LayerNorm(24))
        self.lm_head = nn.Linear(24, 30, bias=False)

    def forward(self, tokens):
        return self.lm_head(self.layers(self.embed_tokens(tokens)))


TOKENS = torch.randint(30, (16, 5), generator=torch.Generator().manual_seed(1))
LABELS = torch.randint(30, (16, 5), generator=torch.Generator().manual_seed(2))


def loss_of(model, part=slice(None)):
    return nn.functional.cross_entropy(model(TOKENS[part]).flatten(0, 1).float(), LABELS[part].flatten())


def train(model, optimizer, steps, *, after=lambda: None):
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        after()
    return model


def same(a, b):
    """Bit for bit."""
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def near(a, b, tolerance):
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return max(float((x - y).abs().max()) for x, y in pairs) <= tolerance


@contextmanager
def waiting(mode):
    with warnings.catch_warnings(record=True) as noted:  # torch warns that this may change
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode(mode)
        noted.clear()
        try:
            yield noted
        finally:
            torch.cuda.set_sync_debug_mode("default")

"""A network whose layers make several buckets, and what the tests of buckets do with it."""

import torch
from torch import nn

from joma.optim import GaLore

OPTIONS = {"rank": 3, "refresh": 3, "lr": 0.01, "weight_decay": 0.1}
LAYERS, WIDTH, WORDS = 6, 16, 192


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.q, self.k = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.up, self.down = nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)

    def forward(self, x):
        x = x + self.q(self.norm(x)) * self.k(x).sigmoid()
        return x + self.down(self.up(x).relu())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(WORDS, 2 * WIDTH)
        self.narrow = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.left_out: set[int] = set()  # layers that are not used

    def forward(self, tokens):
        x = self.narrow(self.embed_tokens(tokens))
        for number, layer in enumerate(self.layers):
            x = x if number in self.left_out else layer(x)
        return x


def network(dtype=torch.float64):
    """In float64, so that what differs by rounding alone is plainly the same."""
    torch.manual_seed(0)
    return Net().to(dtype)


def loss_of(model, seed=0):
    tokens = torch.randint(WORDS, (8, 5), generator=torch.Generator().manual_seed(seed))
    return model(tokens.to(model.narrow.weight.device)).square().mean()


def train(model, optimizer, steps, *, before=lambda turn: None):
    for turn in range(steps):
        before(turn)
        optimizer.zero_grad()
        loss_of(model, turn).backward()
        optimizer.step()
    return model


def pair(kind=GaLore, **options):
    models = network(), network()
    return models, [kind(one, per_layer=one is models[0], **(OPTIONS | options)) for one in models]


def buckets(optimizer):
    found = {}
    for each in (*optimizer.matrices, *optimizer.passing):
        found.setdefault(optimizer._backward.bucket_of(each.parameter), []).append(each.name)
    return list(found.values())


def given(weights, order, luck):
    drawn = [torch.randn(weights[at].shape, generator=luck, dtype=torch.float64) for at in reversed(order)]
    return sum((weights[at] * one).sum() for at, one in zip(reversed(order), drawn, strict=True))


def weights_of(count=12, shape=(8, 12)):
    luck = torch.Generator().manual_seed(5)
    return [nn.Parameter(torch.randn(*shape, generator=luck, dtype=torch.float64)) for _ in range(count)]


def made(weights, **options):
    named = [(f"w{place}", each) for place, each in enumerate(weights)]
    return GaLore(named, **(OPTIONS | options))


def updates(optimizer, monkeypatch):
    seen, step = [], optimizer.inner.step
    monkeypatch.setattr(
        optimizer.inner,
        "step",
        lambda: seen.append(sum(len(group["params"]) for group in optimizer.inner.param_groups)) or step(),
    )
    return seen

"""Where products are stacked, per_layer updates neighbours together: once all of a bucket have their gradients."""

import pytest
import torch
from torch import nn
from training import near

from joma.optim import APOLLO, Fira, GaLore, _backward, _matrix
from joma.optim._guard import Guard

OPTIONS = {"rank": 3, "refresh": 3, "lr": 0.01, "weight_decay": 0.1}
LAYERS, WIDTH, WORDS = 6, 16, 64


@pytest.fixture(autouse=True)
def _stacked(monkeypatch):
    monkeypatch.setattr(_matrix, "STACKED_ON", ("cpu",))


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
    return model(tokens).square().mean()


def train(model, optimizer, steps, *, before=lambda turn: None):
    for turn in range(steps):
        before(turn)
        optimizer.zero_grad()
        loss_of(model, turn).backward()
        optimizer.step()
    return model


def pair(kind=GaLore, **options):
    """Updated during backward, and as a whole."""
    models = network(), network()
    return models, [kind(one, per_layer=one is models[0], **(OPTIONS | options)) for one in models]


def buckets(optimizer):
    """Names of the parameters that are updated together."""
    found = {}
    for each in (*optimizer.matrices, *optimizer.passing):
        found.setdefault(optimizer._backward.bucket_of(each.parameter), []).append(each.name)
    return list(found.values())


def given(weights, order, luck):
    """A backward that meets weights in this order, the first one first: a chain, from which each takes its share."""
    chain = torch.zeros((), dtype=torch.float64)
    for at in reversed(order):
        drawn = torch.randn(weights[at].shape, generator=luck, dtype=torch.float64)
        chain = Link.apply(chain, weights[at], drawn)
    return chain


class Link(torch.autograd.Function):
    """Its weight has the drawn gradient, and those of the links before come later."""

    @staticmethod
    def forward(ctx, chain, weight, drawn):
        ctx.save_for_backward(drawn)
        return chain + (weight * drawn).sum()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, gradient * ctx.saved_tensors[0], None


def weights_of(count=12, shape=(8, 12)):
    luck = torch.Generator().manual_seed(5)
    return [nn.Parameter(torch.randn(*shape, generator=luck, dtype=torch.float64)) for _ in range(count)]


def made(weights, **options):
    named = [(f"w{place}", each) for place, each in enumerate(weights)]
    return GaLore(named, **(OPTIONS | options))


# ---- the plan ---------------------------------------------------------------------------------------------------


def sizes(entries, most, device="cpu"):
    planned = _backward.plan_buckets([nn.Parameter(torch.zeros(each, device=device)) for each in entries], most)
    return [[each.numel() for each in bucket.parameters] for bucket in planned]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([20, 3, 4, 20], [[20], [4, 3], [20]]),
        ([20, 3, 4, 5, 20], [[20], [5], [4, 3], [20]]),
        ([4] * 6, [[4, 4], [4, 4], [4, 4]]),
        ([4] * 5, [[4, 4], [4, 4], [4]]),
        ([1] * 12, [[1] * 6, [1] * 6]),  # not 10 and 2
        ([10, 1], [[1], [10]]),  # what is as large as a bucket is alone
        ([11, 1, 1], [[1, 1], [11]]),
        ([7], [[7]]),
    ],
    ids=str,
)
def test_neighbours_are_together_the_last_first_in_few_buckets_of_about_one_size(entries, expected):
    assert sizes(entries, 10) == expected


def test_other_devices_are_others_and_where_products_are_not_stacked_each_is_alone(monkeypatch):
    assert sizes([2, 2, 2], 10, "meta") == [[2], [2], [2]]
    monkeypatch.setattr(_matrix, "STACKED_ON", ("cpu", "meta"))
    mixed = [nn.Parameter(torch.zeros(2, device=device)) for device in ("cpu", "meta", "meta", "cpu")]
    found = _backward.plan_buckets(mixed, 10)
    assert [[each.device.type for each in bucket.parameters] for bucket in found] == [["cpu"], ["meta"] * 2, ["cpu"]]


def test_a_bucket_has_at_most_half_of_the_largest_and_alike_matrices_in_it_are_one_pack():
    _, (optimizer, plain) = pair()
    largest = WORDS * 2 * WIDTH
    entries = {each.name: each.parameter.numel() for each in (*optimizer.matrices, *optimizer.passing)}
    found = buckets(optimizer)
    assert ["embed_tokens.weight"] in found
    assert all(len(some) == 1 or sum(entries[name] for name in some) <= largest // 2 for some in found)
    assert len(found) < len(entries) / 4
    for pack in optimizer.packs:
        assert len({optimizer._backward.bucket_of(each) for each in pack.parameters}) == 1
    assert len(optimizer.packs) > len(plain.packs) > 1
    kinds = {(matrix.kind, optimizer._backward.bucket_of(matrix.parameter)) for matrix in optimizer.matrices}
    assert len(kinds) == len(optimizer.packs)


# ---- the weights ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"decay": "coupled"},
        {"on_move": "rotate"},
        {"on_move": "reset"},
        {"inner": torch.optim.SGD, "momentum": 0.9},
        {"inner": torch.optim.Adafactor},
        {"projector": "exact"},
        {"stagger": False, "projector": "random"},
        {"basis_dtype": torch.int8},
    ],
    ids=str,
)
def test_equal_to_the_plain_way(options, fused, monkeypatch):
    """Turns of refreshes are its own, too."""
    if fused:
        if options.get("inner") is torch.optim.Adafactor:
            pytest.skip("there is no fused one")
        monkeypatch.setattr(Guard, "devices", ("cpu",))
        options = options | {"fused": True}
    models, optimizers = pair(**options)
    schedulers = [torch.optim.lr_scheduler.LinearLR(each, total_iters=4) for each in optimizers]
    for model, optimizer, scheduler in zip(models, optimizers, schedulers, strict=True):
        train(model, optimizer, 7, before=lambda turn, scheduler=scheduler: turn and scheduler.step())
    assert near(*models, 1e-9)
    assert not near(models[0], network(), 1e-2)
    assert [m.count for m in optimizers[0].matrices] == [m.count for m in optimizers[1].matrices] == [7] * 25
    assert [m.refreshed for m in optimizers[0].matrices] == [m.refreshed for m in optimizers[1].matrices]


@pytest.mark.parametrize("kind", [APOLLO, Fira])
def test_others_of_the_family_are_equal_to_their_plain_way(kind):
    models, optimizers = pair(kind, rank=3)
    for model, optimizer in zip(models, optimizers, strict=True):
        train(model, optimizer, 5)
    assert near(*models, 1e-9)
    assert not near(models[0], network(), 1e-3)


@pytest.mark.parametrize("order", ["as planned", "reversed", "shuffled", "another each time"])
@pytest.mark.parametrize("share", [1, 2, 4])
def test_gradients_that_come_in_any_order_give_the_same_weights(order, share, monkeypatch):
    monkeypatch.setattr(_backward, "WAITING_SHARE", share)
    luck = torch.Generator().manual_seed(1)
    weights, others = ([*weights_of(), *weights_of(1, (30, 40))] for _ in range(2))
    optimizer, plain = made(weights, per_layer=True), made(others)
    largest = 30 * 40
    for turn in range(6):
        places = list(range(len(weights)))
        if order == "as planned":
            places = places[::-1]
        elif order != "reversed":
            generator = torch.Generator().manual_seed(turn if order == "another each time" else 0)
            places = torch.randperm(len(weights), generator=generator).tolist()
        held = []
        hooks = [
            each.register_post_accumulate_grad_hook(
                lambda _: held.append(sum(one.numel() for one in weights if one.grad is not None))
            )
            for each in weights
        ]
        drawn = luck.get_state()
        given(weights, places, luck).backward()
        luck.set_state(drawn)
        given(others, places, luck).backward()
        optimizer.step()
        plain.step()
        plain.zero_grad()
        for hook in hooks:
            hook.remove()
        assert len(held) == len(weights)
        assert max(held) <= 2 * (largest // share)
        assert all(each.grad is None for each in weights)
    for one, other in zip(weights, others, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)
    assert [matrix.count for matrix in optimizer.matrices] == [6] * 13

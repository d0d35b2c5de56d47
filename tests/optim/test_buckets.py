"""Where products are stacked, per_layer updates neighbours together: once all of a bucket have their gradients."""

import copy
import math
import operator
import pickle

import pytest
import torch
from test_checkpoints import stored
from test_fast_step import NewBytes, Operations
from torch import nn
from training import near, same, waiting

from joma.optim import APOLLO, Fira, GaLore, _backward, _matrix, _refresh, galore
from joma.optim._guard import Guard

OPTIONS = {"rank": 3, "refresh": 3, "lr": 0.01, "weight_decay": 0.1}
LAYERS, WIDTH, WORDS = 6, 16, 192


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
    return model(tokens.to(model.narrow.weight.device)).square().mean()


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
    """A loss whose backward meets weights in this order, the first one first: what was made last comes first."""
    drawn = [torch.randn(weights[at].shape, generator=luck, dtype=torch.float64) for at in reversed(order)]
    return sum((weights[at] * one).sum() for at, one in zip(reversed(order), drawn, strict=True))


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
        ([10, *[1] * 12], [[1] * 6, [1] * 6, [10]]),  # nor does it change how the others are divided
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


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fused": True},
        {"fused": True, "decay": "coupled"},
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
def test_equal_to_the_plain_way(options, monkeypatch):
    """Turns of refreshes are its own, too."""
    monkeypatch.setattr(Guard, "devices", ("cpu",))
    models, optimizers = pair(**options)
    schedulers = [torch.optim.lr_scheduler.LinearLR(each, total_iters=4) for each in optimizers]
    for model, optimizer, scheduler in zip(models, optimizers, schedulers, strict=True):
        train(model, optimizer, 7, before=lambda turn, scheduler=scheduler: turn and scheduler.step())
    assert near(*models, 1e-9)
    assert not near(models[0], network(), 1e-2)
    assert [m.count for m in optimizers[0].matrices] == [m.count for m in optimizers[1].matrices] == [7] * 25
    assert [m.refreshed for m in optimizers[0].matrices] == [m.refreshed for m in optimizers[1].matrices]


@pytest.mark.parametrize("followed", [False, True], ids=["searched", "followed"])
@pytest.mark.parametrize(("share", "together", "tolerance"), [(2, 4, 1e-9), (3, 3, 1e-5)])
def test_subspaces_are_found_as_in_the_plain_way(share, together, tolerance, followed, monkeypatch):
    """Four matrices are refreshed together, if they are in one bucket; a search ends when all of them have settled."""
    monkeypatch.setattr(_backward, "WAITING_SHARE", share)
    monkeypatch.setattr(_refresh, "FOLLOWED_ON", ("cpu",) if followed else ())
    batches, full_gradients = [], _refresh.full_gradients
    for module in (_refresh, galore):
        monkeypatch.setattr(module, "full_gradients", lambda some: batches.append(len(some)) or full_gradients(some))
    weights, others = ([*weights_of(12, (48, 64)), *weights_of(1, (150, 200))] for _ in range(2))
    for some in (weights, others):
        optimizer = made(some, per_layer=some is weights, rank=4, refresh=4)
        luck = torch.Generator().manual_seed(0)
        steady = [torch.randn(each.shape, generator=luck, dtype=torch.float64) for each in some]
        for _ in range(9):
            noise = [torch.randn(each.shape, generator=luck, dtype=torch.float64) for each in some]
            sum((each * (a + 0.3 * b)).sum() for each, a, b in zip(some, steady, noise, strict=True)).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert sum(batches) >= 13 * 3
        assert max(batches) == (together if some is weights else 4)
        batches.clear()
    for one, other in zip(weights, others, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance)


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


# ---- how many updates, and how much memory ----------------------------------------------------------------------


def updates(optimizer, monkeypatch):
    """Steps of the inner optimizer from now on, each with the number of tensors that it sees."""
    seen, step = [], optimizer.inner.step
    monkeypatch.setattr(
        optimizer.inner,
        "step",
        lambda: seen.append(sum(len(group["params"]) for group in optimizer.inner.param_groups)) or step(),
    )
    return seen


def test_each_bucket_is_one_step_of_the_inner_optimizer(monkeypatch):
    models, optimizers = pair()
    seen = [updates(each, monkeypatch) for each in optimizers]
    for model, optimizer, steps in zip(models, optimizers, seen, strict=True):
        train(model, optimizer, 2)
        steps.clear()
        train(model, optimizer, 1)
    assert len(seen[0]) == len(buckets(optimizers[0])) == 5
    assert sum(seen[0]) == len(optimizers[0].packs) + len(optimizers[0].passing)
    assert len(seen[1]) == 1


def test_no_more_is_started_for_more_matrices_of_a_bucket(monkeypatch):
    """Eight small ones and sixteen between two large ones, whose bucket is as large as that."""
    monkeypatch.setattr(Guard, "devices", ("cpu",))
    started = []
    for count in (8, 16):
        weights = [*weights_of(1, (40, 90)), *weights_of(count), *weights_of(1, (40, 90))]
        optimizer = made(weights, per_layer=True, fused=True, refresh=100)
        assert [len(some) for some in buckets(optimizer)] == [1, count, 1]
        luck = torch.Generator().manual_seed(0)
        for _ in range(3):
            with Operations() as seen:
                given(weights, range(count + 2)[::-1], luck).backward()
                optimizer.step()
        started.append(seen.names["bmm"] + seen.names["_fused_adamw_"] + seen.names["_fused_sgd_"])
        assert not {"_local_scalar_dense", "item", "is_nonzero"} & {*seen.names}
    assert started == [2 + 3 + 3] * 2


@pytest.mark.parametrize("order", ["as planned", "reversed"])
def test_there_is_never_more_beside_weights_and_states_than_the_largest_gradient(order, monkeypatch):
    """Gradients that wait, copies of them for one product, and what the inner optimizer sees of them."""
    monkeypatch.setattr(Guard, "devices", ("cpu",))
    weights = [*weights_of(1, (40, 90)), *weights_of(60), *weights_of(1, (40, 90))]
    optimizer = made(weights, per_layer=True, fused=True, rank=2, refresh=100)
    assert len(optimizer.packs) == 6
    luck = torch.Generator().manual_seed(0)
    places = range(len(weights))[:: -1 if order == "as planned" else 1]
    for _ in range(3):
        loss = given(weights, places, luck)
        held = [value for state in optimizer.inner.state.values() for value in state.values()]
        with NewBytes(*weights, *held, *(pack.basis for pack in optimizer.packs if pack.basis is not None)) as new:
            loss.backward()
            optimizer.step()
    largest = 40 * 90 * 8
    compact = 2 * 90 * 8
    assert largest <= new.most <= largest + 2 * compact + 1000


def test_where_too_many_wait_the_oldest_go_first():
    weights = [*weights_of(16), *weights_of(1, (48, 16))]
    waiting = _backward.InBackward(per_layer=True)
    waiting.plan(weights)
    for each in weights:
        each.grad = torch.zeros_like(each)
    released = {}
    for at in (12, 13, 14, 8, 9, 10, 4, 5, 6, 0, 1, 2, 3):
        for bucket in waiting.collect(weights[at]):
            places = [place for place, each in enumerate(weights) if any(each is one for one in bucket.parameters)]
            released.setdefault(at, []).extend(places)
    assert released == {6: [12, 13, 14], 2: [8, 9, 10], 3: [0, 1, 2, 3]}
    (last,) = waiting.release()
    assert all(map(operator.is_, last.parameters, (weights[at] for at in (6, 5, 4))))


def test_of_a_bucket_only_gradients_that_have_come_wait():
    """One that somebody has set beside them is not theirs, and one that was cleared is gone."""
    weights = weights_of(3)
    bucket = _backward.Bucket(weights)
    for each in weights:
        each.grad = torch.zeros_like(each)
    bucket.waiting = {id(weights[0]), id(weights[2])}
    weights[2].grad = None
    there, others = bucket.part()
    assert [each is weights[0] for each in there] == [True]
    assert len(others) == 2


# ---- parameters without gradients ---------------------------------------------------------------------------------


def test_layers_that_are_left_out_in_some_steps_have_their_own_counts(monkeypatch):
    models, optimizers = pair()
    left_out = [set(), {1}, set(), {4, 5}, {1, 2}, set(), {4}, set()]
    for model, optimizer in zip(models, optimizers, strict=True):

        def leave_out(turn, model=model):
            model.left_out = left_out[turn]

        train(model, optimizer, len(left_out), before=leave_out)
    assert near(*models, 1e-9)
    counts = [[matrix.count for matrix in each.matrices] for each in optimizers]
    assert counts[0] == counts[1]
    assert sorted({*counts[0]}) == [6, 7, 8]
    assert all(each.grad is None for each in models[0].parameters())


def test_a_frozen_parameter_is_waited_for_once(monkeypatch):
    """Then the others of its bucket are updated without it; trained later, it is updated alone."""
    model = network()
    optimizer = GaLore(model, per_layer=True, **OPTIONS)
    frozen = model.layers[3].q.weight.requires_grad_(False)
    before = frozen.detach().clone()
    planned = len(buckets(optimizer))
    loss_of(model).backward()
    there = [name for name, each in model.named_parameters() if each.grad is not None]
    assert 0 < sum(model.get_parameter(name).numel() for name in there) <= WORDS * WIDTH
    optimizer.step()
    assert len(buckets(optimizer)) == planned + 1
    assert ["layers.3.q.weight"] in buckets(optimizer)
    seen = updates(optimizer, monkeypatch)
    for turn in range(3):
        loss_of(model, turn).backward()
        assert all(each.grad is None for each in model.parameters())
        optimizer.step()
    assert len(seen) == 3 * planned
    assert torch.equal(frozen, before)
    frozen.requires_grad_(True)
    train(model, optimizer, 2)
    assert not torch.equal(frozen, before)
    counts = {matrix.name: matrix.count for matrix in optimizer.matrices}
    assert counts.pop("layers.3.q.weight") == 2
    assert {*counts.values()} == {6}


def test_two_chains_at_once_stay_as_planned_and_a_third_is_too_much():
    """Gradients of two buckets may wait at the same time, as where a model has two branches."""
    for branches, more in ((2, 0), (4, 1)):
        weights = [*weights_of(16), *weights_of(1, (48, 16))]
        optimizer = made(weights, per_layer=True)
        planned = buckets(optimizer)
        assert [len(some) for some in planned] == [4, 4, 4, 4, 1]
        mixed = sorted(range(16), key=lambda at: (at // (4 * branches), at % 4, at))
        given(weights, [16, *mixed], torch.Generator().manual_seed(0)).backward()
        optimizer.step()
        assert (len(buckets(optimizer)) > len(planned)) == bool(more)
        assert [matrix.count for matrix in optimizer.matrices] == [1] * 17


def test_the_oldest_that_wait_are_used_first():
    """Buckets of three, of which two may wait; that of 5, 4 and 3 is split, and its last is alone from then on."""
    weights = [nn.Parameter(torch.zeros(4)) for _ in range(12)] + [nn.Parameter(torch.zeros(24))]
    backward = _backward.InBackward(per_layer=True)
    backward.plan(weights)
    places = {id(each): place for place, each in enumerate(weights)}
    for each in weights:
        each.grad = torch.zeros_like(each)

    def used(found):
        return [[places[id(each)] for each in bucket.parameters] for bucket in found]

    came = (3, 0, 6, 7, 4, 1, 9, 5, 2, 10)
    expected: list[list[list[int]]] = [[]] * 6 + [[[4, 3]], [[5]], [[2, 1, 0]], []]
    assert [used(backward.collect(weights[at])) for at in came] == expected
    assert used(backward.release()) == [[7, 6], [10, 9]]
    assert backward.release() == []


def test_packs_that_part_stay_as_large_as_they_may_be(monkeypatch):
    """Half of all entries may be in one pack, of all matrices that there are and not of those that part."""
    monkeypatch.setattr("joma.optim._members.SMALL_STACK", 0)
    weights = weights_of(8)
    optimizer = made(weights)
    assert [len(pack.matrices) for pack in optimizer.packs] == [4, 4]
    given(weights, range(7), torch.Generator().manual_seed(0)).backward()
    optimizer.step()
    assert sorted(len(pack.matrices) for pack in optimizer.packs) == [1, 3, 4]


def test_gradients_that_were_cleared_before_the_step_are_not_missed():
    model = network()
    optimizer = GaLore(model, per_layer=True, **OPTIONS)
    model.layers[0].q.weight.requires_grad_(False)
    for _ in range(3):
        loss_of(model).backward()
        optimizer.zero_grad()
        optimizer.step()
    counts = {matrix.name: matrix.count for matrix in optimizer.matrices}
    assert counts["layers.5.q.weight"] == 3
    assert counts["layers.0.k.weight"] == 0
    assert all(each.isfinite().all() for each in model.parameters())


# ---- what can go wrong --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("frozen", [False, True], ids=["amid backward", "in step"])
def test_a_gradient_that_is_not_finite_stops_its_bucket(guarded, frozen, monkeypatch):
    monkeypatch.setattr(Guard, "devices", ("cpu",) if guarded else ())
    model, other = network(), network()
    optimizer = GaLore(model, per_layer=True, nonfinite="skip", fused=True, **OPTIONS)
    plain = GaLore(other, fused=True, **OPTIONS)
    if frozen:
        for one in (model, other):
            one.layers[2].k.weight.requires_grad_(False)
    spoiled = model.layers[2].q.weight
    handle = spoiled.register_hook(lambda gradient: gradient * math.nan)
    train(model, optimizer, 1)
    handle.remove()
    train(other, plain, 1)
    assert optimizer.skipped == 1
    (stopped,) = (some for some in buckets(optimizer) if "layers.2.q.weight" in some)
    begun = network()
    for name, each in model.named_parameters():
        expected = begun if name in stopped else other
        torch.testing.assert_close(each, expected.get_parameter(name), rtol=1e-9, atol=1e-12)
    assert {m.count for m in optimizer.matrices if m.name in stopped} == {0}
    train(model, optimizer, 2)
    assert {m.count for m in optimizer.matrices if m.name in stopped and m.parameter.requires_grad} == {2}


@pytest.mark.parametrize("guarded", [False, True])
def test_each_bucket_that_is_stopped_counts(guarded, monkeypatch):
    """Whether the host looks at once or later."""
    monkeypatch.setattr(Guard, "devices", ("cpu",) if guarded else ())
    model = network()
    optimizer = GaLore(model, per_layer=True, nonfinite="skip", fused=True, **(OPTIONS | {"refresh": 100}))
    train(model, optimizer, 1)  # now no subspace is due, for which the host would look
    assert optimizer.due() == []
    spoiled = model.layers[0].q.weight, model.layers[5].q.weight
    assert len({optimizer._backward.bucket_of(each) for each in spoiled}) == 2
    handles = [each.register_hook(lambda gradient: gradient * math.nan) for each in spoiled]
    train(model, optimizer, 1)
    for handle in handles:
        handle.remove()
    assert optimizer.skipped == 2
    assert optimizer.skipped == 2  # asked twice, counted once
    counts = {matrix.name: matrix.count for matrix in optimizer.matrices}
    assert (counts["layers.0.q.weight"], counts["layers.5.q.weight"]) == (1, 1)


def test_after_an_error_when_backward_begins_no_gradient_is_left_to_add_up(monkeypatch):
    """The device has held the update back; the next backward says so and ends there."""
    monkeypatch.setattr(Guard, "devices", ("cpu",))
    model = network()
    optimizer = GaLore(model, per_layer=True, fused=True, **(OPTIONS | {"refresh": 100}))
    train(model, optimizer, 1)
    handle = model.layers[2].q.weight.register_hook(lambda gradient: gradient * math.nan)
    train(model, optimizer, 1)
    handle.remove()
    with pytest.raises(ValueError, match=r"layers\.2\.q\.weight is not finite: it was not updated"):
        loss_of(model).backward()
    assert all(each.grad is None for each in model.parameters())
    train(model, optimizer, 1)
    assert {matrix.count for matrix in optimizer.matrices} == {2, 3}


def test_after_an_error_amid_backward_training_goes_on():
    model = network()
    optimizer = GaLore(model, per_layer=True, **OPTIONS)
    handle = model.layers[2].q.weight.register_hook(lambda gradient: gradient * math.nan)
    with pytest.raises(ValueError, match=r"the gradient of layers\.2\.q\.weight is not finite: it was not updated"):
        loss_of(model).backward()
    handle.remove()
    optimizer.step()
    assert all(each.grad is None for each in model.parameters())
    before = [matrix.count for matrix in optimizer.matrices]
    assert {*before} == {0, 1}
    train(model, optimizer, 2)
    assert [matrix.count for matrix in optimizer.matrices] == [count + 2 for count in before]


def test_after_an_error_in_step_the_next_backward_is_a_new_one():
    model = network()
    optimizer = GaLore(model, per_layer=True, **OPTIONS)
    model.layers[2].k.weight.requires_grad_(False)
    handle = model.layers[2].q.weight.register_hook(lambda gradient: gradient * math.nan)
    loss_of(model).backward()
    with pytest.raises(ValueError, match=r"layers\.2\.q\.weight is not finite: it was not updated"):
        optimizer.step()
    handle.remove()
    assert all(each.grad is None for each in model.parameters())
    train(model, optimizer, 2)
    assert {matrix.count for matrix in optimizer.matrices} == {0, 2, 3}


def test_a_second_gradient_is_refused_although_the_first_still_waits():
    model = network()
    optimizer = GaLore(model, per_layer=True, **OPTIONS)
    model.layers[0].norm.requires_grad_(False)
    loss_of(model).backward()
    assert model.layers[0].up.weight.grad is not None
    with pytest.raises(ValueError, match=r"layers\.0\.up\.weight has a second gradient before step\(\)"):
        (model.layers[0].up.weight.sum()).backward()
    optimizer.step()


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("how", ["per_layer", "project_in_backward"])
def test_what_is_done_amid_backward_knows_nothing_of_autocast_or_graphs(how):
    """Backward may be called with both on; bfloat16 would be wrong in the third digit."""
    weights, others = ([nn.Parameter(each.detach().float()) for each in weights_of()] for _ in range(2))
    begun = torch.stack([each.detach().clone() for each in weights])
    for some in (weights, others):
        inside = some is weights
        optimizer = made(some, **({how: True} if inside else {}))
        luck = torch.Generator().manual_seed(0)
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16, enabled=inside):
                sum((each.square() * torch.randn(each.shape, generator=luck)).sum() for each in some).backward(
                    create_graph=inside
                )
            assert not any(one.grad.requires_grad for pack in optimizer.packs if (one := pack.compact).grad is not None)
            optimizer.step()
            optimizer.zero_grad()
    assert all((one - other).abs().max() < 1e-5 for one, other in zip(weights, others, strict=True))
    assert (torch.stack(weights) - begun).abs().max() > 1e-3


# ---- groups, states and copies ------------------------------------------------------------------------------------


def test_a_group_that_is_added_amid_waiting_is_planned_with_the_others():
    model = network()
    later = [name for name, _ in model.named_parameters() if name.startswith("layers.0")]
    first = [(name, each) for name, each in model.named_parameters() if name not in later]
    optimizer = GaLore(first, per_layer=True, **OPTIONS)
    model.narrow.weight.requires_grad_(False)
    loss_of(model).backward()
    there = [each for _, each in first if each.grad is not None]
    assert there
    optimizer.add_param_group({"params": [(name, model.get_parameter(name)) for name in later]})
    optimizer.step()
    assert all(each.grad is None for each in there)
    model.narrow.weight.requires_grad_(True)
    train(model, optimizer, 2)
    counts = {matrix.name: matrix.count for matrix in optimizer.matrices}
    assert (counts["layers.5.q.weight"], counts["layers.1.q.weight"], counts["layers.0.q.weight"]) == (3, 3, 3)
    assert all(len({optimizer._backward.bucket_of(one) for one in pack.parameters}) == 1 for pack in optimizer.packs)


@pytest.mark.parametrize("parted", [False, True])
@pytest.mark.parametrize("how", [{"per_layer": True}, {}], ids=["per_layer", "plain"])
def test_a_saved_state_goes_on(how, parted):
    """Bit for bit in the same way of stepping, though layers had been left out; up to rounding in the other."""
    model, fresh = network(), network()
    optimizer, again = GaLore(model, per_layer=True, **OPTIONS), GaLore(fresh, **how, **OPTIONS)

    def leave_out(turn):
        model.left_out = {2} if parted and turn == 1 else set()

    train(model, optimizer, 4, before=leave_out)
    fresh.load_state_dict(stored(model.state_dict()))
    again.load_state_dict(stored(optimizer.state_dict()))
    assert len({matrix.count for matrix in again.matrices}) == 1 + parted
    train(model, optimizer, 4)
    train(fresh, again, 4)
    assert near(model, fresh, 1e-10)
    assert same(model, fresh) or not how


@pytest.mark.parametrize("inner", [torch.optim.AdamW, torch.optim.SGD])
def test_a_state_is_loaded_amid_training(inner):
    """Packs are others then, since layers had been left out; SGD has no state that would tell counts."""
    model, other = network(), network()
    optimizer, again = (GaLore(each, inner, per_layer=True, **OPTIONS) for each in (model, other))

    def leave_out(turn):
        model.left_out = {2} if turn == 1 else set()

    train(model, optimizer, 4, before=leave_out)
    train(other, again, 2)
    other.load_state_dict(stored(model.state_dict()))
    again.load_state_dict(stored(optimizer.state_dict()))
    assert len(again.packs) == len(optimizer.packs)
    train(model, optimizer, 4)
    train(other, again, 4)
    assert near(model, other, 1e-10)
    counts = [[(matrix.count, matrix.refreshed) for matrix in each.matrices] for each in (optimizer, again)]
    assert counts[0] == counts[1]
    assert len({count for count, _ in counts[0]}) == 2


@pytest.mark.parametrize("inner", [torch.optim.AdamW, torch.optim.NAdam])
def test_a_state_of_large_packs_goes_on_in_small_ones(inner):
    """The plain way has one count of steps for alike matrices of all layers; in buckets each has its own."""
    models = [network() for _ in range(3)]
    options = OPTIONS | {"inner": inner, "projector": "exact"}
    first, plain, split = (GaLore(each, per_layer=each is models[2], **options) for each in models)
    train(models[0], first, 4)
    for model, optimizer in ((models[1], plain), (models[2], split)):
        model.load_state_dict(models[0].state_dict())
        optimizer.load_state_dict(stored(first.state_dict()))
    assert len(split.packs) > len(plain.packs)
    for model, optimizer in zip(models, (first, plain, split), strict=True):
        train(model, optimizer, 4)
        assert {float(optimizer.state[each.parameter]["step"]) for each in optimizer.matrices} == {8.0}
    assert near(models[0], models[1], 1e-10)
    assert near(models[0], models[2], 1e-9)


def test_an_optimizer_takes_up_its_own_earlier_state():
    """Layers were left out in between: packs are formed anew, and no bucket may go on with those of before."""
    model, fresh = network(), network()
    exact = OPTIONS | {"projector": "exact"}  # a search gives a little else, if others are searched for with it
    optimizer, again = (GaLore(one, per_layer=True, **exact) for one in (model, fresh))
    train(model, optimizer, 4)
    weights, state = stored(model.state_dict()), stored(optimizer.state_dict())
    model.left_out = {2}
    train(model, optimizer, 2)
    model.left_out = set()
    for one, its in ((model, optimizer), (fresh, again)):
        one.load_state_dict(weights)
        its.load_state_dict(copy.deepcopy(state))  # as torch does it, an optimizer takes these very tensors
        train(one, its, 4)
        assert {matrix.count for matrix in its.matrices} == {8}
    assert near(model, fresh, 1e-10)


@pytest.mark.parametrize(
    "way", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))], ids=["copied", "pickled"]
)
def test_a_copy_goes_on_by_itself(way):
    model = network()
    optimizer = GaLore(model, per_layer=True, **OPTIONS)
    train(model, optimizer, 4)
    other, again = way((model, optimizer))
    train(model, optimizer, 4)
    assert [matrix.count for matrix in again.matrices] == [4] * 25
    train(other, again, 4)
    assert near(model, other, 1e-12)
    assert buckets(again) == buckets(optimizer)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_weights_are_those_of_the_plain_way_and_backward_waits_for_nothing(monkeypatch):
    monkeypatch.setattr(_matrix, "STACKED_ON", ("cuda",))
    models = [network(torch.float32).cuda() for _ in range(2)]
    for model in models:
        optimizer = GaLore(model, per_layer=model is models[0], fused=True, **(OPTIONS | {"refresh": 100}))
        for turn in range(6):
            optimizer.zero_grad()
            loss = loss_of(model, turn)
            torch.cuda.synchronize()
            with waiting("error" if turn == 5 else "default"):
                loss.backward()
                optimizer.step()
    assert near(*models, 1e-4)
    assert not near(models[0], network(torch.float32).cuda(), 1e-2)

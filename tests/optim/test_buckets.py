"""Where products are stacked, per_layer updates neighbours together: once all of a bucket have their gradients."""

import operator

import pytest
import torch
from bucketed import OPTIONS, buckets, given, loss_of, made, network, pair, train, updates, weights_of
from test_fast_step import NewBytes, Operations
from torch import nn
from training import IN_8_BITS, near, waiting

from joma.optim import Fira, GaLore, _backward, _matrix, _update
from joma.optim._update import Guard


@pytest.fixture(autouse=True)
def _stacked(monkeypatch):
    monkeypatch.setattr(_matrix, "STACKED_ON", ("cpu",))


# ---- the plan ---------------------------------------------------------------------------------------------------


def sizes(entries, most, device="cpu"):
    planned = _backward.plan_buckets([nn.Parameter(torch.zeros(each, device=device)) for each in entries], most)
    return [[each.numel() for each in bucket.parameters] for bucket in planned]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([20, 3, 4, 20], [[20], [4, 3], [20]]),
        ([20, 3, 4, 5, 20], [[20], [5, 4, 3], [20]]),  # what is not alike is not copied
        ([20, 4, 6, 5, 20], [[20], [5, 6, 4], [20]]),  # with a copy of the largest it would be 21
        ([20, 3, 5, 5, 20], [[20], [5], [5, 3], [20]]),  # with the copies of two it is 23
        ([20, 5, 5, 4, 4, 1, 20], [[20], [1, 4, 4], [5, 5], [20]]),  # the larger copies count
        ([20, 4, 4, 3, 3, 20], [[20], [3, 3, 4], [4], [20]]),
        ([20, 4, 4, 2, 2, 20], [[20], [2, 2, 4, 4], [20]]),
        (
            [20, 1, 2, 2, 4, 4, 20],
            [[20], [4], [4, 2, 2, 1], [20]],
        ),  # the larger copies count, also where they come first
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


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([20, 2, 5, 2, 5, 2, 20], [[20], [5, 5], [20, 2, 2, 2]]),
        ([2, 5, 2, 5], [[5, 5, 2, 2]]),
        ([2, 3, 2], [[3, 2, 2]]),
        ([2, 2], [[2, 2]]),
        ([20, 2], [[20, 2]]),
    ],
    ids=str,
)
def test_what_has_next_to_no_entries_waits_for_the_last_bucket(entries, expected, monkeypatch):
    monkeypatch.setattr(_backward, "TINY", 5)  # 10 entries are enough to be alone, 2 are a fifth
    assert sizes(entries, 10) == expected
    monkeypatch.setattr(_matrix, "STACKED_ON", ())
    assert sizes(entries, 10) == [[each] for each in reversed(entries)]


# ---- the weights ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fused": True},
        {"on_move": "rotate"},
        {"on_move": "reset"},
        {"inner": torch.optim.SGD, "momentum": 0.9},
        {"inner": torch.optim.Adafactor},
        {"projector": "exact"},
        {"refresh": 3, "projector": "random"},
        {"projected": IN_8_BITS},
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
    monkeypatch.setattr(_update, "FOLLOWED_ON", ("cpu",) if followed else ())
    batches, full_gradients = [], _update.full_gradients
    monkeypatch.setattr(_update, "full_gradients", lambda some: batches.append(len(some)) or full_gradients(some))
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


def test_each_bucket_is_one_step_of_the_inner_optimizer(monkeypatch):
    models, optimizers = pair()
    seen = [updates(each, monkeypatch) for each in optimizers]
    for model, optimizer, steps in zip(models, optimizers, seen, strict=True):
        train(model, optimizer, 2)
        steps.clear()
        train(model, optimizer, 1)
    assert len(seen[0]) == len(buckets(optimizers[0])) == 3
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
    assert started == [2 + 3 + 1] * 2  # a large one shrinks in its product


ALIKE = [(8, 12)] * 60
LAYERS = [(8, 8), (8, 20), (8, 20), (20, 8)] * 16


@pytest.mark.parametrize(
    ("order", "shapes", "packs"), [("as planned", ALIKE, 6), ("reversed", ALIKE, 6), ("as planned", LAYERS, 14)]
)
def test_there_is_never_more_beside_weights_and_states_than_the_largest_gradient(order, shapes, packs, monkeypatch):
    """Gradients that wait, copies of them for one product, and what the inner optimizer sees of them.

    Those of one kind are copied while the others wait; what was copied is freed before it comes back.
    """
    monkeypatch.setattr(Guard, "devices", ("cpu",))
    weights = [each for shape in [(40, 90), *shapes, (40, 90)] for each in weights_of(1, shape)]
    optimizer = made(weights, per_layer=True, fused=True, rank=2, refresh=100)
    assert len(optimizer.packs) == packs
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


@pytest.mark.parametrize("per_layer", [False, True])
def test_what_the_inner_optimizer_has_seen_is_freed_before_the_way_back(per_layer, monkeypatch):
    """With per_layer the gradients themselves too; APOLLO and Fira look at both."""
    monkeypatch.setattr(Guard, "devices", ("cpu",))
    left = {}
    own = _matrix.Pack.apply

    def apply(pack, *given):
        seen = [each for each in packs if each.compact.grad is not None]
        full = [each for each in weights if each.grad is not None]
        left.setdefault((len(seen), len(full)), []).append(len(pack.matrices))
        own(pack, *given)

    monkeypatch.setattr(_matrix.Pack, "apply", apply)
    weights = [*weights_of(4, (8, 12)), *weights_of(4, (8, 16))]
    for kind in (GaLore, Fira):
        optimizer = kind(
            [(f"w{place}", each) for place, each in enumerate(weights)], per_layer=per_layer, fused=True, **OPTIONS
        )
        packs = optimizer.packs
        monkeypatch.setattr(optimizer._backward, "most_waiting", 10**9)
        optimizer._backward._keep([_backward.Bucket(weights)])
        given(weights, range(8)[::-1], torch.Generator().manual_seed(0)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if kind is GaLore:
            assert {*left} == {(0, 0 if per_layer else 8)}
        else:
            assert {*left} == {(count, 8) for count in range(1, len(packs) + 1)}  # each is freed once it is back
        left.clear()


def planned():
    weights = [*weights_of(16), *weights_of(1, (48, 16))]
    waiting = _backward.InBackward(per_layer=True)
    waiting.plan(weights)
    for each in weights:
        each.grad = torch.zeros_like(each)
    return weights, waiting


def test_where_too_many_wait_the_oldest_go_first():
    weights, waiting = planned()
    released = {}
    for at in (12, 13, 14, 8, 9, 10, 4, 5, 6, 0, 1, 2, 3):
        for bucket in waiting.collect(weights[at]):
            places = [place for place, each in enumerate(weights) if any(each is one for one in bucket.parameters)]
            released.setdefault(at, []).extend(places)
    assert released == {6: [12, 13, 14], 2: [8, 9, 10], 3: [0, 1, 2, 3]}
    (last,) = waiting.release()
    assert all(map(operator.is_, last.parameters, (weights[at] for at in (6, 5, 4))))


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

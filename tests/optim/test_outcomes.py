"""What becomes of subspaces that were followed: flags that are read one update later, and never within their own."""

import copy
import math
import pickle
from contextlib import nullcontext

import pytest
import torch
from test_captured import step_captured
from test_followed import RANK, drifted, gradient, leading, share
from test_galore_state import stored
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from training import IN_8_BITS

from joma.optim import Fira, GaLore, Projected, _matrix, _update
from joma.optim._update import Guard, Sent
from joma.optim.projector import TOLERANCE

REFRESH = 5


@pytest.fixture(autouse=True)
def _on_this_machine(monkeypatch):
    """A CPU stands for a GPU."""
    monkeypatch.setattr(_update, "FOLLOWED_ON", ("cpu",))
    monkeypatch.setattr(Guard, "devices", ("cpu",))
    monkeypatch.setattr(_matrix, "STACKED_ON", ("cpu",))


def weights_of(*shapes):
    return [nn.Parameter(0.1 * gradient(*shape, 0.5, seed=at)) for at, shape in enumerate(shapes)]


def made(weights, kind=GaLore, **options):
    chosen = {"rank": RANK, "refresh": REFRESH, "lr": 0.01, "skip": (), "fused": True} | options
    return kind(weights, torch.optim.AdamW, **chosen)


def given(weight, step):
    return drifted(gradient(*weight.shape, 1.0), 0.02 * step, seed=step)


def train(weights, optimizer, steps, *, spoil=None):
    for step in steps:
        optimizer.zero_grad()
        factors = [given(weight, step) for weight in weights]
        if spoil is not None:
            spoil(step, factors[-1])
        sum((weight * factor).sum() for weight, factor in zip(weights, factors, strict=True)).backward()
        optimizer.step()


@pytest.fixture
def events(monkeypatch):
    """(what, count) of each matrix whose subspace is found, in order."""
    found = []

    def noting(what, own):
        def call(batch, *args, **options):
            found.extend((what, matrix.count) for matrix in batch)
            return own(batch, *args, **options)

        return call

    for what, name in (("follow", "follow_subspaces"), ("search", "find_subspaces")):
        monkeypatch.setattr(_update, name, noting(what, getattr(_update, name)))
    return found


@pytest.fixture
def unsettled(monkeypatch):
    counts, own = set(), _update.follow_subspaces

    def follow(batch, *args, **options):
        found = own(batch, *args, **options)
        return found._replace(tolerance=-1.0) if batch[0].count in counts else found

    monkeypatch.setattr(_update, "follow_subspaces", follow)
    return counts


LOOKS = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "unique")


class Looks(TorchDispatchMode):
    """Operations for which a host waits until the device has caught up."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.found += [name for name in LOOKS if func.__name__.split(".")[0].startswith(name)]
        return func(*args, **(kwargs or {}))


WAYS = {
    "keep": {},
    "rotate": {"on_move": "rotate"},
    "reset": {"on_move": "reset"},
    "together": {"refresh": REFRESH},
    "8 bits": {"projected": IN_8_BITS},
    "projected in backward": {"per_layer": "project"},
    "per layer": {"per_layer": True},
    "Fira": {"kind": Fira},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_step_that_follows_does_not_look_at_the_device(way, events):
    weights = weights_of((60, 90), (60, 90), (70, 40))
    optimizer = made(weights, **WAYS[way])
    train(weights, optimizer, range(1))
    with Looks() as first:
        torch.ones(1).item()
    assert first.found == ["_local_scalar_dense"]
    for step in range(1, 2 * REFRESH + 1):
        before, steps = len(events), [step]
        with Looks() as looks:
            train(weights, optimizer, steps)
        if all(what == "follow" for what, _ in events[before:]):
            assert looks.found == []
    assert [what for what, _ in events].count("follow") >= 2 * len(weights)
    assert [what for what, _ in events].count("search") == len(weights)


@pytest.mark.parametrize("way", WAYS)
def test_flags_are_read_in_the_update_after_their_own(way, events, unsettled, monkeypatch):
    """In all ways of stepping, whether they could be read before or not; so no time decides what is computed."""
    sent, read, now = {}, [], [0]
    init, own = Sent.__init__, Sent.read

    def begin(self, flags):
        init(self, flags)
        if flags.ndim == 2:  # those of a guard have one axis
            sent[id(self)] = (now[0], self)

    def end(self):
        if id(self) in sent:
            read.append((sent[id(self)][0], now[0]))
        return own(self)

    monkeypatch.setattr(Sent, "__init__", begin)
    monkeypatch.setattr(Sent, "read", end)
    unsettled.add(REFRESH)
    weights = weights_of((60, 90), (70, 40))
    optimizer = made(weights, **WAYS[way])
    for step in range(2 * REFRESH + 2):
        now[0] = step
        train(weights, optimizer, [step])
    assert len(read) == len(sent) >= 4
    assert {after - before for before, after in read} == {1}


def test_what_has_not_settled_goes_on_three_times_and_is_then_searched_for(events, unsettled, monkeypatch):
    starts, own = [], _update.follow_projector
    monkeypatch.setattr(
        _update, "follow_projector", lambda g, r, start, **k: starts.append(start[0]) or own(g, r, start, **k)
    )
    unsettled.update(range(100))
    weights = weights_of((60, 90))
    optimizer = made(weights)
    (matrix,) = optimizer.matrices
    after, refreshed = [], []
    for step in range(2 * REFRESH + 1):
        train(weights, optimizer, [step])
        after.append(matrix.basis.clone())
        due = optimizer.due()
        refreshed.append(matrix.refreshed)
        assert bool(due) == (matrix.refreshed < 0 or (step + 1) % REFRESH == 0)
    assert events == [
        ("search", 0), ("follow", 5), ("follow", 6), ("follow", 7), ("search", 8), ("follow", 10)
    ]  # fmt: skip
    assert refreshed == [0, 0, 0, 0, 0, -2, -3, -1, 8, 8, -2]
    for count, start in zip((5, 6, 7, 10), starts, strict=True):
        assert torch.equal(start, after[count - 1])  # it begins where it is
        assert not torch.equal(after[count], after[count - 1])  # and moves


def test_what_settles_later_is_content(events, unsettled):
    unsettled.update({5, 10, 11})
    weights = weights_of((60, 90))
    optimizer = made(weights)
    train(weights, optimizer, range(3 * REFRESH + 1))
    assert [count for what, count in events if what == "follow"] == [5, 6, 10, 11, 12, 15]
    assert [count for what, count in events if what == "search"] == [0]
    (matrix,) = optimizer.matrices
    last = given(weights[0], 3 * REFRESH)
    assert float(share(matrix.basis, last).sum() / leading(last)[1].sum()) > 1 - 2 * TOLERANCE


def test_of_matrices_that_are_followed_together_each_goes_on_by_itself(events, monkeypatch):
    """Four alike, of which the third has not settled and the second is zero."""
    own = _update.follow_subspaces
    energies = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [1.0, 1.1, 1.2], [1.0, 1.0, 1.0]])
    course = torch.cat([energies, torch.full((4, 1), 6.0)], dim=1).mT

    def follow(batch, *args, **options):
        found = own(batch, *args, **options)
        return found._replace(course=course) if len(batch) == 4 else found

    monkeypatch.setattr(_update, "follow_subspaces", follow)
    weights = weights_of(*[(60, 90)] * 4)
    optimizer = made(weights)
    for step in range(REFRESH + 1):
        for weight in weights:
            weight.grad = given(weight, step)
        if step == REFRESH:
            weights[1].grad.zero_()
        optimizer.step()
    assert optimizer.due() == [optimizer.matrices[1].name, optimizer.matrices[2].name]
    assert [matrix.refreshed for matrix in optimizer.matrices] == [5, -1, -2, 5]
    done = len(events)
    for weight in weights:
        weight.grad = given(weight, REFRESH + 1)
    optimizer.step()
    assert events[done:] == [("search", 6), ("follow", 6)]
    assert optimizer.due() == []


@pytest.mark.parametrize("spoiled", [0, 1, 2])
def test_of_matrices_that_are_followed_together_all_that_are_sound_move(spoiled):
    """One of three has a gradient of zeros: it alone keeps its subspace."""
    weights = weights_of(*[(60, 90)] * 3)
    optimizer = made(weights, refresh=REFRESH)
    train(weights, optimizer, range(REFRESH))
    before = [(matrix.basis.clone(), matrix.energies.clone()) for matrix in optimizer.matrices]
    for weight in weights:
        weight.grad = drifted(gradient(60, 90, 1.0), 0.3, seed=1)
    weights[spoiled].grad.zero_()
    optimizer.step()
    assert len(optimizer.packs) == 1
    for place, (matrix, kept) in enumerate(zip(optimizer.matrices, before, strict=True)):
        stays = [torch.equal(now, then) for now, then in zip((matrix.basis, matrix.energies), kept, strict=True)]
        assert stays == [place == spoiled] * 2
        if place != spoiled:
            torch.testing.assert_close(
                matrix.energies, share(matrix.basis, matrix.parameter.grad).float(), rtol=1e-3, atol=1e-5
            )


@pytest.mark.parametrize(
    ("weight_dtype", "basis_dtype"),
    [(torch.float64, torch.float32), (torch.float32, torch.float64), (torch.float32, torch.bfloat16)],
)
def test_what_was_followed_is_kept_in_the_precision_that_is_asked_for(weight_dtype, basis_dtype, events):
    weights = [nn.Parameter(each.detach().to(weight_dtype)) for each in weights_of((60, 90), (60, 90))]
    optimizer = made(weights, projected=Projected(basis_dtype=basis_dtype), refresh=REFRESH)
    train(weights, optimizer, range(REFRESH + 1))
    assert events[-2:] == [("follow", REFRESH)] * 2
    for matrix, weight in zip(optimizer.matrices, weights, strict=True):
        assert matrix.basis.dtype == basis_dtype
        assert matrix.energies.dtype == torch.promote_types(basis_dtype, torch.float32)
        torch.testing.assert_close(matrix.energies.double(), share(matrix.basis, weight.grad), rtol=2e-2, atol=1e-4)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing_and_is_searched_for(way, value, events):
    """On the device: nobody has looked at the gradient when the subspace is followed."""
    weights = weights_of((60, 90))
    optimizer = made(weights, nonfinite="skip", **WAYS[way])
    train(weights, optimizer, range(REFRESH))
    (matrix,) = optimizer.matrices
    before = [each.detach().clone() for each in (weights[0], matrix.basis, matrix.energies)]
    moments = {key: value.clone() for key, value in optimizer.inner.state[matrix.pack.compact].items()}

    def spoil(step, factor):
        factor[7, 8] = value

    train(weights, optimizer, [REFRESH], spoil=spoil)
    assert events == [("search", 0), ("follow", REFRESH)]
    assert all(map(torch.equal, (weights[0], matrix.basis, matrix.energies), before))
    if way != "reset":  # forgotten now instead of at the search that follows
        state = optimizer.inner.state[matrix.pack.compact]
        assert all(torch.equal(state[key], kept) for key, kept in moments.items())
    assert optimizer.skipped == 1
    assert matrix.count == REFRESH
    assert optimizer.due() == [matrix.name]
    train(weights, optimizer, [REFRESH])
    assert events[2:] == [("search", REFRESH)]
    now = given(weights[0], REFRESH)
    best = leading(now, matrix.rank)[1].sum()
    few = {"8 bits": 0.01}.get(way, 0.0)
    assert float(share(matrix.directions(), now).sum() / best) > 1 - 2 * TOLERANCE - few
    train(weights, optimizer, range(REFRESH + 1, 2 * REFRESH))
    assert len(events) == 3


def test_a_subspace_stays_found_where_the_gradient_of_another_weight_is_not_finite(events):
    """The step does not count; the subspace has moved with its own gradient, which was fine, and is not due again."""
    weights = weights_of((60, 90), (70, 40))
    optimizer = made(weights, nonfinite="skip")
    train(weights, optimizer, range(REFRESH))
    first = optimizer.matrices[0]
    assert optimizer.due() == [first.name]
    train(weights, optimizer, [REFRESH], spoil=lambda step, factor: factor.fill_(math.nan))
    assert optimizer.skipped == 1
    assert (first.count, first.refreshed) == (REFRESH, REFRESH)
    assert optimizer.due() == []
    train(weights, optimizer, [REFRESH])
    assert [count for what, count in events if what == "follow"].count(REFRESH) == 1


@pytest.mark.parametrize("at", range(REFRESH, REFRESH + 5))
@pytest.mark.parametrize("way", ["keep", "rotate", "reset", "projected in backward", "per layer"])
def test_a_run_resumes_bit_for_bit_wherever_it_stops(way, at, events, unsettled):
    """Between a subspace that was followed and the one that goes on, and before and after the search that ends it."""
    unsettled.update({5, 6, 7})

    def spoil(step, factor):
        if step == 11:
            factor.fill_(math.nan)

    options = WAYS[way] | {"nonfinite": "skip"}
    weights = weights_of((60, 90), (70, 40))
    optimizer = made(weights, **options)
    train(weights, optimizer, range(at), spoil=spoil)
    state = stored(optimizer.state_dict())
    others = [nn.Parameter(weight.detach().clone()) for weight in weights]
    again = made(others, **options)
    again.load_state_dict(state)
    assert again.due() == optimizer.due()
    done = len(events)
    train(weights, optimizer, range(at, 15), spoil=spoil)
    one, events[:] = events[done:], events[:done]
    train(others, again, range(at, 15), spoil=spoil)
    assert events[done:] == one
    assert any(what == "follow" for what, _ in one)
    assert all(map(torch.equal, weights, others))
    for mine, its in zip(optimizer.matrices, again.matrices, strict=True):
        assert torch.equal(mine.basis, its.basis)
        assert (mine.refreshed, mine.count) == (its.refreshed, its.count)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_copy_knows_what_was_on_its_way(copied, unsettled):
    unsettled.add(5)
    weights = weights_of((60, 90))
    optimizer = made(weights)
    train(weights, optimizer, range(REFRESH + 1))
    again = copied(optimizer)
    assert [matrix.refreshed for matrix in again.matrices] == [-2]
    assert optimizer.due() == again.due() == [optimizer.matrices[0].name]


def test_a_state_that_is_loaded_is_not_changed_by_flags_of_before(unsettled):
    """Nor is one that is refused."""
    weights = weights_of((60, 90))
    optimizer = made(weights)
    train(weights, optimizer, range(3))
    state = stored(optimizer.state_dict())
    unsettled.add(5)
    train(weights, optimizer, range(3, REFRESH + 1))
    with pytest.raises(ValueError, match="'state' and 'param_groups'"):
        optimizer.load_state_dict({})
    assert optimizer.due() == [optimizer.matrices[0].name]
    unsettled.add(6)
    train(weights, optimizer, [REFRESH + 1])
    optimizer.load_state_dict(state)
    assert optimizer.due() == []
    train(weights, optimizer, [3])
    assert [matrix.refreshed for matrix in optimizer.matrices] == [0]


def test_after_an_overflow_without_a_step_the_next_backward_searches(events):
    """As torch.amp.GradScaler does it: step() is not called, and gradients are forgotten."""
    weights = weights_of((60, 90))
    optimizer = made(weights, per_layer="project")
    train(weights, optimizer, range(REFRESH))
    (matrix,) = optimizer.matrices
    before = matrix.basis.clone()
    (weights[0] * torch.full((60, 90), math.inf)).sum().backward()
    optimizer.zero_grad()
    assert torch.equal(matrix.basis, before)
    train(weights, optimizer, [REFRESH])
    assert events == [("search", 0), ("follow", REFRESH), ("search", REFRESH)]


def test_of_microbatches_only_the_first_finds_a_subspace(events, unsettled):
    """Whether it has settled is asked in the next update; until then all gradients are in one subspace."""
    unsettled.add(REFRESH)
    weights = weights_of((60, 90))
    optimizer = made(weights, per_layer="project")
    train(weights, optimizer, range(REFRESH))
    for micro in range(3):
        (weights[0] * given(weights[0], REFRESH + micro)).sum().backward()
        assert optimizer.due() == []  # nor does a question change that
    optimizer.step()
    assert events == [("search", 0), ("follow", REFRESH)]
    train(weights, optimizer, [REFRESH + 1])
    assert events[2:] == [("follow", REFRESH + 1)]


@pytest.mark.parametrize("asked", [True, False])
def test_while_a_graph_is_captured_nobody_waits_and_what_goes_on_is_refused_if_it_is_known(
    asked, unsettled, monkeypatch
):
    unsettled.add(REFRESH)
    weights = weights_of((60, 90))
    optimizer = made(weights)
    train(weights, optimizer, range(REFRESH + 1))
    (matrix,) = optimizer.matrices
    assert not asked or optimizer.due() == [matrix.name]
    weights[0].grad = given(weights[0], 0)
    with monkeypatch.context() as now:
        now.setattr(Sent, "read", lambda sent: pytest.fail("nobody may wait"))
        with pytest.raises(ValueError, match="cannot be captured") if asked else nullcontext():
            step_captured(optimizer, now)
    assert optimizer.due() == [matrix.name]

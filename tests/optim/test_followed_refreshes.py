"""Refreshes of GaLore that follow the last subspace: who is followed, what is taken, and what becomes of the rest."""

import math

import pytest
import torch
from test_fast_step import Operations
from test_followed import RANK, drifted, gaussian, gradient, leading, share
from torch import nn
from training import IN_8_BITS, waiting

from joma.optim import GaLore, _matrix, _step, _update, projector
from joma.optim.projector import TOLERANCE


@pytest.fixture
def _followed(monkeypatch):
    monkeypatch.setattr(_update, "FOLLOWED_ON", ("cpu",))


@pytest.fixture
def looks(monkeypatch):
    found, own = [], _update.follow_projector
    monkeypatch.setattr(_update, "follow_projector", lambda *a, **k: found.append(own(*a, **k)) or found[-1])
    return found


@pytest.fixture
def searches(monkeypatch):
    found, own = [], _update.find_projector
    monkeypatch.setattr(_update, "find_projector", lambda *a, **k: found.append(own(*a, **k)) or found[-1])
    return found


def made(weights, **options):
    return GaLore(weights, torch.optim.SGD, **({"rank": RANK, "refresh": 2, "lr": 0.1, "skip": ()} | options))


@pytest.mark.parametrize(
    ("kind", "on", "followed"),
    [("randomized", "cpu", 1), ("randomized", "cuda", 0), ("exact", "cpu", 0), ("random", "cpu", 0)],
)
def test_what_a_search_has_found_is_followed_where_a_host_would_wait(kind, on, followed, looks, searches, monkeypatch):
    monkeypatch.setattr(_update, "FOLLOWED_ON", (on,))
    weight = nn.Parameter(torch.zeros(60, 90))
    optimizer = made([weight], projector=kind)
    for step in range(4):
        weight.grad = drifted(gradient(60, 90, 1.0), 0.05 * step)
        optimizer.step()
    assert (len(searches), len(looks)) == (2 - followed, followed)
    assert all(bool((each.sound & each.settled).all()) for each in looks)


@pytest.mark.usefixtures("_followed")
@pytest.mark.parametrize("nonfinite", ["raise", "skip"])
def test_a_gradient_that_is_not_finite_leaves_the_subspace(nonfinite, looks, searches):
    weight = nn.Parameter(torch.zeros(60, 90))
    optimizer = made([weight], nonfinite=nonfinite)
    for _ in range(2):
        weight.grad = gradient(60, 90, 1.0)
        optimizer.step()
    (matrix,) = optimizer.matrices
    before, held = matrix.basis.clone(), weight.detach().clone()
    weight.grad = gradient(60, 90, 1.0, seed=5)
    weight.grad[3, 4] = math.nan
    if nonfinite == "raise":
        with pytest.raises(ValueError, match="not finite"):
            optimizer.step()
    else:
        optimizer.step()
        assert optimizer.skipped == 1
    assert [each.sound.tolist() for each in looks] == [[False]]
    assert torch.equal(matrix.basis, before)
    assert torch.equal(weight, held)
    weight.grad = gradient(60, 90, 1.0, seed=5)
    optimizer.step()  # the refresh is made up for
    assert len(searches) == 2
    assert float(share(matrix.basis, weight.grad).sum() / leading(weight.grad)[1].sum()) > 1 - 2 * TOLERANCE


@pytest.mark.usefixtures("_followed")
@pytest.mark.parametrize("on_move", ["keep", "rotate", "reset"])
def test_the_inner_state_moves_with_it(on_move):
    """The momentum in full shape: kept in the old subspace, turned into the new one, or gone."""
    weight = nn.Parameter(torch.zeros(60, 90))
    optimizer = made([weight], on_move=on_move, momentum=0.9, lr=0.0)
    for step in range(3):
        weight.grad = gradient(60, 90, 1.0, seed=7 * (step == 2))
        (matrix,) = optimizer.matrices
        if step == 2:
            (state,) = optimizer.inner.state.values()
            momentum, old = state["momentum_buffer"].clone(), matrix.basis.clone()
        optimizer.step()
    (state,) = optimizer.inner.state.values()
    projected = matrix.basis.T @ weight.grad
    kept = {"keep": momentum, "rotate": (matrix.basis.T @ old) @ momentum, "reset": torch.zeros_like(momentum)}
    torch.testing.assert_close(state["momentum_buffer"], 0.9 * kept[on_move] + projected, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("_followed")
def test_what_lies_on_several_processes_is_not_followed(looks, monkeypatch):
    weight = nn.Parameter(torch.zeros(60, 90))
    optimizer = made([weight])
    weight.grad = gradient(60, 90, 1.0)
    optimizer.step()
    (matrix,) = optimizer.matrices
    assert _update.can_follow(matrix)
    monkeypatch.setattr(_update, "is_sharded", lambda value: value is weight)
    assert not _update.can_follow(matrix)


@pytest.mark.usefixtures("_followed")
def test_what_is_to_be_searched_for_and_what_is_too_narrow_for_spare_directions_is_not_followed():
    sides = RANK + projector.SPARE, RANK + projector.SPARE + 1
    weights = [nn.Parameter(torch.zeros(side, 90)) for side in sides]
    optimizer = made(weights)
    assert [_update.can_follow(matrix) for matrix in optimizer.matrices] == [False, False]
    for weight in weights:
        weight.grad = gradient(*weight.shape, 1.0)
    optimizer.step()
    for refreshed, followed in ((0, True), (-1, False), (-2, True)):
        for matrix in optimizer.matrices:
            matrix.refreshed = refreshed
        assert [_update.can_follow(matrix) for matrix in optimizer.matrices] == [False, followed]


@pytest.mark.usefixtures("_followed")
def test_each_refresh_and_each_seed_draws_other_vectors(monkeypatch):
    seeds, own = [], _update.follow_projector
    monkeypatch.setattr(_update, "follow_projector", lambda *a, **k: seeds.append(k["seed"]) or own(*a, **k))
    for seed in (0, 1):
        weight = nn.Parameter(torch.zeros(60, 90))
        optimizer = made([weight], seed=seed)
        for _ in range(7):
            weight.grad = gradient(60, 90, 1.0)
            optimizer.step()
    assert len(seeds) == len(set(seeds)) == 6


@pytest.mark.usefixtures("_followed")
def test_several_processes_search_and_take_what_the_first_found(looks, searches, monkeypatch):
    """Each would look at its own numbers, and one might settle where another does not."""
    sent = []
    monkeypatch.setattr(_step, "broadcast_from_first", lambda found, group: sent.append(group) or found)
    weight = nn.Parameter(torch.zeros(60, 90))
    optimizer = made([weight])
    optimizer.group = "all of them"
    for _ in range(4):
        weight.grad = gradient(60, 90, 1.0)
        optimizer.step()
    assert looks == []
    assert len(searches) == 2
    assert sent == ["all of them"] * 4  # a basis and its energies, twice


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "options", [{}, {"on_move": "rotate"}, {"projected": IN_8_BITS}, {"per_layer": True}, {"per_layer": "project"}]
)
def test_on_a_gpu_a_refresh_waits_for_nothing(options):
    """The first refresh that follows makes what libraries need; the second, at step 3 or 4, must not wait."""
    weights = [nn.Parameter(torch.zeros(300, 500, device="cuda")) for _ in range(4)]
    chosen = {"rank": 32, "refresh": 2, "lr": 0.1, "skip": (), "fused": True} | options
    optimizer = GaLore(weights, torch.optim.AdamW, **chosen)
    given = [gradient(300, 500, 1.0, seed=at).cuda() for at in range(4)]
    for step in range(5):
        optimizer.zero_grad()
        loss = sum((weight * each).sum() for weight, each in zip(weights, given, strict=True))
        torch.cuda.synchronize()
        with waiting("error" if step >= 3 else "default"):
            loss.backward()
            optimizer.step()
    assert {matrix.refreshed for matrix in optimizer.matrices} <= {3, 4}  # which buckets share a step differs
    for matrix, each in zip(optimizer.matrices, given, strict=True):
        held = share(matrix.directions().cpu(), each.cpu()).sum()
        assert float(held / leading(each.cpu(), 32)[1].sum()) > 1 - 4 * TOLERANCE


@pytest.mark.parametrize("packs", [1, 3])
@pytest.mark.parametrize("places", [(0, 1, 2, 3, 4), (0, 2, 3), (4, 1), (3, 2), (0, 3)], ids=str)
def test_matrices_that_are_no_neighbours_in_their_pack_have_their_own_subspaces_too(places, packs, monkeypatch):
    """One copy serves those that are; whose turn it is not keeps every bit."""
    monkeypatch.setattr(_matrix, "STACK", (5 if packs == 1 else 2) * 40 * 60)
    monkeypatch.setattr(_update, "FOLLOWED_ON", ("cpu",))
    monkeypatch.setattr(_matrix, "STACKED_ON", ("cpu",))
    weights = [nn.Parameter(gaussian(40, 60, seed=at)) for at in range(5)]
    optimizer = GaLore([(f"w{at}", each) for at, each in enumerate(weights)], rank=RANK, lr=0.01, skip=())
    for seed, each in enumerate(weights):
        each.grad = gradient(40, 60, 1.0, seed=20 * seed)
    optimizer.step()
    assert len(optimizer.packs) == packs
    before = [matrix.basis.clone() for matrix in optimizer.matrices]
    for seed, each in enumerate(weights):
        each.grad = drifted(each.grad, 0.05, seed=seed)
    batch = [optimizer.matrices[place] for place in places]
    found = _update.follow_subspaces(batch, optimizer.inner, seed=0, on_move="keep")
    assert found.sound.all()
    for place, (matrix, old) in enumerate(zip(optimizer.matrices, before, strict=True)):
        if place in places:
            best = leading(matrix.parameter.grad)[1]
            assert float(share(matrix.basis, matrix.parameter.grad).sum() / best.sum()) > 1 - 2 * TOLERANCE
            torch.testing.assert_close(
                matrix.energies.double(), share(matrix.basis, matrix.parameter.grad), rtol=1e-3, atol=1e-6
            )
        assert torch.equal(matrix.basis, old) == (place not in places)


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_of_matrices_that_are_followed_together_only_those_that_moved_turn_their_states(broken, monkeypatch):
    """Where a gradient is no number, subspace and state keep every bit; first moments of the others become R m."""
    monkeypatch.setattr(_update, "FOLLOWED_ON", ("cpu",))
    monkeypatch.setattr(_matrix, "STACKED_ON", ("cpu",))
    weights = [nn.Parameter(gaussian(40, 60, seed=at)) for at in range(3)]
    optimizer = GaLore(weights, rank=RANK, lr=0.01, skip=(), on_move="rotate")
    for seed, each in enumerate(weights):
        each.grad = gradient(40, 60, 1.0, seed=20 * seed)
    optimizer.step()
    assert len(optimizer.packs) == 1
    kept = ("basis", "exp_avg", "exp_avg_sq")
    states = [{key: optimizer.state[each][key].clone() for key in kept} for each in weights]
    for seed, each in enumerate(weights):
        each.grad = torch.full((40, 60), math.nan) if seed == broken else drifted(each.grad, 0.3, seed=seed)
    options = {"seed": 0, "on_move": "rotate"}
    found = _update.follow_subspaces(optimizer.matrices, optimizer.inner, **options)
    assert found.sound.tolist() == [at != broken for at in range(3)]
    for at, (each, before) in enumerate(zip(weights, states, strict=True)):
        now = optimizer.state[each]
        if at == broken:
            assert all(torch.equal(now[key], before[key]) for key in kept)
        else:
            turned = now["basis"].double().mT @ before["basis"].double() @ before["exp_avg"].double()
            torch.testing.assert_close(now["exp_avg"].double(), turned, rtol=1e-4, atol=1e-7)
            assert not torch.equal(now["exp_avg"], before["exp_avg"])


def test_a_refresh_of_four_matrices_starts_few_operations(monkeypatch):
    """A host needs some ten microseconds for each; one matrix takes as many as four. There were 242 of them."""
    for name in ("STACKED_ON", "FOLLOWED_ON"):
        monkeypatch.setattr(_matrix if name == "STACKED_ON" else _update, name, ("cpu",))
    weights = [nn.Parameter(torch.zeros(60, 90, dtype=torch.bfloat16)) for _ in range(4)]
    optimizer = made(weights, refresh=100)
    for weight in weights:
        weight.grad = gradient(60, 90, 1.0).bfloat16()
    optimizer.step()
    optimizer._follow(optimizer.matrices)  # constants are brought to the device once
    with Operations() as seen:
        optimizer._follow(optimizer.matrices)
    assert 100 < seen.started <= 180

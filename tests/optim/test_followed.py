"""Subspaces that are followed from one refresh to the next without a look at the device, against singular values."""

import math

import pytest
import torch
from torch import nn
from training import waiting

from joma.optim import GaLore, _matrix, _refresh, _subspace_iteration, galore, projector
from joma.optim._subspace_iteration import follow
from joma.optim.projector import TOLERANCE, follow_projector

RANK = 12


def gaussian(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def gradient(rows, columns, power, seed=0):
    """Singular values fall as a power of their place."""
    side = min(rows, columns)
    left = torch.linalg.qr(gaussian(rows, side, seed=seed))[0]
    right = torch.linalg.qr(gaussian(columns, side, seed=seed + 1))[0]
    return (left * torch.arange(1, side + 1).float() ** -power) @ right.T


def leading(given, rank=RANK):
    """Singular vectors of the shorter side, and the share of the energy in them, in float64."""
    u, s, v = torch.linalg.svd(given.double(), full_matrices=False)
    return (u if given.shape[0] < given.shape[1] else v.mT)[:, :rank], s[:rank].square() / s.square().sum()


def share(basis, given):
    wide = given.double() if given.shape[0] < given.shape[1] else given.double().mT
    return (basis.double().mT @ wide).square().sum(-1) / wide.square().sum()


def drifted(given, by, seed=9):
    noise = gaussian(*given.shape, seed=seed)
    return given + by * noise * given.norm() / noise.norm()


@pytest.mark.parametrize("shape", [(60, 90), (90, 60), (64, 64)])
@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("by", [0.0, 0.03, 0.3])
def test_the_energy_is_that_of_singular_vectors(shape, power, by):
    before = gradient(*shape, power)
    now = drifted(before, by)
    found = follow_projector(now, RANK, leading(before)[0].float())
    far = (power == 0 and by) or by > 0.1  # what led before may lead no more: it may say that it has not settled
    assert found.sound
    assert far or found.settled
    best = leading(now)[1]
    mine = share(found.basis, now)
    if found.settled:
        assert float(mine.sum() / best.sum()) > 1 - 2 * TOLERANCE
    torch.testing.assert_close(found.energies.double(), mine, rtol=1e-3, atol=1e-6)
    assert (found.energies.diff() <= 0).all()
    torch.testing.assert_close(found.basis.mT @ found.basis, torch.eye(RANK), rtol=0, atol=1e-5)


def test_each_of_a_stack_gets_its_own():
    given = torch.stack([drifted(gradient(60, 90, 1.0, seed=at), 0.1, seed=at) for at in range(3)])
    start = torch.stack([leading(each)[0].float() for each in given.flip(0)])  # of others: far from good
    near = torch.stack([leading(each)[0].float() for each in given])
    for begun in (near, start):
        found = follow_projector(given, RANK, begun)
        assert found.sound.tolist() == [True] * 3
        assert begun is start or found.settled.all()
        for at in found.settled.nonzero().flatten().tolist():
            assert float(share(found.basis[at], given[at]).sum() / leading(given[at])[1].sum()) > 1 - 2 * TOLERANCE


def test_a_direction_keeps_the_sign_that_it_had():
    given = gradient(60, 90, 2.0)
    start = leading(given)[0].float()
    for signs in (1.0, -1.0, torch.tensor([1.0, -1.0] * (RANK // 2))):
        found = follow_projector(given, RANK, start * signs)
        assert ((found.basis * start * signs).sum(0) > 0.9).all()


@pytest.mark.parametrize("scale", [1e-30, 1e-15, 1.0, 1e15, 1e30])
def test_any_scale(scale):
    given = drifted(gradient(60, 90, 1.0), 0.03)
    start = leading(given)[0].float()
    plain, scaled = (follow_projector(each, RANK, start) for each in (given, scale * given))
    torch.testing.assert_close(plain.energies, scaled.energies, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("all_of_it", [False, True])
def test_nothing_is_found_from_zeros_or_what_is_not_finite(value, all_of_it):
    given = torch.stack([gradient(60, 90, 1.0)] * 2)
    start = torch.stack([leading(given[0])[0].float()] * 2)
    fine = follow_projector(given, RANK, start)
    assert fine.sound.all()
    if all_of_it:
        given[1] = value
    else:
        given[1, 59, 89] = value
    found = follow_projector(given, RANK, start)
    assert found.sound.tolist() == [True, not all_of_it and value == 0]
    torch.testing.assert_close(found.basis[0], fine.basis[0])  # the one beside it is none the worse
    torch.testing.assert_close(found.energies[0], fine.energies[0])
    assert found.settled[0]


@pytest.mark.parametrize("power", [0.02, 0.1, 0.4])
@pytest.mark.parametrize("tolerance", [1e-6, TOLERANCE])
def test_it_says_itself_where_it_has_not_settled(power, tolerance):
    """From the directions that lead least, with spectra that fall slowly. With some the best vectors lose energy."""
    given = torch.diag(torch.arange(1, 401).float() ** -power)
    starts = torch.eye(400)[:, -RANK:], torch.eye(400)[:, :RANK]
    far, near = (follow_projector(given, RANK, start, tolerance=tolerance) for start in starts)
    assert near.settled
    assert tolerance == TOLERANCE or not far.settled
    assert far.sound
    if far.settled:
        assert float(share(far.basis, given).sum() / leading(given)[1].sum()) > 1 - 2 * TOLERANCE


def test_a_gradient_of_smaller_rank_keeps_an_orthonormal_basis():
    given = gaussian(60, 4) @ gaussian(4, 90, seed=1)
    found = follow_projector(given, RANK, leading(given)[0].float())
    assert found.sound
    torch.testing.assert_close(found.basis.mT @ found.basis, torch.eye(RANK), rtol=0, atol=1e-5)
    assert float(found.energies.sum()) == pytest.approx(1.0, abs=1e-4)


def test_each_block_has_flags_of_its_own():
    """One settles at once, one is zero, one does not settle, one is not finite."""
    flat = torch.cat([torch.arange(1, 50).float() ** -0.05, torch.zeros(1)])
    values = torch.stack([torch.tensor([9.0] * 4 + [1e-3] * 46), torch.zeros(50), flat])
    values = torch.cat([values, torch.full((1, 50), math.nan)])
    block = torch.eye(50)[:, :6].repeat(4, 1, 1)
    block[2] = torch.eye(50)[:, 44:]
    found = follow(lambda given: values[..., None] * given, block, 4, 1e-9)
    assert found.sound.tolist() == [True, False, True, False]
    assert found.settled[0]
    assert not found.settled[2]
    torch.testing.assert_close(found.energies[0], torch.full((4,), 9.0))


def test_what_has_not_settled_goes_on_from_where_it_is():
    """A gradient that has turned by much: the second time it settles, with the energy of singular vectors."""
    before = gradient(60, 90, 0.5)
    now = drifted(before, 1.0)
    once = follow_projector(now, RANK, leading(before)[0].float())
    assert not once.settled
    twice = follow_projector(now, RANK, once.basis, seed=1)
    assert twice.settled
    assert share(twice.basis, now).sum() > share(once.basis, now).sum()
    assert float(share(twice.basis, now).sum() / leading(now)[1].sum()) > 1 - 2 * TOLERANCE


@pytest.fixture
def _followed(monkeypatch):
    monkeypatch.setattr(_refresh, "FOLLOWED_ON", ("cpu",))


@pytest.fixture
def looks(monkeypatch):
    """What `follow_projector` found, call by call."""
    found, own = [], _refresh.follow_projector
    monkeypatch.setattr(_refresh, "follow_projector", lambda *a, **k: found.append(own(*a, **k)) or found[-1])
    return found


def all_good(looks):
    return all(bool((each.sound & each.settled).all()) for each in looks)


@pytest.fixture
def searches(monkeypatch):
    found, own = [], _refresh.find_projector
    monkeypatch.setattr(_refresh, "find_projector", lambda *a, **k: found.append(own(*a, **k)) or found[-1])
    return found


def made(weights, **options):
    return GaLore(weights, torch.optim.SGD, **({"rank": RANK, "refresh": 2, "lr": 0.1, "skip": ()} | options))


@pytest.mark.usefixtures("_followed")
def test_a_refresh_takes_what_was_followed(looks, searches):
    weight = nn.Parameter(torch.zeros(60, 90))
    optimizer = made([weight])
    for step in range(5):
        weight.grad = drifted(gradient(60, 90, 1.0), 0.05 * step)
        optimizer.step()
        (matrix,) = optimizer.matrices
        if step == 4:
            assert float(share(matrix.basis, weight.grad).sum() / leading(weight.grad)[1].sum()) > 1 - 2 * TOLERANCE
            assert float(next(iter(optimizer.captured().values()))) == pytest.approx(
                float(share(matrix.basis, weight.grad).sum()), rel=1e-3
            )
    assert len(searches) == 1  # the first subspace, which has nothing to begin with
    assert len(looks) == 2
    assert all_good(looks)


@pytest.mark.usefixtures("_followed")
@pytest.mark.parametrize("options", [{"projector": "exact"}, {"projector": "random"}])
def test_other_projectors_are_not_followed(looks, options):
    weight = nn.Parameter(torch.zeros(60, 90))
    optimizer = made([weight], **options)
    for _ in range(4):
        weight.grad = gradient(60, 90, 1.0)
        optimizer.step()
    assert looks == []


def test_a_cpu_searches(looks, searches):
    weight = nn.Parameter(torch.zeros(60, 90))
    optimizer = made([weight])
    for _ in range(4):
        weight.grad = gradient(60, 90, 1.0)
        optimizer.step()
    assert looks == []
    assert len(searches) == 2


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
def test_a_gradient_of_zeros_keeps_the_subspace_and_the_next_one_finds_it(looks):
    weight = nn.Parameter(torch.zeros(60, 90))
    optimizer = made([weight])
    for _ in range(2):
        weight.grad = gradient(60, 90, 1.0)
        optimizer.step()
    (matrix,) = optimizer.matrices
    before = matrix.basis.clone()
    weight.grad = torch.zeros(60, 90)
    optimizer.step()
    assert torch.equal(matrix.basis, before)
    weight.grad = gradient(60, 90, 1.0, seed=5)
    optimizer.step()
    assert float(share(matrix.basis, weight.grad).sum() / leading(weight.grad)[1].sum()) > 1 - 2 * TOLERANCE
    assert [each.sound.tolist() for each in looks] == [[False]]  # the next one is searched for


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
def test_each_of_several_that_are_due_together_is_followed(looks, searches):
    """Two shapes in one turn, one with a gradient that is not finite: its subspace stays, and is searched for next."""
    weights = [nn.Parameter(torch.zeros(60, 90)), nn.Parameter(torch.zeros(70, 80))]
    optimizer = made(weights, stagger=False, nonfinite="skip")
    for step in range(3):
        for weight in weights:
            weight.grad = gradient(*weight.shape, 1.0, seed=5 * (step == 2))
        if step == 2:
            weights[1].grad[0, 0] = math.inf
            before = [matrix.basis.clone() for matrix in optimizer.matrices]
        optimizer.step()
    assert [each.sound.tolist() for each in looks] == [[True], [False]]
    kept = [torch.equal(matrix.basis, one) for matrix, one in zip(optimizer.matrices, before, strict=True)]
    assert kept == [False, True]
    assert optimizer.skipped == 1
    assert len(searches) == 2
    for weight in weights:
        weight.grad = gradient(*weight.shape, 1.0, seed=5)
    optimizer.step()
    assert len(searches) == 3
    best, (_, matrix) = leading(weights[1].grad)[1], optimizer.matrices
    assert float(share(matrix.basis, weights[1].grad).sum() / best.sum()) > 1 - 2 * TOLERANCE


def test_each_of_a_stack_is_scaled_alone():
    """One with usual numbers beside one whose squares vanish and one whose squares overflow."""
    given = torch.stack([drifted(gradient(60, 90, 1.0, seed=at), 0.03, seed=at) for at in range(3)])
    start = torch.stack([leading(each)[0].float() for each in given])
    found = follow_projector(given * torch.tensor([1.0, 1e-30, 1e30])[:, None, None], RANK, start)
    assert found.sound.all()
    for basis, energies, each in zip(found.basis, found.energies, given, strict=True):
        torch.testing.assert_close(energies.double(), share(basis, each), rtol=1e-3, atol=1e-6)
        assert float(energies.sum() / leading(each)[1].sum()) == pytest.approx(1.0, abs=2 * TOLERANCE)


def test_a_gradient_in_half_precision_is_followed_in_float32():
    given = drifted(gradient(60, 90, 1.0), 0.03).bfloat16()
    found = follow_projector(given, RANK, leading(given)[0].bfloat16())
    assert found.basis.dtype == found.energies.dtype == torch.float32
    torch.testing.assert_close(found.energies.double(), share(found.basis, given), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found.basis.mT @ found.basis, torch.eye(RANK), rtol=0, atol=1e-5)


def test_a_direction_that_changes_its_place_has_the_sign_of_the_one_that_was_there():
    """Two directions of almost one size, a little turned: the one with more energy was the second, and comes first."""
    values = torch.cat([torch.tensor([1.02, 1.0]), torch.full((58,), 1e-4)])
    turn = math.radians(20)
    start = torch.zeros(60, 2)
    start[:2] = torch.tensor([[-math.sin(turn), math.cos(turn)], [math.cos(turn), math.sin(turn)]])
    found = follow_projector(torch.diag(values), 2, start, tolerance=0.1)
    assert abs(float(found.basis[:, 0] @ start[:, 1])) > 0.9
    assert ((found.basis * start).sum(0) >= 0).all()
    assert (found.basis * start).sum(0).max() > 1e-3


def test_it_begins_with_the_last_directions_and_other_random_ones_for_each_seed(monkeypatch):
    given, begun = gradient(60, 90, 1.0), []
    start = leading(given)[0].float()
    own = projector.follow
    monkeypatch.setattr(projector, "follow", lambda p, block, *a: begun.append(block[0]) or own(p, block, *a))
    for seed in (3, 4, 3):
        follow_projector(given, RANK, start, seed=seed)
    for block in begun:
        assert block.shape == (60, RANK + projector.SPARE)
        assert torch.equal(block[:, :RANK], start)
    assert torch.equal(begun[0], begun[2])
    assert not torch.isclose(begun[0][:, RANK:], begun[1][:, RANK:]).any()


def test_directions_that_a_gradient_does_not_have_are_filled():
    """Its product with the others is exactly zero: no Cholesky factor, unless something fills them."""
    values = torch.cat([torch.tensor([2.0, 0.8, 0.6, 0.5]), torch.zeros(56)])
    found = follow_projector(torch.diag(values), RANK, torch.eye(60)[:, :RANK])
    assert found.sound.all()
    torch.testing.assert_close(found.basis.mT @ found.basis, torch.eye(RANK), rtol=0, atol=1e-5)
    torch.testing.assert_close(found.energies[:4], values[:4] ** 2 / (values**2).sum(), rtol=1e-4, atol=0)
    assert float(found.energies[4:].max()) < 1e-8


def test_a_basis_is_orthonormal_to_the_last_digits_although_its_block_almost_depends():
    values = torch.logspace(0, -9, 60, dtype=torch.float64)
    turn = torch.linalg.qr(gaussian(60, 60, seed=2, dtype=torch.float64))[0]
    start = torch.linalg.qr(turn[:, :RANK] + 0.1 * gaussian(60, RANK, seed=3, dtype=torch.float64))[0]
    found = follow_projector(turn * values, RANK, start)
    assert found.sound.all()
    eye = torch.eye(RANK, dtype=torch.float64)
    torch.testing.assert_close(found.basis.mT @ found.basis, eye, rtol=0, atol=1e-12)


@pytest.mark.parametrize("when", [0, 1, 2, 3])
def test_a_block_that_falls_apart_once_is_not_trusted(when, monkeypatch):
    """Whether at the first product, in the first round, in the second or at the end, and whatever comes after it."""
    own, calls = _subspace_iteration._closer, []

    def closer(basis):
        calls.append(1)
        found, failed = own(basis)
        return found, failed + int(len(calls) - 1 == when)

    given = gradient(60, 90, 1.0)
    start = leading(given)[0].float()
    assert follow_projector(given, RANK, start).sound
    monkeypatch.setattr(_subspace_iteration, "_closer", closer)
    assert not follow_projector(given, RANK, start).sound
    assert len(calls) == 4


@pytest.mark.usefixtures("_followed")
def test_what_lies_on_several_processes_is_not_followed(looks, monkeypatch):
    weight = nn.Parameter(torch.zeros(60, 90))
    optimizer = made([weight])
    weight.grad = gradient(60, 90, 1.0)
    optimizer.step()
    (matrix,) = optimizer.matrices
    assert _refresh.can_follow(matrix)
    monkeypatch.setattr(_refresh, "is_sharded", lambda value: value is weight)
    assert not _refresh.can_follow(matrix)


@pytest.mark.usefixtures("_followed")
def test_what_is_to_be_searched_for_and_what_is_too_narrow_for_spare_directions_is_not_followed():
    sides = RANK + projector.SPARE, RANK + projector.SPARE + 1
    weights = [nn.Parameter(torch.zeros(side, 90)) for side in sides]
    optimizer = made(weights)
    assert [_refresh.can_follow(matrix) for matrix in optimizer.matrices] == [False, False]
    for weight in weights:
        weight.grad = gradient(*weight.shape, 1.0)
    optimizer.step()
    for refreshed, followed in ((0, True), (-1, False), (-2, True)):
        for matrix in optimizer.matrices:
            matrix.refreshed = refreshed
        assert [_refresh.can_follow(matrix) for matrix in optimizer.matrices] == [False, followed]


@pytest.mark.usefixtures("_followed")
def test_each_refresh_and_each_seed_draws_other_vectors(monkeypatch):
    seeds, own = [], _refresh.follow_projector
    monkeypatch.setattr(_refresh, "follow_projector", lambda *a, **k: seeds.append(k["seed"]) or own(*a, **k))
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
    monkeypatch.setattr(galore, "broadcast_from_first", lambda found, group: sent.append(group) or found)
    weight = nn.Parameter(torch.zeros(60, 90))
    optimizer = made([weight])
    optimizer.group = "all of them"
    for _ in range(4):
        weight.grad = gradient(60, 90, 1.0)
        optimizer.step()
    assert looks == []
    assert len(searches) == 2
    assert sent == ["all of them"] * 4  # a basis and its energies, twice


@pytest.mark.usefixtures("_followed")
def test_gradients_that_are_projected_during_backward_are_followed(looks, searches):
    weight = nn.Parameter(torch.zeros(60, 90))
    optimizer = made([weight], project_in_backward=True)
    for step in range(5):
        given = drifted(gradient(60, 90, 1.0), 0.05 * step)
        (weight * given).sum().backward()
        optimizer.step()
    (matrix,) = optimizer.matrices
    assert float(share(matrix.basis, given).sum() / leading(given)[1].sum()) > 1 - 2 * TOLERANCE
    assert len(searches) == 1
    assert len(looks) == 2
    assert all_good(looks)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "options",
    [{}, {"on_move": "rotate"}, {"basis_dtype": torch.int8}, {"per_layer": True}, {"project_in_backward": True}],
)
def test_on_a_gpu_a_refresh_waits_for_nothing(options):
    """The first refresh that follows makes what libraries need; the second must not wait."""
    weights = [nn.Parameter(torch.zeros(300, 500, device="cuda")) for _ in range(4)]
    chosen = {"rank": 32, "refresh": 2, "lr": 0.1, "skip": (), "fused": True, "stagger": False} | options
    optimizer = GaLore(weights, torch.optim.AdamW, **chosen)
    given = [gradient(300, 500, 1.0, seed=at).cuda() for at in range(4)]
    for step in range(5):
        optimizer.zero_grad()
        loss = sum((weight * each).sum() for weight, each in zip(weights, given, strict=True))
        torch.cuda.synchronize()
        with waiting("error" if step == 4 else "default"):
            loss.backward()
            optimizer.step()
    assert [matrix.refreshed for matrix in optimizer.matrices] == [4] * 4
    assert optimizer.due() == []
    for matrix, each in zip(optimizer.matrices, given, strict=True):
        held = share(matrix.directions().cpu(), each.cpu()).sum()
        assert float(held / leading(each.cpu(), 32)[1].sum()) > 1 - 4 * TOLERANCE


@pytest.mark.parametrize("packs", [1, 3])
@pytest.mark.parametrize("places", [(0, 1, 2, 3, 4), (0, 2, 3), (4, 1), (3, 2), (0, 3)], ids=str)
def test_matrices_that_are_no_neighbours_in_their_pack_have_their_own_subspaces_too(places, packs, monkeypatch):
    """One copy serves those that are; whose turn it is not keeps every bit."""
    monkeypatch.setattr(_matrix, "STACK", (5 if packs == 1 else 2) * 40 * 60)
    monkeypatch.setattr(_refresh, "FOLLOWED_ON", ("cpu",))
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
    found = _refresh.follow_subspaces(batch, optimizer.inner, seed=0, tolerance=TOLERANCE, on_move="keep")
    assert found.sound.all()
    for place, (matrix, old) in enumerate(zip(optimizer.matrices, before, strict=True)):
        if place in places:
            best = leading(matrix.parameter.grad)[1]
            assert float(share(matrix.basis, matrix.parameter.grad).sum() / best.sum()) > 1 - 2 * TOLERANCE
            torch.testing.assert_close(
                matrix.energies.double(), share(matrix.basis, matrix.parameter.grad), rtol=1e-3, atol=1e-6
            )
        assert torch.equal(matrix.basis, old) == (place not in places)

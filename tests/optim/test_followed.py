"""Subspaces that are followed from one refresh to the next without a look at the device, against singular values."""

import math

import pytest
import torch

from joma.optim import projector
from joma.optim.projector import TOLERANCE, Gram, follow, follow_projector

RANK = 12


def gaussian(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def gradient(rows, columns, power, seed=0):
    side = min(rows, columns)
    left = torch.linalg.qr(gaussian(rows, side, seed=seed))[0]
    right = torch.linalg.qr(gaussian(columns, side, seed=seed + 1))[0]
    return (left * torch.arange(1, side + 1).float() ** -power) @ right.T


def leading(given, rank=RANK):
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


def test_a_direction_keeps_the_sign_that_it_had():
    given = gradient(60, 90, 2.0)
    start = leading(given)[0].float()
    for signs in (1.0, -1.0, torch.tensor([1.0, -1.0] * (RANK // 2))):
        found = follow_projector(given, RANK, start * signs)
        assert ((found.basis * start * signs).sum(0) > 0.9).all()


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


def test_each_block_has_flags_of_its_own():
    """One settles at once, one is zero, one does not settle, one is not finite."""
    flat = torch.cat([torch.arange(1, 50).float() ** -0.05, torch.zeros(1)])
    values = torch.stack([torch.tensor([9.0] * 4 + [1e-3] * 46), torch.zeros(50), flat])
    values = torch.cat([values, torch.full((1, 50), math.nan)])
    block = torch.eye(50)[:, :6].repeat(4, 1, 1)
    block[2] = torch.eye(50)[:, 44:]
    found = follow(Gram(torch.diag_embed(values.sqrt()), 6), block, 4, 1e-9)
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
    own, calls = projector._closer, []

    def closer(basis):
        calls.append(1)
        found, failed = own(basis)
        return found, failed + int(len(calls) - 1 == when)

    given = gradient(60, 90, 1.0)
    start = leading(given)[0].float()
    assert follow_projector(given, RANK, start).sound
    monkeypatch.setattr(projector, "_closer", closer)
    assert not follow_projector(given, RANK, start).sound
    assert len(calls) == 4

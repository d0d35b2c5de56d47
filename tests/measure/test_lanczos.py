"""The parts of block Lanczos: the space it spans, the tridiagonal matrix, and the grid of its certificate."""

import math

import numpy as np
import pytest
import torch
from matrices import rng

from joma.measure import _lanczos, spectrum
from joma.measure._lanczos import GRID, Bounds, _on_grid, block_lanczos, least_overlap, worst_case_excess
from joma.measure.spectrum import _by_lanczos


@pytest.mark.parametrize("layout", ["rows of the smaller side", "rows of the longer side, two pieces"])
def test_every_space_holds_what_its_definition_says(monkeypatch, layout):
    """Q^T Q = 1, T = Q^T A Q and A Q = Q T + Q' B E^T, for two matrices of other scales; also when the room grows."""
    monkeypatch.setattr(_lanczos, "FIRST_STEPS", 2)
    monkeypatch.setattr(_lanczos, "PIECE", 1)
    w = torch.randn(2, 17, 29, generator=rng(), dtype=torch.float64)
    w = w.mT.contiguous().mT if "longer" in layout else w
    start = torch.linalg.qr(torch.randn(2, 17, 3, generator=rng(1), dtype=torch.float64))[0]
    scale = torch.tensor([0.5, 3.0]).double()[:, None, None]
    a = (scale**2 * (w @ w.mT)).numpy()
    spaces = list(block_lanczos(w, start, scale))
    assert [space.steps for space in spaces] == [1, 2, 3, 4]
    for space in spaces:
        q, t, b = space.basis.numpy(), space.tridiagonal.numpy(), space.residual.numpy()
        assert q.shape == (2, 17, 3 * space.steps)
        np.testing.assert_allclose(q[:, :, :3], start.numpy(), atol=1e-12)
        np.testing.assert_allclose(np.swapaxes(q, 1, 2) @ q, np.eye(3 * space.steps)[None].repeat(2, 0), atol=1e-10)
        np.testing.assert_allclose(t, np.swapaxes(q, 1, 2) @ a @ q, atol=1e-8)
        beyond = a @ q - q @ t
        np.testing.assert_allclose(beyond[:, :, :-3], 0, atol=1e-8)
        last = beyond[:, :, -3:]
        np.testing.assert_allclose(np.swapaxes(last, 1, 2) @ last, np.swapaxes(b, 1, 2) @ b, rtol=1e-8, atol=1e-8)
        assert (space.drift < 1e-9).all()


def test_the_grid_and_its_bounds_are_those_of_the_formula():
    """A quarter of the points up to the tolerance less the rounding, or to half of it; the others to the end."""
    luck = rng(2)
    theta = torch.tensor([[0.9, 0.5, 0.2], [1.0, 0.7, 0.1]], dtype=torch.float64)
    entry = torch.randn(2, 2, 3, generator=luck, dtype=torch.float64)
    residual = torch.randn(2, 4, 3, generator=luck, dtype=torch.float64)
    worst, rounding = torch.tensor([[0.3, 1e-5], [2e-4, 9e-4]], dtype=torch.float64)
    tolerance = 1e-3
    offset, image = _on_grid(theta, entry, residual, worst, tolerance, rounding)
    for i, (target, end) in enumerate(((8e-4, 0.4), (5e-4, 1e-2))):  # the second ends at ten times the tolerance
        fine = [target * 10 ** (n / (GRID // 4 - 1) - 1) for n in range(GRID // 4)]
        coarse = [target * (end / target) ** (n / (GRID - GRID // 4)) for n in range(1, GRID - GRID // 4 + 1)]
        points = np.array([*fine, *coarse])
        np.testing.assert_allclose(offset[i].numpy(), points, rtol=1e-12)
        for here, h, found in zip(points, np.diff(points), image[i].tolist(), strict=False):
            s = 1 / (theta[i, 0].item() + here - theta[i].numpy())
            e, r = entry[i].numpy(), residual[i].numpy()
            norms = [np.linalg.norm((e * s ** (j + 1)) @ r.T) for j in range(3)]
            remainder = np.linalg.norm(e * s) * np.linalg.norm(r * s**3)
            wanted = norms[0] + h * norms[1] + h**2 * norms[2] + h**3 * remainder
            np.testing.assert_allclose(found, wanted + rounding[i].item() * np.linalg.norm(e * s), rtol=1e-10)


def test_odds_and_worst_case_by_hand():
    """Of one vector the square of its share is chi-square: with two Gaussians P[x < t^2] = 1 - exp(-t^2 / 2) <= f."""
    assert math.isclose(least_overlap(1, 2, 1e-3), math.sqrt(2e-3))
    assert math.isclose(least_overlap(1, 4, 0.02), math.sqrt(2 * math.sqrt(0.02 * 2)))
    assert math.isclose(least_overlap(3, 10, 1e-8), 8 * 0.1 / (math.e * math.sqrt(10)))
    x = math.cosh(5 * 0.3)  # T_5 at cosh(0.3)
    assert math.isclose(worst_case_excess(3, 1 / x), math.sinh(0.3) ** 2)


@pytest.mark.parametrize(("patience", "found"), [(20, True), (8, False)])
def test_a_bound_that_gets_worse_ends_the_search_only_after_a_while(monkeypatch, patience, found):
    worse = iter([3.0, 4.0, -1.0])

    def look(krylov, count, *more):
        missing = torch.full((1, count), next(worse))
        first = torch.eye(krylov.rows.shape[1], count)[None]
        return Bounds(squares=missing, excess=missing, missing=missing, coefficients=first)

    monkeypatch.setattr(_lanczos, "certify", look)
    monkeypatch.setattr(spectrum, "PATIENCE", patience)
    a = torch.randn(1, 96, 100, generator=rng())
    assert (_by_lanczos(a, torch.zeros(1, 96, 0), 3, 1, 0.5, 1e-6, rng()) is not None) == found


def test_the_next_look_is_where_the_last_two_meet_the_aim(monkeypatch):
    """What is missing falls by one a step and is gone after 30: half as far again, twice as far, then 6 / 1.2 steps."""
    looks = []

    def look(krylov, count, *more):
        looks.append(krylov.steps)
        missing = torch.full((1, count), 30.0 - krylov.steps)
        first = torch.eye(krylov.rows.shape[1], count)[None]
        return Bounds(squares=missing, excess=missing, missing=missing, coefficients=first)

    monkeypatch.setattr(_lanczos, "certify", look)
    w = torch.randn(1, 64, 70, generator=rng())
    found = _by_lanczos(w, torch.zeros(1, 64, 0), 2, 1, 1e-4, 1e-6, rng(1))
    assert looks == [8, 12, 24, 29, 30]
    assert found.iterations.tolist() == [30]

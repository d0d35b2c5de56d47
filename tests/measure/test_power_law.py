"""The power law against a plain loop over every xmin, on eigenvalues of a full SVD in float64."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matrices import rng

from joma.measure import power_law as room
from joma.measure.power_law import power_law, power_law_of_squares, spectral_power_law, squared_singular_values


def by_hand(values):
    """alpha, xmin, distance and size of the tail: one xmin after the other, one value after the other."""
    x = sorted(float(value) for value in values)
    best = None
    for i in range(len(x) - 1):
        tail = x[i:]
        n, xmin = len(tail), tail[0]
        alpha = 1 + n / sum(math.log(value / xmin) for value in tail)
        distance = max(abs(1 - (value / xmin) ** (1 - alpha) - j / n) for j, value in enumerate(tail))
        if best is None or distance < best[2]:
            best = (alpha, xmin, distance, n)
    return best


def pareto(alpha, count, seed, *lead):
    return torch.rand(*lead, count, generator=rng(seed), dtype=torch.float64) ** (-1 / (alpha - 1))


def correlated(rows, columns, seed=0):
    w = torch.randn(rows, columns, generator=rng(seed))
    return w * torch.arange(1, rows + 1)[:, None] ** -0.4 * torch.arange(1, columns + 1) ** -0.3


def assert_fit(found, wanted, rtol=1e-9):
    for part, number in zip(found, wanted, strict=True):
        assert float(part) == pytest.approx(number, rel=rtol)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31 - 1), st.integers(20, 120), st.sampled_from(["pareto", "lognormal", "uniform"]))
def test_every_xmin_is_tried(seed, count, kind):
    draw = torch.rand(count, generator=rng(seed), dtype=torch.float64) + 1e-6
    x = {"pareto": draw**-0.5, "lognormal": torch.erfinv(2 * draw.clamp_max(1) - 1).clamp(-4, 4).exp(), "uniform": draw}
    assert_fit(power_law(x[kind]), by_hand(x[kind]))


def test_more_candidates_than_are_looked_at_together(monkeypatch):
    x = pareto(2.5, 300, 3)
    wanted = by_hand(x)
    for step in (1, 7, 128, 1000):
        monkeypatch.setattr(room, "_CANDIDATES", step)
        assert_fit(power_law(x), wanted)


def test_stacks_are_fitted_one_by_one():
    x = pareto(2.5, 50, 1, 2, 3)
    fit = power_law(x)
    assert fit.alpha.shape == fit.tail.shape == (2, 3)
    for at in np.ndindex(2, 3):
        assert_fit([part[at] for part in fit], by_hand(x[at]))
    assert power_law(torch.ones(0, 30)).alpha.shape == (0,)


@pytest.mark.parametrize("shape", [(40, 60), (60, 40), (300, 400), (400, 300), (257, 257)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_alpha_is_that_of_all_singular_values(shape, dtype):
    w = correlated(*shape).to(dtype)
    squares = torch.linalg.svdvals(w.double()).square()
    torch.testing.assert_close(squared_singular_values(w), squares.flip(-1), rtol=0, atol=1e-13 * float(squares[0]))
    assert_fit(spectral_power_law(w), by_hand(squares[squares > 1e-10 * squares[0]]), rtol=1e-6)


@pytest.mark.parametrize("factor", [1e-25, 1e25])
def test_weights_of_any_size(factor):
    w = correlated(30, 40)
    one, other = spectral_power_law(w), spectral_power_law(w.double() * factor)
    torch.testing.assert_close(other.alpha, one.alpha, rtol=1e-6, atol=0)
    assert float(other.xmin) == pytest.approx(float(one.xmin) * factor**2, rel=1e-5)


def test_a_stack_of_matrices_is_done_matrix_by_matrix():
    w = torch.stack([correlated(300, 310, seed) for seed in range(3)])
    found = spectral_power_law(w)
    for at in range(3):
        assert_fit([part[at] for part in found], by_hand(squared_singular_values(w[at])))


def test_zero_singular_values_begin_no_tail():
    """Half of the rows are zero: what rounding leaves of their eigenvalues is no xmin and changes nothing."""
    w = correlated(40, 60)
    padded = torch.cat([w, torch.zeros(40, 60)]).double() @ torch.linalg.qr(torch.randn(60, 60).double())[0]
    assert_fit(spectral_power_law(padded), [float(part) for part in spectral_power_law(w)], rtol=1e-6)


def test_nothing_is_differentiated():
    w = correlated(30, 40).requires_grad_()
    assert not spectral_power_law(w).alpha.requires_grad
    assert not power_law(torch.rand(30).add(1).requires_grad_()).alpha.requires_grad


@pytest.mark.parametrize(("values", "said"), [
    ([1.0] * 19, r"^values must have shape \(..., values\) with at least 20 values, got \(19,\)$"),
    (3.0, r"^values must have shape .* got \(\)$"),
    (
        [0.0, *range(1, 30)],
        r"^values must be above zero, got 0: leave out eigenvalues that are zero up to rounding$",
    ),
    ([-1.0, *range(1, 30)], r"^values must be above zero, got -1"),
    ([math.nan, *range(1, 30)], r"^values contains NaN$"),
    ([math.inf, *range(1, 30)], r"^values must be finite, got infinity$"),
    ([2.0] * 30, r"^a power law needs values that differ, got values that are all equal up to rounding$"),
])  # fmt: skip
def test_bad_values_get_a_sentence(values, said):
    with pytest.raises(ValueError, match=said):
        power_law(values)


@pytest.mark.parametrize(("w", "said"), [
    (torch.eye(19), r"^alpha needs a matrix with at least 20 singular values other than zero, got one with 19"),
    (torch.zeros(30, 30), r"got one with 0 of them$"),
    (torch.ones(30, 30), r"got one with 1 of them$"),
    (torch.eye(30), r"^a power law needs values that differ"),
    (torch.full((30, 30), math.nan), r"^w must be finite, got NaN or infinity$"),
    (torch.ones(30), r"^w must have shape \(..., rows, columns\)"),
])  # fmt: skip
def test_bad_matrices_get_a_sentence(w, said):
    with pytest.raises(ValueError, match=said):
        spectral_power_law(w)


def test_squares_come_in_order():
    with pytest.raises(
        ValueError, match=r"^squares must be \(..., values\) from 0 on in ascending order, got \(30,\)$"
    ):
        power_law_of_squares(torch.arange(30, 0, -1))


def interval_by_hand(x):
    """Quantiles of alpha over the resamples that a seed gives, each fitted from 24 of its values on."""
    logs, count = np.log(np.array(x)), len(x)
    draws = torch.randint(count, (200, count), generator=torch.Generator().manual_seed(0)).numpy()
    starts = [round(place) for place in np.linspace(0, count - 2, min(24, count - 1))]
    alphas = []
    for draw in draws:
        mine, best = np.sort(logs[draw]), None
        for start in starts:
            tail = mine[start:] - mine[start]
            if tail.mean() < 1e-9:
                continue
            ranks = 1 - np.arange(len(tail)) / len(tail)
            distance = np.abs(np.exp(-tail / tail.mean()) - ranks).max()
            if best is None or distance < best[0]:
                best = distance, 1 + 1 / tail.mean()
        alphas.append(best[1])
    return np.quantile(alphas, [0.025, 0.975])


@pytest.mark.parametrize("count", [20, 61, 300])
def test_the_interval_is_that_of_a_plain_bootstrap(count):
    x = pareto(2.5, count, count).sort().values
    found = room.exponent_of_squares(x, 400)
    low, high = interval_by_hand(x.tolist())
    assert found.alpha == pytest.approx(by_hand(x.tolist())[0])
    assert (found.low, found.high) == pytest.approx((min(low, found.alpha), max(high, found.alpha)))
    more = torch.cat([torch.zeros(5, dtype=torch.float64), x])  # what is zero is drawn into no tail
    assert room.exponent_of_squares(more, 400)[:3] == pytest.approx(found[:3])


def test_gaussian_matrices_are_drawn_from_their_own_distribution():
    """Their squares against those of matrices that are written out, in means and deviations of every eighth value."""
    random = np.random.default_rng(0)
    here = np.stack([room._gaussian_squares(24, 40, random).numpy() for _ in range(400)])
    there = torch.linalg.svdvals(torch.randn(400, 24, 40, generator=rng(1), dtype=torch.float64)).square().flip(-1)
    for at in range(0, 24, 8):
        one, other = here[:, at], there[:, at].numpy()
        error = np.hypot(one.std(), other.std()) / 20
        assert abs(one.mean() - other.mean()) < 5 * error
        assert one.std() == pytest.approx(other.std(), rel=0.3)
    np.testing.assert_allclose(here.sum(1).mean(), 24 * 40, rtol=0.02)


def test_a_gaussian_matrix_is_not_told_from_others_of_its_shape_and_a_heavy_tail_is():
    plain = [torch.randn(80, 120, generator=rng(seed), dtype=torch.float64) for seed in range(10)]
    found = [room.exponent_of_squares(squared_singular_values(w), 120) for w in plain]
    assert len({one[3:] for one in found}) == 1  # of the shape, and of nothing else
    assert sum(one.gaussian_low <= one.alpha <= one.gaussian_high for one in found) >= 5
    assert found[0].gaussian_low < found[0].gaussian < found[0].gaussian_high
    assert found[0].gaussian == np.median(sorted([
        float(power_law_of_squares(room._gaussian_squares(80, 120, random)).alpha)
        for random in [np.random.default_rng([80, 120])] for _ in range(19)
    ]))  # fmt: skip
    heavy = room.exponent_of_squares(squared_singular_values(correlated(80, 120)), 120)
    assert heavy.high < heavy.gaussian_low

"""Forecasts of curves: each against a curve that it must foretell exactly, and none may see what it is asked for."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refusals

from joma.measure.forecast import (
    backtest,
    damped_trend,
    earlier_runs,
    fit_damped_trend,
    linear,
    log_linear,
    persistence,
    skill,
    value_at,
)

STEPS = torch.tensor([0, 8, 11, 16, 23, 32, 45, 64, 91, 128]).double()
PLAIN = {"persistence": persistence, "linear": linear, "log_linear": log_linear}


def log(steps):
    return steps.clamp(min=1).log()


@pytest.mark.parametrize(
    ("forecaster", "curve"),
    [(persistence, 0 * STEPS + 2.5), (linear, 3 - 0.02 * STEPS), (log_linear, 3 - 0.4 * log(STEPS))],
    ids=list(PLAIN),
)
def test_each_foretells_its_own_kind_of_curve_and_no_other(forecaster, curve):
    for other in PLAIN.values():
        found = backtest(STEPS, torch.stack([curve, 2 * curve]), other, first=16)
        off = (found.made - found.truth).abs().max()
        constant = curve.min() == curve.max()
        # between two points truth is read in log t, where a straight line in t bends a little
        assert off < 0.02 if other is forecaster or constant else off > 0.1


def test_steps_that_are_foretold():
    found = backtest(STEPS, STEPS, first=11)
    assert found.at.tolist() == [11, 16, 23, 32, 45, 64]
    assert found.to.tolist() == [22, 32, 46, 64, 90, 128]
    assert backtest(STEPS, STEPS).at[0] == 11  # step 8 has no past above step 0
    assert backtest(STEPS, STEPS, ahead=4).at.tolist() == [11, 16, 23, 32]
    assert backtest([1, 2, 4.02, 8], [0.0, 0, 0, 0]).to[-1] == 8  # rounded steps: 8.04 is read at 8


@pytest.mark.parametrize("forecaster", PLAIN.values(), ids=PLAIN)
@pytest.mark.parametrize("last", [16, 32, 64])
def test_the_future_moves_no_forecast(forecaster, last):
    curve = torch.randn(2, 3, len(STEPS), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    spoiled = torch.where(last < STEPS, 1e6, curve)
    before, after = (backtest(STEPS, x, forecaster, first=16) for x in (curve, spoiled))
    known = before.at <= last
    assert known.any()
    assert torch.equal(before.made[..., known], after.made[..., known])
    assert not torch.equal(before.truth[..., known], after.truth[..., known])


def test_a_run_is_foretold_by_its_past_and_the_mean_of_others():
    curves = torch.randn(4, 2, len(STEPS), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = backtest(STEPS, curves[2], partial(earlier_runs, runs_steps=STEPS, runs=curves[[0, 1, 3]]), first=16)
    place, others = found.at.tolist().index(32), curves[[0, 1, 3]].mean(0)
    torch.testing.assert_close(found.made[:, place], curves[2, :, 5] + others[:, 7] - others[:, 5])


def test_skill_is_one_zero_or_below():
    truth = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    still = truth + 1
    assert torch.equal(skill(truth, truth, still), torch.ones(2).double())
    assert torch.equal(skill(still, truth, still), torch.zeros(2).double())
    assert torch.equal(skill(truth + 2, truth, still), torch.full((2,), -3.0).double())


@given(st.lists(st.floats(-3, 3), min_size=12, max_size=12))
def test_the_mean_skill_is_that_of_all_runs_together(numbers):
    made = torch.tensor(numbers).view(3, 4)
    truth, still = torch.zeros(3, 4), torch.arange(1.0, 13.0).view(3, 4)
    whole = 1 - made.double().square().mean() / still.double().square().mean()
    assert math.isclose(float(skill(made, truth, still).mean()), float(whole), abs_tol=1e-9)


def test_a_run_that_stood_still_counts_no_more_than_others():
    truth, still = [[0.0], [0.0]], [[0.0], [1.0]]  # the first run did not move at all
    assert skill([[0.1], [0.0]], truth, still).tolist() == pytest.approx([-0.02, 2.0])


def test_values_between_points_are_read_in_the_logarithm():
    assert value_at([2, 8], [0.0, 1.0], 4).item() == pytest.approx(0.5)
    assert value_at([0, 8], [0.0, 1.0], 4).item() == pytest.approx(0.5)  # step 0 has no logarithm
    assert value_at([0, 8], [0.0, 1.0], 8).item() == 1
    assert value_at([5], [2.0], 5).item() == 2


def test_the_slope_is_that_of_the_second_half():
    curve = STEPS.square() / 100
    slope, _ = np.polyfit(STEPS[STEPS >= 64], curve[STEPS >= 64], 1)
    assert float(linear(STEPS, curve, 256)) == pytest.approx(float(curve[-1]) + 128 * slope)


def test_arrays_of_a_record():
    """(runs, layers, points) in float32: only step 20 has a past and a future, and what is made of it is float64."""
    steps, curves = np.array([0, 10, 20, 40]), np.arange(24, dtype=np.float32).reshape(3, 2, 4) ** 2 / 7
    exact = torch.from_numpy(curves).double()
    found = backtest(steps, curves)
    assert torch.equal(found.made, exact[..., 2:3])
    assert (found.at.tolist(), found.to.tolist()) == ([20], [40])
    assert torch.equal(found.truth, exact[..., 3:])


test_refusals = refusals(
    (lambda: persistence([2, 1], [0.0, 0.0], 4), r"steps must be one row of increasing numbers from 0 on"),
    (lambda: persistence([-1, 1], [0.0, 0.0], 4), r"steps must be one row of increasing numbers"),
    (lambda: linear([1, 2], [[0.0], [1.0]], 4), r"curve must have 2 points last, one per step, got \(2, 1\)"),
    (lambda: log_linear([0], [1.0], 4), r"steps must hold one above 0"),
    (lambda: backtest([1, 2, 4], [1.0, 1, 1], ahead=1), r"ahead must be above 1"),
    (lambda: backtest([1, 2, 3], [1.0, 1, 1]), r"steps must go on to 2 times a step of at least 1"),
    (lambda: backtest([1, 2, 4], [1.0, 1, 1], first=3), r"at least 3 that has a past, got 3 steps up to 4"),
    (lambda: value_at([1, 2], [1.0, 1], 5), r"step must lie between 1 and 2, which are recorded, got 5"),
    (
        lambda: earlier_runs([1, 2], [1.0, 1], 4, runs_steps=[1, 2, 4], runs=[1.0, 1, 1]),
        r"runs must have shape \(runs, points\) to go with curve, got \(3,\)",
    ),
    (lambda: log_linear([1, 2], [1.0, 1], 0), r"to must be a finite number of at least 2, got 0"),
    (lambda: persistence([1, 2], [1.0, 1], 1), r"to must be a finite number of at least 2, got 1"),
    (lambda: linear([1, float("nan")], [1.0, 1], 4), r"steps must be one row of increasing numbers"),
    (lambda: linear([1, float("inf")], [1.0, 1], 4), r"steps must be one row of increasing numbers"),
    (lambda: backtest([1, 2, 4], [1.0, 1, 1], lambda *_: [0.0, 1.0]), r"forecaster must give \(\), one number per"),
    (lambda: damped_trend([0], [1.0], 4, kept=1, moved=1), r"to must be twice the last step, 0, got 4"),
    (lambda: fit_damped_trend([0, 1, 2, 4], [[1.0, float("nan"), 1, 1]]), r"curves contains NaN"),
    (lambda: fit_damped_trend([0, 1, 2, 4], [[1.0, float("inf"), 1, 1]]), r"curves must be finite, got infinity"),
    (lambda: skill([1.0], [1.0, 2.0], [1.0]), r"must have one shape, \(runs, ...\), got \(1,\), \(2,\), \(1,\)"),
)


def test_no_skill_where_nothing_could_be_avoided_or_is_known():
    with pytest.raises(ValueError, match="persisted is the truth in every run"):
        skill(made=[[1.0]], truth=[[2.0]], persisted=[[2.0]])
    for name in ("made", "truth", "persisted"):
        given = {"made": [[1.0]], "truth": [[2.0]], "persisted": [[3.0]]} | {name: [[float("nan")]]}
        with pytest.raises(ValueError, match=f"^{name} contains NaN"):
            skill(**given)


def test_a_damped_line_goes_a_share_of_the_way():
    curve = torch.randn(3, len(STEPS), generator=torch.Generator().manual_seed(1)).double()
    full, still = log_linear(STEPS, curve, 200.0), curve[:, -1]
    for share in (-0.5, 0.0, 0.3, 1.5):
        torch.testing.assert_close(log_linear(STEPS, curve, 200.0, share=share), still + share * (full - still))


@given(st.floats(-1, 2), st.floats(-1, 2), st.integers(0, 99))
def test_a_damped_trend_by_hand(kept, moved, seed):
    steps = torch.tensor([0.0, 3, 8, 16, 32]).double()
    curve = torch.randn(2, 5, generator=torch.Generator().manual_seed(seed)).double()
    away, half = curve[:, -1] - curve[:, 0], curve[:, 3] - curve[:, 0]
    wanted = curve[:, 0] + kept * away + moved * (away - half)
    torch.testing.assert_close(damped_trend(steps, curve, 64, kept=kept, moved=moved), wanted)


def test_the_constants_of_a_trend_are_found_again():
    """Curves made by the recursion itself, of several starts; step 1 is the first with a past."""
    steps, kept, moved = 2.0 ** torch.arange(-1, 9), 0.9, 0.6
    away = [torch.tensor([0.0, 0.0, 0.0]).double(), torch.tensor([1.0, 2.0, -1.0]).double()]
    away[0] = torch.tensor([0.4, 1.5, 0.3]).double()
    for _ in range(8):
        away.append(kept * away[-1] + moved * (away[-1] - away[-2]))
    start = torch.tensor([5.0, 4.0, 3.0]).double()
    curves = torch.cat([start[:, None], start[:, None] + torch.stack(away, -1)], -1)
    found = fit_damped_trend(torch.cat([torch.zeros(1), steps]), curves, first=1)
    assert found == pytest.approx((kept, moved))
    made = backtest(torch.cat([torch.zeros(1), steps]), curves, partial(damped_trend, kept=kept, moved=moved), first=1)
    torch.testing.assert_close(made.made, made.truth)


@pytest.mark.parametrize("to", [200, 260, 512])
def test_a_trend_is_for_twice_the_step(to):
    with pytest.raises(ValueError, match=f"to must be twice the last step, 256, got {to}"):
        damped_trend(STEPS, STEPS, to, kept=1.0, moved=1.0)

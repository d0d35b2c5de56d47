"""The solver that is built in: its order, and its answers and its cost beside scipy's."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from joma.theory._dormand_prince import Step, Tolerance, TooStiff, solve

TIGHT = Tolerance(1e-12, 1e-13)


def counted(field):
    calls = []
    return calls, lambda time, y: (calls.append(time), field(time, y))[1]


def by_scipy(field, start, times, tolerance=TIGHT):
    return solve_ivp(field, (0.0, times[-1]), start, "DOP853", t_eval=times, rtol=tolerance.rtol, atol=tolerance.atol)


@pytest.mark.parametrize("inside", [False, True])
def test_the_error_falls_with_the_eighth_power_of_the_step(inside):
    """One step of a rotation, whose length is given; its inside is of order 7, an error of order 8 in one step."""
    errors = []
    for length in (0.8, 0.4):
        step = Step(lambda time, y: np.array([-y[1], y[0]]), np.array([1.0, 0.0]), Tolerance(1.0, 1.0), end=length)
        step.length = length
        step.advance()
        at = 0.37 * length if inside else length
        y = step.at(np.array([at])).reshape(2)
        errors.append(np.abs(y - [math.cos(at), math.sin(at)]).max())
    assert math.log2(errors[0] / errors[1]) == pytest.approx(8 if inside else 9, abs=0.6)


FIELDS = {
    "decay": (lambda t, y: -y, np.ones(3), 5.0, lambda t: np.exp(-t)[:, None] * np.ones(3)),
    "rotation": (
        lambda t, y: np.array([-y[1], y[0]]),
        np.array([1.0, 0.0]),
        60.0,
        lambda t: np.stack([np.cos(t), np.sin(t)], -1),
    ),
    "towards a blow-up": (lambda t, y: y**2, np.ones(1), 0.99, lambda t: 1 / (1 - t)[:, None]),
    "driven": (
        lambda t, y: np.cos(t) - y,
        np.zeros(1),
        20.0,
        lambda t: ((np.cos(t) + np.sin(t) - np.exp(-t)) / 2)[:, None],
    ),
    "at rest": (lambda t, y: 0 * y, np.ones(2), 3.0, lambda t: np.ones((len(t), 2))),
}


@pytest.mark.parametrize("name", FIELDS)
def test_it_is_as_accurate_as_scipy_with_as_few_evaluations(name):
    field, start, end, exact = FIELDS[name]
    times = np.linspace(0, end, 40)
    mine, my_field = counted(field)
    theirs, their_field = counted(field)
    ours, scipys = solve(my_field, start, times, TIGHT), by_scipy(their_field, start, times).y.T
    error, reference = np.abs(ours - exact(times)), np.abs(scipys - exact(times))
    assert error.max() <= 1.5 * reference.max() + 1e-14
    assert len(mine) <= len(theirs)
    np.testing.assert_allclose(ours[0], start, rtol=0, atol=0)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31 - 1), st.integers(1, 8), st.floats(-12, -4), st.floats(0.1, 5))
def test_random_networks_flow_as_in_scipy(seed, size, exponent, end):
    draws = np.random.default_rng(seed)
    matrix, start = draws.normal(size=(size, size)), draws.normal(size=size)
    times = np.unique(draws.uniform(0, end, 7))
    tolerance = Tolerance(10.0**exponent, 10.0**exponent / 10)

    def field(time, y):
        return np.tanh(matrix @ y + math.sin(time))

    ours, theirs = solve(field, start, times, tolerance), by_scipy(field, start, times, tolerance).y.T
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=100 * tolerance.rtol * np.exp(size))


def test_after_a_failure_the_next_step_is_not_tried_longer():
    step = Step(lambda time, y: np.array([-y[1], y[0]]), np.array([1.0, 0.0]), Tolerance(1e-9, 1e-9), end=100.0)
    step.length = 2.0  # too long, which one try finds out; then cut until it is not
    step.advance()
    assert 0 < step.time < 2
    assert step.length <= step.time
    step.length = 1e-3  # far too short: the next may be ten times as long and no longer
    step.advance()
    assert step.length == pytest.approx(1e-2)


def test_times_asked_for_cost_no_steps():
    few, field = counted(lambda time, y: np.array([-y[1], y[0]]))
    solve(field, np.array([1.0, 0.0]), np.array([20.0]), TIGHT)
    many, field = counted(lambda time, y: np.array([-y[1], y[0]]))
    solve(field, np.array([1.0, 0.0]), np.linspace(0, 20.0, 5000), TIGHT)
    assert len(many) <= len(few) * 15 / 12 + 3


def test_what_cannot_be_followed_ends():
    for field in (lambda time, y: y**2, lambda time, y: y * np.where(time > 0.3, np.nan, 1)):
        with pytest.raises(TooStiff, match="too small at t = "):
            solve(field, np.ones(1), np.array([2.0]), TIGHT)


def test_nothing_to_do_is_done_at_once():
    never, field = counted(lambda time, y: y)
    assert solve(field, np.ones(2), np.array([0.0]), TIGHT).tolist() == [[1.0, 1.0]]
    assert solve(field, np.ones(0), np.array([0.0, 1.0]), TIGHT).shape == (2, 0)
    assert never == []

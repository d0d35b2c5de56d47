"""A thinned curve keeps its spikes, its ends and its gaps; whole steps keep all numbers of a step together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from joma.view.packing import packed
from joma.view.thinning import mean_over, thin, whole_steps

CURVES = arrays(
    np.float64,
    st.tuples(st.integers(1, 300), st.integers(1, 3)),
    elements=st.sampled_from([0.0, 1.0, -1.0, 7.5, -300.0, np.nan, np.inf, -np.inf]),
)


@given(values=CURVES, points=st.integers(0, 80))
def test_every_extreme_stays_and_nothing_is_made_up(values, points):
    steps = np.arange(len(values)) * 3 + 2
    at, kept = thin(steps, values, points)
    assert len(at) == len(kept) <= max(points, 4)
    assert at[0] == steps[0]
    assert at[-1] == steps[-1]
    assert (np.diff(at) > 0).all()
    assert set(at) <= set(steps)
    np.testing.assert_array_equal(kept[[0, -1]], values[[0, -1]])
    for column in range(values.shape[1]):
        before, after = values[:, column], kept[:, column]
        real = before[np.isfinite(before)]
        assert set(after[np.isfinite(after)]) <= set(real)
        if real.size:
            assert np.nanmax(np.where(np.isfinite(after), after, np.nan)) == real.max()
            assert np.nanmin(np.where(np.isfinite(after), after, np.nan)) == real.min()


def test_a_spike_stays_near_its_step_and_the_order_of_extremes_is_kept():
    values = np.zeros(10_000)
    values[6_171], values[6_173] = 9.0, -9.0
    at, kept = thin(np.arange(10_000), values, 1000)
    up, down = at[kept.argmax()], at[kept.argmin()]
    assert abs(int(up) - 6_171) <= 21
    assert abs(int(down) - 6_173) <= 21
    assert kept.argmax() < kept.argmin()


@pytest.mark.parametrize("count", [13, 40, 101])
@pytest.mark.parametrize("points", [4, 7, 12])
def test_a_spike_stays_wherever_it_stands(count, points):
    """Also in the first and in the last step of a stretch, and in the last but one of all."""
    curves = np.concatenate([9 * np.eye(count), -9 * np.eye(count)], axis=1)  # one spike each, up or down
    _, kept = thin(np.arange(count), curves, points)
    np.testing.assert_array_equal(kept.max(0), [9.0] * count + [0.0] * count)
    np.testing.assert_array_equal(kept.min(0), [0.0] * count + [-9.0] * count)


def test_few_steps_stay_as_they_are():
    steps, values = np.arange(50), np.random.default_rng(0).normal(size=(50, 2))
    for way in (thin, whole_steps):
        at, kept = way(steps, values, 50)
        assert at is steps
        assert kept is values


@given(count=st.integers(1, 200), points=st.integers(0, 50))
def test_whole_steps_are_steps_with_all_their_numbers(count, points):
    steps = np.arange(count) * 7
    at, kept = whole_steps(steps, np.stack([steps, -steps], 1), points)
    assert len(at) <= max(points, 2)
    np.testing.assert_array_equal(kept, np.stack([at, -at], 1))
    assert at[0] == 0
    assert at[-1] == steps[-1]
    assert (np.diff(at) > 0).all()


def test_means_leave_out_what_is_no_number():
    values = np.array([[[1.0, np.nan], [3.0, np.inf]], [[np.nan, np.nan], [np.nan, np.nan]]])
    np.testing.assert_array_equal(mean_over(values, (1, 2)), [2.0, np.nan])
    np.testing.assert_array_equal(mean_over(values, (2,))[0], [1.0, 3.0])
    assert mean_over(values, ()) is values


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([0.5, np.nan, np.inf, 0.0], "f4"),
        ([1e300], "f8"),
        ([1e-300, 1.0], "f8"),
        (np.array([2**24]), "f4"),
        (np.array([2**24 + 1]), "f8"),
        (np.array([-(2**24) - 1, 0]), "f8"),
        (np.array([3 + 4j]), "f4"),
    ],
)
def test_four_bytes_where_they_are_enough(values, kind):
    values = np.asarray(values)
    found = packed(np.arange(len(values)), values)
    assert found.head["kind"] == kind
    np.testing.assert_allclose(found.values, np.abs(values) if np.iscomplexobj(values) else values, rtol=1e-6)
    length = int.from_bytes(found.as_bytes()[:8], "little")
    assert (8 + length) % 8 == 0
    assert len(found.as_bytes()) == 8 + length + 8 * len(values) + found.values.nbytes

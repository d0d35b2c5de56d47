"""Student's t interval against scipy, and how often it holds the truth."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from joma.measure.intervals import mean_interval, t_quantile


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 8, 9, 19, 50, 101, 1000, 20_001])
@pytest.mark.parametrize("level", [0.001, 0.1, 0.5, 0.6827, 0.9, 0.95, 0.99, 0.9999, 1 - 1e-6])
def test_quantiles_are_those_of_scipy(level, freedom):
    assert t_quantile(level, freedom) == pytest.approx(stats.t.ppf((1 + level) / 2, freedom), rel=1e-8)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31 - 1), st.integers(2, 20), st.floats(0.5, 0.999), st.floats(-30, 30))
def test_intervals_are_those_of_scipy(seed, seeds, level, exponent):
    values = torch.randn(3, seeds, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 10**exponent
    found = mean_interval(values, dim=1, level=level)
    for i, row in enumerate(values):
        low, high = stats.t.interval(level, seeds - 1, row.mean(), stats.sem(row))
        scale = float(row.abs().max())
        assert found.low[i].item() == pytest.approx(low, rel=1e-8, abs=1e-8 * scale)
        assert found.high[i].item() == pytest.approx(high, rel=1e-8, abs=1e-8 * scale)


@pytest.mark.parametrize("seeds", [2, 5])
def test_the_truth_is_inside_as_often_as_promised(seeds):
    trials = 20_000
    values = 3 + torch.randn(seeds, trials, generator=torch.Generator().manual_seed(0))
    found = mean_interval(values, level=0.9)
    inside = ((found.low < 3) & (found.high > 3)).double().mean()
    assert abs(inside - 0.9) < 4 * (0.09 / trials) ** 0.5


def test_shapes_and_whole_numbers():
    found = mean_interval(torch.arange(24).view(2, 3, 4), dim=-2)
    assert found.mean.shape == found.half_width.shape == (2, 4)
    assert found.mean.dtype == torch.float64
    assert mean_interval(torch.ones(5)).half_width == 0


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: mean_interval(torch.ones(1)), "at least 2 entries along dim 0"),
        (lambda: mean_interval(torch.ones(3), dim=1), "dim must name a dimension"),
        (lambda: mean_interval(torch.tensor(1.0)), "dim must name a dimension"),
        (lambda: mean_interval(torch.tensor([1.0, torch.nan])), "values must be finite"),
        (lambda: mean_interval(torch.ones(3) * 1j), "real numbers"),
        (lambda: mean_interval(torch.ones(3), level=1.0), "level must lie"),
        (lambda: mean_interval(torch.ones(3), level=95), "level must lie"),
        (lambda: t_quantile(0.9, 0), "freedom must be"),
    ],
)
def test_bad_input_gets_one_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()

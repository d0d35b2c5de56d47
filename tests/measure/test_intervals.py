"""Student's t interval against scipy, and how often it holds the truth."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusals
from scipy import stats

from joma.measure.intervals import compare, mean_interval, p_value, seeds_to_decide, t_quantile, usual_level


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


def test_shapes_and_whole_numbers():
    found = mean_interval(torch.arange(24).view(2, 3, 4), dim=-2)
    assert found.mean.shape == found.half_width.shape == (2, 4)
    assert found.mean.dtype == torch.float64
    assert mean_interval(torch.ones(5)).half_width == 0


test_bad_input_gets_one_sentence = refusals(
    (lambda: mean_interval(torch.ones(1)), "at least 2 entries along dim 0"),
    (lambda: mean_interval(torch.ones(3), dim=1), "dim must name a dimension"),
    (lambda: mean_interval(torch.tensor(1.0)), "dim must name a dimension"),
    (lambda: mean_interval(torch.tensor([1.0, torch.nan])), "values contains NaN"),
    (lambda: mean_interval(torch.ones(3), level=1.0), "level must lie"),
    (lambda: mean_interval(torch.ones(3), level=95), "level must lie"),
    (lambda: t_quantile(0.9, 0), "freedom must be"),
)


rows = st.lists(st.floats(-5, 5), min_size=2, max_size=12)


@given(rows, st.integers(0, 2**32 - 1))
def test_a_paired_comparison_is_the_interval_of_the_differences(first, seed):
    second = np.random.default_rng(seed).normal(size=len(first))
    found = compare(first, second, level=0.95)
    alone = mean_interval(torch.tensor(first, dtype=torch.float64) - torch.from_numpy(second))
    assert found.difference == pytest.approx(float(alone.mean), abs=1e-12)
    assert found.difference_low == pytest.approx(float(alone.low), abs=1e-9)
    assert found.difference_high == pytest.approx(float(alone.high), abs=1e-9)
    assert found.seeds == len(first)


@given(st.integers(2, 9), st.integers(2, 9), st.integers(0, 2**32 - 1))
def test_other_seeds_are_compared_as_welch_does(one, other, seed):
    generator = np.random.default_rng(seed)
    first, second = generator.normal(1, 2, one), generator.normal(0, 0.5, other)
    found = compare(first, second, paired=False, level=0.95)
    truth = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    # Degrees of freedom are rounded down: never narrower, and at most by what one degree is worth.
    assert found.difference_low <= truth.low + 1e-9
    assert found.difference_high >= truth.high - 1e-9
    freedom = stats.ttest_ind(first, second, equal_var=False).df
    ratio = stats.t.ppf(0.975, max(1, math.floor(freedom))) / stats.t.ppf(0.975, freedom)
    assert found.half_width == pytest.approx((truth.high - truth.low) / 2 * ratio)


def test_a_known_number_as_control_has_no_interval_of_its_own():
    found = compare([1.0, 2.0, 3.0], 0.5)
    assert (found.control, found.control_low, found.control_high) == (0.5, 0.5, 0.5)
    assert found.half_width == pytest.approx(float(mean_interval(torch.tensor([1.0, 2.0, 3.0]), level=0.99).half_width))


def test_seeds_that_failed_are_left_out_in_pairs():
    found = compare([1.0, np.nan, 3.0, 4.0], [0.0, 1.0, np.inf, 2.0])
    assert (found.value, found.control, found.seeds) == (2.5, 1.0, 2)
    apart = compare([1.0, np.nan, 3.0], [0.0, 1.0], paired=False)
    assert (apart.value, apart.control, apart.seeds) == (2.0, 0.5, 2)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, np.nan]])
def test_with_fewer_than_two_seeds_nothing_is_known_of_chance(values):
    found = compare(values, 0.0)
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert found.seeds == sum(np.isfinite(values))


@pytest.mark.parametrize(("arguments", "sentence"), [
    (([[1.0, 2.0]], 0.0), "values must be one row of numbers"),
    (([1.0, 2.0], [1.0]), "must be as many, got 2 and 1"),
    (([1.0, 2.0], float("nan")), "control must be finite where it is one number"),
])  # fmt: skip
def test_comparisons_that_make_no_sense(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        compare(*arguments)


def test_four_seeds_or_fewer_are_judged_at_99_percent():
    values = [0.3, 0.1, 0.4, 0.2, 0.25]
    for seeds, level in ((2, 0.99), (3, 0.99), (4, 0.99), (5, 0.95)):
        found = compare(values[:seeds])
        assert (found.level, found.freedom, usual_level(seeds)) == (level, seeds - 1, level)
        expected = stats.t.ppf((1 + level) / 2, seeds - 1) * stats.sem(values[:seeds])
        assert found.half_width == pytest.approx(expected)
    apart = compare(values, values[:3], paired=False)
    assert apart.level == 0.99  # the fewer of the two decide
    around = stats.t.ppf(0.995, 2) * stats.sem(values[:3])  # and the control's own interval has the same level
    assert (apart.control_low, apart.control_high) == pytest.approx((apart.control - around, apart.control + around))
    assert apart.freedom == math.floor(stats.ttest_ind(values, values[:3], equal_var=False).df)


@given(st.integers(2, 12), st.floats(-2, 2), st.sampled_from([0.9, 0.95, 0.99]), st.integers(0, 2**32 - 1))
def test_p_is_that_of_students_t(seeds, shift, level, seed):
    values = np.random.default_rng(seed).normal(shift, 1, seeds)
    found = compare(values, level=level)
    p = p_value(found.difference, found.half_width, found.level, found.freedom)
    assert p == pytest.approx(stats.ttest_1samp(values, 0.0).pvalue, rel=1e-6, abs=1e-12)
    # At the level of the interval, p and the interval say the same.
    assert (p < 1 - level) == (found.low > 0 or found.high < 0)


def test_p_of_what_has_no_interval_or_no_spread():
    assert p_value(1.0, math.nan, 0.95, 0) == 1.0
    assert p_value(math.nan, 1.0, 0.95, 4) == 1.0
    assert (p_value(0.5, 0.0, 0.95, 4), p_value(0.0, 0.0, 0.95, 4)) == (0.0, 1.0)


@pytest.mark.parametrize("value", [0.05, -0.05, 1 / 6, 0.47249521460733745, 1e300, 5e-324])
@pytest.mark.parametrize("seeds", [2, 3, 7])
def test_seeds_that_agree_have_their_number_as_mean_and_no_spread(value, seeds):
    """To the last bit: (0.05 + 0.05 + 0.05) / 3 is not 0.05."""
    same = [value] * seeds
    for found in (compare(same, value), compare(same, same), compare(same, same, paired=False)):
        assert (found.value, found.low, found.high, found.difference) == (value, value, value, 0.0)
        assert (found.control_low, found.control_high) == (value, value)
        assert found.freedom == (2 * seeds - 2 if not found.paired else seeds - 1)


@pytest.mark.parametrize(
    ("difference", "between"),
    [(0.04, (0.0, 0.2)), (0.3, (0.0, 0.2)), (-0.16, (0.0, 0.2)), (0.05, (0.0, 0.1)), (0.6, (0.4, 0.4))],
)
def test_so_many_seeds_decide_in_four_of_five_experiments_and_fewer_do_not(difference, between):
    """Of experiments with a true difference and spread, each judged by its own interval: over 20,000 of its widths."""
    now, half = 6, 0.1
    spread = half * math.sqrt(now) / stats.t.ppf(0.975, now - 1)
    needed = seeds_to_decide(difference, half, now, between)

    def share_decided(count):
        level, error = 0.99 if count <= 4 else 0.95, spread / math.sqrt(count)
        widths = np.sqrt(stats.chi2.ppf((np.arange(20_000) + 0.5) / 20_000, count - 1) / (count - 1))
        reach = stats.t.ppf((1 + level) / 2, count - 1) * widths * error
        means = stats.norm(difference, error)  # from high - reach to low + reach, and nowhere if it is too narrow
        both_inside = means.cdf(between[0] + reach) - means.cdf(between[1] - reach)
        return 1 - np.mean(np.maximum(both_inside, 0.0))

    assert share_decided(needed) >= 0.7995
    assert share_decided(needed - 1) < 0.8005


@pytest.mark.parametrize(
    ("now", "half", "groups"), [(3, 1.0, 1), (4, 0.6, 1), (6, 0.25, 1), (6, 0.25, 2), (6, 0.3, 2), (3, 1.0, 2)]
)
def test_seeds_that_decide_are_those_of_the_noncentral_t(now, half, groups):
    """Far above what matters: the power of a t test, of pairs or of two groups, at 99 % up to four seeds, then 95 %."""

    def level(count):
        return 0.99 if count <= 4 else 0.95

    spread = half * math.sqrt(now) / stats.t.ppf((1 + level(now)) / 2, groups * (now - 1))

    def power(count):
        freedom = groups * (count - 1)
        bound = stats.t.ppf((1 + level(count)) / 2, freedom)
        return stats.nct.sf(bound, freedom, 0.3 * math.sqrt(count) / spread)

    expected = next(count for count in range(2, 100) if power(count) >= 0.8)
    for said in (None, level(now)):
        found = seeds_to_decide(0.3, half, now, (0.0, 0.1), level=said, freedom=groups * (now - 1))
        assert found == expected


def test_further_seeds_keep_a_level_of_their_own_and_the_freedom_of_pairs_that_are_none():
    usual = seeds_to_decide(0.1, 0.4, 6, (0.0, 0.15))
    assert seeds_to_decide(0.1, 0.4, 6, (0.0, 0.15), level=0.99) < usual  # the same half is of a smaller spread
    assert seeds_to_decide(0.1, 0.4, 6, (0.0, 0.15), freedom=10) > usual  # and here of a larger one


def test_nothing_known_needs_an_unknown_number_of_seeds():
    assert seeds_to_decide(0.1, float("nan"), 1, (0.0, 0.1)) is None
    assert seeds_to_decide(0.1, 0.2, 5, (0.0, 0.1), freedom=0) is None  # as `compare` says it where there is none
    assert seeds_to_decide(float("nan"), 0.1, 5, (0.0, 0.1)) is None
    assert seeds_to_decide(0.0, 0.0, 3, (0.0, 0.1)) is None  # all gave the same number
    assert seeds_to_decide(0.0, 100.0, 3, (0.0, 1e-6)) is None
    assert seeds_to_decide(0.2, 0.1, 5, (0.2, 0.2)) is None  # on the bound itself no number of seeds decides
    assert seeds_to_decide(0.2, 0.1, 5, (0.3, 0.2)) is None

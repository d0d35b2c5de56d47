"""An effect as numbers: its p, the seeds that would decide it, how it moves, and how it is written and read."""

import json
import math
from dataclasses import replace

import pytest
from scipy import stats

from joma.claims.evidence import Effect, Evidence, Test, at_most
from joma.measure.intervals import compare

VALUES, CONTROL = [0.30, 0.10, 0.45, 0.20, 0.26], [0.05, 0.02, 0.21, 0.06, 0.11]
GAIN = Effect(0.5, (0.3, 0.7), 0.125, (0.05, 0.2), 6, 0.2, 1.0, "nats", "rebound", 0.99, "rates", 4, (0.175, 0.575))


@pytest.mark.parametrize("seeds", [3, 5])  # 99 % and 95 %: p does not depend on the level
def test_p_is_that_of_a_paired_test_beside_the_control(seeds):
    one = Effect.of(compare(VALUES[:seeds], CONTROL[:seeds]), matters=0.1)
    expected = stats.ttest_rel(VALUES[:seeds], CONTROL[:seeds]).pvalue
    assert one.p == pytest.approx(expected, rel=1e-6)
    assert replace(one, freedom=None).p == pytest.approx(expected, rel=1e-6)  # as records say that do not know it


def test_p_of_other_seeds_has_welchs_freedom():
    one = Effect.of(compare(VALUES, CONTROL[:3], paired=False), matters=0.1)
    welch = stats.ttest_ind(VALUES, CONTROL[:3], equal_var=False)
    assert one.p == pytest.approx(2 * stats.t.sf(abs(welch.statistic), math.floor(welch.df)), rel=1e-6)


def test_p_of_what_no_seeds_tell_is_one():
    lost = Effect(0.5, (math.nan, math.nan), 0.0, (0.0, 0.0), 0, 0.1)
    assert (lost.p, replace(lost, seeds=1).p, replace(lost, seeds=1, freedom=0).p) == (1.0, 1.0, 1.0)


def test_seeds_are_told_only_where_seeds_could_decide():
    wide = Effect(0.96, (0.5, 1.4), 0.95, (0.9, 1.0), 4, 0.1, difference_interval=(-0.49, 0.51))
    assert wide.seeds_to_decide is not None
    assert replace(wide, failed=1).seeds_to_decide is None  # further seeds leave it below
    assert replace(wide, ceiling=1.0).seeds_to_decide is None  # above 0.95 there is no room for 0.1
    assert replace(wide, seeds=1, freedom=0, difference_interval=(math.nan, math.nan)).seeds_to_decide is None
    assert (
        replace(wide, seeds=3, difference_interval=(0.01, 0.01)).seeds_to_decide is None
    )  # how unlike they are is not known
    # The same half of an interval, with a larger quantile or fewer degrees, comes from a smaller spread.
    assert replace(wide, level=0.99).seeds_to_decide < wide.seeds_to_decide < replace(wide, freedom=9).seeds_to_decide


def test_a_moved_effect_takes_its_interval_along_and_leaves_its_control():
    moved = GAIN.moved(0.5)
    assert (moved.effect, *moved.interval, moved.low, moved.high) == pytest.approx((0.6, 0.4, 0.8, 0.275, 0.675))
    assert replace(moved, effect=0.5, interval=GAIN.interval, difference_interval=GAIN.difference_interval) == GAIN
    assert GAIN.moved(-0.5).effect == pytest.approx(0.4)


def test_a_constant_has_no_interval():
    assert not GAIN.against_constant
    assert replace(GAIN, control_interval=(0.125, 0.125)).against_constant
    assert not replace(GAIN, control_interval=(0.125, 0.25)).against_constant
    assert not replace(GAIN, control_interval=(math.nan, math.nan)).against_constant


def test_every_number_is_written_and_read():
    still_open = replace(at_most("gap", math.nan, 0.1, "nats"), seeds_to_decide=10)
    both = Evidence({"layer 1": GAIN, "layer 2": replace(GAIN, ceiling=None, freedom=None)}, (), (), (still_open,))
    written = json.loads(json.dumps(both.as_json(), allow_nan=False))
    again = Evidence.from_json(written)
    assert again.effects == both.effects
    assert (again.controls[0].seeds_to_decide, again.controls[0].unit) == (10, "nats")
    assert "seeds_to_decide" not in at_most("gap", 0.0, 0.1).as_json()
    assert Test.from_json(at_most("gap", 0.0, 0.1).as_json()) == at_most("gap", 0.0, 0.1)
    older = {key: value for key, value in GAIN.as_json().items() if key not in ("over", "freedom")}
    assert Effect.from_json(older) == replace(GAIN, over="seeds", freedom=None)


def test_an_older_record_gives_its_difference_and_where_it_can_the_effects_own_interval():
    """It had the interval of the difference, moved by the control."""
    new = ("difference", "difference_interval")
    older = {key: value for key, value in GAIN.as_json().items() if key not in new} | {"interval": [0.3, 0.7]}
    read = Effect.from_json(older)
    assert read.difference_interval == pytest.approx((0.175, 0.575))
    assert all(map(math.isnan, read.interval))
    beside_nothing = Effect.from_json(older | {"control_interval": [0.125, 0.125]})
    assert (beside_nothing.interval, beside_nothing.low) == ((0.3, 0.7), pytest.approx(0.175))


def test_each_number_has_its_own_interval():
    """Of the values, of the control and of their difference, which is narrower where seeds go up and down together."""
    one = Effect.of(compare(VALUES, CONTROL), matters=0.1)
    for row, ends in (
        (VALUES, one.interval),
        (CONTROL, one.control_interval),
        ([a - b for a, b in zip(VALUES, CONTROL, strict=True)], one.difference_interval),
    ):
        assert ends == pytest.approx(stats.t.interval(0.95, 4, sum(row) / 5, stats.sem(row)))

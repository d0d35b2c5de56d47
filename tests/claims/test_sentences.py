"""Words are made from numbers: finding first, then the interval; what is missing is said in numbers too."""

import math
from dataclasses import replace

import pytest

from joma.claims import sentences
from joma.claims.evidence import Effect, Evidence, above, at_least, at_most
from joma.measure.intervals import compare

GAIN = Effect(0.5, (0.4, 0.6), 0.1, (0.05, 0.15), 6, 0.2, 1.0, "nats", "rebound",
              difference_interval=(0.35, 0.45))  # fmt: skip
MORE = "(difference 0.40 nats [0.35, 0.45])"
UNKNOWN = (float("nan"), float("nan"))
NEAR = Effect(0.96, (0.94, 0.98), 0.95, (0.9, 1.0), 4, 0.1, 1.0, difference_interval=(-0.01, 0.03))


@pytest.mark.parametrize(
    ("number", "unit", "shown"),
    [
        (0.0, "", "0"),
        (1 / 3, "", "0.3333"),
        (1e-12, "", "1.0e-12"),
        (18000.0, "", "18000"),
        (1234.56, "", "1235"),
        (123456.0, "", "1.2e+5"),
        (0.25, "%", "25 %"),
        (44.0, "°", "44°"),
        (float("nan"), "", "unknown"),
        (float("inf"), "nats", "infinite"),
    ],
)
def test_numbers(number, unit, shown):
    assert sentences.show(number, unit) == shown


def test_an_effect_has_name_value_interval_and_seeds():
    assert sentences.measured(Evidence({"": GAIN})) == f"rebound 0.50 nats [0.40, 0.60] {MORE} over 6 seeds"
    assert sentences.control(Evidence({"": GAIN})) == "0.10 nats [0.05, 0.15]"


@pytest.mark.parametrize(("size", "half", "said"), [
    (1e6, 9e4, "1000000 [910000, 1090000]"),
    (1e6, 1.1e5, "1.0e+6 [8.9e+5, 1.1e+6]"),
    (1e9, 1e-4, "1.0e+9 [1.0e+9, 1.0e+9]"),  # no more than rounding
])  # fmt: skip
def test_what_is_only_known_to_a_hundred_thousand_is_written_with_its_power(size, half, said):
    large = replace(GAIN, effect=size, interval=(size - half, size + half), unit="")
    assert sentences.measured(Evidence({"": large})).startswith(f"rebound {said} (")


def test_cases_are_named():
    other = replace(GAIN, effect=0.7, interval=(0.6, 0.8), control_effect=0.2, control_interval=(0.2, 0.2))
    several = Evidence({"layer 1": GAIN, "layer 2": other})
    said = f"rebound over 6 seeds: layer 1 0.50 nats [0.40, 0.60] {MORE}; layer 2 0.70 nats [0.60, 0.80]"
    assert sentences.measured(several) == said
    assert sentences.control(several) == "layer 1: 0.10 nats [0.05, 0.15]; layer 2: the constant 0.20 nats"


def test_cases_of_which_the_same_is_said_stand_together():
    alone = replace(GAIN, interval=UNKNOWN, difference_interval=UNKNOWN, seeds=1)
    said = sentences.missing(Evidence({"layer 1": alone, "layer 2": alone}))
    assert said == "layer 1, layer 2: only 1 of the seeds could be compared, at least 2 are needed"


def test_cases_of_other_kinds_are_named_each():
    several = Evidence({"early": GAIN, "late": replace(GAIN, what="drop")})
    assert sentences.measured(several).startswith(
        f"early: rebound 0.50 nats [0.40, 0.60] {MORE} over 6 seeds; late: drop 0.50 nats"
    )


def test_a_number_whose_own_interval_is_not_known_has_none():
    """As in records of before: the difference has its own still."""
    older = replace(GAIN, interval=UNKNOWN)
    assert sentences.brief(Evidence({"": older}), None, older) == (
        "0.5 nats; control 0.10 nats [0.05, 0.15]; difference 0.40 nats [0.35, 0.45]"
    )


def test_a_known_control_has_no_interval():
    assert sentences.control(Evidence({"": Effect(0.5, (0.4, 0.6), 0.0, (0.0, 0.0), 6, 0.2)})) == "the constant 0"


def test_a_single_number_stays_a_number():
    assert sentences.measured(Evidence(tests=(at_most("off by", 1e-12, 1e-9),))) == 1e-12
    assert sentences.control(Evidence(tests=(at_most("off by", 1e-12, 1e-9),))) is None


def test_tests_say_what_was_needed():
    both = Evidence(tests=(at_least("share in order", 0.98, 1.0, "%"), above("slope", 0.2, 0.0)))
    assert sentences.measured(both) == "share in order 98 % (needed: at least 100 %); slope 0.2 (needed: above 0)"


def test_numbers_beside_are_shown_by_case():
    assert sentences.measured(Evidence({"": GAIN}), None, {"L = 2": {"loss": 5.25}}).endswith("; L = 2: loss 5.25")


@pytest.mark.parametrize(
    ("effect", "said"),
    [
        (
            Effect(0.5, (-0.5, 1.5), 0.0, (0, 0), 4, 0.5),
            "it could have seen a difference of at least 1.0; 14 seeds would probably decide",
        ),
        (
            Effect(0.5, (float("nan"),) * 2, 0.0, (0, 0), 1, 0.5),
            "only 1 of the seeds could be compared, at least 2 are needed",
        ),
        (NEAR, "the control is at 0.95, and a difference of 0.1"),
        (
            Effect(0.5, (0.5, 0.5), 0.5, (0.5, 0.5), 3, 0.1, over="matrices"),
            "all 3 matrices give exactly what the control gives, as so few may by chance; at least 10 matrices are",
        ),
        (Effect(0.5, (0.5, 0.5), 0.5, (0.5, 0.5), 10, 0.1), ""),
        (Effect(0.5, (0.4, 0.6), 0.0, (0, 0), 4, 0.1, failed=2), "2 of 6 seeds failed, and what failed counts as the"),
        (replace(NEAR, difference_interval=(0.0, 0.0), seeds=3), "the control is at 0.95, and a difference of 0.1"),
        (GAIN, ""),
    ],
)
def test_what_is_missing(effect, said):
    assert sentences.missing(Evidence({"": effect})).startswith(said)
    assert bool(sentences.missing(Evidence({"": effect}))) == bool(said)


@pytest.mark.parametrize(
    ("effect", "interval", "unit", "said"),
    [
        (0.02403, (-0.2744, 0.3224), "nats", "0.02 nats [-0.27, 0.32]"),
        (0.6407, (0.6342, 0.6472), "%", "64.1 % [63.4, 64.7]"),
        (-0.7, (-1.5, 0.1), "%", "-70 % [-150, 10]"),
        (198.4, (193.1, 203.7), "°", "198° [193, 204]"),
        (-0.001, (-0.2, 0.198), "", "0.00 [-0.20, 0.20]"),
        (1.0, (1.0, 1.0), "", "1 [1, 1]"),
    ],
)
def test_an_effect_has_the_digits_that_its_interval_gives_sense_to(effect, interval, unit, said):
    one = Effect(effect, interval, 0.0, (0.0, 0.0), 6, 0.1, unit=unit)
    assert (
        sentences.brief(Evidence({"": one}), None, one)
        == f"{said}; control the constant 0{unit if unit == '°' else ' ' + unit}".rstrip()
    )


def test_a_level_that_is_not_95_percent_is_said_with_every_interval():
    few = replace(GAIN, level=0.99, seeds=3)
    assert sentences.measured(Evidence({"": few})) == (
        "rebound 0.50 nats [0.40, 0.60] at 99 % (difference 0.40 nats [0.35, 0.45] at 99 %) over 3 seeds"
    )
    assert sentences.control(Evidence({"": few})) == "0.10 nats [0.05, 0.15] at 99 %"
    assert sentences.brief(Evidence({"": few}), None, few).startswith("0.50 nats [0.40, 0.60] at 99 %; control")
    assert sentences.level(replace(GAIN, level=0.999)) == " at 99.9 %"
    assert sentences.level(replace(GAIN, level=0.99, difference_interval=UNKNOWN)) == ""


def test_tests_that_chance_leaves_open_say_how_many_seeds_would_tell():
    still_open = replace(at_most("upper end of the gap", float("nan"), 0.1), seeds_to_decide=10)
    said = sentences.missing(Evidence({"": GAIN}, (still_open,)))
    assert said == "upper end of the gap: 10 seeds would probably decide"
    assert sentences.missing(Evidence({"": GAIN}, controls=(still_open,))) == said


def test_what_decides_is_said_where_the_effect_itself_is_above_its_control():
    """A twin, say, that loses as much; of several that one which is furthest off, and what is unknown comes last."""
    large = Effect.of(compare([0.6, 0.7, 0.65], 0.0), matters=0.1, unit="%")
    near, far = (at_least(f"more than in twins, {name}", value, 0.1, "%") for name, value in (("a", 0.05), ("b", -0.2)))
    unknown = at_least("more than in twins, c", math.nan, 0.1, "%")
    kept = at_least("batches", 3.0, 2.0)

    def said(effect, *controls):
        return sentences.brief(Evidence({"": effect}, controls=controls), None, effect)

    plain = said(large)
    assert plain.endswith("control the constant 0 %")
    assert said(large, kept) == plain
    assert said(large, unknown, near, far, kept) == f"{plain}; but more than in twins, b -20 % (needed: at least 10 %)"
    assert said(large, kept, unknown) == f"{plain}; but more than in twins, c unknown (needed: at least 10 %)"
    small = Effect.of(compare([0.01, 0.02, 0.015], 0.0), matters=0.1, unit="%")
    assert said(small, far) == said(small)
    corrected = Evidence({"": large}, controls=(far,))
    assert "twins, b" in sentences.brief(Evidence({"": small}), corrected, large)

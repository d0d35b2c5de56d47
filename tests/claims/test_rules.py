"""From intervals to verdicts: the table of the rules, their properties, and each way in which nothing can be told."""

import math
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from joma.claims.evidence import Effect, Evidence, Test, above, at_least, at_most, below
from joma.claims.rules import VERDICTS, is_fragile, judged, of_effect, of_evidence, together
from joma.measure.intervals import compare

NAN = float("nan")
finite = st.floats(-10, 10)
widths = st.floats(1e-6, 5)
positive = st.floats(1e-3, 5)


def effect(difference, half, *, control=0.0, matters=0.1, seeds=9, ceiling=None):
    value = control + difference
    return Effect(value, (value - half, value + half), control, (control, control), seeds, matters, ceiling)


@pytest.mark.parametrize(
    ("difference", "half", "verdict"),
    [
        (0.30, 0.05, "holds"),
        (0.10, 0.05, "holds"),
        (0.06, 0.05, "only qualitative"),
        (0.01, 0.05, "not above its control"),
        (-0.02, 0.05, "not above its control"),
        (0.06, 0.07, "undecided"),
        (0.00, 0.20, "undecided"),
        (-0.20, 0.05, "fails"),
        (-0.10, 0.05, "fails"),
        (-0.09, 0.05, "not above its control"),  # slightly reversed
    ],
)
def test_the_interval_and_what_matters_decide(difference, half, verdict):
    assert of_effect(effect(difference, half)) == verdict
    assert of_effect(effect(difference, half, control=3.0)) == verdict


@given(difference=finite, half=widths, matters=positive, control=finite)
def test_every_verdict_says_what_its_interval_says(difference, half, matters, control):
    one = effect(difference, half, control=control, matters=matters)
    low, high = one.low, one.high
    says = {
        "holds": low > 0 and one.difference >= matters,
        "only qualitative": low > 0 and one.difference < matters,
        "fails": high < 0 and one.difference <= -matters,
        "not above its control": (high < 0 and one.difference > -matters) or low <= 0 <= high < matters,
        "undecided": low <= 0 and high >= matters,
    }
    assert [verdict for verdict, true in says.items() if true] == [of_effect(one)]
    assert one.size_shown == (low >= matters)
    assert one.slightly_reversed == (high < 0 and one.difference > -matters)


@given(difference=finite, half=widths, matters=positive)
def test_a_wider_interval_never_turns_undecided_into_a_verdict(difference, half, matters):
    if of_effect(effect(difference, half, matters=matters)) == "undecided":
        assert of_effect(effect(difference, 1.5 * half, matters=matters)) == "undecided"


@pytest.mark.parametrize("ends", [(NAN, NAN), (NAN, 1.0), (0.2, math.inf), (-math.inf, 0.05), (-math.inf, -0.2)])
def test_without_an_interval_nothing_is_decided(ends):
    assert of_effect(Effect(0.5, ends, 0.0, (0.0, 0.0), 5, 0.1)) == "undecided"


def test_ends_that_lie_on_a_bound():
    """In numbers that float64 has: what matters is not left out, and zero is not exceeded."""
    assert of_effect(effect(0.0, 0.5, matters=0.5)) == "undecided"
    assert of_effect(effect(0.25, 0.25, matters=1.0)) == "not above its control"
    assert of_effect(effect(-0.25, 0.25, matters=0.125)) == "not above its control"


def test_one_seed_decides_nothing():
    assert of_effect(effect(0.5, 0.0, seeds=1)) == "undecided"


def test_a_control_too_near_the_ceiling_leaves_no_room_to_see_anything():
    assert of_effect(effect(0.01, 0.02, control=0.95, ceiling=1.0)) == "undecided"
    assert of_effect(effect(0.01, 0.02, control=0.85, ceiling=1.0)) == "not above its control"
    assert of_effect(effect(-0.2, 0.02, control=0.95, ceiling=1.0)) == "fails"
    assert of_effect(effect(-0.05, 0.02, control=0.95, ceiling=1.0)) == "not above its control"
    assert of_effect(effect(0.3, 0.02, control=0.65, ceiling=1.0)) == "holds"  # the control needs the room
    assert of_effect(effect(0.25, 0.125, control=0.5, matters=0.5, ceiling=1.0)) == "only qualitative"  # just enough


@pytest.mark.parametrize(
    ("cases", "whole"),
    [
        (["holds", "holds"], "holds"),
        (["holds", "only qualitative"], "only qualitative"),
        (["holds", "not above its control"], "only qualitative"),
        (["holds", "fails"], "mixed"),
        (["only qualitative", "fails"], "mixed"),
        (["holds", "not above its control", "fails"], "mixed"),
        (["holds", "fails", "undecided"], "mixed"),
        (["not above its control", "fails"], "not above its control"),
        (["fails", "fails"], "fails"),
        (["holds", "undecided"], "undecided"),
        (["only qualitative", "undecided"], "undecided"),  # it may become mixed
        (["not above its control", "undecided"], "undecided"),
        (["undecided"], "undecided"),
    ],
)
def test_several_cases_together(cases, whole):
    assert together(cases) == whole
    assert together(reversed(cases)) == whole


def test_an_undecided_case_can_only_hide_what_it_could_become():
    decided = ("holds", "only qualitative", "not above its control", "fails")
    for others in product(decided, repeat=2):
        found = together([*others, "undecided"])
        could = {together([*others, last]) for last in decided}
        assert found == (could.pop() if len(could) == 1 else "undecided")


def test_a_size_that_is_missed_decides_what_an_open_case_cannot_change():
    missed, held, still_open = at_least("share", 0.5, 0.9), effect(0.3, 0.05), effect(0.0, 0.5)
    assert of_evidence(Evidence({"1": held, "2": still_open})) == "undecided"
    assert of_evidence(Evidence({"1": held, "2": still_open}, (missed,))) == "undecided"  # it may become mixed
    assert of_evidence(Evidence({"1": held, "2": effect(-0.3, 0.05), "3": still_open}, (missed,))) == "mixed"
    assert of_evidence(Evidence({"1": still_open}, (missed,))) == "undecided"
    assert of_evidence(Evidence({"1": held, "2": still_open}, controls=(missed,))) == "not above its control"


def test_size_and_controls_bear_on_a_favourable_verdict_alone():
    good, bad = at_least("share", 1.0, 0.9), at_least("share", 0.5, 0.9)
    held, null = {"": effect(0.3, 0.05)}, {"": effect(0.0, 0.05)}
    assert of_evidence(Evidence(held, (good,))) == "holds"
    assert of_evidence(Evidence(held, (bad,))) == "only qualitative"
    assert of_evidence(Evidence(held, (at_least("share", NAN, 0.9),))) == "undecided"
    assert of_evidence(Evidence(held, (at_least("share", NAN, 0.9), good))) == "undecided"
    assert of_evidence(Evidence(held, (at_least("share", NAN, 0.9), bad))) == "only qualitative"  # it cannot hold
    assert of_evidence(Evidence(held, controls=(bad,))) == "not above its control"
    assert of_evidence(Evidence({**held, "2": effect(-0.3, 0.05)}, controls=(bad,))) == "not above its control"
    assert of_evidence(Evidence(held, controls=(at_least("twin", NAN, 0.9),))) == "undecided"
    assert of_evidence(Evidence(held, controls=(at_least("twin", NAN, 0.9), bad))) == "not above its control"
    assert of_evidence(Evidence(null, (good,), controls=(good,))) == "not above its control"


def test_mathematics_holds_by_its_tests():
    def exact(off, **more):
        return Evidence(tests=(at_most("off by", off, 1e-9),), **more)

    assert of_evidence(exact(0.0)) == "holds"
    assert of_evidence(exact(1.0)) == "fails"
    assert of_evidence(exact(NAN)) == "undecided"
    assert of_evidence(Evidence(tests=(at_most("off by", NAN, 1.0), at_most("off by", 2.0, 1.0)))) == "fails"
    assert of_evidence(exact(1.0, direction=(above("slope", 1.0, 0.0),))) == "only qualitative"
    assert of_evidence(exact(1.0, direction=(above("slope", -1.0, 0.0),))) == "fails"
    assert of_evidence(exact(0.0, controls=(above("control", 1.0, 1e-9),))) == "holds"
    assert of_evidence(exact(0.0, controls=(above("control", 0.0, 1e-9),))) == "not above its control"
    assert of_evidence(exact(0.0, horizon=(at_most("still moves by", 0.2, 0.1),))) == "undecided"


@pytest.mark.parametrize(
    ("printed", "corrected", "verdict"),
    [(0.0, 1.0, "holds"), (1.0, 0.0, "holds as corrected"), (1.0, 1.0, "fails"), (0.0, 0.0, "holds")],
)
def test_the_printed_form_comes_first(printed, corrected, verdict):
    forms = (Evidence(tests=(at_most("off by", off, 0.5),)) for off in (printed, corrected))
    assert judged(*forms) == verdict


def test_where_neither_form_holds_what_could_not_be_told_comes_first():
    in_order = {
        "undecided": Evidence({"": effect(0.0, 0.5)}),
        "only qualitative": Evidence({"": effect(0.06, 0.05)}),
        "mixed": Evidence({"1": effect(0.3, 0.05), "2": effect(-0.3, 0.05)}),
        "not above its control": Evidence({"": effect(0.0, 0.05)}),
        "fails": Evidence({"": effect(-1.0, 0.5)}),
    }
    for (place, (first, one)), (later, (second, other)) in product(enumerate(in_order.items()), repeat=2):
        assert judged(one, other) == (first if place <= later else second)


@pytest.mark.parametrize(
    ("test", "passes", "shortfall"),
    [
        (at_most("x", 1.0, 1.0), True, 0.0),
        (below("x", 1.0, 1.0), False, pytest.approx(0.0, abs=1e-300)),
        (at_least("x", 0.5, 1.0), False, 0.5),
        (above("x", 1.5, 1.0), True, 0.0),
        (at_most("x", NAN, 1.0), False, math.inf),
    ],
)
def test_a_bound_is_kept_or_missed_by_so_much(test, passes, shortfall):
    assert test.passes == passes
    assert test.shortfall == shortfall
    assert (test.shortfall == 0.0) == passes


def test_effects_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="matters must be a positive number"):
        effect(0.1, 0.1, matters=0.0)
    with pytest.raises(ValueError, match="evidence needs an effect or a test"):
        Evidence()
    with pytest.raises(ValueError, match="direction is for mathematical claims"):
        Evidence({"": effect(0.1, 0.1)}, direction=(above("x", 1, 0),))


@pytest.mark.parametrize(
    ("difference", "half", "is_so"),
    [
        (0.30, 0.10, False),
        (0.12, 0.11, True),  # less by a quarter, and its interval holds zero
        (0.105, 0.06, True),  # less by a quarter, and it is smaller than what matters
        (0.110, 0.045, True),  # 0.25 x 0.045 = 0.01125 is more than 0.010
        (0.112, 0.045, False),  # and less than 0.012
        (0.00, 0.05, False),
        (0.00, 0.09, True),  # more by a quarter, and its interval holds what matters
        (-0.12, 0.05, False),
        (-0.105, 0.05, True),  # less reversed by a quarter, and only slightly
        (0.00, 0.20, False),  # undecided either way
        (0.19, 0.20, True),  # undecided, and more by a quarter decides
    ],
)
def test_a_verdict_is_fragile_where_a_quarter_of_half_the_interval_changes_it(difference, half, is_so):
    one = effect(difference, half)
    ends = {of_effect(effect(difference + by * half, half)) for by in (-0.25, 0.25)}
    assert is_fragile(Evidence({"": one})) == is_so == (ends != {of_effect(one)})


def test_one_case_that_moves_alone_can_make_it_fragile():
    """Together both would go on to hold, or both fail to: it is the one that moves against the other."""
    firm, near = effect(0.5, 0.1), effect(-0.16, 0.13)
    assert judged(Evidence({"1": firm, "2": near})) == "mixed"
    assert is_fragile(Evidence({"1": firm, "2": near}))
    assert not is_fragile(Evidence({"1": firm, "2": effect(-0.5, 0.1)}))


def test_a_verdict_can_be_fragile_by_all_cases_together():
    """Two that are nearly decided: with one decided the whole stays open, with both it holds."""
    near = Evidence({"1": effect(0.19, 0.2), "2": effect(0.19, 0.2)})
    assert is_fragile(near)
    assert is_fragile(Evidence({"": effect(-0.5, 0.05)}), near)  # whose cases the printed form does not have


def test_the_corrected_form_can_be_the_fragile_one():
    fails, near, firm = (Evidence({"": effect(by, 0.05)}) for by in (-0.5, 0.105, 0.5))
    assert is_fragile(fails, near)
    assert not is_fragile(fails, firm)
    assert is_fragile(near, fails)
    assert not is_fragile(firm, fails)
    assert not is_fragile(Evidence(tests=(at_most("off by", 0.0, 1e-9),)))


def over(share, seeds, off=0.0):
    return Evidence({"": Effect.of(compare([share + off] + [share] * (seeds - 1)), matters=0.1)})


@pytest.mark.parametrize("off", [0.0, 1e-12])
@pytest.mark.parametrize(("share", "verdict"), [(1.0, "holds"), (0.05, "only qualitative"), (-1.0, "fails")])
def test_a_difference_of_few_seeds_that_agree_is_fragile(share, verdict, off):
    """Ten that lie on one side have a p of 0.002, and nine of 0.004."""
    assert [judged(over(share, seeds, off)) for seeds in (2, 3, 9, 10)] == [verdict] * 4
    assert [is_fragile(over(share, seeds, off)) for seeds in (2, 3, 9, 10)] == [True, True, True, False]


@pytest.mark.parametrize("off", [0.0, 1e-12])
def test_few_seeds_that_all_end_as_the_control_does_rule_nothing_out(off):
    found = [judged(over(0.0, seeds, off)) for seeds in (2, 4, 9, 10, 11)]
    assert found == ["undecided"] * 3 + ["not above its control"] * 2
    assert not any(is_fragile(over(0.0, seeds, off)) for seeds in (2, 4, 9, 10))
    assert judged(over(0.0, 9, 1e-4)) == "not above its control"  # which do differ
    measured = compare([0.25, 0.5, 0.75], [0.25, 0.5, 0.75])  # seeds that differ, and each is as its control
    assert of_effect(Effect.of(measured, matters=0.1)) == "undecided"


def test_few_seeds_that_agree_leave_open_only_what_they_could_change():
    alike, held, reversed_ = (Effect.of(compare([share] * 3), matters=0.1) for share in (0.0, 1.0, -1.0))
    assert judged(Evidence({"1": held, "2": alike})) == "undecided"
    assert judged(Evidence({"1": effect(0.5, 0.1), "2": effect(-0.5, 0.1), "3": alike})) == "mixed"
    firm = {"1": effect(0.5, 0.1), "2": effect(-0.5, 0.1)}
    assert [is_fragile(Evidence(firm | {"3": one})) for one in (alike, held, reversed_)] == [False, False, False]
    assert is_fragile(Evidence({"1": effect(0.5, 0.1), "2": held}))  # it holds in all cases, or not at all


def seeds_of(mean, count, *, odd=0, spread=0.01):
    """So many seeds near the mean; the last `odd` of them on the other side, just beyond zero."""
    near = mean + spread * (np.arange(count) % 3 - 1.0)
    near[count - odd :] = -1e-6 * mean
    return near


@pytest.mark.parametrize(
    ("values", "firm"),
    [
        (seeds_of(1.0, 5), True),
        (seeds_of(1.0, 4), False),  # at least five
        (seeds_of(-1.0, 5), True),
        (seeds_of(-1.0, 4), False),
        (seeds_of(1.0, 8, odd=1), True),  # 7 of 8 lie above: 3.5 %
        (seeds_of(1.0, 7, odd=1), False),  # 6 of 7: 6.3 %, where Student's t has p = 0.0010
        ([0.6, 1.0, 1.4, 1.2, 0.8], True),  # p = 0.0021
        ([0.3, 1.0, 1.7, 1.2, 0.8], False),  # p = 0.012
    ],
)
def test_a_firm_difference_has_five_seeds_a_clear_p_and_signs_that_agree(values, firm):
    one = Evidence({"": Effect.of(compare(values), matters=0.05)})
    assert judged(one) == ("holds" if np.mean(values) > 0 else "fails")
    assert is_fragile(one) == (not firm)
    older = replace(one.effects[""], sign_p=None)  # a record that does not know it
    assert older.firm == (len(values) > 4 and older.p <= 0.0025)


def test_ranks_speak_where_seeds_are_others():
    one = compare([3.0, 3.1, 3.2, 3.3, 3.4], [1.0, 1.1, 1.2, 1.3, 1.4], paired=False)
    assert one.sign_p == pytest.approx(1 / 252)  # of all ways to choose five of ten
    assert compare(one.numbers[1], one.numbers[0], paired=False).sign_p == pytest.approx(1 / 252)
    assert compare([1.0, 2.0, 3.0], [1.5, 2.5], paired=False).sign_p > 0.4


@pytest.mark.parametrize("lost", [NAN, math.inf, -math.inf])
def test_a_seed_that_failed_counts_as_the_worst(lost):
    above, below = ([sign, 1.1 * sign, 0.9 * sign, sign, 1.2 * sign, lost] for sign in (1.0, -1.0))
    assert of_effect(Effect.of(compare(above[:-1]), matters=0.1)) == "holds"
    assert of_effect(Effect.of(compare(above), matters=0.1)) == "undecided"
    assert of_effect(Effect.of(compare(below), matters=0.1)) == "fails"
    assert of_effect(Effect.of(compare([lost] * 8 + [1.0, 1.1]), matters=0.1)) == "undecided"
    assert of_effect(Effect.of(compare([0.01, -0.01, 0.0, lost], 0.0), matters=0.9)) == "not above its control"
    apart = compare(above, [0.0, 0.1, lost], paired=False)
    assert (apart.failed, compare(above, above[::-1]).failed) == (2, 2)


def test_a_seed_that_failed_is_on_neither_side():
    assert compare([1.0] * 5).sign_p == 1 / 32
    assert compare([1.0] * 5 + [NAN]).sign_p == 7 / 64
    assert compare([1.0] * 5 + [0.0]).sign_p == 7 / 64


def test_the_numbers_of_tests_move_too():
    """68 % ± 51, where 60 % are needed; and 0.00269 ± 0.0004, where 0.00276 is allowed."""
    held = {"": effect(0.5, 0.05)}
    near = Test("share gone", 0.68, ">=", 0.6, half_width=0.51)
    small = Test("distance", 0.00269, "<=", 0.00276, half_width=0.0004)
    for test in (near, small):
        assert judged(Evidence(held, (test,))) == judged(Evidence(held, controls=(test,))) == "holds"
        assert is_fragile(Evidence(held, (test,)))
        assert is_fragile(Evidence(held, controls=(test,)))
        assert not is_fragile(Evidence(held, (replace(test, half_width=test.half_width / 100),)))
    sure, unsure = (at_least("share", compare(row), 0.6) for row in ([0.61, 0.62, 0.63], [0.11, 0.62, 1.13]))
    assert [is_fragile(Evidence(held, (one,))) for one in (sure, unsure)] == [False, True]
    assert Test.from_json(unsure.as_json()) == unsure
    either = (Test("a", 0.65, ">=", 0.6, half_width=0.4), Test("b", 0.65, "<=", 0.7, half_width=0.4))
    assert is_fragile(Evidence(held, either))
    # 0.65 <= 0.6 fails: by itself it may pass, but where all move down together the other falls below its bound.
    missed = (replace(either[0], half_width=0.4), replace(either[1], bound=0.6))
    assert judged(Evidence(held, controls=missed)) == "not above its control"
    assert is_fragile(Evidence(held, controls=missed))


def test_who_chooses_a_case_among_others_needs_more():
    """One of nine null cases is above its control in 20 %: the interval of a choice is that of 0.05 / 9."""
    null, near, clear = effect(0.0, 0.05), effect(0.03, 0.028), effect(0.06, 0.02)
    assert of_effect(near) == "only qualitative"
    assert judged(Evidence({"0": near})) == "only qualitative"  # which nobody chose
    assert judged(Evidence({"0": near, "1": clear})) == "only qualitative"  # both are above
    cases = {str(at): null for at in range(8)}
    assert judged(Evidence(cases | {"8": near})) == "not above its control"
    assert judged(Evidence(cases | {"8": clear})) == "only qualitative"
    assert judged(Evidence(cases | {"8": replace(near, matters=0.07)})) == "undecided"  # its interval holds 0.07 now
    assert judged(Evidence({"0": effect(-0.12, 0.11), "1": effect(-0.3, 0.05)})) == "fails"  # both are below
    wider = near.one_of(9)
    assert wider.half_width / near.half_width == pytest.approx(stats.t.ppf(1 - 0.05 / 18, 8) / stats.t.ppf(0.975, 8))
    assert wider.p == pytest.approx(near.p)


@pytest.mark.parametrize("law", ["Gaussian", "tail downwards (exponential)", "heavy tails (t, 3 degrees)"])
def test_false_holds_are_rare(law, monkeypatch):
    """Of 2,000 fixed draws of five seeds whose mean is zero; Student's interval alone gives 2.5, 11 and 2 %."""
    bench = rules_bench(monkeypatch)
    found = [bench.verdict(row) for row in bench.LAWS[law](np.random.default_rng(5), (2000, 5))]
    assert bench.share(("holds", False), found) <= 0.03
    assert bench.share(("holds", True), found) > 0.01


def test_a_large_effect_is_seen_with_five_seeds(monkeypatch):
    bench = rules_bench(monkeypatch)
    found = [bench.verdict(row) for row in 4 + np.random.default_rng(5).standard_normal((1000, 5))]
    assert bench.share(("holds", False), found) >= 0.83  # 85 % in 4,000


def rules_bench(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return pytest.importorskip("bench_rules")


def test_what_has_no_interval_does_not_move():
    lost = Effect(0.5, (NAN, NAN), 0.0, (0.0, 0.0), 1, 0.1)
    assert not is_fragile(Evidence({"": lost}))


def test_the_nine_verdicts():
    assert len(VERDICTS) == 9
    assert "undecided" in VERDICTS

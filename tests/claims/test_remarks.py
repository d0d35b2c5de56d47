"""What a finding says beyond its verdict: remarks, p, and the seeds that would decide."""

import json
import math
from dataclasses import replace

import pytest
from scipy import stats

from joma.claims.claim import Claim
from joma.claims.evidence import Effect, Evidence, at_least, at_most
from joma.claims.finding import Finding

CLAIM = Claim("seen", "JoMA Fig. 6", "It rises.", matters=0.1)
OPEN = Effect(0.5, (-0.5, 1.5), 0.0, (0.0, 0.0), 4, 0.1)


def effect(difference, half):
    return Effect(difference, (difference - half, difference + half), 0.0, (0.0, 0.0), 9, 0.1)


def found(*cases, corrected=(), tests=(), controls=(), **more):
    forms = [Evidence({f"layer {at}": effect(*one) for at, one in enumerate(form)}, tests, (), controls)
             for form in (cases, corrected) if form]  # fmt: skip
    return Finding(replace(CLAIM, corrected="It falls.") if corrected else CLAIM, "more", *forms, **more)


HELD, SMALL, NULL, SLIGHT, AGAINST, WIDE = (
    (0.3, 0.05), (0.12, 0.05), (0.01, 0.03), (-0.06, 0.03), (-0.5, 0.05), (0.0, 0.5)
)  # fmt: skip


@pytest.mark.parametrize(
    ("cases", "told"),
    [
        ([HELD, HELD], "holds (size shown)"),
        ([HELD, SMALL], "holds"),  # of the second case the interval begins below what matters
        ([HELD, NULL], "only qualitative"),
        ([HELD, SLIGHT], "only qualitative (slightly reversed)"),
        ([NULL, NULL], "not above its control"),
        ([NULL, SLIGHT], "not above its control (slightly reversed)"),
        ([NULL, SLIGHT, AGAINST], "not above its control (reversed in part)"),
        ([HELD, AGAINST], "mixed"),
        ([AGAINST], "fails"),
        ([WIDE], "undecided"),
        ([(0.19, 0.2)], "undecided (fragile)"),
        ([(0.105, 0.004), HELD], "holds (size shown)"),
        ([(0.101, 0.0009), HELD], "holds (size shown)"),
        ([(0.105, 0.05), HELD], "holds (fragile)"),
    ],
)
def test_remarks_say_what_the_verdict_alone_does_not(cases, told):
    one = found(*cases)
    assert one.full_verdict == told
    assert one.as_json()["remarks"] == one.remarks
    assert one.as_json()["fragile"] == one.fragile == ("fragile" in told)


def test_the_size_of_a_corrected_form_is_its_own():
    assert found(AGAINST, corrected=[HELD]).full_verdict == "holds as corrected (size shown)"
    assert found(AGAINST, corrected=[SMALL]).full_verdict == "holds as corrected"


@pytest.mark.parametrize(
    ("cases", "q", "told"),
    [
        ([SMALL], 0.061, "holds (q 0.061)"),
        ([SMALL], 0.05, "holds"),
        ([AGAINST], 0.3, "fails (q 0.3)"),
        ([HELD, AGAINST], 0.1, "mixed (q 0.1)"),
        ([HELD, NULL], 0.06, "only qualitative (q 0.06)"),
        ([NULL], 0.9, "not above its control"),
        ([WIDE], 0.9, "undecided"),
    ],
)
def test_a_claim_that_chance_may_have_given_says_so(cases, q, told):
    one = found(*cases, q=q)
    assert one.full_verdict == told
    written = json.loads(json.dumps(one.as_json()))
    assert (written["q"], Finding.from_json(written).full_verdict) == (q, told)


def p(difference, half):
    return 2 * stats.t.sf(abs(difference) * stats.t.ppf(0.975, 8) / half, 8)


@pytest.mark.parametrize(
    ("cases", "expected"),
    [
        ([HELD, SMALL], p(*SMALL)),  # both are needed
        ([WIDE, HELD], 1.0),
        ([HELD, SMALL, NULL, (-0.02, 0.03)], 4 * p(*HELD)),  # one would do: the best of four
        ([(-0.02, 0.03), HELD, NULL], 3 * p(*HELD)),
        ([HELD, SMALL, AGAINST], 3 * p(*HELD)),  # one of either sign is needed
        ([AGAINST, (-0.2, 0.1), (5.0, 0.1)], 3 * p(*AGAINST)),
        ([(0.0502, 0.05), *[(0.0, 0.05)] * 24], 1.0),  # 25 times 0.05
    ],
)
def test_p_is_of_the_cases_that_the_verdict_rests_on(cases, expected):
    one = found(*cases)
    assert one.p == pytest.approx(expected, rel=1e-6)
    assert one.as_json()["p"] == one.p


def test_p_is_of_the_form_that_decides():
    assert found(AGAINST, corrected=[SMALL]).p == pytest.approx(p(*SMALL), rel=1e-6)
    assert found(SMALL, corrected=[HELD]).p == pytest.approx(p(*SMALL), rel=1e-6)
    assert Finding(Claim("exact", "JoMA Thm 1", "It is zero."), "zero", Evidence(tests=(at_most("x", 0, 1),))).p is None


def asks(name, seeds):
    return replace(at_least(name, math.nan, 0.9), seeds_to_decide=seeds)


def test_all_that_is_open_asks_for_seeds_and_the_most_are_told():
    assert found(HELD, controls=(asks("twin", 10), asks("other", 30))).seeds_to_decide == 30
    assert found(HELD, tests=(asks("size", 10),)).seeds_to_decide == 10
    assert found(HELD, controls=(asks("twin", 10), asks("other", None))).seeds_to_decide is None
    assert found(AGAINST, controls=(asks("twin", 10),)).seeds_to_decide is None  # it fails, and nothing is open
    alone = Finding(CLAIM, "more", Evidence({"": OPEN}, controls=(asks("twin", 3),)))
    assert alone.seeds_to_decide == OPEN.seeds_to_decide > 4
    more = Finding(CLAIM, "more", Evidence({"": OPEN}, controls=(asks("twin", 1000),)))
    assert more.as_json()["seeds_to_decide"] == more.seeds_to_decide == 1000
    form = Evidence({"": effect(*HELD)}, controls=(asks("twin", 20),))
    claim = replace(CLAIM, corrected="It falls.")
    assert Finding(claim, "more", Evidence({"": effect(*AGAINST)}), form).seeds_to_decide == 20


def test_the_effect_shown_is_the_least_favourable_in_units_of_what_matters():
    small, large = effect(0.1, 0.05), replace(effect(0.5, 0.3), matters=1.0)
    one = Finding(CLAIM, "more", Evidence({"1": small, "2": replace(large, level=0.99)}))
    assert one.main.effect == 0.5  # 0.2 of what matters, where the other has 0.5
    assert one.as_json()["level"] == 0.99

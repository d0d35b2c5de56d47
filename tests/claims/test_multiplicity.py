"""Many claims judged together: rates of false discoveries, and claims that share one control."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.claims.claim import Claim
from joma.claims.finding import Finding
from joma.claims.multiplicity import judged_together, q_values
from joma.claims.verdicts import by_effect, by_residual, not_run
from joma.measure.intervals import compare

SEEDS = [0.31, 0.29, 0.30, 0.32, 0.28]
CONTROL = [0.02, 0.01, 0.00, 0.03, 0.01]


@given(st.lists(st.sampled_from([0.0, 1e-9, 0.001, 0.01, 0.02, 0.049, 0.05, 0.3, 0.9, 1.0]), max_size=12))
def test_q_is_the_smallest_rate_at_which_a_claim_is_called(p):
    """By its meaning: if all up to some p are called, at most m p of them are mistakes on average."""
    named = {f"claim {at}": value for at, value in enumerate(p)}
    for name, value in q_values(named).items():
        rates = [len(p) * bound / sum(one <= bound for one in p) for bound in p if bound >= named[name]]
        assert value == pytest.approx(min([1.0, *rates]), rel=1e-12)
    assert list(q_values(named)) == list(named)


def finding(name, values, control, study="a", corrected=None):
    claim = Claim(name, "JoMA Fig. 6", "More.", "Less." if corrected else None, matters=0.05)
    found = by_effect(claim, compare(values, control), corrected=corrected, expected="more")
    return replace(found, study=study)


def test_every_empirical_claim_gets_its_q_and_no_other_does():
    clear, weak = finding("clear", SEEDS, CONTROL), finding("weak", [0.3, -0.1, 0.2, 0.1, 0.1], 0.0)
    exact = by_residual(Claim("exact", "JoMA Thm 2", "Zero."), printed=0.0, tolerance=1e-9, expected="zero")
    away = not_run(Claim("away", "JoMA Fig. 7", "More.", matters=0.1), "more", "no GPU", "joma verify")
    together = judged_together([clear, exact, weak, away])
    assert [one.claim.name for one in together] == ["clear", "exact", "weak", "away"]
    assert [one.q is None for one in together] == [False, True, False, True]
    assert together[0].q == pytest.approx(2 * clear.p)
    assert together[2].q == pytest.approx(weak.p)
    assert [one.q for one in judged_together([weak])] == [pytest.approx(weak.p)]


def test_claims_beside_the_same_control_name_each_other():
    first, second = finding("first", SEEDS, CONTROL), finding("second", [0.2, 0.1, 0.3, 0.2, 0.2], CONTROL)
    third = finding("third", SEEDS, [0.02, 0.01, 0.00, 0.03, 0.02])
    elsewhere = finding("elsewhere", SEEDS, CONTROL, study="b")
    constant = [finding(name, values, 0.0) for name, values in (("four", SEEDS), ("five", CONTROL))]
    second_form = finding("sixth", SEEDS, 0.0, corrected=compare(SEEDS, CONTROL))
    shares = {one.id: one.shares for one in judged_together([second_form, second, first, third, elsewhere, *constant])}
    assert shares == {
        "a/sixth": ("a/first", "a/second"),
        "a/second": ("a/first", "a/sixth"),
        "a/first": ("a/second", "a/sixth"),
        "a/third": (),
        "b/elsewhere": (),
        "a/four": (),
        "a/five": (),
    }


def test_controls_of_the_same_mean_are_not_the_same():
    """Both have the mean 0.5, to the last digit."""
    found = [finding(name, [1.0, 1.1, 1.2], c) for name, c in (("a", [0.25, 0.5, 0.75]), ("b", [0, 0.5, 1]))]
    assert found[0].main.control_effect == found[1].main.control_effect
    assert [one.shares for one in judged_together(found)] == [(), ()]


def test_q_and_the_shared_control_are_written_and_read():
    first = judged_together([finding("first", SEEDS, CONTROL), finding("second", SEEDS, CONTROL)])[0]
    written = json.loads(json.dumps(first.as_json()))
    assert written["shares_control"] == ["a/second"]
    again = Finding.from_json(written)
    assert (again.q, again.shares) == (first.q, first.shares)
    older = {key: value for key, value in written.items() if key not in ("shares_control", "q")}
    assert (Finding.from_json(older).q, Finding.from_json(older).shares) == (None, ())

"""Theorem 1 with two learning rates: its verdicts, and that each follows the numbers of its claim and its controls."""

from dataclasses import replace

import numpy as np
import pytest
from every_study import add, put
from records import altered, changed, verdicts

from joma.claims.execute import judge
from joma.studies.invariant.thm1_rates import STUDY, Thm1RatesConfig

SMALL = replace(
    STUDY.quick,
    tokens=3,
    samples=6,
    steps=5,
    horizon=0.3,
    nodes=2,
    rates=((1.0, 1.0), (1.0, 0.5), (0.5, 1.0)),
)
HOLDS, FIXED, FAILS, BLIND = "holds", "holds as corrected", "fails", "not above its control"
OFF = add((-1, ..., 0), 0.01)  # the logits at the last moment
NAN = put((-1,), np.nan)
EQUAL, SLOW, FAST = "rates 1, 1", "rates 1, 0.5", "rates 0.5, 1"
WARM, COLD = "temperature 1", "temperature 0.5"


def still(path):
    return np.broadcast_to(path[:1], path.shape).copy()


@pytest.mark.parametrize("change", [OFF, NAN], ids=["off", "not a number"])
@pytest.mark.parametrize(
    ("series", "failing"),
    [
        (f"exp/{SLOW}/{WARM}", {"any-rates-exp"}),
        (f"exp/{FAST}/{WARM}", {"any-rates-exp"}),
        (f"linear/{SLOW}/{WARM}", {"any-rates-linear"}),
        (f"linear/{FAST}/{WARM}", {"any-rates-linear"}),
        (f"exp/{EQUAL}/{WARM}", {"equal-rates"}),
        (f"linear/{EQUAL}/{WARM}", {"equal-rates"}),
        (f"exp/{EQUAL}/{COLD}", {"temperature"}),
        (f"exp/{SLOW}/{COLD}", {"temperature"}),
        ("schedule", {"rate-schedules"}),
    ],
)
def test_a_wrong_number_fails_its_claim_and_no_other(run, tmp_path, series, failing, change):
    with altered(run, tmp_path / "run", series, change) as copy:
        now = verdicts(STUDY, copy)
    assert {now[claim] for claim in failing} <= ({"undecided"} if change is NAN else {FAILS})
    assert FAILS not in {verdict for claim, verdict in now.items() if claim not in failing}


@pytest.mark.parametrize(
    ("series", "change", "blind"),
    [
        (f"exp/{EQUAL}/{WARM}", OFF, {"any-rates-exp", "temperature"}),
        (f"linear/{EQUAL}/{WARM}", OFF, {"any-rates-linear"}),
        (f"exp/{SLOW}/{WARM}", still, {"any-rates-exp", "equal-rates"}),
        (f"exp/{FAST}/{WARM}", still, {"any-rates-exp", "equal-rates"}),
        (f"linear/{SLOW}/{WARM}", still, {"any-rates-linear", "equal-rates"}),
        (f"exp/{EQUAL}/{COLD}", still, {"temperature"}),
        (f"exp/{SLOW}/{COLD}", still, {"temperature"}),
        ("schedule", still, {"rate-schedules"}),
    ],
)
def test_a_control_that_is_not_as_it_must_be_says_that_nothing_was_seen(run, tmp_path, series, change, blind):
    with altered(run, tmp_path / "run", series, change) as copy:
        assert {claim for claim, verdict in verdicts(STUDY, copy).items() if verdict == BLIND} == blind


def test_a_lost_control_leaves_its_claim_undecided(run, tmp_path):
    with altered(run, tmp_path / "run", f"exp/{EQUAL}/{WARM}", NAN) as copy:
        seen = verdicts(STUDY, copy)
    assert seen["any-rates-exp"] == seen["temperature"] == "undecided"


@pytest.mark.parametrize("series", [f"exp/{SLOW}/{WARM}", f"linear/{FAST}/{WARM}"])
def test_a_lost_pair_of_unequal_rates_is_not_passed_over(run, tmp_path, series):
    with altered(run, tmp_path / "run", series, NAN) as copy:
        assert verdicts(STUDY, copy)["equal-rates"] == "undecided"


def test_printed_forms_would_be_recognised(run, tmp_path):
    """Flows of equal rates in the place of all others: the invariant as printed describes them."""

    def as_at_equal_rates(name, step, value):
        kind = name.partition("/")[0]
        if name == "schedule":
            return np.concatenate([run.value(f"exp/{EQUAL}/{WARM}"), value[..., -1:]], -1)
        return run.value(f"{kind}/{EQUAL}/{WARM}") if kind in ("exp", "linear") else value

    with changed(run, tmp_path / "run", as_at_equal_rates) as copy:
        assert verdicts(STUDY, copy) == {
            "any-rates-exp": HOLDS,
            "any-rates-linear": HOLDS,
            "equal-rates": BLIND,  # nothing differs from them any more
            "temperature": HOLDS,
            "rate-schedules": HOLDS,
        }


def test_residuals_of_both_forms_are_measured(run):
    for finding in judge(STUDY, run):
        assert finding.residuals.get("corrected", 0) <= finding.tolerance
        if finding.verdict == FIXED:
            assert finding.residuals["printed"] > 1e3 * finding.tolerance


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rates": ((1.0, 1.0),)}, "rates must be an equal pair followed by at least one unequal pair"),
        ({"rates": ((1.0, 0.5), (1.0, 1.0))}, "rates must be an equal pair followed by"),
    ],
)
def test_refusals(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        Thm1RatesConfig(**changes)

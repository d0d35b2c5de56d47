"""Lemmas 2, 3 and 5: their verdicts, and that they follow the numbers."""

import numpy as np
import pytest
from every_study import add, put, test_a_spoiled_series_changes_its_verdict  # noqa: F401
from records import changed, verdicts

from joma.studies.isotropic import lemma2
from joma.studies.isotropic._forms import UNIT

STUDY = lemma2.STUDY
FIXED = "holds as corrected"


SPOILED = [
    ("exponential/corrected", put((2, 4), np.nan), "mixture-bias", FIXED),
    ("slopes/|x|/F", lambda x: np.arange(len(x)), "f-increasing", "holds"),
    ("exponential/growth", add((0, UNIT), 1e-6), "growth", "not above its control"),
]


@pytest.mark.parametrize(("claim", "series"), [("f-derivative", "theta1"), ("f-primitive", "theta2")])
def test_laws_that_are_all_alike_confirm_nothing(run, claim, series):
    like = run.value(f"gaussian/{series}")
    copies = {f"{law}/{name}" for law in ("gaussian", "student", "exponential") for name in _pair(claim)}
    spoiled = changed(run, lambda name, step, value: like if name in copies else value)
    assert verdicts(STUDY, spoiled)[claim] == "not above its control"


def _pair(claim):
    return {"f-derivative": ("F by differences", "theta1"), "f-primitive": ("theta2 by quadrature", "theta2")}[claim]


def test_samples_that_cannot_tell_one_law_from_another_confirm_nothing(run):
    def blurred(name, step, value):
        return value * np.array([1, 1e5]).reshape(2, 1, 1) if name.endswith("/sampled") else value

    found = verdicts(STUDY, changed(run, blurred))
    assert found["mixture-weight"] == found["mixture-bias"] == "not above its control"


def as_if_printed_right(run):
    def change(name, step, value):
        if name.endswith("/growth"):
            return value[[2, 1, 2]]
        law_or_slope, _, form = name.rpartition("/")
        return run.value(f"{law_or_slope}/corrected") if form == "printed" else value

    return change


def test_a_printed_form_that_is_right_holds(run):
    found = verdicts(STUDY, changed(run, as_if_printed_right(run)))
    for claim in ("mixture-weight", "mixture-bias", "growth", "theta-slopes"):
        assert found[claim] == "holds", claim


def test_a_printed_form_that_gives_no_number_is_neither_right_nor_wrong(run):
    right = as_if_printed_right(run)

    def change(name, step, value):
        return value * np.nan if name in ("slopes/|x|/printed", "exponential/printed") else right(name, step, value)

    assert verdicts(STUDY, changed(run, change))["theta-slopes"] == "undecided"

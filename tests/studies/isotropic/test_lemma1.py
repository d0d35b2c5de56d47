"""Lemma 1: its verdicts, and that they follow the numbers."""

import numpy as np
import pytest
from every_study import add, put, test_a_spoiled_series_changes_its_verdict, test_every_claim_is_turned_by_one  # noqa: F401
from records import altered, changed, verdicts

from joma.studies.isotropic import lemma1
from joma.studies.isotropic._forms import UNIT

STUDY = lemma1.STUDY
FIXED = "holds as corrected"
BALL, LAST = 1, 3
FIRST_THETA, SECOND_THETA = np.s_[:, :, 0], np.s_[:, :, 1]


SPOILED = [
    ("ball/corrected", lambda x: x + 0.05, "hyperplane-mean", "fails"),
    ("exponential/corrected", put((2, 1, 0), np.nan), "hyperplane-mean", "undecided"),
    ("exponential/corrected", put((2, 1, 0), np.nan), "hyperplane-vector", FIXED),
    ("exponential/corrected", put((2, 1, 5), np.nan), "hyperplane-vector", "undecided"),
    ("exponential/corrected", put((2, 1, 5), np.nan), "hyperplane-mean", FIXED),
    ("gaussian/sampled", lambda x: x * np.nan, "hyperplane-vector", "undecided"),
    # at the length 1 the printed form must be right, or it was copied wrongly
    ("student/printed", add((UNIT, 0, 0), 0.05), "hyperplane-mean", "not above its control"),
    ("student/printed", add((UNIT, 1, 3), 0.2), "hyperplane-vector", "not above its control"),
    ("thetas", lambda x: -x, "theta-limits", "fails"),
    ("thetas", put((LAST, 1, 1, -1), np.nan), "theta-limits", "undecided"),
    ("thetas", put((LAST, 1, 0, 120), np.nan), "theta-limits", "undecided"),
    ("thetas", put((LAST, 1, 0, 120), 0.0), "theta-limits", "fails"),
    ("thetas", add(FIRST_THETA, 0.05), "theta-limits", "fails"),
    ("thetas", add(FIRST_THETA, -0.05), "theta-limits", "fails"),
    ("thetas", add((BALL, 0, 0), 0.05), "theta-limits", "fails"),
    ("thetas", add((BALL, 0, 0), -0.05), "theta-limits", "fails"),
    ("thetas", put((BALL, 0, 1, 0), -1e-9), "theta-limits", "fails"),  # beyond the support
    ("thetas", put((BALL, 0, 1, 120), 0.0), "theta-limits", "fails"),  # within it
    ("thetas", put((LAST, 1, 1, 0), 0.0), "theta-limits", "fails"),
    ("thetas", add(SECOND_THETA, 1e-3), "theta-limits", "holds"),
    ("thetas", put(SECOND_THETA, np.linspace(0.1, 0.2, 241)), "theta-limits", "not above its control"),
    ("marginal error", lambda x: x + 1e-9, "marginal-density", "fails"),
    ("marginal error", put((BALL, 3), 1e-9), "marginal-density", "fails"),
    ("marginal error", put((LAST, -1), np.nan), "marginal-density", "undecided"),
]


def test_samples_that_cannot_tell_one_law_from_another_confirm_nothing(run, tmp_path):
    def blurred(name, step, value):
        return value * np.array([1, 1e5]).reshape(2, 1, 1, 1) if name.endswith("/sampled") else value

    with changed(run, tmp_path / "run", blurred) as spoiled:
        found = verdicts(STUDY, spoiled)
    assert found["hyperplane-mean"] == found["hyperplane-vector"] == "not above its control"


def test_every_law_has_a_say(run, tmp_path):
    for law in ("gaussian", "ball", "student", "exponential"):
        with altered(run, tmp_path / law, f"{law}/corrected", lambda x: x + 0.2) as spoiled:
            found = verdicts(STUDY, spoiled)
        assert found["hyperplane-mean"] == found["hyperplane-vector"] == "fails"


def test_a_printed_form_that_is_right_holds(run, tmp_path):
    def change(name, step, value):
        law, _, form = name.rpartition("/")
        return run.value(f"{law}/corrected") if form == "printed" else value

    with changed(run, tmp_path / "run", change) as spoiled:
        found = verdicts(STUDY, spoiled)
    assert found["hyperplane-mean"] == found["hyperplane-vector"] == "holds"


def test_sizes_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="ambient must be at least the dimension of the subspace, 5, got 2"):
        lemma1.Lemma1Config(ambient=2)

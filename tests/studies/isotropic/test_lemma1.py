"""Lemma 1: its verdicts, and that they follow the numbers."""

import numpy as np
import pytest
from every_study import add, put, test_a_spoiled_series_changes_its_verdict  # noqa: F401
from records import changed, verdicts

from joma.studies.isotropic import lemma1

STUDY = lemma1.STUDY
FIXED = "holds as corrected"
SECOND_THETA = np.s_[:, :, 1]


SPOILED = [
    ("exponential/corrected", put((2, 1, 0), np.nan), "hyperplane-vector", FIXED),
    ("exponential/corrected", put((2, 1, 5), np.nan), "hyperplane-mean", FIXED),
    # at the length 1 the printed form must be right, or it was copied wrongly
    ("thetas", add(SECOND_THETA, 1e-3), "theta-limits", "holds"),
    ("thetas", put(SECOND_THETA, np.linspace(0.1, 0.2, 241)), "theta-limits", "not above its control"),
]


def test_samples_that_cannot_tell_one_law_from_another_confirm_nothing(run):
    def blurred(name, step, value):
        return value * np.array([1, 1e5]).reshape(2, 1, 1, 1) if name.endswith("/sampled") else value

    found = verdicts(STUDY, changed(run, blurred))
    assert found["hyperplane-mean"] == found["hyperplane-vector"] == "not above its control"


def test_a_printed_form_that_is_right_holds(run):
    def change(name, step, value):
        law, _, form = name.rpartition("/")
        return run.value(f"{law}/corrected") if form == "printed" else value

    found = verdicts(STUDY, changed(run, change))
    assert found["hyperplane-mean"] == found["hyperplane-vector"] == "holds"


def test_sizes_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="ambient must be at least the dimension of the subspace, 5, got 2"):
        lemma1.Lemma1Config(ambient=2)

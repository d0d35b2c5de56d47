"""Lemmas 2, 3 and 5: their verdicts, and that they follow the numbers."""

import numpy as np
import pytest
from every_study import add, put, test_a_spoiled_series_changes_its_verdict, test_every_claim_is_turned_by_one  # noqa: F401
from records import altered, changed, verdicts

from joma.studies.isotropic import lemma2
from joma.studies.isotropic._forms import LAWS, UNIT

STUDY = lemma2.STUDY
FIXED = "holds as corrected"


def one_step_up_left_of_zero(x):
    """F of |x| rises once where it must fall."""
    x = np.array(x)
    x[30] = x[29] + 1e-6
    return x


SPOILED = [
    ("exponential/corrected", lambda x: x + 0.1, "mixture-weight", "fails"),
    ("exponential/corrected", lambda x: x + 0.1, "mixture-bias", "fails"),
    ("exponential/corrected", put((2, 4), np.nan), "mixture-weight", "undecided"),
    ("exponential/corrected", put((2, 4), np.nan), "mixture-bias", FIXED),
    ("exponential/corrected", put((2, 5), np.nan), "mixture-bias", "undecided"),
    ("ball/printed", add((UNIT, 0), 0.1), "mixture-weight", "not above its control"),
    ("ball/printed", add((UNIT, 5), 0.1), "mixture-bias", "not above its control"),
    ("ball/F by differences", lambda x: x + 1e-6, "f-derivative", "fails"),
    ("ball/F by differences", lambda x: x - 1e-6, "f-derivative", "fails"),
    ("exponential/F by differences", put(60, np.nan), "f-derivative", "undecided"),
    ("ball/theta2 by quadrature", lambda x: x + 1e-6, "f-primitive", "fails"),
    ("exponential/theta2 by quadrature", put(60, np.nan), "f-primitive", "undecided"),
    ("slopes/ReLU/F", lambda x: -x, "f-increasing", "fails"),
    ("slopes/|x|/F", lambda x: np.arange(len(x)), "f-increasing", "holds"),
    ("slopes/|x|/F", put(120, np.nan), "f-increasing", "undecided"),  # nobody knows that it needs the correction
    ("slopes/|x|/F", put(0, np.nan), "f-increasing", "undecided"),
    ("slopes/|x|/F", one_step_up_left_of_zero, "f-increasing", "fails"),
    ("slopes/identity/F", put(0, np.nan), "f-increasing", "undecided"),
    ("ball/growth", lambda x: x * [[1], [1 + 1e-6], [1]], "growth", "fails"),
    ("exponential/growth", put((1, 0), np.nan), "growth", "undecided"),
    ("exponential/growth", add((0, UNIT), 1e-6), "growth", "not above its control"),
    ("slopes/|x|/corrected", lambda x: x + 1e-6, "theta-slopes", "fails"),
    ("slopes/|x|/corrected", lambda x: x - 1e-6, "theta-slopes", "fails"),
    ("slopes/|x|/corrected", put((1, -1), np.nan), "theta-slopes", "undecided"),
    ("slopes/ReLU/printed", lambda x: x + 1e-6, "theta-slopes", "not above its control"),
]


@pytest.mark.parametrize(("claim", "series"), [("f-derivative", "theta1"), ("f-primitive", "theta2")])
def test_laws_that_are_all_alike_confirm_nothing(run, tmp_path, claim, series):
    """The control compares each law with the next: it must differ."""
    like = run.value(f"gaussian/{series}")
    copies = {f"{law}/{name}" for law in ("gaussian", "student", "exponential") for name in _pair(claim)}
    with changed(run, tmp_path / "run", lambda name, step, value: like if name in copies else value) as spoiled:
        assert verdicts(STUDY, spoiled)[claim] == "not above its control"


def _pair(claim):
    return {"f-derivative": ("F by differences", "theta1"), "f-primitive": ("theta2 by quadrature", "theta2")}[claim]


def test_samples_that_cannot_tell_one_law_from_another_confirm_nothing(run, tmp_path):
    def blurred(name, step, value):
        return value * np.array([1, 1e5]).reshape(2, 1, 1) if name.endswith("/sampled") else value

    with changed(run, tmp_path / "run", blurred) as spoiled:
        found = verdicts(STUDY, spoiled)
    assert found["mixture-weight"] == found["mixture-bias"] == "not above its control"


def test_one_law_whose_samples_cannot_tell_is_enough(run, tmp_path):
    with altered(
        run, tmp_path / "run", "student/sampled", lambda x: x * np.array([1, 1e5]).reshape(2, 1, 1)
    ) as spoiled:
        assert verdicts(STUDY, spoiled)["mixture-weight"] == "not above its control"


@pytest.mark.parametrize("law", LAWS)
def test_every_law_has_a_say(run, tmp_path, law):
    spoil = {f"{law}/{name}" for name in ("corrected", "F by differences", "theta2 by quadrature")}

    def spoiled_law(name, step, value):
        if name == f"{law}/growth":
            return value + [[0], [1e-6], [0]]
        return value + 0.2 if name in spoil else value

    with changed(run, tmp_path / "run", spoiled_law) as spoiled:
        found = verdicts(STUDY, spoiled)
    for claim in ("mixture-weight", "mixture-bias", "f-derivative", "f-primitive", "growth"):
        assert found[claim] == "fails", claim


@pytest.mark.parametrize("name", lemma2.SLOPES)
def test_every_activation_has_a_say(run, tmp_path, name):
    with altered(run, tmp_path / "run", f"slopes/{name}/corrected", lambda x: x + 1e-6) as spoiled:
        assert verdicts(STUDY, spoiled)["theta-slopes"] == "fails"


def as_if_printed_right(run):
    """A change of a run in which everything printed is right."""

    def change(name, step, value):
        if name.endswith("/growth"):
            return value[[2, 1, 2]]
        law_or_slope, _, form = name.rpartition("/")
        return run.value(f"{law_or_slope}/corrected") if form == "printed" else value

    return change


def test_a_printed_form_that_is_right_holds(run, tmp_path):
    with changed(run, tmp_path / "run", as_if_printed_right(run)) as spoiled:
        found = verdicts(STUDY, spoiled)
    for claim in ("mixture-weight", "mixture-bias", "growth", "theta-slopes"):
        assert found[claim] == "holds", claim


def test_a_printed_form_that_gives_no_number_is_neither_right_nor_wrong(run, tmp_path):
    right = as_if_printed_right(run)

    def change(name, step, value):
        return value * np.nan if name in ("slopes/|x|/printed", "exponential/printed") else right(name, step, value)

    with changed(run, tmp_path / "run", change) as spoiled:
        assert verdicts(STUDY, spoiled)["theta-slopes"] == "undecided"

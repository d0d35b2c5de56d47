"""The study of Lemmas 6 and 7: its verdicts, and that each follows the numbers of its claim and its controls."""

import numpy as np
import pytest
from records import altered, changed, found

from joma.studies.salience import lemma6 as study
from joma.studies.salience.lemma6 import STUDY

HOLDS, FIXED, FAILS, BLIND = "holds", "holds as corrected", "fails", "not above its control"


def test_sharp_constants(run):
    known = {
        "g": (1.120906, 0.638173),
        "G": (1.306930, 0.765152),
        "zeta": (2.161788, 1.632791),
        "R": (1.872200, 0.864325),
    }
    for name, top in known.items():
        assert run.value(f"{name}/top") == pytest.approx(top, abs=1e-6)


def test_the_printed_exponent_would_be_recognised(run):
    late = np.exp(-(run.value("mu") ** 2)) * study.LATE + 0.5
    finding = found(STUDY, altered(run, "late F", lambda _: late), "late-form")
    assert finding.verdict == HOLDS
    assert [test.value for test in finding.printed.tests] == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize(
    ("change", "claim"),
    [
        ({"G/top": lambda run: run.value("g/top")}, "lemma-6-maximum"),
        ({"F": lambda run: 1e-30 * run.value("F"), "slope": lambda run: run.value("zeta")}, "df-dmu"),
        ({"F": lambda run: _first_term(run), "zeta integral": lambda run: 0 * run.value("F")}, "f-by-zeta"),
        ({"zeta range": lambda run: run.value("zeta range") + np.array([0.0, 1e6])[:, None, None]}, "mean-value"),
    ],
)
def test_an_identity_that_its_control_fulfils_too_shows_nothing(run, change, claim):
    spoiled = {name: value(run) for name, value in change.items()}
    assert found(STUDY, changed(run, lambda name, step, value: spoiled.get(name, value)), claim).verdict == BLIND


def _first_term(run):
    return np.exp(-(run.value("mu") ** 2) / 2) * run.value("depth")[:, None]


@pytest.mark.parametrize(
    ("claim", "series", "value"),
    [
        ("df-dmu", "slope", lambda run: run.value("zeta") - run.value("mu") * run.value("F") + 0.25),
        ("f-by-zeta", "zeta integral", lambda run: run.value("F") - _first_term(run) - 0.25),
        ("mean-value", "zeta range", lambda run: np.stack([0 * run.value("F") - 9, _places(run) - 0.25])),
    ],
)
def test_residuals_are_those_of_the_record(run, claim, series, value):
    assert found(STUDY, altered(run, series, lambda _: value(run)), claim).residuals["printed"] == pytest.approx(0.25)


def _places(run):
    return (run.value("F") - _first_term(run)) / run.value("lemma 7 at mu")


def test_a_peak_is_found_inside_and_at_both_ends():
    inside = study._peak(lambda x: 2 - (x - 1.2345) ** 2, 6.0)
    np.testing.assert_allclose(inside, [1.2345, 2.0], atol=1e-6)
    np.testing.assert_allclose(study._peak(lambda x: x**2, 6.0), [6.0, 36.0], atol=1e-6)
    first = 6.0 / 400  # the grid begins there, not at zero
    np.testing.assert_allclose(study._peak(lambda x: -x, 6.0), [first, -first], atol=1e-6)

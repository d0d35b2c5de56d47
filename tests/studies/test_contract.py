"""The words and the rules: a claim has one place, an empirical finding has a control, a verdict follows numbers."""

import json

import pytest

from joma.studies.contract import VERDICTS, Claim, Finding, tally
from joma.studies.verdicts import by_effect, by_residual, by_test, show

PLAIN = Claim("plain", "JoMA Lemma 6", "It is so.")
FIXED = Claim("fixed", "JoMA eq. 58", "It is so.", "It is otherwise.")
SEEN = Claim("seen", "JoMA Fig. 4", "It happens.", empirical=True)


@pytest.mark.parametrize("source", ["JoMA Thm 1", "JoMA eq. 73-74", "JoMA Fig. 4", "CDAG Thm 1", "JoMA footnote 1"])
def test_one_place(source):
    assert Claim("x", source, "says").source == source


@pytest.mark.parametrize("source", ["Theorem 1", "JoMA", "JoMA Thm 1, eq. 4", "JoMA Thm 1 and 2", ""])
def test_no_other_place(source):
    with pytest.raises(ValueError, match="source must be one place"):
        Claim("x", source, "says")


@pytest.mark.parametrize(
    ("printed", "corrected", "verdict"),
    [(1e-9, None, "holds"), (1.0, None, "fails"), (float("nan"), None, "fails")],
)
def test_residual_of_a_printed_form(printed, corrected, verdict):
    assert by_residual(PLAIN, printed=printed, tolerance=1e-8, expected="0").verdict == verdict


@pytest.mark.parametrize(
    ("printed", "corrected", "verdict"),
    [(1.0, 1e-9, "holds as corrected"), (1e-9, 1e-9, "holds"), (1.0, 1.0, "fails"), (1.0, float("nan"), "fails")],
)
def test_residuals_of_two_forms(printed, corrected, verdict):
    finding = by_residual(FIXED, printed=printed, corrected=corrected, tolerance=1e-8, expected="0")
    assert finding.verdict == verdict
    assert set(finding.residuals) == {"printed", "corrected"}


def test_a_correction_needs_its_residual_and_the_other_way_round():
    with pytest.raises(ValueError, match="come together"):
        by_residual(FIXED, printed=1.0, tolerance=1.0, expected="0")
    with pytest.raises(ValueError, match="come together"):
        by_test(PLAIN, measured="m", expected="e", as_printed=True, as_corrected=True)


def test_a_direction_without_its_quantity_is_only_qualitative():
    assert by_test(PLAIN, measured="m", expected="e", as_printed=False, in_direction=True).verdict == "only qualitative"


@pytest.mark.parametrize(
    ("measured", "quantitative", "verdict"),
    [
        (0.5, True, "holds"),
        (0.5, False, "only qualitative"),
        (0.15, True, "not above its control"),
        (float("nan"), True, "not above its control"),
    ],
)
def test_effects_against_their_control(measured, quantitative, verdict):
    finding = by_effect(SEEN, measured=measured, control=0.1, margin=0.1, expected="more", quantitative=quantitative)
    assert finding.verdict == verdict


def test_a_control_that_is_no_number_cannot_be_exceeded():
    finding = by_effect(SEEN, measured=0.5, control=float("nan"), margin=0.1, expected="more")
    assert finding.verdict == "not above its control"


def test_an_empirical_finding_without_control_is_refused():
    with pytest.raises(ValueError, match="needs its control"):
        by_test(SEEN, measured=1.0, expected="1", as_printed=True)


def test_nothing_empty_and_no_seventh_verdict():
    with pytest.raises(ValueError, match="what was measured"):
        Finding(PLAIN, "e", "", None, "holds")
    with pytest.raises(ValueError, match="verdict must be one of"):
        Finding(PLAIN, "e", 1.0, None, "maybe")
    assert len(VERDICTS) == 6


def test_words():
    findings = [Finding(PLAIN, "e", 1.0, None, v) for v in ("holds", "holds", "fails")]
    assert tally(findings) == [("holds", "2 hold"), ("fails", "1 fails")]
    assert [show(x) for x in (0.0, 0.3612, 4.2e-14, 149.6, -1.5e7)] == ["0", "0.3612", "4.2e-14", "149.6", "-1.5e+7"]


def test_a_number_that_went_wrong_is_still_json():
    finding = by_residual(PLAIN, printed=float("nan"), tolerance=1.0, expected="a number")
    assert finding.verdict == "fails"
    written = json.loads(json.dumps(finding.as_json(), allow_nan=False))
    assert written["measured"] == written["residuals"]["printed"] == "nan"

"""The words and the rules: a claim has one place, an empirical finding has a control, a verdict follows numbers."""

import json
from dataclasses import dataclass, replace

import pytest

from joma.claims.contract import Claim, Study, tally
from joma.claims.sentences import show
from joma.claims.verdicts import above, at_least, by_effect, by_residual, by_tests
from joma.measure.intervals import compare

PLAIN = Claim("plain", "JoMA Lemma 6", "It is so.")
FIXED = Claim("fixed", "JoMA eq. 58", "It is so.", "It is otherwise.")
SEEN = Claim("seen", "JoMA Fig. 4", "It happens.", matters=0.1)


@pytest.mark.parametrize(
    "source",
    ["JoMA Thm 1", "JoMA eq. 73-74", "JoMA Fig. 4", "CDAG Thm 1", "JoMA footnote 1", "Smith et al., 2031 Prop. 2.1"],
)
def test_one_place(source):
    assert Claim("x", source, "says").source == source


@pytest.mark.parametrize("source", ["Theorem 1", "JoMA", "JoMA Thm 1, eq. 4", "JoMA Thm 1 and 2", ""])
def test_no_other_place(source):
    with pytest.raises(ValueError, match="source must be a work and a place in it"):
        Claim("x", source, "says")


@pytest.mark.parametrize(
    ("printed", "corrected", "verdict"),
    [(1e-9, None, "holds"), (1.0, None, "fails"), (float("nan"), None, "undecided"), (float("inf"), None, "fails")],
)
def test_residual_of_a_printed_form(printed, corrected, verdict):
    assert by_residual(PLAIN, printed=printed, tolerance=1e-8, expected="0").verdict == verdict


@pytest.mark.parametrize(
    ("printed", "corrected", "verdict"),
    [
        (1.0, 1e-9, "holds as corrected"),
        (1e-9, 1e-9, "holds"),
        (1.0, 1.0, "fails"),
        (1.0, float("nan"), "undecided"),
        (float("nan"), 1e-9, "undecided"),  # nobody knows that the printed form needs the correction
        (1e-9, float("nan"), "holds"),
    ],
)
def test_residuals_of_two_forms(printed, corrected, verdict):
    finding = by_residual(FIXED, printed=printed, corrected=corrected, tolerance=1e-8, expected="0")
    assert finding.verdict == verdict
    assert set(finding.residuals) == {"printed", "corrected"}


def test_a_control_that_does_as_well_makes_a_residual_worth_nothing():
    def found(control):
        return by_residual(PLAIN, printed=0.0, tolerance=1e-8, expected="0", control={"elsewhere": control})

    assert found(0.5).verdict == "holds"
    assert found(0.0).verdict == "not above its control"
    assert found(float("nan")).verdict == "undecided"


def test_a_direction_without_its_quantity_is_only_qualitative():
    missed, seen = at_least("share", 0.5, 1.0), above("slope", 1.0, 0.0)
    assert by_tests(PLAIN, expected="e", printed=[missed], direction=[seen]).verdict == "only qualitative"


def test_a_corrected_effect_holds_as_corrected():
    claim = replace(SEEN, corrected="It happens elsewhere.")
    null, rise = compare([0.0, 0.01, -0.01], 0.0), compare([0.5, 0.51, 0.49], 0.0)
    assert by_effect(claim, null, corrected=rise, expected="e").verdict == "holds as corrected"
    assert by_effect(claim, rise, corrected=null, expected="e").verdict == "holds"


def test_words():
    findings = [by_residual(PLAIN, printed=off, tolerance=0.5, expected="e") for off in (0.0, 0.1, 1.0)]
    assert tally(findings) == [("holds", "2 hold"), ("fails", "1 fails")]
    assert [show(x) for x in (0.0, 0.3612, 4.2e-14, 149.6, -1.5e7)] == ["0", "0.3612", "4.2e-14", "149.6", "-1.5e+7"]


def test_a_number_that_went_wrong_is_still_json():
    finding = by_residual(PLAIN, printed=float("nan"), tolerance=1.0, expected="a number")
    assert finding.verdict == "undecided"
    written = json.loads(json.dumps(finding.as_json(), allow_nan=False))
    assert (written["measured"], written["residuals"]["printed"]) == ("nan", "inf")


@dataclass(frozen=True)
class SizeConfig:
    size: int


def study(quick, paper):
    return Study("sizes", "Sizes", 1, {}, quick, paper, lambda config, run, progress: None, lambda run: [])


def test_a_scale_is_quick_or_paper_and_nothing_else():
    sizes = study(SizeConfig(3), SizeConfig(9))
    assert (sizes.preset("quick").size, sizes.preset("paper").size) == (3, 9)
    with pytest.raises(ValueError, match="scale must be one of quick, paper, got 'papers'"):
        sizes.preset("papers")


def test_both_scales_of_a_study_are_of_one_dataclass():
    @dataclass(frozen=True)
    class OtherConfig:
        size: int

    for quick, paper in ((SizeConfig(3), OtherConfig(3)), (3, 9)):
        with pytest.raises(ValueError, match="quick and paper must be instances of one dataclass"):
            study(quick, paper)

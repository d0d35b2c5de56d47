"""Intervals of probabilities and shares are shown within 0 and 1; what is stored and judged is not touched."""

import json
import re
from pathlib import Path

import pytest

from joma.claims import sentences
from joma.claims.evidence import Effect, Evidence
from joma.claims.finding import Finding
from joma.claims.limits import limits_of
from joma.report.claims.kept import kept_of
from joma.report.claims.verdicts import effect_texts
from joma.studies import load

FINDINGS = sorted((Path(__file__).parents[2] / "results").glob("*/findings.json"))
PROBABILITY = "probability of the answer"


def effect(value, interval, control, control_interval, what=PROBABILITY, unit="%"):
    more = (value - control - 0.05, value - control + 0.05)
    return Effect(value, interval, control, control_interval, 4, 0.05, unit=unit, what=what, difference_interval=more)


def test_an_interval_of_a_probability_is_cut_where_it_is_shown_and_says_so():
    found = effect(0.9996, (0.9698, 1.0295), 0.0238, (-0.0059, 0.0536))
    evidence = Evidence({"": found})
    assert sentences.measured(evidence) == (
        "probability of the answer 100.0 % [97.0, 100.0 (cut)] (difference 98 % [93, 103]) over 4 seeds"
    )
    assert sentences.control(evidence) == "2.4 % [0 (cut), 5.4]"
    assert sentences.brief(evidence, main=found) == (
        "100.0 % [97.0, 100.0 (cut)]; control 2.4 % [0 (cut), 5.4]; difference 98 % [93, 103]"
    )
    assert effect_texts(found)["effect"] == "100.0 % [97.0, 100.0 (cut)]"


def test_words_of_files_give_the_interval_as_computed():
    evidence = Evidence({"": effect(0.9996, (0.9698, 1.0295), 0.0238, (-0.0059, 0.0536))})
    with sentences.as_computed():
        assert sentences.control(evidence) == "2.4 % [-0.6, 5.4]"
    assert sentences.control(evidence) == "2.4 % [0 (cut), 5.4]"


def test_an_end_that_is_written_the_same_is_not_called_cut():
    assert sentences.control(Evidence({"": effect(0.5, (0.3, 0.7), 0.1, (-0.0001, 0.2))})) == "10 % [0, 20]"


@pytest.mark.parametrize(
    ("what", "unit", "limits"),
    [
        ("probability of the untrained reverse, with any order", "%", (0.0, 1.0)),
        ("share of rivals that the right reverse beats", "%", (0.0, 1.0)),
        ("attention on the first key with softmax (control: sigmoid)", "%", (0.0, 1.0)),
        ("downstream accuracy of the linear representation", "%", (0.0, 1.0)),
        ("training minus test accuracy with random labels", "%", (None, None)),
        ("share of the untrained stable rank that is lost", "%", (None, 1.0)),
        ("skill over persistence", "%", (None, 1.0)),
        ("share of the drop that comes back, at the best rate", "%", (None, None)),
        ("correlation with its twin", "", (None, None)),
        ("", "%", (None, None)),
    ],
)
def test_which_quantities_have_limits(what, unit, limits):
    assert limits_of(what, unit) == limits


def every_effect():
    for path in FINDINGS:
        for written in json.loads(path.read_text(encoding="utf-8"))["findings"]:
            for evidence in (written["evidence"]["printed"], written["evidence"]["corrected"]):
                yield from (Effect.from_json(one) for one in (evidence or {"effects": {}})["effects"].values())


def test_no_kept_mean_lies_beyond_the_limits_of_its_quantity():
    """Else the quantity has no such limits, and cutting its interval would hide what was measured."""
    for one in every_effect():
        low, high = one.limits
        for value in (one.effect, one.control_effect):
            assert low is None or value >= low - 1e-9, one.what
            assert high is None or value <= high + 1e-9, one.what


def shown_ends(text):
    return [float(end) for pair in re.findall(r"% \[([-\d.]+)(?: \(cut\))?, ([-\d.]+)", text) for end in pair]


@pytest.mark.parametrize("path", FINDINGS, ids=lambda path: path.parent.name)
def test_no_kept_share_is_shown_below_0_or_above_100(path):
    for written in json.loads(path.read_text(encoding="utf-8"))["findings"]:
        finding = Finding.from_json(written)
        assert finding.as_json() == written  # what is stored stays as it was computed
        if finding.main and finding.main.limits == (0.0, 1.0):
            text = re.sub(r"difference [^;]*", "", f"{finding.brief}; {finding.control}")  # which may be below 0
            assert all(0 <= end <= 100 for end in shown_ends(text)), text


def test_kept_verdicts_come_with_cut_intervals_too():
    name = "reversal-decoder/reverse-no-better-than-uniform"
    claim = next(one for one in load("reversal-decoder").claims if name.endswith(f"/{one.name}"))
    found = kept_of(name, claim)
    assert "(cut)" in found.brief
    assert found.main.control_interval[0] < 0  # as computed
    assert effect_texts(found.main)["control"] == "2 % [0 (cut), 8] at 99 %"

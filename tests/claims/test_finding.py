"""Findings are data: what is written can be read back, and the verdict follows from the numbers alone."""

import json
from dataclasses import replace

import pytest

from joma.claims.claim import Claim
from joma.claims.evidence import Effect, Evidence, above, at_least, at_most
from joma.claims.finding import Finding, Provenance
from joma.claims.verdicts import by_effect, by_residual, by_tests, not_run, only_at_paper_scale
from joma.measure.intervals import compare

EXACT = Claim("exact", "JoMA Thm 1", "It is zero.")
CORRECTED = Claim("corrected", "JoMA Thm 2", "It is zero.", "It is one.", uses=("thm1/exact",))
SEEN = Claim("seen", "JoMA Fig. 6", "It rises.", matters=0.1, unit="nats", ceiling=5.0)
LAYERS = {"layer 1": compare([0.5, 0.6, 0.55], 0.0), "layer 2": compare([0.3, -0.2, 0.1], 0.0)}

FINDINGS = [
    by_residual(EXACT, printed=1e-12, tolerance=1e-9, expected="zero"),
    by_residual(EXACT, printed=float("nan"), tolerance=1e-9, expected="zero", control={"elsewhere": 0.5}),
    by_residual(CORRECTED, printed=0.36, corrected=-1e-13, tolerance=1e-9, expected="zero"),
    by_tests(EXACT, expected="all", printed=[at_least("share", 0.5, 1.0, "%")], direction=[above("slope", 1.0, 0.0)]),
    by_effect(SEEN, compare([0.5, 0.6, 0.55], [0.1, 0.2, 0.1]), expected="more", what="rise"),
    by_effect(SEEN, LAYERS, expected="more", size=[at_least("share", 0.95, 0.9)], details={"layer 1": {"loss": 5.1}}),
    by_effect(SEEN, compare([float("nan"), 0.6], 0.0), expected="more"),
    not_run(SEEN, "more", "no GPU", "joma verify fig6 --scale paper"),
    only_at_paper_scale(SEEN, "more", "ten layers are needed", "joma verify fig6 --scale paper"),
]


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: f"{finding.claim.name} {finding.verdict}")
def test_a_verdict_can_be_worked_out_from_the_file_alone(finding):
    stamped = replace(finding, study="thm1", command="joma verify thm1", provenance=Provenance(3, "ab", "cd", "a GPU"))
    written = json.loads(json.dumps(stamped.as_json(), allow_nan=False))
    again = Finding.from_json(written)
    assert again.verdict == written["verdict"] == finding.verdict
    assert again.as_json() == written
    assert (again.control, again.id) == (written["control"], written["id"])


def test_a_spoiled_number_turns_the_verdict():
    written = FINDINGS[4].as_json()
    assert written["verdict"] == "holds"
    written["evidence"]["printed"]["effects"][""] |= {"interval": [-1.0, 1.2], "difference_interval": [-1.0, 1.2]}
    assert Finding.from_json(written).verdict == "undecided"


def test_what_was_measured_is_judged_at_whatever_scale():
    with pytest.raises(ValueError, match="seen: what was measured is judged"):
        replace(FINDINGS[4], about_paper_scale=True)
    assert [finding.verdict for finding in FINDINGS[-2:]] == ["not run", "at paper scale"]


def test_the_verdict_cannot_be_given():
    with pytest.raises(TypeError):
        Finding(EXACT, "zero", Evidence(tests=(at_most("x", 1.0, 0.0),)), verdict="holds")
    with pytest.raises((AttributeError, TypeError)):
        FINDINGS[0].verdict = "fails"


def test_the_keys_that_others_read():
    wanted = {"id", "effect", "interval", "control_effect", "matters", "cases", "uses", "command", "provenance"}
    wanted |= {"claim", "source", "says", "corrected", "expected", "measured", "control", "tolerance", "verdict"}
    assert wanted | {"residuals"} <= set(FINDINGS[0].as_json())


def test_an_empirical_finding_has_its_numbers_and_a_mathematical_one_its_residuals():
    seen = FINDINGS[4].as_json()
    assert seen["effect"] == pytest.approx(0.55)
    assert seen["control_effect"] == pytest.approx(0.4 / 3)
    assert seen["interval"][0] < 0.55 < seen["interval"][1]
    assert (seen["matters"], seen["unit"], seen["seeds"], seen["residuals"], seen["tolerance"]) == (
        0.1,
        "nats",
        3,
        {},
        None,
    )
    exact = FINDINGS[2].as_json()
    assert (exact["effect"], exact["interval"], exact["matters"]) == (None, None, None)
    assert exact["residuals"] == {"printed": 0.36, "corrected": 1e-13}
    assert exact["tolerance"] == 1e-9
    assert exact["uses"] == ["thm1/exact"]


def test_residuals_of_tests_are_by_how_much_bounds_are_missed():
    ordering = FINDINGS[3]
    assert (ordering.residuals, ordering.tolerance) == ({"printed": 0.5}, 0.0)
    assert ordering.verdict == "only qualitative"


def test_cases_are_judged_each_and_the_least_favourable_is_shown():
    written = FINDINGS[5].as_json()
    assert written["cases"]["layer 1"]["verdict"] == "holds"
    assert written["cases"]["layer 1"]["loss"] == 5.1
    assert written["cases"]["layer 2"]["verdict"] == "undecided"
    assert written["effect"] == written["cases"]["layer 2"]["effect"]
    assert written["seeds_to_decide"] > 3
    assert FINDINGS[5].verdict == "undecided"


def test_the_hash_is_that_of_the_sentence():
    assert FINDINGS[0].as_json()["provenance"]["claim_sha256"] == EXACT.sha256
    assert replace(EXACT, says="It is one.").sha256 != EXACT.sha256
    assert replace(EXACT, uses=("thm1/other",)).sha256 == EXACT.sha256


def test_an_empirical_claim_is_not_found_without_a_control_nor_a_mathematical_one_by_an_effect():
    with pytest.raises(ValueError, match="an empirical claim needs an effect beside its control"):
        by_tests(SEEN, expected="more", printed=[at_least("rise", 1.0, 0.0)])
    effects = {"": Effect(1.0, (0.9, 1.1), 0.0, (0.0, 0.0), 3, 0.1)}
    with pytest.raises(ValueError, match="a mathematical claim has tests, and no effects"):
        Finding(EXACT, "zero", Evidence(effects))
    with pytest.raises(ValueError, match="an effect speaks for empirical claims"):
        by_effect(EXACT, LAYERS, expected="zero")


def test_what_does_not_go_together_is_refused():
    with pytest.raises(ValueError, match="come together"):
        by_residual(EXACT, printed=0.0, corrected=0.0, tolerance=1.0, expected="zero")
    with pytest.raises(ValueError, match="come together"):
        by_residual(CORRECTED, printed=0.0, tolerance=1.0, expected="zero")
    with pytest.raises(ValueError, match="evidence, or a reason"):
        Finding(EXACT, "zero", None)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"source": "the paper"}, "source must be a work and a place in it"),
        ({"matters": -1.0}, "what matters must be above 0"),
        ({"matters": 0.0}, "what matters must be above 0"),
        ({"uses": ("Theorem 1",)}, "uses must be ids like"),
    ],
)
def test_a_claim_is_stated_in_full(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        replace(EXACT, **change)


def test_not_run_says_why_and_how():
    found = FINDINGS[-2]
    assert (found.verdict, found.reason, found.command) == ("not run", "no GPU", "joma verify fig6 --scale paper")
    assert found.measured == "no GPU; run it with: joma verify fig6 --scale paper"
    assert found.as_json()["evidence"] == {"printed": None, "corrected": None}

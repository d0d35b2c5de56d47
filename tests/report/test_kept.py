"""What is kept of paper scale, beside the claims as they stand now."""

from __future__ import annotations

from dataclasses import replace

import pytest

from joma.claims.contract import Claim
from joma.report.claims.kept import KeptFinding, kept, kept_of
from joma.studies import load

STUDIES = sorted({name.partition("/")[0] for name in kept()})


@pytest.mark.parametrize("study", STUDIES)
def test_every_kept_verdict_is_on_a_claim_as_it_reads_today(study: str) -> None:
    """Else a report leaves it out without a word. `python results/keep.py` judges all records anew."""
    claims = {f"{study}/{claim.name}": claim for claim in load(study).claims}
    names = [name for name in kept() if name.startswith(f"{study}/")]
    assert [name for name in names if name not in claims or kept_of(name, claims[name]) is None] == []
    other = replace(claims[names[0]], says="Something else.")
    assert kept_of(names[0], other) is None


def test_empirical_verdicts_come_with_the_effect_that_decides() -> None:
    for name, one in kept().items():
        study, _, claim = name.partition("/")
        empirical = next(each.empirical for each in load(study).claims if each.name == claim)
        assert ("effect" in one) == (empirical and one["verdict"] != "not run"), name
        assert one["brief"], name
        if "effect" in one:
            low, effect, high = map(float, (one["interval"][0], one["effect"], one["interval"][1]))
            assert not effect < low, name
            assert not effect > high, name


def test_a_kept_effect_has_the_numbers_of_the_file() -> None:
    name = "fig6/fig6-one-layer"
    claim = next(one for one in load("fig6").claims if one.name == "fig6-one-layer")
    found, data = kept_of(name, claim), kept()[name]
    assert found is not None
    assert found.main is not None
    assert (found.main.effect, list(found.main.interval)) == (data["effect"], data["interval"])
    written = found.as_json()
    for key in ("verdict", "measured", "effect", "interval", "control_effect", "unit", "seeds", "expected", "command"):
        assert written[key] == data[key], key


def test_what_a_file_says_of_a_finding_is_what_a_reader_gets() -> None:
    claim = Claim("taught", "CDAG Thm 1", "Gradients teach.", matters=0.05, unit="%", ceiling=1.0)
    numbers = {"effect": 0.4, "interval": [0.3, 0.5], "control_effect": 0.1, "unit": "%", "seeds": 5,
               "control_interval": [0.0, 0.2], "difference_interval": [0.2, 0.4]}  # fmt: skip
    words = {"verdict": "holds", "measured": 0.4, "expected": "more", "control": "untrained", "tolerance": 0.01}
    found = KeptFinding.from_json("cdag/taught", claim, {**words, **numbers, "brief": "40 %", "command": "joma verify"})
    assert found.main is not None
    assert (found.main.matters, found.main.ceiling) == (0.05, 1.0)
    assert (found.control, found.tolerance, found.brief) == ("untrained", 0.01, "40 %")
    written = found.as_json()
    for name, value in (words | numbers).items():
        assert written[name] == value, name

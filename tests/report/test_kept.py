"""What is kept of paper scale, beside the claims as they stand now."""

from __future__ import annotations

from dataclasses import replace

import pytest

from joma.report.claims.kept import kept, kept_of
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

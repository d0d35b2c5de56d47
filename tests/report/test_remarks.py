"""Remarks on the page and on a terminal: each verdict has its own, of this run or of paper scale."""

from __future__ import annotations

import dataclasses
import re

import pytest

from joma.claims.contract import Claim, Finding
from joma.claims.execute import Result
from joma.claims.finding import Provenance
from joma.claims.verdicts import by_effect
from joma.measure.intervals import compare
from joma.report.claims.cards import cards
from joma.report.claims.kept import KeptFinding
from joma.report.claims.layout import Entry, lay_out
from joma.report.claims.study import claim_html, study_section
from joma.report.claims.verdicts import TEXT, notable
from joma.report.markup import Anchors

CLAIM = Claim("fig6-one-layer", "JoMA Fig. 6", "Entropy comes back.", matters=0.05, unit="nats")
NEAR, CLEAR = [0.04, 0.05, 0.06, 0.05, 0.055], [0.5, 0.51, 0.49, 0.5, 0.5]
DATA = {"verdict": "holds", "measured": "0.5", "brief": "0.5 nats", "claim_sha256": CLAIM.sha256, "effect": 0.5,
        "interval": [0.33, 0.67], "control_effect": 0.0, "control_interval": [0.0, 0.0], "unit": "nats", "seeds": 3,
        "level": 0.99, "q": 0.001, "remarks": ["size shown"], "shares_control": ["fig6/other"],
        "provenance": Provenance(machine="Arm")}  # fmt: skip


def found(values: list[float], q: float | None = None) -> Finding:
    return dataclasses.replace(by_effect(CLAIM, compare(values), expected="a rebound"), study="fig6", q=q)


def test_this_run_and_paper_scale_have_remarks_of_their_own() -> None:
    here = found(NEAR, 0.0612)
    assert here.remarks == ["fragile", "q 0.061"]
    html = claim_html(Entry(here, "a", KeptFinding.from_json(here.id, CLAIM, DATA)))
    own, paper = html.partition("at paper scale")[::2]
    assert re.findall(r'class="remark">([^<]+)', own) == ["fragile", "q 0.061"]
    assert re.findall(r'class="remark">([^<]+)', paper) == ["size shown"]
    assert "<dt>q</dt><dd>0.0612</dd>" in html
    assert "<dd>holds (size shown), Arm: 0.5</dd>" in html
    assert "<dt>q</dt>" not in claim_html(Entry(found(NEAR), "a", None))


@pytest.mark.parametrize(
    ("values", "remarks", "said"),
    [
        (CLEAR, ["fragile", "q 0.06"], ["size shown"]),
        (NEAR, ["size shown"], ["fragile"]),
        (NEAR, None, ["fragile"]),
    ],
)
def test_a_card_has_the_doubts_of_this_run(
    results: list[Result], monkeypatch: pytest.MonkeyPatch, values: list[float], remarks: list[str] | None, said: list
) -> None:
    """remarks: of paper scale; None where nothing is kept."""
    here = found(values)
    kept = {} if remarks is None else {here.id: {**DATA, "remarks": remarks}}
    monkeypatch.setattr("joma.report.claims.kept.kept", lambda: kept)
    study = dataclasses.replace(results[0].study, name="fig6")
    sections = lay_out([dataclasses.replace(results[0], study=study, findings=[here]), results[1]], Anchors())
    doubts = [word for word in said if word != "size shown"]
    marked = re.findall(
        "The verdict is marked: ([^.]+(?:\\.\\d+)?)\\.", cards(sections, Anchors()).split("</article>")[0]
    )
    assert marked == ([", ".join(doubts)] if doubts else [])
    outcome = study_section(sections[0], Anchors()).partition('class="notable">')[2].partition("</ul>")[0]
    assert re.findall(r'class="remark">([^<]+)', outcome) == said


def test_what_is_kept_has_its_level_its_q_and_its_remarks() -> None:
    one = KeptFinding.from_json("fig6/fig6-one-layer", CLAIM, DATA)
    assert one.main is not None
    assert (one.main.level, one.q, one.full_verdict, list(one.shares)) == (
        0.99,
        0.001,
        "holds (size shown)",
        ["fig6/other"],
    )
    written = one.as_json()
    assert {name: written[name] for name in ("q", "remarks", "shares_control", "level")} == {
        "q": 0.001, "remarks": ["size shown"], "shares_control": ["fig6/other"], "level": 0.99
    }  # fmt: skip
    plain = {name: value for name, value in DATA.items() if name not in ("level", "q", "remarks", "shares_control")}
    bare = KeptFinding.from_json("fig6/fig6-one-layer", CLAIM, plain)
    assert bare.main is not None
    assert (bare.main.level, bare.q, bare.full_verdict, list(bare.shares)) == (0.95, None, "holds", [])


def test_mixed_is_neither_in_part_nor_failed() -> None:
    assert len({text.answer for text in TEXT.values()}) == len({text.glyph for text in TEXT.values()}) == len(TEXT)
    assert notable("fails") < notable("mixed") < notable("not above its control") < notable("only qualitative")

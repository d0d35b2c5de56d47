"""The first screen: its sentences are made from findings, so a spoiled finding must change them."""

from __future__ import annotations

import dataclasses
import json
import re
from html import escape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kept_records import RECORDS, needs_records

from joma.claims.contract import Claim, Finding, Verdict
from joma.claims.execute import Result
from joma.claims.verdicts import Effect, at_least, by_effect, by_residual, by_tests, not_run
from joma.figures.style import house_style, panels, to_svg
from joma.measure.intervals import compare
from joma.report.claims.cards import CARDS, cards
from joma.report.claims.front import at_the_papers_sizes, headline, holding, summary, surprises
from joma.report.claims.headlines import HEADLINES, SURPRISES
from joma.report.claims.kept import KeptFinding
from joma.report.claims.layout import Entry, Section, lay_out
from joma.report.claims.panels import kept_panels
from joma.report.claims.study import claim_html, study_section
from joma.report.claims.verdicts import disagreement, effect_texts, notable, verdict_table
from joma.report.markup import Anchors
from joma.runs import Run
from joma.studies import load

FIG6 = Claim("fig6-one-layer", "JoMA Fig. 6", "Entropy comes back.", matters=0.05, unit="nats")

NO_BREAK = "\N{NO-BREAK SPACE}"
"""Between a number and its unit."""


def exact(printed: float, corrected: float | None = None, name: str = "growth") -> Finding:
    claim = Claim(name, "JoMA Thm 2", "As printed.", None if corrected is None else "As corrected.")
    return by_residual(claim, printed=printed, corrected=corrected, tolerance=1e-9, expected="zero")


def rebound(*seeds: float, study: str = "fig6") -> Finding:
    return dataclasses.replace(by_effect(FIG6, compare(list(seeds), 0.0), expected="a rebound"), study=study)


def entry(finding: Finding, kept: KeptFinding | None = None) -> Entry:
    return Entry(finding, "anchor", kept)


def stored(verdict: Verdict, claim: Claim = FIG6, brief: str = "0.5") -> dict[str, Any]:
    return {"verdict": verdict, "measured": "0.5", "claim_sha256": claim.sha256, "brief": brief}


def stored_rebound(verdict: Verdict) -> dict[str, Any]:
    numbers = {"effect": 0.5, "interval": [0.33, 0.67], "control_effect": 0.0, "unit": "nats", "seeds": 5,
               "control_interval": [0.0, 0.0]}  # fmt: skip
    return stored(verdict, brief="0.5 nats") | numbers


def of_kept(verdict: Verdict) -> KeptFinding:
    return KeptFinding.from_json("fig6/fig6-one-layer", FIG6, stored_rebound(verdict))


def test_the_headline_counts_what_holds_and_what_was_corrected() -> None:
    claims = [entry(exact(0.0)), entry(exact(0.3, 0.0)), entry(exact(0.3))]
    assert headline(claims) == ["2 of 3 mathematical claims hold, 1 only if corrected."]
    claims[1] = entry(exact(0.3, 0.2))
    assert headline(claims) == ["1 of 3 mathematical claims holds."]
    assert headline(claims[:1]) == ["The one mathematical claim holds."]
    assert headline([entry(exact(0.3, 0.0))]) == ["The one mathematical claim holds as corrected."]
    assert headline(claims[:1] * 2) == ["All 2 mathematical claims hold."]
    assert headline(claims[1:]) == ["None of 2 mathematical claims hold."]


def test_the_headline_is_what_this_run_found_and_paper_scale_stands_below_it() -> None:
    holds, open_ = rebound(0.50, 0.52, 0.48), rebound(0.5, -0.5, 0.1)
    found = "Attention entropy falls and then recovers, by 0.50 nats"
    assert headline([entry(holds)]) == [f"{found} [0.39, 0.61] at 99 %."]
    assert headline([entry(open_, of_kept("holds"))]) == ["The one empirical claim is undecided."]
    assert at_the_papers_sizes([entry(open_, of_kept("holds"))]) == f"At paper scale: {found} [0.33, 0.67]."
    assert at_the_papers_sizes([entry(holds, of_kept("fails"))]) == "At paper scale: The one empirical claim fails."
    assert at_the_papers_sizes([entry(holds, of_kept("not run")), entry(holds)]) == ""


def test_with_nothing_judged_the_headline_says_so() -> None:
    waiting = entry(not_run(FIG6, "a run", "no GPU", "joma verify fig6 --scale paper"))
    assert headline([waiting]) == ["No claim was judged: 1 was not run."]
    assert surprises([waiting]) == []


def test_both_scales_have_one_bar_of_the_same_claims() -> None:
    """Three theorems and an experiment; two claims came out differently at the two scales, one has no kept verdict."""
    kept = KeptFinding("thm2/growth", exact(0.0).claim, "fails", "m", "off by 0.3")
    held = dataclasses.replace(kept, verdict="holds")
    claims = [entry(exact(0.0), kept), entry(exact(0.3), held), entry(exact(0.0))]
    claims.append(entry(rebound(0.5, -0.5, 0.1), of_kept("holds")))
    column = holding(claims)
    here = "2 of 3 theorems hold, 0 of 1 experiments hold, 1 fail, 1 undecided"
    assert f"This run</span> <b>{here}</b>" in column
    assert "Paper scale</span> <b>1 of 3 theorems hold, 1 of 1 experiments hold, 1 fail, 1 not run</b>" in column
    widths = [sum(map(int, re.findall(r"flex-grow:(\d+)", row))) for row in column.split("<li>")[1:]]
    assert widths == [4, 4]
    assert "Paper scale" not in holding(claims[2:3])


def test_a_surprise_is_told_only_while_it_is_one() -> None:
    claim = Claim("who-wins", "JoMA Thm 2", "The largest wins.", "The first wins.")

    def won(share: float) -> Finding:
        printed, corrected = [at_least("won by the largest", share, 1.0, "%")], [at_least("by the first", 1.0, 1.0)]
        found = by_tests(claim, expected="all", printed=printed, corrected=corrected)
        return dataclasses.replace(found, study="thm2")

    assert surprises([entry(won(0.25))]) == ["The most salient token often loses: it wins 25 % of the random starts."]
    assert surprises([entry(won(1.0))]) == ["The largest wins. This holds."]


def test_every_claim_of_the_editors_choice_exists_and_fits_its_sentence() -> None:
    sentences = [(one.claim, text) for one in HEADLINES[1:] for text in one.sentences.values()]
    for id, text in sentences + [(one.claim, one.text) for one in SURPRISES]:
        study, _, name = id.partition("/")
        claim = next((claim for claim in load(study).claims if claim.name == name), None)
        assert claim is not None, id
        assert claim.empirical == ("{printed}" not in text), id
        text.format(effect="", opposite="", control="", more="", printed="")


@pytest.fixture
def sections(results: list[Result]) -> list[Section]:
    return lay_out(results, Anchors())


def _fig6(results: list[Result], finding: Finding) -> Result:
    study = dataclasses.replace(results[0].study, name="fig6", title="Figure 6")
    return dataclasses.replace(results[0], study=study, findings=[finding])


def test_cards_answer_the_questions_of_the_claims_that_are_there(results: list[Result]) -> None:
    asked = HEADLINES[1].asks
    html = cards(lay_out([_fig6(results, rebound(0.5, 0.52, 0.48)), results[1]], Anchors()), Anchors())
    assert f"<h3>{asked}</h3>" in html
    numbers = "Attention entropy falls and then recovers, by 0.50~nats [0.39, 0.61] at 99~%."
    assert f'<strong class="answer">Yes.</strong> {numbers}'.replace("~", NO_BREAK) in html
    assert 'href="#study-fig6-fig6-one-layer"' in html
    spoiled = cards(lay_out([_fig6(results, rebound(-0.5, -0.52, -0.48)), results[1]], Anchors()), Anchors())
    assert '<strong class="answer">No.</strong>' in spoiled
    assert asked not in cards(lay_out([results[0], results[1]], Anchors()), Anchors())


def test_of_a_study_that_is_there_twice_the_first_one_answers(results: list[Result]) -> None:
    first, second = (_fig6(results, rebound(*seeds)) for seeds in ((0.5, 0.52, 0.48), (-0.5, -0.52, -0.48)))
    html = cards(lay_out([results[1], first, second], Anchors()), Anchors())
    card = html.partition(f"<h3>{HEADLINES[1].asks}</h3>")[2].partition("</article>")[0]
    assert '<strong class="answer">Yes.</strong>' in card
    assert 'href="#study-fig6-fig6-one-layer"' in card


def test_a_card_is_no_firmer_than_its_verdict(results: list[Result]) -> None:
    """Five seeds that clear what matters by a tenth of their interval, and five that do by far."""
    near = rebound(0.04, 0.05, 0.06, 0.05, 0.055)
    assert near.fragile
    for finding, doubt in (
        (near, True),
        (dataclasses.replace(near, q=0.0612), True),
        (rebound(0.5, 0.52, 0.48, 0.51, 0.49), False),
    ):
        html = cards(lay_out([_fig6(results, finding), results[1]], Anchors()), Anchors())
        marked = "fragile, q 0.061" if finding.q else "fragile"
        assert (f"The verdict is marked: {marked}." in html) == doubt


def test_cards_show_this_run_first_and_paper_scale_in_small(
    results: list[Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = rebound(0.5, -0.5, 0.1)
    monkeypatch.setattr("joma.report.claims.kept.kept", lambda: {found.id: stored_rebound("holds")})
    html = cards(lay_out([_fig6(results, found), results[1]], Anchors()), Anchors())
    assert f'<strong class="answer">Undecided.</strong> 0.0{NO_BREAK}nats' in html
    paper = "At paper scale: holds. Attention entropy falls and then recovers, by 0.50~nats [0.33, 0.67]."
    assert f'<p class="note">{paper}</p>'.replace("~", NO_BREAK) in html
    itself = dataclasses.replace(_fig6(results, found), command="joma verify fig6 --scale paper")
    assert "At paper scale" not in cards(lay_out([itself, results[1]], Anchors()), Anchors())


def test_the_rest_of_the_cards_are_notable_findings_one_per_study(results: list[Result]) -> None:
    pytest.importorskip("matplotlib")
    names = ("a", "b", "c", "d", "e", "f", "g")
    several = [
        dataclasses.replace(
            results[0],
            study=dataclasses.replace(results[0].study, name=name),
            findings=[dataclasses.replace(results[0].findings[5], study=name)],
        )
        for name in names
    ]
    html = cards(lay_out(several, Anchors()), Anchors())
    assert html.count("<article") == CARDS
    assert html.count("This is not above its control.") == CARDS
    assert html.count("<svg") == CARDS
    assert cards(lay_out(several[:1], Anchors()), Anchors()) == ""


def test_a_card_of_a_run_without_curves_draws_what_is_kept(
    results: list[Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = rebound(0.5, -0.5, 0.1)
    card = cards(lay_out([results[1], _fig6(results, found)], Anchors()), Anchors())
    assert escape(kept_panels()[found.id].alt) in card
    assert "Paper scale: WikiText-2, mean of 5 seeds" in card


@needs_records
def test_a_card_has_the_curves_of_this_run_and_of_paper_scale(
    results: list[Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told apart by a run of which every number is one higher."""
    record = RECORDS / "fig6" / "fig6.sqlite"
    with Run.open(record) as kept, Run.create(tmp_path / "a", study="fig6", config=kept.config) as run:
        for name in (one for one in kept.names() if one.startswith("L1/")):
            for step, values in zip(kept.steps(name).tolist(), kept.array(name), strict=True):
                run.append(name, step, values + 1 if name == "L1/valid/entropy" else values)
    found = rebound(0.5, 0.5, 0.6)
    monkeypatch.setattr("joma.report.claims.kept.kept", lambda: {found.id: stored_rebound("holds")})
    quick = dataclasses.replace(_fig6(results, found), run=tmp_path / "a")
    card = cards(lay_out([quick, results[1]], Anchors()), Anchors()).partition("</article>")[0]
    assert card.count("<svg") == 2
    assert card.index("This run: ") < card.index("Paper scale: ")
    numbers = json.loads(card.partition('class="numbers">')[2].partition("</script>")[0])
    assert [one["scale"] for one in numbers] == ["This run", "Paper scale"]
    here, paper = (one["lines"][0]["y"] for one in numbers)
    assert paper == list(kept_panels()[found.id].lines[0].y)
    np.testing.assert_allclose(np.array(here) - np.array(paper), 1.0, atol=0.011)  # four digits of each


def test_a_study_shows_paper_scale_in_small_where_it_differs(
    results: list[Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = results[0].findings[4]
    alone = dataclasses.replace(results[0], findings=[found])
    for verdict, differs in (("fails", True), (found.verdict, False)):
        kept = {found.id: stored(verdict, found.claim)}
        monkeypatch.setattr("joma.report.claims.kept.kept", lambda kept=kept: kept)
        section = study_section(lay_out([alone], Anchors())[0], Anchors())
        assert ('<span class="at">At paper scale: ' in section) == differs


@pytest.mark.parametrize("columns", [1, 3])
def test_a_card_of_this_run_shows_its_figure_only_if_it_can_be_read(results: list[Result], columns: int) -> None:
    with house_style():
        figure, axes = panels(columns)
        axes[0].plot([0, 1], [0, 1])
        picture = dataclasses.replace(results[0].pictures[0], svg=to_svg(figure, title="a"))
    changed = dataclasses.replace(results[0], pictures=[picture])
    html = cards(lay_out([changed, results[1]], Anchors()), Anchors())
    assert html.count("<svg") == (1 if columns == 1 else 0)


@pytest.mark.parametrize(("measured", "shown"), [(8.798517470154366e-13, "8.8e-13"), ("0.5 nats", "0.5 nats")])
def test_a_number_of_paper_scale_is_shown_as_one_of_this_run(measured: float | str, shown: str) -> None:
    finding = exact(0.0)
    kept = KeptFinding("thm2/growth", finding.claim, "holds", measured)
    assert f"holds, : {shown}</dd>" in claim_html(Entry(finding, "a", kept))


def test_an_end_that_rounds_to_nothing_has_no_sign() -> None:
    found = Effect(-0.0851, (-0.169, -0.0007), 0.0, (0.0, 0.0), 6, 0.1, unit="%")
    assert effect_texts(found)["effect"] == "-9 % [-17, 0]"
    assert effect_texts(found)["opposite"] == "9 % [0, 17]"


def test_a_claim_says_which_others_share_its_control() -> None:
    finding = dataclasses.replace(rebound(0.5, 0.52, 0.48), shares=("fig6/a", "fig6/b"))
    assert "<dt>The same control in</dt><dd>fig6/a, fig6/b</dd>" in claim_html(entry(finding))
    assert "The same control in" not in claim_html(entry(rebound(0.5, 0.52, 0.48)))


def test_theorems_are_answered_together(sections: list[Section]) -> None:
    html = cards(sections, Anchors())
    assert "Are the theorems right as printed?" in html
    assert '<strong class="answer">Not all.</strong> 2 of 3 mathematical claims hold, 1 only if corrected.' in html
    assert "For example: erf(v/2)/Δ is the same at all tokens. Corrected: erf(v/√2)/Δ is." in html


def test_where_the_scales_disagree_the_page_says_so_with_links(
    results: list[Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = results[0].findings[4], results[0].findings[5]
    kept = {one.id: stored("holds", one.claim) for one in (first, second)}
    monkeypatch.setattr("joma.report.claims.kept.kept", lambda: kept)
    sections = lay_out(results, Anchors())
    html = verdict_table(sections, "quick")
    assert "At paper scale 2 of 2 claims come out differently. This run leaves 1 of these undecided." in html
    assert "The paper scale is the stronger evidence." in html
    assert '<a href="#study-near-fig5">near/fig5</a> here ' in html
    assert '<td data-label="Paper scale"><span class="marks"><span class="v-holds" title="holds">' in html
    kept[second.id]["verdict"] = second.verdict
    kept[first.id]["verdict"] = first.verdict
    assert "All 2 claims that are kept at paper scale came out the same there." in verdict_table(
        lay_out(results, Anchors()), "quick"
    )
    kept[first.id]["claim_sha256"] = "of another sentence"
    assert "The one claim that is kept" in verdict_table(lay_out(results, Anchors()), "quick")
    kept.clear()
    table = verdict_table(lay_out(results, Anchors()), "quick")
    assert "Paper scale" not in table
    assert "t paper scale" in table  # the verdict of a claim that is about it
    assert "claims come out differently" not in table


def test_a_claim_that_only_one_scale_judged_is_no_disagreement() -> None:
    waiting = not_run(FIG6, "a run", "no GPU", "joma verify fig6 --scale paper")
    assert disagreement([entry(waiting, of_kept("holds")), entry(rebound(1.0, 1.1), of_kept("not run"))]) == ""


@pytest.mark.parametrize(
    ("effect", "interval", "control", "unit", "said"),
    [
        (0.9674, (0.9627, 0.9721), 0.9826, "", ("0.9674 [0.9627, 0.9721]", "0.9826")),
        (0.2324, (0.1874, 0.2774), 0.2026, "nats", ("0.232 nats [0.187, 0.277]", "0.203 nats")),
        (0.543, (0.35, 0.75), 0.0, "%", ("54 % [35, 75]", "0 %")),
        (198.3, (192.9, 203.7), 154.7, "°", ("198° [193, 204]", "155°")),
        (0.3, (float("-inf"), float("inf")), 0.1, "", ("0.3 [no interval]", "0.1")),
        (4e-5, (1e-5, 7e-5), 0.0, "", ("0.000040 [0.000010, 0.000070]", "0")),
        (1.0, (1.0, 1.0), 1.0, "", ("1 [1, 1]", "1")),
    ],
)
def test_numbers_are_rounded_to_what_their_interval_tells(
    effect: float, interval: tuple[float, float], control: float, unit: str, said: tuple[str, str]
) -> None:
    found = Effect(effect, interval, control, (control, control), 3, 0.05, unit=unit)
    assert (effect_texts(found)["effect"], effect_texts(found)["control"]) == said


def test_an_effect_the_other_way_round() -> None:
    found = Effect(-0.2026, (-0.296, -0.1092), -0.05, (-0.05, -0.05), 6, 0.05, unit="nats")
    assert effect_texts(found)["opposite"] == "0.20 nats [0.11, 0.30]"


def test_a_page_of_one_study_opens_with_it(results: list[Result], tmp_path: Path) -> None:
    from joma.report import write_report

    html = write_report(results[:1], tmp_path, scale="quick").read_text(encoding="utf-8")
    assert 'id="studies"' not in html
    assert 'class="card ' not in html
    assert 'class="controls"' not in html
    assert "<code>joma verify near</code>" in html[: html.index('class="study"')]


def test_what_contradicts_the_source_is_the_most_notable() -> None:
    verdicts: list[Verdict] = ["holds", "undecided", "only qualitative", "not run", "not above its control", "fails"]
    ordered = ["fails", "not above its control", "only qualitative", "holds", "undecided", "not run"]
    assert sorted(verdicts, key=notable) == ordered


def test_the_time_of_computing_is_that_of_this_run() -> None:
    sections: Any = [
        SimpleNamespace(result=SimpleNamespace(run=run, seconds=seconds, cached=cached), verdicts=["holds"])
        for run, seconds, cached in (("a", 30.0, False), ("b", 12.0, False), ("c", 500.0, True), (None, 7.0, False))
    ]
    said = summary(sections, "quick")
    assert f"in 4 studies, quick scale, 42{NO_BREAK}s of computing, 1 taken from finished records." in said
    assert "of computing" not in summary(sections[2:3], "quick")


def test_at_most_three_findings_surprise_and_the_most_notable_come_first() -> None:
    held = [entry(exact(0.0, name=f"held-{at}")) for at in range(3)]
    failed = [entry(exact(0.3, name=f"failed-{at}")) for at in range(2)]
    assert surprises([*held, *failed]) == ["As printed. This fails."] * 2 + ["As printed. This holds."]
    assert len(surprises(failed)) == 2

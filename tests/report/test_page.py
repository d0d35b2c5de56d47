from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from collections import Counter
from datetime import UTC, datetime
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest

import joma
from joma.claims.contract import VERDICTS
from joma.claims.execute import Result
from joma.claims.ledger import findings_json
from joma.claims.verdicts import not_run
from joma.report import write_report
from joma.report.markup import Anchors, duration, embed_svg, natural_width

MADE = datetime(2025, 3, 4, 5, 6, tzinfo=UTC)


class Page(HTMLParser):
    """Every start tag with its attributes, and the text outside style and script."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._skipping = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._skipping = tag in ("style", "script")

    def handle_endtag(self, tag: str) -> None:
        self._skipping = False

    def handle_data(self, data: str) -> None:
        self.text += "" if self._skipping else data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def html(results: list[Result], tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(results, tmp_path_factory.mktemp("out"), scale="quick", made=MADE).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_text_of_studies_is_never_markup(html: str, page: Page) -> None:
    assert "<script>alert" not in html
    assert len(page.all("script")) == 1
    assert "Markup stays text: <script>alert('x')</script> & \"quotes\"." in page.text
    assert "Near: a study <that> runs" in page.text


def test_only_the_own_script_may_run(html: str) -> None:
    script = re.search(r"<script>(.*?)</script>", html, re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in html
    assert "default-src 'none'" in html


def test_nothing_is_loaded_from_outside(html: str, page: Page) -> None:
    for tag, attributes in page.tags:
        for name in ("src", "href", "xlink:href", "srcset", "data", "action", "poster"):
            target = attributes.get(name) or "#"
            assert target.startswith(("#", "data:")) or (tag == "a" and name == "href"), (tag, target)
    assert not page.all("link")
    assert not page.all("base")
    assert "@import" not in html
    assert all(target.startswith("#") for target in re.findall(r"url\(['\"]?([^)'\"]*)", html))


def test_ids_are_unique_and_every_reference_has_its_target(html: str, page: Page) -> None:
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert [name for name, count in Counter(ids).items() if count > 1] == []
    references = set(re.findall(r"url\(#([^)]+)\)", html))
    for _, attributes in page.tags:
        target = attributes.get("href") or attributes.get("xlink:href") or ""
        references |= {target[1:]} if target.startswith("#") else set()
        references |= set((attributes.get("aria-labelledby") or "").split())
    assert len(references) > 10
    assert references <= set(ids)


def test_each_verdict_is_counted_and_the_sentence_adds_up(page: Page) -> None:
    assert "8 claims: 7 judged, 1 not run, in 2 studies, quick scale" in page.text
    claims = [attributes["data-verdict"] for attributes in page.all("details") if "data-verdict" in attributes]
    assert Counter(claims) == dict.fromkeys(VERDICTS, 1)
    chips = [a["data-verdict"] for a in page.all("button") if "data-verdict" in a]
    assert chips == list(VERDICTS)


def test_the_same_study_and_the_same_claim_twice(results: list[Result], tmp_path: Path) -> None:
    near = results[0]
    twice = dataclasses.replace(near, findings=[near.findings[0], near.findings[0], near.findings[5]], seconds=30.0)
    html = write_report([twice, twice], tmp_path, scale="paper", made=MADE).read_text(encoding="utf-8")
    assert "6 claims, all judged, in 2 studies, paper scale, 1\N{NO-BREAK SPACE}min of computing." in html
    assert "3 claims, all judged. 2 hold, 1 is not above its control." in html
    ids = re.findall(r'\sid="([^"]+)"', html)
    assert len(ids) == len(set(ids))


def test_records_that_were_only_judged_again_are_no_time_of_today(results: list[Result], tmp_path: Path) -> None:
    near = dataclasses.replace(results[0], cached=True, seconds=41.0)
    html = write_report([near, results[1]], tmp_path, scale="quick", made=MADE).read_text(encoding="utf-8")
    assert "of computing" not in html
    assert "1 taken from finished records" in html
    assert '41 s <span class="name">cached</span>' in html
    assert "<dd>41 s, when it ran</dd>" in html


def test_a_page_without_results(tmp_path: Path) -> None:
    html = write_report([], tmp_path, scale="quick").read_text(encoding="utf-8")
    assert "<h1><span>No claim was judged.</span></h1>" in html
    assert "What does the theory say?" in html
    assert "Does it hold?" not in html


def test_the_four_questions_of_a_stranger_have_answers(page: Page) -> None:
    for question in ("What does the theory say?", "Does it hold?", "What is surprising?", "What can I do with it?"):
        assert question in page.text
    assert "joma scan CHECKPOINTS" in page.text


def test_where_and_when(page: Page, results: list[Result]) -> None:
    assert "4 March 2025, 05:06 UTC" in page.text
    assert f"joma {joma.__version__}, report of 4 March 2025, scale: quick" in page.text
    assert "cores" in page.text
    assert re.search(r"torch \d", page.text)


def test_a_record_that_is_gone_costs_only_the_machine(results: list[Result], tmp_path: Path) -> None:
    lost = [dataclasses.replace(results[0], run=tmp_path / "gone.sqlite")]
    text = Page(write_report(lost, tmp_path, scale="quick", made=MADE).read_text(encoding="utf-8")).text
    assert "Machine" not in text
    assert "Ten comes after two." in text


def test_a_study_that_was_not_run_gives_reason_and_command(html: str) -> None:
    far = html[html.index('<section class="study" id="study-far"') :]
    assert "<dt>Reason</dt><dd>no GPU here</dd>" in far
    assert '<h3 class="small">Run it</h3>' in far
    assert "<code>joma verify far --scale paper</code>" in far
    assert "run it with" not in html


def test_advice_that_is_no_command_stays_with_the_reason(results: list[Result], tmp_path: Path) -> None:
    finding = not_run(results[0].findings[0].claim, "zero", "all diverged", "a lower --rate than 1")
    changed = [dataclasses.replace(results[0], findings=[finding, *results[0].findings[1:]])]
    html = write_report(changed, tmp_path, scale="quick", made=MADE).read_text(encoding="utf-8")
    assert "<dt>Reason</dt><dd>all diverged; run it with: a lower --rate than 1</dd>" in html
    assert "<code>a lower" not in html


def test_a_study_that_broke_says_so(results: list[Result], tmp_path: Path) -> None:
    broken = dataclasses.replace(results[0], findings=[], pictures=[], run=None, error="RuntimeError: <boom>")
    html = write_report([broken], tmp_path, scale="quick", made=MADE).read_text(encoding="utf-8")
    assert "This study broke: RuntimeError: &lt;boom&gt;" in html
    top = html[html.index("<header") : html.index("</header>")]
    assert '<a href="#study-near">near</a> broke: RuntimeError: &lt;boom&gt;' in top


def test_a_page_without_figures_says_why(
    results: list[Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    bare = [dataclasses.replace(results[0], pictures=[])]
    said = "matplotlib is not installed"
    assert said not in write_report(bare, tmp_path, scale="quick").read_text(encoding="utf-8")
    monkeypatch.setattr("joma.report.figures.find_spec", lambda name: None)
    html = write_report(bare, tmp_path, scale="quick").read_text(encoding="utf-8")
    assert said in html[: html.index("</header>")]
    assert "pip install -e '.[viz]'" in html
    assert said not in write_report(results, tmp_path, scale="quick").read_text(encoding="utf-8")


def test_both_forms_are_shown_with_what_was_needed(html: str) -> None:
    section = html[html.index('id="study-near-two"') : html.index('id="study-near-eq58"')]
    needed = "(needed: at most 1.0e-10)"
    said = f"as printed: off by 0.2648 {needed}; as corrected: off by 1.7e-12 {needed}"
    assert f"<dt>Measured</dt><dd>{said}</dd>" in section


def test_an_undecided_claim_says_what_would_decide_it(html: str) -> None:
    section = html[html.index('id="study-near-fig5"') : html.index('id="study-near-fig4"')]
    assert re.search(r"it could have seen a difference of at least [\d.]+; \d+ seeds would probably decide", section)


def test_what_a_claim_rests_on_is_named(html: str) -> None:
    assert "<dt>Rests on</dt><dd>near/eq6</dd>" in html[html.index('id="study-near-fig4"') :]


def test_a_study_begins_with_what_came_out_and_its_figure(html: str) -> None:
    pytest.importorskip("matplotlib")
    near = html[
        html.index('<section class="study" id="study-near"') : html.index('<section class="study" id="study-far"')
    ]
    parts = ["7 claims, all judged.", 'class="notable"', "<figure", "How it was measured", "Repeat it", "All 8 claims"]
    places = [near.index(part) for part in parts]
    assert places == sorted(places)
    notable = near[near.index('class="notable"') : near.index("<figure")]
    assert re.findall(r'class="word">([^<]+)', notable) == ["fails", "mixed", "not above its control"]
    assert "0.125 [0.096, 0.154] at 99 %; control the constant 0.12" in notable


def test_claims_are_folded_and_can_be_linked_to(page: Page) -> None:
    folded = [a for a in page.all("details") if (a.get("class") or "").startswith("claim ")]
    assert [a["id"] for a in folded][:2] == ["study-near-ten", "study-near-two"]
    assert all("open" not in a for a in page.all("details"))


def test_repeat_and_configuration(html: str) -> None:
    assert "<code>joma verify near</code>" in html
    assert "<dt>size</dt><dd>3</dd>" in html
    assert "<code>joma verify --scale quick</code>" in html


def test_pictures_do_not_share_ids(html: str) -> None:
    pytest.importorskip("matplotlib")
    small, first, second = re.findall(r"<svg.*?</svg>", html.partition("<body>")[2], re.DOTALL)
    found = [set(re.findall(r'\sid="([^"]+)"', figure)) for figure in (first, second, small)]
    assert not found[0] & found[1] | found[1] & found[2] | found[0] & found[2]
    assert set.intersection(*({name.split("--")[-1] for name in names} for names in found))
    assert "<style" not in first


def test_studies_of_a_large_page_sleep_and_one_alone_does_not(html: str, results: list[Result], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    awake = re.sub(r"<noscript>.*?</noscript>", "", html, flags=re.DOTALL)
    assert "Near: a study &lt;that&gt; runs" in awake
    assert "7 claims, all judged." in awake
    assert "<figure" not in awake
    assert "<dl><div><dt>Id" not in awake
    studies, panels = html.split('<section id="playground"')
    assert studies.count("<noscript>") == studies.count("</noscript>") == 4  # body and claims of two studies
    assert panels.count("<noscript>") == panels.count("</noscript>") == 4  # the playground sleeps too
    alone = write_report(results[:1], tmp_path, scale="quick", made=MADE).read_text(encoding="utf-8")
    assert "<noscript" not in alone.split('<section id="playground"')[0]
    assert alone.count("<figure") == 2


def test_pictures_have_no_numbers_that_could_be_those_of_the_paper(html: str) -> None:
    pytest.importorskip("matplotlib")
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", html, re.DOTALL)
    assert [caption[:14] for caption in captions] == ["A line, alike,", "A line, alike "]
    assert "Figure" not in Page(html).text
    assert re.findall(r'<figure id="([^"]+)"', html) == ["figure-near-alike", "figure-near-alike-too"]


def test_a_page_of_stored_runs_names_the_command_that_made_it(results: list[Result], tmp_path: Path) -> None:
    command = "joma report 'my runs'"
    html = write_report(results, tmp_path, scale="as stored", made=MADE, command=command).read_text(encoding="utf-8")
    footer = html[html.index('<footer id="repeat">') :]
    assert re.findall(r"<pre><code>(.*?)</code></pre>", footer) == ["joma report &#x27;my runs&#x27;"]
    assert "All studies at once" not in footer


def test_embedding_changes_references_and_leaves_text_alone() -> None:
    svg = """<svg viewBox="0 0 489.6 194" aria-label="a > b"><style>*{fill:red}</style>
    <path id='{}a' clip-path="url(#{}c)"/><use xlink:href="#{}a" style="fill:url('#{}g')"/>
    <image href="data:image/png;base64,#a"/><text> id="a" url(#c)</text></svg>"""
    embedded = svg.replace("<style>*{fill:red}</style>", "").replace("{}", "p--")
    assert embed_svg(svg.replace("{}", ""), "p") == embedded
    assert natural_width(svg) == "489.6pt"
    assert natural_width("<svg></svg>") == "100%"
    assert natural_width('<svg viewBox="0 0 164.6.6 2"></svg>') == "164.6pt"  # damaged: what a browser would read
    assert natural_width('<svg viewBox="0 0 . 2"></svg>') == "100%"


def test_writing_replaces_the_old_page_or_leaves_it(
    results: list[Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_report(results, tmp_path / "new" / "folder", scale="quick", made=MADE)
    assert path == tmp_path / "new" / "folder" / "report.html"
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("joma.host.files.os.replace", full)
    with pytest.raises(ValueError, match=r"report\.html cannot be written: disk full"):
        write_report(results[:1], path.parent, scale="quick", made=MADE)
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]


def test_same_results_same_page(results: list[Result], tmp_path: Path) -> None:
    pages = [write_report(results, tmp_path / str(i), scale="quick", made=MADE).read_bytes() for i in range(2)]
    assert pages[0] == pages[1]


def test_findings_json_is_plain(results: list[Result]) -> None:
    found = json.loads(json.dumps(findings_json(results)))
    assert [study["name"] for study in found["studies"]] == ["near", "far"]
    assert found["studies"][0]["findings"][1]["residuals"] == {"printed": 0.2648, "corrected": 1.7e-12}


@pytest.mark.parametrize(("seconds", "said"), [(59.4, "59 s"), (59.6, "1 min"), (3599.9, "1 h"), (0, "0 s")])
def test_durations_round_without_sixty_seconds(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_anchors_of_text_without_letters() -> None:
    anchors = Anchors()
    assert anchors.take("study", "Δ") == "study"
    assert anchors.take("study", "√") == "study-2"


def _luminance(colour: str) -> float:
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_contrast_of_all_text_colours(mode: int) -> None:
    style = files("joma.report").joinpath("template", "style.css").read_text(encoding="utf-8")
    colours = {name: pair[mode] for name, *pair in re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", style)}
    assert {verdict.replace(" ", "-") for verdict in VERDICTS} < set(colours)
    for ground in ("paper", "panel"):
        for name in set(colours) - {"paper", "panel", "rule"}:
            low, high = sorted((_luminance(colours[ground]), _luminance(colours[name])))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (name, ground)

"""The ledger as one HTML file: each claim with its verdict, each study with its figures and its command.

The page asks for nothing from outside: style and script are inlined, figures are inline SVG, and its
Content-Security-Policy forbids loading anything and running any script but its own. All text that comes from
studies is escaped. Without JavaScript the page is complete; the script adds sorting, filters and the copy buttons.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from html import escape
from importlib.resources import files
from math import isnan
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import joma
from joma.claims.contract import SCALES, VERDICTS, Claim, Finding, Verdict
from joma.host.files import write_text
from joma.report.kept import kept_of
from joma.report.markup import NOTHING, Anchors, duration, embed_svg, natural_width, value
from joma.runs import Run, RunError

if TYPE_CHECKING:
    from joma.claims.execute import Picture, Result


@dataclass(frozen=True)
class _Words:
    """How the page speaks of a verdict. The glyph makes sure that colour is never the only sign."""

    glyph: str
    one: str
    many: str
    means: str


_WORDS: dict[Verdict, _Words] = {
    "holds": _Words(
        "✓", "holds", "hold", "True as the source states it, by the test and the tolerance written in the study."
    ),
    "holds as corrected": _Words(
        "†",
        "holds as corrected",
        "hold as corrected",
        "The printed form fails its test; the corrected form, given with the claim, passes.",
    ),
    "only qualitative": _Words(
        "≈",
        "is only qualitative",
        "are only qualitative",
        "The direction is right; the size or the form that the source gives is not.",
    ),
    "not above its control": _Words(
        "≤",
        "is not above its control",
        "are not above their controls",
        "The interval over seeds leaves no room for an effect that would matter.",
    ),
    "undecided": _Words(
        "?",
        "is undecided",
        "are undecided",
        "The interval holds both no effect and one that would matter: more seeds or a larger run would tell.",
    ),
    "fails": _Words(
        "✗",
        "fails",
        "fail",
        "The opposite was measured, or no form of the claim passes its test.",
    ),
    "not run": _Words(
        "–",
        "was not run",
        "were not run",
        "Nothing was measured or learned: the reason and the command are given.",
    ),
}

_COMMAND = re.compile(r"([A-Z_]+=\S+ )?(joma|python) ")
_SCALE = {"quick": "quick (a laptop, seconds to minutes)", "paper": "paper (the source’s own sizes)"}
_COLUMNS = ("Source", "Claim", "Measured", "Control", "Verdict", "Paper scale", "Study")


@dataclass(frozen=True)
class _Section:
    """A study on the page: its result, the anchor of its section and those of its claims."""

    result: Result
    anchor: str
    claims: tuple[str, ...]


def write_report(
    results: Sequence[Result], out: Path, *, scale: str, made: datetime | None = None, command: str | None = None
) -> Path:
    """Write `out`/report.html, whole or not at all, and return its path. `made` is the date it carries, else now.

    `command` is the one that made the page, where that was not `joma verify`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_report([], Path(folder), scale="quick").name
    'report.html'
    """
    text = _page(results, scale, made or datetime.now().astimezone(), command)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "report.html"
    write_text(path, text)
    return path


def _page(results: Sequence[Result], scale: str, made: datetime, command: str | None) -> str:
    anchors = Anchors()
    sections = []
    for result in results:
        anchor = anchors.take("study", result.study.name)
        claims = tuple(anchors.take(anchor, finding.claim.name) for finding in result.findings)
        sections.append(_Section(result, anchor, claims))
    findings = [finding for result in results for finding in result.findings]
    counts = Counter(finding.verdict for finding in findings)
    whole, command = _whole(scale, command)
    style, script = _template("style.css"), _template("script.js")
    return Template(_template("page.html")).substitute(
        script_hash=b64encode(sha256(script.encode()).digest()).decode(),
        style=style,
        script=script,
        summary=escape(_summary(counts, sum(result.seconds for result in results))),
        bar=_bar(counts),
        facts=_facts(results, scale, made),
        contents="\n".join(_contents_entry(section) for section in sections),
        legend="\n".join(_legend_entry(verdict, counts[verdict]) for verdict in VERDICTS),
        studies="\n".join(f'<option value="{s.anchor}">{escape(s.result.study.title)}</option>' for s in sections),
        total=len(findings),
        head="\n".join(
            f'<th scope="col" role="columnheader" data-key="{c.lower().replace(" ", "-")}">{c}</th>' for c in _COLUMNS
        ),
        rows="\n".join(_rows(sections)),
        sections="\n".join(_study(section, anchors) for section in sections),
        whole=whole,
        command=_command(command),
        cite=f"joma {escape(joma.__version__)}, report of {made.day} {made:%B %Y}, scale: {escape(scale)}",
    )


def _template(name: str) -> str:
    return files("joma.report").joinpath("template", name).read_text(encoding="utf-8")


def _summary(counts: Counter[Verdict], seconds: float) -> str:
    """One sentence: how many claims, how long it took, what came of them."""
    judged = counts.total() - counts["not run"]
    parts = [
        f"{counts[verdict]} {words.one if counts[verdict] == 1 else words.many}"
        for verdict, words in _WORDS.items()
        if counts[verdict]
    ]
    if not judged:
        return f"No claim was judged: {parts[0]}." if parts else "No claim was judged."
    return f"{judged} {'claim' if judged == 1 else 'claims'} judged in {duration(seconds)}: {', '.join(parts)}."


def _bar(counts: Counter[Verdict]) -> str:
    parts = (f'<span class="{_css(v)}" style="flex-grow:{counts[v]}"></span>' for v in VERDICTS if counts[v])
    return "".join(parts)


def _facts(results: Sequence[Result], scale: str, made: datetime) -> str:
    """When, with what and where: the versions and machines are those the runs noted down."""
    versions, machines = [], []
    for result in results:
        noted = _noted(result)
        if noted:
            versions.append(", ".join(f"{name} {number[:12]}" for name, number in noted[0].items() if number))
            machines.append(", ".join(_part(name, what) for name, what in noted[1].items() if what is not None))
    rows = [
        ("Made", [f"{made.day} {made:%B %Y, %H:%M %Z}".strip()]),
        ("joma", [joma.__version__]),
        ("Scale", [_SCALE.get(scale, scale)]),
        ("Machine", list(dict.fromkeys(machines))),
        ("Versions", list(dict.fromkeys(versions))),
    ]
    shown = ((name, "".join(f"<dd>{escape(text)}</dd>" for text in texts)) for name, texts in rows if texts)
    return "\n".join(f"<div><dt>{name}</dt>{texts}</div>" for name, texts in shown)


def _part(name: str, what: object) -> str:
    return f"{what} cores" if name == "cores" else str(what)


def _noted(result: Result) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Versions and machine of a run; None where the record is gone: a page can be made without it."""
    if result.run is None:
        return None
    try:
        with Run.open(result.run) as run:
            return dict(run.versions), dict(run.machine)
    except RunError:
        return None


def _contents_entry(section: _Section) -> str:
    verdicts = Counter(finding.verdict for finding in section.result.findings)
    marks = "".join(f'<span class="{_css(v)}">{_WORDS[v].glyph}{verdicts[v]}</span>' for v in VERDICTS if verdicts[v])
    title = escape(section.result.study.title)
    return f'<li><a href="#{section.anchor}">{title}</a> <span class="marks" aria-hidden="true">{marks}</span></li>'


def _legend_entry(verdict: Verdict, claims: int) -> str:
    # The script enables the buttons: without it they are only a legend.
    button = (
        f'<button type="button" class="chip {_css(verdict)}" data-verdict="{verdict}" aria-pressed="false" disabled>'
    )
    chip = f'{button}{_mark(verdict)} <span class="count">{claims}</span></button>'
    return f"<li>{chip} <span>{_WORDS[verdict].means}</span></li>"


def _mark(verdict: Verdict) -> str:
    return f'<span class="glyph" aria-hidden="true">{_WORDS[verdict].glyph}</span> <span class="word">{verdict}</span>'


def _key(column: str) -> str:
    return column.lower().replace(" ", "")  # the script takes a hyphen for "descending"


def _css(verdict: Verdict) -> str:
    return "v-" + verdict.replace(" ", "-")


def _rows(sections: Iterable[_Section]) -> Iterable[str]:
    for order, section in enumerate(sections):
        for finding, anchor in zip(section.result.findings, section.claims, strict=True):
            yield _row(finding, anchor, section, order)


def _row(finding: Finding, anchor: str, section: _Section, order: int) -> str:
    """One claim in the table. `data-sort` is what a column sorts by where that is not its text."""
    claim, study, main = finding.claim, section.result.study, finding.main
    cells = [
        _cell("Claim", f'<p class="says">{escape(claim.says)}</p>{_correction(claim)}'),
        _cell("Measured", value(_measured(finding)[0]), _number(main.effect if main else finding.measured)),
        _cell("Control", value(finding.control), _number(main.control_effect if main else None)),
        _cell("Verdict", f'<span class="verdict {_css(finding.verdict)}">{_mark(finding.verdict)}</span>',
              VERDICTS.index(finding.verdict)),
        _cell("Paper scale", *_at_paper_scale(finding)),
        _cell("Study", f'<a href="#{section.anchor}">{escape(study.name)}</a>', order),
    ]  # fmt: skip
    work, kind, number = claim.source.rsplit(" ", 2)
    place = (
        f'{escape(work)} <span class="place">{escape(kind)} {escape(number)}</span>'  # never "Thm" without its number
    )
    source = f'<th scope="row" role="rowheader" data-label="Source"><a href="#{anchor}">{place}</a></th>'
    opening = f'<tr role="row" data-verdict="{finding.verdict}" data-study="{section.anchor}"'
    also = f'data-also="{escape(finding.id)} {escape(study.title)}"'  # found by the search, not shown
    return "\n".join([f"{opening} {also}>", source, *cells, "</tr>"])


def _at_paper_scale(finding: Finding) -> tuple[str, int | None]:
    """The verdict of the kept run at paper scale, and what a column sorts by."""
    beside = kept_of(finding.id, finding.claim)
    if beside is None:
        return NOTHING, None
    return f'<span class="verdict {_css(beside.verdict)}">{_mark(beside.verdict)}</span>', VERDICTS.index(
        beside.verdict
    )


def _correction(claim: Claim) -> str:
    return f' <p class="corrected"><i>Corrected:</i> {escape(claim.corrected)}</p>' if claim.corrected else ""


def _cell(label: str, content: str, sort: float | None = None) -> str:
    key = "" if sort is None else f' data-sort="{sort!r}"'.replace("inf", "Infinity")  # as the script spells it
    empty = ' class="empty"' if content == NOTHING else ""
    return f'<td role="cell" data-label="{label}"{key}{empty}>{content}</td>'


def _number(given: float | str | None) -> float | None:
    """What a column sorts by; what is no number comes last."""
    return None if given is None or isinstance(given, str) or isnan(given) else float(given)


def _measured(finding: Finding) -> tuple[float | str, str | None]:
    """What was measured; of a claim that was not run, the reason and, apart from it, the command.

    Advice that is no command, "a lower --rate", stays with the reason.
    """
    if finding.verdict != "not run":
        return finding.measured, None
    return (finding.reason, finding.command) if _COMMAND.match(finding.command) else (finding.measured, None)


def _study(section: _Section, anchors: Anchors) -> str:
    result, study = section.result, section.result.study
    claims = (_claim(f, anchor) for f, anchor in zip(result.findings, section.claims, strict=True))
    pictures = (_figure(picture, anchors.take("figure", study.name, picture.name)) for picture in result.pictures)
    elsewhere = {command for f in result.findings if (command := _measured(f)[1])}
    commands = sorted(elsewhere) if result.run is None and elsewhere else [result.command]
    parts = [
        f'<section class="study" id="{section.anchor}" aria-labelledby="{section.anchor}--title">',
        f'<p class="eyebrow">{escape(study.name)}</p>',
        f'<h2 id="{section.anchor}--title">{escape(study.title)}</h2>',
        f'<p class="about">{escape(study.about)}</p>' if study.about else "",
        f'<p class="verdict v-fails">This study broke: {escape(result.error)}</p>' if result.error else "",
        *claims,
        *pictures,
        f'<h3 class="small">{"Repeat it" if result.run else "Run it"}</h3>',
        *map(_command, commands),
        '<h3 class="small">Run what was not run</h3>' if result.run and elsewhere else "",
        *(map(_command, sorted(elsewhere)) if result.run else ()),
        _details(result),
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def _claim(finding: Finding, anchor: str) -> str:
    claim = finding.claim
    measured = _measured(finding)[0]
    given: list[tuple[str, float | str | None]]
    if finding.verdict == "not run":
        given = [("Reason", measured)]
    else:
        given = [("Expected", finding.expected), ("Measured", measured)]
        given += [("Control", finding.control), ("Matters", finding.claim.matters), ("Tolerance", finding.tolerance)]
        given += [("Rests on", ", ".join(claim.uses) or None)]
    beside = kept_of(finding.id, claim)
    if beside is not None:
        given += [("At paper scale", f"{beside.verdict} ({beside.machine}): {beside.measured}")]
    listed = "".join(f"<div><dt>{k}</dt><dd>{value(v)}</dd></div>" for k, v in given if v is not None)
    return (
        f'<article class="claim {_css(finding.verdict)}" id="{anchor}" aria-labelledby="{anchor}--title">\n'
        f'<h3 id="{anchor}--title">{escape(claim.source)} <span class="name">{escape(finding.id)}</span>'
        f' <span class="verdict {_css(finding.verdict)}">{_mark(finding.verdict)}</span></h3>\n'
        f'<p class="says">{escape(claim.says)}</p>{_correction(claim)}\n<dl>{listed}</dl>\n</article>'
    )


def _figure(picture: Picture, anchor: str) -> str:
    """Without a number: it would be taken for that of a figure in the paper, which studies and captions speak of."""
    width = natural_width(picture.svg)
    return (
        f'<figure id="{anchor}"><div class="picture" style="--drawn:{width}">{embed_svg(picture.svg, anchor)}</div>\n'
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
    )


def _whole(scale: str, command: str | None) -> tuple[str, str]:
    """How to get the whole page, as a sentence and its command: the one that made it, else `joma verify`."""
    if command:
        return "This page shows stored runs, judged and drawn again by:", command
    verify = f"joma verify --scale {scale}" if scale in SCALES else "joma verify"
    return "All studies at once, with a page like this one as the result:", verify


def _command(command: str) -> str:
    return f'<div class="command"><pre><code>{escape(command)}</code></pre></div>'


def _details(result: Result) -> str:
    given = {name: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for name, v in result.config.items()}
    if result.run:
        given |= {"time": duration(result.seconds), "record": result.run.name}
    given["study version"] = str(result.study.version)
    rows = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in given.items())
    return f"<details><summary>Configuration and record</summary><dl>{rows}</dl></details>"

"""The report as one HTML file: what was found, each study with its figures and its claims, and how to repeat it.

The page asks for nothing from outside: style and script are inlined, figures are inline SVG, and its
Content-Security-Policy forbids loading anything and running any script but its own. All text that comes from
studies is escaped. Without JavaScript the page is complete; the script adds the search and the copy buttons, and lets
studies sleep until they are opened (see `joma.report.claims.study`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import joma
from joma.claims.contract import SCALES
from joma.host.file_kinds import PAGE
from joma.host.files import make_folder, write_text
from joma.report import playground
from joma.report.claims import front
from joma.report.claims.cards import cards
from joma.report.claims.layout import entries, lay_out
from joma.report.claims.study import study_section
from joma.report.claims.verdicts import chips, count_claims, legend, verdict_table
from joma.report.figures import can_draw, no_figures
from joma.report.markup import Anchors, command, filled, head, prose, section
from joma.report.scans.sections import scan_sections
from joma.report.scans.shown import ShownScan, read_scan
from joma.runs import Run, RunError
from joma.view.module import charts
from joma.view.module import style as chart_style

if TYPE_CHECKING:
    from joma.claims.execute import Result

_PARTS = {
    "findings": "Findings", "studies": "Studies", "scans": "Scans", "claims": "Claims", "playground": "Playground",
    "repeat": "Repeat and cite",
}  # fmt: skip
"""Parts of the page by their anchor, as the contents call them."""
_IDS = ("top", "answers", "theme", "search", "shown", "clear", *map("playground-{}".format, playground.PANELS))
"""Further ids that the template has."""
_SCALE = {"quick": "quick (a laptop, seconds to minutes)", "paper": "paper (the source’s own sizes)"}


def write_report(
    results: Sequence[Result], out: Path, *, scale: str, scans: Sequence[Path] = (), made: datetime | None = None,
    command: str | None = None,
) -> Path:  # fmt: skip
    """Write `out`/report.html, whole or not at all, and return its path. `made` is the date it carries, else now.

    scans: runs of `joma scan`, as `joma.report.scan_runs` finds them. command: the one that made the page, where that
    was not `joma verify`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_report([], Path(folder), scale="quick").name
    'report.html'
    """
    shown = [read_scan(path, path.parents[1]) for path in scans]
    text = _page(results, scale, shown, made or datetime.now().astimezone(), command)
    make_folder(out)
    path = out / "report.html"
    write_text(path, text, PAGE)
    return path


def _page(results: Sequence[Result], scale: str, scans: Sequence[ShownScan], made: datetime, line: str | None) -> str:
    anchors = Anchors(*_PARTS, *_IDS)
    sections = lay_out(results, anchors)
    found, verdicts = cards(sections, anchors), [entry.finding.verdict for entry in entries(sections)]
    search = filled("search.html", counted=count_claims(verdicts), chips=chips(verdicts))
    drawn = can_draw() or any(result.pictures for result in results) or not any(result.run for result in results)
    parts = {
        "findings": section("findings", "What was measured", found and f'<div class="cards">\n{found}\n</div>'),
        "studies": section("studies", "All studies", verdict_table(sections, scale)),
        "scans": scan_sections(scans, anchors),
        "claims": section("claims", "All claims, study by study", search if len(sections) > 1 else ""),
    }
    shown = [*(name for name, html in parts.items() if html), "playground", "repeat"]
    again = "All studies at once, with a page like this one as the result:"
    verify = f"joma verify --scale {scale}" if scale in SCALES else "joma verify"
    return filled(
        "page.html",
        **parts,
        playground=section("playground", "Playground: move the theory’s own numbers", playground.folded_panels()),
        head=head(
            "joma: claims and verdicts", style=playground.style() + chart_style(), script=playground.script() + charts()
        ),
        contents="\n".join(f'<li><a href="#{name}">{_PARTS[name]}</a></li>' for name in shown),
        headline=" ".join(f"<span>{prose(line)}</span>" for line in front.headline(list(entries(sections)))),
        paper=prose(front.at_the_papers_sizes(list(entries(sections)))),
        summary=front.summary(sections, scale),
        troubles=front.troubles(sections) + ("" if drawn else no_figures("finished runs are only drawn, not run.")),
        answers=front.answers(sections),
        legend=legend(),
        sections="\n".join(study_section(one, anchors, folded=len(sections) > 1) for one in sections),
        again="This page shows stored runs, judged and drawn again by:" if line else again,
        command=command(line or verify),
        facts=_facts(results, scale, made),
        cite=f"joma {escape(joma.__version__)}, report of {made.day} {made:%B %Y}, scale: {escape(scale)}",
    )


def _facts(results: Sequence[Result], scale: str, made: datetime) -> str:
    """When, with what and where the page was made: versions and machines are those that the runs noted down."""
    versions, machines = [], []
    for path in (result.run for result in results if result.run):
        try:
            with Run.open(path) as run:
                noted, machine = run.versions, run.machine
        except RunError:  # the record is gone: a page can be made without it
            continue
        versions.append(", ".join(f"{name} {number[:12]}" for name, number in noted.items() if number))
        parts = [f"{what} cores" if name == "cores" else what for name, what in machine.items() if what is not None]
        machines.append(", ".join(map(str, parts)))
    facts = {
        "Made": [f"{made.day} {made:%B %Y, %H:%M %Z}".strip()],
        "joma": [joma.__version__],
        "Scale": [_SCALE.get(scale, scale)],
        "Machine": list(dict.fromkeys(machines)),
        "Versions": list(dict.fromkeys(versions)),
    }
    shown = ((name, "".join(f"<dd>{escape(text)}</dd>" for text in texts)) for name, texts in facts.items() if texts)
    return "\n".join(f"<div><dt>{name}</dt>{texts}</div>" for name, texts in shown)

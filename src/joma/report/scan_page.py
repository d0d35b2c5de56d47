"""The page that ends a scan, and the page of two scans on one axis: one HTML file each, as the report is."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from joma.claims.execute import Picture
from joma.claims.words import show
from joma.host.files import write_text
from joma.report.figures import figure
from joma.report.markup import NOTHING, Anchors, command
from joma.report.scan_section import NO_FIGURES, beside, measured, record, said, troubles
from joma.report.scan_tables import table
from joma.report.scan_words import layers_of, measure_title
from joma.report.scans import ShownScan
from joma.report.templates import filled, head
from joma.scan.result.curves import Scan, mean_of

_TAKEN = ("top", "theme", "main", "repeat", "beside", "left-out")


def write_scan_page(scan: ShownScan, path: Path) -> Path:
    """Write the page of one scan, whole or not at all."""
    assert scan.found is not None
    anchors = Anchors(*_TAKEN)
    sections = {measure: measured(scan, measure, anchors, "h2") for measure in scan.measures}
    about = beside(scan.found)
    parts = [*sections.values(), *([_section("beside", "What was read", about)] if about else [])]
    links = [(f"measure-{measure.replace('_', '-')}", measure_title(measure)) for measure in sections]
    links += [("beside", "What was read")] if about else []
    return _write(path, _name(scan.source), scan.source, said(scan.found), troubles(scan), parts, links, record(scan))


def write_comparison(scans: tuple[ShownScan, ShownScan], path: Path, *, made_by: str) -> Path:
    """Write the page of two scans: what both measured on one axis, then where they end. made_by: the command."""
    first, second = (scan.found for scan in scans)
    assert first is not None and second is not None  # noqa: PT018
    names = _names(first.source, second.source)
    anchors = Anchors(*_TAKEN)
    drawn = "".join(figure(one, anchors.take("figure", one.name)) for one in _drawn((first, second), names))
    notice = "" if find_spec("matplotlib") else NO_FIGURES
    both = _ends((first, second), names)
    parts = [_section("main", "On one axis", drawn + both)]
    links = [("main", "On one axis")]
    for scan, name in zip(scans, names, strict=True):
        assert scan.found is not None
        anchor = anchors.take("scan", name)
        links.append((anchor, name))
        told = f"<p>{escape(scan.source)}</p><p>{escape(said(scan.found))}</p>"
        parts.append(_section(anchor, name, told + troubles_alone(scan) + beside(scan.found) + record(scan)))
    only = _only((first, second), names)
    summary = f"Compared: {first.source} and {second.source}."
    return _write(
        path, " and ".join(names), " and ".join(names), summary, notice + only, parts, links, command(made_by)
    )


def troubles_alone(scan: ShownScan) -> str:
    """What was left out; that there are no figures is said once, at the top."""
    return troubles(scan).replace(NO_FIGURES, "")


def _section(anchor: str, title: str, content: str) -> str:
    head = f'<section id="{anchor}" aria-labelledby="{anchor}--title"><h2 id="{anchor}--title">{escape(title)}</h2>'
    return f"{head}{content}</section>"


def _write(
    path: Path,
    title: str,
    headline: str,
    summary: str,
    notices: str,
    parts: Sequence[str],
    links: Sequence[tuple[str, str]],
    footer: str,
) -> Path:
    text = filled(
        "scan.html",
        head=head(f"joma scan: {title}"),
        contents="\n".join(f'<li><a href="#{anchor}">{escape(name)}</a></li>' for anchor, name in links),
        headline=escape(headline),
        summary=escape(summary),
        notices=notices,
        main="\n".join(parts),
        footer=footer,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return path


def _drawn(scans: tuple[Scan, Scan], names: tuple[str, str]) -> tuple[Picture, ...]:
    if not find_spec("matplotlib"):
        return ()
    from joma.report.scan_figure import compared_pictures

    return compared_pictures(scans, names)


def _ends(scans: tuple[Scan, Scan], names: tuple[str, str]) -> str:
    """The mean over layers of the last checkpoints, side by side."""
    rows = []
    for name in [name for name in scans[0].curves if name in scans[1].curves]:
        last = [_last(scan, name) for scan in scans]
        cells = [show(one) if np.isfinite(one) else NOTHING for one in [*last, last[1] - last[0]]]
        rows.append([escape(name), *cells])
    head = [
        "mean over layers",
        *(f"{n}, step {s.steps[-1]:,}" for n, s in zip(names, scans, strict=True)),
        f"{names[1]} − {names[0]}",
    ]
    return table("Where they end", head, rows) if rows else ""


def _last(scan: Scan, name: str) -> float:
    return float(mean_of(layers_of(scan.curves[name])[1], axis=1)[-1])


def _only(scans: tuple[Scan, Scan], names: tuple[str, str]) -> str:
    """Curves that one of them lacks, said once."""
    lines = []
    for scan, other, name in ((*scans, names[0]), (scans[1], scans[0], names[1])):
        alone = [curve for curve in scan.curves if curve not in other.curves]
        if alone:
            lines.append(f"<p>Only {escape(name)} has {escape(', '.join(alone))}.</p>")
    nothing = not any(name in scans[1].curves for name in scans[0].curves)
    lines += ['<p class="notice">The two have no curve in common.</p>'] if nothing else []
    return "".join(lines)


def _name(source: str) -> str:
    return Path(source).name or source


def _names(first: str, second: str) -> tuple[str, str]:
    """The shortest ends of two sources that tell them apart."""
    one, other = Path(first).parts, Path(second).parts
    for count in range(1, max(len(one), len(other)) + 1):
        names = ("/".join(one[-count:]), "/".join(other[-count:]))
        if names[0] != names[1]:
            return names
    return f"{_name(first)} (1)", f"{_name(second)} (2)"

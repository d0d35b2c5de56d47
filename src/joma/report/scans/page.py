"""The page that ends a scan, and the page of two scans on one axis: one HTML file each, as the report is."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from joma.host.file_kinds import PAGE
from joma.host.files import make_folder, write_text
from joma.host.words import counted
from joma.report.figures import can_draw, figure
from joma.report.markup import Anchors, command, filled, head, prose, section
from joma.report.scans import atlas, sections
from joma.report.scans.curves import layers_of, measure_title
from joma.report.scans.shown import ShownScan
from joma.scan.atlas import LEVEL, Measured
from joma.scan.result.curves import Scan, mean_of

_TAKEN = ("top", "theme", "main", "repeat", "read", "left-out")

_AGAIN = """\
The same command measures what is new and nothing twice. <code>joma export RUN --to csv</code> gives all numbers as
a table."""


def write_scan_page(scan: ShownScan, path: Path) -> Path:
    """Write the page of one scan, whole or not at all."""
    assert scan.found is not None
    anchors = Anchors(*_TAKEN)
    parts = [sections.measure_section(scan, measure, anchors, "h2") for measure in scan.measures]
    links = {f"measure-{measure.replace('_', '-')}": measure_title(measure) for measure in scan.measures}
    if about := sections.what_was_read(scan.found):
        parts.append(section("read", "What was read", about))
        links["read"] = "What was read"
    title = Path(scan.source).name or scan.source
    above, below = sections.notices(scan), sections.record(scan)
    return _write(path, title, links, parts, scan.source, sections.summary(scan.found), above, below)


def write_comparison(scans: tuple[ShownScan, ShownScan], path: Path, *, made_by: str) -> Path:
    """Write the page of two scans: what both measured on one axis, then where they end. made_by: the command."""
    first, second = (scan.found for scan in scans)
    assert first is not None and second is not None  # noqa: PT018
    names, anchors, pictures = _names(first.source, second.source), Anchors(*_TAKEN), ""
    if can_draw():
        from joma.report.scans.figures import compared_pictures

        drawn = compared_pictures((first, second), names)
        pictures = "".join(figure(one, anchors.take("figure", one.name)) for one in drawn)
    parts = [section("main", "On one axis", pictures + _ends((first, second), names))]
    links = {"main": "On one axis"} if parts[0] else {}
    for scan, found, name in zip(scans, (first, second), names, strict=True):
        anchor = anchors.take("scan", name)
        links[anchor] = name
        about = f"<p>{escape(scan.source)}</p><p>{prose(sections.summary(found))}</p>"
        once = sections.notices(scan).replace(sections.NO_FIGURES, "")  # that there are no figures stands at the top
        parts.append(section(anchor, name, about + once + sections.what_was_read(found) + sections.record(scan)))
    above = ("" if can_draw() else sections.NO_FIGURES) + _only((first, second), names)
    both, compared = " and ".join(names), f"Compared: {first.source} and {second.source}."
    return _write(path, both, links, parts, both, compared, above, command(made_by))


def write_atlas(measured: Sequence[Measured], path: Path, *, made_by: str) -> Path:
    """Write the page of an atlas: a section per series, with intervals over its runs. made_by: the command."""
    anchors = Anchors(*_TAKEN)
    found = {one.series.name: one for one in measured if one.scans}
    links = {anchors.take("series", name): name for name in found}
    parts = [section(anchor, name, atlas.contents(found[name], anchors)) for anchor, name in links.items()]
    runs, series = (counted(count, what) for count, what in
                    ((sum(len(one.scans) for one in measured), "run"), (len(found), "series")))  # fmt: skip
    summary = f"{runs} of {series}, with {100 * LEVEL:g} % intervals over runs. An atlas measures and does not judge."
    above = ("" if can_draw() else sections.NO_FIGURES) + atlas.missing(measured)
    return _write(path, "atlas", links, parts, path.stem, summary, above, command(made_by))


def _write(
    path: Path, title: str, links: Mapping[str, str], parts: Sequence[str], headline: str, summary: str, above: str,
    footer: str
) -> Path:  # fmt: skip
    contents = "\n".join(f'<li><a href="#{anchor}">{escape(name)}</a></li>' for anchor, name in links.items())
    given = {"headline": prose(headline), "summary": prose(summary), "notices": above, "footer": footer}
    given |= {"made_with": "joma scan", "again": _AGAIN}
    text = filled("scan.html", head=head(f"joma scan: {title}"), contents=contents, main="\n".join(parts), **given)
    make_folder(path.parent)
    write_text(path, text, PAGE)
    return path


def _ends(scans: tuple[Scan, Scan], names: tuple[str, str]) -> str:
    rows = []
    for name in [name for name in scans[0].curves if name in scans[1].curves]:
        one, other = (float(mean_of(layers_of(scan.curves[name])[1], axis=1)[-1]) for scan in scans)
        rows.append([escape(name), *map(sections.shown, (one, other, other - one))])
    steps = (f"{name}, step {scan.steps[-1]:,}" for name, scan in zip(names, scans, strict=True))
    top = ["mean over layers", *steps, f"{names[1]} − {names[0]}"]
    return sections.table("Where they end", top, rows) if rows else ""


def _only(scans: tuple[Scan, Scan], names: tuple[str, str]) -> str:
    lines = []
    for scan, other, name in ((*scans, names[0]), (scans[1], scans[0], names[1])):
        if alone := [curve for curve in scan.curves if curve not in other.curves]:
            lines.append(f"<p>Only {escape(name)} has {escape(', '.join(alone))}.</p>")
    if not set(scans[0].curves) & set(scans[1].curves):
        lines.append('<p class="notice">The two have no curve in common.</p>')
    return "".join(lines)


def _names(first: str, second: str) -> tuple[str, str]:
    one, other = Path(first).parts, Path(second).parts
    for count in range(1, max(len(one), len(other)) + 1):
        names = ("/".join(one[-count:]), "/".join(other[-count:]))
        if names[0] != names[1]:
            return names
    return f"{Path(first).name or first} (1)", f"{Path(second).name or second} (2)"

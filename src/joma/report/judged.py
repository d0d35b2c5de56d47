"""The page of `joma judge`: every claim with its verdict, a dot for each seed, the intervals, and what would matter."""

from collections.abc import Mapping, Sequence
from html import escape
from math import isfinite
from pathlib import Path

from joma.claims.evidence import Effect
from joma.claims.judging import Arms, Judged
from joma.claims.sentences import show
from joma.host.file_kinds import PAGE
from joma.host.files import write_text
from joma.report.claims.verdicts import css, legend, mark
from joma.report.markup import Anchors, command, filled, head, prose, rows, section

_WIDTH, _LEFT, _ROW, _LETTERS = 640.0, 130.0, 34.0, 12
"""Of a picture: its width, where numbers begin, the height of one arm, and of letters."""


def write_judged(judged: Sequence[Judged], path: Path, *, source: str, made_by: str) -> Path:
    """Write the page, whole or not at all. source: what was read. made_by: the command, which repeats it."""
    anchors = Anchors("top", "theme", "content", "repeat")
    at = {one.finding.id: anchors.take("claim", one.wanted.name) for one in judged}
    links = "\n".join(f'<li><a href="#{at[one.finding.id]}">{escape(one.wanted.name)}</a></li>' for one in judged)
    text = filled(
        "scan.html",
        made_with="joma judge", head=head(f"joma: {source}"), contents=links if len(judged) < 8 else "",
        headline=prose(source), summary=prose("Each dot is a seed, each bar the interval of a mean."), notices=legend(),
        main="\n".join(section(at[one.finding.id], one.finding.claim.says, _claim(one)) for one in judged),
        again="The same command reads the table and judges it again.", footer=command(made_by),
    )  # fmt: skip
    write_text(path, text, PAGE)
    return path


def _claim(one: Judged) -> str:
    finding, claim = one.finding, one.finding.claim
    effects = finding.printed.effects if finding.printed else {}
    pictures = "".join(_figure(case, arms, effects[case], one) for case, arms in one.cases.items())
    given = {"Measured": finding.measured, "Control": finding.control, "Expected": finding.expected,
             "Matters": show(claim.matters or 0.0, claim.unit), "p": None if finding.p is None else show(finding.p),
             "q": None if finding.q is None else show(finding.q)}  # fmt: skip
    numbers = rows({name: escape(str(words)) for name, words in given.items() if words is not None})
    remarks = "".join(f' <span class="remark">{escape(word)}</span>' for word in finding.remarks)
    return (f'<div class="claim {css(finding.verdict)}"><p>{mark(finding.verdict)}{remarks}</p>{pictures}'
            f"<dl>{numbers}</dl></div>")  # fmt: skip


def _figure(case: str, arms: Arms, effect: Effect, one: Judged) -> str:
    """Both arms on one axis: dots, means with intervals, and the line from which on the difference would matter."""
    sign = -1.0 if one.wanted.lower else 1.0
    threshold = sign * (effect.control_effect + effect.matters)
    drawn = {one.wanted.effect: (arms.effect, sign * effect.effect, effect.interval),
             one.wanted.control: (arms.control, sign * effect.control_effect, effect.control_interval)}  # fmt: skip
    ends = {arm: tuple(sorted(sign * end for end in interval)) for arm, (_, _, interval) in drawn.items()}
    known = [number for seeds, mean, _ in drawn.values() for number in (*seeds.values(), mean)]
    known = [number for number in (*known, threshold, *sum(ends.values(), ())) if isfinite(number)]
    low, high = min(known), max(known)
    room = 0.06 * (high - low) or 1.0

    def x(number: float) -> float:
        return _LEFT + (number - low + room) / (high - low + 2 * room) * (_WIDTH - _LEFT - 10)

    parts, height = [], _ROW * len(drawn) + 34
    for row, (arm, (seeds, mean, _)) in enumerate(drawn.items()):
        parts += _arm(arm, seeds, mean, ends[arm], _ROW * (row + 0.5) + 6, x)
    line = f"{x(threshold):.1f}"
    parts.append(f'<line x1="{line}" x2="{line}" y1="4" y2="{height - 24}" stroke="currentColor" '
                 f'stroke-dasharray="4 3"/><text x="{line}" y="{height - 10}" text-anchor="middle">'
                 f"matters from {show(threshold, one.wanted.unit)}</text>")  # fmt: skip
    words = (
        f"{arm}: {f'{len(seeds)} seeds, mean ' * bool(seeds)}{show(mean, one.wanted.unit)}"
        for arm, (seeds, mean, _) in drawn.items()
    )
    said = escape(f"{f'{case}. ' * bool(case)}{'; '.join(words)}; what matters begins at {show(threshold)}")
    style = f'style="font:{_LETTERS}px sans-serif;fill:currentColor;max-width:{_WIDTH:g}px"'
    caption = f"<figcaption>{escape(case)}</figcaption>" if case else ""
    return (f'<figure><div class="picture"><svg viewBox="0 0 {_WIDTH:g} {height:g}" role="img" aria-label="{said}" '
            f"{style}>{''.join(parts)}</svg></div>{caption}</figure>")  # fmt: skip


def _arm(name: str, seeds: Mapping[str, float], mean: float, ends: tuple[float, ...], y: float, x: object) -> list[str]:
    """One row: its name, its interval as a bar with the mean, and above it a dot for each seed."""
    assert callable(x)
    parts = [f'<text x="0" y="{y + 4:.1f}">{escape(name[:18])}</text>']
    if isfinite(mean) and all(map(isfinite, ends)):
        parts.append(f'<line x1="{x(ends[0]):.1f}" x2="{x(ends[1]):.1f}" y1="{y + 6:.1f}" y2="{y + 6:.1f}" '
                     f'stroke="var(--verdict)" stroke-width="3"/>')  # fmt: skip
    if isfinite(mean):
        parts.append(f'<line x1="{x(mean):.1f}" x2="{x(mean):.1f}" y1="{y:.1f}" y2="{y + 12:.1f}" '
                     f'stroke="var(--verdict)" stroke-width="2"/>')  # fmt: skip
    dots = (f'<circle cx="{x(number):.1f}" cy="{y - 6:.1f}" r="3.5" fill-opacity="0.55"><title>seed {escape(seed)}: '
            f"{show(number)}</title></circle>" for seed, number in seeds.items() if isfinite(number))  # fmt: skip
    return [*parts, *dots]

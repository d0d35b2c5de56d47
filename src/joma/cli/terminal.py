"""What studies show on a terminal: progress, one line per study, what needs attention, the last word.

All text goes through rich as text, never as markup: a bracket is a bracket. Rich obeys COLUMNS and NO_COLOR.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from joma.claims.contract import VERDICTS, Finding, Verdict, tally
from joma.claims.execute import Result
from joma.host.printing import clean, say
from joma.host.progress import ProgressLines
from joma.report.kept import kept_of
from joma.report.markup import duration
from joma.studies import names

_COLOUR: dict[Verdict, str] = {
    "holds": "green",
    "holds as corrected": "cyan",
    "only qualitative": "yellow",
    "not above its control": "magenta",
    "undecided": "blue",
    "fails": "red",
    "not run": "bright_black",
}
ATTENTION: tuple[Verdict, ...] = ("fails", "undecided", "not run")
"""What the last lines show where nobody asks for more."""
_PLAIN_WIDTH = 100  # where the output is a file or a pipe, no window sets the width
_PLAIN_EVERY = 10.0  # seconds between two lines of progress there
_WIDE = 100  # columns from which a claim and its numbers fit on one line


class Screen:
    """Progress while studies run, then what came out. Plain lines where nobody watches a terminal."""

    def __init__(self, studies: Sequence[str], *, to_stderr: bool = False) -> None:
        """studies: their names. to_stderr: standard output is for JSON."""
        self._to = sys.stderr if to_stderr else sys.stdout
        self._watched = self._to.isatty()  # rich takes FORCE_COLOR for a terminal: colours yes, but no moving bars
        width = None if self._watched or os.environ.get("COLUMNS", "").isdigit() else _PLAIN_WIDTH
        self._console = Console(stderr=to_stderr, highlight=False, width=width)
        self._total, self._done, self._began = len(studies), 0, monotonic()
        self._width = max(map(len, studies), default=0)
        self._bars: dict[str, TaskID] = {}
        self._lines: dict[str, ProgressLines] = {}
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            TimeElapsedColumn(),
            TextColumn("{task.fields[doing]}", markup=False, style="bright_black"),
            console=self._console,
            transient=True,
            disable=not self._watched,
        )

    def __enter__(self) -> Screen:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def said(self, name: str, share: float, doing: str) -> None:
        """A study has come so far, and does this now."""
        if not self._watched:
            lines = self._lines.setdefault(name, ProgressLines(name, self._log, every=_PLAIN_EVERY))
            lines(share, doing)
            return
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(f"{name:<{self._width}}", total=1.0, doing="")
        self._progress.update(self._bars[name], completed=share, doing=clean(doing))

    def finished(self, result: Result) -> None:
        """One line on a study that is done."""
        self._done += 1
        name = result.study.name
        if name in self._bars:
            self._progress.remove_task(self._bars.pop(name))
        time = "" if result.error else "cached" if result.cached else f"{result.seconds:.1f} s"
        digits = len(str(self._total))
        head = f"{self._done:>{digits}}/{self._total}  {name:<{self._width}}  {time:>8}  "
        self._hanging(head, _outcome(result), indent=len(head))

    def attention(self, results: Sequence[Result], shown: Sequence[Verdict]) -> None:
        """The findings of these verdicts, one after another, with the numbers that decide."""
        for verdict in (each for each in reversed(VERDICTS) if each in shown):
            found = [finding for result in results for finding in result.findings if finding.verdict == verdict]
            if found:
                self._console.print()
                self._console.print(Text(tally(found)[0][1], style=f"bold {_COLOUR[verdict]}"))
                self._findings(found)

    def all(self, results: Sequence[Result], shown: Sequence[Verdict]) -> None:
        """Every finding of these verdicts, by study: claim, verdict, numbers."""
        for result in results:
            found = [finding for finding in result.findings if finding.verdict in shown]
            if found:
                self._console.print()
                self._console.print(Text(f"{result.study.name}: {result.study.title}", style="bold"))
            for finding in found:
                self._console.print(Text(f"  {finding.id}: ").append(finding.verdict, _COLOUR[finding.verdict]))
                says = f"{finding.claim.says} ({finding.claim.source})"
                for said in (says, finding.brief, _paper(finding)):
                    self._hanging(" " * 6, Text(clean(said)), indent=6)

    def summary(self, results: Sequence[Result], report: Path | None) -> None:
        """The last lines: how many claims came out how, and where to look; without a report, that there is none."""
        self._console.print()
        findings = [finding for result in results for finding in result.findings]
        if report:
            self._hanging("", _sentence(findings, monotonic() - self._began), indent=0)
        broken = [result.study.name for result in results if result.error]
        if broken:
            self._console.print(Text(f"broken: {', '.join(broken)}", style="bold red"))
        if report and not any(result.pictures for result in results) and any(result.run for result in results):
            self._console.print(Text('the report has no figures: pip install "joma[viz]" brings matplotlib'))
        self._where(results, report)

    def _where(self, results: Sequence[Result], report: Path | None) -> None:
        """Not through rich: a path must stay on one line to be copied."""
        if report is None:
            print("nothing could be judged, so no report was written", file=self._to)
            return
        shown = {result.study.name for result in results}
        stored = {path.name.rpartition("-")[0] for path in (report.parent / "runs").glob("*.sqlite")}
        if stored & set(names()) - shown:
            page = f"joma report {shlex.quote(str(report.parent))}"
            say(f"runs of other studies are there too; one page of all: {page}", self._to)
        say(f"report: {report}", self._to)

    def _findings(self, findings: Sequence[Finding]) -> None:
        """On one line each where the window is wide, else the numbers below."""
        width = max(len(finding.id) for finding in findings) + 4 if self._console.width >= _WIDE else 6
        for reason, several in _by_reason(findings):
            for finding in several:
                self._hanging(
                    f"  {finding.id}".ljust(width), Text("" if reason else clean(_numbers(finding))), indent=width
                )
            self._hanging(" " * 6, Text(clean(reason)), indent=6)

    def _hanging(self, head: str, body: Text, *, indent: int) -> None:
        """A head, and beside it, or below where it is too long, what is said: in lines that fit, all indented alike."""
        lines = [Text(head)] if len(head) > indent else []
        room = max(self._console.width - indent, 20)
        for line in body.wrap(self._console, room) if body.plain else []:
            line.rstrip()
            lines.append(Text(" " * indent if lines else head).append_text(line))
        for line in lines or ([Text(head.rstrip())] if head.strip() else []):
            self._console.print(line, soft_wrap=True)

    def _log(self, line: str) -> None:
        """To standard error: how many such lines there are depends on the speed of the machine."""
        Console(stderr=True, highlight=False, width=self._console.width).print(
            Text(f"  {clean(line)}"), overflow="ellipsis", no_wrap=True
        )


@contextmanager
def pointing_to_finished(results: Sequence[Result], studies: int, out: Path) -> Iterator[None]:
    """Where a command is interrupted, say how to see `results`, those of its studies that are done."""
    try:
        yield
    except KeyboardInterrupt:
        finished = sum(result.run is not None for result in results)
        if finished:
            page = f"joma report {shlex.quote(str(out))}"
            say(f"joma: {finished} of {studies} studies finished; a page that shows them: {page}", sys.stderr)
        raise


def _outcome(result: Result) -> Text:
    return Text(f"broke: {clean(result.error)}", style="bold red") if result.error else _counts(result.findings)


def _counts(findings: Sequence[Finding]) -> Text:
    return Text(", ").join(Text(words, style=_COLOUR[verdict]) for verdict, words in tally(findings))


def _sentence(findings: Sequence[Finding], seconds: float) -> Text:
    """219 claims in 2 min 12 s: 213 judged, 6 not run. What came of them."""
    claims, skipped = len(findings), sum(finding.verdict == "not run" for finding in findings)
    head = f"{claims} {'claim' if claims == 1 else 'claims'} in {duration(seconds)}: "
    if skipped < claims:
        head += f"{claims - skipped} judged, {skipped} not run" if skipped else "all judged"
    else:
        head += "none was judged"
    judged = [finding for finding in findings if finding.verdict != "not run"]
    return Text(head + (". " if judged else "")).append_text(_counts(judged)).append(".")


def _paper(finding: Finding) -> str:
    """What a kept run at paper scale said of the same claim, where it said something else."""
    beside = kept_of(finding.id, finding.claim)
    return f"At paper scale: {beside.verdict}" if beside and beside.verdict != finding.verdict else ""


def _numbers(finding: Finding) -> str:
    return ". ".join(filter(None, (finding.brief, _paper(finding))))


def _by_reason(findings: Sequence[Finding]) -> list[tuple[str, list[Finding]]]:
    """Findings that were not run for the same reason stand together, above it."""
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        reason = str(finding.measured) if finding.verdict == "not run" else ""
        groups.setdefault(reason, []).append(finding)
    return list(groups.items())

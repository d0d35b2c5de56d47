"""What studies show on a terminal: progress, one line per study, what needs attention, the last word.

All text goes through rich as text, never as markup: a bracket is a bracket. Rich obeys NO_COLOR. In a pipe or a file
every line stays whole.
"""

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from joma.claims.contract import VERDICTS, Finding, Verdict, tally
from joma.claims.execute import Result
from joma.claims.rules import UNJUDGED
from joma.cli.time_left import TimeLeft
from joma.cli.wrapping import columns
from joma.host.extras import install_command
from joma.host.printing import clean, say
from joma.host.progress import ProgressLines
from joma.report.claims.headlines import outcomes
from joma.report.claims.kept import KeptFinding, kept_of
from joma.report.claims.verdicts import TEXT
from joma.report.markup import duration
from joma.studies import names

_COLOUR: dict[Verdict, str] = {
    "holds": "green", "holds as corrected": "cyan", "only qualitative": "yellow", "mixed": "yellow",
    "not above its control": "magenta", "undecided": "blue", "fails": "red", "at paper scale": "bright_black",
    "not run": "bright_black",
}  # fmt: skip
ATTENTION: tuple[Verdict, ...] = ("fails",)
"""What is listed where nobody asks for more; the rest is counted."""
_FIRST: tuple[Verdict, ...] = ("fails", "undecided", "not run")
_FIRST += tuple(one for one in reversed(VERDICTS) if one not in _FIRST)
"""Which claims are listed first, where there is no room for all."""
_DECIDED: tuple[Verdict, ...] = tuple(one for one in VERDICTS if one not in ("undecided", *UNJUDGED))
_ROOM = 20  # lines for claims where nobody asks for more: with the headlines and the last lines at most 40
_PLAIN_WIDTH = 100  # of a line of progress where the output is a file or a pipe
_PLAIN_EVERY = 10.0  # seconds of silence there before a line of progress
_PLAIN_MOST = 60.0  # and in a long run
_SOON = 10.0  # seconds until the time that is left is said
_WIDE = 100  # columns from which a claim and its numbers fit on one line
_Block = tuple[Sequence[Finding], Sequence[Text]]  # findings that stand together, and their lines


class Screen:
    """Progress while studies run, then what came out. Plain lines where nobody watches a terminal."""

    def __init__(self, studies: Sequence[str], *, to_stderr: bool = False) -> None:
        """studies: their names. to_stderr: standard output is for JSON."""
        self._to = sys.stderr if to_stderr else sys.stdout
        self._watched = self._to.isatty()  # rich takes FORCE_COLOR for a terminal: colours yes, but no moving bars
        self._columns = columns(self._to)
        self._console = Console(stderr=to_stderr, highlight=False, width=self._columns or _PLAIN_WIDTH)
        self.left: TimeLeft | None = None
        self.studies = list(studies)
        self._total, self._done = len(studies), 0
        self._began = self._spoke = monotonic()
        self._width = max(map(len, studies), default=0)
        self._bars: dict[str, TaskID] = {}
        self._whole: list[TaskID] = []  # the bar of all studies, where it is known how long they take
        self._lines: dict[str, ProgressLines] = {}
        self._progress = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(bar_width=16), TimeElapsedColumn(),
            TextColumn("{task.fields[doing]}", markup=False, style="bright_black"), console=self._console,
            transient=True, disable=not self._watched,
        )  # fmt: skip

    def begin(self, studies: Sequence[str]) -> None:
        self.left, self._total, self._done = None, len(studies), 0
        for task in self._whole:
            self._progress.remove_task(task)
        self._whole = []

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def progress(self, name: str, share: float, doing: str) -> None:
        if self.left:
            self.left.heard(name, share, monotonic() - self._began)
        if not self._watched:
            lines = self._lines.setdefault(name, ProgressLines(name, self._log, every=0.0))
            # Seconds of silence before a line: more, the longer it takes, so that a log stays short.
            patience = min(max(_PLAIN_EVERY, (monotonic() - self._began) / 10), max(_PLAIN_EVERY, _PLAIN_MOST))
            if monotonic() - self._spoke >= patience:
                lines(share, "; ".join(filter(None, (doing, self._time_left()))))
            return
        if self.left and not self._whole:
            self._whole = [self._progress.add_task("", total=float(self._total), doing="")]
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(f"{name:<{self._width}}", total=1.0, doing="")
        self._progress.update(self._bars[name], completed=share, doing=clean(doing))
        self._tell_whole()

    def _time_left(self) -> str:
        """In words; empty in the first seconds, when nothing is known of this machine."""
        spent = monotonic() - self._began
        return f"about {duration(self.left.seconds(spent))} left" if self.left and spent >= _SOON else ""

    def _tell_whole(self) -> None:
        for task in self._whole:
            head = f"{self._done} of {self._total}".ljust(self._width)
            self._progress.update(task, description=head, completed=self._done, doing=self._time_left())

    def finished(self, result: Result) -> None:
        self._done += 1
        name = result.study.name
        if self.left:
            self.left.finished(name, monotonic() - self._began, cached=result.cached)
            self._tell_whole()
        if name in self._bars:
            self._progress.remove_task(self._bars.pop(name))
        time = "" if result.error else "cached" if result.cached else f"{result.seconds:.1f} s"
        digits = len(str(self._total))
        head = f"{self._done:>{digits}}/{self._total}  {name:<{self._width}}  {time:>8}  "
        broken = Text(f"broke: {clean(result.error)}", style="bold red") if result.error else None
        self._hanging(head, broken or _counts(result.findings), indent=len(head))
        self._spoke = monotonic()

    def headlines(self, results: Sequence[Result]) -> None:
        """What this run found of the headlines of the README, one line each: those that it decides come first."""
        found = outcomes(finding for result in results for finding in result.findings)
        if len(results) < 2 or not found:  # of one study all claims are listed
            return
        kept = {one.headline.claim: one.verdict for one in outcomes(_kept(results))}
        self._line()
        self._line(Text("What this run found", style="bold"))
        for one in sorted(found, key=lambda one: one.verdict not in _DECIDED):
            head = f"  {TEXT[one.verdict].glyph} "
            paper = kept.get(one.headline.claim, "not run")
            more = "" if paper in (*UNJUDGED, one.verdict) else f" (at paper scale: {paper})"
            line = Text(clean(one.sentence), style="" if one.verdict in _DECIDED else _COLOUR[one.verdict])
            self._hanging(head, line.append(more, "bright_black"), indent=len(head))

    def attention(self, results: Sequence[Result], shown: Sequence[Verdict], *, room: float = _ROOM) -> list[Finding]:
        """The findings of these verdicts, with the numbers that decide; returns those that are not listed."""
        findings = [finding for result in results for finding in result.findings]
        groups = [[one for one in findings if one.verdict == verdict] for verdict in _FIRST if verdict in shown]
        unlisted: list[Finding] = []
        for at, found in enumerate(filter(None, groups)):
            room -= 2  # a blank line and the heading
            blocks = self._blocks(found)
            if at and sum(len(lines) for _, lines in blocks) > room:
                blocks = []
            blocks, room = _that_fit(blocks, room)
            listed = {one.id for several, _ in blocks for one in several}
            unlisted += (left := [one for one in found if one.id not in listed])
            self._line()
            self._line(_heading(found, left))
            for line in (line for _, lines in blocks for line in lines):
                self._line(line)
        return unlisted

    def all(self, results: Sequence[Result], shown: Sequence[Verdict]) -> None:
        """Every finding of these verdicts, by study: claim, verdict, numbers."""
        for result in results:
            found = [finding for finding in result.findings if finding.verdict in shown]
            if found:
                self._line()
                self._line(Text(f"{result.study.name}: {result.study.title}", style="bold"))
            for finding in found:
                self._line(Text(f"  {finding.id}: ").append(finding.full_verdict, _COLOUR[finding.verdict]))
                claim = f"{finding.claim.says} ({finding.claim.source})"
                for line in (claim, finding.brief, _paper(finding)):
                    self._hanging(" " * 6, Text(clean(line)), indent=6)

    def summary(self, results: Sequence[Result], report: Path | None, *, more: Sequence[str] = ()) -> None:
        """The last lines: how many claims came out how, and where to look; without a report, that there is none."""
        self._line()
        findings = [finding for result in results for finding in result.findings]
        if report:
            self._hanging("", _sentence(findings, monotonic() - self._began), indent=0)
        for line in more:
            say(line, self._to)
        if broken := [result.study.name for result in results if result.error]:
            self._line(Text(f"broken: {', '.join(broken)}", style="bold red"))
        if report and not any(result.pictures for result in results) and any(result.run for result in results):
            self._line(Text(f"the report has no figures: {install_command('viz')} brings matplotlib"))
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
            say(f"runs of other studies are in this folder, too; a page of all: {page}", self._to)
        say(f"report: {report}", self._to)

    def _blocks(self, findings: Sequence[Finding]) -> list[_Block]:
        """Findings and their lines: on one line each where the window is wide, else the numbers below."""
        wide = self._columns is None or self._columns >= _WIDE
        width = max(len(finding.id) for finding in findings) + 4 if wide else 6
        blocks: list[_Block] = []
        groups: dict[str, list[Finding]] = {}  # what was not run for the same reason stands together, above it
        for finding in findings:
            groups.setdefault(str(finding.measured) if finding.verdict in UNJUDGED else "", []).append(finding)
        for reason, several in groups.items():
            heads = [f"  {finding.id}".ljust(width) for finding in several]
            if reason:
                lines = [Text(head.rstrip()) for head in heads] + self._wrapped(" " * 6, Text(clean(reason)), 6)
                blocks.append((several, lines))
                continue
            for head, finding in zip(heads, several, strict=True):
                numbers = ". ".join(filter(None, (finding.brief, _paper(finding))))
                blocks.append(([finding], self._wrapped(head, Text(clean(numbers)), width)))
        return blocks

    def _hanging(self, head: str, body: Text, *, indent: int) -> None:
        for line in self._wrapped(head, body, indent):
            self._line(line)

    def _wrapped(self, head: str, body: Text, indent: int) -> list[Text]:
        """A head, and beside it, or below where it is too long, what is said: in lines that fit, all indented alike."""
        if self._columns is None:
            line = Text(head).append_text(body)
            line.rstrip()
            return [line] if line.plain else []
        lines = [Text(head)] if len(head) > indent else []
        room = max(self._columns - indent, 20)
        for line in body.wrap(self._console, room) if body.plain else []:
            line.rstrip()
            lines.append(Text(" " * indent if lines else head).append_text(line))
        return lines or ([Text(head.rstrip())] if head.strip() else [])

    def _line(self, line: Text | None = None) -> None:
        self._console.print(Text() if line is None else line, soft_wrap=True)

    def _log(self, line: str) -> None:
        """To standard error: how many such lines there are depends on the speed of the machine."""
        self._spoke = monotonic()
        log = Console(stderr=True, highlight=False, width=self._console.width)
        log.print(Text(f"  {clean(line)}"), overflow="ellipsis", no_wrap=True)


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


def _that_fit(blocks: Sequence[_Block], room: float) -> tuple[list[_Block], float]:
    taken: list[_Block] = []
    for block in blocks:
        if len(block[1]) > room:
            break
        taken.append(block)
        room -= len(block[1])
    return taken, room


def _heading(found: Sequence[Finding], unlisted: Sequence[Finding]) -> Text:
    ((verdict, words),) = tally(found)
    line = Text(words, style=f"bold {_COLOUR[verdict]}")
    some = "" if len(unlisted) == len(found) else f"{len(unlisted)} of them "
    line.append(f", {some}not listed here" if unlisted else "")
    return line


def _counts(findings: Sequence[Finding]) -> Text:
    return Text(", ").join(Text(words, style=_COLOUR[verdict]) for verdict, words in tally(findings))


def _sentence(findings: Sequence[Finding], seconds: float) -> Text:
    """219 claims in 2 min 12 s: 213 judged, 6 not run. What came of them."""
    findings = [finding for finding in findings if finding.verdict != "at paper scale"]
    claims, skipped = len(findings), sum(finding.verdict == "not run" for finding in findings)
    head = f"{claims} {'claim' if claims == 1 else 'claims'} in {duration(seconds)}: "
    some = f"{claims - skipped} judged, {skipped} not run" if skipped else "all judged"
    head += some if skipped < claims else "none was judged"
    judged = [finding for finding in findings if finding.verdict not in UNJUDGED]
    fragile = sum(finding.fragile for finding in judged)
    end = f". {fragile} of these verdicts {'is' if fragile == 1 else 'are'} fragile." if fragile else "."
    return Text(head + (". " if judged else "")).append_text(_counts(judged)).append(end)


def _kept(results: Sequence[Result]) -> list[KeptFinding]:
    found = (kept_of(one.id, one.claim) for result in results for one in result.findings)
    return [one for one in found if one is not None]


def _paper(finding: Finding) -> str:
    """What a kept run at paper scale said of the same claim, where it said something else."""
    kept = kept_of(finding.id, finding.claim)
    return f"At paper scale: {kept.full_verdict}" if kept and kept.verdict != finding.verdict else ""

"""What `joma verify` shows on a terminal: a line of progress a study, the verdict table, the last word."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from joma.claims.contract import Finding, Verdict, tally
from joma.claims.contract import Progress as Report
from joma.claims.execute import Result
from joma.claims.words import show
from joma.host.progress import ProgressLines
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
_PLAIN_WIDTH = 150  # where the output is a file or a pipe, no window sets the width
_PLAIN_EVERY = 10.0  # seconds between two lines of progress there


class Screen:
    """Progress while studies run, a table when they are done. Plain lines where nobody watches a terminal."""

    def __init__(self, studies: int, *, to_stderr: bool = False) -> None:
        self._console = Console(stderr=to_stderr)
        if not self._console.is_terminal:
            self._console = Console(stderr=to_stderr, width=_PLAIN_WIDTH)
        self._studies, self._done = studies, 0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("[bright_black]{task.fields[doing]}"),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )

    def __enter__(self) -> Screen:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    @contextmanager
    def study(self, name: str) -> Iterator[Report]:
        """A progress bar for one study; yields what the study calls with its share and its words."""
        title = f"[{self._done + 1}/{self._studies}] {name}"
        task = self._bar.add_task(title, total=1.0, doing="")

        def draw(share: float, doing: str) -> None:
            self._bar.update(task, completed=share, doing=doing)

        def say(line: str) -> None:
            self._console.print(Text(f"        {line}"))

        try:
            yield draw if self._console.is_terminal else ProgressLines(title, say, every=_PLAIN_EVERY)
        finally:
            self._bar.remove_task(task)
            self._done += 1

    def finished(self, result: Result) -> None:
        """One line on a study that is done."""
        counter = f"[{self._done}/{self._studies}]"
        line = Text(f"{counter:>7} {result.study.name:<16} ")
        if result.error:
            line.append(f"broke: {result.error}", style="bold red")
        else:
            line.append(f"{result.seconds:6.1f} s  ")
            line.append_text(_counts(result.findings))
        self._console.print(line)

    def table(self, results: Sequence[Result], shown: Sequence[Verdict] | None = None) -> None:
        """Every finding in one row; of these verdicts alone, if any are named."""
        table = Table(box=None, pad_edge=False, header_style="bold", row_styles=("", "dim"))
        table.add_column("source", no_wrap=True)
        table.add_column("claim", overflow="fold", max_width=28)
        table.add_column("verdict", no_wrap=True)
        table.add_column("measured", overflow="fold", ratio=1)
        table.add_column("control", overflow="fold", max_width=24)
        for result in results:
            for finding in result.findings:
                if shown is not None and finding.verdict not in shown:
                    continue
                table.add_row(
                    finding.claim.source,
                    finding.id,
                    Text(finding.verdict, style=_COLOUR[finding.verdict]),
                    _value(finding.measured),
                    "" if finding.control is None else _value(finding.control),
                )
        self._console.print()
        self._console.print(table)

    def summary(self, results: Sequence[Result], report: Path | None) -> None:
        """The last lines: how many claims came out how, and where to look; without a report, that there is none.

        The page shows these results alone. Where the folder has runs of other studies, say how to see all of them.
        """
        findings = [finding for result in results for finding in result.findings]
        self._console.print()
        if report:
            self._console.print(Text(f"{len(findings)} claims: ").append_text(_counts(findings)))
        broken = [result.study.name for result in results if result.error]
        if broken:
            self._console.print(Text(f"broken: {', '.join(broken)}", style="bold red"))
        # Not through rich: a path must stay on one line to be copied.
        to = sys.stderr if self._console.stderr else sys.stdout
        if report is None:
            print("nothing could be judged, so no report was written", file=to)
            return
        shown = {result.study.name for result in results}
        stored = {path.name.rpartition("-")[0] for path in (report.parent / "runs").glob("*.sqlite")}
        others = stored & set(names()) - shown  # a scan lies there too, and no page shows it
        if others:
            page = f"joma report {shlex.quote(str(report.parent))}"
            print(f"runs of other studies are there too; one page of all: {page}", file=to)
        print(f"report: {report}", file=to)


@contextmanager
def pointing_to_finished(results: Sequence[Result], studies: int, out: Path) -> Iterator[None]:
    """Where a command is interrupted, say how to see `results`, those of its studies that are done."""
    try:
        yield
    except KeyboardInterrupt:
        finished = sum(result.run is not None for result in results)
        if finished:
            page = f"joma report {shlex.quote(str(out))}"
            print(f"joma: {finished} of {studies} studies finished; a page that shows them: {page}", file=sys.stderr)
        raise


def _counts(findings: Sequence[Finding]) -> Text:
    return Text(", ").join(Text(words, style=_COLOUR[verdict]) for verdict, words in tally(findings))


def _value(value: float | str) -> str:
    return value if isinstance(value, str) else show(value)

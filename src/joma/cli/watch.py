"""`joma watch`: follow runs while other processes write them, only reading. Nothing heavy loads before it is called."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from time import sleep, time
from typing import TYPE_CHECKING, Any

from joma.cli.watched import Fault, Folder, in_words, measures_of
from joma.host.errors import BadInput, JomaError
from joma.host.exit_status import OK
from joma.host.files import as_json
from joma.host.printing import say

if TYPE_CHECKING:
    from joma.runs.following import Latest, Seen

LEFT_OUT = 3
_MOST_SERIES = 8  # on one line
_EPILOG = """\
FOLDER is where joma.monitor, joma scan or joma verify write; its runs are listed, those written last first, and those
being written are followed. In a terminal this is a table that is drawn again; in a pipe or a file it is one line for
every new step. Nothing in the folder is written or made. Ctrl-C ends it.
Exit status: 0 all well, 3 a run could not be read, 2 bad input, 130 and 143 after Ctrl-C and SIGTERM."""


def add_parser(commands: Any) -> None:
    """Add `watch` to the subcommands of `joma`."""
    parser = commands.add_parser(
        "watch",
        help="follow runs while other processes write them: last numbers, history, alarms, rate",
        description="Follow runs of joma.monitor, joma scan and joma verify while other processes write them.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("path", type=Path, metavar="FOLDER|RUN", help="a folder with runs, or one run")
    add("--once", action="store_true", help="print what there is now and leave")
    add("--every", type=float, default=2.0, metavar="SECONDS", help="between two looks (default: 2)")
    add("--json", action="store_true", help="with --once: as JSON on standard output")
    parser.set_defaults(call=call)


def call(options: argparse.Namespace, _: list[str] | None = None) -> int:
    """Carry `joma watch` out; returns the exit status. Bad input raises ValueError with one sentence."""
    _check(options)
    folder = Folder(options.path)
    if options.once:
        found = folder.look()
        if options.json:
            say(as_json(_as_json(found, time())), keep="\n", end="")
        else:
            from joma.cli.watch_table import print_once

            print_once(found)
    else:
        with _nothing_is_lost():
            found = _followed(folder, options.every)
    return LEFT_OUT if any(isinstance(each, Fault) for each in found) else OK


def _check(options: argparse.Namespace) -> None:
    if not 0 < options.every < math.inf:
        raise BadInput(f"--every takes seconds above 0, got {options.every:g}")
    if options.json and not options.once:
        raise BadInput("--json goes with --once: it prints one object and leaves")
    if not options.path.exists():
        raise BadInput(f"there is no {options.path}; joma watch takes a folder with runs, or one run")


@contextmanager
def _nothing_is_lost() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as stop:
        raise stop from JomaError("only the watching ends, what is being written goes on")


def _followed(folder: Folder, every: float) -> list[Seen | Fault]:
    """Until Ctrl-C, or until one run is over."""
    from joma.cli.watch_table import live

    with live() if sys.stdout.isatty() else nullcontext(_Lines().tell) as show:
        show(found := folder.look())
        while not (folder.one and all(each.over for each in found)):
            sleep(every)
            show(found := folder.look())
    return found


class _Lines:
    """One line for every new step, alarm and state: for a pipe or a file."""

    def __init__(self) -> None:
        self._states: dict[Path, str] = {}
        self._alarms: dict[Path, int] = {}

    def tell(self, found: Sequence[Seen | Fault]) -> None:
        """What was not told yet."""
        for each in found:
            name = each.path.name
            state = f"cannot be read: {each.why}" if isinstance(each, Fault) else f"{each.study}, {each.state}"
            fresh = each.path not in self._states
            if self._states.get(each.path) != state:
                self._states[each.path] = state
                say(f"{name}: {state}")
            if isinstance(each, Fault):
                continue
            if not fresh or each.writer is not None or len(found) == 1:
                self._news(name, each)

    def _news(self, name: str, seen: Seen) -> None:
        for step, numbers in seen.new:
            if measured := measures_of(numbers):
                shown = ", ".join(f"{one} {in_words(each)}" for one, each in list(measured.items())[:_MOST_SERIES])
                more = len(measured) - _MOST_SERIES
                say(f"{name}: step {step}: {shown}" + (f", and {more} more" if more > 0 else ""))
        for _, words in seen.alarms[self._alarms.get(seen.path, 0) :]:
            say(f"{name}: alarm: {words}")
        self._alarms[seen.path] = len(seen.alarms)


def _as_json(found: Sequence[Seen | Fault], now: float) -> dict[str, Any]:
    return {
        "schema": "joma-watch",
        "schema_version": 1,
        "runs": [
            {"run": str(each.path), "fault": each.why} if isinstance(each, Fault) else _run_as_json(each, now)
            for each in found
        ],
    }


def _run_as_json(seen: Seen, now: float) -> dict[str, Any]:
    return {
        "run": str(seen.path), "study": seen.study, "status": seen.status, "reason": seen.reason, "state": seen.state,
        "writer": seen.writer, "step": seen.step, "steps_per_second": seen.rate,
        "age_seconds": max(now - seen.written, 0.0),
        "series": {name: _series_as_json(each) for name, each in measures_of(seen.series).items()},
        "alarms": [{"step": step, "says": words} for step, words in seen.alarms],
    }  # fmt: skip


def _series_as_json(latest: Latest) -> dict[str, Any]:
    history = [list(each) for each in latest.past]
    return {"step": latest.step, "steps": latest.steps, **vars(latest.numbers), "history": history}

"""`joma watch`: follow runs while other processes write them, only reading. Nothing heavy loads before it is called."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from time import sleep, time
from typing import TYPE_CHECKING, Any

from joma.host.errors import BadInput, JomaError
from joma.host.exit_status import OK
from joma.host.files import as_json
from joma.host.printing import say

if TYPE_CHECKING:
    from joma.cli.watched import Folder, Watched

LEFT_OUT = 3
_PAUSE = 2.0  # seconds between two looks
_MOST_SERIES = 8  # on one line
_EPILOG = """\
FOLDER is where joma.monitor, joma scan or joma verify write; its runs are listed, those written last first, and those
being written are followed. In a terminal it updates a table; in a pipe or a file it prints one line for
every new step. It only reads. Ctrl-C ends it.
Exit status: 0 all well, 3 a run could not be read, 2 bad input, 130 and 143 after Ctrl-C and SIGTERM."""


def add_parser(commands: Any) -> None:
    """Add `watch` to the subcommands of `joma`."""
    parser = commands.add_parser(
        "watch",
        help="follow runs in the terminal while they are written",
        description="Follow runs of joma.monitor, joma scan and joma verify while other processes write them.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("path", type=Path, metavar="FOLDER|RUN", help="a folder with runs, or one run")
    add("--once", action="store_true", help="print the table once")
    add("--json", action="store_true", help="with --once: as JSON on standard output")
    parser.set_defaults(call=call)


def call(options: argparse.Namespace, _: list[str] | None = None) -> int:
    """Carry `joma watch` out; returns the exit status. Bad input raises ValueError with one sentence."""
    _check(options)
    from joma.cli.watched import Folder  # numpy loads here

    folder = Folder(options.path)
    if options.once:
        found = folder.look(whole=options.json)
        if options.json:
            say(as_json(_as_json(folder, found, time())), keep="\n", end="")
        else:
            from joma.cli.watch_table import print_once

            print_once(found)
    else:
        with _nothing_is_lost():
            found = _followed(folder)
    return LEFT_OUT if any(each.fault or each.unread for each in found) else OK


def _check(options: argparse.Namespace) -> None:
    if options.json and not options.once:
        raise BadInput("--json goes with --once: it prints one object and leaves")
    if not options.path.exists():
        raise BadInput(f"there is no {options.path}; joma watch takes a folder with runs, or one run")


@contextmanager
def _nothing_is_lost() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as stop:
        raise stop from JomaError("only watching ends, the runs continue")


def _followed(folder: Folder) -> list[Watched]:
    from joma.cli.watch_table import live

    with live() if sys.stdout.isatty() else nullcontext(_Lines().tell) as show:
        show(found := folder.look())
        while not (folder.one and all(each.over for each in found)):
            sleep(_PAUSE)
            show(found := folder.look())
    return found


class _Lines:
    """One line for every new step, alarm and state: for a pipe or a file."""

    def __init__(self) -> None:
        self._states: dict[str, str] = {}
        self._alarms: dict[str, int] = {}

    def tell(self, found: Sequence[Watched]) -> None:
        for each in found:
            name, path = each.entry["name"], each.entry["id"]
            state = f"cannot be read: {each.fault}" if each.fault else f"{each.entry['study']}, {each.state}"
            fresh = path not in self._states
            if self._states.get(path) != state:
                self._states[path] = state
                say(f"{name}: {state}")
            if not each.fault and (not fresh or each.state == "being written" or len(found) == 1):
                self._news(name, each)

    def _news(self, name: str, run: Watched) -> None:
        from joma.cli.watched import in_words, latest_alarms

        for step, measured in run.new:
            shown = ", ".join(f"{one} {in_words(each)}" for one, each in list(measured.items())[:_MOST_SERIES])
            more = len(measured) - _MOST_SERIES
            say(f"{name}: step {step}: {shown}" + (f", and {more} more" if more > 0 else ""))
        count = run.entry["alarm_count"]
        for words in latest_alarms(run, count - self._alarms.get(run.entry["id"], 0)):
            say(f"{name}: alarm: {words}")
        self._alarms[run.entry["id"]] = count


def _as_json(folder: Folder, found: Sequence[Watched], now: float) -> dict[str, Any]:
    runs = [{"run": str(folder.path_of(each)), **_run_as_json(each, now)} for each in found]
    return {"schema": "joma-watch", "schema_version": 2, "runs": runs}


def _run_as_json(run: Watched, now: float) -> dict[str, Any]:
    if run.fault:
        return {"fault": run.fault}
    entry = run.entry
    return {
        **{key: entry[key] for key in ("study", "status", "reason", "state")},
        "step": entry["last"], "steps_per_second": run.rate, "age_seconds": max(now - entry["written"], 0.0),
        "series": {
            name: {"step": each.step, "steps": each.steps, **vars(each.numbers), "history": each.past}
            for name, each in run.series.items()
        },
        "unread": run.unread, "alarms": [{"step": each["step"], "says": each["says"]} for each in entry["alarms"]],
    }  # fmt: skip

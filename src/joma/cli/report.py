"""`joma report`: stored runs, judged and drawn again, as a page."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joma.cli.options import add_study, load_named
from joma.cli.outputs import add_folder
from joma.host.errors import BadInput
from joma.host.exit_status import BROKEN, OK
from joma.host.files import make_folder, write_json
from joma.host.printing import say
from joma.host.words import counted

if TYPE_CHECKING:
    from joma.claims.execute import Result


def add_parser(commands: Any) -> None:
    """Add `report` to the subcommands of `joma`."""
    words = "make the report and findings of stored runs again"
    report = commands.add_parser("report", help=words, description=f"{words.capitalize()}.")
    what = "a folder that `joma verify` or `joma scan` wrote, a folder of kept records, or .sqlite files of runs"
    report.add_argument("stored", type=Path, nargs="+", metavar="DIR|RUN", help=what)
    add_folder(report, "where the report goes (default: next to the runs)", None, "FOLDER")
    add_study(report)
    report.set_defaults(call=_report)


def _report(options: argparse.Namespace, _: list[str]) -> int:
    stored: list[Path] = options.stored
    folders, files = [path for path in stored if path.is_dir()], [path for path in stored if path.is_file()]
    for path in files:
        if path.suffix != ".sqlite":
            how = "name a folder that `joma verify` wrote, or .sqlite files of runs"
            raise BadInput(f"{path} is neither a folder nor a run; {how}")
    load_named(options)
    if len(files) == len(stored):
        return _of_files(files, options.out)
    if len(stored) > 1:
        missing = [path for path in stored if not path.exists()]
        got = f"got {counted(len(folders), 'folder')} of {len(stored)} paths"
        given = f"there is no {missing[0]}" if missing else got
        raise BadInput(f"joma report takes one folder, or several runs: {given}")
    return _of_folder(stored[0], options.out)


def _of_folder(folder: Path, out: Path | None) -> int:
    from joma.report import scan_runs
    from joma.studies.stored import stored_result

    scans = scan_runs(folder)
    found = [(name, partial(stored_result, name, path, folder)) for name, path in _found(folder, scans)]
    return _written(found, scans, out or folder, _command([folder], out))


def _of_files(files: Sequence[Path], out: Path | None) -> int:
    from joma.report import read_scan, write_scan_page
    from joma.runs import Run, RunError
    from joma.studies.stored import result_of

    kinds: dict[Path, str] = {}
    for path in files:
        with Run.open(path) as run:
            kinds[path] = run.study
    scans = [path for path, study in kinds.items() if study == "scan"]
    if len(files) == 1 and scans:
        shown = read_scan(files[0])
        if shown.error:
            raise RunError(shown.error)
        folder = files[0].parent.parent if files[0].parent.name == "runs" else files[0].parent
        say(f"page: {write_scan_page(shown, (out or folder) / f'{files[0].stem}.html')}")
        return OK
    found = [(study, partial(result_of, path)) for path, study in kinds.items() if study != "scan"]
    return _written(found, scans, out or files[0].parent, _command(files, out))


def _command(stored: Sequence[Path], out: Path | None) -> str:
    return shlex.join(["joma", "report", *map(str, stored), *(["--out", str(out)] if out else [])])


def _written(found: Sequence[tuple[str, Callable[[], Result]]], scans: list[Path], place: Path, command: str) -> int:
    from joma.claims.ledger import findings_json, with_q
    from joma.cli.terminal import Screen
    from joma.report import write_report

    results: list[Result] = []
    with Screen([name for name, _ in found]) as screen:
        for name, judged in found:
            screen.progress(name, 0.0, "judging and drawing")
            results.append(judged())
            screen.finished(results[-1])
    results = with_q(results)
    if results:
        make_folder(place)
        write_json(place / "findings.json", findings_json(results))
    page = write_report(results, place, scale="as stored", scans=scans, command=command)
    say(f"report: {page}")
    return BROKEN if any(result.error for result in results) else OK


def _found(folder: Path, scans: list[Path]) -> list[tuple[str, Path | None]]:
    from joma.studies.stored import stored_runs

    passed_over: set[str] = set()
    found, quoted = stored_runs(folder, passed_over), shlex.quote(str(folder))
    for name in sorted(passed_over):
        say(f"joma: runs of {name} are left out: not a study of joma's own; --study NAME|FILE loads it", sys.stderr)
    if scans:
        return found
    if not found and (folder / "runs").is_dir():
        raise BadInput(
            f"{folder} holds no finished run of a study in its present version; "
            f"`joma verify --out {quoted}` makes them, and an interrupted command continues when given again"
        )
    if not found:
        raise BadInput(f"{folder} holds no runs; `joma verify --out {quoted}` makes them")
    return found

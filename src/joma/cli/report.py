"""`joma report`: stored runs, judged and drawn again, as a page."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joma.host.errors import BadInput
from joma.host.exit_status import BROKEN, OK
from joma.host.files import usable_folder, write_json
from joma.host.printing import say

if TYPE_CHECKING:
    from joma.claims.execute import Result


def add_parser(commands: Any) -> None:
    """Add `report` to the subcommands of `joma`."""
    words = "judge and draw stored runs again and rewrite their report and findings"
    report = commands.add_parser("report", help=words, description=f"{words.capitalize()}.")
    report.add_argument(
        "folder", type=Path, metavar="DIR", help="a folder that `joma verify --out DIR` wrote, or one of kept records"
    )
    report.add_argument("--out", type=Path, metavar="FOLDER", help="where the report goes (default: into DIR)")
    report.set_defaults(call=_report)


def _report(options: argparse.Namespace, _: list[str]) -> int:
    from joma.claims.ledger import findings_json
    from joma.cli.terminal import Screen
    from joma.report import scan_runs, write_report
    from joma.studies.stored import stored_result

    if options.folder.exists() and not options.folder.is_dir():
        raise BadInput(f"{options.folder} is no folder; name one that `joma verify --out DIR` wrote")
    if options.out:
        usable_folder(options.out)
    scans = scan_runs(options.folder)
    found = _found(options.folder, scans)
    results: list[Result] = []
    with Screen([name for name, _ in found]) as screen:
        for name, path in found:
            screen.said(name, 0.0, "judging and drawing")
            results.append(stored_result(name, path, options.folder))
            screen.finished(results[-1])
    out = options.out or options.folder
    if results:
        write_json(out / "findings.json", findings_json(results))
    command = f"joma report {shlex.quote(str(options.folder))}"
    command += f" --out {shlex.quote(str(out))}" if options.out else ""
    page = write_report(results, out, scale="as stored", scans=scans, command=command)
    say(f"report: {page}")
    return BROKEN if any(result.error for result in results) else OK


def _found(folder: Path, scans: list[Path]) -> list[tuple[str, Path | None]]:
    from joma.studies.stored import stored_runs

    found, quoted = stored_runs(folder), shlex.quote(str(folder))
    if scans:
        return found
    if not found and (folder / "runs").is_dir():
        raise BadInput(
            f"{folder} holds no finished run of a study in its present version; "
            f"`joma verify --out {quoted}` makes them, and a command that was stopped goes on when given again"
        )
    if not found:
        raise BadInput(f"{folder} holds no runs; `joma verify --out {quoted}` makes them")
    return found

"""The command line. Only argparse loads before a command is known, so that `joma --help` answers at once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joma import __version__, scan_command
from joma.exit_status import BROKEN, OK, answer
from joma.output_files import as_json, usable_file, usable_folder, write_json

if TYPE_CHECKING:
    from joma.studies.contract import Study
    from joma.studies.execute import Result

OUT = Path("joma-out")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `joma`. Returns the exit status: 0 judged, 1 broken, 2 bad input, 130 or 143 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and options.command != "run":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return answer(partial(options.call, options, rest))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="joma",
        description="The theory of how Transformers learn, executable: every claim with verdict, control and figure.",
        epilog="Start with `joma verify`: it judges every claim and ends with the path of a report.",
    )
    parser.add_argument("--version", action="version", version=f"joma {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    verify = commands.add_parser(
        "verify", help="judge the claims of all studies, or of those named, and write a report"
    )
    verify.add_argument("study", nargs="*", metavar="STUDY", help="a name from `joma list`; all when none is given")
    verify.add_argument("--scale", choices=("quick", "paper"), default="quick", help="sizes (default: quick)")
    _add_output(verify)
    verify.set_defaults(call=_verify)

    run = commands.add_parser("run", help="run one study with options of your own", add_help=False)
    run.add_argument("study", metavar="STUDY", nargs="?")
    run.set_defaults(call=_run)

    listing = commands.add_parser("list", help="list the studies and the claims they test")
    listing.add_argument("--json", action="store_true", help="as JSON, with every claim")
    listing.set_defaults(call=_list)

    report = commands.add_parser(
        "report", help="judge and draw stored runs again and rewrite their report and findings"
    )
    report.add_argument(
        "folder", type=Path, metavar="DIR", help="a folder that `joma verify --out DIR` wrote, or one of kept records"
    )
    report.add_argument("--out", type=Path, metavar="FOLDER", help="where the report goes (default: into DIR)")
    report.set_defaults(call=_report)

    scan_command.add_parser(commands)

    export = commands.add_parser("export", help="write runs as parquet, csv or npz")
    export.add_argument("run", type=Path, nargs="+", metavar="RUN", help="a run's .sqlite file")
    export.add_argument("--to", choices=("parquet", "csv", "npz"), required=True)
    export.add_argument("--out", type=Path, metavar="FILE", help="where to, for one run (default: beside it)")
    export.set_defaults(call=_export)
    return parser


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=OUT, metavar="DIR", help=f"runs and report (default: {OUT})")
    parser.add_argument("--json", metavar="FILE", help="the findings as JSON; - for standard output")
    parser.add_argument("--fresh", action="store_true", help="run again what is already recorded")


def _verify(options: argparse.Namespace, _: list[str]) -> int:
    from joma import studies

    chosen = [studies.load(name) for name in dict.fromkeys(options.study or studies.names())]
    work = [(study, study.preset(options.scale)) for study in chosen]
    return _carry_out(work, options.out, options.json, fresh=options.fresh, scale=options.scale)


def _run(options: argparse.Namespace, rest: list[str]) -> int:
    """Options come from the study's config dataclass: tyro types them and suggests the nearest name."""
    if options.study is None:
        usage = "joma run STUDY [--scale quick|paper] [--OPTION VALUE ...]"
        if not {"-h", "--help"} & set(rest):
            raise ValueError(f"a study must be named: {usage}; `joma list` has their names")
        print(f"usage: {usage}\n\n`joma list` has the names, `joma run STUDY --help` the options of one.")
        return OK
    from joma import studies
    from joma.study_options import parse

    study = studies.load(options.study)
    chosen = parse(study, rest)
    work = [(study, chosen.config)]
    return _carry_out(work, chosen.out, chosen.json, fresh=chosen.fresh, scale=chosen.scale)


def _carry_out(work: list[tuple[Study, Any]], out: Path, json_file: str | None, *, fresh: bool, scale: str) -> int:
    """Execute the studies one after another; one that breaks does not stop the others."""
    from joma.report import findings_json, write_report
    from joma.studies.contract import check_config
    from joma.studies.execute import attempt
    from joma.terminal import Screen, pointing_to_finished

    for _, config in work:
        check_config(config)
    usable_folder(out)
    if json_file and json_file != "-":
        usable_file(Path(json_file))
    results: list[Result] = []
    interruptible = pointing_to_finished(results, len(work), out)
    with interruptible, Screen(len(work), to_stderr=json_file == "-") as screen:
        for study, config in work:
            with screen.study(study.name) as progress:
                results.append(attempt(study, config, out, fresh=fresh, progress=progress, alone=len(work) == 1))
            screen.finished(results[-1])
        ledger, report = findings_json(results), None
        if json_file == "-":
            print(as_json(ledger), end="")
        if not all(result.error for result in results):  # else the files of an earlier command are worth more
            screen.table(results)
            if json_file and json_file != "-":
                write_json(Path(json_file), ledger)
            write_json(out / "findings.json", ledger)
            report = write_report(results, out, scale=scale)
        screen.summary(results, report)
    return BROKEN if any(result.error for result in results) else OK


def _list(options: argparse.Namespace, _: list[str]) -> int:
    from joma import studies

    loaded = [studies.load(name) for name in studies.names()]
    if options.json:
        keys = ("name", "source", "says", "corrected", "empirical")
        rows = [
            {
                "name": study.name,
                "title": study.title,
                "claims": [{key: getattr(claim, key) for key in keys} for claim in study.claims],
            }
            for study in loaded
        ]
        print(as_json({"studies": rows}), end="")
        return OK
    width = max(len(study.name) for study in loaded)
    for study in loaded:
        print(f"{study.name:<{width}}  {study.title} ({len(study.claims)} claims)")
    return OK


def _report(options: argparse.Namespace, _: list[str]) -> int:
    import shlex

    from joma.report import findings_json, write_report
    from joma.studies.execute import stored_result, stored_runs
    from joma.terminal import Screen

    if options.folder.exists() and not options.folder.is_dir():
        raise ValueError(f"{options.folder} is no folder; name one that `joma verify --out DIR` wrote")
    if options.out:
        usable_folder(options.out)
    found = stored_runs(options.folder)
    folder = shlex.quote(str(options.folder))
    if not found and (options.folder / "runs").is_dir():
        raise ValueError(
            f"{options.folder} holds no finished run of a study in its present version; "
            f"`joma verify --out {folder}` makes them, and a command that was stopped goes on when given again"
        )
    if not found:
        raise ValueError(f"{options.folder} holds no runs; `joma verify --out {folder}` makes them")
    results: list[Result] = []
    with Screen(len(found)) as screen:
        for name, path in found:
            with screen.study(name) as progress:
                progress(0.0, "judging and drawing")
                results.append(stored_result(name, path, options.folder))
            screen.finished(results[-1])
    out = options.out or options.folder
    write_json(out / "findings.json", findings_json(results))
    command = f"joma report {folder}" + (f" --out {shlex.quote(str(out))}" if options.out else "")
    report = write_report(results, out, scale="as stored", command=command)
    print(f"report: {report}")
    return BROKEN if any(result.error for result in results) else OK


def _export(options: argparse.Namespace, _: list[str]) -> int:
    from joma.runs import RunError, export

    runs, failed = options.run, []
    if options.out and len(runs) > 1:
        raise ValueError(f"--out names one file, but there are {len(runs)} runs; without it each goes beside its run")
    for run in runs:
        try:
            print(export(run, options.to, options.out))
        except RunError as error:  # one that cannot be exported does not stop the others
            failed.append(error)
    for fault in failed[:-1]:
        print(f"joma: {fault}", file=sys.stderr)
    if failed:
        raise failed[-1]
    return OK


if __name__ == "__main__":
    sys.exit(main())

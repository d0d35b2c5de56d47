"""The command line. Only argparse loads before a command is known, so that `joma --help` answers at once."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joma import __version__, scan_command

if TYPE_CHECKING:
    from joma.studies.contract import Study
    from joma.studies.execute import Result

OUT = Path("joma-out")
OK, BROKEN, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `joma`. Returns the exit status: 0 judged, 1 something broke, 2 bad input, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and options.command != "run":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        status: int = options.call(options, rest)
        return status
    except KeyboardInterrupt:
        print("joma: interrupted; the same command goes on where this one stopped", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output left (`joma list | head`)
        sys.stderr.close()
        return OK
    except (ValueError, OSError, _run_error()) as error:
        print(f"joma: {error}", file=sys.stderr)
        return BAD_INPUT


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
    run.add_argument("study", metavar="STUDY")
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

    export = commands.add_parser("export", help="write a run as parquet, csv or npz")
    export.add_argument("run", type=Path, metavar="RUN", help="a run's .sqlite file")
    export.add_argument("--to", choices=("parquet", "csv", "npz"), required=True)
    export.add_argument("--out", type=Path, metavar="FILE", help="where to (default: beside the run)")
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
    if options.study in ("-h", "--help"):
        print("usage: joma run STUDY [--scale quick|paper] [--OPTION VALUE ...]\n\nSee `joma run STUDY --help`.")
        return OK
    from joma import studies
    from joma.study_options import parse

    study = studies.load(options.study)
    chosen = parse(study, rest)
    work = [(study, chosen.config)]
    return _carry_out(work, chosen.out, chosen.json, fresh=chosen.fresh, scale=chosen.scale)


def _carry_out(work: list[tuple[Study, Any]], out: Path, json_file: str | None, *, fresh: bool, scale: str) -> int:
    """Execute the studies one after another; one that breaks does not stop the others."""
    from joma.data.errors import CorpusError
    from joma.report import findings_json, write_report
    from joma.studies.contract import check_config
    from joma.studies.execute import broken, execute
    from joma.terminal import Screen

    for _, config in work:
        check_config(config)
    _usable_folder(out)
    if json_file and not Path(json_file).parent.is_dir():  # said now, not after minutes of work
        raise ValueError(f"--json {json_file}: there is no folder {Path(json_file).parent}")
    results: list[Result] = []
    with Screen(len(work), to_stderr=json_file == "-") as screen:
        for study, config in work:
            with screen.study(study.name) as progress:
                try:
                    results.append(execute(study, config, out, fresh=fresh, progress=progress))
                except CorpusError as error:  # a text that does not fit what was asked for is bad input, not a fault
                    if len(work) == 1:
                        raise
                    results.append(broken(study, config, error))
                except Exception as error:  # one broken study must not hide the verdicts of the others
                    results.append(broken(study, config, error))
            screen.finished(results[-1])
        ledger = findings_json(results)
        _write_json(out / "findings.json", ledger)
        if json_file == "-":
            json.dump(ledger, sys.stdout, indent=1, ensure_ascii=False)
            print()
        elif json_file:
            _write_json(Path(json_file), ledger)
        report = write_report(results, out, scale=scale)
        screen.table(results)
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
        print(json.dumps({"studies": rows}, indent=1, ensure_ascii=False))
        return OK
    width = max(len(study.name) for study in loaded)
    for study in loaded:
        print(f"{study.name:<{width}}  {study.title} ({len(study.claims)} claims)")
    return OK


def _report(options: argparse.Namespace, _: list[str]) -> int:
    from joma.report import findings_json, write_report
    from joma.studies.execute import stored_results

    results = stored_results(options.folder)
    if not results:
        raise ValueError(f"{options.folder} holds no runs; `joma verify --out {options.folder}` makes them")
    out = options.out or options.folder
    _usable_folder(out)
    _write_json(out / "findings.json", findings_json(results))
    print(f"report: {write_report(results, out, scale='as stored')}")
    return OK


def _export(options: argparse.Namespace, _: list[str]) -> int:
    from joma.runs import export

    print(export(options.run, options.to, options.out))
    return OK


def _usable_folder(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out must be a folder, but {out} is a file")
    out.mkdir(parents=True, exist_ok=True)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    """Whole or not at all: a reader never meets half a file."""
    unfinished = path.with_name(f".{path.name}.new")
    unfinished.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    unfinished.replace(path)


def _run_error() -> type[Exception]:
    """RunError if joma.runs was loaded at all; loading it only to name it would cost numpy."""
    module = sys.modules.get("joma.runs")
    error: type[Exception] = getattr(module, "RunError", ValueError)
    return error


if __name__ == "__main__":
    sys.exit(main())

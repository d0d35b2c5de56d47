"""`joma verify` and `joma run`: studies carried out one after another, their verdicts, their report."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joma.host.errors import BadInput, asked_for
from joma.host.exit_status import BROKEN, OK
from joma.host.files import as_json, usable_file, usable_folder, write_json

if TYPE_CHECKING:
    from joma.claims.contract import Study, Verdict
    from joma.claims.execute import Result

OUT = Path("joma-out")


def add_parser(commands: Any) -> None:
    """Add `verify` and `run` to the subcommands of `joma`."""
    verify = commands.add_parser(
        "verify", help="judge the claims of all studies, or of those named, and write a report"
    )
    verify.add_argument("study", nargs="*", metavar="STUDY", help="a name from `joma list`; all when none is given")
    verify.add_argument("--scale", choices=("quick", "paper"), default="quick", help="sizes (default: quick)")
    verify.add_argument(
        "--claims", metavar="VERDICTS", help="show only claims with these verdicts: fails,undecided (default: all)"
    )
    verify.add_argument("--out", type=Path, default=OUT, metavar="DIR", help=f"runs and report (default: {OUT})")
    verify.add_argument("--json", metavar="FILE", help="the findings as JSON; - for standard output")
    verify.add_argument("--fresh", action="store_true", help="run again what is already recorded")
    verify.set_defaults(call=_verify)

    run = commands.add_parser("run", help="run one study with options of your own", add_help=False)
    run.add_argument("study", metavar="STUDY", nargs="?")
    run.set_defaults(call=_run)


def _verify(options: argparse.Namespace, _: list[str]) -> int:
    from joma import studies
    from joma.claims.ledger import verdicts_named

    shown = None if options.claims is None else verdicts_named(options.claims)
    chosen = [studies.load(name) for name in dict.fromkeys(options.study or studies.names())]
    work = [(study, study.preset(options.scale)) for study in chosen]
    return _carry_out(work, options.out, options.json, fresh=options.fresh, scale=options.scale, shown=shown)


def _run(options: argparse.Namespace, rest: list[str]) -> int:
    """Options come from the study's config dataclass: tyro types them and suggests the nearest name."""
    if options.study is None:
        usage = "joma run STUDY [--scale quick|paper] [--OPTION VALUE ...]"
        if not {"-h", "--help"} & set(rest):
            raise BadInput(f"a study must be named: {usage}; `joma list` has their names")
        print(f"usage: {usage}\n\n`joma list` has the names, `joma run STUDY --help` the options of one.")
        return OK
    from joma import studies
    from joma.cli.options import parse

    study = studies.load(options.study)
    with asked_for():
        chosen = parse(study, rest)
    work = [(study, chosen.config)]
    return _carry_out(work, chosen.out, chosen.json, fresh=chosen.fresh, scale=chosen.scale)


def _carry_out(
    work: list[tuple[Study, Any]],
    out: Path,
    json_file: str | None,
    *,
    fresh: bool,
    scale: str,
    shown: tuple[Verdict, ...] | None = None,
) -> int:
    """Execute the studies one after another; one that breaks does not stop the others."""
    from joma.claims.contract import check_config
    from joma.claims.execute import attempt
    from joma.claims.ledger import findings_json
    from joma.cli.terminal import Screen, pointing_to_finished
    from joma.report import write_report

    with asked_for():
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
        ledger, page = findings_json(results), None
        if not all(result.error for result in results):  # else the files of an earlier command are worth more
            try:
                if json_file and json_file != "-":
                    write_json(Path(json_file), ledger)
                write_json(out / "findings.json", ledger)
                page = write_report(results, out, scale=scale)
            finally:  # a full disk must not cost the verdicts, too
                screen.table(results, shown)
        if json_file == "-":
            print(as_json(ledger), end="")
        screen.summary(results, page)
    return BROKEN if any(result.error for result in results) else OK

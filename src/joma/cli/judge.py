"""`joma judge`: verdicts on a table of numbers that anybody measured."""

import argparse
import shlex
from pathlib import Path
from typing import Any

from joma.cli.outputs import add_file, add_json, give_json, screen_beside
from joma.cli.wrapping import columns, hanging
from joma.host.exit_status import OK
from joma.host.file_kinds import PAGE, TABLE
from joma.host.files import named_file, write_text
from joma.host.printing import clean, say

_EPILOG = """\
The table has one row for each arm, seed and value, or a column for each arm; exports of Trackio, W&B and TensorBoard
are read as they are. A seed that failed has the value nan. With steps the last one is judged; where the difference
still changes there by an effect that matters, the claim is undecided."""
_COLUMNS = ("arm", "seed", "step", "claim", "case", "run")


def add_parser(commands: Any) -> None:
    """Add `judge` to the subcommands of `joma`."""
    words = "judge a table of numbers over seeds against a control"
    judge = commands.add_parser("judge", help=words, description=f"{words.capitalize()}.", epilog=_EPILOG)
    judge.add_argument("results", type=Path, nargs="+", metavar="RESULTS", help="csv, json or parquet; several are one")
    judge.add_argument(
        "--claims", type=Path, metavar="FILE.toml", help="what is claimed: a table [claims.NAME] for each"
    )
    judge.add_argument("--effect", metavar="ARM", help="the arm that the claim is about")
    judge.add_argument("--control", metavar="ARM|NUMBER", help="the arm to compare with, or a known number")
    judge.add_argument("--matters", metavar="NUMBER", help="the smallest difference that would matter; 2%% is 0.02")
    judge.add_argument("--unit", help="of the numbers; with %% they are shares from 0 to 1")
    judge.add_argument("--lower", action="store_true", default=None, help="less is better: a loss, a time")
    judge.add_argument(
        "--unpaired", dest="paired", action="store_false", default=None, help="the arms have other seeds"
    )
    judge.add_argument("--value", metavar="COLUMN", help="the column, or the metric, that holds the numbers")
    for name in _COLUMNS:
        judge.add_argument(f"--{name}", metavar="COLUMN", help=f"the column of the {name} (default: {name})")
    add_json(judge, "write the findings there as JSON")
    add_file(judge, "--csv", "the findings as a table for a spreadsheet", kinds={"": TABLE})
    add_file(judge, "--page", "the findings as one HTML page, a dot for each seed", kinds={"": PAGE})
    judge.set_defaults(call=_judge)


def _judge(options: argparse.Namespace, _: list[str]) -> int:
    from joma.claims.judging import judge_tables
    from joma.claims.ledger import claims_csv, ledger_of

    given = {
        name: getattr(options, name) for name in ("effect", "control", "matters", "unit", "lower", "paired", "value")
    }
    where = {name: found for name in _COLUMNS if (found := getattr(options, name))}
    judged = judge_tables(options.results, claims=options.claims, columns=where, **given)
    findings, screen = [one.finding for one in judged], screen_beside(options.json)
    for one in judged:
        say(clean(f"{one.wanted.name}: {one.finding.full_verdict}"), screen, keep="\n")
        measured = one.finding.measured if one.finding.verdict == "undecided" else one.finding.brief
        say(hanging(" " * 4, clean(measured), columns(screen)), screen, keep="\n")
    give_json(options.json, ledger_of(findings))
    if options.csv:
        write_text(named_file(options.csv), claims_csv(findings), TABLE)
    if options.page:
        from joma.report.judged import write_judged

        source, line = ", ".join(path.name for path in options.results), _command(options)
        say(f"page: {write_judged(judged, named_file(options.page), source=source, made_by=line)}", screen)
    return OK


def _command(options: argparse.Namespace) -> str:
    """What gives the same verdicts again."""
    words = ["joma", "judge", *map(str, options.results)]
    for name in ("claims", "effect", "control", "matters", "unit", "value", *_COLUMNS, "page"):
        if (given := getattr(options, name)) is not None:
            words += [f"--{name}", str(given)]
    flags = [flag for flag, on in (("--lower", options.lower), ("--unpaired", options.paired is False)) if on]
    return shlex.join([*words, *flags])

"""`joma merge`: one record and one report from the shards of `joma scan` or `joma verify`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joma.cli.options import add_study, load_named
from joma.cli.outputs import DEFAULT_OUT, add_folder, add_json, add_tables, screen_beside
from joma.host.errors import BadInput
from joma.host.printing import say
from joma.host.words import counted

if TYPE_CHECKING:
    from joma.scale.parts import Part

_EPILOG = """\
FOLDER is that of one shard, or one that holds those of several. Parts that do not belong together are refused: other
versions, options or checkpoints, a shard that is missing, not finished, or there twice. Nothing is measured or run
again. Studies that are not joma's own are loaded, and their runs judged and drawn, only if --study names them. The
exit status is that of the command whose shards these are."""
_OF = {"scan": ("csv", "parquet", "fail_if", "no_page"), "verify": ("verbose", "claims", "study")}
"""Options that only shards of one command have."""
_WORK = {"scan": ("checkpoint", "checkpoints"), "verify": ("study", "studies")}
"""What is shared out, in words."""


def add_parser(commands: Any) -> None:
    """Add `merge` to the subcommands of `joma`."""
    words = "join the shards of joma scan or joma verify"
    merge = commands.add_parser("merge", help=words, description=f"{words.capitalize()}.", epilog=_EPILOG)
    add = merge.add_argument
    add("folder", type=Path, nargs="+", metavar="FOLDER", help="where shards wrote")
    add_folder(merge, f"for runs and page (default: {DEFAULT_OUT})", DEFAULT_OUT, sent=True)
    add_json(merge, "write curves or findings there as JSON, too")
    add_tables(merge, "of a scan: ")
    add("--fail-if", action="append", default=[], metavar="RULE", help="of a scan: as for joma scan; may be repeated")
    add("--no-page", action="store_true", help="of a scan: write no page with figures")
    add("-v", "--verbose", action="store_true", help="of studies: print every claim with its verdict and numbers")
    add("--claims", metavar="VERDICTS", help="of studies: print all claims with these verdicts, as fails,undecided")
    add("--fresh", action="store_true", help="replace records that are in DIR already")
    add_study(merge)
    merge.set_defaults(call=_merge)


def _merge(options: argparse.Namespace, _: list[str]) -> int:
    from joma.scale.parts import belonging_together, find_parts

    parts = belonging_together(find_parts(options.folder))
    kind = parts[0].kind
    if kind not in _OF:
        raise BadInput(f"{parts[0].folder} is a shard of joma {kind}, which this joma cannot merge")
    for other in (other for other in _OF if other != kind):
        for name in _OF[other]:
            if getattr(options, name):
                option = f"--{name.replace('_', '-')}"
                raise BadInput(f"{option} is for shards of joma {other}, and these are of joma {kind}")
    if any(part.folder.resolve() == options.out.resolve() for part in parts):  # now, not when all is read
        raise BadInput(f"{options.out} is the folder of a shard; merge into another folder", argument="out")
    screen = screen_beside(options.json)
    what = counted(len(parts[0].work), *_WORK[kind])
    say(f"merging {counted(len(parts), 'shard')} of joma {kind}: {what}", screen)
    return _scan(parts, options, screen) if kind == "scan" else _verify(parts, options)


def _scan(parts: Sequence[Part], options: argparse.Namespace, screen: Any) -> int:
    from joma.cli.scan import Done, beyond_thresholds, end_scan
    from joma.scale.contents import options_of
    from joma.scan.result.thresholds import read_thresholds
    from joma.scan.sweep.parts import merge_scans

    measures = options_of(parts[0], {"measures": [str]})["measures"]
    rules = read_thresholds(options.fail_if, measures) if options.fail_if else []
    found = merge_scans(parts, options.out, fresh=options.fresh)
    assert found.run is not None
    options.compare = False  # what else end_scan asks of the options of a scan
    done = Done(found, found.run, *beyond_thresholds(rules, found), earlier=True)
    return end_scan([done], options, screen)


def _verify(parts: Sequence[Part], options: argparse.Namespace) -> int:
    from joma.claims.ledger import verdicts_named
    from joma.cli.terminal import Screen
    from joma.cli.verify import Wish, exit_status, write_and_print
    from joma.studies.parts import merged_results

    verdicts = None if options.claims is None else verdicts_named(options.claims)
    load_named(options)
    results = merged_results(parts, options.out, fresh=options.fresh)
    scale = str(parts[0].options["scale"])
    wish = Wish(options.out, options.json, scale, verbose=options.verbose, verdicts=verdicts)
    with Screen([result.study.name for result in results], to_stderr=options.json == "-") as screen:
        for result in results:
            screen.finished(result)
    return exit_status(write_and_print(results, wish, screen))

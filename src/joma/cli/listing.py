"""`joma list`: the studies and the claims that they test."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from joma.cli.wrapping import columns, hanging
from joma.host.exit_status import OK
from joma.host.files import as_json

if TYPE_CHECKING:
    from joma.claims.contract import Study


def add_parser(commands: Any) -> None:
    """Add `list` to the subcommands of `joma`."""
    listing = commands.add_parser(
        "list", help="list the studies, with -v the claims they test", description="List the studies, one per line."
    )
    listing.add_argument("study", nargs="*", metavar="STUDY", help="only these (default: all)")
    listing.add_argument("-v", "--verbose", action="store_true", help="print every claim with its source")
    listing.add_argument("--json", action="store_true", help="print everything as JSON, with every claim")
    listing.set_defaults(call=_list)


def _list(options: argparse.Namespace, _: list[str]) -> int:
    from joma import studies

    wanted = list(map(studies.chosen, options.study)) or studies.names()
    if options.json:
        print(as_json({"studies": [_as_json(studies.load(name)) for name in wanted]}), end="")
    elif options.verbose:
        for study in map(studies.load, wanted):
            print(hanging(f"{study.name}: ", study.title, columns()))
            for claim in study.claims:
                print(f"  {study.name}/{claim.name} ({claim.source})")
                print(hanging(" " * 6, claim.says, columns()))
            print()
    else:
        name_width = max(map(len, wanted))
        for name in wanted:
            print(hanging(f"{name:<{name_width}}  ", studies.title(name), columns()))
    return OK


def _as_json(study: Study) -> dict[str, Any]:
    keys = ("name", "source", "says", "corrected", "empirical", "matters", "unit", "ceiling", "uses")
    claims = [{"id": f"{study.name}/{one.name}", **{key: getattr(one, key) for key in keys}} for one in study.claims]
    return {"name": study.name, "title": study.title, "claims": claims}

"""`joma list`: the studies and the claims that they test."""

from __future__ import annotations

import argparse
from typing import Any

from joma.host.exit_status import OK
from joma.host.files import as_json


def add_parser(commands: Any) -> None:
    """Add `list` to the subcommands of `joma`."""
    listing = commands.add_parser("list", help="list the studies and the claims they test")
    listing.add_argument("--json", action="store_true", help="as JSON, with every claim")
    listing.set_defaults(call=_list)


def _list(options: argparse.Namespace, _: list[str]) -> int:
    from joma import studies

    loaded = [studies.load(name) for name in studies.names()]
    if options.json:
        keys = ("name", "source", "says", "corrected", "empirical", "matters", "unit", "ceiling", "uses")
        rows = [
            {
                "name": study.name,
                "title": study.title,
                "claims": [
                    {"id": f"{study.name}/{claim.name}", **{key: getattr(claim, key) for key in keys}}
                    for claim in study.claims
                ],
            }
            for study in loaded
        ]
        print(as_json({"studies": rows}), end="")
        return OK
    width = max(len(study.name) for study in loaded)
    for study in loaded:
        print(f"{study.name:<{width}}  {study.title} ({len(study.claims)} claims)")
    return OK

"""`joma list`: the studies and the claims that they test."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from joma.cli.wrapping import columns, hanging
from joma.host.errors import BadInput
from joma.host.exit_status import BAD_INPUT, OK
from joma.host.files import as_json
from joma.host.printing import say

if TYPE_CHECKING:
    from joma.claims.contract import Study


def add_parser(commands: Any) -> None:
    """Add `list` to the subcommands of `joma`."""
    listing = commands.add_parser(
        "list", help="list the studies and their claims", description="List the studies, one per line."
    )
    listing.add_argument("study", nargs="*", metavar="STUDY", help="only these (default: all)")
    listing.add_argument("-v", "--verbose", action="store_true", help="print every claim with its source")
    listing.add_argument("--json", action="store_true", help="print everything as JSON, with every claim")
    listing.set_defaults(call=_list)


def _list(options: argparse.Namespace, _: list[str]) -> int:
    from joma import studies

    wanted = list(map(studies.chosen, options.study))
    # Of a package that offers a study nothing is imported until the study is named.
    away = {} if wanted else {name: by for name in studies.names() if (by := studies.offered_by(name))}
    broken: list[str] = []
    loaded = [name for name in wanted or studies.names() if name not in away]
    if options.json:
        found = [_as_json(study) for study in _loaded(loaded, broken)]
        left_out = [] if wanted else [*broken, *studies.left_out()]
        content = {"studies": found, "not_loaded": away, "left_out": left_out}
        say(as_json({key: value for key, value in content.items() if value or key == "studies"}), keep="\n", end="")
    elif options.verbose:
        for study in _loaded(loaded, broken):
            say(hanging(f"{study.name}: ", study.title, columns()), keep="\n")
            for claim in study.claims:
                say(f"  {study.name}/{claim.name} ({claim.source})")
                say(hanging(" " * 6, claim.says, columns()), keep="\n")
            say("")
    else:
        width = max(map(len, [*loaded, *away]), default=0)
        for name in loaded:
            with _collected(broken):
                say(hanging(f"{name:<{width}}  ", studies.title(name), columns()), keep="\n")
    if not options.json:
        left_out = [] if wanted else [*broken, *studies.left_out()]
        for name, by in away.items():
            say(f"{name}: offered by {by}, not loaded; `joma list {name}` loads it")
        for why in left_out:
            say(f"left out: {why}")
    for why in broken if wanted else ():
        say(f"joma: {why}", sys.stderr)
    return BAD_INPUT if broken and wanted else OK


def _loaded(names: Sequence[str], broken: list[str]) -> Iterator[Study]:
    """The studies that can be loaded; why others cannot goes to `broken`."""
    from joma import studies

    for name in names:
        with _collected(broken):
            yield studies.load(name)


@contextmanager
def _collected(broken: list[str]) -> Iterator[None]:
    try:
        yield
    except BadInput as error:
        broken.append(str(error))


def _as_json(study: Study) -> dict[str, Any]:
    keys = ("name", "source", "says", "corrected", "empirical", "matters", "unit", "ceiling", "uses")
    claims = [{"id": f"{study.name}/{one.name}", **{key: getattr(one, key) for key in keys}} for one in study.claims]
    return {"name": study.name, "title": study.title, "claims": claims}

"""The command line. Only argparse loads before a command is known, so that `joma --help` answers at once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from joma import __version__
from joma.cli import export, listing, report, scan, show, verify
from joma.host.exit_status import answer


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
    for command in (verify, listing, show, report, scan, export):
        command.add_parser(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())

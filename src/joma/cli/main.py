"""The command line. Only argparse loads before a command is known, so that `joma --help` answers at once."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from joma import __version__
from joma.cli import (
    atlas,
    cache,
    export,
    forecast,
    judge,
    listing,
    merge,
    plan,
    report,
    scan,
    show,
    validate,
    verify,
    view,
    watch,
)
from joma.cli.outputs import checked
from joma.cli.parser import Parser
from joma.host import limits
from joma.host.exit_status import OK, answer
from joma.host.extras import needs_torch
from joma.host.printing import encoding_safe, reopen_closed
from joma.host.words import did_you_mean

_FIRST = """\
The theory of how Transformers learn, executable: every claim with verdict, control and figure.

start here:
  joma verify thm2             test the claims of one theorem in seconds, and write a report
  joma show thm2/who-wins      print one finding with its numbers and its control
  joma show fig6 --scale paper see what was found at paper scale, without a run
  joma scan path/to/run        measure every checkpoint of your training run
  joma verify                  test every claim, in some minutes"""

_COMMANDS = {
    "verify": verify,
    "run": verify,
    "list": listing,
    "show": show,
    "report": report,
    "judge": judge,
    "plan": plan,
    "validate": validate,
    "scan": scan,
    "atlas": atlas,
    "merge": merge,
    "cache": cache,
    "forecast": forecast,
    "watch": watch,
    "view": view,
    "export": export,
}
WITHOUT_TORCH = ("judge", "plan", "validate", "export")
"""Commands for numbers that others measured: they need numpy, scipy and rich alone."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `joma`. Returns the exit status: 0 done, 1 broken, 2 bad input, 130 or 143 interrupted."""
    reopen_closed()
    encoding_safe()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and not arguments[0].startswith("-"):
        arguments[0] = arguments[0].lower()
    parser, commands = _parser(*arguments[:1])
    if not arguments:
        parser.print_help()
        return OK
    if not arguments[0].startswith("-") and arguments[0] not in commands:
        hint = did_you_mean(arguments[0], commands, f"there are {', '.join(commands)}")
        parser.error(f"no command is called {arguments[0]!r}; {hint}")
    options, rest = parser.parse_known_args(arguments)
    if options.command is None:
        parser.refuse(rest)
        parser.error(f"a command must be named: {', '.join(commands)}")
    if options.command != "run":
        commands[options.command].refuse(rest)
    return answer(partial(_carried_out, options, rest, commands[options.command]))


def _carried_out(options: argparse.Namespace, rest: list[str], command: Parser) -> int:
    limits.check()
    if options.command not in WITHOUT_TORCH:
        needs_torch(f"joma {options.command}", f"{', '.join(WITHOUT_TORCH)} work without it")
    with checked(command, options):
        status: int = options.call(options, rest)
    return status


def _parser(only: str = "") -> tuple[Parser, dict[str, Parser]]:
    """With all commands, or with the one that is named: to make all their options takes longer than to read one's."""
    parser = Parser(
        prog="joma",
        description=_FIRST,
        epilog="`joma COMMAND --help` shows the options of one command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"joma {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=Parser)
    for command in dict.fromkeys([_COMMANDS[only]] if only in _COMMANDS else _COMMANDS.values()):
        command.add_parser(commands)
    return parser, dict(commands.choices)


if __name__ == "__main__":
    sys.exit(main())

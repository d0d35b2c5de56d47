"""One parser for all commands: one style of help, and one sentence with the nearest name for what is misspelt."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from joma.host.errors import BadInput, JomaError
from joma.host.exit_status import BAD_INPUT
from joma.host.printing import say
from joma.host.words import did_you_mean

_RENAMED = {"--length": "--seq-len"}  # what an option was called before


class Parser(argparse.ArgumentParser):
    """argparse, with one sentence where it prints the usage, and no abbreviations: a script must not change its
    meaning when an option is added.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **named})

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """What was given; an unknown option ends the program with the nearest name."""
        found, rest = self.parse_known_args(arguments)
        self.refuse(rest)
        return found

    def refuse(self, unknown: Sequence[str]) -> None:
        if unknown:
            first = unknown[0].partition("=")[0]
            known = [option for option in self._option_string_actions if option.startswith("--")]
            renamed = _RENAMED.get(first)
            hint = f"did you mean {renamed!r}?" if renamed in known else did_you_mean(first, known)
            kind = "option" if first.startswith("-") else "argument"
            self.error(f"unknown {kind} {first!r}" + (f"; {hint}" if hint else ""))

    def option(self, argument: str) -> str:
        """The option that sets an argument of the library, as a user types it; empty where none does."""
        found = next((each for each in self._actions if each.dest == argument and each.option_strings), None)
        if found is None:
            return ""
        metavar = f" {found.metavar}" if found.metavar and isinstance(found.metavar, str) else ""
        return f"{found.option_strings[-1]}{metavar}"

    @contextmanager
    def naming_options(self) -> Iterator[None]:
        """Within, an error that names an argument of the library gets the option that sets it."""
        try:
            yield
        except JomaError as error:
            if not (option := self.option(error.argument)):
                raise
            raise BadInput(f"{error} ({option})") from error

    def error(self, message: str) -> NoReturn:
        between = "" if message.endswith("?") else ";"
        say(f"joma: {message}{between} see `{self.prog} --help`", sys.stderr)
        sys.exit(BAD_INPUT)

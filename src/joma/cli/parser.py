"""One parser for all commands: one style of help, and one sentence with the nearest name for what is misspelt."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from joma.host.exit_status import BAD_INPUT
from joma.host.printing import say


class Parser(argparse.ArgumentParser):
    """argparse, with one sentence where it prints the usage, and no abbreviations: a script must not change its
    meaning when an option is added.

    >>> parser = Parser(prog="joma verify")
    >>> _ = parser.add_argument("--fresh", action="store_true")
    >>> parser.read(["--fresh"]).fresh
    True
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Takes what argparse.ArgumentParser takes."""
        super().__init__(*arguments, **{"allow_abbrev": False, **named})

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """What was given; an unknown option ends the program with the nearest name."""
        found, rest = self.parse_known_args(arguments)
        self.refuse(rest)
        return found

    def refuse(self, unknown: Sequence[str]) -> None:
        """End the program with a sentence if there is anything unknown."""
        if unknown:
            first = unknown[0].partition("=")[0]
            known = [option for option in self._option_string_actions if option.startswith("--")]
            hint = nearest(first, known)
            self.error(f"unknown {'option' if first.startswith('-') else 'argument'} {first!r}{hint}")

    def error(self, message: str) -> NoReturn:
        """One sentence on standard error, status 2."""
        between = "" if message.endswith("?") else ";"
        say(f"joma: {message}{between} `{self.prog} --help` shows what there is", sys.stderr)
        sys.exit(BAD_INPUT)


def nearest(name: str, known: Iterable[str]) -> str:
    """A question with the known name that is nearest; empty where none is near.

    >>> nearest("verfy", ["verify", "list"])
    "; did you mean 'verify'?"
    """
    found = get_close_matches(name.lower(), list(known), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""

"""```{options} COMMAND``` on a page becomes a table of the command's options, read from its parser."""

from __future__ import annotations

import argparse
import re
from typing import Any

from sphinx.application import Sphinx

from joma.cli.main import _parser

FENCE = re.compile(r"^```\{options\} (\w+)\n```$", re.MULTILINE)


def table(command: str) -> str:
    parser = _parser()[1][command]
    expand = parser._get_formatter()._expand_help
    rows = [(_written(action), expand(action)) for action in parser._actions if action.dest != "help"]
    lines = ["| Option | Meaning |", "|---|---|", *(f"| `{name}` | {words} |" for name, words in rows)]
    return "\n".join(line.replace("NAME|FILE", r"NAME\|FILE").replace("<", r"\<") for line in lines)


def _written(action: argparse.Action) -> str:
    name = action.metavar or (action.choices and ",".join(map(str, action.choices))) or action.dest.upper()
    value = " or ".join(name) if isinstance(name, tuple) else str(name).replace("|", " or ")
    if not action.option_strings:
        return value
    return ", ".join(action.option_strings) + ("" if action.nargs == 0 else f" {value}")


def _put(app: Sphinx, page: str, source: list[str]) -> None:
    source[0] = FENCE.sub(lambda found: table(found[1]), source[0])


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", _put)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

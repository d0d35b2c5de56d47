"""```{printed} SCRIPT ARGUMENTS``` on a page becomes what this script of docs/ prints, and how to print it."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from sphinx.application import Sphinx

DOCS = Path(__file__).parents[1]
FENCE = re.compile(r"^```\{printed\} (\w+)((?: \S+)*)\n```$", re.MULTILINE)


def tables(script: str, arguments: str) -> str:
    """What the script prints at the root of the repository."""
    path = DOCS / f"{script}.py"
    argv = mock.patch.object(sys, "argv", [str(path), *arguments.split()])
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.chdir(DOCS.parent), argv:
        runpy.run_path(str(path), run_name="__main__")
    return f"{out.getvalue().strip()}\n\n`python docs/{script}.py{arguments}` prints this."


def expanded(text: str) -> str:
    return FENCE.sub(lambda found: tables(found[1], found[2]), text)


def _put(app: Sphinx, page: str, source: list[str]) -> None:
    source[0] = expanded(source[0])


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", _put)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

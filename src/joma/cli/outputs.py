"""The rules of every option that names an output, in one place; `docs/reference/command-line.md` has them in words.

A folder (`--out DIR`) is made, with its parents, when something is written. The folder of a FILE must be there. What is
there already is replaced only if it is a file of ours, or with `--force`. All is checked before any work is done.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from joma.host.errors import BadInput
from joma.host.file_kinds import JSON, PARQUET, TABLE, Kind, forced
from joma.host.files import as_json, named_file, refuse_files, usable_file, write_json
from joma.host.printing import say

STANDARD_OUTPUT = "-"


class Output(argparse.Action):
    """An option that names what a command writes: a folder, or a file of one kind.

    kinds: of a file, by the value of the option that `by` names, such as the format; empty: a folder.
    """

    def __init__(self, *words: Any, kinds: dict[str, Kind], by: str = "", printed: bool = False, **named: Any) -> None:
        super().__init__(*words, **named)
        self.kinds, self.by, self.printed = kinds, by, printed

    def __call__(self, parser: argparse.ArgumentParser, options: Any, value: Any, _: str | None = None) -> None:
        if not value:
            parser.error(f"{self.option_strings[-1]} takes the name of a {self.what}, got an empty word")
        setattr(options, self.dest, value if value == STANDARD_OUTPUT and self.printed else Path(value))

    @property
    def what(self) -> str:
        return "file" if self.kinds else "folder"


def add_folder(parser: Any, help: str, default: Path | None, metavar: str = "DIR") -> None:
    """Add `--out DIR`, and `--force`."""
    parser.add_argument("--out", action=Output, kinds={}, default=default, metavar=metavar, help=help)
    _add_force(parser)


def add_file(parser: Any, option: str, help: str, *, kinds: dict[str, Kind], by: str = "") -> None:
    """Add an option for one file, and `--force`. kinds: what is written, by the value of the option `by`."""
    parser.add_argument(option, action=Output, kinds=kinds, by=by, metavar="FILE", help=help)
    _add_force(parser)


def add_json(parser: Any, help: str) -> None:
    """Add `--json FILE`, and `--force`; - stands for standard output."""
    help = f"{help}; {STANDARD_OUTPUT} for standard output"
    parser.add_argument("--json", action=Output, kinds={"": JSON}, printed=True, metavar="FILE", help=help)
    _add_force(parser)


def add_tables(parser: Any, of: str = "") -> None:
    """Add `--csv FILE` and `--parquet FILE`, for the numbers of a scan."""
    add_file(parser, "--csv", f"{of}the numbers as a table, one row per number", kinds={"": TABLE})
    add_file(parser, "--parquet", f"{of}the same table as parquet", kinds={"": PARQUET})


def _add_force(parser: Any) -> None:
    if "--force" not in parser._option_string_actions:
        words = "replace files of these names whatever they hold; else only those that joma wrote"
        parser.add_argument("--force", action="store_true", help=words)


@contextmanager
def checked(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Iterator[None]:
    """Refuse outputs that cannot be written or must not be replaced; within, `--force` holds. Nothing is made."""
    outputs = [each for each in parser._actions if isinstance(each, Output) and getattr(options, each.dest, None)]
    told = forced.set(getattr(options, "force", False))
    try:
        folders = [getattr(options, each.dest) for each in outputs if not each.kinds]
        for folder in folders:
            refuse_files(folder)
        files: dict[Path, str] = {}
        for each in outputs:
            if each.kinds and (path := getattr(options, each.dest)) != STANDARD_OUTPUT:
                _check_file(each, path, options, folders, files)
        yield
    finally:
        forced.reset(told)


def _check_file(
    each: Output, path: Path, options: argparse.Namespace, folders: list[Path], files: dict[Path, str]
) -> None:
    if str(path) == STANDARD_OUTPUT:
        raise BadInput(f"{each.dest} must be a file; only JSON is written to standard output", argument=each.dest)
    file = named_file(path)
    if (other := files.setdefault(file, each.dest)) != each.dest:
        raise BadInput(f"{other} and {each.dest} name the same file {path}", argument=each.dest)
    # A file in the folder that the command makes: it is there when the file is written.
    if file.parent.exists() or file.parent not in map(named_file, folders):
        usable_file(path, each.kinds[getattr(options, each.by) if each.by else ""], each.dest)


def give_json(given: Path | str | None, content: dict[str, Any]) -> None:
    """Write what `--json` was given for: nothing, standard output, or a file."""
    if given == STANDARD_OUTPUT:
        say(as_json(content), keep="\n", end="")
    elif given is not None:
        write_json(named_file(given), content)

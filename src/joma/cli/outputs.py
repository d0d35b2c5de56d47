"""The rules of every option that names an output, in one place; `docs/reference/command-line.md` has them in words.

A folder (`--out DIR`) is made, with its parents, when something is written. The folder of a FILE must be there. What is
there already is replaced only if it is a file of ours, or with `--force`. All is checked before any work is done. What
goes to an address (`--out s3://bucket/path`) is written to a local folder first, then sent as whole finished files.
"""

import argparse
import hashlib
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from joma.cli.parser import Parser
from joma.host.errors import BadInput
from joma.host.file_kinds import JSON, PARQUET, TABLE, Kind, forced
from joma.host.files import as_json, named_file, refuse_files, usable_file, write_json
from joma.host.printing import say

STANDARD_OUTPUT = "-"
DEFAULT_OUT = Path("joma-out")
# A path has one slash where an address has two: argparse has made a path of it already.
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")


class Output(argparse.Action):
    """An option that names what a command writes: a folder, or a file of one kind.

    kinds: of a file, by the value of the option that `by` names, such as the format; empty: a folder. sent: whether a
    folder may be an address.
    """

    def __init__(
        self, *words: Any, kinds: dict[str, Kind], by: str = "", printed: bool = False, sent: bool = False, **named: Any
    ) -> None:
        super().__init__(*words, **named)
        self.kinds, self.by, self.printed, self.sent = kinds, by, printed, sent

    def __call__(self, parser: argparse.ArgumentParser, options: Any, value: Any, _: str | None = None) -> None:
        if not value:
            parser.error(f"{self.option_strings[-1]} takes the name of a {self.what}, got an empty word")
        setattr(options, self.dest, value if value == STANDARD_OUTPUT and self.printed else Path(value))

    @property
    def what(self) -> str:
        return "file" if self.kinds else "folder"


def add_folder(parser: Any, help: str, default: Path | None, metavar: str = "DIR", *, sent: bool = False) -> None:
    """Add `--out DIR`, and `--force`. sent: whether it may be an address."""
    parser.add_argument("--out", action=Output, kinds={}, sent=sent, default=default, metavar=metavar, help=help)
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
def checked(parser: Parser, options: argparse.Namespace) -> Iterator[None]:
    """Refuse outputs that cannot be written or must not be replaced; within, `--force` holds. Nothing is made.

    Where a folder is an address, the options name a local one within, and its files are sent when the block ends well.
    """
    outputs = [each for each in parser._actions if isinstance(each, Output) and getattr(options, each.dest, None)]
    before = forced.set(getattr(options, "force", False))
    with parser.naming_options(), ExitStack() as at_the_end:
        at_the_end.callback(forced.reset, before)
        folders = [getattr(options, each.dest) for each in outputs if not each.kinds]
        for folder in folders:
            refuse_files(folder)
        files: dict[Path, str] = {}
        for each in outputs:
            if each.kinds and (path := getattr(options, each.dest)) != STANDARD_OUTPUT:
                _check_file(each, path, options, folders, files)
        for each in (each for each in outputs if each.sent):
            setattr(options, each.dest, at_the_end.enter_context(uploaded(getattr(options, each.dest))))
        yield


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


def screen_beside(given: Path | str | None) -> Any:
    """Where words go: not to standard output where `--json` was given that."""
    return sys.stderr if given == STANDARD_OUTPUT else sys.stdout


def give_json(given: Path | str | None, content: dict[str, Any]) -> None:
    """Write what `--json` was given for: nothing, standard output, or a file."""
    if given == STANDARD_OUTPUT:
        say(as_json(content), keep="\n", end="")
    elif given is not None:
        write_json(named_file(given), content)


@contextmanager
def uploaded(out: Path) -> Iterator[Path]:
    """The local folder to write to. Where `out` is an address, its files are sent there when the block ends well."""
    if not _ADDRESS.match(str(out)):
        yield out
        return
    from joma.host.stores import StoreError, read_address
    from joma.scale.upload import must_be_reachable, upload

    address = str(read_address(_ADDRESS.sub(r"\1://", str(out), count=1)))
    must_be_reachable(address)
    folder = local_folder(address)
    say(f"written to {folder}, then sent to {address}", sys.stderr)
    yield folder
    try:
        say(f"{address}: {upload(folder, address)}", sys.stderr)
    except StoreError as error:
        raise StoreError(f"{error}; all of it is in {folder}, and the same command sends what is missing") from None


def local_folder(address: str) -> Path:
    """Where the files of an address are written: the same folder for the same address, so that a command goes on.

    >>> local_folder("s3://bucket/runs/a").as_posix()
    'joma-out/s3-bucket-runs-a-de961c'
    """
    words = re.sub(r"[^A-Za-z0-9._]+", "-", address).strip("-")[:40]
    return DEFAULT_OUT / f"{words}-{hashlib.sha256(address.encode()).hexdigest()[:6]}"

"""Where commands write: places refused before any work is done, and files that are written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def usable_folder(out: Path) -> None:
    """Refuse what cannot be --out before any work is done, and make it where it is not there."""
    refuse_files(out)
    out.mkdir(parents=True, exist_ok=True)


def refuse_files(out: Path) -> None:
    """Refuse what cannot be --out, and make nothing yet."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out must be a folder, but {out} is a file")


def usable_file(path: Path) -> None:
    """Refuse what cannot be --json: said now, not after minutes of work."""
    if path.exists() and not path.is_file():
        raise ValueError(f"--json must be a file, but {path} is {'a folder' if path.is_dir() else 'something else'}")
    if not path.parent.is_dir():
        raise ValueError(f"--json {path}: there is no folder {path.parent}")
    with _writing(path), _unfinished(path) as unfinished:
        unfinished.touch()


def as_json(content: dict[str, Any]) -> str:
    """As people can read it, with a line's end.

    >>> print(as_json({"rank": 0.5}), end="")
    {
     "rank": 0.5
    }
    """
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def write_json(path: Path, content: dict[str, Any]) -> None:
    """As JSON, whole or not at all."""
    write_text(path, as_json(content))


def write_text(path: Path, text: str) -> None:
    """Whole or not at all: a reader never meets half a file."""
    with _writing(path), _unfinished(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Inside this block an error of the system names `path`: that of a full disk names nothing."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror or error}") from error


@contextmanager
def _unfinished(path: Path) -> Iterator[Path]:
    """A name beside `path` that is gone afterwards."""
    unfinished = path.with_name(f".{path.name}.new")
    try:
        yield unfinished
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)

"""What may be in the place of a file that joma is to write, and whether it was left as it was."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from joma.runs import Run


class Place:
    """A name in a folder of its own, and a folder elsewhere that links can lead to."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path, self.elsewhere = folder / "here" / name, folder / "elsewhere"
        self.path.parent.mkdir()
        self.elsewhere.mkdir()

    def state(self) -> dict[str, tuple[object, ...]]:
        """All that is below both folders: kind, permissions and content."""
        found = [path for top in (self.path.parent, self.elsewhere) for path in top.rglob("*")]
        return {str(path): _state(path) for path in found}


def _state(path: Path) -> tuple[object, ...]:
    mode = path.lstat().st_mode
    if path.is_symlink():
        return (mode, os.readlink(path))
    return (mode, path.read_bytes() if path.is_file() else None)


def _archive(place: Place) -> None:
    with place.path.open("wb") as stream:
        np.savez(stream, x=np.eye(2))


def _run(place: Place) -> None:
    with Run.create(place.elsewhere / "a.sqlite", study="demo", config={}) as run:
        run.append("x", 0, 1.0)
    shutil.move(place.elsewhere / "a.sqlite", place.path)


def _database(place: Place) -> None:
    import sqlite3

    connection = sqlite3.connect(place.path)
    connection.execute("CREATE TABLE mine (x)")
    connection.commit()
    connection.close()


def _folder(place: Place) -> None:
    place.path.mkdir()
    (place.path / "mine.txt").write_text("mine")


def _link(place: Place) -> None:
    (place.elsewhere / "mine.txt").write_text("mine")
    place.path.symlink_to(place.elsewhere / "mine.txt")


TEXTS = {
    "text": "three lines\nof a novel\nwithout a last end",
    "lines": '{"loss": 1.0}\n{"loss": 0.5}\n',
    "JSON": '{"schema": 3, "from": {"schema": "joma-scan"}, "learning_rate": 0.1}\n',
    "table": "step,loss\n1,2.0\n",
    "page": "<!DOCTYPE html><html><head><title>joma: a page about it</title></head></html>",
}
OTHERS: dict[str, Callable[[Place], object]] = {
    **{name: lambda place, text=text: place.path.write_text(text) for name, text in TEXTS.items()},
    "weights": lambda place: save_file({"w": np.eye(3)}, place.path, {"joma": "no"}),
    "archive": _archive,
    "run": _run,
    "database": _database,
    "folder": _folder,
    "link to a file": _link,
    "pipe": lambda place: os.mkfifo(place.path),
    "device": lambda place: place.path.symlink_to("/dev/full"),  # a user may name it, a stranger's folder lead to it
}
"""What joma did not write as the file that is written now."""

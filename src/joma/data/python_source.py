"""A corpus that every machine with Python has: the source of its standard library."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

_LEFT_OUT = ("site-packages", "dist-packages", "__pycache__", "test", "tests", "idlelib", "lib2to3")
"""Not the library itself, or text made to be odd: test data in strange encodings, grammars, generated tables."""


def source_files() -> Iterator[Path]:
    """The standard library's .py files, in an order that depends on nothing but their names."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        if not set(path.relative_to(root).parts) & set(_LEFT_OUT):
            yield path


def source_text(characters: int | None = None) -> str:
    """The files one after another, a form feed between them, cut after `characters`. Deterministic for a version.

    Files that are not UTF-8 are skipped.

    >>> len(source_text(1000))
    1000
    """
    if characters is not None and characters < 1:
        raise ValueError(f"characters must be at least 1, got {characters}")
    parts: list[str] = []
    length = 0
    for path in source_files():
        try:
            parts.append(path.read_text(encoding="utf-8") + "\f")
        except (UnicodeDecodeError, OSError):
            continue
        length += len(parts[-1])
        if characters is not None and length >= characters:
            break
    return "".join(parts)[:characters]

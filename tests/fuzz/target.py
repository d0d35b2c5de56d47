"""What a kind of input is to the fuzzer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

Spoil = Callable[[bytes, Random, list[bytes]], bytes]


@dataclass(frozen=True)
class Target:
    """seeds: of a folder to work in. read: feeds the bytes to joma. may_raise: the documented errors."""

    seeds: Callable[[Path], list[bytes]]
    spoil: Spoil
    read: Callable[[bytes, Path], None]
    may_raise: tuple[type[Exception], ...]


def written(content: bytes, folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path

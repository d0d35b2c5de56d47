"""Kinds of files that joma writes, each recognised by its first and last bytes: only a file of ours is replaced.

A name says nothing of a file. What a kind looks for is what every joma wrote from the first version that has the kind,
and what nobody else writes by chance.
"""

import re
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

PAGE_BYTES = 4096
"""At the beginning of a file, for those kinds whose mark is there."""
FOOTER_BYTES = 2**24
"""At the end of a parquet file, at most. A run's config is in it."""


@dataclass(frozen=True)
class Ends:
    """The ends of a file: its size, and a function that reads so many bytes from a place on."""

    size: int
    read: Callable[[int, int], bytes]

    @property
    def head(self) -> bytes:
        return self.read(0, PAGE_BYTES)

    def tail(self, size: int) -> bytes:
        return self.read(max(self.size - size, 0), size)


@dataclass(frozen=True)
class Kind:
    """What joma writes: how a sentence calls it, and how a file of ours is known."""

    words: str
    is_ours: Callable[[Ends], bool]


def _begins(pattern: bytes) -> Callable[[Ends], bool]:
    found = re.compile(pattern, re.DOTALL)
    return lambda ends: found.match(ends.head) is not None


def _has_our_footer(ends: Ends) -> bool:
    """Whether a parquet file has the key "joma" among its own: the footer's length stands before its last bytes."""
    length, magic = ends.tail(8)[:4], ends.tail(4)
    if magic != b"PAR1" or (size := int.from_bytes(length, "little")) > FOOTER_BYTES:
        return False
    return b"\x18\x04joma\x18" in ends.tail(size + 8)  # a key and what follows it, in thrift's compact protocol


_POLICY = rb".{0,400}<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; .{0,400}"

JSON = Kind("JSON", _begins(rb'\s*\{\s*"schema":\s*"joma-[a-z-]+"'))
CROISSANT = Kind("Croissant metadata", _begins(rb'\s*\{\s*"@type":\s*"sc:Dataset",\s*"name":\s*"joma-'))
CHAIN = Kind("a draft of a chain", _begins(rb'\s*\{\s*"_comment":\s*"joma wrote this draft'))
PAGE = Kind("a page", _begins(rb"<!DOCTYPE html>" + _POLICY + rb"<title>joma(?: scan| view)?: "))
TABLE = Kind(
    "a table",
    _begins(
        rb"(series,step,([^\n]*,)?|(source,)?step,epoch,measure,group,layer,(expert,)?head,)value\n|"
        rb"id,verdict,remarks,says,|claim,case,arm,seed,value,says,"
    ),
)
PARQUET = Kind("a parquet file", _has_our_footer)
ARRAYS = Kind("an archive of arrays", _begins(rb"PK\x03\x04.{26}__meta__\.npy"))
CRATE_MARK = b"RO-Crate of joma"
CRATE = Kind("an RO-Crate", lambda ends: ends.head[:4] == b"PK\x03\x04" and ends.tail(len(CRATE_MARK)) == CRATE_MARK)
FIGURE_MARK = "joma"
FIGURE = Kind("a figure", _begins(rb"\x89PNG\r\n\x1a\n.{0,400}tEXtSoftware\x00" + FIGURE_MARK.encode()))
RUN = Kind("a run", _begins(rb"SQLite format 3\x00.{52}joma"))
OWN = Kind("a file", lambda ends: True)
"""A file whose name joma made up, such as that of a hash, or beside a run of its own: damaged, it is made anew."""
NEW = Kind("a file", lambda ends: False)
"""A file that must not be there."""

forced: ContextVar[bool] = ContextVar("forced", default=False)
"""Whether the user said (`--force`) that regular files may be replaced whatever they hold."""

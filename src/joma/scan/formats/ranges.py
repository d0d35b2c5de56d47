"""Bytes that a server hands out in ranges: what is needed is known before, so it is asked for in few requests at once.

A request costs a round trip, so that needed stretches with small gaps between them are read as one. All gaps together
are kept below SLACK of what is needed: a scan that reads a tenth of a checkpoint pays for a tenth. Stretches are cut
into pieces, several of which are on their way at a time, in the order in which they will be used. What has come and was
not used yet stays below HELD, so memory does not grow with the checkpoint.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from threading import Lock
from typing import BinaryIO

from joma.scan.errors import CheckpointError

READERS = 8  # requests at a time, for one file
PIECE = 2**24  # bytes of a request, at most: large ones come in parts side by side
GAP = 2**20  # bytes between two stretches that are read as one, at most: more take longer than a round trip
SLACK = 0.01  # of the bytes that are needed: what gaps may add to them
HELD = 2**28  # bytes that have come, or are on their way, and were not used yet

Range = tuple[int, int]  # the first byte, and the one after the last


def coalesced(ranges: Iterable[Range], *, gap: int = GAP, slack: float = SLACK) -> list[Range]:
    """Ranges that hold all of `ranges`, in order: neighbours are joined, the smallest gaps first."""
    joined = _joined(ranges)
    allowed = slack * sum(stop - start for start, stop in joined)
    gaps = sorted((after[0] - before[1], at) for at, (before, after) in enumerate(pairwise(joined)))
    closed = set[int]()
    for size, at in gaps:
        allowed -= size
        if size > gap or allowed < 0:
            break
        closed.add(at)
    found: list[Range] = []
    for at, (start, stop) in enumerate(joined):
        found = [*found[:-1], (found[-1][0], stop)] if at - 1 in closed else [*found, (start, stop)]
    return found


def pieces_of(start: int, stop: int, most: int = PIECE) -> list[Range]:
    """A range in parts of at most `most` bytes, about as long as each other."""
    count = max(1, -(-(stop - start) // most))
    edges = [start + (stop - start) * at // count for at in range(count + 1)]
    return list(pairwise(edges))


def _joined(ranges: Iterable[Range]) -> list[Range]:
    found: list[Range] = []
    for start, stop in sorted(each for each in ranges if each[1] > each[0]):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((start, stop))
    return found


@dataclass
class _Piece:
    """One request that will be made, is under way, or has come."""

    start: int
    stop: int
    unused: int  # bytes of it that are still expected to be read
    coming: Future[bytearray] | None = None


class RangedBytes:
    """Bytes of `size` that `fetch` reads in part; several threads may call `fetch`."""

    def __init__(
        self, name: str, size: int, fetch: Callable[[int, memoryview], None], *, readers: int = READERS
    ) -> None:
        self.name, self.size = name, size
        self._fetch, self.readers = fetch, readers
        self._pieces: list[_Piece] = []  # by place, without those that were used up
        self._ahead: list[_Piece] = []  # those not asked for yet, the first to be used last
        self._held = 0
        self._pool: ThreadPoolExecutor | None = None
        self._lock = Lock()

    def expect(self, batches: Sequence[Sequence[Range]]) -> None:
        """Say what will be read, in order. Stretches are joined within a batch; few bytes are one batch.

        Bytes that are expected and read a second time are asked for again.
        """
        self._forget()
        together = [each for batch in batches for each in batch]
        small = sum(stop - start for start, stop in _joined(together)) <= HELD
        known: list[Range] = []
        planned: list[_Piece] = []
        for batch in [together] if small else batches:
            # What an earlier batch reads is not read again for this one.
            wanted = _without(_joined(batch), known)
            joined = _without(coalesced(wanted), known)
            pieces = [_Piece(*part, 0) for each in joined for part in pieces_of(*each, PIECE)]
            for piece in pieces:
                piece.unused = sum(max(0, min(b, piece.stop) - max(a, piece.start)) for a, b in wanted)
            planned += _in_order(pieces, batch)
            known = _joined([*known, *joined])
        self._pieces = sorted(planned, key=lambda piece: piece.start)
        self._ahead = planned[::-1]
        with self._lock:
            self._ask()

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill `buffer` with the bytes from `start` on."""
        at, stop = start, start + len(buffer)
        if start < 0 or stop > self.size:
            what = f"ends at byte {self.size:,}, before byte {stop:,} that it should hold"
            raise CheckpointError(f"{self.name} {what}", file=self.name)
        while at < stop:
            piece, until = self._at(at, stop)
            part = buffer[at - start : until - start]
            if piece is None:
                self._fetch(at, part)
            else:
                part[:] = self._content(piece)[at - piece.start : until - piece.start]
                self._use(piece, until - at)
            at = until

    def copy_to(self, stream: BinaryIO) -> None:
        begin = stream.tell()
        parts = pieces_of(begin, self.size, PIECE) if begin < self.size else []
        self.expect([[part] for part in parts])
        for start, stop in parts:
            buffer = memoryview(bytearray(stop - start))
            self.read_into(start, buffer)
            stream.write(buffer)

    def prefetch(self, start: int, length: int) -> None:
        """Nothing: what is read next was said by `expect`."""

    def close(self) -> None:
        """Nothing more is asked for; what is under way is not waited for."""
        self._forget()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _forget(self) -> None:
        with self._lock:
            for piece in self._pieces:
                if piece.coming is not None:
                    piece.coming.cancel()
            self._pieces, self._ahead, self._held = [], [], 0

    def _at(self, at: int, stop: int) -> tuple[_Piece | None, int]:
        """The piece that holds the byte `at`, or None, and up to where that is so."""
        with self._lock:
            place = bisect_right(self._pieces, at, key=lambda piece: piece.start)
            if place and at < self._pieces[place - 1].stop:
                return self._pieces[place - 1], min(stop, self._pieces[place - 1].stop)
            return None, min([stop, at + PIECE, *(piece.start for piece in self._pieces[place : place + 1])])

    def _content(self, piece: _Piece) -> bytearray:
        with self._lock:
            if piece.coming is None:  # it is needed before its turn
                self._ahead.remove(piece)
                self._start(piece)
            coming = piece.coming
        assert coming is not None
        return coming.result()

    def _use(self, piece: _Piece, count: int) -> None:
        with self._lock:
            piece.unused -= count
            if piece.unused <= 0 and piece in self._pieces:
                self._pieces.remove(piece)
                self._held -= piece.stop - piece.start
            self._ask()

    def _ask(self) -> None:
        """Ask for the next pieces as far as there is room for them. The caller holds the lock."""
        while self._ahead and self._held + self._ahead[-1].stop - self._ahead[-1].start <= HELD:
            self._start(self._ahead.pop())

    def _start(self, piece: _Piece) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.readers, thread_name_prefix="joma-read")
        self._held += piece.stop - piece.start
        piece.coming = self._pool.submit(self._fetched, piece.start, piece.stop)

    def _fetched(self, start: int, stop: int) -> bytearray:
        content = bytearray(stop - start)
        self._fetch(start, memoryview(content))
        return content


def _without(ranges: Iterable[Range], known: Sequence[Range]) -> list[Range]:
    """The parts of `ranges` that lie in none of `known`, which are in order and apart."""
    found: list[Range] = []
    for start, stop in ranges:
        for begin, end in known:
            if begin < stop and end > start:
                if begin > start:
                    found.append((start, begin))
                start = max(start, end)
        if start < stop:
            found.append((start, stop))
    return found


def _in_order(pieces: list[_Piece], ranges: Sequence[Range]) -> list[_Piece]:
    """Pieces, which are in order of place, in the order in which `ranges` first need them."""
    starts, order = [piece.start for piece in pieces], dict[int, None]()
    for start, stop in ranges:
        at = max(bisect_right(starts, start) - 1, 0)
        while at < len(pieces) and pieces[at].start < stop:
            if pieces[at].stop > start:
                order.setdefault(at)
            at += 1
    return [pieces[at] for at in order]

"""A folder for downloads that stays within a budget: what was not used for longest is removed first."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from joma.scan.errors import CheckpointError


class DiskCache:
    """Downloads under `folder`, a subfolder per checkpoint, of at most `budget` bytes together."""

    def __init__(self, folder: Path, budget: int) -> None:
        self.folder = folder
        self.budget = budget
        self._held: dict[Path, list[int]] = {}  # subfolders in use, and the bytes promised to each of their users
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, part: Path, size: int, what: str) -> Iterator[None]:
        """Room for `size` bytes in the subfolder `part`, which nobody removes meanwhile; waits until there is room.

        what: the checkpoint, for the sentence that says that it can never fit.
        """
        if size > self.budget:
            raise CheckpointError(
                f"{what} must be downloaded whole and has {size / 1e9:.2f} GB, the budget is "
                f"{self.budget / 1e9:.2f} GB; raise it with --budget"
            )
        with self._changed:
            self._changed.wait_for(lambda: self._promised({**self._held, part: [*self._held.get(part, []), size]}))
            self._held.setdefault(part, []).append(size)
            self._make_room()
        try:
            yield
        finally:
            with self._changed:
                self._held[part].remove(size)
                if not self._held[part]:
                    del self._held[part]
                self._changed.notify_all()

    def touch(self, path: Path) -> None:
        """Remember that a file was used just now."""
        os.utime(path)

    def _promised(self, held: dict[Path, list[int]]) -> bool:
        """Whether these holders fit together; users of the same subfolder share its files."""
        return sum(max(sizes) for sizes in held.values()) <= self.budget

    def _make_room(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        files = [p for p in self.folder.rglob("*") if p.is_file() and self._held.keys().isdisjoint(p.parents)]
        ages = sorted((p.stat().st_mtime_ns, p.stat().st_size, p) for p in files)
        room = self.budget - sum(max(sizes) for sizes in self._held.values())
        there = sum(size for _, size, _ in ages)
        for _, size, path in ages:
            if there <= room:
                return
            path.unlink(missing_ok=True)
            there -= size

"""What a run file says of itself, believed only as far as it can be: damage makes anything of it, and so do people."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np

from joma.runs.errors import RunError
from joma.runs.session import Session
from joma.runs.values import Packed, unpack


class Checked(Session):
    """A session whose answers are what they should be, or a `RunError`."""

    def _told(self, key: str, *kinds: type) -> Any:
        """What the run knows about itself; a file that was tampered with may hold anything there."""
        value = self._meta(key)
        if type(value) not in kinds:
            raise RunError(f"{self.path} is damaged: its {key} cannot be read")
        return value

    def _meta_or_none(self, key: str) -> Any:
        return self._meta(key) if self._rows("SELECT 1 FROM meta WHERE key = ?", key) else None

    @cached_property
    def _sealed(self) -> dict[str, int]:
        """How many steps each series of a finished run has; empty before, and in files of earlier versions."""
        if self._lock is not None or not self._rows("SELECT 1 FROM meta WHERE key = 'sealed'"):
            return {}
        told: dict[str, int] = self._told("sealed", dict)
        return told

    def _must_be_all(self, name: str, steps: int) -> None:
        """Every row has its checksum, so a changed one is noticed; this notices one that is gone."""
        if name in self._sealed and steps != self._sealed[name]:
            raise RunError(
                f"{self.path} is damaged: series {name!r} has {steps} of the {self._sealed[name]} steps recorded"
            )

    def _whole(self, steps: list[Any], name: str) -> list[int]:
        """Steps, if they are numbers: damage makes anything of them."""
        if not all(type(step) is int for step in steps):
            raise RunError(f"{self.path} is damaged: the steps of {name!r} cannot be read")
        return steps

    def _readable(self, what: str, read: Callable[[Any], Any], value: Any) -> Any:
        try:
            return read(value)
        except (AttributeError, TypeError, ValueError):
            raise RunError(f"{self.path} is damaged: the {what} cannot be read") from None

    def _unpacked(self, name: str, step: int, *packed: Any) -> np.ndarray:
        with self._told_apart():
            return unpack(Packed(*packed), name, step)

    @contextmanager
    def _told_apart(self) -> Iterator[None]:
        """An error inside names the file."""
        try:
            yield
        except RunError as error:
            raise RunError(f"{self.path}: {error}") from None

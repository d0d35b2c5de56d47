"""What `joma watch` looks at: the runs at a path, those that cannot be read, and the series that measure something."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from joma.host.errors import BadInput
from joma.host.words import counted

if TYPE_CHECKING:
    from joma.runs.following import Follower, Numbers, Seen

T = TypeVar("T")
NO_MEASURES = ("sketch", "checksum", "identity", "steps_taken")
"""Series of `joma scan` and of a monitor that hold numbers, but measure nothing."""


class Fault:
    """A run that cannot be read now, and why, in one sentence."""

    over = True
    """Nobody waits for it."""

    def __init__(self, path: Path, why: str) -> None:
        """path: of the run."""
        self.path, self.why = path, why


class Folder:
    """The runs at a path: one, or those of a folder."""

    def __init__(self, path: Path) -> None:
        """path: a run or a folder."""
        self.path = path
        self.one = not path.is_dir()
        self._followers: dict[Path, Follower] = {}

    def look(self) -> list[Seen | Fault]:
        """All runs, those written last first. One that cannot be read does not stop the others."""
        from joma.runs.errors import RunError
        from joma.runs.following import Follower, must_stay_in, runs_in

        if self.one and not self._followers:  # the first look: what is no run is refused
            self._followers[self.path] = Follower(self.path)
            return [self._followers[self.path].look()]
        paths = [self.path] if self.one else runs_in(self.path)
        if not paths and not self._followers:
            writers = "joma.monitor, joma scan and joma verify write them"
            raise BadInput(f"{self.path} holds no run; {writers}, and joma watch looks there and in its folder runs")
        found: list[Seen | Fault] = []
        for path in paths:
            try:
                if not self.one:
                    must_stay_in(path, self.path)
                found.append(self._followers.setdefault(path, Follower(path)).look())
            except (RunError, OSError) as error:
                found.append(Fault(path, str(error)))
        return found


def measures_of(series: dict[str, T]) -> dict[str, T]:
    """Without the series that measure nothing."""
    return {name: each for name, each in series.items() if name.partition("/")[0] not in NO_MEASURES}


def in_words(numbers: Numbers) -> str:
    """A number, or the mean of several with the smallest and the largest."""
    if numbers.mean is None:
        return "no number"
    if numbers.count == 1:
        return f"{numbers.mean:.4g}"
    lost = numbers.count - numbers.finite
    none = f", {lost} of {numbers.count} no number" if lost else ""
    return f"{numbers.mean:.4g} ({numbers.min:.4g} to {numbers.max:.4g}{none})"


def listed(found: Sequence[Seen | Fault]) -> str:
    """How many runs there are.

    >>> listed([])
    'no runs'
    """
    return counted(len(found), "run") if found else "no runs"

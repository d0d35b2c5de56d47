"""Where all three hosts get what they show: the index of runs, the numbers of a series, new rows, claims, titles.

Runs are known by ids that the feed makes itself. A question names an id, never a path, so nobody can ask for a file
outside of what was given.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np

from joma.host.errors import JomaError
from joma.runs import Run, RunError
from joma.runs.following import ALARMS, MONITOR, mark_of, must_stay_in, read_patiently, runs_in
from joma.runs.tail import Held, held, rows_after
from joma.view.claims import Kept, claims_in, ledgers_in
from joma.view.entries import MOST_ALARMS, SCAN, alarms_after, entry_of, series_of
from joma.view.module import static
from joma.view.packing import Answer, packed
from joma.view.scans import scan_entry, scan_numbers, scan_of
from joma.view.thinning import mean_over, thin, whole_steps

Compact = Callable[[str], str]
"""From an SVG to the same picture in fewer bytes."""
POINTS = 2000
"""Of a curve that a page is sent at a time; more are asked for where somebody zooms in."""
_MOST_POINTS = 20_000  # of one answer
_ANSWERS = 32  # of long series that are kept
_REMEMBERED = 2**28  # bytes of arrays that are kept in memory: of a long series reading is what takes time


class Unknown(JomaError):
    """A question for something that is not there."""


@dataclass
class _Watched:
    """One run between two looks. folder: that it must be in; None: it was named itself."""

    path: Path
    folder: Path | None = None
    mark: tuple[Any, ...] | None = None
    identity: tuple[Any, ...] = ()
    held: dict[str, Held] = field(default_factory=dict)
    entry: dict[str, Any] = field(default_factory=dict)
    alarms: list[dict[str, Any]] = field(default_factory=list)
    alarms_row: int = 0
    alarm_count: int = 0

    def forget(self, identity: tuple[Any, ...]) -> None:
        self.identity, self.held, self.alarms, self.alarms_row, self.alarm_count = identity, {}, [], 0, 0


class Feed:
    """What pages ask for. Only reads; a run that cannot be read is named and stops nothing."""

    def __init__(self, paths: Sequence[Path], *, kept: Kept | None = None, compact: Compact | None = None) -> None:
        """paths: runs, and folders with runs. kept: gives what is kept at paper scale on a claim. compact: makes the
        figures of studies small.
        """
        self.paths, self._kept, self._compact = list(paths), kept, compact
        self._runs: dict[str, _Watched] = {}
        self._arrays: OrderedDict[tuple[Any, ...], tuple[np.ndarray, np.ndarray, int]] = OrderedDict()
        self._answers: dict[tuple[Any, ...], Answer] = {}
        self._figures: dict[tuple[Any, ...], list[dict[str, str]]] = {}
        self._lock = RLock()

    def index(self) -> dict[str, Any]:
        """All runs, those written last first; what did not change since the last look is not opened."""
        with self._lock:
            places = self._places()
            self._runs = {id: self._runs.get(id) or _Watched(*place) for id, place in places.items()}
            has_claims = any(path.is_dir() and bool(ledgers_in(path)) for path in self.paths)
            return {"runs": [self._look(id, each) for id, each in self._runs.items()], "claims": has_claims}

    def series(
        self, run: str, name: str, *, points: int = POINTS, low: float | None = None, high: float | None = None,
        whole: bool = False, means: Sequence[str] = (),
    ) -> Answer:  # fmt: skip
        """Numbers of a series, thinned to at most `points` steps."""
        with self._lock:
            known = self._known(run)
            steps, values, cursor = self._numbers(known, name)
            axes = _axes(known, name, means)
            key = (known.path, known.mark, name, points, low, high, whole, tuple(means))
        if (known_answer := self._answers.get(key)) is not None:  # another thread may drop it at any moment
            return known_answer
        first = 0 if low is None else max(int(np.searchsorted(steps, low)) - 1, 0)
        end = len(steps) if high is None else int(np.searchsorted(steps, high, side="right")) + 1
        part = mean_over(values[first:end], axes)
        at, kept = (whole_steps if whole else thin)(steps[first:end], part, points)
        words = {"run": run, "series": name, "cursor": cursor, "of": len(part), "means": list(means)}
        answer = packed(at, kept, thinned=len(at) < len(part), **words)
        if len(steps) > POINTS:  # several pages, or one that is opened again, ask for the same
            self._answers[key] = answer
            while len(self._answers) > _ANSWERS:
                self._answers.pop(next(iter(self._answers)), None)
        return answer

    def numbers(self, run: str, name: str) -> tuple[np.ndarray, np.ndarray]:
        """All steps of a series, and what was recorded there. run: its id. name: of the series."""
        with self._lock:
            return self._numbers(self._known(run), name)[:2]

    def after(self, run: str, name: str, cursor: int, *, means: Sequence[str] = ()) -> Answer:
        """What was written of a series behind a cursor. A scan, which has few steps, gives all of them: a checkpoint
        may come before others that were measured earlier.
        """
        with self._lock:
            known = self._known(run)
            if known.entry.get("study") == SCAN:
                steps, values, count = self._numbers(known, name)
                new, at, rows = count, steps, values
            else:
                steps_new, arrays, new = read_patiently(known.path, lambda opened, _: rows_after(opened, name, cursor))
                shapes = {array.shape for array in arrays}
                if len(shapes) > 1:
                    raise RunError(f"{name!r} in {known.path.name} has steps of different shapes")
                at, rows = np.array(steps_new, np.int64), np.stack(arrays) if arrays else np.zeros((0,))
        rows = mean_over(rows, _axes(known, name, means)) if len(at) else rows
        return packed(at, rows, run=run, series=name, cursor=new, after=cursor, means=list(means))

    def claims(self) -> list[dict[str, Any]]:
        return [claim for path in self.paths if path.is_dir() for claim in claims_in(path, self._kept)]

    def figures(self, run: str) -> list[dict[str, str]]:
        """The figures of the study that a run is of: name, caption, alt and svg of each. run: its id."""
        with self._lock:
            known = self._known(run)
            key = (known.path, known.mark)
        if key not in self._figures:  # drawn without the lock: others are answered meanwhile
            self._figures[key] = figures_of(known.path, self._compact)
        return self._figures[key]

    def answer(self, ask: str, words: Mapping[str, Any], means: Sequence[str] = ()) -> Answer | dict[str, Any]:
        """What a page gets for a question. One that makes no sense is a KeyError, TypeError or ValueError."""
        if ask in ("claims", "titles"):
            return {ask: getattr(self, ask)()}
        if ask == "figures":
            return {ask: self.figures(words["run"])}
        if ask == "after":
            return self.after(words["run"], words["series"], int(words["cursor"]), means=means)
        low, high = (None if words.get(name) is None else float(words[name]) for name in ("low", "high"))
        points, whole = min(int(words.get("points", POINTS)), _MOST_POINTS), words.get("whole") in (True, "1")
        return self.series(words["run"], words["series"], points=points, low=low, high=high, whole=whole, means=means)

    def titles(self) -> dict[str, str]:
        # Built by docs/view_titles.py from joma.measure.registry: to load that takes seconds, in which a page opens.
        return json.loads(static("titles.json"))  # type: ignore[no-any-return]

    def _places(self) -> dict[str, tuple[Path, Path | None]]:
        found: dict[str, tuple[Path, Path | None]] = {}
        for path in self.paths:
            inside = runs_in(path) or _records_in(path) if path.is_dir() else [path]
            for each in inside:
                name = each.relative_to(path).as_posix() if path.is_dir() else path.name
                id = name if len(self.paths) == 1 else f"{path.name}/{name}" if path.is_dir() else name
                found[_free(id, found)] = each, path if path.is_dir() else None
        return found

    def _look(self, id: str, watched: _Watched) -> dict[str, Any]:
        mark = mark_of(watched.path)
        if watched.mark != mark:
            try:
                if watched.folder is not None:
                    must_stay_in(watched.path, watched.folder)
                entry = read_patiently(watched.path, lambda run, writer: self._read(id, watched, run, writer))
                if entry != watched.entry:  # what did not change is not told again
                    watched.entry = entry
            except (RunError, OSError) as error:
                watched.entry = {"id": id, "name": watched.path.name, "fault": str(error)}
                watched.forget(())
            watched.mark = mark
        return watched.entry

    def _read(self, id: str, watched: _Watched, run: Run, writer: int | None) -> dict[str, Any]:
        identity = (run.created, run.study, watched.path.stat().st_ino)
        if identity != watched.identity:  # another run may have got the name
            watched.forget(identity)
        if run.study == SCAN:
            entry = scan_entry(id, watched.path, run, writer, scan_of(run))
        else:
            watched.held = held(run, watched.held)
            entry = entry_of(id, watched.path, run, writer, series_of(watched.held))
            entry |= self._alarms(watched, run)
        return {**entry, "identity": " ".join(map(str, identity))}

    def _alarms(self, watched: _Watched, run: Run) -> dict[str, Any]:
        """The last alarms, and how many there are in all; those of earlier looks are not read again."""
        row = watched.held[ALARMS].row if run.study == MONITOR and ALARMS in watched.held else 0
        if row > watched.alarms_row:
            more = alarms_after(run, watched.alarms_row)
            watched.alarms, watched.alarms_row = [*watched.alarms, *more][-MOST_ALARMS:], row
            watched.alarm_count += len(more)
        return {"alarms": watched.alarms, "alarm_count": watched.alarm_count}

    def _known(self, id: str) -> _Watched:
        if id not in self._runs:
            self.index()
        known = self._runs.get(id)
        if known is None:
            raise Unknown(f"there is no run {id!r}")
        if "fault" in self._look(id, known):
            raise RunError(known.entry["fault"])
        return known

    def _numbers(self, known: _Watched, name: str) -> tuple[np.ndarray, np.ndarray, int]:
        if name not in {each["name"] for each in known.entry["series"]}:
            raise Unknown(f"{known.path.name} has no series {name!r}")
        key = (known.path, known.identity, name)
        mark = known.mark if known.entry["study"] == SCAN else known.held[name].row
        if key in self._arrays and self._arrays[key][2] == mark:
            self._arrays.move_to_end(key)
        else:
            before = self._arrays.pop(key, None)
            self._arrays[key] = read_patiently(known.path, lambda run, _: _read_numbers(run, name, mark, before))
            while len(self._arrays) > 1 and sum(each[1].nbytes for each in self._arrays.values()) > _REMEMBERED:
                self._arrays.popitem(last=False)
        steps, values, _ = self._arrays[key]
        return steps, values, len(steps) if known.entry["study"] == SCAN else known.held[name].row


def _axes(known: _Watched, name: str, means: Sequence[str]) -> tuple[int, ...]:
    dims: list[Any] = next((each["dims"] for each in known.entry["series"] if each["name"] == name), [])
    return tuple(at + 1 for at, dim in enumerate(dims) if dim["name"] in means)


def _read_numbers(
    run: Run, name: str, mark: Any, before: tuple[np.ndarray, np.ndarray, Any] | None
) -> tuple[np.ndarray, np.ndarray, Any]:
    """Steps, values and mark of a series. before: what was read earlier; of a run that grows only new rows are read."""
    if run.study == SCAN:
        return (*scan_numbers(scan_of(run), name), mark)
    if before is not None:
        steps, values, row = before
        more, arrays, last = rows_after(run, name, row)
        alike = all((each.shape, each.dtype) == (values.shape[1:], values.dtype) for each in arrays)
        if more and alike and steps[-1] < more[0] and more == sorted(more):
            return np.append(steps, more), np.concatenate([values, np.stack(arrays)]), last
    return run.steps(name), run.array(name), mark


def _records_in(folder: Path) -> list[Path]:
    """Kept records: a folder per study."""
    return [run for each in sorted(folder.iterdir()) if each.is_dir() for run in runs_in(each)]


def _free(id: str, taken: dict[str, Any]) -> str:
    count = 1
    while (free := id if count == 1 else f"{id} ({count})") in taken:
        count += 1
    return free


def figures_of(path: Path, compact: Compact | None = None) -> list[dict[str, str]]:
    """Name, caption, alternative text and SVG of every figure; none of a run that no study draws."""
    from joma.claims.execute import draw  # takes seconds to load
    from joma.studies import is_trusted, load

    def drawn(run: Run, _: int | None) -> list[dict[str, str]]:
        if not is_trusted(run.study) or run.status != "finished":
            return []
        try:
            pictures = draw(load(run.study), run)
        except RunError:
            raise
        except Exception as error:  # whatever a record of another version holds, the page goes on
            raise RunError(f"the figures of {path.name} cannot be drawn: {type(error).__name__}: {error}") from error
        return [
            {"name": one.name, "caption": one.caption, "alt": one.alt, "svg": _alone((compact or str)(one.svg))}
            for one in pictures
        ]

    return read_patiently(path, drawn)


def _alone(svg: str) -> str:
    """An SVG that stands for itself: inside a page it needs neither the name of its language nor letters of its own."""
    opening = svg.partition(">")[0]
    more = "" if "xmlns=" in opening else ' xmlns="http://www.w3.org/2000/svg"'
    return svg.replace("<svg", f'<svg{more} font-family="DejaVu Sans, Verdana, sans-serif"', 1)

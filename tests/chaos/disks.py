"""Disks that are full or read-only: a sentence and a documented status, nothing lost, and all goes on with room."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from chaos.kills import SCAN, VERIFY
from chaos.score import Score, Setting, plain, timed
from chaos.warm import Child
from chaos.work import curves, findings, series
from joma.runs import RunError

SIZE = 4 << 20
ROOM = (0, 1, 3, 8, 16, 40, 100, 200, 400)
"""Kilobytes left on the full disk."""
FORMATS = ("csv", "parquet", "npz")


class NoMount(Exception):
    """A disk of our own cannot be had here."""


@dataclass
class Disk:
    """A small disk of its own."""

    place: Path

    @property
    def filler(self) -> Path:
        return self.place / "filler"

    def fill(self, kilobytes: int) -> None:
        free = shutil.disk_usage(self.place).free
        with self.filler.open("wb") as stream:
            stream.write(bytes(max(free - kilobytes * 1024, 0)))

    def empty(self) -> None:
        self.filler.unlink(missing_ok=True)

    def write_protected(self, protected: bool) -> None:
        _mount("-o", f"remount,{'ro' if protected else 'rw'}", self.place)


@contextmanager
def disk(place: Path) -> Iterator[Disk]:
    _mount("-t", "tmpfs", "-o", f"size={SIZE}", "joma-chaos", place)
    try:
        yield Disk(place)
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


def _mount(*arguments: object) -> None:
    try:
        done = subprocess.run(["mount", *map(str, arguments)], capture_output=True, text=True)
    except FileNotFoundError as error:
        raise NoMount("there is no program mount") from error
    if done.returncode:
        raise NoMount(f"nothing can be mounted here: {done.stderr.strip()}")


def disturb(setting: Setting) -> Score:
    score = Score("disks")
    try:
        for number in range(setting.rounds):
            with disk(setting.place(f"disk-{number}")) as small:
                _one_disk(setting, score, small, setting.place(f"beside-{number}"))
    except NoMount as reason:
        score.skipped.append(str(reason))
    return score


def _one_disk(setting: Setting, score: Score, small: Disk, beside: Path) -> None:
    out, run = small.place / "out", small.place / "a.sqlite"
    setting.warm.done("chaos.work:make_run", run, 10)
    for command in (VERIFY[0], SCAN):
        timed(command.started(setting, out))
    page, kept = (out / "report.html").read_text(), Kept(out, run)
    joma = setting.warm.joma
    commands = (
        ("verify", lambda out: VERIFY[0].started(setting, out)),
        ("scan", lambda out: SCAN.started(setting, out)),
        ("report", lambda out: joma("report", out)),
        ("export", lambda out: joma("export", run, "--to", setting.dice.choice(FORMATS), "--out", out / "a")),
    )
    for name, started in commands[: 1 if setting.short else None]:
        for room in setting.dice.sample(ROOM, 1 if setting.short else 4):
            new = small.place / f"{name}-{room}"
            new.mkdir()
            if name == "report":
                shutil.copytree(out / "runs", new / "runs")
            small.fill(room)
            _refused(started(new), score, f"{name} on a disk with {room} kB", full=True)
            if name in ("verify", "report"):
                _refused(started(out), score, f"{name} of what is there, on a disk with {room} kB", full=True)
            kept.check(score)
            if not (out / "report.html").read_text().endswith("</html>\n") and page.endswith("</html>\n"):
                score.err("half a page on a full disk")
            small.empty()
            _goes_on(started, new, score, f"{name} after a full disk", kept, name)
            shutil.rmtree(new)
    _read_only(setting, small, beside, commands, score, kept)


@dataclass
class Kept:
    """What was recorded before."""

    out: Path
    run: Path

    def __post_init__(self) -> None:
        self.before = self.now()
        self.found, self.curves = findings(self.out / "findings.json"), curves(self.out / "curves.json")

    def now(self) -> list[object]:
        return [series(path) for path in [self.run, *sorted((self.out / "runs").glob("*.sqlite"))]]

    def check(self, score: Score) -> None:
        try:
            score.same(self.now(), self.before, "what was recorded before")
            score.same(findings(self.out / "findings.json"), self.found, "findings.json of before")
        except (RunError, ValueError) as error:
            score.lose(f"what was recorded before cannot be read: {error}")


def _refused(child: Child, score: Score, what: str, *, full: bool) -> None:
    status, said = child.wait(), child.said().strip()
    score.disturbances += 1
    score.count("ended well" if status == 0 else "ended in a sentence")
    broke = [line for line in child.printed().splitlines() if "broke: " in line]
    if status not in (0, 1, 2) or not plain(said) or (status and not said and not broke):
        score.wonder(f"{what}: status {status}; it said {said[-300:]!r}, printed {child.printed()[-200:]!r}")
    if not full and status == 0:
        score.wonder(f"{what}: it ended well where nothing can be written")


def _goes_on(started: object, out: Path, score: Score, what: str, kept: Kept, name: str) -> None:
    child: Child = started(out)  # type: ignore[operator]
    if child.wait() != 0:
        score.lose(f"{what} does not go on: status {child.wait()}, {child.said()[-300:]!r} {child.printed()[-200:]!r}")
    elif name in ("verify", "report"):
        score.same(findings(out / "findings.json"), kept.found, f"findings.json of {what}")
    elif name == "scan":
        score.same(curves(out / "curves.json"), kept.curves, f"curves of {what}")


def _read_only(setting: Setting, small: Disk, beside: Path, commands: object, score: Score, kept: Kept) -> None:
    small.write_protected(True)
    try:
        for name, started in commands:  # type: ignore[attr-defined]
            _refused(started(small.place / "out"), score, f"{name} into a read-only folder", full=False)
        kept.check(score)
        score.disturbances += 2
        report = setting.warm.joma("report", small.place / "out", "--out", beside)
        score.same(report.wait(), 0, f"the status of a report of a read-only folder ({report.said()[-200:]!r})")
        score.same(findings(beside / "findings.json"), kept.found, "findings.json of a read-only folder")
        exported = setting.warm.joma("export", kept.run, "--to", "csv", "--out", beside / "a.csv")
        score.same(exported.wait(), 0, f"the status of an export from a read-only folder ({exported.said()[-200:]!r})")
    finally:
        small.write_protected(False)
    kept.check(score)
    if os.path.exists(small.place / "out" / "a"):
        score.err("an export into a read-only folder left a file")

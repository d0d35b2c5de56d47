"""`joma scan --on ray` whose workers and driver are killed: its record must be that of a scan in peace, bit for bit.

Forty checkpoints, four workers of Ray on this machine; 26 and two in the short form, as each worker loads torch anew.
Two workers die at work, then the driver. Given again, the scan goes on.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from patience import PATIENCE, until

from chaos.score import Score, Setting
from chaos.verify import family
from chaos.work import series

CHECKPOINTS, WORKERS = (40, 26), (4, 2)
"""Of the long and of the short form: more checkpoints than are recorded when the driver dies."""
KILLS = 3
"""In one scan: two workers, and the driver."""
AT_WORK = "ray::joma "


def disturb(setting: Setting) -> Score:
    score = Score("ray")
    if find_spec("ray") is None:
        score.skipped.append("ray is not installed")
        return score
    source, whole = setting.place("checkpoints"), setting.place("undisturbed")
    setting.warm.done("chaos.work:make_slow_checkpoints", source, CHECKPOINTS[setting.short])
    assert setting.warm.joma("scan", source, "--out", whole, "--measures", "alpha", "--no-page").wait() == 0
    expected = series(record(whole))
    for number in range(max(setting.rounds // KILLS, 1)):
        out = setting.place(f"out-{number}")
        with sockets() as folder:
            killed(setting, source, out, folder, score)
            ends_right(setting, source, out, folder, expected, score)
    return score


def started(setting: Setting, source: Path, out: Path, folder: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "joma", "scan", str(source), "--out", str(out), "--measures", "alpha", "--no-page"]
    return subprocess.Popen(
        [*command, "--on", "ray", "--jobs", str(WORKERS[setting.short])],
        env={**os.environ, "TMPDIR": folder, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def sockets():
    """A folder with a short name: Ray's sockets lie in it. What a killed driver leaves there goes with it."""
    folder = tempfile.mkdtemp(prefix="jr-", dir="/tmp")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def record(out: Path) -> Path:
    return next((out / "runs").glob("*.sqlite"), out / "none")


def recorded(out: Path) -> int:
    """How many steps the record holds by now."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{record(out)}?mode=ro", uri=True)) as connection:
        return connection.execute("SELECT count(DISTINCT step) FROM entries").fetchone()[0]
    return 0


def workers(root: int) -> list[int]:
    """The processes of Ray that work on a checkpoint just now."""
    return [pid for pid in family(root) if title(pid).startswith(AT_WORK)]


def title(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace")
    return ""


def alive(pid: int) -> bool:
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def killed(setting: Setting, source: Path, out: Path, folder: str, score: Score) -> None:
    """Kill a worker at its first checkpoint, one after some are recorded, and then the driver."""
    driver = started(setting, source, out, folder)
    try:
        for enough in (0, setting.dice.randint(2, 8)):
            until(lambda enough=enough: (recorded(out) >= enough and workers(driver.pid)) or driver.poll() is not None)
            for pid in workers(driver.pid)[:1]:
                with suppress(ProcessLookupError):  # it ended meanwhile
                    os.kill(pid, signal.SIGKILL)
                    counted(score, "SIGKILL of a worker at work")
        enough = setting.dice.randint(9, 20)
        until(lambda: recorded(out) >= enough or driver.poll() is not None)
        everybody = family(driver.pid)
        if driver.poll() is not None:
            score.wonder(f"the driver ended before it was killed: {driver.communicate()[1][-300:]!r}")
            return
        driver.kill()
        counted(score, "SIGKILL of the driver")
        driver.communicate(timeout=PATIENCE)
        until(lambda: not any(map(alive, everybody)))
    finally:
        for pid in family(driver.pid) if driver.poll() is None else ():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def counted(score: Score, what: str) -> None:
    score.count(what)
    score.kills, score.disturbances = score.kills + 1, score.disturbances + 1


def ends_right(setting: Setting, source: Path, out: Path, folder: str, expected: object, score: Score) -> None:
    """Left in peace now, it measures the rest, and says nothing but its own lines."""
    before = recorded(out)
    driver = started(setting, source, out, folder)
    until(lambda: workers(driver.pid) or driver.poll() is not None)
    everybody = family(driver.pid)
    said, complaints = driver.communicate(timeout=PATIENCE)
    if driver.returncode != 0:
        score.lose(f"the scan cannot be taken up: {complaints[-300:]!r}")
        return
    score.same(series(record(out)), expected, "the record of the scan")
    kept = said.count("recorded already")
    if not 0 < before <= kept:
        score.lose(f"{before} steps were recorded, and {CHECKPOINTS[setting.short] - kept} were measured again")
    if odd := [line for line in complaints.splitlines() if not line.startswith("(elsewhere")]:
        score.wonder(f"it said {odd[0]!r}")
    until(lambda: not any(map(alive, everybody)))
    score.count("scanned to the end")

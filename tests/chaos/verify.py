"""`joma verify` that is killed and given again until it ends: its findings must be those of one left in peace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from chaos.score import Score, Setting, kill_within, timed
from chaos.warm import Child
from chaos.work import STUDIES, findings


def disturb(setting: Setting) -> Score:
    score = Score("verify")
    side_by_side = 0 if setting.short else min(6, setting.rounds // 8)
    studies = STUDIES[:1] if setting.short else STUDIES
    for place, study in enumerate(studies):
        _study(setting, score, study, (setting.rounds - side_by_side) * (place + 1) // len(studies))
    if side_by_side:
        _several(setting, score, side_by_side)
    return score


def command(study: str, out: Path) -> tuple[str, ...]:
    return "verify", study, "--threads", "1", "--out", str(out)


def started(setting: Setting, study: str, out: Path) -> Child:
    return setting.warm.joma(*command(study, out))


def _study(setting: Setting, score: Score, study: str, kills: int) -> None:
    """One study after the other, each in the process that is killed."""
    whole = setting.place(f"{study}-undisturbed")
    seconds = timed(started(setting, study, whole))
    expected, verified = findings(whole / "findings.json"), 0
    while score.kills < kills:
        out = setting.place(f"{study}-{verified}")
        for _ in range(min(setting.dice.randint(1, 5), kills - score.kills)):
            if not kill_within(started(setting, study, out), seconds, setting.dice, score):
                break
        ends_right(setting, study, out, expected, score)
        verified += 1
    score.count("verified to the end", verified)


def ends_right(setting: Setting, study: str, out: Path, expected: object, score: Score) -> None:
    """Left in peace now, it ends, with the same findings and a whole page."""
    last = started(setting, study, out)
    if last.wait() != 0:
        score.lose(f"verify {study} cannot be taken up: {(last.said() or last.printed())[-300:]!r}")
        return
    score.same(findings(out / "findings.json"), expected, f"findings.json of {study}")
    if not (out / "report.html").read_text(encoding="utf-8").rstrip().endswith("</html>"):
        score.err("report.html is cut off")


def _several(setting: Setting, score: Score, kills: int) -> None:
    """Several studies side by side, started from nothing; also a kill of the parent alone, which leaves its workers."""
    whole, out = setting.place("several-undisturbed"), setting.place("several")
    start = time.monotonic()
    cold(whole).wait()
    seconds = time.monotonic() - start
    for number in range(kills):
        running = cold(out)
        time.sleep(setting.dice.uniform(0.2, 0.9) * seconds)
        for pid in family(running.pid) if number % 2 else [running.pid]:
            _kill(pid)
        score.count("SIGKILL of all processes" if number % 2 else "SIGKILL of the parent alone")
        running.wait()
        score.kills, score.disturbances = score.kills + 1, score.disturbances + 1
        time.sleep(setting.dice.choice((0.0, 1.0)))
    last = cold(out)
    if last.wait() != 0:
        score.wonder(f"three studies side by side ended with {last.returncode} right after a kill")
        time.sleep(5.0)
        last = cold(out)
    score.same(last.wait(), 0, "the exit status of three studies side by side")
    score.same(findings(out / "findings.json"), findings(whole / "findings.json"), "findings.json of three studies")


def cold(out: Path) -> subprocess.Popen[bytes]:
    """Three studies side by side in processes that load everything themselves."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "joma", "verify", *STUDIES, "-j", "2", "--out", str(out)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)


def family(root: int) -> list[int]:
    """A process and all that come from it; workers lead groups of their own."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):  # it ended meanwhile
                continue
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):  # it ended meanwhile
        os.kill(pid, signal.SIGKILL)

"""A machine with little memory: a sentence, a study that broke or a process that died, never a broken record."""

from __future__ import annotations

import ctypes
import resource
from contextlib import suppress
from pathlib import Path

from chaos import scan, trainer, verify
from chaos.score import Score, Setting, plain, timed
from chaos.work import curves, findings, joma, series, train

MEGABYTES = (0, 0.3, 0.6, 1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 16, 24)
"""Beyond what the process has when it begins."""
DEATHS = (-9, -11, -6, -7)
"""Signals that a process dies of which got no memory."""
PAGE = resource.getpagesize()
M_MMAP_THRESHOLD = -3


def disturb(setting: Setting) -> Score:
    score = Score("memory")
    for part in (_verify,) if setting.short else (_verify, _scan, _training):
        part(setting, score)
    return score


def _verify(setting: Setting, score: Score) -> None:
    whole = setting.place("verified")
    timed(verify.started(setting, "thm5", whole))
    for number in range(setting.rounds):
        out = setting.place(f"verified-{number}")
        _little(setting, score, "chaos.memory:command", *verify.command("thm5", out))
        _readable(score, out)
        verify.ends_right(setting, "thm5", out, findings(whole / "findings.json"), score)


def _scan(setting: Setting, score: Score) -> None:
    source, whole = setting.place("checkpoints"), setting.place("scanned")
    setting.warm.done("chaos.work:make_checkpoints", source, 3)
    timed(scan.started(setting, source, whole))
    for number in range(setting.rounds):
        out = setting.place(f"scanned-{number}")
        _little(setting, score, "chaos.memory:command", "scan", source, "--out", out, "--json", out / "curves.json")
        _readable(score, out)
        scan.ends_right(setting, source, out, curves(whole / "curves.json"), score)


def _training(setting: Setting, score: Score) -> None:
    expected, _ = trainer.undisturbed(setting)
    for number in range(setting.rounds):
        path = setting.place(f"trained-{number}") / "a.sqlite"
        _little(setting, score, "chaos.memory:trained", path)
        _readable(score, path.parent)
        trainer.ends_right(setting, path, expected, score)


def _little(setting: Setting, score: Score, function: str, *arguments: object) -> None:
    limit, more = setting.dice.choice(("RLIMIT_AS", "RLIMIT_DATA")), setting.dice.choice(MEGABYTES)
    child = setting.warm.start(function, limit, more, *arguments)
    status, said = child.wait(), child.said().strip()
    score.disturbances += 1
    score.count("ended well" if status == 0 else "died of a signal" if status < 0 else "ended in a sentence")
    out_of_memory = "emory" in said or "alloc" in said or "failed to map segment" in said
    if status not in (0, 1, 2, *DEATHS) or not (plain(said) or status < 0 or out_of_memory):
        score.wonder(f"{function} with {limit} of {more} MB more: status {status}; it said {said[-300:]!r}")


def _readable(score: Score, out: Path) -> None:
    for path in [*out.glob("runs/*.sqlite"), *out.glob("*.sqlite")]:
        try:
            series(path)
        except Exception as error:
            score.err(f"{path.name} is broken after a run with little memory: {error}")


def trained(limit: str, megabytes: float, path: str) -> int:
    _limited(limit, megabytes)
    return train(path)


def command(limit: str, megabytes: float, *arguments: str) -> int:
    _limited(limit, megabytes)
    return joma(*arguments)


def _limited(limit: str, megabytes: float) -> None:
    """So much more than now, and no more; what was set free before goes back to the system."""
    with suppress(OSError, AttributeError):  # another C library
        library = ctypes.CDLL("libc.so.6")
        library.mallopt(M_MMAP_THRESHOLD, 1 << 16)
        library.malloc_trim(0)
    sizes = Path("/proc/self/statm").read_text().split()
    now = int(sizes[0 if limit == "RLIMIT_AS" else 5]) * PAGE
    number = getattr(resource, limit)
    resource.setrlimit(number, (now + int(megabytes * 1e6),) * 2)

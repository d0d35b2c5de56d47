"""Two processes in one folder: both end well, or one says in a sentence that the other is at work."""

from __future__ import annotations

from pathlib import Path

from chaos import scan, verify
from chaos.score import Score, Setting, plain, timed
from chaos.warm import Child
from chaos.work import curves, findings, series

AT_WORK = ("is being written already", "another command")


def disturb(setting: Setting) -> Score:
    score = Score("two")
    source = setting.place("checkpoints")
    setting.warm.done("chaos.work:make_checkpoints", source, 4)
    whole = setting.place("undisturbed")
    seconds = timed(verify.started(setting, "thm5", whole))
    timed(scan.started(setting, source, whole))
    found, measured = findings(whole / "findings.json"), curves(whole / "curves.json")
    for number in range(setting.rounds):
        out = setting.place(f"out-{number}")
        _two_verifies(setting, score, out, found, seconds)
        _whole_records(score, out, whole)
        if not setting.short:
            _a_verify_and_a_report(setting, score, out, found)
        _two_scans(setting, score, source, out, measured)
    return score


def _two_verifies(setting: Setting, score: Score, out: Path, expected: object, seconds: float) -> None:
    first = verify.started(setting, "thm5", out)
    _after(first, setting.dice.choice((0.0, 0.0, setting.dice.uniform(0.0, seconds))))
    second = verify.started(setting, "thm5", out)
    _both(score, "two verifies", first, second)
    score.same(findings(out / "findings.json"), expected, "findings.json of two verifies")


def _whole_records(score: Score, out: Path, whole: Path) -> None:
    """Whoever came second has spoilt no record: each holds what it holds after one verify alone."""
    for record in whole.glob("runs/thm5*.sqlite"):
        score.same(series(out / "runs" / record.name), series(record), f"the record {record.name} of two verifies")
        score.count("records of two verifies that are whole")


def _a_verify_and_a_report(setting: Setting, score: Score, out: Path, expected: object) -> None:
    first = setting.warm.joma("verify", "thm5", "--threads", "1", "--fresh", "--out", out)
    second = setting.warm.joma("report", out)
    _both(score, "a verify and a report", first, second, "holds no finished run", "exist")
    score.same(findings(out / "findings.json"), expected, "findings.json of a verify and a report")


def _two_scans(setting: Setting, score: Score, source: Path, out: Path, expected: object) -> None:
    _both(score, "two scans", scan.started(setting, source, out), scan.started(setting, source, out))
    score.same(curves(out / "curves.json"), expected, "curves of two scans")


def _after(child: Child, seconds: float) -> None:
    import time

    until = time.monotonic() + seconds
    while child.status() is None and time.monotonic() < until:
        time.sleep(0.005)


def _both(score: Score, what: str, first: Child, second: Child, *also: str) -> None:
    score.disturbances += 1
    statuses = [first.wait(), second.wait()]
    score.count(f"{what}: {'both ended well' if statuses == [0, 0] else 'one gave way'}")
    if statuses[0] and statuses[1]:
        score.lose(f"{what}: none of them ended well: {first.said()[-200:]!r} {second.said()[-200:]!r}")
    for child in (first, second):
        if child.wait() == 0:
            continue
        told = child.said() + " ".join(child.printed().split())
        if child.wait() not in (1, 2) or not plain(child.said()) or not any(word in told for word in (*AT_WORK, *also)):
            broke = next((line for line in child.printed().splitlines() if "broke: " in line), told[-300:])
            score.wonder(f"{what}: status {child.wait()}; it said {broke!r}")

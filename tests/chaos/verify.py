"""`joma verify` that is killed and given again until it ends: its findings must be those of one left in peace."""

from __future__ import annotations

from pathlib import Path

from chaos.score import Score, Setting, kill_within, timed
from chaos.warm import Child
from chaos.work import STUDIES, findings


def disturb(setting: Setting) -> Score:
    score = Score("verify")
    studies = STUDIES[:1] if setting.short else STUDIES
    for place, study in enumerate(studies):
        _study(setting, score, study, setting.rounds * (place + 1) // len(studies))
    return score


def command(study: str, out: Path) -> tuple[str, ...]:
    return "verify", study, "--threads", "1", "--out", str(out)


def started(setting: Setting, study: str, out: Path) -> Child:
    return setting.warm.joma(*command(study, out))


def _study(setting: Setting, score: Score, study: str, kills: int) -> None:
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

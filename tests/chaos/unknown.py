"""A scan of layers with a matrix of an unknown name, killed and taken up: the note stays, and --strict ends with 3."""

from __future__ import annotations

import time
from pathlib import Path

from chaos.score import Score, Setting, kill_within
from chaos.warm import Child
from chaos.work import curves

STRICT = 3
"""The status of a scan that left matrices out."""
WILD = "h.*.mlp.wild.weight"


def disturb(setting: Setting) -> Score:
    score = Score("unknown")
    source, whole = setting.place("checkpoints"), setting.place("undisturbed")
    setting.warm.done("chaos.unknown:make", source)
    start = time.perf_counter()
    first = started(setting, source, whole)
    score.same(first.wait(), STRICT, "the status of a scan that was left in peace")
    seconds, expected, scanned = time.perf_counter() - start, curves(whole / "curves.json"), 0
    score.same(expected["not_taken"], [WILD], "what a scan that was left in peace did not take")
    while score.kills < setting.rounds:
        out = setting.place(f"out-{scanned}")
        for _ in range(min(setting.dice.randint(1, 4), setting.rounds - score.kills)):
            if not kill_within(started(setting, source, out), seconds, setting.dice, score, well=STRICT):
                break
        last = started(setting, source, out)
        if last.wait() != STRICT:
            score.err(f"a scan that was killed ended with status {last.wait()}: {last.said()[-300:]!r}")
        elif "not taken: 2 matrices of layers" not in " ".join(last.printed().split()):
            score.lose("the note of the matrices that were not taken")
        score.same(curves(out / "curves.json"), expected, "a curve or a note of the scan")
        scanned += 1
    score.count("scanned to the end", scanned)
    return score


def started(setting: Setting, source: Path, out: Path) -> Child:
    return setting.warm.joma("scan", source, "--strict", "--out", out, "--json", out / "curves.json", "--no-page")


def make(folder: str) -> None:
    """The checkpoints of `scan`, with one more matrix in two layers."""
    from safetensors.torch import load_file, save_file

    from chaos.work import make_checkpoints

    make_checkpoints(folder, 4)
    for file in Path(folder).glob("*.safetensors"):
        tensors = load_file(file)
        more = {f"h.{layer}.mlp.wild.weight": tensors[f"h.{layer}.mlp.c_fc.weight"] * 2 for layer in range(2)}
        save_file(tensors | more, file)

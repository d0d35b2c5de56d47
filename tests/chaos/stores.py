"""`joma scan` of a bucket that is busy, breaks off, is gone for a while, or gets other objects on the way; and kills.

Numbers of a step are those of one object, the old or the new one, or there are none.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from object_server import Traffic, environment, put, s3_server

from chaos.replaced import LEFT_OUT, values_of
from chaos.score import Score, Setting, kill_within, timed
from chaos.warm import Child
from chaos.work import curves

STEPS = 4
NONE_USABLE = 1
SOURCE = "s3://bucket/run"


def disturb(setting: Setting) -> Score:
    score, traffic = Score("stores"), Traffic()
    old, new = _measured(setting, "old", 0), _measured(setting, "new", 50)
    with s3_server(traffic) as address:
        calm = setting.place("undisturbed")
        _upload(address, setting.folder / "checkpoints-old")
        seconds = timed(_started(setting, address, calm))
        score.same(values_of(curves(calm / "curves.json")), old, "a scan of the bucket")
        kinds = ["killed", *setting.dice.sample(sorted(_FAULTS.keys() - {"killed"}), len(_FAULTS) - 1)]
        for number in range(setting.rounds):
            how = kinds[number % len(kinds)]  # in turn: a few rounds have each of them, and any has a kill
            score.count(how)
            out = setting.place(f"out-{number}")
            _upload(address, setting.folder / "checkpoints-old")
            _FAULTS[how](setting, score, address, traffic, out, (old, new, seconds))
            traffic.busy, traffic.cuts, traffic.before = 0, 0, lambda number: None
    return score


def _measured(setting: Setting, name: str, first: int) -> Any:
    """The numbers of a folder that is nowhere else."""
    folder, out = setting.place(f"checkpoints-{name}"), setting.place(f"local-{name}")
    setting.warm.done("chaos.stores:make", folder, first)
    how = ("--json", out / "curves.json", "--no-page", "--keep-suspicious")
    timed(setting.warm.joma("scan", folder, "--out", out, *how))
    return values_of(curves(out / "curves.json"))


def make(folder: str, first: int) -> None:
    import torch
    from safetensors.torch import save_file

    for step in range(STEPS):
        drawn = torch.Generator().manual_seed(first + step)
        layers = {f"h.{at}.mlp.c_fc.weight": torch.randn(160, 160, generator=drawn) for at in range(6)}
        save_file(layers, f"{folder}/step{10 * step}.safetensors")


def _upload(address: str, folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        put(address, f"run/{path.name}", path.read_bytes())


def _started(setting: Setting, address: str, out: Path, *more: str) -> Child:
    return setting.warm.start("chaos.stores:command", environment(address), str(out), *more)


def command(settings: dict[str, str], out: str, *more: str) -> int:
    """A scan with the settings of a user's environment, and less patience."""
    from chaos.work import joma
    from joma.host import stores

    os.environ.update(settings)
    stores.PAUSE, stores.LONGEST_PAUSE = 0.01, 0.02
    return joma("scan", SOURCE, "--out", out, "--json", f"{out}/curves.json", "--no-page", "--keep-suspicious", *more)


def _weather(fault: str) -> Any:
    """So many answers are 503, or cut in half, that a few tries are enough."""

    def disturbed(setting: Setting, score: Score, address: str, traffic: Traffic, out: Path, known: Any) -> None:
        setattr(traffic, fault, setting.dice.randint(1, 6))
        score.disturbances += 1
        child = _started(setting, address, out)
        if child.wait() != 0:
            score.lose(f"a scan with {fault}: status {child.wait()}; it said {child.said()[-300:]!r}")
            return
        score.same(values_of(curves(out / "curves.json")), known[0], f"a scan with {fault}")

    return disturbed


def _gone(setting: Setting, score: Score, address: str, traffic: Traffic, out: Path, known: Any) -> None:
    """From some read on nothing is answered; what was measured stays, and the rest is measured later."""
    last = setting.dice.randint(0, 30)

    def fails(number: int) -> None:
        traffic.busy = 10**9 if number - begun >= last else 0

    begun = len(traffic.reads())
    traffic.before = fails
    score.disturbances += 1
    status = _started(setting, address, out).wait()
    if status not in (0, 1, 2, LEFT_OUT):
        score.wonder(f"the store was gone, and the scan ended with status {status}")
    traffic.before, traffic.busy = (lambda number: None), 0
    again = _started(setting, address, out)
    if again.wait() != 0:
        score.lose(f"the scan cannot be taken up: {again.said()[-300:]!r}")
        return
    score.same(values_of(curves(out / "curves.json")), known[0], "a scan after the store was gone")


def _exchanged(setting: Setting, score: Score, address: str, traffic: Traffic, out: Path, known: Any) -> None:
    """An object is replaced at some read. Its numbers are old or new, or it is left out; never mixed."""
    step, at = 10 * setting.dice.randrange(STEPS), setting.dice.randint(0, 40)
    new = (setting.folder / "checkpoints-new" / f"step{step}.safetensors").read_bytes()
    begun = len(traffic.reads())

    def replace(number: int) -> None:
        if number - begun == at:
            put(address, f"run/step{step}.safetensors", new)

    traffic.before = replace
    score.disturbances += 1
    child = _started(setting, address, out)
    if child.wait() not in (0, LEFT_OUT):
        score.err(f"an object was replaced, and the scan ended with status {child.wait()}: {child.said()[-300:]!r}")
        return
    told = curves(out / "curves.json")
    for shown, numbers in values_of(told).items():
        if numbers != known[0][shown] and not (shown == step and numbers == known[1][shown]):
            score.err(f"the numbers of step {shown} are of no object that there was")
    left = {each["step"] for each in told["left_out"]}
    score.count("left out", len(left))
    if not left <= {step} or (not left and len(told["steps"]) < STEPS):
        score.err(f"step {step} was replaced, and {sorted(left)} were left out")


def _killed(setting: Setting, score: Score, address: str, traffic: Traffic, out: Path, known: Any) -> None:
    kill_within(_started(setting, address, out), known[2], setting.dice, score)
    again = _started(setting, address, out)
    if again.wait() != 0:
        score.lose(f"the scan cannot be taken up after a kill: {again.said()[-300:]!r}")
        return
    score.same(values_of(curves(out / "curves.json")), known[0], "a scan after a kill")


_FAULTS = {
    "busy": _weather("busy"), "cut off": _weather("cuts"), "gone": _gone, "replaced": _exchanged, "killed": _killed
}  # fmt: skip

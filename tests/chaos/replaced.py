"""Weights that are replaced between two scans, under the same size and time: told, and never shown by old numbers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from chaos.score import Score, Setting, timed
from chaos.warm import Child
from chaos.work import curves

STEPS = 4
LEFT_OUT = 3
"""The status of a scan that left steps out."""


def disturb(setting: Setting) -> Score:
    score = Score("replaced")
    source, out = setting.place("checkpoints"), setting.place("out")
    setting.warm.done("chaos.work:make_checkpoints", source, STEPS)
    timed(started(setting, source, out))
    for number in range(setting.rounds):
        replaced, before = _replace(setting, score, source, number), curves(out / "curves.json")
        score.disturbances += 1
        anew = setting.place(f"anew-{number}")
        timed(started(setting, source, anew))
        expected = curves(anew / "curves.json")
        assert values_of(before) != values_of(expected), "the disturbance changes no number"
        _noticed(score, started(setting, source, out), out, replaced, expected)
        timed(started(setting, source, out, "--fresh"))
        score.same(curves(out / "curves.json"), expected, "a scan from the start after weights were replaced")
    return score


def _noticed(score: Score, again: Child, out: Path, replaced: set[int], expected: Any) -> None:
    """The steps that were replaced are left out, and all that is shown is what is there now."""
    if again.wait() != LEFT_OUT:
        score.err(f"the scan after steps {sorted(replaced)} were replaced ended with status {again.wait()}")
    told = curves(out / "curves.json")
    left_out = {each["step"] for each in told["left_out"]}
    if left_out != replaced:
        score.err(f"steps {sorted(replaced)} were replaced, and {sorted(left_out)} were left out")
    shown, right = values_of(told), values_of(expected)
    if any(shown[step] != right[step] for step in shown):
        score.err(f"old numbers are shown after steps {sorted(replaced)} were replaced")


def started(setting: Setting, source: Path, out: Path, *more: str) -> Child:
    how = ("--json", out / "curves.json", "--no-page", "--keep-suspicious")
    return setting.warm.joma("scan", source, "--out", out, *how, *more)


def values_of(told: Any) -> dict[int, Any]:
    """All numbers of a step."""
    tables = [curve["values"] for curve in told["curves"].values()]
    return {step: [table[at] for table in tables] for at, step in enumerate(told["steps"])}


def _replace(setting: Setting, score: Score, source: Path, number: int) -> set[int]:
    """Other numbers in all of one file or in one of its tensors; or two files change places. Which steps it was."""
    how = setting.dice.choice(("all of a file", "one tensor", "two files change places"))
    score.count(how)
    steps = [10 * step for step in setting.dice.sample(range(STEPS), 2 if how == "two files change places" else 1)]
    files = [source / f"step{step}.safetensors" for step in steps]
    seen = [(file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    if len(files) == 2:
        first, second = (file.read_bytes() for file in files)
        files[0].write_bytes(second)
        files[1].write_bytes(first)
    else:
        setting.warm.done("chaos.replaced:other_numbers", files[0], number, how == "one tensor")
    for file, (size, time) in zip(files, seen, strict=True):
        os.utime(file, ns=(time, time))
        assert (file.stat().st_size, file.stat().st_mtime_ns) == (size, time), "size or time tell of the disturbance"
    return set(steps)


def other_numbers(path: str, seed: int, one: bool) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(path)
    generator = torch.Generator().manual_seed(1000 + seed)
    for name in sorted(tensors)[: 1 if one else None]:
        tensors[name] = torch.randn(tensors[name].shape, generator=generator)
    save_file(tensors, path)

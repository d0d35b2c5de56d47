"""Weights that are replaced between two scans, under the same size and time: the second scan shows the new numbers."""

from __future__ import annotations

import os
from pathlib import Path

from chaos import scan
from chaos.score import Score, Setting, timed
from chaos.work import curves

STEPS = 3


def disturb(setting: Setting) -> Score:
    score = Score("replaced")
    source, out = setting.place("checkpoints"), setting.place("out")
    setting.warm.done("chaos.work:make_checkpoints", source, STEPS)
    timed(scan.started(setting, source, out))
    for number in range(setting.rounds):
        before = curves(out / "curves.json")
        _replace(setting, score, source, number)
        score.disturbances += 1
        anew = setting.place(f"anew-{number}")
        timed(scan.started(setting, source, anew))
        timed(scan.started(setting, source, out))
        score.same(curves(out / "curves.json"), curves(anew / "curves.json"), "a scan after weights were replaced")
        assert before != curves(anew / "curves.json"), "the weights are the same"
    return score


def _replace(setting: Setting, score: Score, source: Path, number: int) -> None:
    """Other numbers in all of one file or in one of its tensors; or two files change places."""
    how = setting.dice.choice(("all of a file", "one tensor", "two files change places"))
    score.count(how)
    files = [source / f"step{step * 10}.safetensors" for step in setting.dice.sample(range(STEPS), 2)]
    seen = [(file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    if how == "two files change places":
        aside = source / "aside"
        files[0].rename(aside)
        files[1].rename(files[0])
        aside.rename(files[1])
    else:
        setting.warm.done("chaos.replaced:other_numbers", files[0], number, how == "one tensor")
    for file, (size, time) in zip(files, seen, strict=True):
        os.utime(file, ns=(time, time))
        assert (file.stat().st_size, file.stat().st_mtime_ns) == (size, time), "the disturbance itself can be seen"


def other_numbers(path: str, seed: int, one: bool) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(path)
    generator = torch.Generator().manual_seed(1000 + seed)
    for name in sorted(tensors)[: 1 if one else None]:
        tensors[name] = torch.randn(tensors[name].shape, generator=generator)
    save_file(tensors, path)

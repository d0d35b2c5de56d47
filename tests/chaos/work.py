"""What the suite disturbs: functions that run in processes of their own, and what their records must hold."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

STUDIES = ("thm5", "cdag-angles", "thm2")
"""Studies of about a second."""
STEPS, POINTS = 40, tuple(range(0, 40, 4))


def called(function: str, *arguments: Any) -> int:
    module, _, name = function.partition(":")
    return getattr(import_module(module), name)(*arguments) or 0


def joma(*arguments: str) -> int:
    from joma.cli.main import main

    return main(arguments)


def content(step: int) -> np.ndarray:
    return np.random.default_rng(step).standard_normal((12, 16)).astype(np.float32)


def write(path: str, pipe: str, stint: int, journal: str) -> None:
    """Record step after step, and acknowledge each on a pipe; close the run and open it again every `stint` steps."""
    from joma.runs import Run, file

    if journal == "rollback":
        file.on_network_drive = lambda path: True
    run = Run.open(path, write=True)
    last = run.last_step("x")
    step = 0 if last is None else last + 1
    with open(pipe, "w") as heard:
        while True:
            run.record(step, {"x": content(step), "square": step * step})
            print(step, file=heard, flush=True)
            step += 1
            if step % stint == 0:
                run.close()
                run = Run.open(path, write=True)


def train(path: str, every: float = 0.0) -> int:
    """A small ensemble, trained into a run as a command would; a checkpoint every so many seconds."""
    import torch
    from torch import Tensor

    from joma.host.exit_status import OK, answer
    from joma.models import Decoder, DecoderConfig
    from joma.runs import Run
    from joma.training import Ensemble, Optimizer, next_token_loss
    from joma.training import train as trained

    def batch(step: int, members: Sequence[int]) -> tuple[Tensor, ...]:
        text = torch.stack(
            [torch.randint(11, (2, 6), generator=torch.Generator().manual_seed(97 * step + each)) for each in members]
        )
        return text[..., :-1], text[..., 1:]

    def weights(decoder: Decoder, members: Sequence[int]) -> Tensor:
        return torch.cat([parameter.flatten(1) for parameter in decoder.parameters()], 1)

    config = DecoderConfig(vocabulary=11, width=8, mlp=12, layers=2, context=5, dropout=0.2)
    ensemble = Ensemble(
        members=3,
        networks=lambda members: Decoder(config, seeds=members),
        batch=batch,
        loss=next_token_loss,
        optimizer=Optimizer("adam", rate=1e-2),
        steps=STEPS,
        measures={"weights": weights},
        measure_at=POINTS,
    )

    def command() -> int:
        there = Path(path).exists()
        with Run.open(path, write=True) if there else Run.create(path, study="chaos", config={}) as run:
            trained(ensemble, run, checkpoint_every=every)
        return OK

    return answer(command)


def make_checkpoints(folder: str, count: int = 6) -> None:
    """A series of checkpoints, as of a small decoder."""
    import torch
    from safetensors.torch import save_file

    for step in range(count):
        generator = torch.Generator().manual_seed(step)
        tensors = {
            f"h.{layer}.mlp.c_fc.weight": torch.randn(96, 384, generator=generator) / 10 + step / 50
            for layer in range(6)
        }
        save_file(tensors, f"{folder}/step{step * 10}.safetensors")


def make_run(path: str, steps: int = 40) -> None:
    from joma.runs import Run

    with Run.create(path, study="chaos", config={"steps": steps}) as run:
        for step in range(steps):
            run.record(step, {"x": content(step), "loss": 1 / (1 + step)}, dims={"x": ("layer", "head")})
        run.finish()


def findings(path: Path) -> Any:
    """A findings.json without times, dates and commit, and without studies that were not run. None: not there."""
    if not path.exists():
        return None
    told = json.loads(path.read_text(encoding="utf-8"))
    told["studies"] = [s for s in told["studies"] if any(f["verdict"] != "not run" for f in s["findings"])]
    for study in told["studies"]:
        del study["seconds"]
        for finding in study["findings"]:
            for today in ("created", "commit"):  # a commit may be made in the checkout while the suite runs
                del finding["provenance"][today]
    return told


def curves(path: Path) -> Any:
    if not path.exists():
        return None
    told = json.loads(path.read_text(encoding="utf-8"))
    del told["run"]
    return told


def series(path: Path) -> Any:
    from joma.runs import Run

    if not path.exists():
        return None
    with Run.open(path) as run:
        names = [name for name in run.names() if not name.startswith("seconds")]
        return {name: (run.steps(name).tolist(), run.array(name).tobytes()) for name in names}

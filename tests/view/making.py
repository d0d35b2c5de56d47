"""Runs to look at, made by joma's own code: a monitored training, a scan of checkpoints, a study with its findings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from joma.claims.execute import execute
from joma.claims.ledger import findings_json
from joma.host.files import write_json
from joma.monitor import Monitor
from joma.monitor.alarms import LargestLogit
from joma.runs import Run
from joma.scan import scan
from joma.studies import load

NO_TOKENS: Any = {"bos_token_id": 0, "eos_token_id": 0}
NASTY = "<script>alert('x')</script><img src=x onerror=alert(1)> & \"quotes\""
"""Text that must stay text."""


def monitored(path: Path) -> Path:
    """A tiny model, trained for a few steps under a monitor whose limit some head breaks."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=16, n_embd=32, n_layer=3, n_head=4, **NO_TOKENS))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    *batches, probe = torch.randint(16, (25, 8, 8)).repeat(1, 1, 2)
    measures = ("entropy", "largest_logit", "spread", "stable_rank")
    given: Any = {"input_ids": probe}
    with Monitor(model, probe=given, every=4, measures=measures, out=path, alarms=LargestLogit(0.2)) as monitor:
        for batch in batches:
            optimizer.zero_grad()
            model(input_ids=batch, labels=batch).loss.backward()
            optimizer.step()
            monitor.step()
    return path


def scanned(folder: Path, out: Path) -> Path:
    """A series of small checkpoints, one of them cut off."""
    generator = torch.Generator().manual_seed(0)
    for step in (0, 10, 20, 30):
        place = folder / f"step{step}"
        place.mkdir(parents=True)
        tensors = {
            f"model.layers.{layer}.mlp.up_proj.weight": torch.randn(8, 16, generator=generator) for layer in range(3)
        }
        save_file(tensors, place / "model.safetensors")
    cut = folder / "step20" / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:100])
    found = scan(folder, out=out)
    assert found.run is not None
    return found.run


def verified(out: Path) -> list[Any]:
    studies = [load("thm5"), load("lemma6")]
    results = [execute(study, study.quick, out, pictures=False) for study in studies]
    write_json(out / "findings.json", findings_json(results))
    return [finding for result in results for finding in result.findings]


def nasty(path: Path) -> Path:
    with Run.create(path, study=NASTY, config={NASTY: NASTY}) as run:
        for step in range(0, 30, 10):
            run.append(NASTY, step, np.full((2, 2), float(step)), dims={"layer": [NASTY, "b"], "head": [NASTY, "d"]})
        run.fail(NASTY)
    return path


def heads(
    path: Path, steps: int = 40, *, layers: int = 4, count: int = 3, names: tuple[str, ...] = ("entropy",)
) -> Path:
    with Run.create(path, study="demo", config={}) as run:
        for step in range(steps):
            run.record(
                step, dict.fromkeys(names, grid(step, layers, count)), dims=dict.fromkeys(names, ("layer", "head"))
            )
        run.finish()
    return path


def grid(step: int, layers: int = 4, count: int = 3) -> np.ndarray:
    return step + 100.0 * np.arange(layers)[:, None] + 10.0 * np.arange(count)

"""What a monitor cannot work with, told before training begins."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from joma.host.arguments import shown
from joma.host.devices import lacking
from joma.host.errors import BadInput
from joma.monitor.matrices import Matrices
from joma.monitor.measures import MONITORED


def must_have_one_way(probe: Any, inside: bool) -> None:
    """A probe batch, the batch of each step, or the training pass itself."""
    if not isinstance(inside, bool):
        raise BadInput(f"inside must be True or False, got {shown(inside)}", argument="inside")
    if inside and probe is not None:
        raise BadInput("inside=True measures the batches of training: leave probe out", argument="probe")
    if isinstance(probe, str) and probe != "step":
        raise BadInput(f"probe must be a batch or 'step', got {shown(probe)}", argument="probe")


def must_be_autocast(autocast: torch.dtype | None, inside: bool) -> None:
    """A type of `torch.autocast`, for a pass that the monitor makes itself."""
    if autocast not in (None, torch.float16, torch.bfloat16):
        got = shown(autocast)
        raise BadInput(f"autocast must be torch.bfloat16, torch.float16 or None, got {got}", argument="autocast")
    if inside and autocast is not None:
        raise BadInput("inside=True measures your own passes, as they are: leave autocast out", argument="autocast")


def must_be_replay(replay: bool, *, has_batch: bool) -> None:
    """Whether a pass is recorded: one over a batch that stays the same, on a GPU."""
    if not isinstance(replay, bool):
        raise BadInput(f"replay must be True or False, got {shown(replay)}", argument="replay")
    if replay and not has_batch:
        raise BadInput("replay=True needs a probe batch that stays the same: give one as probe", argument="replay")
    if replay and lacking("cuda") is not None:
        raise BadInput("replay=True records a CUDA graph, and there is no GPU: leave it out", argument="replay")


def must_have_weights(measures: Iterable[str], matrices: Matrices, model: str) -> None:
    """What the measures are taken from must be there, in a model of this name."""
    for name in measures:
        needs = MONITORED[name].needs
        if needs == "embeddings" and not matrices.embeddings:
            what, looked = "an embedding", "nn.Embedding with at least two rows"
        elif needs in ("matrices", "gradients") and not matrices.by_name:
            what, looked = "a weight matrix", "parameters of two dimensions that are no embedding"
        else:
            continue
        raise BadInput(
            f"{name} needs {what}, and {model} has none that is followed: looked for were {looked}",
            argument="measures",
        )

"""Refusals of GaLore's options, one sentence each."""

from __future__ import annotations

import inspect
from math import isfinite
from typing import Any, Literal, get_args

import torch

from joma.host.words import counted
from joma.optim._moving import OnMove
from joma.optim.projector import Kind
from joma.optim.ranks import checked_rank, largest

Decay = Literal["decoupled", "coupled"]
NonFinite = Literal["raise", "skip"]


def check_options(projector: Any, on_move: Any, decay: Any, nonfinite: Any, clip: Any, smallest: Any) -> None:
    """Options of the optimizer as a whole."""
    words = {"projector": (projector, Kind), "on_move": (on_move, OnMove)}
    words |= {"decay": (decay, Decay), "nonfinite": (nonfinite, NonFinite)}
    for name, (value, allowed) in words.items():
        if value not in get_args(allowed):
            raise ValueError(f"{name} must be one of {', '.join(get_args(allowed))}, got {value!r}")
    if clip is not None and not (_is_number(clip) and clip > 0):
        raise ValueError(f"clip must be positive, or None for no clipping, got {clip!r}")
    if smallest is not None and not (_is_number(smallest) and smallest >= 1):
        raise ValueError(f"smallest must be at least 1, or None, got {smallest!r}")


def check_others(inner: Any, skip: Any, tolerance: Any, seed: Any) -> None:
    """What is no choice among words."""
    if not callable(inner):
        raise ValueError(f"inner must make an optimizer, as the class torch.optim.AdamW does, got {_brief(inner)}")
    if isinstance(skip, str):
        raise ValueError(f"skip must be a list of names, got the text {skip!r}: write [{skip!r}]")
    if not (_is_number(tolerance) and tolerance >= 0):
        raise ValueError(f"tolerance must be a number of at least 0, got {tolerance!r}")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ValueError(f"seed must be a whole number, got {seed!r}")


def _brief(inner: object) -> str:
    return f"an object {type(inner).__name__}" if isinstance(inner, torch.optim.Optimizer) else repr(inner)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_group(group: dict[str, Any]) -> None:
    """Options of one group."""
    checked_rank(group["rank"])
    refresh, scale = group["refresh"], group["scale"]
    if isinstance(refresh, bool) or not isinstance(refresh, int) or refresh < 1:
        raise ValueError(f"refresh must be a whole number of updates of at least 1, got {refresh!r}")
    if not _is_number(scale) or not (isfinite(scale) and scale > 0):
        raise ValueError(f"scale must be a positive finite number, got {scale!r}")


def nothing_projected(groups: list[dict[str, Any]]) -> str:
    """Why no matrix is trained in a subspace."""
    sides = [min(each.shape) for group in groups for each in group["params"] if each.ndim == 2]
    if not sides:
        return "params holds no matrix: there is nothing to project"
    ranks = sorted({largest(group["rank"]) for group in groups})
    return (
        f"no matrix is projected: rank {', '.join(map(str, ranks))} must be below a shorter side, the largest of "
        f"{counted(len(sides), 'matrix', 'matrices')} is {max(sides)}, and skip and smallest must leave one"
    )


def not_finite(name: str) -> str:
    """Why a step did not happen."""
    return f"the gradient of {name} is not finite: nothing was updated; nonfinite='skip' skips and counts such steps"


def steps_without_closure(inner: torch.optim.Optimizer) -> None:
    """Refuse LBFGS and its like, which evaluate the loss several times per step."""
    closure = inspect.signature(type(inner).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"inner {type(inner).__name__} needs a closure at each step: GaLore takes optimizers that step without one"
        )

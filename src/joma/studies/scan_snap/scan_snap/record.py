"""What a run of `scan-snap` recorded, read back by name."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from joma.runs import Run

PHASE_TIME = 1000.0
"""At which B is read in the phase plot."""


class Recorded(NamedTuple):
    """A batch of flows: what class 1 does in each system."""

    t: Any
    """(steps,)"""
    z: Any
    """(steps, systems, tokens)"""
    growth: Any
    """(steps, systems, distinct): B as each distinct token of the class has it, rarest first."""
    alpha: Any
    """(steps, systems): probability of the right output."""
    margin: Any
    """(steps, systems): logit of the right output minus that of one that never follows."""


def recorded(run: Run, name: str) -> Recorded:
    """The flows recorded under a name."""
    path, tokens, distinct = run.value(f"{name}/path"), run.value("p").shape[-1], int(run.config["distinct"])
    z, growth = path[..., :tokens], path[..., tokens : tokens + distinct]
    return Recorded(run.value(f"{name}/t"), z, growth, path[..., -2], path[..., -1])


def dominant_growth(run: Run, name: str) -> Any:
    """B of class 1's most frequent token, (steps, systems)."""
    return recorded(run, name).growth[..., -1]


def passes(t: Any, alpha: Any, level: float = 0.5) -> Any:
    """When each system's alpha (steps, systems) first passes the level, (systems,); NaN if never or at the start."""
    found = []
    for row in np.asarray(alpha).T:
        above = np.flatnonzero(row > level)
        if not len(above) or above[0] == 0:
            found.append(np.nan)
            continue
        i = above[0]
        found.append(t[i - 1] + (level - row[i - 1]) / (row[i] - row[i - 1]) * (t[i] - t[i - 1]))
    return np.array(found)


def phases(run: Run) -> dict[str, Any]:
    """B at `PHASE_TIME` and the transition time for every pair of rates, (eta_Y, eta_Z): one flow serves a diagonal."""
    rates, clock, path = run.value("phase/rates"), run.value("phase/clock"), run.value("phase/path")
    count = len(rates)
    passed = passes(clock, path[..., 1])  # (ratios,), in units of 1/eta_Y
    growth, transition = (np.empty((count, count)) for _ in range(2))
    for i, fast in enumerate(rates):
        at = int(np.abs(np.log(clock / (fast * PHASE_TIME))).argmin())
        for j in range(count):
            growth[i, j] = path[at, j - i + count - 1, 0]
            transition[i, j] = passed[j - i + count - 1] / fast
    return {"growth": growth, "transition": transition}


def gains(run: Run, name: str) -> Any:
    """r(t)/r(0) of class 1's most frequent token against every other distinct one, (steps, systems, others)."""
    distinct = int(run.config["distinct"])
    p, z = run.value("p")[0, :distinct], recorded(run, name).z[..., :distinct]
    start = (p[-1] / p[:-1]) ** 2 - 1
    return ((p[-1] / p[:-1]) ** 2 * np.exp(2 * (z[..., -1:] - z[..., :-1])) - 1) / start


def attention(run: Run, z: Any) -> Any:
    """Attention of class 1 as shares that sum to 1, (..., tokens)."""
    p = run.value("p")[0]
    c = p * np.exp(z)
    return c / c.sum(-1, keepdims=True)


def entropy(share: Any) -> Any:
    """In nats, over the last axis."""
    return -(share * np.log(np.where(share > 0, share, 1.0))).sum(-1)


def straight_line(x: Any, y: Any) -> tuple[float, float, float]:
    """Constant, slope and rms residual, as a share of y's range, of a straight line; NaN for fewer than 3 points."""
    if len(x) < 3:
        return float("nan"), float("nan"), float("nan")
    design = np.stack([np.ones_like(x), x], 1)
    (constant, slope), *_ = np.linalg.lstsq(design, y, rcond=None)
    off = y - constant - slope * x
    return float(constant), float(slope), float(np.sqrt((off**2).mean()) / np.ptp(y))

"""The picture of Figure 7: stable rank and entropy by layer over checkpoints, and how alike the tokens' vectors are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.labels import label_lines
from joma.figures.reading import between, course, number
from joma.figures.style import CONTROL, depth_colours, panels
from joma.runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CURVES = {"stable rank": "Stable rank of the MLP's lower matrix", "entropy": "Attention entropy"}
"""What is drawn over checkpoints, with its title."""


def draw(run: Run) -> list[Drawing]:
    """Curves by layer over the checkpoints of the first network, and the coherence of the layers' vectors."""
    figure, axes = panels(3, width=3.5)
    for axis, (name, title) in zip(axes, CURVES.items(), strict=False):
        _draw_curves(axis, run.value("steps"), run.value(f"layers/{name}"))
        axis.set_title(title)
    axes[0].set_ylabel("stable rank")
    axes[1].set_ylabel("attention entropy (nats)")
    _draw_coherence(axes[2], run.value("coherence"), run.value("coherence/steps"))
    return [Drawing("checkpoint-series", _caption(run), figure)]


def _draw_curves(axis: Axes, steps: Any, curves: Any) -> None:
    for layer, colour in enumerate(depth_colours(curves.shape[1])):
        axis.plot(steps, curves[:, layer], color=colour, label=f"layer {layer}", marker=".", ms=4, lw=1.2)
    axis.set_xscale("symlog", linthresh=1)
    axis.set_xlabel("training step (log scale)")
    label_lines(axis)


def _draw_coherence(axis: Axes, met: Any, at: Any) -> None:
    for row, step, colour in zip(met, at, depth_colours(len(at)), strict=True):
        axis.plot(range(len(row)), row[:, 0], color=colour, marker="o", ms=4, label=f"step {step:,}")
    axis.axhline(met[0, 0, 1], color=CONTROL, ls="--", lw=1, label="random vectors")
    axis.set(xlabel="layer (0: embedding)", ylabel="mean |cos| between tokens", ylim=(0, 1.05))
    axis.set_title("Likeness of token vectors")
    label_lines(axis)


def _caption(run: Run) -> str:
    """What the mean over layers does, and the vectors of the last checkpoint; then how it was measured."""
    steps, met = run.value("steps"), run.value("coherence")
    ranks, entropies = (run.value(f"layers/{name}").mean(1) for name in CURVES)
    return (
        f"Mean over layers: the stable rank of the MLP's lower matrix {_valley(steps, ranks, '')}; attention entropy "
        f"{_valley(steps, entropies, 'nats')}. At the end, the mean |cos| between vectors of different tokens is "
        f"{between(met[-1, :, 0])}; random vectors have {number(float(met[-1, 0, 1]))}. The panels show the first "
        f"network, scanned at {len(steps)} checkpoints. Entropy is measured on text that was not trained on."
    )


def _valley(steps: Any, values: Any, unit: str) -> str:
    turns = [0, int(np.argmin(values)), -1]
    return course(steps[turns], values[turns], unit)

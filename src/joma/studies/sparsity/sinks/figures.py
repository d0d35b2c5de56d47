"""The pictures of the study `sinks`: mass on the first key over training by kind, and by place and word."""

from __future__ import annotations

from typing import Any

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.bands import mean_and_band
from joma.figures.labels import label_lines
from joma.figures.reading import listing, number
from joma.figures.style import BLUE, CONTROL, GREEN, INK, ORANGE, PURPLE, panels, step_axis
from joma.runs import Run
from joma.studies.sparsity.sinks.record import READINGS, Sinks
from joma.studies.sparsity.sinks.run import KINDS

COLOURS = dict(zip(KINDS, (BLUE, ORANGE, GREEN, PURPLE), strict=True))
PLACES = (
    "first word,\nfirst place",
    "another word,\nfirst place",
    "first word,\nelsewhere",
    "another word,\nelsewhere",
)


def draw(run: Run) -> list[Drawing]:
    """Over training, and at the end by place and word."""
    seen = Sinks(run)
    return [_over_training(seen), _by_place(seen)]


def _over_training(seen: Sinks) -> Drawing:
    figure, axes = panels(len(READINGS), width=4.2)
    free, caption = "free" in seen.config.firsts, ""
    for axis, (reading, name) in zip(axes, READINGS.items(), strict=True):
        ends = {}
        for kind in seen.config.kinds(reading):
            rows = seen.over_steps(reading, kind)[..., 0].mean((2, 3))  # (steps, seeds)
            mean_and_band(axis, seen.steps(reading, kind), rows, color=COLOURS[kind], label=kind)
            ends[kind] = number(float(rows[-1].mean()), "%")
        if free:
            rows = seen.over_steps(reading, "softmax", first="free")[..., 0].mean((2, 3))
            steps = seen.steps(reading, "softmax")
            axis.plot(steps, rows.mean(1), color=COLOURS["softmax"], ls=":", label="softmax, free\nfirst token")
        axis.axhline(seen.uniform, color=CONTROL, ls="--", lw=1, label="uniform")
        axis.set(title=name.capitalize(), ylabel="attention on the first key", ylim=(0, None))
        step_axis(axis)
        label_lines(axis)
        others = [f"{end} with {kind}" for kind, end in ends.items() if kind != "softmax"]
        rest = f", {listing(others)}" if others else ""
        caption += f"On the {name}, the first key ends with {ends['softmax']} with softmax{rest}. "
    caption += (
        f"Uniform attention gives {number(seen.uniform, '%')}. Lines are means over {seen.config.seeds} networks, "
        "their layers, heads and late queries; bands go from the lowest network to the highest. Every sequence begins "
        f"with the same token{', but for the dotted line' if free else ''}."
    )
    return Drawing("sinks-over-training", caption, figure)


def _by_place(seen: Sinks) -> Drawing:
    figure, axes = panels(len(READINGS), width=4.6)
    caption = ""
    for axis, (reading, name) in zip(axes, READINGS.items(), strict=True):
        kinds = seen.config.kinds(reading)
        for count, kind in enumerate(kinds):
            for row, seeds in enumerate(_by_key(seen, reading, kind)):
                at = np.full(len(seeds), row + (count - (len(kinds) - 1) / 2) * 0.15)
                label = kind if row == 0 else None
                axis.plot(seeds, at, "o", ms=4.5, color=COLOURS[kind], alpha=0.8, label=label)
        axis.axvline(seen.uniform, color=CONTROL, ls="--", lw=1)
        axis.set_yticks(range(len(PLACES)), PLACES)
        axis.set(title=name.capitalize(), xlabel="attention on that key", ylabel="key")
        axis.set(xlim=(0, None), ylim=(len(PLACES) - 0.5, -0.5))
        axis.legend(loc="lower right", fontsize=7.5, labelcolor=INK)
        own, other, copy, _ = (number(float(x), "%") for x in _by_key(seen, reading, "softmax").mean(1))
        caption += (
            f"On the {name}, with softmax, the first word has {own} in the first place and a copy of it {copy} "
            f"elsewhere; another word has {other} in the first place. "
        )
    caption += (
        f"Dots are networks at the end of training. Elsewhere is key {seen.config.length // 4} of "
        f"{seen.config.length}. The dashed line is uniform attention."
    )
    return Drawing("place-or-word", caption, figure)


def _by_key(seen: Sinks, reading: str, kind: str) -> Any:
    """(PLACES, seeds)."""
    mass, replaced, moved = (
        seen.over_steps(reading, kind, what)[-1].mean((1, 2)) for what in ("mass", "replaced", "moved")
    )
    return np.stack([mass[:, 0], replaced, moved[:, 0], moved[:, 1]])

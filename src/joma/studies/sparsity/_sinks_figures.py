"""The pictures of the study `sinks`: mass on the first key over training by kind, and by place and word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.bands import mean_and_band
from joma.figures.labels import label_lines
from joma.figures.reading import course, listing, number
from joma.figures.style import BLUE, CONTROL, GREEN, INK, ORANGE, PURPLE, panels, step_axis
from joma.runs import Run
from joma.studies.sparsity._sinks_findings import READINGS, Sinks
from joma.studies.sparsity._sinks_networks import KINDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = dict(zip(KINDS, (BLUE, ORANGE, GREEN, PURPLE), strict=True))
PLACES = ("first word, first place", "another word, first place", "first word, elsewhere", "another word, elsewhere")


def draw(run: Run) -> list[Drawing]:
    """Over training, and at the end by place and word."""
    seen = Sinks(run)
    return [_over_training(seen), _by_place(seen)]


def _over_training(seen: Sinks) -> Drawing:
    figure, axes = panels(len(READINGS), width=4.2)
    for axis, (reading, name) in zip(axes, READINGS.items(), strict=True):
        for kind in seen.config.kinds(reading):
            rows = seen.over_steps(reading, kind)[..., 0].mean((2, 3))  # (steps, seeds)
            mean_and_band(axis, seen.steps(reading, kind), rows, color=COLOURS[kind], label=kind)
        if _is_free(seen):
            rows = seen.over_steps(reading, "softmax", first="free")[..., 0].mean((2, 3))
            steps = seen.steps(reading, "softmax")
            axis.plot(steps, rows.mean(1), color=COLOURS["softmax"], ls=":", label="softmax, free\nfirst token")
        axis.axhline(seen.uniform, color=CONTROL, ls="--", lw=1, label="uniform")
        axis.set(title=name.capitalize(), ylabel="attention on the first key", ylim=(0, None))
        step_axis(axis)
        label_lines(axis)
    return Drawing("sinks-over-training", _finding(seen) + _how(seen), figure, _alt(seen))


def _is_free(seen: Sinks) -> bool:
    return "free" in seen.config.firsts


def _finding(seen: Sinks) -> str:
    """What softmax does on each reading, then the others."""
    parts = []
    for reading, name in READINGS.items():
        ends = {kind: float(seen.over_steps(reading, kind)[-1][..., 0].mean()) for kind in seen.config.kinds(reading)}
        others = [f"{number(end, '%')} with {kind}" for kind, end in ends.items() if kind != "softmax"]
        rest = f", {listing(others)}" if others else ""
        parts.append(f"On the {name}, the first key ends with {number(ends['softmax'], '%')} with softmax{rest}. ")
    return "".join(parts)


def _how(seen: Sinks) -> str:
    return (
        f"Uniform attention gives {number(seen.uniform, '%')}. Lines are means over {seen.config.seeds} networks, "
        "their layers, heads and late queries; bands go from the lowest network to the highest. Every sequence begins "
        f"with the same token{', but for the dotted line' if _is_free(seen) else ''}."
    )


def _alt(seen: Sinks) -> str:
    parts = ["Two panels, attention on the first key over training."]
    for reading, name in READINGS.items():
        lines = []
        for kind in seen.config.kinds(reading):
            rows = seen.over_steps(reading, kind)[..., 0].mean((1, 2, 3))
            lines.append(f"{kind} {course(seen.steps(reading, kind), rows, '%')}")
        if _is_free(seen):
            rows = seen.over_steps(reading, "softmax", first="free")[..., 0].mean((1, 2, 3))
            lines.append(f"softmax with a free first token {course(seen.steps(reading, 'softmax'), rows, '%')}")
        parts.append(f"{name.capitalize()}: {'; '.join(lines)}.")
    return " ".join([*parts, f"A dashed line stands at {number(seen.uniform, '%')}."])


def _four(seen: Sinks, reading: str, kind: str) -> Any:
    """(places, seeds)."""
    mass, replaced, moved = (
        seen.over_steps(reading, kind, what)[-1].mean((1, 2)) for what in ("mass", "replaced", "moved")
    )
    return np.stack([mass[:, 0], replaced, moved[:, 0], moved[:, 1]])


def _by_place(seen: Sinks) -> Drawing:
    figure, axes = panels(len(READINGS), width=4.6)
    for axis, (reading, name) in zip(axes, READINGS.items(), strict=True):
        kinds = seen.config.kinds(reading)
        for row, kind in enumerate(kinds):
            _dots(axis, _four(seen, reading, kind), (row - (len(kinds) - 1) / 2) * 0.15, COLOURS[kind], kind)
        axis.axvline(seen.uniform, color=CONTROL, ls="--", lw=1)
        axis.set_yticks(range(len(PLACES)), [place.replace(", ", ",\n") for place in PLACES])
        axis.set(title=name.capitalize(), xlabel="attention on that key", ylabel="key")
        axis.set(xlim=(0, None), ylim=(len(PLACES) - 0.5, -0.5))
        axis.legend(loc="lower right", fontsize=7.5, labelcolor=INK)
    softmax = {reading: _four(seen, reading, "softmax").mean(1) for reading in READINGS}
    said = " ".join(
        f"On the {READINGS[reading]}, with softmax, the first word has {number(float(x[0]), '%')} in the first place "
        f"and a copy of it {number(float(x[2]), '%')} elsewhere; another word has "
        f"{number(float(x[1]), '%')} in the first place."
        for reading, x in softmax.items()
    )
    how = (
        f" Dots are networks at the end of training. Elsewhere is key {seen.config.length // 4} of "
        f"{seen.config.length}. The dashed line is uniform attention."
    )
    return Drawing("place-or-word", said + how, figure, _alt_places(seen))


def _dots(axis: Axes, values: Any, shift: float, colour: str, label: str) -> None:
    for row, seeds in enumerate(values):
        name = label if row == 0 else None
        axis.plot(seeds, np.full(len(seeds), row + shift), "o", ms=4.5, color=colour, alpha=0.8, label=name)


def _alt_places(seen: Sinks) -> str:
    parts = ["Two panels of dots, one row per place and word."]
    for reading, name in READINGS.items():
        for kind in seen.config.kinds(reading):
            means = _four(seen, reading, kind).mean(1)
            told = [f"{place} {number(float(mean), '%')}" for place, mean in zip(PLACES, means, strict=True)]
            parts.append(f"{name.capitalize()}, {kind}: {', '.join(told)}.")
    return " ".join(parts)

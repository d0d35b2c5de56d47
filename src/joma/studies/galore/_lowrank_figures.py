"""Pictures of gradients: their stable rank by matrix and over training, their energy and subspaces, and V."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.bands import mean_and_band
from joma.figures.labels import label_lines
from joma.figures.reading import between, course, listing, number
from joma.figures.style import BLUE, CONTROL, GREEN, INK, ORANGE, PURPLE, panels, step_axis
from joma.recipes.language import called
from joma.runs import Run
from joma.studies.galore._lowrank_claims import QUARTER
from joma.studies.galore._lowrank_config import SERIES, sides, variants
from joma.studies.galore._lowrank_networks import MATRICES, SHUFFLED, TEXT
from joma.studies.galore._lowrank_record import apart, gradient, probe, rank, steps
from joma.studies.galore._lowrank_spectra import projector_ranks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ENERGIES = ("energy 1", "energy 4", "energy m/16", "energy m/4")


def draw(run: Run) -> list[Drawing]:
    """All figures."""
    return [_draw_matrices(run), _draw_training(run), _draw_subspaces(run), _draw_nodes(run)]


def _title(run: Run, name: str) -> str:
    """A decoder with its size."""
    if name == SERIES:
        return f"{name}: {run.config['series_layers']} layers, m = {run.config['series_width']}"
    return f"Figure 6: {name}, m = {run.config['width']}"


def _mean(values: np.ndarray) -> np.ndarray:
    """Over seeds, the first dimension, of those that did not diverge."""
    return np.asarray(np.nanmean(values, axis=0))


def _about(run: Run) -> str:
    return f"{run.config['seeds']} seeds, {called(run.config['corpus'])}"


def _draw_matrices(run: Run) -> Drawing:
    """Stable rank by matrix: untrained, trained, twins, and Gaussian matrices with the same norms."""
    names = variants(run.config)
    figure, axes = panels(len(names), width=4.2, height=3.0)
    seen = []
    for name, axis in zip(names, axes, strict=True):
        kinds = {
            "Gaussian, same norms": (_mean(rank(run, name, "gaussian")[:, -1]), CONTROL, "D"),
            "trained": (_mean(rank(run, name)[:, -1]), BLUE, "o"),
            "untrained": (_mean(rank(run, name)[:, 0]), GREEN, "s"),
            "shuffled targets": (_mean(rank(run, name, text=SHUFFLED)[:, -1]), ORANGE, "^"),
        }
        for label, (values, colour, marker) in kinds.items():
            axis.plot(range(len(MATRICES)), values, color=colour, marker=marker, ms=5, ls="none", label=label)
        axis.set_xticks(range(len(MATRICES)), MATRICES)
        axis.set(yscale="log", xlabel="gradient by this matrix", ylabel="stable rank", title=_title(run, name))
        _plain_ticks(axis)
        told = "; ".join(f"{label} {between(values)}" for label, (values, _, _) in kinds.items())
        seen.append(f"{_title(run, name)}: {told}.")
    axes[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
    start, end, twins = (
        [value for name in names for value in _mean(rank(run, name, text=text)[:, point])]
        for text, point in ((TEXT, 0), (TEXT, -1), (SHUFFLED, -1))
    )
    higher = sum(last > first for first, last in zip(start, end, strict=True))
    caption = (
        f"The gradient of every kind of matrix has a stable rank {between(end)} after training and {between(start)} "
        f"before. Training raises it for {higher} of {len(end)} kinds. Twins that are trained on shuffled targets, "
        f"from which only the frequency of words can be learned, have {between(twins)}. Grey: Gaussian matrices with "
        f"the same norms of rows and columns. Geometric means over layers, mean of {_about(run)}."
    )
    return Drawing("gradient-ranks", caption, figure, f"{len(names)} panels with four kinds of dots. {' '.join(seen)}")


def _plain_ticks(axis: Axes) -> None:
    """1, 2, 5, 10 ... instead of powers of ten: the ranks span less than two of them."""
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    low, high = axis.get_ylim()
    ticks = [tick for power in range(5) for tick in (10**power, 2 * 10**power, 5 * 10**power) if tick <= high]
    axis.set_ylim(min(low, 0.9), high)
    axis.set_yticks(ticks)
    axis.yaxis.set_major_formatter(ScalarFormatter())
    axis.yaxis.set_minor_formatter(NullFormatter())


def _over_matrices(values: np.ndarray) -> np.ndarray:
    """The geometric mean over the last dimension."""
    return np.asarray(np.exp(np.log(values).mean(-1)))


def _draw_training(run: Run) -> Drawing:
    """Stable rank over training, the geometric mean over all matrices, beside the controls."""
    names = variants(run.config)
    figure, axes = panels(len(names), width=4.4)
    seen, told = [], []
    for name, axis in zip(names, axes, strict=True):
        x = steps(run, name)
        lines = {
            "Gaussian,\nsame norms": (rank(run, name, "gaussian"), CONTROL),
            "text": (rank(run, name), BLUE),
            "shuffled\ntargets": (rank(run, name, text=SHUFFLED), ORANGE),
        }
        for label, (values, colour) in lines.items():
            path = _over_matrices(values)
            path = path[np.isfinite(path).all(1)]
            mean_and_band(axis, x, path, over=0, color=colour, label=label, marker="o", ms=3)
            seen.append(f"{_title(run, name)}, {label.replace(chr(10), ' ')}: {course(x, path.mean(0))}.")
        first, last = (_mean(_over_matrices(rank(run, name)))[place] for place in (0, -1))
        told.append(f"from {number(first)} to {number(last)} ({name})")
        axis.set(yscale="log", ylabel="stable rank of the gradient", title=_title(run, name))
        _plain_ticks(axis)
        step_axis(axis)
        label_lines(axis)
    caption = (
        f"Over training the stable rank of gradients goes {listing(told)}. Geometric mean over all matrices and "
        f"layers; lines: mean of {_about(run)}; bands: their range. Grey: Gaussian matrices with the norms of rows and "
        "columns of the text's gradients. Orange: twins that are trained on shuffled targets, of their own gradients."
    )
    return Drawing("rank-over-training", caption, figure, f"{len(names)} panels of curves. {' '.join(seen)}")


def _draw_subspaces(run: Run) -> Drawing:
    """Above: energy in the first r directions at the end. Below: overlap of subspaces over one refresh."""
    names = variants(run.config)
    figure, axes = panels(len(names), 2, width=4.4)
    seen, energies, overlaps = [], [], []
    for place, name in enumerate(names):
        said, energy = _draw_energy(axes[place], run, name)
        also, shared = _draw_overlap(axes[len(names) + place], run, name)
        seen.append(f"{_title(run, name)}: {said} {also}")
        energies.append(energy)
        overlaps.append(f"{shared} ({name})")
    refresh = run.config["refresh"]
    hollow = any(len(_longer_before(run, name)) for name in names)
    longer = "; hollow: with those of the point before, which is longer ago" if hollow else ""
    caption = (
        f"At the end of training a quarter of the directions holds {between(energies, '%')} of the gradient's energy "
        f"(upper row, mean over matrices). Over the last {refresh} steps these directions share {listing(overlaps)}. "
        f"Lower row: overlap of the first m/4 directions with those of {refresh} steps earlier (blue{longer}), of two "
        "batches at one step (green), and with those for shuffled targets in the same network (orange). Means over "
        f"matrices, layers and {_about(run)}."
    )
    return Drawing("energy-and-subspace", caption, figure, f"{2 * len(names)} panels. {' '.join(seen)}")


def _draw_energy(axis: Axes, run: Run, name: str) -> tuple[str, float]:
    ranks = projector_ranks(sides(run.config)[name])
    order = np.argsort(ranks)
    x = np.array(ranks)[order]
    kinds = {
        "shuffled\ntargets": ("large", -1, SHUFFLED, ORANGE),
        "untrained": ("large", 0, 0, GREEN),
        "trained": ("large", -1, 0, BLUE),
        "Gaussian,\nsame norms": ("gaussian", -1, 0, CONTROL),
    }
    said, last = [], 0.0
    for label, (batch, point, text, colour) in kinds.items():
        values = [_mean(gradient(run, name, batch, energy, text=text)[:, point].mean((1, 2))) for energy in ENERGIES]
        path = np.array(values)[order]
        axis.plot(x, path, color=colour, marker="o", ms=4, label=label)
        said.append(f"{label.replace(chr(10), ' ')} {number(float(path[-1]), '%')}")
        last = float(path[-1]) if label == "trained" else last
    axis.set(xscale="log", xlabel="first r directions", ylabel="share of energy", ylim=(0, 1.03))
    axis.set_xticks(x, [str(r) for r in x])
    axis.minorticks_off()
    axis.set_title(_title(run, name))
    label_lines(axis)
    return f"energy in the first {x[-1]} directions: {', '.join(said)}.", last


def _longer_before(run: Run, name: str) -> np.ndarray:
    """The points whose neighbour before is more than one refresh away."""
    return np.setdiff1d(np.arange(1, len(steps(run, name))), apart(run, name))


def _draw_overlap(axis: Axes, run: Run, name: str) -> tuple[str, str]:
    x, side = steps(run, name), sides(run.config)[name]
    near, far = apart(run, name), _longer_before(run, name)
    lines = {
        "two batches": ("batches", GREEN),
        "a refresh\nbefore": ("before", BLUE),
        "shuffled\ntargets": ("targets", ORANGE),
    }  # fmt: skip
    ends = {}
    for label, (which, colour) in lines.items():
        path = _mean(probe(run, name, f"subspace/{which}")[:, 1:].mean((2, 3)))
        shown = near if which == "before" else np.arange(1, len(x))
        axis.plot(x[shown], path[shown - 1], color=colour, marker="o", ms=4, label=label)
        ends[label.replace("\n", " ")] = float(path[near[-1] - 1])
        if which == "before" and len(far):
            look: Any = {"color": colour, "marker": "o", "ms": 4, "mfc": "none", "ls": "none"}
            axis.plot(x[far], path[far - 1], label="longer\nbefore", **look)
    chance = (side // QUARTER) / side
    axis.axhline(chance, color=INK, ls=":", lw=1.0, label="random")
    axis.set(ylabel="overlap, first m/4 directions", ylim=(0, 1.03))
    axis.set_title(_title(run, name))
    step_axis(axis)
    label_lines(axis)
    told = ", ".join(f"{label} {number(value, '%')}" for label, value in ends.items())
    return f"Overlap at the last pair of points: {told}, random {number(chance, '%')}.", number(
        ends["a refresh before"], "%"
    )


def _draw_nodes(run: Run) -> Drawing:
    """V of the talk and its gradient over training."""
    names = variants(run.config)
    figure, axes = panels(len(names), width=4.4)
    seen, told = [], []
    lines = {
        "V' by its\nnorms alone": ("V' by its norms", CONTROL, "--", 0), "V": ("V", BLUE, "-", 0),
        "V'": ("V'", PURPLE, "-", 0), "V, shuffled": ("V", ORANGE, "-", SHUFFLED),
    }  # fmt: skip
    for name, axis in zip(names, axes, strict=True):
        x = steps(run, name)
        for label, (which, colour, dashes, text) in lines.items():
            path = probe(run, name, f"nodes/{which}", text=text)
            path = path[np.isfinite(path).all(1)]
            mean_and_band(axis, x, path, over=0, color=colour, label=label, ls=dashes)
            seen.append(f"{_title(run, name)}, {label.replace(chr(10), ' ')}: {course(x, path.mean(0))}.")
        v, growth = (_mean(probe(run, name, f"nodes/{which}")) for which in ("V", "V'"))
        told.append(f"V from {number(v[0])} to {number(v[-1])} and V' from {number(growth[0])} to "
                    f"{number(growth[-1])} ({name})")  # fmt: skip
        axis.set(yscale="log", ylabel="stable rank", title=_title(run, name))
        _plain_ticks(axis)
        step_axis(axis)
        label_lines(axis)
    caption = (
        f"Stable rank in the lowest layer over training: {listing(told)}. V has one row per frequent word "
        "and one column per node of the MLP; V' is its gradient. Dashed: Gaussian matrices with the norms of rows and "
        "columns of V', which is all that the talk's dynamics changes of V'. Orange: V of twins that are trained on "
        f"shuffled targets. Lines: mean of {_about(run)}; bands: their range."
    )
    return Drawing("nodes", caption, figure, f"{len(names)} panels of curves. {' '.join(seen)}")

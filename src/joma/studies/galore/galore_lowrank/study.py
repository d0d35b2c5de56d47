"""The study of gradients of real decoders: its sizes, its claims, and what it is about."""

from collections.abc import Callable
from typing import Any

import numpy as np

from joma.claims.contract import Drawing, Study
from joma.figures.bands import mean_and_band
from joma.figures.labels import label_lines
from joma.figures.reading import between, listing, number
from joma.figures.style import BLUE, CONTROL, GREEN, INK, ORANGE, PURPLE, panels, step_axis
from joma.figures.types import Axes, Figure
from joma.recipes.language import PAPER, called, same_text
from joma.recipes.language.curves import steps_of
from joma.runs import Run
from joma.studies.galore.galore_lowrank import run as decoders
from joma.studies.galore.galore_lowrank.judge import JUDGES, QUARTER
from joma.studies.galore.galore_lowrank.run import probe, rank, run, variants
from joma.studies.galore.galore_lowrank.spectra import projector_ranks

Line = tuple[np.ndarray, str, str]
"""(seeds, points), colour, dashes."""


def _title(run: Run, name: str) -> str:
    if name == decoders.SERIES:
        return f"{name}: {run.config['series_layers']} layers, m = {run.config['series_width']}"
    return f"Figure 6: {name}, m = {run.config['width']}"


def _mean(values: np.ndarray) -> np.ndarray:
    """Over seeds, the first dimension, of those that did not diverge."""
    return np.asarray(np.nanmean(values, axis=0))


def _about(run: Run) -> str:
    return f"{run.config['seeds']} seeds, {called(run.config['corpus'])}"


def _draw_matrices(run: Run) -> Drawing:
    names = list(variants(run))
    figure, axes = panels(len(names), width=4.2, height=3.0)
    ends: dict[str, list[float]] = {}
    for name, axis in zip(names, axes, strict=True):
        for label, values, colour, marker in (
            ("Gaussian, same norms", rank(run, name, "gaussian")[:, -1], CONTROL, "D"),
            ("trained", rank(run, name)[:, -1], BLUE, "o"),
            ("untrained", rank(run, name)[:, 0], GREEN, "s"),
            ("shuffled targets", rank(run, name, text=decoders.SHUFFLED)[:, -1], ORANGE, "^"),
        ):
            mean = _mean(values)
            axis.plot(range(len(mean)), mean, color=colour, marker=marker, ms=5, ls="none", label=label)
            ends.setdefault(label, []).extend(mean)
        axis.set_xticks(range(len(decoders.MATRICES)), decoders.MATRICES)
        axis.set(yscale="log", xlabel="gradient by this matrix", ylabel="stable rank", title=_title(run, name))
        _plain_ticks(axis)
    axes[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
    start, end, twins = (ends[label] for label in ("untrained", "trained", "shuffled targets"))
    higher = sum(last > first for first, last in zip(start, end, strict=True))
    caption = (
        f"The gradient of every kind of matrix has a stable rank {between(end)} after training and {between(start)} "
        f"before. Training raises it for {higher} of {len(end)} kinds. Twins that are trained on shuffled targets, "
        f"from which only the frequency of words can be learned, have {between(twins)}. Grey: Gaussian matrices with "
        f"the same norms of rows and columns. Geometric means over layers, mean of {_about(run)}."
    )
    return Drawing("gradient-ranks", caption, figure)


def _plain_ticks(axis: Axes) -> None:
    """1, 2, 5, 10 ... instead of powers of ten: the ranks span less than two of them."""
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    low, high = axis.get_ylim()
    ticks = [tick for power in range(5) for tick in (10**power, 2 * 10**power, 5 * 10**power) if tick <= high]
    axis.set_ylim(min(low, 0.9), high)
    axis.set_yticks(ticks)
    axis.yaxis.set_major_formatter(ScalarFormatter())
    axis.yaxis.set_minor_formatter(NullFormatter())


def _over_training(run: Run, ylabel: str, lines: Callable[[str], dict[str, Line]], **look: Any) -> Figure:
    """One panel per decoder, with lines over training and their bands, without networks that diverged."""
    figure, axes = panels(len(variants(run)), width=4.4)
    for name, axis in zip(variants(run), axes, strict=True):
        for label, (path, colour, dashes) in lines(name).items():
            path = path[np.isfinite(path).all(1)]
            mean_and_band(axis, steps_of(run, name), path, over=0, color=colour, label=label, ls=dashes, **look)
        axis.set(yscale="log", ylabel=ylabel, title=_title(run, name))
        _plain_ticks(axis)
        step_axis(axis)
        label_lines(axis)
    return figure


def _draw_training(run: Run) -> Drawing:
    def path(name: str, batch: str = "large", text: int = decoders.TEXT) -> np.ndarray:
        return np.asarray(np.exp(np.log(rank(run, name, batch, text=text)).mean(-1)))

    def lines(name: str) -> dict[str, Line]:
        return {
            "Gaussian,\nsame norms": (path(name, "gaussian"), CONTROL, "-"),
            "text": (path(name), BLUE, "-"),
            "shuffled\ntargets": (path(name, text=decoders.SHUFFLED), ORANGE, "-"),
        }

    figure = _over_training(run, "stable rank of the gradient", lines, marker="o", ms=3)
    means = {name: _mean(path(name)) for name in variants(run)}
    ends = listing(f"from {number(mean[0])} to {number(mean[-1])} ({name})" for name, mean in means.items())
    caption = (
        f"Over training the stable rank of gradients goes {ends}. Geometric mean over all matrices and "
        f"layers; lines: mean of {_about(run)}; bands: their range. Grey: Gaussian matrices with the norms of rows and "
        "columns of the text's gradients. Orange: twins that are trained on shuffled targets, of their own gradients."
    )
    return Drawing("rank-over-training", caption, figure)


def _draw_subspaces(run: Run) -> Drawing:
    names = list(variants(run))
    figure, axes = panels(len(names), 2, width=4.4)
    energies = [_draw_energy(axis, run, name) for axis, name in zip(axes, names, strict=False)]
    below = zip(axes[len(names) :], names, strict=True)
    overlaps = [f"{number(_draw_overlap(axis, run, name), '%')} ({name})" for axis, name in below]
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
    return Drawing("energy-and-subspace", caption, figure)


def _draw_energy(axis: Axes, run: Run, name: str) -> float:
    """The share of energy in a quarter of the directions, after training."""
    ranks = projector_ranks(variants(run)[name])
    order = np.argsort(ranks)
    x, last = np.array(ranks)[order], {}
    for label, batch, point, text, colour in (
        ("shuffled\ntargets", "large", -1, decoders.SHUFFLED, ORANGE),
        ("untrained", "large", 0, decoders.TEXT, GREEN),
        ("trained", "large", -1, decoders.TEXT, BLUE),
        ("Gaussian,\nsame norms", "gaussian", -1, decoders.TEXT, CONTROL),
    ):
        energies = (decoders.gradient(run, name, batch, f"energy {r}", text=text) for r in ("1", "4", "m/16", "m/4"))
        path = np.array([_mean(energy[:, point].mean((1, 2))) for energy in energies])[order]
        axis.plot(x, path, color=colour, marker="o", ms=4, label=label)
        last[label] = float(path[-1])
    axis.set(xscale="log", xlabel="first r directions", ylabel="share of energy", ylim=(0, 1.03))
    axis.set_xticks(x, [str(r) for r in x])
    axis.minorticks_off()
    axis.set_title(_title(run, name))
    label_lines(axis)
    return last["trained"]


def _longer_before(run: Run, name: str) -> np.ndarray:
    """The points whose neighbour before is more than one refresh away."""
    return np.setdiff1d(np.arange(1, len(steps_of(run, name))), decoders.after_refresh(run, name))


def _draw_overlap(axis: Axes, run: Run, name: str) -> float:
    """What the subspace shares with that of one refresh before, at the last such pair of points."""
    x, side = steps_of(run, name), variants(run)[name]
    near, far = decoders.after_refresh(run, name), _longer_before(run, name)
    two, before, targets = (
        _mean(probe(run, name, f"subspace/{which}")[:, 1:].mean((2, 3))) for which in ("batches", "before", "targets")
    )
    look: Any = {"marker": "o", "ms": 4}
    axis.plot(x[1:], two, color=GREEN, label="two batches", **look)
    axis.plot(x[near], before[near - 1], color=BLUE, label="a refresh\nbefore", **look)
    if len(far):
        axis.plot(x[far], before[far - 1], color=BLUE, label="longer\nbefore", mfc="none", ls="none", **look)
    axis.plot(x[1:], targets, color=ORANGE, label="shuffled\ntargets", **look)
    axis.axhline((side // QUARTER) / side, color=INK, ls=":", lw=1.0, label="random")
    axis.set(ylabel="overlap, first m/4 directions", ylim=(0, 1.03), title=_title(run, name))
    step_axis(axis)
    label_lines(axis)
    return float(before[near[-1] - 1])


def _draw_nodes(run: Run) -> Drawing:
    def lines(name: str) -> dict[str, Line]:
        return {
            "V' by its\nnorms alone": (probe(run, name, "nodes/V' by its norms"), CONTROL, "--"),
            "V": (probe(run, name, "nodes/V"), BLUE, "-"),
            "V'": (probe(run, name, "nodes/V'"), PURPLE, "-"),
            "V, shuffled": (probe(run, name, "nodes/V", text=decoders.SHUFFLED), ORANGE, "-"),
        }

    ends = []
    for name in variants(run):
        paths = {which: _mean(probe(run, name, f"nodes/{which}")) for which in ("V", "V'")}
        moves = [f"{which} from {number(path[0])} to {number(path[-1])}" for which, path in paths.items()]
        ends.append(f"{' and '.join(moves)} ({name})")
    caption = (
        f"Stable rank in the lowest layer over training: {listing(ends)}. V has one row per frequent word "
        "and one column per node of the MLP; V' is its gradient. Dashed: Gaussian matrices with the norms of rows and "
        "columns of V', which is all that the talk's dynamics changes of V'. Orange: V of twins that are trained on "
        f"shuffled targets. Lines: mean of {_about(run)}; bands: their range."
    )
    return Drawing("nodes", caption, _over_training(run, "stable rank", lines))


STUDY = Study(
    name="galore-lowrank",
    title="GaLore: the rank of gradients over the training of decoders",
    version=1,
    claims=JUDGES,
    quick=decoders.GaloreLowrankConfig(
        vocabulary=200, width=32, mlp=32, dropout=0.0, streams=4, valid_sequences=3, steps=60, every=30, refresh=20,
        pairs=2, seeds=5, batches=2, layers=(1,), series_layers=2, series_width=32, series_heads=2, series_length=35,
        series_streams=4, series_batches=2, series_vocabulary=200, series_steps=60,
    ),
    paper=decoders.GaloreLowrankConfig(
        **PAPER | {"steps": 5_800, "every": 2_900, "valid_sequences": 40},
        layers=(1, 5), rate=1e-4, seeds=5, pairs=4, batches=8, series_layers=6, series_width=512, series_heads=8,
        series_length=512, series_streams=8, series_batches=4, series_vocabulary=16_384, series_steps=1_000,
        series_rate=3e-4,
    ),
    run=run,
    draw=lambda run: [_draw_matrices(run), _draw_training(run), _draw_subspaces(run), _draw_nodes(run)],
    check=same_text,
    about=(
        "Decoders of Figure 6 and one of the size of Figure 7's series train on a text. Twins read the same text but "
        "are told to predict words from a shuffled copy: they can learn how frequent words are and nothing else. On "
        "the way, the gradient of a large fixed batch is taken by every weight matrix. Its stable rank, the energy in "
        "its first directions and the overlap of these directions over one refresh of GaLore's projector are recorded. "
        "The same is recorded for Gaussian matrices with the same norms of rows and columns, for a second batch, and "
        "for one training batch. V of the talk is read from the lowest layer. Numbers are means over layers. A network "
        "that learns no more than how frequent words are does not count."
    ),
)  # fmt: skip

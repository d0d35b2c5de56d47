"""Two pictures of the lottery: where every layer ends in every network, and how alike twins are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.labels import label_lines
from joma.figures.reading import between, course, listing, number
from joma.figures.style import BLUE, CONTROL, GREEN, INK, ORANGE, PURPLE, panels, step_axis
from joma.measure.intervals import compare
from joma.recipes.language import called
from joma.recipes.language_curves import steps_of
from joma.runs import Run
from joma.studies.rebound._lottery_networks import KINDS, NETWORKS
from joma.studies.rebound._lottery_patterns import (
    PATTERNS,
    between_seeds,
    distance,
    inner,
    members,
    patterns,
    share_of_position,
    twin_pairs,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"seed": CONTROL, "rounding": BLUE, "dropout": ORANGE, "order": GREEN, "weights": PURPLE}
DIFFERS = {
    "seed": "other seed",
    "rounding": "rounding alone",
    "dropout": "other dropout",
    "order": "other data order",
    "weights": "other weights",
}


def draw_map(run: Run) -> Drawing:
    """Final entropies, layers x seeds, sorted; beside them seeds and their rounding twins, row under row."""
    end = patterns(run)["end"]
    seeds = _sorted(end, members(run, "seed"))
    pairs = _rounding_pairs(run, seeds)
    rows = max(len(seeds), 1)
    figure, axes = panels(3, width=3.1, height=max(2.8, 0.13 * rows + 1.4))
    shown = end[np.isfinite(end).all(1)]
    limits = (float(shown.min()), float(shown.max())) if len(shown) else (0.0, 1.0)
    drawn = _colour_map(axes[0], end[seeds], limits)
    axes[0].set(title="Seeds: entropy at the end", ylabel=f"{len(seeds)} seeds, sorted", xlabel="layer")
    axes[0].set_yticks([])
    _colour_map(axes[1], end[pairs], limits)
    axes[1].set(title="Seed and its rounding twin", ylabel="pairs", xlabel="layer")
    axes[1].set_yticks(np.arange(0, len(pairs), 2) + 1.0, [f"{i + 1}" for i in range(len(pairs) // 2)], fontsize=7)
    for edge in range(2, len(pairs), 2):
        axes[1].axhline(edge, color="white", lw=2.5)
    if drawn is not None:
        bar = figure.colorbar(drawn, ax=axes[:2], shrink=0.8)
        bar.ax.set(xlabel="nats", ylabel="attention entropy")
    _draw_shares(axes[2], run)
    return Drawing("layers-by-seed", _map_caption(run), figure, _map_alt(run, seeds, pairs))


def _sorted(end: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """Seeds by what differs most between them: the first principal component of the deviations from the mean."""
    if len(seeds) < 2:
        return seeds
    deviations = end[seeds] - end[seeds].mean(0)
    return np.asarray(seeds[np.argsort(np.linalg.svd(deviations, full_matrices=False)[0][:, 0])])


def _rounding_pairs(run: Run, seeds: np.ndarray) -> np.ndarray:
    """Seed, twin, seed, twin, ..., in the order of the sorted seeds."""
    of = run.value(f"{NETWORKS}/of")
    twin = {int(of[one]): int(one) for one in members(run, "rounding")}
    return np.array([one for seed in seeds if int(seed) in twin for one in (int(seed), twin[int(seed)])], dtype=int)


def _colour_map(axis: Axes, rows: np.ndarray, limits: tuple[float, float]):  # type: ignore[no-untyped-def]
    if not len(rows):
        axis.text(0.5, 0.5, "none learned", ha="center", transform=axis.transAxes)
        return None
    layers = rows.shape[1]
    drawn = axis.pcolormesh(np.arange(layers + 1) + 0.5, np.arange(len(rows) + 1), rows, vmin=limits[0], vmax=limits[1])
    axis.invert_yaxis()
    axis.set_xticks(range(1, layers + 1))
    return drawn


def _draw_shares(axis: Axes, run: Run) -> None:
    """What position explains, of all layers and of the inner ones, beside shuffled layers."""
    shares = _shares(run)
    for place, name in enumerate(PATTERNS):
        for shift, which, colour in ((-0.17, "all layers", BLUE), (0.17, "inner layers", ORANGE)):
            found = shares[which, name]
            axis.bar(place + shift, 100 * found.value, 0.3, color=colour, label=which if place == 0 else None)
            axis.plot([place + shift - 0.17, place + shift + 0.17], [100 * found.chance] * 2, color=INK, lw=1.4)
    axis.plot([], [], color=INK, lw=1.4, label="95 % of shuffled layers")
    axis.set_xticks(range(len(PATTERNS)), ["drop", "rebound", "end"])
    axis.set(ylim=(0, 135), xlabel="of entropy", ylabel="share of variance (%)", title="Explained by position")
    axis.set_yticks([0, 25, 50, 75, 100])
    axis.legend(loc="upper left", fontsize=7.5)


def _shares(run: Run):  # type: ignore[no-untyped-def]
    seeds, found = members(run, "seed"), patterns(run)
    layers = {"all layers": slice(None), "inner layers": inner(int(run.config["layers"]))}
    return {
        (which, name): share_of_position(found[name][seeds][:, part])
        for which, part in layers.items()
        for name in PATTERNS
    }


def _map_caption(run: Run) -> str:
    shares, config = _shares(run), run.config
    seeds = members(run, "seed")
    alike = {
        which: between_seeds(patterns(run)["end"][seeds][:, part]).value
        for which, part in (("all", slice(None)), ("inner", inner(int(config["layers"]))))
    }
    ends = {which: number(shares[which, "end"].value, "%") for which in ("all layers", "inner layers")}
    part = inner(int(config["layers"]))
    return (
        f"Position explains {ends['all layers']} of how the entropy at the end differs between layers, and "
        f"{ends['inner layers']} among the inner layers ({part.start + 1} to {part.stop}). Two seeds' patterns "
        f"correlate by {alike['all']:.2f}, those of the inner layers by {alike['inner']:.2f}. Left: one row "
        "per seed, one column per layer from the input on; rows are sorted by what differs most between seeds. "
        f"Middle: rows in pairs, a seed and its twin that differs only in rounding. {len(seeds)} networks of "
        f"{config['layers']} layers on {called(config['corpus'])}, step {config['steps']:,}."
    )


def _map_alt(run: Run, seeds: np.ndarray, pairs: np.ndarray) -> str:
    end, shares = patterns(run)["end"], _shares(run)
    if not len(seeds):
        return "Three panels without values: no network learned more than how frequent words are."
    mean, spread = end[seeds].mean(0), end[seeds].std(0)
    apart = np.abs(end[pairs[::2]] - end[pairs[1::2]]).max(initial=0.0)
    told = listing(
        f"{name} {number(shares['all layers', name].value, '%')} and {number(shares['inner layers', name].value, '%')}"
        for name in PATTERNS
    )
    return (
        f"Three panels. A map of {len(seeds)} rows and {end.shape[1]} columns: layer 1 ends at "
        f"{number(mean[0], 'nats')} in the mean, layer {end.shape[1]} at {number(mean[-1], 'nats')}; the layer that "
        f"differs most between seeds is layer {int(spread.argmax()) + 1}, "
        f"{between(end[seeds][:, spread.argmax()], 'nats')}. A map of {len(pairs) // 2} pairs of rows that differ by "
        f"at most {number(float(apart), 'nats')} within a pair. Bars of the share that position explains, of all "
        f"layers and of the inner ones: {told}."
    )


def draw_distances(run: Run) -> Drawing:
    """How far twins are apart over training, and how alike what is special to them is at the end."""
    figure, axes = panels(2, width=3.9, height=3.0)
    steps = steps_of(run, NETWORKS)
    for kind in (*KINDS[1:], KINDS[0]):
        rows = distance(run, kind)
        if len(rows):
            axes[0].plot(steps[1:], _typical(rows)[1:], color=COLOURS[kind], label=DIFFERS[kind])
    if axes[0].get_lines():
        axes[0].set_yscale("log")
    axes[0].set(ylabel="distance of entropies (nats)", title="From when on twins differ")
    step_axis(axes[0])
    label_lines(axes[0])
    _draw_pairs(axes[1], run)
    return Drawing("twins", _twin_caption(run), figure, _twin_alt(run))


def _typical(rows: np.ndarray) -> np.ndarray:
    """The middle pair at every point; twins that are still the same are shown at the smallest distance there is."""
    middle = np.median(rows, axis=0)
    return np.asarray(np.maximum(middle, 1e-8))


def _draw_pairs(axis: Axes, run: Run) -> None:
    end = patterns(run)["end"]
    strangers = []
    for place, kind in enumerate(KINDS[1:]):
        pairs = twin_pairs(run, kind, end)
        strangers += pairs[:, 1].tolist()
        axis.plot(np.full(len(pairs), place), pairs[:, 0], "o", ms=4, color=COLOURS[kind], alpha=0.7)
        if len(pairs):
            axis.plot([place - 0.25, place + 0.25], [pairs[:, 0].mean()] * 2, color=COLOURS[kind], lw=2)
    if strangers:
        axis.axhline(float(np.mean(strangers)), color=CONTROL, ls="--", lw=1.2)
    axis.axhline(1.0, color=INK, lw=0.6)
    axis.set_xticks(range(len(KINDS) - 1), ["rounding\nalone", "dropout", "data\norder", "initial\nweights"])
    axis.set(
        ylim=(-1.05, 1.1),
        xlabel="the twin differs in",
        ylabel="correlation with its twin",
        title="What is special to a network",
    )


def _twin_caption(run: Run) -> str:
    end = patterns(run)["end"]
    found = {kind: twin_pairs(run, kind, end) for kind in KINDS[1:]}
    told = [f"{compare(pairs[:, 0]).value:.2f} with {DIFFERS[kind]}" for kind, pairs in found.items() if len(pairs)]
    strangers = np.concatenate([pairs[:, 1] for pairs in found.values()])
    return (
        "A network and its twin are alike in what is special to them by a correlation of "
        f"{listing(told) if told else 'nothing: no pair learned'}; other seeds by {compare(strangers).value:.2f} "
        "(dashed). Left: the distance of entropies between a network and its twin, RMS over layers, of the middle "
        "pair. Right: correlation of where the layers end, as deviations from the mean of the other seeds; one dot "
        "per pair, bars: means."
    )


def _twin_alt(run: Run) -> str:
    steps, end = steps_of(run, NETWORKS), patterns(run)["end"]
    lines = []
    for kind in (*KINDS[1:], KINDS[0]):
        rows = distance(run, kind)
        if len(rows):
            lines.append(f"{DIFFERS[kind]} {course(steps[1:], _typical(rows)[1:], 'nats', log=True)}")
    dots = [f"{DIFFERS[kind]} {between(pairs[:, 0])}" for kind in KINDS[1:] if len(pairs := twin_pairs(run, kind, end))]
    return (
        f"Two panels. Distances over training: {'; '.join(lines) or 'none'}. Correlations: {'; '.join(dots) or 'none'}."
    )

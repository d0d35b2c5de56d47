"""Two pictures of the lottery: where every layer ends in every network, and how alike twins are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.labels import label_lines
from joma.figures.reading import listing, number
from joma.figures.style import BLUE, CONTROL, GREEN, INK, ORANGE, PURPLE, panels, step_axis
from joma.measure.intervals import compare
from joma.recipes.language import called
from joma.recipes.language.curves import steps_of
from joma.runs import Run
from joma.studies.rebound.layer_lottery.record import (
    PATTERNS,
    Share,
    between_seeds,
    distance,
    inner,
    members,
    patterns,
    share_of_position,
    twin_pairs,
)
from joma.studies.rebound.layer_lottery.run import KINDS, NETWORKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOOKS = {
    "rounding": ("rounding alone", BLUE),
    "dropout": ("other dropout", ORANGE),
    "order": ("other data order", GREEN),
    "weights": ("other weights", PURPLE),
    "seed": ("other seed", CONTROL),
}
"""What a twin differs in, and its colour; two seeds are no twins and come last."""
Shares = Mapping[tuple[str, str], Share]


def draw_map(run: Run) -> Drawing:
    """Final entropies, layers x seeds, sorted; beside them seeds and their rounding twins, row under row."""
    end = patterns(run)["end"]
    seeds = _sorted(end, members(run, "seed"))
    of = run.value(f"{NETWORKS}/of")
    twin = {int(of[one]): int(one) for one in members(run, "rounding")}
    pairs = np.array([one for seed in seeds if int(seed) in twin for one in (int(seed), twin[int(seed)])], dtype=int)
    figure, axes = panels(3, width=3.1, height=max(2.8, 0.13 * max(len(seeds), 1) + 1.4))
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
    layers = {"all layers": slice(None), "inner layers": inner(int(run.config["layers"]))}
    chosen = {name: pattern[members(run, "seed")] for name, pattern in patterns(run).items()}
    shares = {
        (which, name): share_of_position(chosen[name][:, part]) for which, part in layers.items() for name in PATTERNS
    }
    _draw_shares(axes[2], shares)
    alike = {which: between_seeds(chosen["end"][:, part]).value for which, part in layers.items()}
    explained = {which: number(shares[which, "end"].value, "%") for which in layers}
    caption = (
        f"Position explains {explained['all layers']} of how the entropy at the end differs between layers, and "
        f"{explained['inner layers']} among the inner layers ({layers['inner layers'].start + 1} to "
        f"{layers['inner layers'].stop}). Two seeds' patterns correlate by {alike['all layers']:.2f}, those of the "
        f"inner layers by {alike['inner layers']:.2f}. Left: one row "
        "per seed, one column per layer from the input on; rows are sorted by what differs most between seeds. "
        f"Middle: rows in pairs, a seed and its twin that differs only in rounding. {len(seeds)} networks of "
        f"{run.config['layers']} layers on {called(run.config['corpus'])}, step {run.config['steps']:,}."
    )
    return Drawing("layers-by-seed", caption, figure)


def _sorted(end: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """Seeds by what differs most between them: the first principal component of the deviations from the mean."""
    if len(seeds) < 2:
        return seeds
    deviations = end[seeds] - end[seeds].mean(0)
    return np.asarray(seeds[np.argsort(np.linalg.svd(deviations, full_matrices=False)[0][:, 0])])


def _colour_map(axis: Axes, rows: np.ndarray, limits: tuple[float, float]) -> Any:
    if not len(rows):
        axis.text(0.5, 0.5, "none learned", ha="center", transform=axis.transAxes)
        return None
    layers = rows.shape[1]
    drawn = axis.pcolormesh(np.arange(layers + 1) + 0.5, np.arange(len(rows) + 1), rows, vmin=limits[0], vmax=limits[1])
    axis.invert_yaxis()
    axis.set_xticks(range(1, layers + 1))
    return drawn


def _draw_shares(axis: Axes, shares: Shares) -> None:
    """What position explains, of all layers and of the inner ones, beside shuffled layers."""
    for place, name in enumerate(PATTERNS):
        for shift, which, colour in ((-0.17, "all layers", BLUE), (0.17, "inner layers", ORANGE)):
            found = shares[which, name]
            axis.bar(place + shift, 100 * found.value, 0.3, color=colour, label=which if place == 0 else None)
            axis.plot([place + shift - 0.17, place + shift + 0.17], [100 * found.chance] * 2, color=INK, lw=1.4)
    axis.plot([], [], color=INK, lw=1.4, label="95 % of shuffled layers")
    axis.set_xticks(range(len(PATTERNS)), PATTERNS)
    axis.set(ylim=(0, 135), xlabel="pattern of entropy", ylabel="share of variance (%)", title="Explained by position")
    axis.set_yticks([0, 25, 50, 75, 100])
    axis.legend(loc="upper left", fontsize=7.5)


def draw_distances(run: Run) -> Drawing:
    """How far twins are apart over training, and how alike what is special to them is at the end."""
    figure, axes = panels(2, width=3.9, height=3.0)
    for kind, (label, colour) in LOOKS.items():
        rows = distance(run, kind)
        if len(rows):  # the middle pair; twins that are still the same are at the smallest distance there is
            middle = np.maximum(np.median(rows, axis=0), 1e-8)
            axes[0].plot(steps_of(run, NETWORKS)[1:], middle[1:], color=colour, label=label)
    if axes[0].get_lines():
        axes[0].set_yscale("log")
    axes[0].set(ylabel="distance of entropies (nats)", title="From when on twins differ")
    step_axis(axes[0])
    label_lines(axes[0])
    pairs = {kind: twin_pairs(run, kind, patterns(run)["end"]) for kind in KINDS[1:]}
    _draw_pairs(axes[1], pairs)
    means = [f"{compare(rows[:, 0]).value:.2f} with {LOOKS[kind][0]}" for kind, rows in pairs.items() if len(rows)]
    strangers = np.concatenate([rows[:, 1] for rows in pairs.values()])
    caption = (
        "A network and its twin are alike in what is special to them by a correlation of "
        f"{listing(means) if means else 'nothing: no pair learned'}; other seeds by {compare(strangers).value:.2f} "
        "(dashed). Left: the distance of entropies between a network and its twin, RMS over layers, of the middle "
        "pair. Right: correlation of where the layers end, as deviations from the mean of the other seeds; one dot "
        "per pair, bars: means."
    )
    return Drawing("twins", caption, figure)


def _draw_pairs(axis: Axes, pairs: Mapping[str, np.ndarray]) -> None:
    for place, (kind, rows) in enumerate(pairs.items()):
        label, colour = LOOKS[kind]
        axis.plot(np.full(len(rows), place), rows[:, 0], "o", ms=4, color=colour, alpha=0.7, label=label)
        if len(rows):
            axis.plot([place - 0.25, place + 0.25], [rows[:, 0].mean()] * 2, color=colour, lw=2)
    if strangers := [one for rows in pairs.values() for one in rows[:, 1].tolist()]:
        axis.axhline(float(np.mean(strangers)), color=CONTROL, ls="--", lw=1.2, label="other seeds")
    axis.axhline(1.0, color=INK, lw=0.6)
    axis.set_xticks(range(len(pairs)), ["rounding\nalone", "dropout", "data\norder", "initial\nweights"])
    axis.set(xlabel="the twin differs in", ylabel="correlation with its twin", title="What is special to a network")
    axis.set_ylim(-1.05, 1.1)

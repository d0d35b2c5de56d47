"""Theorem 5, eq. 8, Lemmas 8 and 9: which tokens of a hierarchical binary latent tree appear together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from joma.claims.contract import Drawing, Progress, Study
from joma.figures.style import CONTROL, CORRECTED, ORANGE, PRINTED, depth_colours, panels
from joma.runs import Run
from joma.studies.hierarchy import _hblt
from joma.studies.hierarchy._thm5_findings import CLAIMS, ERRORS, judge, orders, standard_errors

FEWEST_SAMPLES = 100  # with a few, the token asked for may never appear
CURVES = (5, 10, 20)
CURVE_EPS = 0.01
DEPTHS = (2, 10, 100, 1000)


@dataclass(frozen=True)
class Config:
    """Random trees summed over exactly, and one deep tree sampled."""

    trees: int = 100
    """Random trees of each shape."""
    classes: int = 4
    samples: int = 300_000
    """Sequences drawn from the deep tree."""
    depth: int = 7
    rho: float = 0.9
    """Uncertainty of every edge of the deep tree."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.depth < 2:
            raise ValueError(f"depth must be at least 2, so that two tokens can meet below the root, got {self.depth}")
        if not -1 < self.rho < 1:
            raise ValueError(f"rho must lie between -1 and 1, where tokens leave something to chance, got {self.rho}")
        if self.samples < FEWEST_SAMPLES:
            raise ValueError(
                f"samples must be at least {FEWEST_SAMPLES}, to know how often tokens appear together, "
                f"got {self.samples}"
            )


Compute = Callable[[], _hblt.Arrays]


def run(config: Config, run: Run, progress: Progress) -> None:
    """Sum over all latents of small trees, sample a deep one, and record what the formulas say beside it."""
    trees, classes, seed = config.trees, config.classes, 100 * config.seed
    groups: dict[str, Compute] = {
        "trees": lambda: _hblt.pairs_below_one_child(trees, classes, seed),
        "root": lambda: _hblt.pairs_below_the_root(trees, classes, seed + 1),
        "joint": lambda: _hblt.joint_of_two_latents(trees, classes, seed + 2),
        "latent": lambda: _hblt.latent_below_the_root(trees, classes, seed + 3),
        "heights": lambda: _hblt.by_height(trees, classes, seed + 4),
        "algebra": lambda: _hblt.algebra(trees, seed + 5),
        "chain": lambda: _hblt.chain(trees, seed + 6),
        "sampled": lambda: _hblt.sampled_pairs(config.samples, config.depth, config.rho, classes, seed + 7),
        "sparse": lambda: _hblt.sparse_root(DEPTHS),
        "eq8": _hblt.expansion,
        "limits": lambda: _hblt.limits(10),
        "deep": lambda: _hblt.deep_trees(DEPTHS),
        "curves": lambda: _hblt.curves(CURVE_EPS, CURVES),
    }
    done = {name.split("/")[0] for name in run.names()}
    for i, (group, compute) in enumerate(groups.items()):
        progress(i / len(groups), group)
        if group not in done:
            run.record(0, {f"{group}/{name}": array for name, array in compute().items()})


def draw(run: Run) -> list[Drawing]:
    """Co-occurrence against the height of the ancestor, and the remainder of eq. 8."""
    return [_draw_heights(run), _draw_remainder(run)]


def _draw_heights(run: Run) -> Drawing:
    figure, (left, right) = panels(2)
    for depth, colour in zip(CURVES, depth_colours(len(CURVES)), strict=True):
        left.plot(run.value(f"curves/{depth}"), "o", ms=3.5, color=colour, label=f"L = {depth}")
        left.plot([0, depth], [1, 0], ls="--", lw=1, color=colour)
    left.set(xlabel="height H of the common ancestor", ylabel="P[l | m]", title=f"ρ = ρ₀ = {1 - CURVE_EPS:g}")
    left.legend(title="dashed: 1 − H/L", title_fontsize=8.5)
    truth, corrected = run.value("sampled/truth"), run.value("sampled/corrected")
    height = np.arange(1, len(truth) + 1)
    right.plot(height[:-1], run.value("sampled/printed"), color=PRINTED, label="printed ρ₀")
    right.plot(height[:-1], corrected[:-1], color=CORRECTED, label="corrected ρ₀")
    right.plot(height[-1:], corrected[-1:], "D", ms=7, mfc="none", color=CORRECTED, label="through the root")
    right.plot(height, run.value("sampled/shuffled"), "x", ms=4, color=CONTROL, label="l of another sequence")
    right.errorbar(
        height, truth, ERRORS * standard_errors(run), fmt=".", ms=6, lw=1, color=ORANGE, label="sampled, ±4 errors"
    )
    depth, rho = run.config["depth"], run.config["rho"]
    right.set(
        xlabel="height H of the common ancestor", ylabel="P[l | m]", title=f"A sampled tree, L = {depth}, ρ = {rho:g}"
    )
    right.set_ylim(top=1.0)  # room for the legend
    right.legend()
    caption = (
        "Left: co-occurrence falls with the height of the common ancestor, along 1 − H/L only near ρ = 1. "
        "Right: a sampled tree against the formula with either ρ₀; the last pair meets in the root."
    )
    return Drawing("co-occurrence", caption, figure)


def _draw_remainder(run: Run) -> Drawing:
    figure, (axes,) = panels(1, width=4.6, height=3.0)
    eps = run.value("eq8/eps")
    for kind, colour, marker in (("printed", PRINTED, "o"), ("corrected", CORRECTED, "s")):
        remainder = np.abs(run.value("eq8/truth") - run.value(f"eq8/{kind}"))
        for i, line in enumerate(remainder):
            label = f"{kind}: order {orders(run, kind).mean():.2f}" if i == 0 else None
            axes.plot(eps, line, marker=marker, ms=3, lw=1, color=colour, label=label)
    axes.set(xscale="log", yscale="log", xlabel="ε", ylabel="|P[l | m] − expansion|", title="What eq. 8 leaves out")
    axes.legend()
    pairs = ", ".join(f"({depth}, {height})" for depth, height in _hblt.EXPANDED)
    caption = f"The remainder of eq. 8 as printed and with its first-order term, for (L, H) = {pairs}."
    return Drawing("remainder", caption, figure)


STUDY = Study(
    name="thm5",
    title="Theorem 5: co-occurrence in a latent hierarchy",
    version=2,
    claims=CLAIMS,
    quick=Config(),
    paper=Config(trees=2000, samples=8_000_000),
    run=run,
    judge=judge,
    draw=draw,
    about=(
        "Random trees of depth 2 to 5 are summed over exactly, latent by latent, and one tree of depth 7 is sampled. "
        "Neither uses the formulas, which are evaluated beside them as printed and as corrected. Limits and the order "
        "of the remainder of eq. 8 are read off the formula that the trees confirm."
    ),
)

"""Theorem 5, eq. 8, Lemmas 8 and 9: which tokens of a hierarchical binary latent tree appear together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from joma.claims.contract import Progress, Study
from joma.runs import Run
from joma.studies.hierarchy import _hblt
from joma.studies.hierarchy._thm5_figures import CURVE_EPS, CURVES, draw
from joma.studies.hierarchy._thm5_findings import CLAIMS, judge

FEWEST_SAMPLES = 100  # with a few, the token asked for may never appear
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
        "Random trees of depth 2 to 5 are summed exactly over all latents, and one tree of depth 7 is sampled. Neither "
        "uses the formulas. The formulas are evaluated as printed and as corrected, and compared with both. Limits, "
        "and the order of the remainder of eq. 8, are computed from the formula that the trees confirm."
    ),
)

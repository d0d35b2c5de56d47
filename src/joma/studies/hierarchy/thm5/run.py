"""What the study of Theorem 5 computes: trees summed over exactly, trees sampled, and the formulas beside them.

Each function returns the arrays of one group. `truth` is what the tree does, `printed` and `corrected` are what the
paper's and the repaired formula say of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Least, Progress, StudyConfig, Within
from joma.data.hierarchy import HBLT
from joma.runs import Run
from joma.theory import hierarchy

Arrays = dict[str, Tensor]

SHAPES = ((1, 2), (1, 2, 2), (1, 2, 2, 2), (1, 1, 2, 1, 2))
"""Branching from the root down. A single child of the root keeps all pairs inside Theorem 5."""
EXPANDED = ((5, 1), (8, 3), (20, 5), (12, 10))
"""Depth and ancestor height of the pairs whose remainder in eq. 8 is measured; none has L = 2H."""
BALANCED = (8, 4)
SLOPES = (0.25, 1.0, 4.0)  # how fast rho_0 approaches 1, against rho
NEAR_ONE = 2.0**-20
CHUNK = 2**18  # sequences sampled at once
DEPTHS = (2, 10, 100, 1000)
CURVES = (5, 10, 20)  # depths of the trees whose co-occurrence is drawn
CURVE_EPS = 0.01
ERRORS = 4.0  # of sampled frequencies: standard errors that are allowed


@dataclass(frozen=True)
class Thm5Config(StudyConfig):
    """Random trees summed over exactly, and one deep tree sampled."""

    trees: int = 100
    """Random trees of each shape."""
    classes: int = 4
    samples: Annotated[int, Least(100, "to know how often tokens appear together")] = 300_000
    """Sequences drawn from the deep tree."""
    depth: Annotated[int, Least(2, "so that two tokens can meet below the root")] = 7
    rho: Annotated[float, Within(-1, 1, "where tokens leave something to chance", open=True)] = 0.9
    """Uncertainty of every edge of the deep tree."""
    seed: int = 0


def run(config: Thm5Config, run: Run, progress: Progress) -> None:
    """Sum over all latents of small trees, sample a deep one, and record what the formulas say beside it."""
    trees, classes, seed = config.trees, config.classes, 100 * config.seed
    groups: dict[str, Callable[[], Arrays]] = {
        "trees": lambda: pairs_below_one_child(trees, classes, seed),
        "root": lambda: pairs_below_the_root(trees, classes, seed + 1),
        "joint": lambda: joint_of_two_latents(trees, classes, seed + 2),
        "latent": lambda: latent_below_the_root(trees, classes, seed + 3),
        "heights": lambda: by_height(trees, classes, seed + 4),
        "algebra": lambda: algebra(trees, seed + 5),
        "chain": lambda: chain(trees, seed + 6),
        "sampled": lambda: sampled_pairs(config.samples, config.depth, config.rho, classes, seed + 7),
        "sparse": lambda: sparse_root(DEPTHS),
        "eq8": expansion,
        "limits": lambda: limits(10),
        "deep": lambda: deep_trees(DEPTHS),
        "curves": lambda: curves(CURVE_EPS, CURVES),
    }
    done = {name.split("/")[0] for name in run.names()}
    for i, (group, compute) in enumerate(groups.items()):
        progress(i / len(groups), group)
        if group not in done:
            run.record(0, {f"{group}/{name}": array for name, array in compute().items()})


def pairs_below_one_child(trees: int, classes: int, seed: int) -> Arrays:
    """Theorem 5 on random trees: one token against all others. Arrays over pairs, all shapes together."""
    source = torch.Generator().manual_seed(seed)
    rows = []
    for shape in SHAPES:
        depth = len(shape)
        p0, p_zero = _root(source, trees, 1, classes)
        rho = 2 * _uniform(source, trees, 1) - 1
        tree = hierarchy.enumerate_tree(depth, shape, rho, p0, p_zero)
        roots = (
            hierarchy.printed_root_rho(p0, p_zero[:, 0]),
            hierarchy.root_rho(p0, p_zero[:, 0]),
            2 * _latent(0, rho, p0, p_zero)[:, 0] - 1,  # of y_1, by summation
        )
        heights = tree.ancestor[0, 1:]
        said = [hierarchy.cooccurrence(rho, root[:, None], depth, heights) for root in roots]
        rows.append(torch.stack([tree.conditional[:, 1:, 0], *said]).flatten(1))
    truth, printed, corrected, summed = torch.cat(rows, -1)
    return {"truth": truth, "printed": printed, "corrected": corrected, "summed root": summed}


def pairs_below_the_root(trees: int, classes: int, seed: int) -> Arrays:
    """Tokens that meet in the root only, at depth 3: children of the root alike (as printed), and each its own."""
    source = torch.Generator().manual_seed(seed)
    depth = 3
    p0, p_zero = _root(source, trees, 2, classes)
    alike = p_zero[:, :1].expand(-1, 2, -1)
    rho = 2 * _uniform(source, trees, 1) - 1
    arrays = {}
    for name, zero in (("alike", alike), ("unlike", p_zero)):
        tau = 2 * zero - 1
        arrays[f"{name} truth"] = hierarchy.enumerate_tree(depth, (2, 1, 1), rho, p0, zero).conditional[:, 0, 1]
        arrays[f"{name} corrected"] = hierarchy.root_cooccurrence(rho[:, 0], depth, p0, tau[:, 0], tau[:, 1])
    reach = rho[:, 0] ** (depth - 1) * hierarchy.root_rho(p0, alike[:, 0])
    # `cooccurrence` refuses H = L, so Theorem 5's fraction is written out
    arrays["alike printed"] = (1 + rho[:, 0] ** (2 * depth) - 2 * reach) / (2 * (1 - reach))
    return arrays


def sampled_pairs(samples: int, depth: int, rho: float, classes: int, seed: int) -> Arrays:
    """A sampled tree: token m against one token for each height of their ancestor, the root last. (depth,) each."""
    source = torch.Generator().manual_seed(seed)
    p0, p_zero = (x[0] for x in _root(source, 1, 1, classes))
    p_zero = p_zero[0]
    # The path down to token 0 branches once on every level, so token H meets it at height H.
    tree = HBLT(depth, [2, *([2] + [1] * level for level in range(1, depth))], rho, p0, p_zero)
    sizes = [min(CHUNK, samples - start) for start in range(0, samples, CHUNK)]
    on = torch.cat([tree.sample(size, generator=source).on for size in sizes])
    m, others = on[:, 0], on[:, 1:]
    heights = torch.arange(1, depth)
    tau = 2 * p_zero - 1
    corrected = hierarchy.cooccurrence(rho, hierarchy.root_rho(p0, p_zero), depth, heights)
    return {
        "truth": others[m].double().mean(0),
        "shuffled": others.roll(1, 0)[m].double().mean(0),  # l of another sequence
        "appears": m.sum(),
        "printed": hierarchy.cooccurrence(rho, hierarchy.printed_root_rho(p0, p_zero), depth, heights),
        "corrected": torch.cat([corrected, hierarchy.root_cooccurrence(rho, depth, p0, tau, tau)[None]]),
    }


def joint_of_two_latents(trees: int, classes: int, seed: int) -> Arrays:
    """Eq. 98: the 2 x 2 joint of two tokens below a latent c, with a different uncertainty on every edge."""
    source = torch.Generator().manual_seed(seed)
    p0, p_zero = _root(source, trees, 1, classes)
    rho = 2 * _uniform(source, trees, 6) - 1
    tree = hierarchy.enumerate_tree(3, (1, 2, 2), rho, p0, p_zero)
    top = 2 * _latent(0, rho, p0, p_zero)[:, 0] - 1
    left, right = rho[:, 0] * rho[:, 2], rho[:, 1] * rho[:, 4]  # the paths down to the first and the third token
    one, e = torch.ones(2, dtype=torch.float64), torch.tensor([1.0, -1.0], dtype=torch.float64)
    weights = torch.stack([torch.ones_like(top), left * right, left * top, right * top])
    shapes = torch.stack([torch.outer(a, b) for a, b in ((one, one), (e, e), (e, one), (one, e))])
    return {"truth": tree.joint.sum((2, 4)), "printed": torch.einsum("kt,kij->tij", weights, shapes) / 4}


def latent_below_the_root(trees: int, classes: int, seed: int) -> Arrays:
    """Eq. 101 and 103: the table of y_1 given each class, and the distribution of a latent two edges further down."""
    source = torch.Generator().manual_seed(seed)
    p0, p_zero = _root(source, trees, 1, classes)
    rho = 2 * _uniform(source, trees, 1) - 1
    reach = rho[:, 0] ** 2 * hierarchy.root_rho(p0, p_zero[:, 0])
    zero = p_zero[:, 0]
    return {
        "table truth": torch.stack([zero, 1 - zero], 1),
        "table printed": hierarchy.marginal(zero).mT,
        "table corrected": hierarchy.marginal(2 * zero - 1).mT,
        "truth": _latent(2, rho, p0, p_zero),
        "printed": hierarchy.transition(reach),
        "corrected": hierarchy.marginal(reach),
    }


def sparse_root(sizes: tuple[int, ...]) -> Arrays:
    """1 - rho_0 when each of D equally likely classes turns on one latent of its own, and when it turns on half."""
    gaps, half = [], []
    for classes in sizes:
        p0 = torch.full((classes,), 1 / classes, dtype=torch.float64)
        gaps.append(1 - hierarchy.root_rho(p0, (torch.arange(classes) > 0).double()))
        half.append(1 - hierarchy.root_rho(p0, torch.full_like(p0, 0.5)))
    return {"classes": torch.tensor(sizes), "gap": torch.stack(gaps), "half": torch.stack(half)}


def by_height(trees: int, classes: int, seed: int) -> Arrays:
    """One token against its sibling, its cousin and its second cousin, (..., 3): one rho of either sign, or many."""
    source = torch.Generator().manual_seed(seed)
    p0, p_zero = _root(source, trees, 1, classes)
    shape, others = (1, 2, 2, 2), [1, 2, 4]
    size = 0.05 + 0.94 * _uniform(source, trees, 1)
    unequal = 2 * _uniform(source, trees, 14) - 1
    trees_of = {"positive": size, "negative": -size, "certain": torch.ones_like(size), "unequal": unequal}
    return {
        name: hierarchy.enumerate_tree(4, shape, rho, p0, p_zero).conditional[:, others, 0]
        for name, rho in trees_of.items()
    }


def algebra(count: int, seed: int) -> Arrays:
    """Lemma 8's four properties as residuals, and how far matrices that are merely stochastic fail to commute."""
    source = torch.Generator().manual_seed(seed)
    a, b = 2 * _uniform(source, 2, count) - 1
    m, n, ab = hierarchy.transition(a), hierarchy.transition(b), hierarchy.transition(a * b)
    ones = torch.ones(2, dtype=torch.float64)
    gaps = (m - m.mT, m @ ones - ones, m @ n - ab, m @ hierarchy.marginal(b)[..., None] - ab[..., :1])
    top = _uniform(source, 2, count, 2)
    s, t = torch.stack([top, 1 - top], -2)
    return {"off": torch.stack([gap.abs().max() for gap in gaps]), "stochastic": (s @ t - t @ s).abs().max()}


def chain(count: int, seed: int) -> Arrays:
    """Lemma 9 on chains of four latents: the product of conditionals in the printed order, and in the right one."""
    source = torch.Generator().manual_seed(seed)
    edges = 2 * _uniform(source, 3, count) - 1
    start = hierarchy.marginal(1.8 * _uniform(source, count) - 0.9)
    first, second, third = hierarchy.transition(edges)
    joint = torch.einsum("ta,tba,tcb,tdc->tabcd", start, first, second, third)  # from the ancestor down to the token

    def given(x: int, y: int) -> Tensor:
        """P[x | y] with rows x, read off the joint distribution of the chain."""
        pair = joint.sum([i + 1 for i in range(4) if i not in (x, y)])
        pair = pair.mT if x > y else pair
        return pair / pair.sum(-2, keepdim=True)

    return {
        "truth": given(3, 0),
        "printed": given(3, 1) @ given(1, 2) @ given(2, 0),  # b1 next to the ancestor, as the chain is written
        "corrected": given(3, 2) @ given(2, 1) @ given(1, 0),  # b1 next to the token
        "merged": hierarchy.transition(edges.prod(0)),
    }


def expansion() -> Arrays:
    """Eq. 8 at small eps: (pairs, eps)."""
    eps = 2.0 ** -torch.arange(10.0, 15.0, dtype=torch.float64)
    depth, height = torch.tensor(EXPANDED).T[..., None]
    return {
        "eps": eps,
        "truth": hierarchy.cooccurrence(1 - eps, 1 - eps, depth, height),
        "printed": hierarchy.expansion(eps, depth, height, order=0),
        "corrected": hierarchy.expansion(eps, depth, height),
        "balanced truth": hierarchy.cooccurrence(1 - eps, 1 - eps, *BALANCED),
        "balanced printed": hierarchy.expansion(eps, *BALANCED, order=0),
    }


def limits(depth: int) -> Arrays:
    """Near rho = 1: (slopes, heights) for rho_0 = 1 - k eps, and (heights,) for a rho_0 that stays at 1/2."""
    heights = torch.arange(1, depth)
    slope = torch.tensor(SLOPES, dtype=torch.float64)[:, None]
    rho = torch.tensor(1 - NEAR_ONE, dtype=torch.float64)
    return {
        "truth": hierarchy.cooccurrence(rho, 1 - slope * NEAR_ONE, depth, heights),
        "printed": hierarchy.shallow_limit(depth, heights),
        "corrected": hierarchy.shallow_limit(depth, heights, root_slope=slope),
        "half": hierarchy.cooccurrence(rho, 0.5, depth, heights),
    }


def deep_trees(depths: tuple[int, ...]) -> Arrays:
    """Siblings, and pairs that meet just below the root, in ever deeper trees; rho = rho_0 near 1."""
    rho = 1 - NEAR_ONE
    depth = torch.tensor(depths)
    return {
        "depths": depth,
        "siblings": hierarchy.cooccurrence(rho, rho, depth, 1),
        "strangers": hierarchy.cooccurrence(rho, rho, depth, depth - 1),
    }


def curves(eps: float, depths: tuple[int, ...]) -> Arrays:
    """Co-occurrence against height for the figure: one array a depth."""
    rho = 1 - eps
    return {str(depth): hierarchy.cooccurrence(rho, rho, depth, torch.arange(depth)) for depth in depths}


def _uniform(source: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=source, dtype=torch.float64)


def _root(source: torch.Generator, trees: int, children: int, classes: int) -> tuple[Tensor, Tensor]:
    waits = -_uniform(source, trees, classes).log()
    return waits / waits.sum(-1, keepdim=True), _uniform(source, trees, children, classes)


def _latent(edges: int, rho: Tensor, p0: Tensor, p_zero: Tensor) -> Tensor:
    """(P[y = 0], P[y = 1]) of the latent `edges` below the root's child, by summing over the tree cut off there."""
    return hierarchy.enumerate_tree(1 + edges, 1, rho[:, :1], p0, p_zero).joint


def orders(run: Run, kind: str) -> Any:
    """The power of eps in the remainder of eq. 8 in its printed or corrected form, fitted for each pair."""
    remainder = np.abs(run.value("eq8/truth") - run.value(f"eq8/{kind}"))
    return np.polyfit(np.log(run.value("eq8/eps")), np.log(remainder).T, 1)[0]


def standard_errors(run: Run) -> Any:
    """Of the sampled frequencies, given that m appears."""
    p = run.value("sampled/corrected")
    return np.sqrt(p * (1 - p) / run.value("sampled/appears"))

"""Theorem 5, eq. 8, Lemmas 8 and 9: which tokens of a hierarchical binary latent tree appear together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from joma.runs import Run
from joma.studies import _hblt
from joma.studies.contract import Claim, Drawing, Finding, Progress, Study
from joma.studies.drawing import CONTROL, CORRECTED, ORANGE, PRINTED, depth_colours, panels
from joma.studies.verdicts import by_residual, by_test, show

EXACT = 1e-12  # formulas against sums over all latents
ERRORS = 4.0  # sampled frequencies, in standard errors
FEWEST_SAMPLES = 100  # with a few, the token asked for may never appear
ORDER = 0.05  # a fitted order of a remainder
LIMIT = 1e-4  # limits, read at 1 - rho = 1e-6

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


FORMULA = Claim(
    "co-occurrence",
    "JoMA Thm 5",
    "P[l | m] = (1 + ρ²ᴴ − 2ρᴸ⁻¹ρ₀) / (2(1 − ρᴸ⁻¹ρ₀)) with ρ₀ the mean over classes of P[y₁ = 0 | class].",
    "ρ₀ is the mean over classes of 2P[y₁ = 0 | class] − 1.",
)
SAMPLED = Claim(
    "co-occurrence-sampled",
    "JoMA Thm 5",
    "In sequences drawn from a deep tree, tokens co-occur as often as the formula with the printed ρ₀ says.",
    "As often as the formula with the corrected ρ₀ says.",
    empirical=True,
)
ROOT = Claim(
    "any-pair",
    "JoMA Thm 5",
    "The formula is for any two tokens and their common latent ancestor.",
    "For tokens below one child of the root, H ≤ L − 1; tokens that only meet in the root obey another formula.",
)
REACH = Claim(
    "root-through-one-number",
    "JoMA eq. 105",
    "With ρ₀ the uncertainty of the root's child itself, co-occurrence depends on root and depth through ρᴸ⁻¹ρ₀ alone.",
)
JOINT = Claim(
    "joint-of-two-latents",
    "JoMA eq. 98",
    "The joint of two descendants of a latent c is (11ᵀ + ρ₁ρ₂eeᵀ + ρ₁ρ_c e1ᵀ + ρ₂ρ_c 1eᵀ)/4, whatever the edges.",
)
REMAINDER = Claim(
    "remainder",
    "JoMA eq. 8",
    "At ρ = ρ₀ = 1 − ε co-occurrence is 1 − H/L up to a remainder of order ε².",
    "The remainder is εH(2H − L)/(2L), of order ε; only what is left after it is of order ε².",
)
SATURATING = Claim(
    "saturating-root",
    "JoMA eq. 8",
    "When ρ and ρ₀ are both very close to 1, co-occurrence is close to 1 − H/L.",
    "It is close to 1 − H/(L − 1 + k), k = (1 − ρ₀)/(1 − ρ); 1 − H/L is the case k = 1, and ρ₀ fixed below 1 gives 1.",
)
DEEP = Claim(
    "deep-and-shallow",
    "JoMA Sec. 5",
    "With ρ and ρ₀ near 1, tokens with a shallow common ancestor in a deep tree co-occur almost surely.",
)
SHALLOW = Claim(
    "shallow-means-often",
    "JoMA Sec. 5",
    "The shallower the common ancestor of two tokens, the more often they co-occur.",
)
SPARSE = Claim(
    "sparse-root",
    "JoMA Sec. 5",
    "If each of many classes turns on one latent of its own, ρ₀ is very close to 1.",
)
LEMMA8 = Claim(
    "algebra",
    "JoMA Lemma 8",
    "M(ρ) is symmetric and keeps 1; M(a)M(b) = M(ab) and M(a)p(b) = p(ab).",
)
LEMMA9 = Claim(
    "chain",
    "JoMA Lemma 9",
    "Along α ≻ β₁ ≻ … ≻ βₖ ≻ γ, P(γ|α) = P(γ|β₁)P(β₁|β₂)…P(βₖ|α) = M of the product of their uncertainties.",
    "The product is right when β₁ is the latent next to γ: the chain is written in the wrong direction.",
)
MARGINAL = Claim(
    "marginal-of-a-latent",
    "JoMA eq. 103",
    "The distribution of a latent c is M(ρ_c|1 ρ₀).",
    "It is p(ρ_c|1 ρ₀): a vector of two probabilities, not a 2 × 2 matrix.",
)
TABLE = Claim(
    "table-of-the-root",
    "JoMA eq. 101",
    "Class k gives y₁ the distribution ((1 + p)/2, (1 − p)/2), where p = P[y₁ = 0 | k], for C classes.",
    "p = 2P[y₁ = 0 | k] − 1, for D classes (C and D name the same number, which no measurement can tell).",
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


def judge(run: Run) -> list[Finding]:
    """Residuals against the sums, standard errors against the samples, fitted orders against eq. 8."""
    return [*_judge_theorem(run), *_judge_remarks(run), *_judge_proof(run)]


def _judge_theorem(run: Run) -> list[Finding]:
    errors = _standard_errors(run)
    heights = len(run.value("sampled/printed"))  # the printed formula does not reach the root
    shuffled = (np.abs(run.value("sampled/shuffled") - run.value("sampled/corrected")) / errors)[:heights]
    return [
        by_residual(
            FORMULA,
            printed=_off(run, "trees/truth", "trees/printed"),
            corrected=_off(run, "trees/truth", "trees/corrected"),
            tolerance=EXACT,
            expected="the sum over all latents of random trees",
        ),
        by_residual(
            SAMPLED,
            printed=_off_in_errors(run, "sampled/printed", errors[:heights]),
            corrected=_off_in_errors(run, "sampled/corrected", errors),
            tolerance=ERRORS,
            expected="the sampled frequency at every height, in standard errors",
            control=f"with l taken from another sequence: at least {shuffled.min():.0f} standard errors off",
        ),
        by_residual(
            ROOT,
            printed=_off(run, "root/alike truth", "root/alike printed"),
            corrected=_largest(_off(run, f"root/{k} truth", f"root/{k} corrected") for k in ("alike", "unlike")),
            tolerance=EXACT,
            expected="the sum over all latents, for tokens that meet in the root (printed formula at H = L)",
        ),
        by_residual(
            REACH,
            printed=_off(run, "trees/truth", "trees/summed root"),
            tolerance=EXACT,
            expected="the sum over all latents, with 2P[y₁ = 0] − 1 summed as well",
        ),
    ]


def _judge_remarks(run: Run) -> list[Finding]:
    order = {kind: _orders(run, kind) for kind in ("printed", "corrected")}
    miss = {kind: float(np.abs(orders - 2).max()) for kind, orders in order.items()}
    balanced = _off(run, "eq8/balanced truth", "eq8/balanced printed")
    siblings, strangers = run.value("deep/siblings"), run.value("deep/strangers")
    falls = {kind: np.diff(run.value(f"heights/{kind}"), axis=-1) for kind in ("positive", "negative", "unequal")}
    falling = {kind: float((fall < 0).all(-1).mean()) for kind, fall in falls.items()}
    flat = float(np.abs(np.diff(run.value("heights/certain"), axis=-1)).max())
    gap, classes = run.value("sparse/gap"), run.value("sparse/classes")
    return [
        by_test(
            REMAINDER,
            measured=f"order {order['printed'].mean():.2f} as printed, {order['corrected'].mean():.2f} as corrected",
            expected="order 2 for every pair",
            as_printed=miss["printed"] <= ORDER,
            as_corrected=miss["corrected"] <= ORDER,
            tolerance=ORDER,
            control=f"at L = 2H, where the first order vanishes, the printed value is off by {show(balanced)}",
            residuals=miss,
        ),
        by_residual(
            SATURATING,
            printed=float(np.abs(run.value("limits/truth") - run.value("limits/printed")).max()),
            corrected=_off(run, "limits/truth", "limits/corrected"),
            tolerance=LIMIT,
            expected=f"co-occurrence at 1 − ρ = 2⁻²⁰, k from {_hblt.SLOPES[0]:g} to {_hblt.SLOPES[-1]:g}",
            control=f"ρ₀ = 1/2: at least {run.value('limits/half').min():.5f} at every height",
        ),
        by_test(
            DEEP,
            measured=f"siblings co-occur with {', '.join(f'{p:.3f}' for p in siblings)} at L = 2, 10, 100, 1000",
            expected="rising with depth, above 0.99 in the end",
            as_printed=bool((np.diff(siblings) > 0).all() and siblings[-1] > 0.99),
            control=f"pairs that meet just below the root: {', '.join(f'{p:.3f}' for p in strangers)}",
        ),
        by_test(
            SHALLOW,
            measured=f"from sibling to cousin to second cousin it falls in {falling['positive']:.0%} of the trees with "
            f"ρ > 0 and in {falling['negative']:.0%} with ρ < 0",
            expected="a fall in every tree with one ρ",
            as_printed=falling["positive"] == falling["negative"] == 1.0,
            control=f"a different uncertainty on every edge: {falling['unequal']:.0%}; ρ = 1: no change ({show(flat)})",
        ),
        by_test(
            SPARSE,
            measured=f"1 − ρ₀ = {', '.join(show(float(g)) for g in gap)} for {', '.join(map(str, classes))} classes",
            expected="2/D for D equally likely classes",
            as_printed=bool(np.abs(gap - 2 / classes).max() <= EXACT),
            tolerance=EXACT,
            control=f"each class turns on half of the latents: 1 − ρ₀ = {show(float(run.value('sparse/half')[-1]))}",
        ),
    ]


def _judge_proof(run: Run) -> list[Finding]:
    vector, matrix = run.value("latent/truth"), run.value("latent/printed")
    marginal, stochastic = _off(run, "latent/truth", "latent/corrected"), float(run.value("algebra/stochastic"))
    column = float(np.abs(matrix[..., 1] - vector).max())
    return [
        by_residual(
            JOINT,
            printed=_off(run, "joint/truth", "joint/printed"),
            tolerance=EXACT,
            expected="the sum over all latents, every edge different",
        ),
        by_residual(
            LEMMA8,
            printed=float(run.value("algebra/off").max()),
            tolerance=EXACT,
            expected="all four properties",
            control=f"matrices that are only stochastic fail to commute by {show(stochastic)}",
        ),
        by_residual(
            LEMMA9,
            printed=_off(run, "chain/truth", "chain/printed"),
            corrected=_largest(_off(run, "chain/truth", f"chain/{kind}") for kind in ("corrected", "merged")),
            tolerance=EXACT,
            expected="P(γ|α) of a chain of four, edges all different",
        ),
        by_test(
            MARGINAL,
            measured=f"printed has shape {matrix.shape[1:]} for {vector.shape[1:]}, its second column off by "
            f"{show(column)}; p(·) off by {show(marginal)}",
            expected="the distribution of a latent, summed over the tree",
            as_printed=matrix.shape == vector.shape and column <= EXACT,
            as_corrected=marginal <= EXACT,
            tolerance=EXACT,
            residuals={"printed": column, "corrected": marginal},
        ),
        by_residual(
            TABLE,
            printed=_off(run, "latent/table truth", "latent/table printed"),
            corrected=_off(run, "latent/table truth", "latent/table corrected"),
            tolerance=EXACT,
            expected="P[y₁ | k] of random roots",
        ),
    ]


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
        height, truth, ERRORS * _standard_errors(run), fmt=".", ms=6, lw=1, color=ORANGE, label="sampled, ±4 errors"
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
            label = f"{kind}: order {_orders(run, kind).mean():.2f}" if i == 0 else None
            axes.plot(eps, line, marker=marker, ms=3, lw=1, color=colour, label=label)
    axes.set(xscale="log", yscale="log", xlabel="ε", ylabel="|P[l | m] − expansion|", title="What eq. 8 leaves out")
    axes.legend()
    pairs = ", ".join(f"({depth}, {height})" for depth, height in _hblt.EXPANDED)
    caption = f"The remainder of eq. 8 as printed and with its first-order term, for (L, H) = {pairs}."
    return Drawing("remainder", caption, figure)


def _off(run: Run, truth: str, said: str) -> float:
    return float(np.abs(run.value(truth) - run.value(said)).max())


def _largest(residuals: Iterable[float]) -> float:
    """Unlike `max`, NaN if one of them is."""
    return float(np.max(list(residuals)))


def _orders(run: Run, kind: str) -> Any:
    """The power of eps in the remainder, fitted for each pair."""
    remainder = np.abs(run.value("eq8/truth") - run.value(f"eq8/{kind}"))
    return np.polyfit(np.log(run.value("eq8/eps")), np.log(remainder).T, 1)[0]


def _standard_errors(run: Run) -> Any:
    """Of the sampled frequencies, given that m appears."""
    p = run.value("sampled/corrected")
    return np.sqrt(p * (1 - p) / run.value("sampled/appears"))


def _off_in_errors(run: Run, said: str, errors: Any) -> float:
    return float((np.abs(run.value("sampled/truth")[: len(errors)] - run.value(said)) / errors).max())


STUDY = Study(
    name="thm5",
    title="Theorem 5: co-occurrence in a latent hierarchy",
    version=2,
    claims=(
        FORMULA,
        SAMPLED,
        ROOT,
        REMAINDER,
        SATURATING,
        DEEP,
        SHALLOW,
        SPARSE,
        LEMMA8,
        LEMMA9,
        JOINT,
        TABLE,
        MARGINAL,
        REACH,
    ),
    quick=Config(),
    paper=Config(trees=2000, samples=8_000_000),
    run=run,
    judge=judge,
    draw=draw,
    about=(
        "Random trees of depth 2 to 5 are summed over exactly, latent by latent, and one tree of depth 7 is sampled; "
        "both know nothing of the formulas, which are evaluated beside them as printed and as corrected. Limits and "
        "the order of the remainder of eq. 8 are read off the formula that the trees confirm."
    ),
)

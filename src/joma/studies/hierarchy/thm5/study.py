"""Theorem 5, eq. 8, Lemmas 8 and 9: which tokens of a hierarchical binary latent tree appear together."""

from math import nan
from typing import Any

import numpy as np

from joma.claims.contract import Claim, Drawing, Finding, Study
from joma.claims.declare import Claims
from joma.claims.verdicts import above, at_least, at_most, below, by_residual, by_tests
from joma.figures.labels import end_label
from joma.figures.reading import number
from joma.figures.style import CONTROL, CORRECTED, ORANGE, PRINTED, depth_colours, panels
from joma.runs import Run
from joma.studies.hierarchy.thm5 import run as trees
from joma.studies.hierarchy.thm5.run import Thm5Config, run

EXACT = 1e-12  # formulas against sums over all latents
ORDER = 0.05  # a fitted order of a remainder
SURE = 0.99  # co-occurrence that is almost certain
LIMIT = 1e-4  # limits, read at 1 - rho = 1e-6

CLAIMS = Claims(source="JoMA Thm 5")


def _off(run: Run, truth: str, *said: str) -> float:
    return float(np.max([np.abs(run.value(truth) - run.value(one)).max() for one in said]))


def _exactly(name: str, source: str, text: str, group: str, *corrected: str, uses: tuple[str, ...] = ()) -> None:
    """Declare a formula: how far are its recorded forms from the truth of their group?"""

    def judge(run: Run, claim: Claim) -> Finding:
        return by_residual(
            claim,
            printed=_off(run, f"{group}truth", f"{group}printed"),
            corrected=_off(run, f"{group}truth", *(group + form for form in corrected)),
            tolerance=EXACT,
        )

    CLAIMS.declare(name, source, text, uses=uses)(judge)


def _as_printed(claim: Claim, off: Any, control: str, control_off: Any) -> Finding:
    """Of a formula that is right as printed."""
    return by_residual(claim, printed=off, tolerance=EXACT, control={control: control_off})


_exactly(
    "co-occurrence",
    "JoMA Thm 5",
    """P[l | m] = (1 + ρ²ᴴ − 2ρᴸ⁻¹ρ₀) / (2(1 − ρᴸ⁻¹ρ₀)) with ρ₀ the mean over classes of P[y₁ = 0 | class].

    Corrected: ρ₀ is the mean over classes of 2P[y₁ = 0 | class] − 1.
    Expected: The sum over all latents of random trees.
    """,
    "trees/",
    "corrected",
    uses=("thm5/root-through-one-number",),
)


@CLAIMS.declare("co-occurrence-sampled", uses=("thm5/co-occurrence",))
def _sampled(run: Run, claim: Claim) -> Finding:
    """In sequences drawn from a deep tree, tokens co-occur as often as the formula says with the printed ρ₀.

    Corrected: Tokens co-occur as often as the formula says with the corrected ρ₀.
    Expected: The sampled frequency at every height, within its sampling error.
    """
    errors = trees.standard_errors(run)
    below_the_root = errors[: len(run.value("sampled/printed"))]  # the printed formula does not reach the root
    return by_residual(
        claim,
        printed=_off_in_errors(run, "truth", "printed", below_the_root).max(),
        corrected=_off_in_errors(run, "truth", "corrected", errors).max(),
        tolerance=trees.ERRORS,
        what="distance in standard errors",
        control={"l of another sequence": _off_in_errors(run, "shuffled", "corrected", below_the_root).min()},
    )


@CLAIMS.declare("any-pair", uses=("thm5/co-occurrence",))
def _any_pair(run: Run, claim: Claim) -> Finding:
    """The formula holds for any two tokens and their common latent ancestor.

    Corrected: It holds for tokens below one child of the root, H ≤ L − 1. Tokens that meet only in the root obey
    another formula.
    Expected: The sum over all latents for tokens that meet in the root (printed formula at H = L).
    """
    return by_residual(
        claim,
        printed=_off(run, "root/alike truth", "root/alike printed"),
        corrected=np.max([_off(run, f"root/{kind} truth", f"root/{kind} corrected") for kind in ("alike", "unlike")]),
        tolerance=EXACT,
    )


@CLAIMS.declare("remainder", "JoMA eq. 8", uses=("thm5/co-occurrence",))
def _remainder(run: Run, claim: Claim) -> Finding:
    """At ρ = ρ₀ = 1 − ε co-occurrence is 1 − H/L up to a remainder of order ε².

    Corrected: The remainder is εH(2H − L)/(2L), which is of order ε. Only what is left after it is of order ε².
    Expected: A remainder of order 2 for every pair.
    """
    order = {kind: trees.orders(run, kind) for kind in ("printed", "corrected")}
    off = {kind: np.abs(found - 2).max() for kind, found in order.items()}
    balanced, eps = _off(run, "eq8/balanced truth", "eq8/balanced printed"), run.value("eq8/eps").max()
    what = "largest distance of an order from two"
    return by_tests(
        claim,
        printed=[at_most(what, off["printed"], ORDER)],
        corrected=[at_most(what, off["corrected"], ORDER)],
        controls=[at_most("distance as printed at L = 2H, where the first order vanishes,", balanced, eps**2)],
        details={"mean order": {f"as {kind}": found.mean() for kind, found in order.items()}},
    )


@CLAIMS.declare("saturating-root", "JoMA eq. 8", uses=("thm5/co-occurrence",))
def _saturating(run: Run, claim: Claim) -> Finding:
    """When ρ and ρ₀ are both very close to 1, co-occurrence is close to 1 − H/L.

    Corrected: It is close to 1 − H/(L − 1 + k) with k = (1 − ρ₀)/(1 − ρ). k = 1 gives 1 − H/L; ρ₀ fixed below 1
    gives 1.
    """
    return by_tests(
        claim,
        expected=f"Co-occurrence at 1 − ρ = 2⁻²⁰, for k from {trees.SLOPES[0]:g} to {trees.SLOPES[-1]:g}.",
        printed=[at_most("distance", _off(run, "limits/truth", "limits/printed"), LIMIT)],
        corrected=[
            at_most("distance", _off(run, "limits/truth", "limits/corrected"), LIMIT),
            at_most("distance from certainty with ρ₀ fixed at one half", 1 - run.value("limits/half").min(), LIMIT),
        ],
    )


@CLAIMS.declare("deep-and-shallow", "JoMA Sec. 5", uses=("thm5/saturating-root",))
def _deep(run: Run, claim: Claim) -> Finding:
    """In a deep tree with ρ and ρ₀ near 1, tokens with a shallow common ancestor co-occur almost surely.

    Expected: The deeper the tree, the more often siblings co-occur, and in the end almost always.
    """
    siblings, strangers = run.value("deep/siblings"), run.value("deep/strangers")
    depths = [f"L = {depth}:" for depth in run.value("deep/depths")]
    return by_tests(
        claim,
        printed=[
            above("smallest rise from one depth to the next", np.diff(siblings).min(), 0),
            above("co-occurrence of siblings in the deepest tree", siblings[-1], SURE),
        ],
        controls=[below("co-occurrence of pairs that meet just below its root", strangers[-1], SURE)],
        details={
            "siblings": dict(zip(depths, siblings, strict=True)),
            "pairs that meet just below the root": dict(zip(depths, strangers, strict=True)),
        },
    )


@CLAIMS.declare("shallow-means-often", "JoMA Sec. 5", uses=("thm5/co-occurrence",))
def _shallow(run: Run, claim: Claim) -> Finding:
    """The shallower the common ancestor of two tokens, the more often they co-occur.

    Expected: Co-occurrence falls from sibling to cousin to second cousin, in every tree with one ρ.
    """
    change = {kind: np.diff(run.value(f"heights/{kind}"), axis=-1) for kind in ("positive", "negative", "unequal")}
    fall = {kind: float((steps < 0).all(-1).mean()) for kind, steps in change.items()}
    falls = {kind: share if np.isfinite(change[kind]).all() else nan for kind, share in fall.items()}
    flat = np.abs(np.diff(run.value("heights/certain"), axis=-1)).max()
    return by_tests(
        claim,
        printed=[
            at_least("share of trees with positive ρ in which it falls", falls["positive"], 1, "%"),
            at_least("share of trees with negative ρ in which it falls", falls["negative"], 1, "%"),
        ],
        controls=[
            below("share of trees with a different ρ on every edge in which it falls", falls["unequal"], 1, "%"),
            at_most("change from height to height where ρ = 1", flat, EXACT),
        ],
    )


@CLAIMS.declare("sparse-root", "JoMA Sec. 5")
def _sparse(run: Run, claim: Claim) -> Finding:
    """If each of many classes turns on one latent of its own, ρ₀ is very close to 1.

    Expected: 1 − ρ₀ = 2/D for D equally likely classes.
    """
    classes, gap, half = (run.value(f"sparse/{name}") for name in ("classes", "gap", "half"))
    return by_residual(
        claim,
        printed=np.abs(gap - 2 / classes).max(),
        tolerance=EXACT,
        control={"each class turns on half of the latents": np.abs(half - 2 / classes).max()},
        details={"1 − ρ₀": {f"{count} classes:": value for count, value in zip(classes, gap, strict=True)}},
    )


@CLAIMS.declare("algebra", "JoMA Lemma 8")
def _algebra(run: Run, claim: Claim) -> Finding:
    """M(ρ) is symmetric and keeps 1; M(a)M(b) = M(ab) and M(a)p(b) = p(ab).

    Expected: All four properties.
    """
    control = "matrices that are only stochastic do not commute"
    return _as_printed(claim, run.value("algebra/off").max(), control, float(run.value("algebra/stochastic")))


_exactly(
    "chain",
    "JoMA Lemma 9",
    """Along α ≻ β₁ ≻ … ≻ βₖ ≻ γ, P(γ|α) = P(γ|β₁)P(β₁|β₂)…P(βₖ|α) = M of the product of their uncertainties.

    Corrected: The product is right if β₁ is the latent next to γ. The chain is printed in the wrong direction.
    Expected: P(γ|α) of a chain of four latents, all edges different.
    """,
    "chain/",
    "corrected",
    "merged",
    uses=("thm5/algebra",),
)


@CLAIMS.declare("joint-of-two-latents", "JoMA eq. 98", uses=("thm5/chain",))
def _joint(run: Run, claim: Claim) -> Finding:
    """The joint of two descendants of a latent c is (11ᵀ + ρ₁ρ₂eeᵀ + ρ₁ρ_c e1ᵀ + ρ₂ρ_c 1eᵀ)/4, whatever the edges.

    Expected: The sum over all latents, every edge different.
    """
    exchanged = np.abs(run.value("joint/truth").swapaxes(-1, -2) - run.value("joint/printed")).max()
    return _as_printed(claim, _off(run, "joint/truth", "joint/printed"), "the two latents exchanged", exchanged)


_exactly(
    "table-of-the-root",
    "JoMA eq. 101",
    """Class k gives y₁ the distribution ((1 + p)/2, (1 − p)/2), where p = P[y₁ = 0 | k], for C classes.

    Corrected: p = 2P[y₁ = 0 | k] − 1, for D classes. (C and D name the same number; no measurement can tell them
    apart.)
    Expected: P[y₁ | k] of random roots.
    """,
    "latent/table ",
    "corrected",
)


@CLAIMS.declare("marginal-of-a-latent", "JoMA eq. 103", uses=("thm5/table-of-the-root", "thm5/algebra"))
def _marginal(run: Run, claim: Claim) -> Finding:
    """The distribution of a latent c is M(ρ_c|1 ρ₀).

    Corrected: It is p(ρ_c|1 ρ₀), a vector of two probabilities and not a 2 × 2 matrix.
    Expected: The distribution of a latent, summed over the tree.
    """
    truth, printed = run.value("latent/truth"), run.value("latent/printed")
    spare = printed.ndim - truth.ndim
    columns = np.moveaxis(printed, -1, 0) if spare else printed[None]
    return by_tests(
        claim,
        printed=[
            at_most("number of extra dimensions", spare, 0),
            at_most("distance of the worse column", np.abs(columns - truth).max(), EXACT),
        ],
        corrected=[at_most("distance", _off(run, "latent/truth", "latent/corrected"), EXACT)],
    )


@CLAIMS.declare(
    "root-through-one-number", "JoMA eq. 105", uses=("thm5/joint-of-two-latents", "thm5/marginal-of-a-latent")
)
def _reach(run: Run, claim: Claim) -> Finding:
    """If ρ₀ is the uncertainty of the root's child, co-occurrence depends on root and depth only through ρᴸ⁻¹ρ₀.

    Expected: The sum over all latents, with 2P[y₁ = 0] − 1 summed too.
    """
    summed, mean = (_off(run, "trees/truth", f"trees/{root}") for root in ("summed root", "printed"))
    return _as_printed(claim, summed, "the mean of P[y₁ = 0] for ρ₀", mean)


def _off_in_errors(run: Run, drawn: str, said: str, errors: Any) -> Any:
    count = len(errors)
    return np.abs(run.value(f"sampled/{drawn}")[:count] - run.value(f"sampled/{said}")[:count]) / errors


FORMS = {"printed": (PRINTED, "o"), "corrected": (CORRECTED, "s")}


def _draw_heights(run: Run) -> Drawing:
    figure, (left, right) = panels(2, width=4.2)
    far = 0.0  # how far the line 1 - H/L is from the formula
    for depth, colour in zip(trees.CURVES, depth_colours(len(trees.CURVES)), strict=True):
        curve = run.value(f"curves/{depth}")
        far = max(far, float(np.abs(curve - (1 - np.arange(len(curve)) / depth)).max()))
        left.plot(curve, "o", ms=3.5, color=colour, label=f"L = {depth}")
        left.plot([0, depth], [1, 0], ls="--", lw=1, color=colour)
    end_label(left, "1 − H/L", ls="--")
    left.set_title(f"Formula at ρ = ρ₀ = {1 - trees.CURVE_EPS:g}")
    names = ("truth", "printed", "corrected", "shuffled")
    truth, printed, corrected, other = (run.value(f"sampled/{name}") for name in names)
    height = np.arange(1, len(truth) + 1)
    right.plot(height[:-1], corrected[:-1], color=CORRECTED, label="corrected ρ₀")
    right.plot(height[:-1], printed, color=PRINTED, label="printed ρ₀")
    right.plot(height[-1:], corrected[-1:], "D", ms=7, mfc="none", color=CORRECTED, label="through the root")
    right.errorbar(height, truth, trees.ERRORS * trees.standard_errors(run), fmt="none", lw=1, ecolor=ORANGE)
    right.plot(height, truth, ".", ms=6, color=ORANGE, label=f"sampled,\n± {trees.ERRORS:g} errors")
    right.plot(height, other, "x", ms=4, color=CONTROL, label="l of another\nsequence")
    right.set_title(f"A sampled tree, L = {run.config['depth']}, ρ = {run.config['rho']:g}")
    for axis in (left, right):
        axis.set(xlabel="height H of the common ancestor", ylabel="co-occurrence P[l | m]")
    off = [number(float(np.abs(said - truth[: len(said)]).max())) for said in (printed, corrected)]
    caption = (
        f"The formula with the corrected ρ₀ is at most {off[1]} from the sampled co-occurrence, the printed ρ₀ up to "
        f"{off[0]}. Left: co-occurrence falls with the height of the common ancestor; the line 1 − H/L is up to "
        f"{number(far)} off at ρ = {1 - trees.CURVE_EPS:g}. Right: one tree, {run.config['samples']:,} sequences; the "
        "last pair of tokens meets only in the root, and the crosses pair tokens of different sequences."
    )
    return Drawing("co-occurrence", caption, figure)


def _draw_remainder(run: Run) -> Drawing:
    figure, (axis,) = panels(1, width=6.0, height=3.2)
    eps = run.value("eq8/eps")
    for form, (colour, marker) in FORMS.items():
        remainder = np.abs(run.value("eq8/truth") - run.value(f"eq8/{form}"))  # (pairs, eps)
        for (depth, height), line in zip(trees.EXPANDED, remainder, strict=True):
            style: Any = {"marker": marker, "ms": 3, "lw": 1, "color": colour}
            axis.plot(eps, line, **style, label=f"{form}, L = {depth}, H = {height}")
    axis.set(xscale="log", yscale="log", xlabel="ε = 1 − ρ", ylabel="|P[l | m] − expansion|")
    axis.set_title("What eq. 8 leaves out")
    printed, corrected = (trees.orders(run, form).mean() for form in ("printed", "corrected"))
    caption = (
        f"As printed, eq. 8 leaves out a remainder that falls as ε to the power {printed:.2f}. "
        f"With its first-order term, what is left falls as ε to the power {corrected:.2f}. Each "
        "line is one pair of depth L and height H of the common ancestor; the order is the slope of the line."
    )
    return Drawing("remainder", caption, figure)


STUDY = Study(
    name="thm5",
    title="Theorem 5: co-occurrence in a latent hierarchy",
    version=2,
    claims=CLAIMS,
    quick=Thm5Config(),
    paper=Thm5Config(trees=2000, samples=8_000_000),
    run=run,
    draw=lambda run: [_draw_heights(run), _draw_remainder(run)],
    about=(
        "Random trees of depth 2 to 5 are summed exactly over all latents, and one tree of depth 7 is sampled. Neither "
        "uses the formulas. The formulas are evaluated as printed and as corrected, and compared with both. Limits, "
        "and the order of the remainder of eq. 8, are computed from the formula that the trees confirm."
    ),
)

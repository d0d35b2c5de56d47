"""The claims of `galore-theory` about gradients, stable ranks and projections, and how each is judged."""

from __future__ import annotations

from typing import Any

import numpy as np

from joma.claims.contract import Claim, Finding
from joma.claims.evidence import above, at_least, at_most
from joma.claims.verdicts import by_residual, by_tests
from joma.runs import Run
from joma.studies.galore import _theory_descent as descent
from joma.studies.galore import _theory_half as halves
from joma.studies.galore import _theory_projection as projection
from joma.studies.galore._theory_networks import BENT, PIECEWISE, POWERS

EXACT = 1e-10  # formulas against autograd or an ODE solver, in float64
KEPT = 1e-9  # a bound may be missed by rounding, as a share of it
ENDED = 1e-2  # how near to its limit a stable rank must come
GONE = 1e-6  # of a gradient that has vanished
LOGIT = 0.05  # how small a small logit is, beside 1 or beside sqrt(K)

REVERSIBLE = Claim(
    "reversible-gradient",
    "GaLore Thm 3.2",
    "In a network without biases whose activations are piecewise linear, G = (Jᵀy − JᵀJWf) fᵀ for the squared loss.",
)
POLYNOMIAL = Claim(
    "polynomial-activations",
    "GaLore App. B.1",
    "Polynomial activations are reversible too, so the same formula holds for them.",
    "With powers as activations J W f is the output times the product p of their degrees: G = (Jᵀy − JᵀJWf/p) fᵀ.",
    uses=("galore-theory/reversible-gradient",),
)
REMAINDER = Claim(
    "softmax-remainder",
    "GaLore Lemma B.2",
    "The gradient of the softmax loss by its logits is y − γ f/K without their means, up to a part of second order.",
)
LOGITS = Claim(
    "softmax-small-logits",
    "GaLore Thm 3.2",
    "G = (J P y − γ JᵀPJWf/K) fᵀ is near the gradient of the softmax loss if the logits are small beside √K.",
    "It is near, with Jᵀ in the place of the first J, if the logits are small beside 1.",
    uses=("galore-theory/softmax-remainder",),
)
BOUND = Claim(
    "stable-rank-bound",
    "GaLore Lemma 3.3",
    "The stable rank of G_t is at most that of its part P in the lowest eigenspace of S, plus "
    "((1 − ηλ₂)/(1 − ηλ₁))^2(t − t₀) |G_0 − P|²/|P|₂², at any rate η.",
    "With L the part of G_t₀ that lasts, R the rest and q the ratio of their largest |1 − ηλ| to the power t − t₀, it "
    "is at most (|L|² + q²|R|²)/(|L|₂ − q|R|)².",
)
HALF = Claim(
    "half-rank",
    "GaLore Cor. 3.4",
    "If the Bᵢ have full rank and the inputs fᵢ do not span all n dimensions, the stable rank of G_t is at most n/2 "
    "for large t.",
    "The part of G_t in the lowest eigenspace is zero, so the lemma says nothing. The rank is at most that of the "
    "inputs. The stable rank ends at that of the slowest part, which is 1 for generic inputs and one B.",
    uses=("galore-theory/stable-rank-bound",),
)
RANK_ONE = Claim(
    "rank-one",
    "GaLore Cor. 3.5",
    "If the lowest eigenspace of S is one product y ⊗ z, the stable rank of G_t goes to 1, at any rate η.",
    "It goes to 1 if also η(λ₁ + λ_max) < 2 and G has a part along y ⊗ z.",
    uses=("galore-theory/stable-rank-bound",),
)
CONTRACTS = Claim(
    "projection-contracts",
    "GaLore Thm 3.8",
    "With fixed projections |R_t| ≤ [1 − η(κ − L_A − L_B L_C D²)] |R_t−1|.",
    "|R_t| ≤ [max(|1 − ηκ|, |1 − ηλ_max|) + η(L_A + D(L_B |C| + L_C |B|))] |R_t−1|.",
)
CONSTANT = Claim(
    "projection-constant",
    "GaLore App. B.4",
    "Where B and C vanish at W = 0, as the proof assumes, the bound holds with 1 · L_B L_C D², as the theorem says.",
    "It needs 2 · L_B L_C D², as the proof says, and no less will do.",
    uses=("galore-theory/projection-contracts",),
)
CONVERGES = Claim(
    "projection-converges",
    "GaLore Thm 3.8",
    "If κ > L_A + L_B L_C D² at all times, then R_t → 0.",
    "R_t → 0 if the corrected factor stays below 1. Where B and C vanish at W = 0, κ is never above L_B L_C D².",
    uses=("galore-theory/projection-contracts",),
)


def reversible(run: Run) -> Finding:
    """By autograd, for four kinds of networks."""
    off = {kind: float(run.value(f"network/{kind}")[0].max()) for kind in PIECEWISE}
    return by_residual(
        REVERSIBLE,
        printed=_worst(off.values()),
        tolerance=EXACT,
        what="relative error of G",
        expected="The formula gives the gradient that autograd gives.",
        control={f"{BENT} activations": float(run.value(f"network/{BENT}")[0].min())},
        details={"relative error": off},
    )


def polynomial(run: Run) -> Finding:
    """By autograd, with squares and cubes."""
    off = {kind: run.value(f"network/{kind}") for kind in POWERS}
    return by_residual(
        POLYNOMIAL,
        printed=_worst(float(each[0].max()) for each in off.values()),
        corrected=_worst(float(each[1].max()) for each in off.values()),
        tolerance=EXACT,
        what="relative error of G",
        expected="The formula gives the gradient that autograd gives.",
        control={f"{BENT} activations": float(run.value(f"network/{BENT}")[0].min())},
        details={"smallest error as printed": {kind: float(each[0].min()) for kind, each in off.items()}},
    )


def remainder(run: Run) -> Finding:
    """The error over the linear term falls as fast as the logits."""
    sizes, classes = run.value("softmax/sizes"), run.value("softmax/classes").astype(int)
    error = {str(k): run.value(f"softmax/{k}/small").max(-1) for k in classes}
    slopes = {k: float(np.polyfit(np.log(sizes), np.log(each), 1)[0]) for k, each in error.items()}
    return by_tests(
        REMAINDER,
        expected="Ten times smaller logits make the error ten times smaller beside the linear term: slope 1.",
        printed=[
            at_least("lowest slope over numbers of classes", min(slopes.values()), 0.95),
            at_most(
                f"error over the linear term at logits of {sizes[0]:g}", _worst(e[0] for e in error.values()), sizes[0]
            ),
        ],
        details={"slope by number of classes": slopes},
    )


def logits(run: Run) -> Finding:
    """What small means: logits of LOGIT sqrt(K) against logits of LOGIT."""
    classes = run.value("softmax/classes").astype(int)
    beside, own = (
        {str(k): float(run.value(f"softmax/{k}/{name}").max()) for k in classes} for name in ("printed", "corrected")
    )
    return by_tests(
        LOGITS,
        expected=f"Logits that are small by a factor of {LOGIT} give an error of at most {LOGIT:.0%}.",
        printed=[at_most(f"error at logits of {LOGIT} √K", _worst(beside.values()), LOGIT, "%")],
        corrected=[at_most(f"error at logits of {LOGIT}", _worst(own.values()), LOGIT, "%")],
        details={"error by number of classes, logits beside √K": beside},
    )


def excess(run: Run, family: str, form: str) -> Any:
    """By how much of it the stable rank is above a bound at its worst moment, (cases,)."""
    rank, bound = run.value(f"lemma/{family}/rank"), run.value(f"lemma/{family}/{form}")
    return (rank / bound - 1).max(-1)


def share_broken(run: Run, family: str) -> float:
    """Of the random cases: how many are above the printed bound at some time."""
    return float((excess(run, family, "printed")[1:] > KEPT).mean())


def bounded(run: Run) -> Finding:
    """All families. Where one pair, a small rate and the right start are given, the printed bound holds."""
    over = {form: {f: float(excess(run, f, form).max()) for f in descent.FAMILIES} for form in ("printed", "corrected")}
    broken = {family: share_broken(run, family) for family in descent.FAMILIES}
    what = "largest share by which the stable rank is above the bound"
    return by_tests(
        BOUND,
        expected="No stable rank is above the bound, in no family and at no time.",
        printed=[at_most(f"{what}, {family}", off, KEPT) for family, off in over["printed"].items()],
        corrected=[at_most(what, _worst(over["corrected"].values()), KEPT)],
        details={"share of random cases above the printed bound": broken},
    )


def half(run: Run) -> Finding:
    """The issue is the first kind: n - 1 orthonormal inputs and B = 1."""
    n = int(run.config["inputs"])
    last = {kind: float(run.value(f"half/{kind}/rank")[-1]) for kind in halves.KINDS}
    end = {kind: float(run.value(f"half/{kind}/end")) for kind in halves.KINDS}
    return by_tests(
        HALF,
        expected=f"As printed: at most {n // 2} of {n}. As corrected: the limit is that of the slowest part.",
        printed=[at_most(f"stable rank at the end, {kind}", rank, n / 2) for kind, rank in last.items()],
        corrected=[
            at_most("largest share of G in V₁", _over(run, "share in V_1"), KEPT),
            at_most("largest rank of G on the way", _over(run, "exact rank"), n - 1),
            at_most("largest distance from the limit", _worst(abs(last[k] / end[k] - 1) for k in end), ENDED, "%"),
            at_most("stable rank at the end, generic inputs", last[halves.SAME], 1 + ENDED),
        ],
        details={"stable rank at the end": last},
    )


def rank_one(run: Run) -> Finding:
    """Products at a small rate; a high rate; and an eigenvector that is no product as the control."""
    late, high, low, none = (
        float(run.value(f"rank one/{name}").max())
        for name in ("late", "late, high rate", "late, low rate", "late, no product")
    )
    return by_tests(
        RANK_ONE,
        expected="The stable rank ends at 1. Where the eigenvector is no product, it does not.",
        printed=[at_most("stable rank at the end, at any rate", _worst([late, high, low]), 1 + ENDED)],
        corrected=[at_most("stable rank at the end, η(λ₁ + λ_max) < 2", _worst([late, low]), 1 + ENDED)],
        controls=[
            above("stable rank at the end, eigenvector diag(2, 1)", none, 1 + 10 * ENDED),
            above(
                "mean stable rank at the start", float(run.value("rank one/rank at the start").mean()), 1 + 10 * ENDED
            ),
        ],
        details={"stable rank at the end": {"small rate": late, "high rate": high}},
    )


def contracts(run: Run) -> Finding:
    """Random problems of both families and three that were made by hand."""
    groups = [*projection.FAMILIES, "peak", "constant C", "high rate"]
    over = {form: {name: _above(run, name, form) for name in groups} for form in ("printed", "proof", "corrected")}
    return by_tests(
        CONTRACTS,
        expected="In no step is the factor of |R| above the bound.",
        printed=[at_most(f"largest factor minus bound, {name}", off, KEPT) for name, off in over["printed"].items()],
        corrected=[at_most("largest factor minus bound", _worst(over["corrected"].values()), KEPT)],
        details={"largest factor minus the bound of the proof": over["proof"]},
    )


def constant(run: Run) -> Finding:
    """Problems in which B and C vanish at zero; how much of the bound the peak reaches."""
    groups = [projection.THROUGH_ZERO, "peak"]
    reached = _constant_reached(run)
    return by_tests(
        CONSTANT,
        expected="The constant that the steepest case needs is the one in the bound.",
        printed=[at_most("largest factor minus bound", _worst(_above(run, name, "printed") for name in groups), KEPT)],
        corrected=[
            at_most("largest factor minus bound", _worst(_above(run, name, "proof") for name in groups), KEPT),
            at_least("constant that the steepest case needs", reached, 1.98),
        ],
        details={"constant that is needed": {"as printed": 1.0, "measured": reached}},
    )


def _constant_reached(run: Run) -> float:
    """c in factor = 1 - rate (kappa - c L_B L_C D^2) at the peak, where kappa and L_B L_C D^2 are nearly 1."""
    factor, rate = run.value("projection/peak/factor"), run.value("projection/peak/rate")
    return float(((factor - 1) / rate + 1).min())


def converges(run: Run) -> Finding:
    """A gradient that meets the printed condition and never vanishes; calm problems that meet the corrected one."""
    size, kappa = run.value("projection/cycle/size"), run.value("projection/cycle/kappa")
    worst, left = run.value("projection/settle/worst factor"), run.value("projection/settle/left")
    calm = worst <= projection.FACTOR
    share = _worst(
        run.value(f"projection/{name}/kappa over its condition").max() for name in (projection.THROUGH_ZERO, "peak")
    )
    return by_tests(
        CONVERGES,
        expected="|R| ends at zero wherever the condition is met.",
        printed=[at_most("|R| at the end over that at the start", float(size[len(size) // 2 :].max() / size[0]), GONE)],
        corrected=[
            at_most("|R| at the end over that at the start", float(left[calm].max(initial=0.0)), GONE),
            at_most("largest κ/(L_A + L_B L_C D²) where B and C vanish at zero", share, 1.0),
        ],
        controls=[
            above("lowest κ − L_A − L_B L_C D² of the gradient that does not vanish", float(kappa.min()), 0.0),
            at_least("problems that meet the corrected condition", float(calm.sum()), 1.0),
        ],
    )


def _above(run: Run, name: str, form: str) -> float:
    return float((run.value(f"projection/{name}/factor") - run.value(f"projection/{name}/{form}")).max())


def _over(run: Run, name: str) -> float:
    return _worst(float(run.value(f"half/{kind}/{name}").max()) for kind in halves.KINDS)


def _worst(values: Any) -> float:
    """The largest, or NaN if there is one among them."""
    return float(np.max(list(values)))

"""The study of GaLore's theory: its sizes, its claims, and what it is about."""

from typing import Any

import numpy as np

from joma.claims.contract import Claim, Finding, Study
from joma.claims.evidence import Test, above, at_least, at_most
from joma.claims.verdicts import by_residual, by_tests
from joma.runs import Run
from joma.studies.galore.galore_theory import descent, networks, projection
from joma.studies.galore.galore_theory import run as record
from joma.studies.galore.galore_theory.figures import draw
from joma.studies.galore.galore_theory.run import KEPT, LOGIT, ODD, columns, run, worst

EXACT = 1e-10  # formulas against autograd or an ODE solver, in float64
ENDED = 1e-2  # how near to its limit a stable rank must come
GONE = 1e-6  # of a gradient that has vanished
HALF_DIGIT = 0.005001  # tables have two digits

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
DYNAMICS = Claim(
    "project-up-dynamics",
    "GaLore Lemma B.6",
    "With several nodes V′ = diag(exp(V∘V/2) 1) Δ / A.",
    "V′ = diag(exp((V∘V) 1/2)) Δ / A: the nodes share attention, so their squares are summed before the exponential.",
    uses=("thm2-rank/nodes-dynamics",),
)
GROWTH = Claim(
    "row-growth",
    "GaLore eq. 53",
    "A row of V is α(t) times its row μ of Δ, with erf⁻¹(2μ̄t/(A√π))/μ̄ ≤ α ≤ erf⁻¹(2nμ̄t/(A√π))/μ̄ and μ̄ = max|μ_j|.",
    "α = √2 erf⁻¹(√(2/π) |μ| t/A)/|μ| exactly. The printed bounds rest on eq. 43 and drop its half.",
    uses=("galore-theory/project-up-dynamics", "thm2-rank/nodes-closed-form"),
)
STATES = Claim(
    "memory-states",
    "GaLore Table 6",
    "The memory of optimizer states is mr + 2nr numbers per matrix, with embeddings in full rank.",
    "The printed column is three quarters of LoRA's, embeddings included, which is right for square matrices only.",
)
TOTAL = Claim(
    "memory-total",
    "GaLore Table 2",
    "The memory of a model is mn + mr + 2nr numbers per matrix, with embeddings in full rank.",
    "The printed column is the parameters in round numbers plus three quarters of LoRA's states, rounded down.",
    uses=("galore-theory/memory-states",),
)


def _by_autograd(claim: Claim, run: Run, **evidence: Any) -> Finding:
    expected = "The formula gives the gradient that autograd gives."
    control = {f"{networks.BENT} activations": float(run.value(f"network/{networks.BENT}")[0].min())}
    return by_residual(
        claim, tolerance=EXACT, what="relative error of G", expected=expected, control=control, **evidence
    )


def judge_reversible(run: Run) -> Finding:
    """By autograd, for four kinds of networks."""
    off = {kind: float(run.value(f"network/{kind}")[0].max()) for kind in networks.PIECEWISE}
    return _by_autograd(REVERSIBLE, run, printed=worst(off.values()), details={"relative error": off})


def judge_polynomial(run: Run) -> Finding:
    """By autograd, with squares and cubes."""
    off = {kind: run.value(f"network/{kind}") for kind in networks.POWERS}
    printed, corrected = (worst(float(each[form].max()) for each in off.values()) for form in (0, 1))
    details = {"smallest error as printed": {kind: float(each[0].min()) for kind, each in off.items()}}
    return _by_autograd(POLYNOMIAL, run, printed=printed, corrected=corrected, details=details)


def judge_remainder(run: Run) -> Finding:
    """The error over the linear term falls as fast as the logits."""
    sizes, classes = run.value("softmax/sizes"), run.value("softmax/classes").astype(int)
    error = {str(k): run.value(f"softmax/{k}/small").max(-1) for k in classes}
    slopes = {k: float(np.polyfit(np.log(sizes), np.log(each), 1)[0]) for k, each in error.items()}
    smallest = worst(each[0] for each in error.values())
    expected = "Ten times smaller logits make the error ten times smaller beside the linear term: slope 1."
    printed = [
        at_least("lowest slope over numbers of classes", min(slopes.values()), 0.95),
        at_most(f"error over the linear term at logits of {sizes[0]:g}", smallest, sizes[0]),
    ]
    return by_tests(REMAINDER, expected=expected, printed=printed, details={"slope by number of classes": slopes})


def judge_logits(run: Run) -> Finding:
    """What small means: logits of LOGIT sqrt(K) against logits of LOGIT."""
    classes = run.value("softmax/classes").astype(int)
    printed, own = (
        {str(k): float(run.value(f"softmax/{k}/{name}").max()) for k in classes} for name in ("printed", "corrected")
    )
    return by_tests(
        LOGITS,
        expected=f"Logits that are small by a factor of {LOGIT} give an error of at most {LOGIT:.0%}.",
        printed=[at_most(f"error at logits of {LOGIT} √K", worst(printed.values()), LOGIT, "%")],
        corrected=[at_most(f"error at logits of {LOGIT}", worst(own.values()), LOGIT, "%")],
        details={"error by number of classes, logits beside √K": printed},
    )


def judge_bound(run: Run) -> Finding:
    """All families. Where one pair, a small rate and the right start are given, the printed bound holds."""
    printed, corrected = (
        {family: float(record.excess(run, family, form).max()) for family in descent.FAMILIES}
        for form in ("printed", "corrected")
    )
    what = "largest share by which the stable rank is above the bound"
    broken = {family: record.share_broken(run, family) for family in descent.FAMILIES}
    return by_tests(
        BOUND,
        expected="No stable rank is above the bound, in no family and at no time.",
        printed=[at_most(f"{what}, {family}", off, KEPT) for family, off in printed.items()],
        corrected=[at_most(what, worst(corrected.values()), KEPT)],
        details={"share of random cases above the printed bound": broken},
    )


def judge_half(run: Run) -> Finding:
    """The issue is the first kind: n - 1 orthonormal inputs and B = 1."""
    n = int(run.config["inputs"])
    last = {kind: float(run.value(f"half/{kind}/rank")[-1]) for kind in descent.KINDS}
    end = {kind: float(run.value(f"half/{kind}/end")) for kind in descent.KINDS}
    share, rank = (
        worst(float(run.value(f"half/{kind}/{name}").max()) for kind in descent.KINDS)
        for name in ("share in V_1", "exact rank")
    )
    return by_tests(
        HALF,
        expected=f"As printed: at most {n // 2} of {n}. As corrected: the limit is that of the slowest part.",
        printed=[at_most(f"stable rank at the end, {kind}", rank, n / 2) for kind, rank in last.items()],
        corrected=[
            at_most("largest share of G in V₁", share, KEPT),
            at_most("largest rank of G on the way", rank, n - 1),
            at_most("largest distance from the limit", worst(abs(last[k] / end[k] - 1) for k in end), ENDED, "%"),
            at_most("stable rank at the end, generic inputs", last[descent.SAME], 1 + ENDED),
        ],
        details={"stable rank at the end": last},
    )


def judge_rank_one(run: Run) -> Finding:
    """Products at a small rate; a high rate; and an eigenvector that is no product as the control."""
    late, high, low, none = (
        float(run.value(f"rank one/{name}").max())
        for name in ("late", "late, high rate", "late, low rate", "late, no product")
    )
    start = float(run.value("rank one/rank at the start").mean())
    return by_tests(
        RANK_ONE,
        expected="The stable rank ends at 1. Where the eigenvector is no product, it does not.",
        printed=[at_most("stable rank at the end, at any rate", worst([late, high, low]), 1 + ENDED)],
        corrected=[at_most("stable rank at the end, η(λ₁ + λ_max) < 2", worst([late, low]), 1 + ENDED)],
        controls=[
            above("stable rank at the end, eigenvector diag(2, 1)", none, 1 + 10 * ENDED),
            above("mean stable rank at the start", start, 1 + 10 * ENDED),
        ],
        details={"stable rank at the end": {"small rate": late, "high rate": high}},
    )


def _above(run: Run, name: str, form: str) -> float:
    """By how much the factor of |R| is above a bound, in the worst step."""
    return float((run.value(f"projection/{name}/factor") - run.value(f"projection/{name}/{form}")).max())


def judge_contracts(run: Run) -> Finding:
    """Random problems of both families and three that were made by hand."""
    groups = [*projection.FAMILIES, "peak", "constant C", "high rate"]
    over = {form: {name: _above(run, name, form) for name in groups} for form in ("printed", "proof", "corrected")}
    return by_tests(
        CONTRACTS,
        expected="In no step is the factor of |R| above the bound.",
        printed=[at_most(f"largest factor minus bound, {name}", off, KEPT) for name, off in over["printed"].items()],
        corrected=[at_most("largest factor minus bound", worst(over["corrected"].values()), KEPT)],
        details={"largest factor minus the bound of the proof": over["proof"]},
    )


def judge_constant(run: Run) -> Finding:
    """Problems in which B and C vanish at zero; how much of the bound the peak reaches.

    c in factor = 1 - rate (kappa - c L_B L_C D^2) at the peak, where kappa and L_B L_C D^2 are nearly 1.
    """
    printed, proof = (
        worst(_above(run, name, form) for name in (projection.THROUGH_ZERO, "peak")) for form in ("printed", "proof")
    )
    factor, rate = run.value("projection/peak/factor"), run.value("projection/peak/rate")
    reached = float(((factor - 1) / rate + 1).min())
    return by_tests(
        CONSTANT,
        expected="The constant that the steepest case needs is the one in the bound.",
        printed=[at_most("largest factor minus bound", printed, KEPT)],
        corrected=[
            at_most("largest factor minus bound", proof, KEPT),
            at_least("constant that the steepest case needs", reached, 1.98),
        ],
        details={"constant that is needed": {"as printed": 1.0, "measured": reached}},
    )


def judge_converges(run: Run) -> Finding:
    """A gradient that meets the printed condition and never vanishes; calm problems that meet the corrected one."""
    size, kappa = run.value("projection/cycle/size"), run.value("projection/cycle/kappa")
    left, calm = run.value("projection/settle/left"), run.value("projection/settle/worst factor") <= projection.FACTOR
    share = worst(
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


def judge_dynamics(run: Run) -> Finding:
    """Along the flow of real blocks. Eq. 44 of the proof, node by node, is another equation than eq. 43."""
    off = {form: float(run.value(f"rows/off/{form}").max()) for form in networks.EQUATIONS}
    return by_residual(
        DYNAMICS,
        printed=off[networks.EQUATION],
        corrected=off[networks.CORRECTED],
        tolerance=EXACT,
        what="relative error of V′",
        expected="The equation gives V′ of the block, with the best A at each moment.",
        control={"eq. 44, each node for itself": off[networks.PER_NODE]},
    )


def judge_growth(run: Run) -> Finding:
    """Rows of the same blocks."""
    alpha, low, high, closed = (run.value(f"rows/growth/{name}") for name in ("alpha", "low", "high", "closed"))
    return by_tests(
        GROWTH,
        expected="As printed: α lies between the bounds. As corrected: the closed form gives α.",
        printed=[
            at_most("share of moments below the lower bound", float(np.mean(alpha < low - EXACT)), 0.0, "%"),
            at_most("share of moments above the upper bound", float(np.mean(alpha > high + EXACT)), 0.0, "%"),
        ],
        corrected=[at_most("largest |α − closed form|", float(np.abs(alpha - closed).max()), EXACT)],
    )


def _differ(which: str, printed: Any, *ways: Any) -> Test:
    """The largest difference between a printed column and the best of some ways to count it."""
    off = float(np.min([np.abs(way - printed).max() for way in ways]))
    return at_most(f"largest difference{which}", off, HALF_DIGIT, "G")


def _by_model(values: Any) -> dict[str, float]:
    return dict(zip(record.MODELS, map(float, values), strict=True))


def judge_states(run: Run) -> Finding:
    """All units and both ways to count embeddings are tried; LoRA's column shows that sizes and unit are right."""
    read = columns(run)
    ways = [read[name] / unit for name in ("galore", "galore matrices") for unit in record.UNITS.values()]
    return by_tests(
        STATES,
        expected="The column comes out to its two digits, in some unit.",
        printed=[_differ(", the best of six ways to count", read["printed states"], *ways)],
        corrected=[_differ("", read["printed states"], read["three quarters"])],
        controls=[_differ(" of LoRA's column", read["printed lora"], read["lora"] / ODD)],
        details={
            "by the formula, G": _by_model(read["galore"] / ODD),
            "formula over print": _by_model(read["galore"] / ODD / read["printed states"]),
        },
    )


def judge_total(run: Run) -> Finding:
    """Weights and states."""
    read = columns(run)
    total, guess = read["weights"] + read["galore"], read["nominal weights"] / ODD + read["three quarters"]
    ways = [total / unit for unit in record.UNITS.values()]
    return by_tests(
        TOTAL,
        expected="The column comes out to its two digits, in some unit.",
        printed=[_differ(", the best of three units", read["printed total"], *ways)],
        corrected=[_differ(" from the middle of the last digit", read["printed total"], guess - 0.005)],
        details={"by the formula, G": _by_model(total / ODD), "by the formula, GiB": _by_model(total / 2**30)},
    )


STUDY = Study(
    name="galore-theory",
    title="GaLore's theory: which gradients become low rank, and what the printed bounds leave out",
    version=1,
    claims={
        REVERSIBLE: judge_reversible, POLYNOMIAL: judge_polynomial, REMAINDER: judge_remainder, LOGITS: judge_logits,
        BOUND: judge_bound, HALF: judge_half, RANK_ONE: judge_rank_one, CONTRACTS: judge_contracts,
        CONSTANT: judge_constant, CONVERGES: judge_converges, DYNAMICS: judge_dynamics, GROWTH: judge_growth,
        STATES: judge_states, TOTAL: judge_total,
    },
    quick=record.GaloreTheoryConfig(),
    paper=record.GaloreTheoryConfig(
        height=5, width=6, draws=200, steps=100, inputs=24, networks=30, classes=(10, 100, 1000, 10_000, 100_000),
        searches=40_000, settled=200, tokens=10, nodes=8, blocks=3,
    ),
    run=run,
    draw=draw,
    about=(
        "Every statement is computed on small problems in float64 and compared with autograd, with the exact path of "
        "gradient descent, or with the flow of a real block. Lemma 3.3 is followed in four families: one pair (B, C) "
        "at a small rate, and then with several pairs, with a high rate, or with a G_0 that is not the gradient at t₀. "
        "The families say which premise each part of the printed bound needs. Corollary 3.4 is followed with n − 1 "
        "inputs in n dimensions. Theorem 3.8 is searched over random problems and over two problems with one number in "
        "place of matrices, where its terms can be seen. Memory is computed from the configurations of the models. "
        "This study says nothing about trained networks: there A, B and C move at every step."
    ),
)  # fmt: skip

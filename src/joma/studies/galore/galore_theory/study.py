"""The statements behind GaLore: gradients that become low rank, fixed projections, memory."""

from typing import Any

import numpy as np

from joma.claims.contract import Claim, Drawing, Finding, Study
from joma.claims.declare import Claims
from joma.claims.verdicts import Test, above, at_least, at_most, by_residual, by_tests
from joma.figures.bands import bound
from joma.figures.labels import label_lines
from joma.figures.reading import number
from joma.figures.style import BLUE, CORRECTED, GREEN, ORANGE, PRINTED, PURPLE, panels
from joma.runs import Run
from joma.studies.galore.galore_theory import descent
from joma.studies.galore.galore_theory import run as record
from joma.studies.galore.galore_theory.descent import EVEN, FAMILIES, HIGH, KINDS, LATE, OWN, SAME, SEVERAL
from joma.studies.galore.galore_theory.run import KEPT, LOGIT, MODELS, ODD, columns, run, share_broken, worst

EXACT = 1e-10  # formulas against autograd or an ODE solver, in float64
ENDED = 1e-2  # how near to its limit a stable rank must come
GONE = 1e-6  # of a gradient that has vanished
HALF_DIGIT = 0.005001  # tables have two digits

CLAIMS = Claims(source="GaLore Thm 3.8")


def _by_autograd(claim: Claim, run: Run, **evidence: Any) -> Finding:
    expected = "The formula gives the gradient that autograd gives."
    control = {f"{record.BENT} activations": float(run.value(f"network/{record.BENT}")[0].min())}
    return by_residual(
        claim, tolerance=EXACT, what="relative error of G", expected=expected, control=control, **evidence
    )


@CLAIMS.declare("reversible-gradient", "GaLore Thm 3.2")
def judge_reversible(run: Run, claim: Claim) -> Finding:
    """In a network without biases whose activations are piecewise linear, G = (Jᵀy − JᵀJWf) fᵀ for the squared loss.

    By autograd, for four kinds of networks.
    """
    off = {kind: float(run.value(f"network/{kind}")[0].max()) for kind in record.PIECEWISE}
    return _by_autograd(claim, run, printed=worst(off.values()), details={"relative error": off})


@CLAIMS.declare("polynomial-activations", "GaLore App. B.1", uses=("galore-theory/reversible-gradient",))
def judge_polynomial(run: Run, claim: Claim) -> Finding:
    """Polynomial activations are reversible too, so the same formula holds for them.

    Corrected: With powers as activations J W f is the output times the product p of their degrees: G = (Jᵀy − JᵀJWf/p)
    fᵀ.

    By autograd, with squares and cubes.
    """
    off = {kind: run.value(f"network/{kind}") for kind in record.POWERS}
    printed, corrected = (worst(float(each[form].max()) for each in off.values()) for form in (0, 1))
    details = {"smallest error as printed": {kind: float(each[0].min()) for kind, each in off.items()}}
    return _by_autograd(claim, run, printed=printed, corrected=corrected, details=details)


@CLAIMS.declare("softmax-remainder", "GaLore Lemma B.2")
def judge_remainder(run: Run, claim: Claim) -> Finding:
    """The gradient of the softmax loss by its logits is y − γ f/K without their means, up to a part of second order.

    The error over the linear term falls as fast as the logits.
    """
    sizes, classes = run.value("softmax/sizes"), run.value("softmax/classes").astype(int)
    error = {str(k): run.value(f"softmax/{k}/small").max(-1) for k in classes}
    slopes = {k: float(np.polyfit(np.log(sizes), np.log(each), 1)[0]) for k, each in error.items()}
    smallest = worst(each[0] for each in error.values())
    expected = "Ten times smaller logits make the error ten times smaller beside the linear term: slope 1."
    printed = [
        at_least("lowest slope over numbers of classes", min(slopes.values()), 0.95),
        at_most(f"error over the linear term at logits of {sizes[0]:g}", smallest, sizes[0]),
    ]
    return by_tests(claim, expected=expected, printed=printed, details={"slope by number of classes": slopes})


@CLAIMS.declare("softmax-small-logits", "GaLore Thm 3.2", uses=("galore-theory/softmax-remainder",))
def judge_logits(run: Run, claim: Claim) -> Finding:
    """G = (J P y − γ JᵀPJWf/K) fᵀ is near the gradient of the softmax loss if the logits are small beside √K.

    Corrected: It is near, with Jᵀ in the place of the first J, if the logits are small beside 1.

    What small means: logits of LOGIT sqrt(K) against logits of LOGIT.
    """
    classes = run.value("softmax/classes").astype(int)
    printed, own = (
        {str(k): float(run.value(f"softmax/{k}/{name}").max()) for k in classes} for name in ("printed", "corrected")
    )
    return by_tests(
        claim,
        expected=f"Logits that are small by a factor of {LOGIT} give an error of at most {LOGIT:.0%}.",
        printed=[at_most(f"error at logits of {LOGIT} √K", worst(printed.values()), LOGIT, "%")],
        corrected=[at_most(f"error at logits of {LOGIT}", worst(own.values()), LOGIT, "%")],
        details={"error by number of classes, logits beside √K": printed},
    )


@CLAIMS.declare("stable-rank-bound", "GaLore Lemma 3.3")
def judge_bound(run: Run, claim: Claim) -> Finding:
    """The stable rank of G_t is at most that of its part P in the lowest eigenspace of S, plus ((1 − ηλ₂)/(1 −
    ηλ₁))^2(t − t₀) |G_0 − P|²/|P|₂², at any rate η.

    Corrected: With L the part of G_t₀ that lasts, R the rest and q the ratio of their largest |1 − ηλ| to the power t −
    t₀, it is at most (|L|² + q²|R|²)/(|L|₂ − q|R|)².
    Expected: No stable rank is above the bound, in no family and at no time.

    All families. Where one pair, a small rate and the right start are given, the printed bound holds.
    """
    printed, corrected = (
        {family: float(record.excess(run, family, form).max()) for family in descent.FAMILIES}
        for form in ("printed", "corrected")
    )
    what = "largest share by which the stable rank is above the bound"
    broken = {family: record.share_broken(run, family) for family in descent.FAMILIES}
    return by_tests(
        claim,
        printed=[at_most(f"{what}, {family}", off, KEPT) for family, off in printed.items()],
        corrected=[at_most(what, worst(corrected.values()), KEPT)],
        details={"share of random cases above the printed bound": broken},
    )


@CLAIMS.declare("half-rank", "GaLore Cor. 3.4", uses=("galore-theory/stable-rank-bound",))
def judge_half(run: Run, claim: Claim) -> Finding:
    """If the Bᵢ have full rank and the inputs fᵢ do not span all n dimensions, the stable rank of G_t is at most n/2
    for large t.

    Corrected: The part of G_t in the lowest eigenspace is zero, so the lemma says nothing. The rank is at most that of
    the inputs. The stable rank ends at that of the slowest part, which is 1 for generic inputs and one B.

    The issue is the first kind: n - 1 orthonormal inputs and B = 1.
    """
    n = int(run.config["inputs"])
    last = {kind: float(run.value(f"half/{kind}/rank")[-1]) for kind in descent.KINDS}
    end = {kind: float(run.value(f"half/{kind}/end")) for kind in descent.KINDS}
    share, rank = (
        worst(float(run.value(f"half/{kind}/{name}").max()) for kind in descent.KINDS)
        for name in ("share in V_1", "exact rank")
    )
    return by_tests(
        claim,
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


@CLAIMS.declare("rank-one", "GaLore Cor. 3.5", uses=("galore-theory/stable-rank-bound",))
def judge_rank_one(run: Run, claim: Claim) -> Finding:
    """If the lowest eigenspace of S is one product y ⊗ z, the stable rank of G_t goes to 1, at any rate η.

    Corrected: It goes to 1 if also η(λ₁ + λ_max) < 2 and G has a part along y ⊗ z.
    Expected: The stable rank ends at 1. Where the eigenvector is no product, it does not.

    Products at a small rate; a high rate; and an eigenvector that is no product as the control.
    """
    late, high, low, none = (
        float(run.value(f"rank one/{name}").max())
        for name in ("late", "late, high rate", "late, low rate", "late, no product")
    )
    start = float(run.value("rank one/rank at the start").mean())
    return by_tests(
        claim,
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


@CLAIMS.declare("projection-contracts")
def judge_contracts(run: Run, claim: Claim) -> Finding:
    """With fixed projections |R_t| ≤ [1 − η(κ − L_A − L_B L_C D²)] |R_t−1|.

    Corrected: |R_t| ≤ [max(|1 − ηκ|, |1 − ηλ_max|) + η(L_A + D(L_B |C| + L_C |B|))] |R_t−1|.
    Expected: In no step is the factor of |R| above the bound.

    Random problems of both families and three that were made by hand.
    """
    groups = [*record.FAMILIES, "peak", "constant C", "high rate"]
    over = {form: {name: _above(run, name, form) for name in groups} for form in ("printed", "proof", "corrected")}
    return by_tests(
        claim,
        printed=[at_most(f"largest factor minus bound, {name}", off, KEPT) for name, off in over["printed"].items()],
        corrected=[at_most("largest factor minus bound", worst(over["corrected"].values()), KEPT)],
        details={"largest factor minus the bound of the proof": over["proof"]},
    )


@CLAIMS.declare("projection-constant", "GaLore App. B.4", uses=("galore-theory/projection-contracts",))
def judge_constant(run: Run, claim: Claim) -> Finding:
    """Where B and C vanish at W = 0, as the proof assumes, the bound holds with 1 · L_B L_C D², as the theorem says.

    Corrected: It needs 2 · L_B L_C D², as the proof says, and no less will do.
    Expected: The constant that the steepest case needs is the one in the bound.

    Problems in which B and C vanish at zero; how much of the bound the peak reaches.

    c in factor = 1 - rate (kappa - c L_B L_C D^2) at the peak, where kappa and L_B L_C D^2 are nearly 1.
    """
    printed, proof = (
        worst(_above(run, name, form) for name in (record.THROUGH_ZERO, "peak")) for form in ("printed", "proof")
    )
    factor, rate = run.value("projection/peak/factor"), run.value("projection/peak/rate")
    reached = float(((factor - 1) / rate + 1).min())
    return by_tests(
        claim,
        printed=[at_most("largest factor minus bound", printed, KEPT)],
        corrected=[
            at_most("largest factor minus bound", proof, KEPT),
            at_least("constant that the steepest case needs", reached, 1.98),
        ],
        details={"constant that is needed": {"as printed": 1.0, "measured": reached}},
    )


@CLAIMS.declare("projection-converges", uses=("galore-theory/projection-contracts",))
def judge_converges(run: Run, claim: Claim) -> Finding:
    """If κ > L_A + L_B L_C D² at all times, then R_t → 0.

    Corrected: R_t → 0 if the corrected factor stays below 1. Where B and C vanish at W = 0, κ is never above L_B L_C
    D².
    Expected: |R| ends at zero wherever the condition is met.

    A gradient that meets the printed condition and never vanishes; calm problems that meet the corrected one.
    """
    size, kappa = run.value("projection/cycle/size"), run.value("projection/cycle/kappa")
    left, calm = run.value("projection/settle/left"), run.value("projection/settle/worst factor") <= record.FACTOR
    share = worst(
        run.value(f"projection/{name}/kappa over its condition").max() for name in (record.THROUGH_ZERO, "peak")
    )
    return by_tests(
        claim,
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


@CLAIMS.declare("project-up-dynamics", "GaLore Lemma B.6", uses=("thm2-rank/nodes-dynamics",))
def judge_dynamics(run: Run, claim: Claim) -> Finding:
    """With several nodes V′ = diag(exp(V∘V/2) 1) Δ / A.

    Corrected: V′ = diag(exp((V∘V) 1/2)) Δ / A: the nodes share attention, so their squares are summed before the
    exponential.
    Expected: The equation gives V′ of the block, with the best A at each moment.

    Along the flow of real blocks. Eq. 44 of the proof, node by node, is another equation than eq. 43.
    """
    off = {form: float(run.value(f"rows/off/{form}").max()) for form in record.EQUATIONS}
    return by_residual(
        claim,
        printed=off[record.EQUATION],
        corrected=off[record.CORRECTED],
        tolerance=EXACT,
        what="relative error of V′",
        control={"eq. 44, each node for itself": off[record.PER_NODE]},
    )


@CLAIMS.declare(
    "row-growth", "GaLore eq. 53", uses=("galore-theory/project-up-dynamics", "thm2-rank/nodes-closed-form")
)
def judge_growth(run: Run, claim: Claim) -> Finding:
    """A row of V is α(t) times its row μ of Δ, with erf⁻¹(2μ̄t/(A√π))/μ̄ ≤ α ≤ erf⁻¹(2nμ̄t/(A√π))/μ̄ and μ̄ = max|μ_j|.

    Corrected: α = √2 erf⁻¹(√(2/π) |μ| t/A)/|μ| exactly. The printed bounds rest on eq. 43 and drop its half.
    Expected: As printed: α lies between the bounds. As corrected: the closed form gives α.

    Rows of the same blocks.
    """
    alpha, low, high, closed = (run.value(f"rows/growth/{name}") for name in ("alpha", "low", "high", "closed"))
    return by_tests(
        claim,
        printed=[
            at_most("share of moments below the lower bound", float(np.mean(alpha < low - EXACT)), 0.0, "%"),
            at_most("share of moments above the upper bound", float(np.mean(alpha > high + EXACT)), 0.0, "%"),
        ],
        corrected=[at_most("largest |α − closed form|", float(np.abs(alpha - closed).max()), EXACT)],
    )


def _differ(which: str, printed: Any, *ways: Any) -> Test:
    off = float(np.min([np.abs(way - printed).max() for way in ways]))
    return at_most(f"largest difference{which}", off, HALF_DIGIT, "G")


def _by_model(values: Any) -> dict[str, float]:
    return dict(zip(record.MODELS, map(float, values), strict=True))


@CLAIMS.declare("memory-states", "GaLore Table 6")
def judge_states(run: Run, claim: Claim) -> Finding:
    """The memory of optimizer states is mr + 2nr numbers per matrix, with embeddings in full rank.

    Corrected: The printed column is three quarters of LoRA's, embeddings included, which is right for square matrices
    only.
    Expected: The column comes out to its two digits, in some unit.

    All units and both ways to count embeddings are tried; LoRA's column shows that sizes and unit are right.
    """
    read = columns(run)
    ways = [read[name] / unit for name in ("galore", "galore matrices") for unit in record.UNITS.values()]
    return by_tests(
        claim,
        printed=[_differ(", the best of six ways to count", read["printed states"], *ways)],
        corrected=[_differ("", read["printed states"], read["three quarters"])],
        controls=[_differ(" of LoRA's column", read["printed lora"], read["lora"] / ODD)],
        details={
            "by the formula, G": _by_model(read["galore"] / ODD),
            "formula over print": _by_model(read["galore"] / ODD / read["printed states"]),
        },
    )


@CLAIMS.declare("memory-total", "GaLore Table 2", uses=("galore-theory/memory-states",))
def judge_total(run: Run, claim: Claim) -> Finding:
    """The memory of a model is mn + mr + 2nr numbers per matrix, with embeddings in full rank.

    Corrected: The printed column is the parameters in round numbers plus three quarters of LoRA's states, rounded down.
    Expected: The column comes out to its two digits, in some unit.

    Weights and states.
    """
    read = columns(run)
    total, guess = read["weights"] + read["galore"], read["nominal weights"] / ODD + read["three quarters"]
    ways = [total / unit for unit in record.UNITS.values()]
    return by_tests(
        claim,
        printed=[_differ(", the best of three units", read["printed total"], *ways)],
        corrected=[_differ(" from the middle of the last digit", read["printed total"], guess - 0.005)],
        details={"by the formula, G": _by_model(total / ODD), "by the formula, GiB": _by_model(total / 2**30)},
    )


SHOWN = 30  # steps of Lemma 3.3 in the figure


def draw(run: Run) -> list[Drawing]:
    """Stable ranks and bounds; the counterexample to Corollary 3.4; fixed projections; memory."""
    return [_draw_bounds(run), _draw_half(run), _draw_projection(run), _draw_memory(run)]


def _draw_bounds(run: Run) -> Drawing:
    figure, axes = panels(2, 2, width=4.3)
    t = run.value("lemma/t")[: SHOWN + 1]
    for axis, family in zip(axes, FAMILIES, strict=True):
        rank, printed, corrected = (
            run.value(f"lemma/{family}/{name}")[0, : SHOWN + 1] for name in ("rank", "printed", "corrected")
        )
        axis.plot(t, corrected, color=CORRECTED, ls="--", label="corrected bound")
        axis.plot(t, printed, color=PRINTED, label="printed bound")
        axis.plot(t, rank, color=GREEN, label="stable rank of G")
        axis.set(xlabel="step", ylabel="stable rank", ylim=(0.9, 1.1 * float(max(corrected.max(), rank.max()))))
        axis.set_title(family)
    broken = {family: number(share_broken(run, family), "%") for family in FAMILIES}
    caption = (
        f"The printed bound of Lemma 3.3 holds with one pair (B, C), a small rate and the right start. Of "
        f"random cases it fails in {broken[SEVERAL]} with several pairs, in {broken[HIGH]} with a high "
        f"rate and in {broken[LATE]} where G₀ is not the gradient at t₀. The corrected bound holds in all. "
        "Each panel has a 2 × 2 case made by hand."
    )
    return Drawing("stable-rank-bounds", caption, figure)


def _draw_half(run: Run) -> Drawing:
    n = int(run.config["inputs"])
    figure, (axis,) = panels(width=6.0, height=3.0)
    ends = {}
    for kind, colour in zip(KINDS, (GREEN, BLUE, PURPLE), strict=True):
        t, rank = run.value(f"half/{kind}/t"), run.value(f"half/{kind}/rank")
        axis.plot(t + 1, rank, color=colour, label=kind.replace(", ", ",\n"))
        ends[kind] = number(rank[-1])
    axis.axhline(n / 2, color=PRINTED, ls="--", label="printed bound n/2")
    axis.set(xscale="log", xlabel="step + 1", ylabel="stable rank of G", ylim=(0, n))
    caption = (
        f"Corollary 3.4 bounds the stable rank by n/2 = {n // 2} for large t. With {n - 1} orthonormal inputs in {n} "
        f"dimensions and B = 1 it stays at {ends[EVEN]}. Generic inputs end at {ends[SAME]} with one B "
        f"for all and at {ends[OWN]} with a B for each input. In all three G has no part in the eigenspace "
        "that the proof divides by."
    )
    return Drawing("half-rank", caption, figure)


def _draw_projection(run: Run) -> Drawing:
    figure, (bars, path) = panels(2, width=4.8, height=3.0)
    problems = {"peak": "B and C\nvanish at W = 0", "constant C": "C constant"}
    growth: dict[str, list[float]] = {}  # (factor - 1) / rate at the lowest rate, measured and allowed
    labels = {"factor": "measured", "printed": "theorem", "proof": "proof", "corrected": "corrected"}
    for i, (form, colour) in enumerate(zip(labels, (GREEN, PRINTED, ORANGE, CORRECTED), strict=True)):
        growth[form] = [
            float((run.value(f"projection/{name}/{form}")[0] - 1) / float(run.value(f"projection/{name}/rate")[0]))
            for name in problems
        ]
        drawn = bars.bar(
            np.arange(len(problems)) + (i - 1.5) * 0.2, growth[form], 0.18, color=colour, label=labels[form]
        )
        bars.bar_label(drawn, fmt="%.2f", fontsize=7, padding=1)
    bars.axhline(0, lw=0.8, color="0.5")
    bars.set_xticks(range(len(problems)), problems.values())
    bars.set(xlabel="problem", ylabel="growth of |R| per step and rate", ylim=(-0.4, 1.6))
    bars.set_title("|R| grows where the theorem says it cannot")
    bars.legend(ncols=2, loc="upper right")
    size = run.value("projection/cycle/size")[:60]
    t = np.arange(len(size))
    path.plot(t, size, color=GREEN, label="measured |R|")
    path.plot(t, size[0] * 0.9**t, color=PRINTED, label="theorem")
    path.set(xlabel="step", ylabel="|R|", ylim=(0, None), title="A descent that does not end")
    label_lines(path)
    peak, still = ({form: number(both[i]) for form, both in growth.items()} for i in (0, 1))
    caption = (
        f"The bound of Theorem 3.8 is too low. Left: the largest growth of the projected gradient R in one step, over "
        f"the rate, in two problems with one number in place of matrices. Where B and C vanish at W = 0 it is "
        f"{peak['factor']}; the theorem allows {peak['printed']}, its proof {peak['proof']}. "
        f"With a constant C it is {still['factor']}, and both allow {still['printed']}. Right: a "
        "gradient that meets the printed condition and does not vanish (rate 1, κ ≥ 0.1, L_A = L_C = 0)."
    )
    return Drawing("fixed-projections", caption, figure)


def _draw_memory(run: Run) -> Drawing:
    read = columns(run)
    figure, axes = panels(2, width=4.6)
    states, quarters = read["galore"] / ODD, read["three quarters"]
    total, guessed = (read["weights"] + read["galore"]) / ODD, read["nominal weights"] / ODD + quarters
    for axis, title, formula, guess, printed in (
        (axes[0], "optimizer states", states, quarters, read["printed states"]),
        (axes[1], "weights and states", total, guessed, read["printed total"]),
    ):
        x = np.arange(len(MODELS))
        axis.bar(x - 0.18, formula / printed, 0.33, color=BLUE, label="the paper's formula")
        axis.bar(x + 0.18, guess / printed, 0.33, color=ORANGE, label="with ¾ of LoRA's states")
        bound(axis, 1.0, "as printed")
        axis.set_xticks(x, MODELS)
        axis.set(xlabel="model", ylabel="computed / printed memory", ylim=(0, 1.9), title=title)
        axis.legend(loc="upper right", ncols=1)
    over = states / read["printed states"] - 1
    caption = (
        f"The formula gives {number(over.min(), '%')} to {number(over.max(), '%')} more memory for optimizer states "
        "than Table 6 prints for GaLore. The printed numbers are, to their two digits, three quarters of LoRA's, "
        "embeddings included. Totals of Table 2 follow with parameters in round numbers. Unit: 1.024 · 10⁹ bytes, in "
        "which LoRA's column comes out."
    )
    return Drawing("memory", caption, figure)


STUDY = Study(
    name="galore-theory",
    title="GaLore's theory: which gradients become low rank, and what the printed bounds leave out",
    version=1,
    claims=CLAIMS,
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

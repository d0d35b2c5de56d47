"""How the record judges the claims of `galore-theory`."""

from __future__ import annotations

from typing import Any

import numpy as np

from joma.claims.contract import Claim, Finding
from joma.claims.evidence import Test, above, at_least, at_most
from joma.claims.verdicts import by_residual, by_tests
from joma.runs import Run
from joma.studies.galore.galore_theory import claims, descent, networks, projection
from joma.studies.galore.galore_theory.claims import ENDED, EXACT, GONE, HALF_DIGIT, KEPT, LOGIT
from joma.studies.galore.galore_theory.run import MODELS, ODD, UNITS, columns, excess, share_broken, worst


def _by_autograd(claim: Claim, run: Run, **evidence: Any) -> Finding:
    expected = "The formula gives the gradient that autograd gives."
    control = {f"{networks.BENT} activations": float(run.value(f"network/{networks.BENT}")[0].min())}
    return by_residual(
        claim, tolerance=EXACT, what="relative error of G", expected=expected, control=control, **evidence
    )


def judge_reversible(run: Run) -> Finding:
    """By autograd, for four kinds of networks."""
    off = {kind: float(run.value(f"network/{kind}")[0].max()) for kind in networks.PIECEWISE}
    return _by_autograd(claims.REVERSIBLE, run, printed=worst(off.values()), details={"relative error": off})


def judge_polynomial(run: Run) -> Finding:
    """By autograd, with squares and cubes."""
    off = {kind: run.value(f"network/{kind}") for kind in networks.POWERS}
    printed, corrected = (worst(float(each[form].max()) for each in off.values()) for form in (0, 1))
    details = {"smallest error as printed": {kind: float(each[0].min()) for kind, each in off.items()}}
    return _by_autograd(claims.POLYNOMIAL, run, printed=printed, corrected=corrected, details=details)


def judge_remainder(run: Run) -> Finding:
    """The error over the linear term falls as fast as the logits."""
    sizes, classes = run.value("softmax/sizes"), run.value("softmax/classes").astype(int)
    error = {str(k): run.value(f"softmax/{k}/small").max(-1) for k in classes}
    slopes = {k: float(np.polyfit(np.log(sizes), np.log(each), 1)[0]) for k, each in error.items()}
    smallest = worst(each[0] for each in error.values())
    return by_tests(
        claims.REMAINDER,
        expected="Ten times smaller logits make the error ten times smaller beside the linear term: slope 1.",
        printed=[
            at_least("lowest slope over numbers of classes", min(slopes.values()), 0.95),
            at_most(f"error over the linear term at logits of {sizes[0]:g}", smallest, sizes[0]),
        ],
        details={"slope by number of classes": slopes},
    )


def judge_logits(run: Run) -> Finding:
    """What small means: logits of LOGIT sqrt(K) against logits of LOGIT."""
    classes = run.value("softmax/classes").astype(int)
    printed, own = (
        {str(k): float(run.value(f"softmax/{k}/{name}").max()) for k in classes} for name in ("printed", "corrected")
    )
    return by_tests(
        claims.LOGITS,
        expected=f"Logits that are small by a factor of {LOGIT} give an error of at most {LOGIT:.0%}.",
        printed=[at_most(f"error at logits of {LOGIT} √K", worst(printed.values()), LOGIT, "%")],
        corrected=[at_most(f"error at logits of {LOGIT}", worst(own.values()), LOGIT, "%")],
        details={"error by number of classes, logits beside √K": printed},
    )


def judge_bound(run: Run) -> Finding:
    """All families. Where one pair, a small rate and the right start are given, the printed bound holds."""
    printed, corrected = (
        {family: float(excess(run, family, form).max()) for family in descent.FAMILIES}
        for form in ("printed", "corrected")
    )
    what = "largest share by which the stable rank is above the bound"
    broken = {family: share_broken(run, family) for family in descent.FAMILIES}
    return by_tests(
        claims.BOUND,
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
        claims.HALF,
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
        claims.RANK_ONE,
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
        claims.CONTRACTS,
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
        claims.CONSTANT,
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
        claims.CONVERGES,
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
        claims.DYNAMICS,
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
        claims.GROWTH,
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
    return dict(zip(MODELS, map(float, values), strict=True))


def judge_states(run: Run) -> Finding:
    """All units and both ways to count embeddings are tried; LoRA's column shows that sizes and unit are right."""
    read = columns(run)
    ways = [read[name] / unit for name in ("galore", "galore matrices") for unit in UNITS.values()]
    return by_tests(
        claims.STATES,
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
    ways = [total / unit for unit in UNITS.values()]
    return by_tests(
        claims.TOTAL,
        expected="The column comes out to its two digits, in some unit.",
        printed=[_differ(", the best of three units", read["printed total"], *ways)],
        corrected=[_differ(" from the middle of the last digit", read["printed total"], guess - 0.005)],
        details={"by the formula, G": _by_model(total / ODD), "by the formula, GiB": _by_model(total / 2**30)},
    )

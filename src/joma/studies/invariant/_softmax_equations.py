"""Claims and findings about eq. 17 and 18 themselves: identities of softmax training, exact or not."""

from __future__ import annotations

from typing import Any

import numpy as np

from joma.claims.contract import Claim, Finding
from joma.claims.evidence import above, at_most
from joma.claims.verdicts import by_residual, by_tests
from joma.runs import Run
from joma.studies.invariant._softmax_training import KINDS

EXACT = 1e-12  # identities of SGD steps
FLOW = 1e-10  # identities along a solved flow
APART = 0.2  # relative: two sides that differ by more do not agree, not even roughly

SUM = "thm1-softmax/eq17-sum"
SUMS = Claim(
    "eq17-sum",
    "JoMA eq. 17",
    "If b is uncorrelated with g h′ b, then z′ = Σ v_k′∘v_k − b̄ v_k′·v_k, where only the first term shows its sum.",
    "The sum over nodes covers both terms.",
)
COVARIANCE = Claim(
    "eq17-covariance",
    "JoMA eq. 17",
    "In training, z′ = Σ(v_k′∘v_k − b̄ v_k′·v_k).",
    "z′ = Σ(v_k′∘v_k − b̄ v_k′·v_k) − Cov(s, b) with s = Σ g_k h_k′ b·v_k, times κ/T: exact for every step of SGD.",
    uses=(SUM,),
)
CONSTANT = Claim(
    "eq18-constant-mean",
    "JoMA eq. 18",
    "With b̄ taken as constant, eq. 17 integrates to z = ½Σ(v² − ‖v‖² b̄) + c.",
    "b̄ moves whenever z does; z = z(0) + ∫[Σ v_k∘v_k′ − b̄(t) Σ v_k·v_k′] dt holds where Cov(s, b) = 0.",
    uses=(SUM,),
)
CONDITION = Claim(
    "softmax-condition",
    "JoMA Thm 1",
    "E[Σ g_k h_k′ b bᵀ] = b̄ E[Σ g_k h_k′ b]ᵀ suffices for the softmax case (with constant b̄).",
    "The condition must hold node by node, or carry v_k: Σ E[g_k h_k′ b bᵀ] v_k = b̄ Σ v_k′·v_k.",
    uses=(SUM,),
)
MEAN = Claim(
    "softmax-mean-logit",
    "JoMA eq. 17",
    "The right-hand side sums to zero, so the mean logit never moves.",
    uses=("thm1-softmax/eq17-covariance",),
)


def relative(estimate: Any, truth: Any) -> Any:
    """Relative error, norms over the last axis."""
    return np.linalg.norm(estimate - truth, axis=-1) / np.linalg.norm(truth, axis=-1)


def _off_in_training(run: Run) -> dict[str, float]:
    """The relative error of eq. 17 with the true b̄(t) after training on many samples, where Cov(s, b) ≠ 0."""
    ends = {kind: relative(run.value(f"{kind}/integrated"), run.value(f"{kind}/z"))[:, -1] for kind in KINDS}
    return {kind: float(end.mean()) for kind, end in ends.items()}


def _least(values: dict[str, float]) -> float:
    """NaN if one of them is: Python's own min would overlook it."""
    return float(np.min(list(values.values())))


def sums(run: Run) -> Finding:
    """On one sample, where Cov(s, b) = 0, with the sum over nodes as printed and over both terms."""
    return by_residual(
        SUMS,
        printed=float(run.value("one/velocity, one node").max()),
        corrected=float(run.value("one/velocity, all nodes").max()),
        tolerance=EXACT,
        expected="equal to z′ where Cov(s, b) = 0 (printed: the best single node in the second term)",
        control={"in training, where Cov(s, b) ≠ 0": _least(_off_in_training(run))},
    )


def covariance(run: Run) -> Finding:
    """In training, without and with Cov(s, b); the control takes Cov(s, b) from the other classes."""
    z, without, identity = (
        {kind: run.value(f"{kind}/{name}") for kind in KINDS} for name in ("z", "integrated", "identity")
    )
    swapped = [
        relative(without[kind] + identity[other] - without[other], z[kind])[:, -1].mean()
        for kind, other in zip(KINDS, reversed(KINDS), strict=True)
    ]
    return by_residual(
        COVARIANCE,
        printed=float(np.max(list(_off_in_training(run).values()))),
        corrected=float(np.max([relative(identity[kind], z[kind]) for kind in KINDS])),
        tolerance=EXACT,
        expected="relative error 0 after all steps",
        control={"with Cov(s, b) of the other classes": float(np.min(swapped))},
    )


def constant(run: Run) -> Finding:
    """Along flows on one sample: the closed form with constant b̄, and the integral with b̄(t)."""
    z = run.value("one/z")
    return by_residual(
        CONSTANT,
        printed=float(relative(run.value("one/z closed"), z).max()),
        corrected=float(relative(run.value("one/z integrated"), z).max()),
        tolerance=FLOW,
        expected="relative error 0 where Cov(s, b) = 0",
        control={"in training, where Cov(s, b) ≠ 0": _least(_off_in_training(run))},
    )


def condition(run: Run) -> Finding:
    """The printed condition is met and its conclusion, eq. 17 with the true mean, fails all the same."""
    sides = float(np.max([run.value(f"{kind}/condition/{side}") for kind in KINDS for side in ("left", "right")]))
    return by_tests(
        CONDITION,
        expected="where the condition is met, eq. 17 is exact",
        printed=[
            at_most("largest of both sides of the condition", sides, EXACT),
            *(
                at_most(f"{kind} classes: eq. 17 with the true b̄ ends off by", off, EXACT)
                for kind, off in _off_in_training(run).items()
            ),
        ],
        corrected=[
            at_most(
                "one sample, where both sides agree node by node: eq. 17 off by",
                run.value("one/velocity, all nodes").max(),
                EXACT,
            )
        ],
        controls=[
            above(
                f"{kind} classes, where eq. 17 is not exact: difference of both sides node by node",
                run.value(f"{kind}/condition/each").mean(),
                APART,
                "%",
            )
            for kind in KINDS
        ],
    )


def mean(run: Run) -> Finding:
    """The mean logit over training; without its second term eq. 17 does not sum to zero."""
    return by_residual(
        MEAN,
        printed=_wander(run, "z"),
        tolerance=EXACT,
        expected="mean logit constant through training",
        control={"½Σv² without the second term": _wander(run, "first term")},
    )


def _wander(run: Run, name: str) -> float:
    """How far the mean over tokens moves in training, in the worst network."""
    return float(np.max([np.ptp(run.value(f"{kind}/{name}").mean(-1), axis=-1) for kind in KINDS]))

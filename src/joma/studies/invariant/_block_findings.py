"""What the study of the block claims, and how each claim is judged by its record."""

from __future__ import annotations

from typing import Any

import numpy as np

from joma.claims.contract import Claim, Finding, each_claim
from joma.claims.verdicts import by_residual
from joma.runs import Run

EXACT = 1e-12  # gradients against autograd, and the decomposition of w along a flow
APART, LEFT = "largest difference", "largest part left over"

FREQUENCIES = Claim(
    "sequence-as-frequencies",
    "JoMA eq. 1",
    "A block with attention over a sequence depends only on how often each token occurs: b = exp(z) ∘ x / A.",
)
ASCENT = Claim(
    "gradient-ascent", "JoMA eq. 9", "Training is gradient ascent on E[Σ g h] with g held fixed; eq. 2 is its velocity."
)
LOSS = Claim(
    "back-propagation",
    "JoMA eq. 2",
    "With g = onehot − softmax(h), eq. 2 is gradient descent on the cross-entropy loss.",
    uses=("block/gradient-ascent",),
)
PROJECTED = Claim(
    "projected-velocity",
    "JoMA eq. 11",
    "The projected weights move by v′ = E[g h′ b]. The embedding of the query plays no part.",
    uses=("block/gradient-ascent",),
)
EXPANSION = Claim(
    "weight-expansion",
    "JoMA eq. 60",
    "Weights grow only along the token and query embeddings: w − w(0) = U(v − v(0)) + u ξ.",
    uses=("block/gradient-ascent",),
)
BIAS = Claim(
    "implicit-bias",
    "JoMA App. A.4",
    "The output of a node is φ(v·b + ξ). Its bias ξ is the integral of E[g h′] over time.",
    "The bias is u·w(0) plus that integral. It starts at zero only if w starts at zero.",
    uses=("block/weight-expansion",),
)
SUPERPOSED = Claim(
    "superposition-sign",
    "JoMA App. A.4",
    "A weight shared by several queries is the sum Σ (v − ξ u) over the queries.",
    "It is Σ (v + ξ u), in agreement with eq. 60.",
    uses=("block/weight-expansion",),
)
SALIENCY = Claim(
    "saliency",
    "JoMA footnote 1",
    "E[g x] is the mean of g over all occurrences of a token, times the frequency of the token.",
)


def _frequencies(run: Run) -> Finding:
    return by_residual(
        FREQUENCIES,
        printed=_apart(run.value("sequences")),
        tolerance=EXACT,
        what=APART,
        expected="The hidden values equal those of softmax attention over the positions.",
        control={"logits that also depend on the position": _apart(run.value("sequences/with a position bias"))},
    )


def _fixed_gradient(run: Run) -> Finding:
    return by_residual(
        ASCENT,
        printed=_apart(run.value("ascent")[1:]),
        tolerance=EXACT,
        what=APART,
        expected="The velocity equals the gradient that autograd computes.",
        control={"gradient that also flows through g": _apart(run.value("ascent")[::2])},
    )


def _descent(run: Run) -> Finding:
    descent, velocity = run.value("loss")
    return by_residual(
        LOSS,
        printed=_apart((descent, velocity)),
        tolerance=EXACT,
        what=APART,
        expected="The velocity equals minus the gradient of the loss that autograd computes.",
        control={"ascent on the loss instead of descent": _apart((-descent, velocity))},
    )


def _projection(run: Run) -> Finding:
    return by_residual(
        PROJECTED,
        printed=_apart(run.value("projected")),
        tolerance=EXACT,
        what=APART,
        expected="The projected velocity equals E[g h′ b].",
        control={"a query that overlaps with a token": _apart(run.value("projected/overlapping query"))},
    )


def _expansion(run: Run) -> Finding:
    return by_residual(
        EXPANSION,
        printed=_left_over(run, "one query", sign=1),
        tolerance=EXACT,
        what=LEFT,
        expected="The embeddings explain all of w − w(0); nothing is left.",
        control={"without the query's embedding": _left_over(run, "one query", sign=0)},
    )


def _bias(run: Run) -> Finding:
    before, felt, xi = (run.value(f"one query/{part}") for part in ("before", "v b", "xi"))
    bias = before - felt  # (steps, members, samples, nodes), the same at every sample
    return by_residual(
        BIAS,
        printed=float(np.abs(bias - xi).max()),
        corrected=float(np.abs(bias - bias[0] - xi).max()),
        tolerance=EXACT,
        what=APART,
        expected="The pre-activation minus v·b equals the bias at every sample.",
        control={"the start alone, without the integral": float(np.abs(bias - bias[0]).max())},
    )


def _superposed(run: Run) -> Finding:
    return by_residual(
        SUPERPOSED,
        printed=_left_over(run, "two queries", sign=-1),
        corrected=_left_over(run, "two queries", sign=1),
        tolerance=EXACT,
        what=LEFT,
        expected="The sum explains all that two queries add to w; nothing is left.",
        control={"without the queries' embeddings": _left_over(run, "two queries", sign=0)},
    )


def _salient(run: Run) -> Finding:
    return by_residual(
        SALIENCY,
        printed=_apart(run.value("saliency")),
        tolerance=EXACT,
        what=APART,
        expected="Both ways of counting give the same numbers.",
        control={
            "sequences of unequal length, where every occurrence counts the same": _apart(
                run.value("saliency/unequal lengths")
            )
        },
    )


def _apart(rows: Any) -> float:
    """The largest difference between two rows."""
    return float(np.abs(rows[0] - rows[1]).max())


def _left_over(run: Run, name: str, *, sign: int) -> float:
    """What is left of w − w(0) once its parts along the embeddings are taken out."""
    return float(np.abs(moved(run, name) - _embedded(run, name, sign=sign)).max())


def moved(run: Run, name: str) -> Any:
    """w − w(0), (steps, members, width, nodes)."""
    w = run.value(f"{name}/w")
    return w - w[0]


def _embedded(run: Run, name: str, *, sign: int) -> Any:
    """U (v − v(0)) + sign Σ u ξ."""
    tokens, queries = np.split(run.value(f"{name}/embeddings"), [run.config["tokens"]], axis=1)
    v = run.value(f"{name}/v")
    return tokens @ (v - v[0]) + sign * queries @ run.value(f"{name}/xi")


CLAIMS = (FREQUENCIES, ASCENT, LOSS, PROJECTED, EXPANSION, BIAS, SUPERPOSED, SALIENCY)
judge = each_claim(_frequencies, _fixed_gradient, _descent, _projection, _expansion, _bias, _superposed, _salient)

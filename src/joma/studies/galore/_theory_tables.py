"""The claims of `galore-theory` about Transformers and about memory, and how each is judged."""

from __future__ import annotations

from typing import Any

import numpy as np

from joma.claims.contract import Claim, Finding
from joma.claims.evidence import at_most
from joma.claims.verdicts import by_residual, by_tests
from joma.runs import Run
from joma.studies.galore import _theory_rows as rows
from joma.studies.galore._theory_findings import EXACT
from joma.studies.galore._theory_memory import MODELS, UNITS

HALF_DIGIT = 0.005001  # tables have two digits
ODD = "1.024 · 10⁹"
"""The unit in which the paper's columns for LoRA and for full rank come out: 1,024 megabytes of 10^6 bytes."""

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


def dynamics(run: Run) -> Finding:
    """Along the flow of real blocks. Eq. 44 of the proof, node by node, is another equation than eq. 43."""
    off = {form: float(run.value(f"rows/off/{form}").max()) for form in rows.FORMS}
    return by_residual(
        DYNAMICS,
        printed=off[rows.EQUATION],
        corrected=off[rows.CORRECTED],
        tolerance=EXACT,
        what="relative error of V′",
        expected="The equation gives V′ of the block, with the best A at each moment.",
        control={"eq. 44, each node for itself": off[rows.PER_NODE]},
    )


def growth(run: Run) -> Finding:
    """Rows of the same blocks."""
    alpha, low, high, closed = (run.value(f"rows/growth/{name}") for name in ("alpha", "low", "high", "closed"))
    return by_tests(
        GROWTH,
        expected="As printed: α lies between the bounds. As corrected: the closed form gives α.",
        printed=[
            at_most("share of moments below the lower bound", _share(alpha < low - EXACT), 0.0, "%"),
            at_most("share of moments above the upper bound", _share(alpha > high + EXACT), 0.0, "%"),
        ],
        corrected=[at_most("largest |α − closed form|", float(np.abs(alpha - closed).max()), EXACT)],
    )


def memory_states(run: Run) -> Finding:
    """All units and both ways to count embeddings are tried; LoRA's column shows that sizes and unit are right."""
    read = reading(run)
    ways = _ways(read, "galore", "galore matrices")
    return by_tests(
        STATES,
        expected="The column comes out to its two digits, in some unit.",
        printed=[
            at_most(
                "largest difference, the best of six ways to count",
                _best(ways, read["printed states"]),
                HALF_DIGIT,
                "G",
            )
        ],
        corrected=[
            at_most("largest difference", _off(three_quarters(run), read["printed states"]), HALF_DIGIT, "G"),
        ],
        controls=[
            at_most(
                "largest difference of LoRA's column",
                _off(read["lora"] / UNITS[ODD], read["printed lora"]),
                HALF_DIGIT,
                "G",
            )
        ],
        details={
            "by the formula, G": _by_model(read["galore"] / UNITS[ODD]),
            "formula over print": _by_model(read["galore"] / UNITS[ODD] / read["printed states"]),
        },
    )


def memory_total(run: Run) -> Finding:
    """Weights and states."""
    read = reading(run)
    ways = [(read["weights"] + read["galore"]) / unit for unit in UNITS.values()]
    guess = read["nominal weights"] / UNITS[ODD] + three_quarters(run)
    return by_tests(
        TOTAL,
        expected="The column comes out to its two digits, in some unit.",
        printed=[
            at_most("largest difference, the best of three units", _best(ways, read["printed total"]), HALF_DIGIT, "G")
        ],
        corrected=[
            at_most(
                "largest difference from the middle of the last digit",
                _off(guess - 0.005, read["printed total"]),
                HALF_DIGIT,
                "G",
            )
        ],
        details={
            "by the formula, G": _by_model((read["weights"] + read["galore"]) / UNITS[ODD]),
            "by the formula, GiB": _by_model((read["weights"] + read["galore"]) / 2**30),
        },
    )


def reading(run: Run) -> dict[str, Any]:
    """Bytes and printed numbers by model."""
    names = ("weights", "nominal weights", "galore", "galore matrices", "lora")
    return {name: run.value(f"memory/{name}") for name in (*names, "printed states", "printed total", "printed lora")}


def three_quarters(run: Run) -> Any:
    """Of LoRA's states, in the paper's unit."""
    return 0.75 * run.value("memory/lora") / UNITS[ODD]


def _ways(read: dict[str, Any], *names: str) -> list[Any]:
    return [read[name] / unit for name in names for unit in UNITS.values()]


def _best(ways: list[Any], printed: Any) -> float:
    return float(np.min([_off(way, printed) for way in ways]))


def _off(computed: Any, printed: Any) -> float:
    return float(np.abs(computed - printed).max())


def _by_model(values: Any) -> dict[str, float]:
    return dict(zip(MODELS, map(float, values), strict=True))


def _share(true: Any) -> float:
    return float(np.mean(true))

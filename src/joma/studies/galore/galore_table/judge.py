"""How the record judges the claims about GaLore's table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import nan
from typing import Any

import numpy as np

from joma.claims.contract import Claim, Finding
from joma.claims.evidence import at_most
from joma.claims.guards import at_paper_scale, of_learned
from joma.claims.verdicts import Numbers, by_effect, by_residual, not_run
from joma.measure.intervals import Comparison, compare
from joma.runs import Run
from joma.studies.galore.galore_table import claims
from joma.studies.galore.galore_table.config import FULL, GALORE, LORA, LOW, RANDOM, RELORA, SCALED, shown
from joma.studies.galore.galore_table.record import Table

AGAIN = at_paper_scale("galore-table")
FLOAT32 = 4  # bytes


def _by_losses(
    claim: Claim,
    expected: str,
    what: str,
    cases: Callable[[Table], dict[str, Comparison]],
    more: Callable[[Table], dict[str, Any]] = lambda table: {},
) -> Callable[[Run], Finding]:
    """A judge by the interval over seeds; not run where a method did not learn with any seed."""

    def judge(run: Run) -> Finding:
        table = Table(run)
        perplexities = {
            shown(method): {
                "perplexity": float(np.exp(np.nanmean(table.final(method)))),
                "rate": table.rate(method) or nan,
            }
            for method in table.methods()
        }
        given = more(table)
        given["details"] = {**given.get("details", {}), **perplexities}
        reason = "a method of this comparison learned no more than how frequent tokens are"
        return of_learned(claim, cases(table), expected=expected, what=what, reason=reason, command=AGAIN, **given)

    return judge


def _gaps(table: Table) -> dict[str, Any]:
    """GaLore against the better kind of full rank, the harder control; unknown where the interval holds the bound."""
    gap, bound = table.more(GALORE, table.tuned), claims.GAP
    low, high = gap.low - gap.control, gap.high - gap.control
    value = nan if low <= bound < high else gap.difference
    kinds = {method: table.more(GALORE, method) for method in (FULL, SCALED)}
    return {
        "size": (at_most("GaLore minus tuned full rank", value, bound, "nats"),),
        "details": {
            f"GaLore minus {shown(method)}": {"nats": found.difference, "half of its interval": found.half_width}
            for method, found in kinds.items()
            if found.seeds
        },
    }


judge_close = _by_losses(
    claims.CLOSE,
    f"a lower loss than low rank, and a loss at most {claims.GAP:.3f} nats above tuned full rank, as printed",
    "loss of low rank (control: GaLore)",
    lambda table: {"": table.more(LOW, GALORE)},
    _gaps,
)
judge_first = _by_losses(  # as printed with one rate for all weights; as corrected against the better kind of full rank
    claims.FIRST,
    "every method with low rank has a higher loss than full rank, each at its own best rate",
    "loss (control: full rank)",
    lambda table: {method: table.more(method, FULL) for method in (GALORE, LORA, RELORA, LOW)},
    lambda table: {"corrected": {method: table.more(method, table.tuned) for method in (GALORE, LORA, RELORA, LOW)}},
)
judge_adapters = _by_losses(
    claims.ADAPTERS,
    f"LoRA and ReLoRA have a loss at least {claims.MATTERS} nats above GaLore's",
    "loss (control: GaLore)",
    lambda table: {method: table.more(method, GALORE) for method in (LORA, RELORA)},
)
judge_factors = _by_losses(
    claims.FACTORS,
    f"low rank has a loss at least {claims.MATTERS} nats above every other method of the table",
    "loss of low rank (control: the other method)",
    lambda table: {f"than {method}": table.more(LOW, method) for method in (FULL, GALORE, LORA, RELORA)},
)
judge_subspace = _by_losses(
    claims.SUBSPACE,
    f"random subspaces of the same rank have a loss at least {claims.MATTERS} nats above GaLore's",
    "loss with random subspaces (control: GaLore)",
    lambda table: {"": table.more(RANDOM, GALORE)},
)


def states_by_formula(config: Mapping[str, Any], method: str) -> float:
    """Bytes: for a matrix of a block, m <= n, Adam keeps 2 m n numbers and GaLore m r + 2 n r; for others 2 each."""
    width, mlp, layers = int(config["width"]), int(config["mlp"]), int(config["layers"])
    shapes = layers * [(width, width)] * 4 + layers * [tuple(sorted((width, mlp)))] * 3
    rest = 2 * int(config["vocabulary"]) * width + (2 * layers + 1) * width
    rank = int(config["rank"])
    blocks = sum(2 * m * n if method == FULL else m * rank + 2 * n * rank for m, n in shapes)
    return float(FLOAT32 * (blocks + 2 * rest))


def judge_memory(run: Run) -> Finding:
    """The bytes that optimizers keep, against the formula."""
    table = Table(run)
    expected = "the bytes that the optimizers keep are those of the formula"
    states = {method: table.bytes(method)["states"] for method in (GALORE, FULL)}
    off = {method: kept / states_by_formula(run.config, method) - 1 for method, kept in states.items()}
    if not all(np.isfinite(value) for value in off.values()):
        return not_run(claims.MEMORY, expected, "GaLore or full rank has no long run", AGAIN)
    sizes: Numbers = {
        shown(method): {f"{name}, MiB": value / 2**20 for name, value in table.bytes(method).items()}
        for method in table.tried
    }
    return by_residual(
        claims.MEMORY,
        printed=max(off.values(), key=abs),
        tolerance=claims.ROUNDING,
        expected=expected,
        what="share off",
        control={"Adam against GaLore's formula": states[FULL] / states_by_formula(run.config, GALORE) - 1},
        details=sizes,
    )


def operations_per_token(config: Mapping[str, Any]) -> float:
    """Floating point operations of a full-rank step, forward and backward, without those of the optimizer.

    Six per token and weight of a matrix (the embedding is looked up), and those of causal attention over the context.
    """
    width, mlp, layers = int(config["width"]), int(config["mlp"]), int(config["layers"])
    weights = layers * (4 * width**2 + 3 * width * mlp) + int(config["vocabulary"]) * width
    return float(6 * weights + 6 * layers * int(config["context"]) * width)


def judge_time(run: Run) -> Finding:
    """Seconds per step; operations are those of full rank, whatever the method does."""
    table = Table(run)
    expected = f"a step of GaLore takes at most {1 + claims.SLOWER:g} times as long as one of AdamW"
    if run.config["device"] == "cpu":
        reason = "the time of a small network on a busy CPU says nothing about training"
        return not_run(claims.TIME, expected, reason, AGAIN)
    galore, adam = table.seconds(GALORE), table.seconds(FULL)
    details = {}
    for method in table.tried:
        if table.long_trials(method):
            seconds = float(np.nanmean(table.seconds(method)))
            tokens = table.tokens_per_step / seconds
            details[shown(method)] = {
                "ms per step": 1e3 * seconds,
                "tokens per second": tokens,
                "full-rank TFLOP per second": tokens * operations_per_token(run.config) / 1e12,
            }
    allowed = compare(np.full_like(galore, claims.SLOWER), galore / adam - 1)
    what = "overhead allowed (control: overhead measured)"
    return by_effect(claims.TIME, allowed, expected=expected, what=what, details=details)


def judge_printed(run: Run) -> Finding:
    """Not run: it would need another text."""
    reason = "the printed numbers are for C4 and 1.3 billion tokens; this study has another text and fewer tokens"
    return not_run(claims.PRINTED, "the printed numbers", reason, "the same methods on C4, which is not part of joma")

"""What training must cost, from the shapes alone: bytes that optimizers keep, operations per token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joma.studies.galore._table_config import FULL

BYTES = 4  # of a float32 number


def states_by_formula(config: Mapping[str, Any], method: str) -> float:
    """Bytes: for a matrix of a block, m <= n, Adam keeps 2 m n numbers and GaLore m r + 2 n r; for others 2 each."""
    width, mlp, layers = int(config["width"]), int(config["mlp"]), int(config["layers"])
    shapes = layers * [(width, width)] * 4 + layers * [tuple(sorted((width, mlp)))] * 3
    rest = 2 * int(config["vocabulary"]) * width + (2 * layers + 1) * width
    rank = int(config["rank"])
    blocks = sum(2 * m * n if method == FULL else m * rank + 2 * n * rank for m, n in shapes)
    return float(BYTES * (blocks + 2 * rest))


def operations_per_token(config: Mapping[str, Any]) -> float:
    """Floating point operations of a full-rank step, forward and backward, without those of the optimizer.

    Six per token and weight of a matrix (the embedding is looked up), and those of causal attention over the context.
    """
    width, mlp, layers = int(config["width"]), int(config["mlp"]), int(config["layers"])
    weights = layers * (4 * width**2 + 3 * width * mlp) + int(config["vocabulary"]) * width
    return float(6 * weights + 6 * layers * int(config["context"]) * width)

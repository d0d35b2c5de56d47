"""Words for what a scan measured, and its numbers layer by layer."""

from __future__ import annotations

import re
from math import lgamma

import numpy as np

from joma.scan.result.curves import Curve, Scan, mean_of

UNITS = {
    "stable_rank": "stable rank",
    "spectral_norm": "spectral norm",
    "entropy": "attention entropy (nats)",
    "alpha": "power-law exponent α",
    "sparsity": "attention sparsity",
    "allocation": "change of attention entropy by parameters",
}
"""What an axis is called."""
GROUPS = {
    ("sparsity", "top_tenth"): "mass on the top 10 % of keys",
    ("sparsity", "top_16"): "mass on the top 16 keys",
    ("sparsity", "first_key"): "mass on the first key",
    ("sparsity", "first_4"): "mass on the first 4 keys",
    ("sparsity", "near_zero"): "keys below 1 % of the largest",
    ("sparsity", "effective_share"): "effective keys / keys seen",
    ("allocation", "entropy"): "change of entropy (nats)",
    ("allocation", "loss"): "change of the loss (nats)",
}
"""What a curve is called whose group says which number of the running model it is."""
MEANINGS = {
    "stable_rank": "The squared Frobenius norm of a matrix over its squared spectral norm: 1 if one direction carries "
    "everything, at most the smaller side.",
    "spectral_norm": "The largest singular value of a matrix.",
    "coherence": "The mean absolute cosine between two rows of the token embedding: 0 if all are orthogonal, 1 if all "
    "point one way.",
    "entropy": "The mean entropy of an attention row on the text, in nats: 0 if a token attends to one other alone.",
    "sparsity": "Means over queries on the text. Mass: how much attention goes to the keys with the largest "
    "probability, or to the first keys. Keys below 1 % of the largest: their share of the keys seen, H2O's sparsity. "
    "Effective keys: e^entropy.",
    "allocation": "Between neighbouring checkpoints, how much of the change of each layer's mean attention entropy, "
    "and of the loss, came through each group of parameters, along the straight way between the two. The parts sum to "
    "the change up to the closing error.",
    "alpha": "The exponent of a power law fitted to the largest squared singular values, as WeightWatcher defines it.",
}
"""One sentence per measure."""


def measure_title(measure: str) -> str:
    """A measure as a heading.

    >>> measure_title("stable_rank"), measure_title("entropy"), measure_title("my_measure")
    ('Stable rank', 'Attention entropy (nats)', 'My measure')
    """
    words = UNITS.get(measure, measure.replace("_", " "))
    return words[:1].upper() + words[1:]


def curve_title(curve: Curve) -> str:
    """A curve as the title of a panel.

    >>> from joma.scan.names.architecture import Row
    >>> rows = (Row(0, None, "layer 0"),)
    >>> curve_title(Curve("sparsity", "first_key", rows, ("0",), np.ones((1, 1, 1)), heads=True))
    'mass on the first key'
    >>> curve_title(Curve("stable_rank", "mlp", rows, ("stable rank",), np.ones((1, 1))))
    'stable rank, mlp'
    """
    unit = UNITS.get(curve.measure, curve.measure.replace("_", " "))
    return GROUPS.get((curve.measure, curve.group or ""), f"{unit}, {curve.group}" if curve.group else unit)


def group_title(curve: Curve) -> str:
    """The same without the measure, for a place that names it."""
    return GROUPS.get((curve.measure, curve.group or ""), curve.group or "mean over heads")


def layers_of(curve: Curve) -> tuple[list[str], np.ndarray]:
    """Labels of the layers, and values (steps, layers): the mean over the heads or the experts of a layer.

    >>> from joma.scan.names.architecture import Row
    >>> rows = (Row(0, 0, "a"), Row(0, 1, "b"))
    >>> layers_of(Curve("stable_rank", "mlp_experts", rows, ("stable rank",), np.array([[2.0, 4.0]])))
    (['layer 0'], array([[3.]]))
    """
    values = curve.by_row
    if all(row.expert is None for row in curve.rows):
        return [row.label for row in curve.rows], values
    layers = list(dict.fromkeys(row.layer for row in curve.rows))
    of = [[at for at, row in enumerate(curve.rows) if row.layer == layer] for layer in layers]
    return [f"layer {layer}" for layer in layers], np.stack([mean_of(values[:, some], axis=1) for some in of], axis=1)


_CAUSAL = frozenset(
    {"biogpt", "bloom", "codegen", "cohere", "ctrl", "falcon", "gpt2", "gpt_bigcode", "gpt_neox", "gpt_neox_japanese",
     "gptj", "granite", "llama", "mpt", "olmo", "olmo2", "openai-gpt", "opt", "persimmon", "phi", "qwen2", "qwen3",
     "stablelm"}
)  # fmt: skip
"""Model types whose queries see themselves and all before them. Others have windows, or read both ways: not known."""
_WINDOW = re.compile(r"\bentropy\b.* reads? .*: [\d,]+ windows? of ([\d,]+) tokens?\b")


def uniform_entropy(scan: Scan) -> float | None:
    """The mean entropy of uniform attention on the text of a scan, in nats; None where it cannot be known.

    Curves of entropy are means over queries. Query i of a causal model sees i keys, so that uniform attention gives the
    mean of ln i: no network is above it. (The logarithm of the mean number of keys is higher, and out of reach.) The
    length of the windows stands in the notes of the scan.

    >>> note = "entropy reads a.txt: 6 windows of 16 tokens"
    >>> round(uniform_entropy(Scan("a", [0], [], {}, notes=(note,), model_type="gpt2")), 3)
    1.917
    >>> uniform_entropy(Scan("a", [0], [], {}, notes=(note,), model_type="bert")) is None
    True
    """
    lengths = {int(found[1].replace(",", "")) for note in scan.notes if (found := _WINDOW.search(note))}
    if scan.model_type not in _CAUSAL or len(lengths) != 1:
        return None
    (length,) = lengths
    return lgamma(length + 1) / length


def axis_name(scan: Scan) -> str:
    """What its steps count: epochs, where the names of the checkpoints speak of nothing else."""
    return "epoch" if scan.axis == "epoch" else "training step"

"""What a page says of the curves of a scan: their titles, their numbers layer by layer, and a level to compare with."""

import re
from math import lgamma

import numpy as np

from joma.measure.registry import MEASURES, axis_of
from joma.scan.result.curves import Curve, Scan, mean_of


def measure_title(measure: str) -> str:
    """A measure as a heading."""
    title = axis_of(measure)
    return title[:1].upper() + title[1:]


def curve_title(curve: Curve) -> str:
    """A curve as the title of a panel.

    >>> from joma.scan.names.architecture import Row
    >>> rows = (Row(0, None, "layer 0"),)
    >>> curve_title(Curve("sparsity", "first_key", rows, ("0",), np.ones((1, 1, 1)), heads=True))
    'mass on the first key'
    >>> curve_title(Curve("stable_rank", "mlp", rows, ("stable rank",), np.ones((1, 1))))
    'stable rank, mlp'
    """
    unit = axis_of(curve.measure)
    return _column_title(curve) or (f"{unit}, {curve.group}" if curve.group else unit)


def group_title(curve: Curve) -> str:
    """The same without the measure, for a place that names it."""
    return _column_title(curve) or curve.group or "mean over heads"


def _column_title(curve: Curve) -> str:
    measure = MEASURES.get(curve.measure)
    return measure.column_titles.get(curve.group or "", "") if measure else ""


def layers_of(curve: Curve) -> tuple[list[str], np.ndarray]:
    """Labels of the layers, and values (steps, layers): the mean over the heads or the experts of a layer."""
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
_WINDOW = re.compile(r"\bentropy\b.* reads? .*: [\d,]+ windows? of ([\d,]{1,24}) tokens?\b")


def uniform_entropy(scan: Scan) -> float | None:
    """The mean entropy of uniform attention on the text of a scan, in nats; None where it cannot be known.

    Curves of entropy are means over queries. Query i of a causal model sees i keys, so that uniform attention gives the
    mean of ln i: no network is above it. (The logarithm of the mean number of keys is higher, and out of reach.) The
    length of the windows stands in the notes of the scan.
    """
    lengths = {int(found[1].replace(",", "")) for note in scan.notes if (found := _WINDOW.search(note))}
    if scan.model_type not in _CAUSAL or len(lengths) != 1:
        return None
    (length,) = lengths
    return lgamma(length + 1) / length


_AXES = {"milliepoch": "epoch / 1000", "tokens": "training tokens", "date": "date, seconds since 1970"}


def steps_axis(scan: Scan) -> tuple[str, list[int]]:
    """What an axis of steps is called, and where they lie: epochs, where checkpoints are named by nothing else."""
    if scan.axis == "epoch":
        return "epoch", [scan.epochs[step] for step in scan.steps]
    return _AXES.get(scan.axis, "training step"), scan.steps

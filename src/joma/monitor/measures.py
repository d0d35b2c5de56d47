"""Every measure that a monitor can take, by name: what it is, what it is taken from, and how.

An attention measure is taken from the probe that has watched one pass, a matrix measure from the weights alone, or
from their gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from torch import Tensor

from joma.host.arguments import integer, shown
from joma.host.errors import BadInput, asked_for
from joma.host.words import brief_repr, did_you_mean
from joma.measure.spread import Spread
from joma.monitor.growth import sizes_of_weights
from joma.monitor.matrices import Matrices
from joma.probes import Probe

Taken = dict[str, dict[str, Tensor]]
"""Series by name; of each, the numbers of every layer (heads,) or of every matrix ()."""


@brief_repr
@dataclass(frozen=True)
class MonitorMeasure:
    """What one measure is.

    - name: as a user gives it
    - unit: of its numbers; empty where they have none
    - meaning: one sentence
    - needs: "attention": a pass. "matrices", "embeddings": the weights alone. "gradients": those of the matrices
    - take: its series, from a `Probe` or from `Matrices`

    >>> MEASURES["entropy"].unit
    'nats'
    """

    name: str
    unit: str
    meaning: str
    needs: Literal["attention", "matrices", "embeddings", "gradients"]
    take: Callable[[Any], Taken]


def _statistic(name: str, statistic: str, probe: Probe) -> Taken:
    return {name: probe.by_layer(statistic)}


def _spread(probe: Probe) -> Taken:
    each = {name: probe.spread[name].spread for name in probe.layers}
    return {
        f"spread/{field}": {name: found[at] for name, found in each.items()}
        for at, field in enumerate(Spread._fields)
        if field in ("variance", "shared", "specific", "cross")
    } | sizes_of_weights(probe)


def _of_matrices(name: str, matrices: Matrices) -> Taken:
    found = getattr(matrices, name)()
    return {name: found} if found else {}


def _attention(name: str, unit: str, meaning: str, statistic: str) -> MonitorMeasure:
    return MonitorMeasure(name, unit, meaning, "attention", partial(_statistic, name, statistic))


def _matrix(name: str, meaning: str) -> MonitorMeasure:
    return MonitorMeasure(name, "", meaning, "matrices", partial(_of_matrices, name))


_ALL = (
    _attention("entropy", "nats", "the mean entropy of an attention row, per head", "entropy"),
    _attention("largest_logit", "nats", "the largest logit of all queries, per head", "largest_logit"),
    _attention("sink_mass", "", "the mean attention on the first key, per head", "sink_mass"),
    _attention("effective_keys", "keys", "the mean of e^entropy over queries, per head", "effective_keys"),
    MonitorMeasure(
        "spread",
        "nats²",
        "the variance of a query's logits over its keys, its parts, and the size of the weights behind it, per head",
        "attention",
        _spread,
    ),
    _matrix("stable_rank", "the squared Frobenius norm over the squared spectral norm, per matrix"),
    _matrix("norm", "the Frobenius norm, per matrix"),
    _matrix("update_ratio", "the norm of the change since the last measuring over the norm, per matrix"),
    MonitorMeasure(
        "gradient_stable_rank",
        "",
        "the stable rank of the gradient, per matrix; 0 where there is none",
        "gradients",
        partial(_of_matrices, "gradient_stable_rank"),
    ),
    MonitorMeasure(
        "embedding_coherence",
        "",
        "the mean |cos| of the vectors of two tokens, per embedding",
        "embeddings",
        partial(_of_matrices, "embedding_coherence"),
    ),
)
MEASURES: Mapping[str, MonitorMeasure] = {measure.name: measure for measure in _ALL}  #: All measures by name.
DEFAULT = ("entropy", "largest_logit", "sink_mass", "effective_keys", "stable_rank", "norm")
"""What is taken unless asked otherwise; `update_ratio` is not, since it holds a copy of the matrices."""


def intervals_of(measures: Iterable[str] | Mapping[str, int | None], every: int) -> dict[str, int]:
    """The interval of each measure, in steps: `every`, unless a mapping gives it one of its own.

    >>> intervals_of({"entropy": 10, "norm": None}, 100)
    {'entropy': 10, 'norm': 100}
    """
    with asked_for():
        usual = integer(every, "every", 1)
    names = [measures] if isinstance(measures, str) else list(measures)
    for name in names:
        if name not in MEASURES:
            otherwise = f"there are {', '.join(MEASURES)}"
            near = did_you_mean(name, MEASURES, otherwise) if isinstance(name, str) else otherwise
            raise BadInput(f"measures has no {shown(name)}: {near}", argument="measures")
    if not names:
        raise BadInput(f"measures must name at least one of {', '.join(MEASURES)}", argument="measures")
    own = measures if isinstance(measures, Mapping) else {}
    with asked_for():
        return {
            name: usual if own.get(name) is None else integer(own[name], f"the interval of {name}", 1)  # type: ignore[arg-type]
            for name in names
        }

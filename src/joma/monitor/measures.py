"""How a monitor takes its measures, and how often. What each of them is stands in `joma.measure.registry`.

An attention measure is taken from the probe that has watched one pass, any other from the weights alone, or from
their gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from joma.host.arguments import integer, shown
from joma.host.errors import BadInput, asked_for
from joma.host.words import did_you_mean
from joma.measure.registry import Measure, measures_of
from joma.measure.spread import Spread
from joma.monitor.growth import sizes_of_weights
from joma.probes import Probe

Taken = dict[str, dict[str, Tensor]]
"""Series by name; of each, the numbers of every layer (heads,) or of every matrix ()."""

MONITORED: Mapping[str, Measure] = measures_of("monitor")  #: All that a monitor can take, by name.
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
        if name not in MONITORED:
            otherwise = f"there are {', '.join(MONITORED)}"
            near = did_you_mean(name, MONITORED, otherwise) if isinstance(name, str) else otherwise
            raise BadInput(f"measures has no {shown(name)}: {near}", argument="measures")
    if not names:
        raise BadInput(f"measures must name at least one of {', '.join(MONITORED)}", argument="measures")
    own = measures if isinstance(measures, Mapping) else {}
    with asked_for():
        return {
            name: usual if own.get(name) is None else integer(own[name], f"the interval of {name}", 1)  # type: ignore[arg-type]
            for name in names
        }


def take(name: str, source: Any) -> Taken:
    """The series of one measure.

    - name: of a measure in `MONITORED`
    - source: the `Probe` of a pass for attention, else `Matrices`
    """
    measure = MONITORED[name]
    if name == "spread":
        return _spread(measure, source)
    if measure.needs == "attention":
        return {curve: source.by_layer(statistic) for curve, statistic in measure.curves.items()}
    found = getattr(source, name)()
    return {name: found} if found else {}


def _spread(measure: Measure, probe: Probe) -> Taken:
    """The parts of the variance of logits, and the size of the weights behind it."""
    each = {name: probe.spread[name].spread for name in probe.layers}
    parts = {
        curve: {name: found[Spread._fields.index(part)] for name, found in each.items()}
        for curve, part in measure.curves.items()
    }
    return parts | sizes_of_weights(probe)

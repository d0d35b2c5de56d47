"""One attention whose queries and keys are known, measured into probes."""

from typing import Any

import torch
from torch import Tensor

from joma.measure.attention import AttentionStats, attention_stats
from joma.measure.spread import spread_sums
from joma.probes._record import Probe
from joma.probes._sparsity import of_products

_SINKS = ("sinks", "sink_key", "sink_in_entropy")  # no keys, so that the spread over keys does not see them


def measure_products(
    probe: Probe, name: str, q: Tensor, k: Tensor, real: Tensor | None, options: dict[str, Any]
) -> None:
    """Record one call of the module `name`; options are those of `attention_stats`. No gradient is followed."""
    with torch.no_grad():
        stats = None if probe.products is not None else attention_stats(q.detach(), k.detach(), **options)
        record_products(probe, name, q, k, stats, real, options)


def record_products(
    probe: Probe, name: str, q: Tensor, k: Tensor, stats: AttentionStats | None, real: Tensor | None,
    options: dict[str, Any],
) -> None:  # fmt: skip
    """Record `stats` of queries and keys, with what else the probe asks for; real is False for padded queries."""
    if probe.products is not None:
        probe.calls += 1
        probe.products(name, q.detach(), k.detach(), real, options)
    if stats is None:
        return
    sparsity = None if probe.top is None else of_products(q.detach(), k.detach(), stats, probe.top, options)
    masks = {key: value for key, value in options.items() if key not in _SINKS}
    sums = spread_sums(q.detach(), k.detach(), query_padding=real, finite=False, **masks) if probe.with_spread else None
    probe.record(name, stats, real, sparsity, sums)

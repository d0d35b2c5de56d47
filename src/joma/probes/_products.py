"""One attention whose queries and keys are known, measured into a probe."""

from typing import Any

import torch
from torch import Tensor

from joma.measure.attention import attention_stats
from joma.probes._record import Probe
from joma.probes._sparsity import of_products
from joma.probes._spread import spread_of_products


def measure_products(
    probe: Probe, name: str, q: Tensor, k: Tensor, real: Tensor | None, options: dict[str, Any]
) -> None:
    """Record one call of the module `name`; options are those of `attention_stats`. No gradient is followed."""
    with torch.no_grad():
        q, k = q.detach(), k.detach()
        stats = attention_stats(q, k, **options)
        sparsity = None if probe.top is None else of_products(q, k, stats, probe.top, options)
        spread = spread_of_products(q, k, real, options) if probe.with_spread else None
        probe.record(name, stats, real, sparsity, spread)

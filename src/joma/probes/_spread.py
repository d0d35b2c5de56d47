"""How far the logits of one call spread, through `joma.measure.spread`."""

from typing import Any

from torch import Tensor

from joma.measure.spread import SpreadSums, spread_sums

_SINKS = ("sinks", "sink_key", "sink_in_entropy")  # no keys, so that the spread over keys does not see them


def spread_of_products(q: Tensor, k: Tensor, real: Tensor | None, options: dict[str, Any]) -> SpreadSums:
    """Of queries and keys under `options` of `attention_stats`; real (batch, queries) is False for padded queries."""
    masks = {name: value for name, value in options.items() if name not in _SINKS}
    return spread_sums(q, k, query_padding=real, finite=False, **masks)

"""Attention that several processes have seen, each of its own rows or heads, as one table of numbers that add up.

Means become totals and counts of queries. A maximum does not add up: each share of the batch has a row of its own for
it. The spread of logits is sent as sums about a mean query of zero, which add up too, and is split about the real mean
query afterwards.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from joma.measure.attention import AttentionStats
from joma.measure.spread import SpreadSums
from joma.monitor.errors import MonitorError
from joma.monitor.inside import Round
from joma.probes import Probe

_FIELDS = AttentionStats._fields
_COUNT = len(_FIELDS)


class Seat(NamedTuple):
    """What one process has of one layer: its heads, and which part of all heads they are."""

    heads: int
    part: int
    queries: int
    width: int
    """Of a query, where the spread of logits is measured; else 0."""


class Layer(NamedTuple):
    """The heads of one attention on all processes, and which of them are here."""

    heads: int
    """Of all processes."""
    begin: int
    """Where those of this process begin."""
    here: int
    """How many this process has."""
    counts: bool
    """False: another process reads the same rows with the same heads."""
    queries: int
    width: int

    @classmethod
    def among(cls, seats: Mapping[int, Seat], rank: int) -> Self:
        """seats: of the processes that read the same rows, by rank. rank: this process."""
        mine = seats[rank]
        parts = {seat.part: seat.heads for seat in seats.values()}
        first = min(other for other, seat in seats.items() if seat.part == mine.part)
        begin = sum(heads for part, heads in parts.items() if part < mine.part)
        return cls(sum(parts.values()), begin, mine.heads, rank == first, mine.queries, mine.width)


def table_of(
    probe: Probe | Round, layers: Mapping[str, Layer], share: int, shares: int, device: torch.device
) -> Tensor:
    """(statistics + 1 + shares, heads of all layers): totals, counts of queries, largest logits. Zeros for others."""
    table = empty_table(layers, shares, device)
    means, counts = {field: probe.by_layer(field) for field in _FIELDS}, probe.counted()
    largest = probe.by_layer("largest_logit")
    _must_be_as_at_first(layers, counts)
    for (name, layer), columns in zip(layers.items(), _columns(layers), strict=True):
        if not layer.counts or name not in counts:  # a round of layers goes through those that are followed alone
            continue
        mine, count = table[:, columns][:, layer.begin : layer.begin + layer.here], counts[name].to(table)
        mean = torch.stack([means[field][name] for field in _FIELDS]).to(table)
        mine[:_COUNT] = torch.where(count > 0, mean * count, 0.0)
        mine[_COUNT] = count
        mine[_COUNT + 1 + share] = torch.where(count > 0, largest[name].to(table), -torch.inf)
    return table


def empty_table(layers: Mapping[str, Layer], shares: int, device: torch.device) -> Tensor:
    """The same of a process that has seen nothing."""
    heads = sum(layer.heads for layer in layers.values())
    return torch.zeros(_COUNT + 1 + shares, heads, dtype=torch.float64, device=device)


def spread_table(probe: Probe | Round | None, layers: Mapping[str, Layer], device: torch.device) -> Tensor:
    """Sums that the spread of logits follows from, of all layers in a row, zeros for heads that are elsewhere."""
    tables = []
    for name, layer in layers.items():
        table = torch.zeros(layer.heads, _numbers(layer.width), dtype=torch.float64, device=device)
        if probe is not None and layer.counts and name in probe.spread:
            table[layer.begin : layer.begin + layer.here] = _as_numbers(probe.spread[name]).to(table)
        tables.append(table.reshape(-1))
    return torch.cat(tables)


class SeenByAll:
    """What the probes of all processes saw together, in the form in which `Probe` gives it."""

    def __init__(
        self,
        layers: Mapping[str, Layer],
        table: Tensor,
        spread: Tensor | None,
        seen: Sequence[str],
        names: dict[nn.Module, str],
    ) -> None:
        """Not for callers."""
        self.names = names
        self.layers = list(seen)
        self.queries = {name: layers[name].queries for name in seen}
        self.spread = {} if spread is None else _spreads(layers, spread)
        columns = dict(zip(layers, _columns(layers), strict=True))
        self._tables = {name: table[:, columns[name]] for name in seen}

    def by_layer(self, measure: str = "entropy") -> dict[str, Tensor]:
        """Means over all queries, or the largest logit of all; NaN in a head without any query that counts."""
        if measure == "largest_logit":
            return {
                name: torch.where(each[_COUNT] > 0, each[_COUNT + 1 :].amax(0), torch.nan)
                for name, each in self._tables.items()
            }
        at = _FIELDS.index(measure)
        return {name: each[at] / each[_COUNT] for name, each in self._tables.items()}


def _columns(layers: Mapping[str, Layer]) -> Iterable[slice]:
    begin = 0
    for layer in layers.values():
        yield slice(begin, begin + layer.heads)
        begin += layer.heads


def _must_be_as_at_first(layers: Mapping[str, Layer], now: Mapping[str, Tensor]) -> None:
    for name, heads in now.items():
        if name not in layers or layers[name].here != len(heads):
            raise MonitorError(f"{name} has other heads than at first")


def _numbers(width: int) -> int:
    """Of one head: rows, own, added and logs, the sum of queries, what they pull, and the covariance."""
    return 4 + 2 * width + width**2


def _as_numbers(sums: SpreadSums) -> Tensor:
    """(heads, numbers), about a mean query of zero."""
    plain = sums.about(torch.zeros_like(sums.mean))
    singles = torch.stack([plain.rows, plain.own, plain.added, plain.logs], dim=-1)
    return torch.cat([singles, sums.rows[:, None] * sums.mean, plain.pulled, plain.outer.flatten(1)], dim=-1)


def _spreads(layers: Mapping[str, Layer], flat: Tensor) -> dict[str, SpreadSums]:
    sizes = [layer.heads * _numbers(layer.width) for layer in layers.values()]
    return {
        name: _as_sums(part.view(layer.heads, -1), layer.width)
        for (name, layer), part in zip(layers.items(), flat.split(sizes), strict=True)
    }


def _as_sums(table: Tensor, width: int) -> SpreadSums:
    singles, total, pulled, outer = table.split([4, width, width, width**2], dim=-1)
    rows, own, added, logs = singles.unbind(-1)
    mean = total / rows.clamp(min=1)[:, None]
    return SpreadSums(rows, torch.zeros_like(mean), outer.unflatten(1, (width, width)), pulled, own, added, logs).about(
        mean
    )

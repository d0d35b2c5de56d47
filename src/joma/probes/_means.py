"""Sums over queries of what attention calls gave, by layer: reduced for many layers at once.

A model makes one call per layer, and reducing each on its own takes a dozen small launches, which on a GPU cost the
host more than the pass itself. So calls wait here, as they are, until the pass ends, a layer comes a second time, or
too many numbers wait.
"""

from collections.abc import Iterable, Sequence
from threading import RLock
from typing import NamedTuple

import torch
from torch import Tensor

MOST = 1 << 23
"""Numbers that may wait: 32 MiB in float32."""


class _Call(NamedTuple):
    """One call: numbers, each (batch, heads, queries), and which queries (batch, queries) count; None: all."""

    name: str
    numbers: tuple[Tensor, ...]
    real: Tensor | None


class Sums(NamedTuple):
    """Of some layers: totals (layers, statistics, heads), counts and largest logits, each (layers, heads)."""

    total: Tensor
    counts: Tensor
    largest: Tensor

    def joined(self, other: "Sums") -> "Sums":
        """Of these calls and of those of `other`."""
        total, counts, largest = (each.to(self.total.device) for each in other)
        return Sums(self.total + total, self.counts + counts, torch.maximum(self.largest, largest))

    def layer(self, at: int) -> "Sums":
        return Sums(*(each[at : at + 1] for each in self))


class RunningMeans:
    """Means over queries and calls, by the name of the layer.

    largest: which of the numbers of a call is a query's largest logit; -inf there is a query that sees no key.
    """

    def __init__(self, *, largest: int) -> None:
        self._at = largest
        self._one_at_a_time = RLock()  # a model may spread its work over threads
        self._waiting: dict[str, _Call] = {}
        self._size = 0
        self._sums: dict[tuple[str, ...], Sums] = {}
        self._mean: dict[str, tuple[Tensor, ...]] | None = None
        self.names: dict[str, None] = {}
        """Layers that were called, in the order of their first call."""

    def add(self, name: str, numbers: Iterable[Tensor], real: Tensor | None) -> None:
        """One call of a layer: what is known of each of its queries; `real` is False for padded ones."""
        call = _Call(name, tuple(numbers), real)
        size = sum(each.numel() for each in call.numbers)
        with self._one_at_a_time:
            if name in self._waiting or self._size + size > MOST:
                self.reduce()
            self.names.setdefault(name)
            self._waiting[name], self._size, self._mean = call, self._size + size, None

    def mean(self) -> dict[str, tuple[Tensor, ...]]:
        """Of every layer its statistics, each (heads,); NaN in a head without any query that counts."""
        if self._mean is None:
            found: dict[str, tuple[Tensor, ...]] = {}
            for names, sums in self._merged().items():
                many = sums.total.shape[1]
                every = (sums.total / sums.counts[:, None]).flatten(0, 1).unbind()  # at once: each cut takes time
                found |= {name: every[at * many : (at + 1) * many] for at, name in enumerate(names)}
            self._mean = found
        return self._mean

    def largest(self, *, empty: float = -torch.inf) -> dict[str, Tensor]:
        """(heads,) of every layer: the largest logit; `empty` in a head without any query that counts."""
        found: dict[str, Tensor] = {}
        for names, sums in self._merged().items():
            each = sums.largest if empty == -torch.inf else torch.where(sums.counts > 0, sums.largest, empty)
            found |= dict(zip(names, each.unbind(), strict=True))
        return found

    def counted(self) -> dict[str, Tensor]:
        """(heads,) of every layer: how many queries count."""
        groups = self._merged().items()
        return {name: each for names, sums in groups for name, each in zip(names, sums.counts.unbind(), strict=True)}

    def _merged(self) -> dict[tuple[str, ...], Sums]:
        self.reduce()
        if sum(map(len, self._sums)) > len(self.names):
            single: dict[tuple[str, ...], Sums] = {}
            for names, sums in self._sums.items():
                for at, name in enumerate(names):
                    one = sums.layer(at)
                    single[name,] = single[name,].joined(one) if (name,) in single else one
            self._sums = single
        return self._sums

    def reduce(self) -> None:
        """Take in what waits: calls of one shape together."""
        with self._one_at_a_time:
            waiting, self._waiting, self._size = self._waiting, {}, 0
            groups: dict[object, list[_Call]] = {}
            for call in waiting.values():
                first, real = call.numbers[0], None if call.real is None else call.real.shape
                groups.setdefault((first.shape, first.device, len(call.numbers), real), []).append(call)
            for calls in groups.values():
                names, new = tuple(call.name for call in calls), self._summed(calls)
                self._sums[names] = self._sums[names].joined(new) if names in self._sums else new

    def _summed(self, calls: Sequence[_Call]) -> Sums:
        # (calls, statistics, batch, heads, queries)
        every = torch.stack([each for call in calls for each in call.numbers]).unflatten(0, (len(calls), -1))
        logits = every[:, self._at]
        counts = logits > -torch.inf
        if calls[0].real is not None:
            counts = counts & torch.stack([call.real for call in calls])[:, :, None]  # type: ignore[misc]
        # MPS has no float64; elsewhere a long text's mean is exact to the last digit shown.
        wide = torch.float32 if every.device.type == "mps" else torch.float64
        return Sums(
            torch.where(counts[:, None], every, 0.0).sum((2, 4), dtype=wide),
            counts.sum((1, 3), dtype=wide),
            torch.where(counts, logits, -torch.inf).amax((1, 3)),
        )

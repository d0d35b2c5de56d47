"""Why logits grew: because the weights did, or because the inputs aligned with them.

The spread of logits s2 is the size of the weights times what the inputs make of it (`joma.monitor.growth`). So the
change of ln s2 has two parts, and a cause is named where one of them is at least two thirds of the whole.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from joma.monitor.alert import Alert
from joma.monitor.growth import GROWTH, NORMS
from joma.monitor.tables import Table, Tables

_VARIANCE = "spread/variance"
_SPEAK_OF_LOGITS = ("entropy", "effective_keys", "largest_logit")
_HALF_AS_LARGE = 4.0  # in the variance: logits half as large as now
_LEAST_RISE = 1.5  # below that nothing happened that would have a cause
_MOST_OF_IT = 2 / 3  # our choice
_KEPT = 64  # measurings


class _Point(NamedTuple):
    step: int
    variance: np.ndarray
    size: np.ndarray


class Causes:
    """Remembers the spread of logits, and names the cause of an alarm where that tells.

    Now is compared with the latest measuring at which logits were half as large; where there is none, with the first.
    """

    def __init__(self) -> None:
        self._past: list[_Point] = []
        self._rows: Table | None = None

    def see(self, step: int, tables: Tables) -> None:
        """One measuring, in order; there is something to remember where the spread was measured."""
        size = tables.get(GROWTH) or tables.get(NORMS)
        if (variance := tables.get(_VARIANCE)) is None or size is None:
            return
        if len(self._past) >= _KEPT:  # of older ones every second
            self._past = self._past[: _KEPT // 2 : 2] + self._past[_KEPT // 2 :]
        self._past.append(_Point(step, variance.values, size.values))
        self._rows = variance

    def of(self, alert: Alert) -> str | None:
        """What the logits of the alert's head owe their size to; None where that cannot be told."""
        if alert.measure not in _SPEAK_OF_LOGITS or self._rows is None or alert.head is None:
            return None
        if alert.layer not in self._rows.rows.names:
            return None
        at = self._rows.rows.names.index(alert.layer), alert.head
        *past, now = self._past
        smaller = [point for point in past if point.variance[at] * _HALF_AS_LARGE <= now.variance[at]]
        if not past:
            return None
        return _told(smaller[-1] if smaller else past[0], now, at)


def _told(then: _Point, now: _Point, at: tuple[int, int]) -> str | None:
    with np.errstate(divide="ignore", invalid="ignore"):
        whole, weights = now.variance[at] / then.variance[at], now.size[at] / then.size[at]
        share = np.log(weights) / np.log(whole)
    if not (np.isfinite([whole, share]).all() and whole >= _LEAST_RISE):
        return None
    since = f"the variance of its logits rose {whole:.3g} times since step {then.step}"
    if share >= _MOST_OF_IT:
        return f"the weights grew ({since}, their size {weights:.3g} times); QK-clip and QK-norm bound them"
    if share <= 1 - _MOST_OF_IT:
        return f"the inputs aligned with the weights ({since}, the weights' size {weights:.3g} times)"
    return None

"""What an alarm found, as an object and as a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from joma.host.words import brief

MOST_LINES = 5
"""Alarms of one step that are told one by one; the rest is counted: 1,600 heads may fail at one step."""


@dataclass(frozen=True)
class Alert:
    """What an alarm found: one number beyond its limit.

    - step: of the measuring
    - measure: the series
    - layer: the attention module or the matrix; head: its head, None for a matrix
    - value: what was measured; limit: what it is compared with
    - why: the comparison in words, as "above its limit"
    - slope: how fast the number changes, per step; None where that is not followed
    - cause: why, where the spread of logits tells; None where it does not or was not measured

    >>> str(Alert(300, "largest_logit", "h.0.attn", 2, 131.2, 100.0, "above its limit"))
    'step 300: largest_logit of h.0.attn, head 2, is 131.2, above its limit 100'
    >>> str(Alert(300, "norm", "up", None, 3.0, 2.0, "above its limit", slope=0.25, cause="somebody doubled it"))
    'step 300: norm of up is 3, above its limit 2, rising by 0.25 per step: somebody doubled it'
    """

    step: int
    measure: str
    layer: str
    head: int | None
    value: float
    limit: float
    why: str
    slope: float | None = None
    cause: str | None = None

    def __str__(self) -> str:
        head = "" if self.head is None else f", head {self.head},"
        cause = f": {self.cause}" if self.cause else ""
        return (
            f"step {self.step}: {self.measure} of {self.layer}{head} is {self.value:.4g}, {self.why} {self.limit:.4g}"
            f"{self._moving}{cause}"
        )

    @property
    def _moving(self) -> str:
        if not self.slope or not isfinite(self.slope):  # one of the measurings before was NaN
            return ""
        return f", {'rising' if self.slope > 0 else 'falling'} by {abs(self.slope):.3g} per step"

    __repr__ = brief


def few_sentences(alerts: Sequence[Alert]) -> list[str]:
    """One sentence for each of the first alerts of a step, and one that counts the others.

    >>> few_sentences([Alert(3, "norm", "up", None, 3.0, 2.0, "above its limit")] * 7)[-2:]
    ['step 3: norm of up is 3, above its limit 2', 'step 3: 2 more alarms']
    """
    more = len(alerts) - MOST_LINES
    return [*map(str, alerts[:MOST_LINES]), *([f"step {alerts[0].step}: {more} more alarms"] if more > 0 else [])]

"""Progress as lines, for a log or a pipe: where no terminal draws a bar, silence would look like a hang."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic


class ProgressLines:
    """What a study calls with its share and its words: at most one line in so many seconds, the first after as many.

    >>> told = ProgressLines("fig6", print, every=0.0)
    >>> told(0.25, "L1: step 100 of 400")
    fig6  25%     0 s  L1: step 100 of 400
    """

    def __init__(self, name: str, say: Callable[[str], object], *, every: float) -> None:
        self.name, self.say, self.every = name, say, every
        self.began = self.last = monotonic()

    def __call__(self, share: float, doing: str) -> None:
        now = monotonic()
        if now - self.last >= self.every:
            self.last = now
            self.say(f"{self.name} {share:4.0%} {now - self.began:5.0f} s  {doing}")

"""Progress: what long work calls, and lines of it for a log or a pipe, where silence would look like a hang."""

from collections.abc import Callable
from time import monotonic

Progress = Callable[[float, str], None]
"""Hears the share done (0 to 1) and a few words on what comes next. The words are for people: nothing reads them."""


def silent(share: float, doing: str) -> None:
    """A `Progress` that nobody watches."""


class ProgressLines:
    """What a study calls with its share and its words: at most one line in so many seconds, the first after as many.

    >>> progress = ProgressLines("fig6", print, every=0.0)
    >>> progress(0.25, "L1: step 100 of 400")
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

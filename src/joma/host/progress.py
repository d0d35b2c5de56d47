"""Progress: what long work calls, and lines of it for a log or a pipe, where silence would look like a hang."""

from collections.abc import Callable
from math import inf
from time import monotonic

Progress = Callable[[float, str], None]
"""Hears the share done (0 to 1) and a few words on what comes next. The words are for people: nothing reads them."""


def silent(share: float, doing: str) -> None:
    """A `Progress` that nobody watches."""


class NowAndThen:
    """A `Progress` that passes on at most one word in so many seconds.

    >>> words = NowAndThen(print, every=60.0)
    >>> words(0.1, "this"), words(0.2, "not this")
    0.1 this
    (None, None)
    """

    def __init__(self, to: Callable[[float, str], object], *, every: float, last: float = -inf) -> None:
        """to: who hears it. every: seconds. last: when there was a word before this."""
        self.to, self.every, self.last = to, every, last

    def __call__(self, share: float, doing: str) -> None:
        now = monotonic()
        if now - self.last >= self.every:
            self.last = now
            self.to(share, doing)


class ProgressLines(NowAndThen):
    """What a study calls with its share and its words: at most one line in so many seconds, the first after as many."""

    def __init__(self, name: str, say: Callable[[str], object], *, every: float) -> None:
        began = monotonic()
        line = lambda share, doing: say(f"{name} {share:4.0%} {self.last - began:5.0f} s  {doing}")
        super().__init__(line, every=every, last=began)

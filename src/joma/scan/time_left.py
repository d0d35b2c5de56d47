"""How long a sweep still takes, from how long it took so far."""

from __future__ import annotations

from time import monotonic


class TimeLeft:
    """Counts steps, and says after each how much time is left.

    >>> left = TimeLeft(2)
    >>> left.after(False), left.after(True)
    ('', '')
    """

    def __init__(self, total: int) -> None:
        """total: how many steps there are."""
        self.total, self.done = total, 0
        self._worked, self._began = 0, monotonic()

    def after(self, worked: bool) -> str:
        """Words for the end of a line. worked: whether this step took any work; those that did tell the pace."""
        self.done += 1
        self._worked += worked
        ahead = self.total - self.done
        if not ahead or not self._worked:
            return ""
        return f"; {said((monotonic() - self._began) / self._worked * ahead)} left"


def said(seconds: float) -> str:
    """A time as people say it.

    >>> said(0.2), said(41.3), said(200), said(7500)
    ('1 s', '41 s', '3 min', '2 h 5 min')
    """
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"

"""How long studies will still take: by what each took once, on another machine, and by the speed of this one."""

from collections.abc import Mapping

JUDGING = 0.3
"""Seconds that judging and drawing a study takes at least."""
LOADING = 3.0
"""Seconds in which a process loads its libraries, before its first study."""
TRUST = 12.0
"""Seconds of work that speak for a machine as fast as that of the kept records. Like `JUDGING` it was chosen on the
recorded studies of the tests.
"""


class TimeLeft:
    """An estimate that hears what studies do. It is told the time and looks at no clock."""

    def __init__(self, seconds: Mapping[str, float], *, jobs: int) -> None:
        """seconds: what every study takes, in the order in which they are begun. jobs: how many at a time."""
        self._takes, self._jobs = dict(seconds), max(1, jobs)
        self._shares = dict.fromkeys(seconds, 0.0)
        self._begun, self._ended = set[str](), set[str]()
        self._last = self._used = 0.0

    def heard(self, study: str, share: float, at: float) -> None:
        """A study has come so far; at: seconds since all began."""
        self._spend(at)
        self._begun.add(study)
        self._shares[study] = share

    def finished(self, study: str, at: float, *, cached: bool = False) -> None:
        """A study is done. cached: its run was there already, so that it was only judged."""
        self._spend(at)
        self._begun.add(study)
        self._ended.add(study)
        if cached:
            self._takes[study] = 0.0

    def seconds(self, at: float) -> float:
        self._spend(at)
        slower = (TRUST + self._used) / (TRUST + self._done())
        loads = [self._left(study) for study in self._begun - self._ended]
        loads += [LOADING] * (min(self._jobs, len(self._takes)) - len(loads) if not self._ended else 0)
        loads = sorted(loads, reverse=True)[: self._jobs] + [0.0] * (self._jobs - len(loads))
        for study in self._takes:  # each is begun by the process that is free first
            if study not in self._begun:
                loads[loads.index(min(loads))] += self._left(study)
        return slower * max(loads)

    def _spend(self, at: float) -> None:
        working = min(self._jobs, len(self._takes) - len(self._ended))
        self._used += working * max(0.0, at - self._last)
        self._last = max(at, self._last)

    def _left(self, study: str) -> float:
        return (1 - self._shares[study]) * self._takes[study] + JUDGING

    def _done(self) -> float:
        ended = sum(self._takes[study] + JUDGING for study in self._ended)
        loaded = LOADING * min(self._jobs, len(self._begun))
        return loaded + ended + sum(self._shares[one] * self._takes[one] for one in self._begun - self._ended)

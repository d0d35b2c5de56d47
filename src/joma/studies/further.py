"""What to run next where minutes are left: more seeds of studies whose undecided claims are the cheapest to decide.

A study is repeated with seeds of its own, none of which it had before: a claim that was left undecided is judged by
them alone, so that nobody looks at the same numbers until they please. From the result follows what would decide the
rest. So rounds that are recorded are found again, and the same command goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from joma.claims.execute import Result


@dataclass(frozen=True)
class Further:
    """A study, the seeds that it would be repeated with, and what that would bring.

    >>> Further("table1", 6, 24, 31.2, 3).changes
    {'seed': 6, 'seeds': 24}
    """

    study: str
    seed: int  # the first one
    seeds: int
    seconds: float  # what it takes, by what each seed took before
    decides: int  # claims that would probably be decided

    @property
    def changes(self) -> dict[str, int]:
        return {"seed": self.seed, "seeds": self.seeds}


def further(result: Result) -> list[Further]:
    """Ways to go on with a study, from few seeds to many; none where its claims are decided or seeds are no option."""
    had, first = (result.config.get(name) for name in ("seeds", "seed"))
    if not isinstance(had, int) or not isinstance(first, int) or result.run is None:
        return []
    needed = [
        max(had + 1, ceil(had * one.seeds_to_decide / one.main.seeds))  # of some networks only a part is judged
        for one in result.findings
        if one.seeds_to_decide and one.main and one.main.seeds
    ]
    return [
        Further(result.study.name, first + had, seeds, result.seconds * seeds / had, sum(n <= seeds for n in needed))
        for seeds in sorted(set(needed))
    ]


def chosen(
    results: Sequence[Result], seconds: float, jobs: int, *, recorded: Callable[[Further], bool] = lambda one: False
) -> list[Further]:
    """The ways to go on that decide most claims per second and end in time, `jobs` of them side by side."""
    ways = [(one, 0.0 if recorded(one) else one.seconds) for result in results for one in further(result)]
    loads, taken = [0.0] * jobs, dict[str, Further]()
    for one, takes in sorted(ways, key=lambda way: way[1] / way[0].decides):
        place = loads.index(min(loads))
        if one.study not in taken and loads[place] + takes <= seconds:
            loads[place] += takes
            taken[one.study] = one
    return list(taken.values())

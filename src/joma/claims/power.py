"""Before a run: with so many seeds, how likely is each verdict, and how many seeds would decide?

Verdicts are those of `joma.claims.rules`, given to seeds that are drawn: Gaussian, from a truth that is supposed. So
no formula stands beside the rules that could differ from them; a chance is right to its two standard errors. The number
of seeds is that of findings (`joma.measure.intervals.seeds_to_decide`), which is worked out exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, sqrt

import numpy as np

from joma.claims.evidence import Effect
from joma.claims.rules import VERDICTS, Verdict, of_effect
from joma.host.numbers import integer, number
from joma.measure.intervals import ASSURANCE, Comparison, compare, seeds_to_decide, t_quantile

DRAWS = 2000
_MANY = 10**5  # seeds, of which the interval tells the standard deviation


@dataclass(frozen=True)
class Power:
    """How often each verdict comes out with so many seeds, were the truth a given difference."""

    seeds: int
    difference: float
    """The true one."""
    chances: Mapping[Verdict, float]
    """Of verdicts that came out at all, in their order."""
    firm: float
    """The chance of a verdict that is decided and not fragile for its few seeds or its p."""
    draws: int = DRAWS

    @property
    def decided(self) -> float:
        """The chance of any verdict but undecided."""
        return 1 - self.chances.get("undecided", 0.0)

    @property
    def error(self) -> float:
        """Two standard errors of `decided`, from the number of draws."""
        return 2 * sqrt(self.decided * (1 - self.decided) / self.draws)


def power(
    matters: float, sd: float, seeds: int, *, difference: float = 0.0, paired: bool = True, draws: int = DRAWS,
    seed: int = 0,
) -> Power:  # fmt: skip
    """How likely each verdict is, by the rules themselves on seeds that are drawn.

    - matters: the smallest difference that would matter
    - sd: the standard deviation over seeds, of effect - control where they are paired, else of each
    - seeds: of each arm; difference: the truth, effect - control. With 0 every "holds" is an error
    - paired: whether both arms have the same seeds
    - draws: how many experiments are drawn, from the stream of `seed`

    >>> found = power(0.05, 0.03, 5, difference=0.1)
    >>> round(found.decided, 1), round(power(0.05, 0.03, 5).chances.get("holds", 0.0), 2)
    (1.0, 0.0)
    """
    matters, sd = number(matters, "matters", above=0.0), number(sd, "sd", above=0.0)
    difference, seeds = number(difference, "difference"), integer(seeds, "seeds", 1)
    shape = (integer(draws, "draws", 1), 1 if paired else 2, seeds)
    drawn = sd * np.random.default_rng(seed).standard_normal(shape)
    found, firm = Counter[Verdict](), 0
    for rows in drawn:
        control = 0.0 if paired else rows[1]
        effect = Effect.of(compare(rows[0] + difference, control, paired=paired), matters=matters)
        verdict = of_effect(effect)
        found[verdict] += 1
        firm += verdict != "undecided" and (effect.firm or verdict == "not above its control")
    chances = {verdict: found[verdict] / draws for verdict in VERDICTS if found[verdict]}
    return Power(seeds, difference, chances, firm / draws, draws)


def seeds_needed(
    matters: float, sd: float, *, difference: float = 0.0, paired: bool = True, assurance: float = ASSURANCE
) -> int | None:
    """How many seeds decide with probability `assurance`; None where it would take more than a million.

    The arguments are those of `power`. For arms with other seeds, whose degrees of freedom vary, the exact number is
    raised until the draws of `power` agree.

    >>> seeds_needed(0.05, 0.03), seeds_needed(0.05, 0.03, difference=0.1)
    (5, 5)
    """
    matters, sd = number(matters, "matters", above=0.0), number(sd, "sd", above=0.0)
    if not 0 < number(assurance, "assurance") < 1:
        raise ValueError(f"assurance must lie between 0 and 1, got {assurance}")
    arms = 1 if paired else 2
    freedom = arms * (_MANY - 1)
    half = t_quantile(0.95, freedom) * sd * sqrt(arms / _MANY)
    found = seeds_to_decide(number(difference, "difference"), half, _MANY, (0.0, matters), freedom=freedom,
                            assurance=assurance)  # fmt: skip
    while not paired and found and power(matters, sd, found, difference=difference, paired=False).decided < assurance:
        found += 1 + found // 20
    return found


def spread_of(found: Comparison) -> float:
    """The standard deviation over seeds of a pilot, as `power` takes it. Failed seeds are left out.

    >>> round(spread_of(compare([0.5, 0.6, 0.7], [0.1, 0.1, 0.1])), 3)
    0.1
    """
    first, second = (np.array([one for one in row if isfinite(one)]) for row in found.numbers)
    if found.paired:
        pairs = np.array(found.numbers[0]) - np.array(found.numbers[1])
        return float(pairs[np.isfinite(pairs)].std(ddof=1))
    return sqrt((first.var(ddof=1) + second.var(ddof=1)) / 2)

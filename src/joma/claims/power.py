"""Before a run: with so many seeds, how likely is each verdict, and how many seeds would decide?

Verdicts are those of `joma.claims.rules`, given to seeds that are drawn around a truth that is supposed: Gaussian, or
by another of `LAWS`. With a truth of 0 their chances are the error rates of the rules. So no formula stands beside the
rules that could differ from them; a chance is right to its two standard errors. The number of seeds is that of findings
(`joma.measure.intervals.seeds_to_decide`), which is worked out exactly, for Gaussian seeds.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite, sqrt

import numpy as np

from joma.claims.evidence import Effect, Evidence
from joma.claims.rules import VERDICTS, Verdict, is_fragile, of_effect
from joma.host.numbers import integer, number
from joma.host.words import did_you_mean
from joma.measure.intervals import ASSURANCE, Comparison, compare, seeds_to_decide, t_quantile

DRAWS = 2000
Law = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
LAWS: dict[str, Law] = {
    "Gaussian": lambda draw, shape: draw.standard_normal(shape),
    "tail upwards (exponential)": lambda draw, shape: draw.exponential(size=shape) - 1,
    "tail downwards (exponential)": lambda draw, shape: 1 - draw.exponential(size=shape),
    "tail upwards (lognormal)": lambda draw, shape: draw.lognormal(size=shape) - np.exp(0.5),
    "tail downwards (lognormal)": lambda draw, shape: np.exp(0.5) - draw.lognormal(size=shape),
    "heavy tails (t, 3 degrees)": lambda draw, shape: draw.standard_t(3, size=shape),
    "a fifth collapse": lambda draw, shape: np.where(draw.random(shape) < 0.2, -4, 1) + draw.normal(0, 0.05, shape),
}
"""What seeds may be like; the mean of each law is zero."""
_MANY = 10**5  # seeds, of which the interval tells the standard deviation


@dataclass(frozen=True)
class Power:
    """How often each verdict comes out with so many seeds, were the truth a given difference."""

    seeds: int
    difference: float
    """The true one."""
    chances: Mapping[Verdict, float]
    """Of verdicts that came out at all, in their order."""
    not_fragile: Mapping[Verdict, float]
    """The same, of decided ones alone that are not fragile."""
    draws: int = DRAWS

    @property
    def firm(self) -> float:
        """The chance of a verdict that is decided and not fragile."""
        return sum(self.not_fragile.values())

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
    seed: int = 0, law: str | Law = "Gaussian",
) -> Power:  # fmt: skip
    """How likely each verdict is, by the rules themselves on seeds that are drawn.

    - matters: the smallest difference that would matter
    - sd: the standard deviation over seeds, of effect - control where they are paired, else of each
    - seeds: of each arm; difference: the truth, effect - control. With 0 every "holds" is an error
    - paired: whether both arms have the same seeds
    - draws: how many experiments are drawn, from the stream of `seed`
    - law: of the seeds, one of `LAWS` or a function of generator and shape; what it gives is multiplied by sd

    >>> found = power(0.05, 0.03, 5, difference=0.1)
    >>> round(found.decided, 1), round(power(0.05, 0.03, 5).chances.get("holds", 0.0), 2)
    (1.0, 0.0)
    >>> power(0.01, 1.0, 5, law="tail downwards (exponential)", draws=500).not_fragile["holds"] < 0.04
    True
    """
    matters, sd = number(matters, "matters", above=0.0), number(sd, "sd", above=0.0)
    difference, seeds = number(difference, "difference"), integer(seeds, "seeds", 1)
    shape = (integer(draws, "draws", 1), 1 if paired else 2, seeds)
    found, firm = Counter[Verdict](), Counter[Verdict]()
    for effect in _effects(matters, difference, sd * _law(law)(np.random.default_rng(seed), shape)):
        verdict = of_effect(effect)
        found[verdict] += 1
        firm[verdict] += verdict != "undecided" and not is_fragile(Evidence({"": effect}))
    chances, not_fragile = (
        {verdict: several[verdict] / draws for verdict in VERDICTS if several[verdict]} for several in (found, firm)
    )
    return Power(seeds, difference, chances, not_fragile, draws)


def _effects(matters: float, difference: float, drawn: np.ndarray) -> Iterator[Effect]:
    paired = drawn.shape[1] == 1
    for rows in drawn:
        found = compare(rows[0] + difference, 0.0 if paired else rows[1], paired=paired)
        yield Effect.of(found, matters=matters)


def _law(law: str | Law) -> Law:
    if not isinstance(law, str):
        return law
    if law not in LAWS:
        raise ValueError(f"law must be one of {', '.join(LAWS)}, got {law!r}; {did_you_mean(law, LAWS)}".rstrip("; "))
    return LAWS[law]


def seeds_needed(
    matters: float, sd: float, *, difference: float = 0.0, paired: bool = True, assurance: float = ASSURANCE
) -> int | None:
    """How many seeds decide with probability `assurance`; None where it would take more than a million.

    The arguments are those of `power`. For arms with other seeds, whose degrees of freedom vary, the exact number is
    raised until draws as those of `power` agree.

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
    while not paired and found:
        drawn = sd * np.random.default_rng(0).standard_normal((DRAWS, 2, found))
        if np.mean([of_effect(one) != "undecided" for one in _effects(matters, difference, drawn)]) >= assurance:
            break
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

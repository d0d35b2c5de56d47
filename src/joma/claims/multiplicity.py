"""Many claims judged at once: which verdicts chance alone may have given.

Of 195 claims without any effect, intervals of 95 % would call about ten an effect. `q_values` says for every claim how
large the share of such mistakes is among all claims that speak as clearly against chance (Benjamini and Hochberg).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from joma.claims.finding import Finding


def q_values(p: Mapping[str, float]) -> dict[str, float]:
    """For every name the smallest rate of false discoveries at which it would be called a discovery.

    >>> {name: round(q, 3) for name, q in q_values({"a": 0.01, "b": 0.04, "c": 0.03}).items()}
    {'a': 0.03, 'b': 0.04, 'c': 0.04}
    """
    names = sorted(p, key=lambda name: p[name], reverse=True)
    found: dict[str, float] = {}
    smallest = 1.0
    for at, name in enumerate(names):
        smallest = min(smallest, p[name] * len(names) / (len(names) - at))
        found[name] = smallest
    return {name: found[name] for name in p}


def judged_together(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, each empirical one that was judged with its q among all of these."""
    p = {finding.id: finding.p for finding in findings}
    q = q_values({id: value for id, value in p.items() if value is not None})
    return [replace(finding, q=q.get(finding.id)) for finding in findings]

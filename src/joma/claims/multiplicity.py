"""Many claims judged at once: which verdicts chance alone may have given.

Of 195 claims without any effect, intervals of 95 % would call about ten an effect. `q_values` says for every claim how
large the share of such mistakes is among all claims that speak as clearly against chance (Benjamini and Hochberg).
Claims that were measured against the very same control are no independent witnesses: `judged_together` tells them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from joma.claims.finding import Finding

Control = tuple[str, float, float, float]
"""Study, mean and interval: equal to the last digit, it is one measurement."""


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
    """The findings, each empirical one with its q among all of these, and with those that share its control."""
    p = {finding.id: finding.p for finding in findings}
    q = q_values({id: value for id, value in p.items() if value is not None})
    users: dict[Control, set[str]] = {}
    for finding in findings:
        for control in _measured_controls(finding):
            users.setdefault(control, set()).add(finding.id)
    return [replace(finding, q=q.get(finding.id), shares=_others(finding, users)) for finding in findings]


def _measured_controls(finding: Finding) -> set[Control]:
    effects = [one for form in (finding.printed, finding.corrected) if form for one in form.effects.values()]
    return {(finding.study, one.control_effect, *one.control_interval) for one in effects
            if one.control_interval[0] < one.control_interval[1]}  # fmt: skip


def _others(finding: Finding, users: Mapping[Control, set[str]]) -> tuple[str, ...]:
    shared = set().union(*(users[control] for control in _measured_controls(finding)))
    return tuple(sorted(shared - {finding.id}))

"""What is kept of runs at paper scale: it travels with the package, so that a quick report and `joma show` can show it.

`results/keep.py` writes kept.json from the records under results/; a test holds the two together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from joma.claims.contract import Claim, Verdict
from joma.claims.evidence import number
from joma.claims.finding import Provenance


@dataclass(frozen=True)
class Kept:
    """The verdict on a claim at paper scale, what was measured, and of an empirical claim the effect that decides.

    >>> Kept("holds", "0.5", "one GPU", "1f2e", "0.5 nats [0.4, 0.6]; control 0 nats").effect is None
    True
    """

    verdict: Verdict
    measured: float | str
    machine: str
    claim_sha256: str
    brief: str = ""
    effect: float | None = None
    interval: tuple[float, float] | None = None
    control_effect: float | None = None
    unit: str = ""
    seeds: int | None = None
    what: str = ""
    """The name of a quantity with limits, such as a probability."""
    expected: str = ""
    control: str | None = None
    tolerance: float | None = None
    command: str = ""
    provenance: Provenance = field(default_factory=Provenance)


@cache
def kept() -> Mapping[str, Kept]:
    """By the finding's id; only claims whose study is kept at paper scale.

    >>> kept()["fig6/fig6-deeper-is-better"].verdict in ("holds", "only qualitative", "undecided")
    True
    """
    content = json.loads(files("joma.report").joinpath("kept.json").read_text(encoding="utf-8"))
    return {
        name: _read(entry, content["studies"][name.partition("/")[0]]) for name, entry in content["findings"].items()
    }


def kept_of(name: str, claim: Claim) -> Kept | None:
    """What is kept on a claim; None if nothing is, or if the claim's sentence has changed since.

    >>> kept_of("thm2/who-wins", Claim("who-wins", "JoMA Thm 2", "The winner is the token with the largest |Δ|."))
    """
    found = kept().get(name)
    return found if found is not None and found.claim_sha256 == claim.sha256 else None


def _read(entry: dict[str, Any], study: dict[str, Any]) -> Kept:
    """JSON writes a number that is not finite as a word. study: what all findings of a record have in common."""
    origin = Provenance(**{name: value for name, value in study.items() if name != "command"})
    entry = {"command": study["command"], **entry, "machine": origin.machine, "provenance": origin}
    if "effect" not in entry:
        return Kept(**entry)
    low, high = map(number, entry["interval"])
    effect, control = number(entry["effect"]), number(entry["control_effect"])
    return Kept(**entry | {"effect": effect, "interval": (low, high), "control_effect": control})

"""What was found at paper scale: it travels with the package, so that a quick report and `joma show` can show it.

`results/keep.py` writes kept.json from the records under results/; a test holds the two together.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Self

from joma.claims.contract import Claim, Verdict
from joma.claims.evidence import Effect, plain
from joma.claims.finding import Provenance

_NUMBERS = ("effect", "interval", "control_effect", "control_interval", "difference", "difference_interval")


@dataclass(frozen=True)
class KeptFinding:
    """A finding of paper scale without its evidence: what readers ask of a `Finding`, under the same names."""

    id: str
    claim: Claim
    verdict: Verdict
    measured: float | str
    brief: str = ""
    main: Effect | None = None
    """Of an empirical claim, the effect that decides."""
    expected: str = ""
    control: str | None = None
    tolerance: float | None = None
    command: str = ""
    provenance: Provenance = field(default_factory=Provenance)
    remarks: Sequence[str] = ()
    q: float | None = None
    shares: Sequence[str] = ()

    @property
    def full_verdict(self) -> str:
        """The verdict with its remarks, as that of a `Finding`."""
        return f"{self.verdict} ({', '.join(self.remarks)})" if self.remarks else self.verdict

    @classmethod
    def from_json(cls, id: str, claim: Claim, data: Mapping[str, Any]) -> Self:
        """What kept.json holds on a claim."""
        unknown = {"what": "", "unit": "", "ceiling": claim.ceiling, "level": 0.95}
        main = None
        if "effect" in data and claim.matters is not None:
            main = Effect.from_json({**unknown, "matters": claim.matters, **data})
        names = ("verdict", "measured", "brief", "expected", "control", "tolerance", "command", "provenance",
                 "remarks", "q")  # fmt: skip
        given = {name: data[name] for name in names if name in data}
        return cls(id, claim, main=main, shares=data.get("shares_control", ()), **given)

    def as_json(self) -> dict[str, Any]:
        """As a finding in findings.json, without its cases and its evidence."""
        claim, numbers = self.claim, {} if self.main is None else self.main.as_json()
        return {
            "id": self.id,
            "claim": claim.name,
            **{name: getattr(claim, name) for name in ("source", "says", "corrected", "empirical", "uses")},
            "expected": self.expected,
            "verdict": self.verdict,
            "remarks": list(self.remarks),
            "q": self.q,
            "measured": plain(self.measured) if isinstance(self.measured, float) else self.measured,
            "control": self.control,
            "shares_control": list(self.shares),
            **{name: numbers.get(name) for name in _NUMBERS},
            "unit": numbers.get("unit", claim.unit),
            "seeds": numbers.get("seeds"),
            "level": numbers.get("level"),
            "tolerance": self.tolerance,
            "command": self.command,
            "provenance": {"claim_sha256": claim.sha256, **self.provenance.as_json()},
        }


@cache
def kept() -> Mapping[str, Mapping[str, Any]]:
    """kept.json by the finding's id, with what all findings of a record have in common; only of kept studies."""
    content = json.loads(files(__package__).joinpath("kept.json").read_text(encoding="utf-8"))
    studies = {of: {"command": one.pop("command"), "provenance": Provenance(**one)}
               for of, one in content["studies"].items()}  # fmt: skip
    return {id: {**studies[id.partition("/")[0]], **data} for id, data in content["findings"].items()}


def kept_of(id: str, claim: Claim) -> KeptFinding | None:
    """What is kept on a claim; None if nothing is, or if the claim's sentence has changed since."""
    data = kept().get(id)
    return KeptFinding.from_json(id, claim, data) if data and data["claim_sha256"] == claim.sha256 else None

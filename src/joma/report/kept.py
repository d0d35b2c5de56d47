"""What is kept of runs at paper scale: their verdicts travel with the package, so that a quick report can show both.

`results/keep.py` writes kept.json from the records under results/; a test holds the two together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from joma.claims.contract import Claim, Verdict


@dataclass(frozen=True)
class Kept:
    """The verdict on a claim at paper scale, and what was measured, in words."""

    verdict: Verdict
    measured: str
    machine: str
    claim_sha256: str


@cache
def kept() -> Mapping[str, Kept]:
    """By the finding's id; only claims whose study is kept at paper scale.

    >>> kept()["fig6/fig6-deeper-is-better"].verdict in ("holds", "only qualitative", "undecided")
    True
    """
    text = files("joma.report").joinpath("kept.json").read_text(encoding="utf-8")
    return {name: Kept(**entry) for name, entry in json.loads(text)["findings"].items()}


def kept_of(name: str, claim: Claim) -> Kept | None:
    """What is kept on a claim; None if nothing is, or if the claim's sentence has changed since."""
    found = kept().get(name)
    return found if found is not None and found.claim_sha256 == claim.sha256 else None

"""The ledger as a page shows it: each claim with what this folder found and what is kept at paper scale."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from joma.host.errors import BadInput

Kept = Callable[[str, Any], Any]
"""From the id of a claim and the claim to what is kept on it at paper scale; None where nothing is."""
_OF_A_CLAIM = ("id", "source", "says", "corrected", "uses", "expected")
_PAPER = " paper"  # of the command that repeats a finding at paper scale


def ledgers_in(folder: Path) -> list[Path]:
    """The findings of a folder that `joma verify` wrote, or of a folder of kept records."""
    own = folder / "findings.json"
    return [own] if own.is_file() else sorted(folder.glob("*/findings.json"))


def claims_in(folder: Path, kept: Kept | None = None) -> list[dict[str, Any]]:
    """Every claim of a folder, with `quick` and `paper`: what was found at that size, None where nothing was.

    A ledger that cannot be read is one entry with a `fault`.
    """
    from joma.claims.ledger import read_findings  # torch loads here
    from joma.claims.rules import UNJUDGED
    from joma.runs import RunError
    from joma.runs.following import must_stay_in

    found: list[dict[str, Any]] = []
    for path in ledgers_in(folder):
        try:
            must_stay_in(path, folder)
            findings = read_findings(path)
            paper = {one.study for one in findings if one.verdict not in UNJUDGED and _PAPER in one.command}
            found += [claim_of(one, "paper" if one.study in paper else "quick", kept) for one in findings]
        except (BadInput, RunError) as error:
            found.append({"id": path.parent.name, "fault": str(error)})
    return found


def claim_of(finding: Any, size: str, kept: Kept | None = None) -> dict[str, Any]:
    """One claim. size: of its study; the command of a claim that was not run says what would run it, maybe a larger."""
    whole = finding.as_json()
    shown = _shown(finding, whole)
    paper = kept(finding.id, finding.claim) if kept and size == "quick" else None
    beside = {"quick": None, "paper": None if paper is None else _shown(paper, paper.as_json())}
    return {**{key: whole[key] for key in _OF_A_CLAIM}, "study": finding.study, **beside, size: shown}


def _shown(finding: Any, whole: dict[str, Any]) -> dict[str, Any]:
    numbers = {key: whole.get(key) for key in ("verdict", "measured", "control", "tolerance", "command")}
    return {**numbers, "told": finding.full_verdict, "brief": finding.brief, "machine": finding.provenance.machine,
            "created": finding.provenance.created}  # fmt: skip

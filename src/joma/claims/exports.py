"""Findings in other people's formats: Croissant for the table of claims, and a draft of FORRT's chain for one claim.

Croissant 1.0 (https://docs.mlcommons.org/croissant/docs/croissant-spec.html) says in JSON-LD which file has which
columns. FORRT's chain is Quote -> AIDA sentence -> Claim -> Study -> Outcome -> Citation, each a nanopublication;
https://github.com/ScienceLiveHub/forrt-replication-template (docs/chain-draft-contract.md) is the draft of it that
their forms read. A draft has what joma knows: a person quotes the paper, checks the values and publishes.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from joma.claims.finding import Finding
from joma.claims.ledger import COLUMNS, claims_csv
from joma.claims.rules import Verdict
from joma.claims.sentences import show
from joma.host.schema import load

_CROISSANT = (
    "citeAs column conformsTo data dataType extract examples field fileProperty fileObject fileSet format includes "
    "isLiveDataset jsonPath key md5 parentField path recordSet references regex repeated replace separator source "
    "subField transform"
)
_SPECIAL = {"conformsTo": "dct:conformsTo", "dataType": {"@id": "cr:dataType", "@type": "@vocab"}}
_SPECIAL |= {name: {"@id": f"cr:{name}", "@type": "@json"} for name in ("data", "examples")}
CONTEXT = {"@language": "en", "@vocab": "https://schema.org/", "sc": "https://schema.org/",
           "cr": "http://mlcommons.org/croissant/", "rai": "http://mlcommons.org/croissant/RAI/",
           "dct": "http://purl.org/dc/terms/",
           **{name: _SPECIAL.get(name, f"cr:{name}") for name in _CROISSANT.split()}}  # fmt: skip
_WORDS = ("id", "verdict", "remarks", "says", "source", "unit", "measured", "command")
"""Columns of the table of claims that hold no numbers."""

STATUS: Mapping[Verdict, str] = {
    "holds": "Validated", "holds as corrected": "PartiallySupported", "only qualitative": "PartiallySupported",
    "mixed": "PartiallySupported", "not above its control": "Contradicted", "fails": "Contradicted",
    "undecided": "Inconclusive", "at paper scale": "NotTested", "not run": "NotTested",
}  # fmt: skip
"""What FORRT calls the outcome of each verdict. A claim whose effect is ruled out is contradicted."""
_TERMS = "https://w3id.org/sciencelive/o/terms/"
_TEMPLATES = {
    "01_quote": ("ANNOTATE_QUOTATION", "RA24onqmqTMsraJ7ypYFOuckmNWpo4Zv5gsLqhXt7xYPU"),
    "02_aida": ("AIDA_SENTENCE", "RALmXhDw3rHcMveTgbv8VtWxijUHwnSqhCmtJFIPKWVaA"),
    "03_claim": ("FORRT_CLAIM", "RAZWyM8D16ya3S1zhCvrG1f0iSpd9-8onVWp0FTvvX7LQ"),
    "04_study": ("FORRT_REPLICATION", "RAuLEjPp-4dTvPwMkfHggTto1CgjIftiGRAgHlyeEonjQ"),
    "05_outcome": ("FORRT_REPLICATION_OUTCOME", "RA2zljn0Nw9SadppOyxZoh-_Rxosslrq-vYG-p9SttnJE"),
    "06_citation": ("CITATION_CITO", "RA43F9EoOuzF0xoNUnCMNyFsfIqlsuWDdPHCnN0wCdCAw"),
}
_CARRIED = {"02_aida": "project", "03_claim": "aida", "04_study": "claim", "05_outcome": "study", "06_citation": "work"}
"""The field of each step that the step before it fills once it is published."""


def croissant(findings: Sequence[Finding], *, name: str = "claims", table: str = "claims.csv") -> dict[str, Any]:
    """Croissant metadata of the table that `joma.claims.ledger.claims_csv` makes of these findings.

    - name: of the data set; table: the name of its file, which stands beside the metadata

    >>> croissant([])["distribution"][0]["name"]
    'claims.csv'
    """
    text = claims_csv(findings)
    created = max((one.provenance.created for one in findings), default="")
    file = {"@type": "cr:FileObject", "@id": table, "name": table, "contentUrl": table, "encodingFormat": "text/csv",
            "sha256": hashlib.sha256(text.encode()).hexdigest()}  # fmt: skip
    fields = [_field(column, table) for column in COLUMNS]
    records = {"@type": "cr:RecordSet", "@id": "claims", "name": "claims", "description": "One record per claim.",
               "key": {"@id": "claims/id"}, "field": fields}  # fmt: skip
    about = "Claims, each tested against a control over seeds: verdict, effect, intervals and what would matter."
    return {
        "@type": "sc:Dataset", "name": f"joma-{name}", "description": about, "@context": CONTEXT,
        "conformsTo": "http://mlcommons.org/croissant/1.0", **({"datePublished": created[:10]} if created else {}),
        "distribution": [file], "recordSet": [records],
    }  # fmt: skip


def _field(column: str, table: str) -> dict[str, Any]:
    kind = "sc:Text" if column in _WORDS else "sc:Float"
    place = {"fileObject": {"@id": table}, "extract": {"column": column}}
    return {"@type": "cr:Field", "@id": f"claims/{column}", "name": column, "description": _meaning(column),
            "dataType": kind, "source": place}  # fmt: skip


def _meaning(column: str) -> str:
    """As the schema of findings says it."""
    known = load("findings")["$defs"]["finding"]["properties"]
    if column in known:
        return str(known[column]["description"])
    of, _, end = column.rpartition("_")
    return f"{'lower' if end == 'low' else 'upper'} end of the interval {known[of]['description']}"


def chain_draft(finding: Finding) -> dict[str, Any]:
    """A draft of FORRT's chain for one finding, with the fields that follow from it.

    What joma does not know is absent: the quotation, the paper's DOI, the repository, how much to trust it.

    >>> from joma.claims.claim import Claim
    >>> from joma.claims.verdicts import by_residual
    >>> found = by_residual(Claim("growth", "JoMA Thm 2", "It grows."), printed=0.5, tolerance=1e-9, expected="growth")
    >>> [step["prefill"]["validationStatus"] for step in chain_draft(found)["steps"] if step["step"] == "05_outcome"]
    ['https://w3id.org/sciencelive/o/terms/Contradicted']
    """
    claim, slug = finding.claim, finding.id.replace("/", "-").strip("-")
    says = f"{claim.says.rstrip('.')}."
    limits = f"The verdict is {', '.join(finding.remarks)}." if finding.remarks else ""
    outcome = {
        "outcome": f"{slug}-outcome", "label": f"{slug}: {finding.verdict}", "date": finding.provenance.created[:10],
        "validationStatus": _TERMS + STATUS[finding.verdict], "conclusion": f"{says} Verdict: {finding.full_verdict}.",
        "evidence": str(finding.measured), "limitations": limits,
    }  # fmt: skip
    filled: dict[str, tuple[dict[str, str], list[str]]] = {
        "01_quote": ({"comment": f"joma tests a claim of {claim.source}: {says}"[:800]}, ["paper", "quotation"]),
        "02_aida": ({"aida": says}, ["topic"]),
        "03_claim": ({"claim": slug, "label": f"{claim.name} ({claim.source})"}, ["forrtType", "source"]),
        "04_study": ({"study": f"{slug}-study", "label": f"{slug}, tested by joma", "scope": finding.expected,
                      "methodology": _method(finding)}, ["type", "deviation"]),
        "05_outcome": (outcome, ["repo", "validationStatus", "confidenceLevel"]),
        "06_citation": ({}, ["cites", "cited"]),
    }  # fmt: skip
    steps = [
        {"step": step, "template_key": _TEMPLATES[step][0], "template_uri": f"https://w3id.org/np/{_TEMPLATES[step][1]}",
         "prefill": {key: value for key, value in prefill.items() if value}, "manual": manual, "published_uri": None}
        for step, (prefill, manual) in filled.items()
    ]  # fmt: skip
    edges = zip(_TEMPLATES, _CARRIED.items(), strict=False)  # each step but the last fills a field of the next
    carried = [{"from": before, "into": into, "field": field} for before, (into, field) in edges]
    commit = finding.provenance.commit
    return {"_comment": f"joma wrote this draft of the claim {finding.id}.", "schema_version": "1.0",
            "kind": "forrt-chain-draft", "chain_shape": "paper-rooted", "source": {"commit": commit} if commit else {},
            "steps": steps, "carry_forward": carried}  # fmt: skip


def _method(finding: Finding) -> str:
    main = finding.main
    if main is None:
        return f"Residuals of the statement, with a tolerance. {_again(finding)}".strip()
    return (
        f"The number of {main.seeds} {main.over} against its control, by the interval of the difference at "
        f"{100 * main.level:g} %. The smallest difference that matters, stated before the run, is "
        f"{show(main.matters, main.unit)}. {_again(finding)}"
    ).strip()


def _again(finding: Finding) -> str:
    return f"Repeat it with: {finding.command}" if finding.command else ""

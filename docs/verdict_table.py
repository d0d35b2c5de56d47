"""The verdict table of docs/results/index.md: what `joma verify` found, and what is kept at paper scale beside it.

python docs/verdict_table.py joma-out/findings.json
"""

import json
import sys
from collections import Counter
from pathlib import Path

from joma.claims.rules import VERDICTS

RECORDS = Path(__file__).parents[1] / "results"
SHORT = {
    "holds": "✓",
    "holds as corrected": "†",
    "only qualitative": "≈",
    "mixed": "±",
    "not above its control": "≤",
    "undecided": "?",
    "fails": "✗",
    "at paper scale": "↑",
    "not run": "–",
}


def counts(findings: list[dict]) -> Counter[str]:
    return Counter(finding["verdict"] for finding in findings)


def shown(found: Counter[str]) -> str:
    return " ".join(f"{found[verdict]}{SHORT[verdict]}" for verdict in VERDICTS if found[verdict])


def kept(study: str) -> Counter[str]:
    """The verdicts of a study's record at paper scale; none if no record is kept."""
    path = RECORDS / study / "findings.json"
    return counts(json.loads(path.read_text(encoding="utf-8"))["findings"]) if path.is_file() else Counter()


def main() -> None:
    studies = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["studies"]
    print("| Study | What it tests | Quick | Paper scale |")
    print("|---|---|---|---|")
    total: Counter[str] = Counter()
    at_paper_scale: Counter[str] = Counter()
    for study in studies:
        quick, paper = counts(study["findings"]), kept(study["name"])
        total, at_paper_scale = total + quick, at_paper_scale + paper
        print(f"| `{study['name']}` | {study['title']} | {shown(quick)} | {shown(paper)} |")
    claims = f"**{total.total()} claims, {at_paper_scale.total()} of them kept at paper scale**"
    print(f"| | {claims} | {shown(total)} | {shown(at_paper_scale)} |")


if __name__ == "__main__":
    main()

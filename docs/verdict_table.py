"""The verdict table of docs/results/index.md: what is kept of quick scale and of paper scale.

python docs/verdict_table.py
"""

import json
from collections import Counter
from pathlib import Path

from joma.claims.rules import VERDICTS
from joma.studies import load, names

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


def shown(found: Counter[str]) -> str:
    return " ".join(f"{found[verdict]}{SHORT[verdict]}" for verdict in VERDICTS if found[verdict])


def quick(study: str) -> Counter[str]:
    """The verdicts of a study at quick scale, as results/quick.json has them."""
    found = json.loads((RECORDS / "quick.json").read_text(encoding="utf-8"))["findings"]
    return Counter(one["verdict"] for name, one in found.items() if name.startswith(f"{study}/"))


def kept(study: str) -> Counter[str]:
    """The verdicts of a study's record at paper scale; none if no record is kept."""
    path = RECORDS / study / "findings.json"
    findings = json.loads(path.read_text(encoding="utf-8"))["findings"] if path.is_file() else []
    return Counter(finding["verdict"] for finding in findings)


def main() -> None:
    """Print the table."""
    print("| Study | What it tests | Quick | Paper scale |\n|---|---|---|---|")
    found = {name: (quick(name), kept(name)) for name in names()}
    for name, (small, large) in found.items():
        print(f"| `{name}` | {load(name).title} | {shown(small)} | {shown(large)} |")
    small, large = (sum(scale, Counter()) for scale in zip(*found.values(), strict=True))
    claims = f"**{small.total()} claims, {large.total()} of them kept at paper scale**"
    print(f"| | {claims} | {shown(small)} | {shown(large)} |")


if __name__ == "__main__":
    main()

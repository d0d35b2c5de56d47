"""The table of docs/results/seeds.md: what the paper and its talk state, show, ask and suggest, and what joma found.

python docs/seeds_table.py

docs/seeds.toml names claims; their verdicts are read from results/quick.json and from the records of paper scale.
"""

import json
import tomllib
from pathlib import Path
from typing import Any

from joma.studies import names

ROOT = Path(__file__).parents[1]
PARTS = {"paper": "What the paper states", "figure": "What it shows", "question": "What is left open",
         "talk": "What the talk adds"}  # fmt: skip
NONE = "–"


def rows() -> dict[str, list[dict[str, Any]]]:
    """By part: what it is, the claims that test it, and what is missing, if anything is."""
    listed: dict[str, list[dict[str, Any]]] = tomllib.loads((ROOT / "docs/seeds.toml").read_text(encoding="utf-8"))
    return listed


def verdicts() -> dict[str, tuple[str, str]]:
    """(quick, paper) of every claim; a dash where no record is kept."""
    quick = json.loads((ROOT / "results/quick.json").read_text(encoding="utf-8"))["findings"]
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(ROOT.glob("results/*/findings.json"))]
    paper = {finding["id"]: finding for record in records for finding in record["findings"]}
    return {name: (_verdict(quick, name), _verdict(paper, name)) for name in {**paper, **quick}}


def _verdict(found: dict[str, Any], name: str) -> str:
    return str(found[name]["verdict"]) if name in found else NONE


def beyond() -> list[str]:
    """Studies that no row names: what the sources do not ask."""
    asked = {claim.partition("/")[0] for part in rows().values() for row in part for claim in row["claims"]}
    return [name for name in names() if name not in asked]


def line(row: dict[str, Any], found: dict[str, tuple[str, str]]) -> str:
    """A row of the table; verdicts that agree are said once."""
    said = [f"`{name}` {' / '.join(dict.fromkeys(found.get(name, (NONE, NONE))))}" for name in row["claims"]]
    return f"| {row['what']} | {'; '.join(said) or NONE} | {row.get('missing', '')} |"


def main() -> None:
    """Print the table."""
    found, listed = verdicts(), rows()
    print("| What | Claims, with verdicts at quick / paper scale | Missing |\n|---|---|---|")
    for part, title in PARTS.items():
        print(f"| **{title}** | | |")
        print("\n".join(line(row, found) for row in listed[part]))
    print(f"| **Studies beyond the sources** | {', '.join(f'`{name}`' for name in beyond())} | |")


if __name__ == "__main__":
    main()

"""The table of docs/results/undecided.md: what chance left open at paper scale, and what it would take to decide it.

python docs/undecided_table.py

The minutes are those of the kept record, on its machine, times the seeds that would probably decide over those it had.
"""

import json
from pathlib import Path

RECORDS = Path(__file__).parents[1] / "results"


def rows() -> list[tuple[float, str]]:
    """(minutes, row), the cheapest first."""
    found = []
    for path in sorted(RECORDS.glob("*/findings.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        for finding in record["findings"]:
            needed, seeds = finding["seeds_to_decide"], finding["seeds"]
            if finding["verdict"] == "undecided" and needed:
                minutes = record["seconds"] / 60 * needed / seeds
                mark = " (fragile)" if finding["fragile"] else ""
                found.append((minutes, f"| `{finding['id']}`{mark} | {seeds} | {needed} | {max(1, round(minutes))} |"))
    return sorted(found)


def main() -> None:
    """Print the table."""
    print("| Claim | Seeds | Would decide | Minutes |\n|---|--:|--:|--:|")
    print("\n".join(row for _, row in rows()))


if __name__ == "__main__":
    main()

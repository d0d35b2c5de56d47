"""The verdict table of the README, from the findings that `joma verify` wrote.

python docs/verdict_table.py joma-out/findings.json
"""

import json
import sys
from collections import Counter
from pathlib import Path

ORDER = ("holds", "holds as corrected", "only qualitative", "not above its control", "fails", "not run")


def main() -> None:
    studies = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["studies"]
    print("| Study | | " + " | ".join(ORDER) + " |")
    print("|---|---|" + "--:|" * len(ORDER))
    total: Counter[str] = Counter()
    for study in studies:
        counts = Counter(finding["verdict"] for finding in study["findings"])
        total += counts
        print(f"| `{study['name']}` | {study['title']} | " + " | ".join(str(counts[v] or "") for v in ORDER) + " |")
    print("| | **all claims** | " + " | ".join(f"**{total[v]}**" if total[v] else "" for v in ORDER) + " |")


if __name__ == "__main__":
    main()

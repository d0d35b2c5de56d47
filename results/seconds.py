"""What every study took, by scale, as the kept records say: src/joma/studies/seconds.json. Shards are balanced by it.

python results/seconds.py
"""

import json
from pathlib import Path

from joma.host.file_kinds import OWN
from joma.host.files import write_json

RESULTS = Path(__file__).parent
TO = RESULTS.parent / "src" / "joma" / "studies" / "seconds.json"


def known() -> dict[str, dict[str, float]]:
    """Seconds by scale and study. Two digits say enough, and change less often."""
    quick = json.loads((RESULTS / "quick.json").read_text(encoding="utf-8"))["seconds"]
    kept = sorted(RESULTS.glob("*/findings.json"))
    paper = {path.parent.name: json.loads(path.read_text(encoding="utf-8"))["seconds"] for path in kept}
    return {
        scale: {name: float(f"{seconds:.2g}") for name, seconds in sorted(each.items())}
        for scale, each in (("quick", quick), ("paper", paper))
    }


if __name__ == "__main__":
    write_json(TO, known(), OWN)
    print(f"kept: {TO.name}")

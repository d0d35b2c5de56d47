"""Seal the runs of a record of `forecast` for `joma forecast`.

python results/seal.py                       # from results/forecast/forecast.sqlite
"""

import json
from pathlib import Path

from joma.runs import Run
from joma.studies.rebound.forecast.kept_runs import FOLDER, seal

RECORD = Path(__file__).parent / "forecast"


def main() -> None:
    """Write the open and the sealed runs, and the seal."""
    findings = json.loads((RECORD / "findings.json").read_text())
    with Run.open(RECORD / "forecast.sqlite") as run:
        seal(run, FOLDER, {"command": findings["command"], "commit": findings["commit"]})
    print(FOLDER)


if __name__ == "__main__":
    main()

"""`python -m joma.studies NAME ...`: run studies with torch and numpy alone, as on a bare GPU machine.

No tables, no page: the records go to OUT/runs, the findings to OUT/findings.json, and where matplotlib is absent
the figures are drawn later, elsewhere, by `joma report OUT`.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path

from joma import studies
from joma.studies.contract import SCALES
from joma.studies.execute import execute
from joma.studies.progress_lines import ProgressLines


def main() -> int:
    """Run the studies named on the command line and print their verdicts."""
    parser = argparse.ArgumentParser(prog="python -m joma.studies", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("study", nargs="+", metavar="NAME", help=", ".join(studies.names()))
    parser.add_argument("--scale", choices=SCALES, default="quick")
    parser.add_argument("--out", type=Path, default=Path("joma-out"))
    parser.add_argument("--fresh", action="store_true", help="run again what is already recorded")
    options = parser.parse_args()
    results = []
    for name in options.study:
        try:
            study = studies.load(name)
        except ValueError as error:
            parser.error(str(error))
        result = execute(
            study,
            study.preset(options.scale),
            options.out,
            fresh=options.fresh,
            progress=ProgressLines(name, partial(print, flush=True), every=2.0),
            pictures=False,
        )
        for finding in result.findings:
            print(f"{name}: {finding.verdict} | {finding.claim.name} ({finding.claim.source}) | {finding.measured}")
        results.append(result.as_json())
    (options.out / "findings.json").write_text(json.dumps({"studies": results}, indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

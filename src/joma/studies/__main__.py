"""`python -P -m joma.studies NAME ...`: run studies on a bare GPU machine, with torch, numpy and safetensors alone.

No tables, no page: the records go to OUT/runs, the findings to OUT/findings.json, and where matplotlib is absent
the figures are drawn later, elsewhere, by `joma report OUT`.
"""

from joma.host.search_path import leave_out_working_directory

if __name__ == "__main__":
    leave_out_working_directory()  # before anything else is imported

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from joma import studies
from joma.claims.contract import SCALES
from joma.claims.execute import attempt
from joma.claims.ledger import findings_json
from joma.host import limits
from joma.host.exit_status import BROKEN, OK, answer
from joma.host.files import usable_folder, write_json
from joma.host.printing import say
from joma.host.progress import ProgressLines


def main(argv: Sequence[str] | None = None) -> int:
    """Run the studies named on the command line and print their verdicts. Returns the exit status, as `joma` does."""
    parser = argparse.ArgumentParser(prog="python -P -m joma.studies", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("study", nargs="+", metavar="NAME", help=", ".join(studies.names()))
    parser.add_argument("--scale", choices=SCALES, default="quick")
    parser.add_argument("--out", type=Path, default=Path("joma-out"))
    parser.add_argument("--fresh", action="store_true", help="run again what is already recorded")
    return answer(partial(_carry_out, parser.parse_args(argv)))


def _carry_out(options: argparse.Namespace) -> int:
    limits.check()
    chosen = [studies.load(name) for name in dict.fromkeys(options.study)]
    usable_folder(options.out)
    results = []
    for study in chosen:
        result = attempt(
            study,
            study.preset(options.scale),
            options.out,
            alone=len(chosen) == 1,
            fresh=options.fresh,
            progress=ProgressLines(study.name, lambda line: say(line, sys.stderr), every=2.0),
            pictures=False,
        )
        results.append(result)
        if result.error:
            say(f"{study.name}: broke: {result.error}")
        for finding in result.findings:
            claim = f"{finding.claim.name} ({finding.claim.source})"
            say(f"{study.name}: {finding.verdict} | {claim} | {finding.measured}")
    broken = [result.error for result in results if result.error]
    if len(broken) < len(results):  # else the file of an earlier command is worth more
        write_json(options.out / "findings.json", findings_json(results))
    return BROKEN if broken else OK


if __name__ == "__main__":
    sys.exit(main())

"""Test the claims of one theorem, and print each verdict with its numbers: python examples/verify_a_theorem.py"""

import argparse
from pathlib import Path

from joma import studies
from joma.claims.execute import execute


def main() -> None:
    """Print one line per claim."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", default="thm2", help="a name from `joma list`")
    parser.add_argument("--out", type=Path, default=Path("joma-out"))
    options = parser.parse_args()
    study = studies.load(options.study)
    for finding in execute(study, study.quick, options.out).findings:
        print(f"{finding.id}: {finding.verdict} ({finding.measured})")


if __name__ == "__main__":
    main()

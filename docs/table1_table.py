"""The tables of Table 1 and of section 5, as Markdown, from the record of a run of `table1` or `hblt-alignment`.

python docs/table1_table.py joma-out/runs/table1-*.sqlite
"""

import sys

from joma.runs import Run
from joma.studies.hierarchy._networks import BLOCKS
from joma.studies.hierarchy.hblt_alignment import Scores
from joma.studies.hierarchy.table1 import TITLES, table

GAIN_TITLES = (
    "L",
    "height",
    "ρ",
    *(f"untrained {b + 1}" for b in range(BLOCKS)),
    *(f"gain {b + 1}" for b in range(BLOCKS)),
)


def gain_table(run: Run) -> list[tuple[str, ...]]:
    """Held-out score of the untrained network and gain by training with its 95 % interval, in each block."""
    return [
        (
            str(depth),
            str(level + 1),
            f"{rho:g}",
            *(f"{b.control:.2f}" for b in blocks),
            *(f"{b.difference:+.3f} ± {b.half_width:.3f}" for b in blocks),
        )
        for depth, level, rho, blocks in Scores(run).cells()
    ]


TABLES = {"table1": (TITLES, table), "hblt-alignment": (GAIN_TITLES, gain_table)}


def main() -> None:
    for path in sys.argv[1:]:
        with Run.open(path) as run:
            titles, lines = TABLES[run.study]
            print("| " + " | ".join(titles) + " |")
            print("|" + "--:|" * len(titles))
            for line in lines(run):
                print("| " + " | ".join(line) + " |")


if __name__ == "__main__":
    main()

"""The tables of Table 1 and of section 5, as Markdown, from the record of a run of `table1` or `hblt-alignment`.

python docs/table1_table.py joma-out/runs/table1-*.sqlite
"""

import sys

from joma.runs import Run
from joma.studies.hierarchy.hblt_alignment import record as latent_alignment
from joma.studies.hierarchy.table1 import record as latent_table

TABLES = {"table1": latent_table, "hblt-alignment": latent_alignment}


def main() -> None:
    for path in sys.argv[1:]:
        with Run.open(path) as run:
            study = TABLES[run.study]
            print("| " + " | ".join(study.TITLES) + " |")
            print("|" + "--:|" * len(study.TITLES))
            for line in study.table(run):
                print("| " + " | ".join(line) + " |")


if __name__ == "__main__":
    main()

"""The tables of the reversal curse and of chain of thought, as Markdown, from the record of a run of either study.

python docs/reversal_table.py results/reversal-decoder/reversal-decoder.sqlite
"""

import sys

from joma.runs import Run
from joma.studies.reversal.chain_of_thought_decoder import run as chain_of_thought_decoder
from joma.studies.reversal.reversal_decoder import record as reversal_decoder

TABLES = {"reversal-decoder": reversal_decoder, "chain-of-thought-decoder": chain_of_thought_decoder}


def main() -> None:
    for path in sys.argv[1:]:
        with Run.open(path) as run:
            study = TABLES[run.study]
            print("| " + " | ".join(study.TITLES) + " |")
            print("|--:|:--|" + "--:|" * (len(study.TITLES) - 2))
            for line in study.table(run):
                print("| " + " | ".join(line) + " |")


if __name__ == "__main__":
    main()

"""The tables of the reversal curse and of chain of thought, as Markdown, from the record of a run of either study.

python docs/reversal_table.py results/reversal-decoder/reversal-decoder.sqlite
"""

import sys

import numpy as np

from joma.claims.guards import mean_known
from joma.measure.intervals import compare
from joma.runs import Run
from joma.studies.reversal.chain_of_thought_decoder import Scores as ChainScores
from joma.studies.reversal.reversal_decoder.run import Scores as ReversalScores

REVERSAL_TITLES = ("layers", "condition", "one way", "reverse", "rivals beaten", "beats all", "learned")


def reversal_table(run: Run) -> list[tuple[str, ...]]:
    """Probabilities and ranks at the end, one row per condition."""
    scores = ReversalScores(run)
    rows: list[tuple[str, ...]] = []
    for one in sorted(scores.conditions.values(), key=lambda one: one.layers):
        reverse, rank = compare(scores.probability(one, "reverse")), compare(scores.rank(one, "reverse"))
        rows.append((
            str(one.layers), one.name, f"{mean_known(scores.probability(one, 'one way')):.3f}",
            f"{reverse.value:.4f} ± {reverse.half_width:.4f}", f"{rank.value:.2f} ± {rank.half_width:.2f}",
            f"{mean_known(scores.rank(one, 'reverse', 'chosen')):.2f}",
            f"{int(np.sum(scores.learned(one)))} of {scores.seeds}",
        ))  # fmt: skip
    return rows


CHAIN_TITLES = ("layers", "condition", "steps", "held out", "at once", "step by step", "written", "learned")


def chain_table(run: Run) -> list[tuple[str, ...]]:
    """Probabilities and shares of ends reached, one row per condition."""
    scores = ChainScores(run)
    rows: list[tuple[str, ...]] = []
    for one in sorted(scores.conditions.values(), key=lambda one: one.layers):
        ways = [mean_known(scores.answered(one, way)) for way in ("direct", "rollout", "written")]
        rows.append((
            str(one.layers), one.name, f"{mean_known(scores.steps_known(one)):.3f}",
            f"{mean_known(scores.probability(one, 'held out')):.4f}",
            *("" if np.isnan(way) else f"{way:.2f}" for way in ways),
            f"{int(np.sum(scores.learned(one)))} of {scores.seeds}",
        ))  # fmt: skip
    return rows


TABLES = {
    "reversal-decoder": (REVERSAL_TITLES, reversal_table),
    "chain-of-thought-decoder": (CHAIN_TITLES, chain_table),
}


def main() -> None:
    for path in sys.argv[1:]:
        with Run.open(path) as run:
            titles, table = TABLES[run.study]
            print("| " + " | ".join(titles) + " |")
            print("|--:|:--|" + "--:|" * (len(titles) - 2))
            for line in table(run):
                print("| " + " | ".join(line) + " |")


if __name__ == "__main__":
    main()

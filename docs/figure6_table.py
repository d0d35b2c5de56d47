"""Figure 6 at paper scale as a table (Markdown), from its record; with an earlier run of the same seeds, a second one.

python docs/figure6_table.py results/fig6/fig6.sqlite [EARLIER.sqlite]
"""

import sys
from collections.abc import Iterable

import numpy as np

from joma.recipes.language.curves import best_loss, curve, layer_rebounds
from joma.runs import Run
from joma.studies.language._published import Distance
from joma.studies.language.fig6 import PRINTED

DEPTHS = PRINTED["wikitext-2"]


def rms(difference: np.ndarray) -> str:
    return f"{np.sqrt(np.square(difference).mean()):.2g}"


def line(title: str, cells: Iterable[object]) -> None:
    print("| " + " | ".join([title, *map(str, cells)]) + " |")


def head() -> None:
    line("layers", DEPTHS)
    line("---", ["---"] * len(DEPTHS))


def rebounding(run: Run, layers: int) -> str:
    """The layers that rebound by the rule."""
    found = layer_rebounds(run, f"L{layers}")
    assert found is not None
    return ", ".join(str(layer + 1) for layer in found.rebounds.nonzero().flatten().tolist())


def as_published(run: Run) -> None:
    stored = [Distance(*row) for row in run.value("stored")]
    head()
    line("best validation loss, five seeds", (f"{best_loss(run, f'L{depth}').mean():.3f}" for depth in DEPTHS))
    line("printed", (f"{loss:.3f}" for loss in DEPTHS.values()))
    line("to the published curves (nats RMS): means of seeds 3 to 5", (f"{one.rms:.3f}" for one in stored))
    line("the same, single runs from the same weights", (f"{one.single:.3f}" for one in stored))
    line("the published curves without their rebound", (f"{one.one_way:.3f}" for one in stored))
    line("layers that rebound, by the rule, five seeds", (rebounding(run, depth) for depth in DEPTHS))


def repeated(run: Run, earlier: Run) -> None:
    """How far two runs of the same seeds are apart: weights, batches and dropout are the same, rounding is not."""
    head()
    for what, measure in (("entropy on that sequence", "sequence/entropy"), ("validation loss", "valid/loss")):
        pairs = [[curve(one, f"L{depth}", measure)[0] for one in (run, earlier)] for depth in DEPTHS]
        line(f"{what}, the same seed again (nats RMS)", (rms(now - then) for now, then in pairs))
        line(f"{what}, another seed", (rms(now - np.roll(now, 1, axis=0)) for now, _ in pairs))
    line("to the published curves, the first time", (f"{Distance(*row).rms:.3f}" for row in earlier.value("stored")))
    line("layers that rebound, by the rule, the first time", (rebounding(earlier, depth) for depth in DEPTHS))


def main() -> None:
    with Run.open(sys.argv[1]) as run:
        as_published(run)
        for path in sys.argv[2:]:
            print()
            with Run.open(path) as earlier:
                repeated(run, earlier)


if __name__ == "__main__":
    main()

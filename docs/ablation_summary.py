"""What the ablations show of drop and rebound: those with all words, as two tables (Markdown), and a picture.

python docs/ablation_summary.py results [docs/_static/ablations.png]
"""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from joma.claims.evidence import Effect
from joma.claims.rules import of_effect
from joma.figures.bands import mean_and_band
from joma.figures.labels import label_lines
from joma.figures.style import BLUE, GREEN, GREY, ORANGE, house_style, panels, step_axis
from joma.measure.intervals import Comparison, compare
from joma.recipes.language.curves import best_loss, steps_of
from joma.runs import Run
from joma.studies.ablations._figures import PARTS
from joma.studies.ablations._twins import MATTERS, by_layer, curves_of, differences

SHOWN = {
    "nonlinearity": ("ReLU", "GELU", "identity", "no MLP"),
    "residual": ("residual", "no residual"),
    "dropout": ("dropout", "no dropout"),
    "embeddings": ("learned", "frozen"),
    "norm": ("LayerNorm after", "LayerNorm before", "RMSNorm after", "none"),
    "optimizer": ("Adam", "Adam, state kept", "AdamW", "SGD"),
    "text-order": ("one order", "own start", "own pieces"),
}
"""The variants that the tables show, the network itself before its twins."""
REFERENCE = ("nonlinearity", "ReLU", "full network (ReLU)")
TWINS = {
    ("nonlinearity", "identity", "linear MLP"): BLUE,
    ("nonlinearity", "no MLP", "no MLP"): GREEN,
    ("residual", "no residual", "no residual\nconnection"): ORANGE,
}
"""What the picture shows: study, variant and what a newcomer calls it."""
HEADLINE = "Attention narrows in training, then spreads again. It does so without the nonlinearity, too."
GLUE = "\N{NO-BREAK SPACE}"


def interval(found: Comparison) -> str:
    return f"{found.difference:.2f}{GLUE}±{GLUE}{found.half_width:.2f}"


def is_there(found: Comparison) -> bool:
    return of_effect(Effect.of(found, matters=MATTERS)) == "holds"


def alone(run: Run, variant: str) -> str:
    """One network: its seeds, drop and rebound, how many layers drop and rebound by the rule, the loss."""
    cells = [interval(found) for part in PARTS for found in by_layer(run, variant, part).values()]
    strict = [by_layer(run, variant, part, level=0.99).values() for part in PARTS]
    back = [all(is_there(found) for found in layer) for layer in zip(*strict, strict=True)]
    loss = compare(best_loss(run, variant)[0]).value
    seeds = str(len(run.value(f"{variant}/seeds")))
    return " | ".join([variant, seeds, *cells, f"{sum(back)} of {len(back)}", f"{loss:.3f}"])


def paired(run: Run, network: str, twin: str) -> str:
    """By how much the network does more than its twin, seed by seed."""
    gaps = [gap for part in PARTS for gap in differences(run, network, twin, part).values()]
    return " | ".join([f"{network} − {twin}", *map(interval, gaps)])


def tables(runs: dict[str, Run]) -> str:
    first = [
        "| Study | Network | Seeds | Fall, layer 1 | layer 2 | Recovery, layer 1 | layer 2 | By the rule | Loss |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    second = [
        "| Study | Network − variant | Fall larger by, layer 1 | layer 2 | Recovery larger by, layer 1 | layer 2 |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for study, (network, *twins) in SHOWN.items():
        first += [f"| `{study}` | {alone(runs[study], variant)} |" for variant in (network, *twins)]
        second += [f"| `{study}` | {paired(runs[study], network, twin)} |" for twin in twins]
    return "\n".join([*first, "", *second])


def draw(runs: dict[str, Run]) -> Figure:
    """One panel per layer; the network itself broad, so that no twin hides it, and every line named at its end."""
    figure, axes = panels(2, width=4.6, height=3.1)
    for (study, variant, name), colour in TWINS.items():
        _lines(axes, runs[study], variant, name, color=colour, lw=2.0)
    study, variant, name = REFERENCE
    _lines(axes, runs[study], variant, name, color=GREY, lw=6.0, alpha=0.6, zorder=1)
    for layer, axis in enumerate(axes, start=1):
        axis.set_title(f"Layer {layer}")
        step_axis(axis)
        axis.set_ylim(0.5, 2.75)
        axis.set_yticks([0.5, 1.0, 1.5, 2.0, 2.5], ["0.5 focused", "1.0", "1.5", "2.0", "2.5 spread"])
        label_lines(axis, fontsize=9)
    axes[0].set_ylabel("attention entropy (nats)")
    figure.suptitle(HEADLINE, x=0.01, ha="left", fontsize=11, weight="bold")
    return figure


def _lines(axes: Sequence[Axes], run: Run, variant: str, name: str, **style: Any) -> None:
    for axis, curves in zip(axes, curves_of(run, variant), strict=True):
        mean_and_band(axis, steps_of(run, variant), curves, over=0, shade=0.15, label=name, **style)


def main() -> None:
    records, *pictures = map(Path, sys.argv[1:])
    with ExitStack() as stack:
        runs = {study: stack.enter_context(Run.open(records / study / f"{study}.sqlite")) for study in SHOWN}
        print(tables(runs))
        for picture in pictures:
            with house_style():
                draw(runs).savefig(picture, dpi=130, facecolor="white")


if __name__ == "__main__":
    main()

"""What the ablations show of drop and rebound: those with all words, as two tables (Markdown) and one picture.

python docs/ablation_summary.py results docs/_static/ablations.png
"""

import sys
from contextlib import ExitStack
from pathlib import Path

from matplotlib.figure import Figure

from joma.claims.evidence import Effect
from joma.claims.rules import of_effect
from joma.figures.style import house_style, panels
from joma.measure.intervals import Comparison, compare
from joma.recipes.language_curves import best_loss, steps_of
from joma.runs import Run
from joma.studies.ablations._figures import COLOURS, PARTS, band
from joma.studies.ablations._twins import MATTERS, by_layer, curves_of, differences

SHOWN = {
    "nonlinearity": ("ReLU", "GELU", "identity", "no MLP"),
    "residual": ("residual", "no residual"),
    "dropout": ("dropout", "no dropout"),
    "embeddings": ("learned", "frozen"),
    "norm": ("LayerNorm after", "LayerNorm before", "RMSNorm after", "none"),
    "optimizer": ("Adam", "Adam, state kept", "AdamW", "SGD"),
}
"""The variants that are shown, the network itself before its twins."""
LIMITS = (0.5, 2.65)
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
        "| Study | Network | Seeds | Drop, layer 1 | layer 2 | Rebound, layer 1 | layer 2 | By the rule | Loss |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    second = [
        "| Study | Network − twin | Drop larger by, layer 1 | layer 2 | Rebound larger by, layer 1 | layer 2 |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for study, (network, *twins) in SHOWN.items():
        first += [f"| `{study}` | {alone(runs[study], variant)} |" for variant in (network, *twins)]
        second += [f"| `{study}` | {paired(runs[study], network, twin)} |" for twin in twins]
    return "\n".join([*first, "", *second])


def draw(runs: dict[str, Run]) -> Figure:
    figure, axes = panels(len(SHOWN), 2, width=2.0, height=2.1)
    for axis in axes:
        axis.set_ylim(LIMITS)
    for column, (study, variants) in enumerate(SHOWN.items()):
        upper, lower = axes[column], axes[len(SHOWN) + column]
        for variant, colour in reversed(list(zip(variants, COLOURS, strict=False))):
            for axis, curves in zip((upper, lower), curves_of(runs[study], variant), strict=True):
                band(axis, steps_of(runs[study], variant) / 1000, curves, colour, variant)
        upper.set_title(study)
        lower.set_xlabel("thousand steps")
        lines, labels = lower.get_legend_handles_labels()
        lower.legend(lines[::-1], labels[::-1], fontsize=6.5, loc="best")
    for layer, axis in enumerate(axes[:: len(SHOWN)]):
        axis.set_ylabel(f"entropy of layer {layer + 1} (nats)")
    return figure


def main() -> None:
    records, picture = Path(sys.argv[1]), Path(sys.argv[2])
    with ExitStack() as stack:
        runs = {study: stack.enter_context(Run.open(records / study / f"{study}.sqlite")) for study in SHOWN}
        print(tables(runs))
        with house_style():
            draw(runs).savefig(picture, dpi=130, facecolor="white")


if __name__ == "__main__":
    main()

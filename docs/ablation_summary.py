"""What the ablations show of drop and rebound: those with all words, as one table (Markdown) and one picture.

python docs/ablation_summary.py results docs/_static/ablations.png
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from joma.runs import Run
from joma.studies._ablation import curves_of, shape_of
from joma.studies._ablation_figures import COLOURS, band
from joma.studies._language_models import best_loss, over_seeds, steps_of
from joma.studies.drawing import house_style, panels

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


def line(run: Run, variant: str) -> str:
    """One row of the table."""
    shape = shape_of(run, variant)
    found = [over_seeds(layer) for part in (shape.drop, shape.rebound) for layer in part.T]
    cells = [variant, *(f"{one.mean:.2f}{GLUE}±{GLUE}{one.half_width:.2f}" for one in found)]
    cells += [f"{shape.rebounds.sum()} of {len(shape.rebounds)}", f"{over_seeds(best_loss(run, variant)[0]).mean:.3f}"]
    return " | ".join(cells)


def main() -> None:
    records, picture = Path(sys.argv[1]), Path(sys.argv[2])
    print("| Study | Network | Drop, layer 1 | layer 2 | Rebound, layer 1 | layer 2 | By the rule | Loss |")
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    with house_style():
        figure, axes = panels(len(SHOWN), 2, width=2.0, height=2.1)
        for column, (study, variants) in enumerate(SHOWN.items()):
            with Run.open(records / study / f"{study}.sqlite") as run:
                for row, variant in enumerate(variants):
                    print(f"| {'' if row else f'`{study}`'} | {line(run, variant)} |")
                for variant, colour in reversed(list(zip(variants, COLOURS, strict=False))):
                    for layer, curves in enumerate(curves_of(run, variant)):
                        steps = steps_of(run, variant) / 1000
                        band(axes[layer * len(SHOWN) + column], steps, curves, colour, variant)
            axes[column].set_title(study)
            lower = axes[len(SHOWN) + column]
            lower.set_xlabel("thousand steps")
            lower.set_ylim(LIMITS)
            lines, labels = lower.get_legend_handles_labels()
            lower.legend(lines[::-1], labels[::-1], fontsize=6.5, loc="best")
        for layer, axis in enumerate(axes[:: len(SHOWN)]):
            axis.set_ylabel(f"entropy of layer {layer + 1} (nats)")
        for axis in axes:
            axis.set_ylim(LIMITS)
        figure.savefig(picture, dpi=130, facecolor="white")


if __name__ == "__main__":
    main()

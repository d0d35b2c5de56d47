"""The panels of the editor's cards, read from a record: one reader per claim.

Each panel shows the numbers of its card's sentence, so that sentence and picture cannot differ.
"""

from collections.abc import Callable
from math import erf, sqrt

import numpy as np

from joma.figures.style import BLUE, CONTROL, CORRECTED, INK, PRINTED
from joma.recipes.language import called
from joma.recipes.language.curves import layer_curves, steps_of
from joma.report.claims.panels import Panel, line_of
from joma.runs import Run

ENTROPY = "attention entropy (nats)"
STEP = "training step"


def panel_of(claim: str, run: Run) -> Panel | None:
    """The panel of a claim from a finished run of its study; None where it has no reader or nothing to show."""
    reader = READERS.get(claim)
    panel = reader(run) if reader else None
    return panel if panel and panel.lines and all(len(line.y) > 1 for line in panel.lines) else None


def _one_layer(run: Run) -> Panel | None:
    if 1 not in run.config["layers"]:
        return None
    rows = layer_curves(run, "L1")[0]
    return Panel(ENTROPY, STEP, _seeds(run), (line_of("one layer", BLUE, steps_of(run, "L1"), rows),))


def _nonlinearity(run: Run) -> Panel:
    """Layer 1, the one that decides: there the linear network comes nearest to ReLU."""
    lines = (
        line_of("ReLU", BLUE, steps_of(run, "ReLU"), layer_curves(run, "ReLU")[0]),
        line_of("linear MLP", CONTROL, steps_of(run, "identity"), layer_curves(run, "identity")[0], dashes="dashed"),
    )
    return Panel(ENTROPY, STEP, f"Layer 1 of two. {_seeds(run)}", lines)


def _held_logits(run: Run) -> Panel | None:
    from joma.studies.rebound._cases import base_name
    from joma.studies.rebound._twins import twin_name
    from joma.studies.rebound.dilution import BOTH

    if 1 not in run.config["layers"]:
        return None
    base, steps = base_name(1), steps_of(run, base_name(1))
    held = twin_name(base, BOTH)
    lines = (
        line_of("one layer", BLUE, steps, layer_curves(run, base)[0]),
        line_of("logits held", CONTROL, steps_of(run, held), layer_curves(run, held)[0], dashes="dashed"),
    )
    return Panel(ENTROPY, STEP, _seeds(run), lines)


def _galore(run: Run) -> Panel | None:
    """The training loss of the first seed, in fifty means."""
    from joma.studies.galore.galore_table.networks import FULL, GALORE
    from joma.studies.galore.galore_table.run import Table

    table, lines = Table(run), []
    for label, colour, method, dashes in (("GaLore", BLUE, GALORE, "solid"), ("full rank", CONTROL, FULL, "dashed")):
        losses = np.asarray(table.curve(method))
        width = max(1, len(losses) // 50)
        means = losses[: len(losses) // width * width].reshape(-1, width).mean(1)
        lines.append(line_of(label, colour, width * (np.arange(len(means)) + 0.5), means[None], dashes=dashes))
    return Panel("training loss (nats)", STEP, "Each at its own rate, one seed", tuple(lines))


def _lowest_latents(run: Run) -> Panel:
    from joma.studies.hierarchy.table1 import Scores

    scores = Scores(run, only_learned=True)
    points = range(len(scores.steps))
    found = np.stack([np.nanmean(scores.at("best neuron", point, 0), axis=1) for point in points], axis=1)
    lines = (
        line_of("best neuron of each latent", BLUE, scores.steps, found),
        line_of("before training", INK, scores.steps[[0, -1]], np.full(2, found[:, 0].mean()), dashes="dotted"),
    )
    return Panel("correlation with the hidden latents", STEP, f"{len(found)} seeds; band: their range", lines)


def _invariant(run: Run) -> Panel:
    """How much the printed and the corrected quantity of Theorem 2 differ between tokens, over time."""
    order = np.argsort(-np.abs(run.value("delta")[0]))[:6]
    share, v, delta = run.value("share"), run.value("zero/v")[0], run.value("delta")[0]

    def spread(scale: float) -> np.ndarray:
        value = np.vectorize(erf, otypes=[float])(v[1:, order] / scale) / delta[order]
        return np.asarray(np.abs(value[:, 1:] / value[:, :1] - 1).max(1) + 1e-17)

    lines = (
        line_of("printed: erf(v/2)/Δ", PRINTED, share[1:], spread(2.0), dashes="dashed"),
        line_of("corrected: erf(v/√2)/Δ", CORRECTED, share[1:], spread(sqrt(2))),
    )
    about = "Theorem 2: six tokens of one random draw"
    return Panel("relative difference between tokens", "time / blow-up time", about, lines, log_y=True)


def _seeds(run: Run) -> str:
    drawn = int(run.config["seeds"]) - int(run.config.get("open_seeds", 0))  # open ones are fitted on, and not judged
    return f"{called(run.config['corpus'])}, mean of {drawn} seeds; band: their range"


READERS: dict[str, Callable[[Run], Panel | None]] = {
    "fig6/fig6-one-layer": _one_layer,
    "nonlinearity/linear-mlp-stays-sparse": _nonlinearity,
    "dilution/logits-shrink": _held_logits,
    "table1/lowest-latents-align": _lowest_latents,
    "galore-table/full-rank-is-best": _galore,
    "thm2/erf-invariant": _invariant,
}
"""By the id of the claim that a card is about."""

"""The panels of the editor's cards, read from a record: one reader per claim.

Each panel shows the numbers of its card's sentence, so that sentence and picture cannot differ.
"""

from collections.abc import Callable
from dataclasses import replace
from math import erf, sqrt
from typing import Any

import numpy as np

from joma.figures.style import BLUE, CONTROL, CORRECTED, GREEN, INK, PRINTED
from joma.recipes.language import called
from joma.recipes.language.curves import layer_curves, steps_of
from joma.report.claims.panels import Line, Panel, line_of
from joma.runs import Run

ENTROPY = "attention entropy (nats)"
STEP = "training step"
_LOWEST, _BEST = -100.0, 100.0  # percent of skill: what is beyond is drawn at the edge, as in the study's own figure


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


def _higher_layers(run: Run) -> Panel | None:
    """In the second of two layers, the two parts of the way back, from the valley on."""
    from joma.studies.rebound.rebound_cause.run import KINDS, TWO, Case, base_name, parts, valley_of

    if TWO not in run.config["layers"]:
        return None
    case = Case(base_name(TWO), (TWO - 1,))
    steps, valley = steps_of(run, case.base), valley_of(run, case.base)
    split = {kind: case.mean(values) for kind, values in parts(run, case.base).items()}  # (seeds, points)
    below = sum(split[kind] for kind in KINDS if kind != "own QK")

    def since(part: Any) -> np.ndarray:
        return np.asarray((part * (steps > valley)).cumsum(-1)[:, steps >= valley])

    later = steps[steps >= valley]
    lines = (
        line_of("all weights below it", CONTROL, later, since(below), dashes="dashed"),
        line_of("own queries and keys", BLUE, later, since(split["own QK"])),
    )
    return Panel("change of entropy since the valley (nats)", STEP, f"Layer 2 of two. {_seeds(run)}", lines)


def _theorem_1(run: Run) -> Panel | None:
    from joma.studies.rebound.forecast.record import EARLIER, THEOREM, skill_by_step, variants_of

    everyone = [name for variants in variants_of(run).values() for name in variants]
    if not everyone:
        return None
    at = run.value(f"{everyone[0]}/at")

    def line(label: str, colour: str, forecaster: str, dashes: str = "solid") -> Line:
        found = line_of(label, colour, at, 100 * skill_by_step(run, everyone, "entropy", forecaster), dashes=dashes)
        ends = (found.y, found.low, found.high)
        y, low, high = (tuple(min(max(value, _LOWEST), _BEST) for value in some) for some in ends)
        return replace(found, y=y, low=low, high=high)

    lines = (
        line("earlier runs (other seeds)", GREEN, EARLIER),
        line("Theorem 1, as printed", PRINTED, THEOREM["printed"], "dashed"),
        line_of("no change", INK, at[[0, -1]], np.zeros(2), dashes="dotted"),
    )
    return Panel("skill in predicting entropy at step 2t (%)", "step t", _seeds(run), lines, log_x=True)


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
    "nonlinearity/rebound-needs-nonlinearity": _nonlinearity,
    "rebound-cause/own-qk-higher-layers": _higher_layers,
    "forecast/theorem-1-foretells": _theorem_1,
    "table1/lowest-latents-align": _lowest_latents,
    "thm2/erf-invariant": _invariant,
}
"""By the id of the claim that a card is about."""

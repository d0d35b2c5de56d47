"""The picture of `spread`: parts, entropy and factors over training."""

import numpy as np

from joma.claims.contract import Drawing
from joma.figures.reading import number
from joma.figures.style import BLUE, CONTROL, GREEN, INK, ORANGE, RED, Axes, panels
from joma.recipes.language import called
from joma.recipes.language.curves import mean_over_seeds, steps_of
from joma.runs import Run
from joma.studies.rebound.rebound_cause.run import Case
from joma.studies.rebound.spread import record

PARTS = {"shared": BLUE, "specific": ORANGE}
FACTORS = {"growth": RED, "alignment": BLUE, "context": CONTROL}


def draw(run: Run) -> Drawing:
    """One row per place: the parts of s2 as areas, entropy with what follows from s2, and the factors."""
    places = _shown(run)
    figure, axes = panels(3, len(places), width=3.7, height=2.6)
    for row, case in enumerate(places):
        parts, entropy, factors = axes[3 * row : 3 * row + 3]
        _draw_parts(parts, run, case)
        _draw_entropy(entropy, run, case)
        _draw_factors(factors, run, case)
        for axis in (parts, entropy, factors):
            axis.axvline(int(run.config["valley"]), color=INK, lw=0.6, ls=":", label="_the minimum")
            axis.set(xscale="log", xlabel="training step")
    return Drawing("parts-of-spread", _caption(run, places), figure)


def _shown(run: Run) -> list[Case]:
    first, *others = record.bases(run)
    places = [Case(first, (0,))]
    two = next((base for base in others if len(record.values(run, base, "valid/entropy")) > 1), "")
    return [*places, Case(two, (len(record.values(run, two, "valid/entropy")) - 1,))] if two else places


def _mean(run: Run, case: Case, values: np.ndarray) -> np.ndarray:
    curves = case.mean(values).mean(-1)
    return np.asarray([mean_over_seeds(column) for column in curves.T[1:]])


def _draw_parts(axis: Axes, run: Run, case: Case) -> None:
    steps, below = steps_of(run, case.base)[1:], np.zeros(1)
    for part, colour in PARTS.items():
        above = below + _mean(run, case, record.values(run, case.base, f"spread/{part}"))
        axis.fill_between(steps, below, above, color=colour, alpha=0.35, lw=0)
        axis.plot(steps, above, color=colour, lw=1.0, label=part if part == "shared" else f"+ {part}")
        below = above
    total = _mean(run, case, record.values(run, case.base, "spread/variance"))
    axis.plot(steps, total, color=INK, lw=1.4, label="+ cross")
    axis.set(ylabel="variance of logits", title=f"Parts, {case.name}")
    axis.set_ylim(bottom=0)


def _draw_entropy(axis: Axes, run: Run, case: Case) -> None:
    steps = steps_of(run, case.base)
    after = steps[1:] >= int(run.config["valley"])
    entropy, held = (
        _mean(run, case, record.values(run, case.base, w)) for w in ("valid/entropy", "spread/held/both sizes")
    )
    axis.plot(steps[1:], entropy, color=INK, label="measured")
    axis.plot(
        steps[1:], _mean(run, case, record.gaussian(run, case.base)), color=GREEN, ls="--", label="Gaussian logits"
    )
    axis.plot(steps[1:][after], held[after], color=RED, label="sizes of the minimum")
    axis.set(ylabel="attention entropy (nats)", title=f"Entropy, {case.name}")


def _draw_factors(axis: Axes, run: Run, case: Case) -> None:
    steps = steps_of(run, case.base)
    for factor, colour in FACTORS.items():
        logs = np.log(record.values(run, case.base, f"spread/{factor}"))
        axis.plot(steps[1:], _mean(run, case, logs - logs[:, :, :1]), color=colour, label=factor)
    axis.set(ylabel="ln, since the start", title=f"Factors, {case.name}")


def _caption(run: Run, places: list[Case]) -> str:
    said = []
    for case in places:
        logs = {what: mean_over_seeds(record.case_logs(run, case, what)) for what in ("alignment", "growth")}
        error = mean_over_seeds(case.mean(record.errors(run, case.base)))
        said.append(
            f"{case.name}: to the minimum ln of alignment moves by {number(logs['alignment'])} and ln of growth by "
            f"{number(logs['growth'])}; Gaussian logits miss the entropy by {number(error, 'nats')}"
        )
    return (
        f"{'. '.join(said)}. Left: the variance of a query's logits over its keys: its parts, one upon the other; the "
        "black line is all of it. Middle: entropy, that of Gaussian logits of this variance, and that "
        "of the network with its shared and specific logits brought back to the sizes of the minimum. Right: growth of "
        "weights, alignment with the input, context; their product is the variance. Dotted: the minimum, step "
        f"{run.config['valley']:,}. Means over {run.config['seeds']} seeds on {called(run.config['corpus'])}."
    )

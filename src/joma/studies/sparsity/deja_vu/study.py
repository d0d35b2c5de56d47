"""Contextual sparsity: which heads and neurons each token needs, and whether the layer before tells.

The sizes of the quick scale were tuned until it decided something.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from joma.claims.contract import Claim, Drawing, Finding, Study
from joma.claims.declare import Claims
from joma.claims.guards import hardest
from joma.claims.verdicts import Numbers, at_least, at_most, by_effect, not_run
from joma.figures.bands import mean_and_band
from joma.figures.reading import number
from joma.figures.style import BLUE, CONTROL, GREEN, INK, ORANGE, PURPLE, Axes, panels, step_axis
from joma.measure.intervals import Comparison, compare
from joma.runs import Run
from joma.studies.sparsity._readings import check_text, known_mean
from joma.studies.sparsity.deja_vu.run import CARRIED, COMMAND, HEADS, KEPT, NEURONS, UNITS, Active, DejaVuConfig, run

UNLEARNED = "no network learned to predict the next token"
TENTH = 0.1  # of the units, or of what they are worth: half of the budget of a fifth
OUTPUT = 0.05  # of the output's norm: a predictor that tells no more than this is not worth its cost
MOST = 0.9  # of the output: what "approximately the same output" is taken to mean
ALMOST_ALL = 0.95  # of what the units are worth
UNMISSED = "with each activation, the {} after the first layer are worth 0.02 nats in fewer than two networks"
CONTROLS = ("static", "permuted", "random")


CLAIMS = Claims(unit="%", ceiling=1.0)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _by_hardest(
    claim: Claim,
    seen: Active,
    compared: Mapping[str, Mapping[str, Comparison]],
    *,
    expected: str,
    details: Numbers,
    reason: str = UNLEARNED,
    **evidence: Any,
) -> Finding:
    if not compared:
        return not_run(claim, expected, reason, COMMAND)
    cases = {}
    for activation, controls in compared.items():
        ((control, found),) = hardest(claim, controls).items()
        cases[f"{activation}, beside {control}"] = found
    return by_effect(claim, cases, expected=expected, details={**details, **seen.lost}, **evidence)


def _suffice(run: Run, claim: Claim, units: str) -> Finding:
    seen = Active(run)
    few, most = _percent(seen.config.of(units)), _percent(MOST)
    best = {one: seen.carried(one, units, "best") for one in seen.trained}
    return _by_hardest(
        claim,
        seen,
        {
            one: {
                "the untrained network": compare(row, seen.carried(one, units, "best", step=0)),
                "the same set for all tokens": compare(row, seen.carried(one, units, "static")),
            }
            for one, row in best.items()
        },
        what=f"share of the output that the best {few} of the {units} carry",
        expected=f"the best {few} of a token's {units} carry at least {most}, and 10 % more than controls",
        size=[at_least(f"carried, {one}", compare(row), MOST, "%") for one, row in best.items()],
        details={
            one: {
                f"share of the {units} needed for {_percent(seen.config.share)}": known_mean(seen.needed(one, units)),
                "the same, untrained": known_mean(seen.needed(one, units, step=0)),
                "static set, untrained": known_mean(seen.carried(one, units, "static", step=0)),
            }
            for one in best
        },
    )


for _units, _whose in ((NEURONS, "an MLP's"), (HEADS, "a layer's")):
    CLAIMS.declare(
        f"few-{_units}-suffice",
        "Deja Vu Sec. 3",
        f"In a trained network few of {_whose} {_units}, others for each token, carry nearly all of its output.",
        matters=TENTH,
    )(partial(_suffice, units=_units))


@CLAIMS.declare("sparsity-of-neurons-arises", "JoMA talk slide Further", matters=TENTH)
def _arises(run: Run, claim: Claim) -> Finding:
    """Over training fewer and fewer neurons are needed for a token.

    Expected: 10 % of the neurons fewer at the end than at the start, and no more than 5 % above the least on the way
    """
    seen = Active(run)
    cases, form = {}, []
    for activation in seen.trained:
        # What can be done without, so that more is what the claim says.
        cases[activation] = compare(1 - seen.needed(activation), 1 - seen.needed(activation, step=0))
        course = seen.over_steps(activation, NEURONS, "needed")[:, seen.learned[activation]].mean(1)
        form.append(at_most(f"end above the least, {activation}", float(course[-1] - course.min()), TENTH / 2, "%"))
    if not cases:
        return not_run(claim, claim.expected, UNLEARNED, COMMAND)
    what = f"share of the neurons that is not needed for {_percent(seen.config.share)} of the output"
    return by_effect(claim, cases, what=what, size=form, details=seen.lost)


def _predicted(run: Run, claim: Claim, units: str) -> Finding:
    seen = Active(run)
    compared, size, details = {}, [], {}
    for one in seen.trained:
        carried = {by: seen.carried(one, units, by) for by in ("best", "predicted", "from the token", *CONTROLS)}
        compared[one] = {f"{by} sets": compare(carried["predicted"], carried[by]) for by in CONTROLS}
        best = known_mean(carried["best"])
        size.append(at_least(f"of what the best carry, {one}", compare(carried["predicted"] / best), MOST, "%"))
        first, usual = (known_mean(seen.carried(one, units, by, step=0)) for by in ("predicted", "static"))
        details[one] = {
            "best sets": best,
            "told from the token and its place alone": known_mean(carried["from the token"]),
            "untrained, predicted beyond static": first - usual,
        }
    what = f"share of the output that the predicted {_percent(seen.config.of(units))} of the {units} carry"
    expected = (
        f"5 % more of the output than static, permuted and random sets, and {_percent(MOST)} of what the best carry"
    )
    return _by_hardest(claim, seen, compared, what=what, expected=expected, size=size, details=details)


def _skipped(run: Run, claim: Claim, units: str) -> Finding:
    seen = Active(run)
    missed = [one for one in seen.trained if np.isfinite(seen.worth(one, units, "best")).sum() >= 2]
    kept = {one: seen.worth(one, units, "predicted") for one in missed}
    costs = {
        f"what the {units} are worth": "none",
        "loss by predicted sets": "predicted",
        "by static sets": "static",
        "by the best sets": "best",
    }
    return _by_hardest(
        claim,
        seen,
        {one: {f"{by} sets": compare(row, seen.worth(one, units, by)) for by in CONTROLS} for one, row in kept.items()},
        what=f"share that the predicted {units} keep of what all of them are worth",
        expected=f"{_percent(ALMOST_ALL)} of what the {units} are worth, and 10 % more than static, permuted, random "
        "sets",
        reason=UNMISSED.format(units) if seen.trained else UNLEARNED,
        size=[at_least(f"kept, {one}", compare(row), ALMOST_ALL, "%") for one, row in kept.items()],
        details={f"{one}, in nats": {name: seen.cost(one, units, by) for name, by in costs.items()} for one in missed},
    )


for _units in UNITS:
    CLAIMS.declare(
        f"{_units}-are-told-a-layer-before",
        "Deja Vu Sec. 4",
        f"The input of the layer before tells which {_units} a token needs.",
        matters=OUTPUT,
        uses=(f"deja-vu/few-{_units}-suffice",),
    )(partial(_predicted, units=_units))
for _units in UNITS:
    CLAIMS.declare(
        f"other-{_units}-can-be-left-out",
        "Deja Vu Sec. 4",
        f"A network that computes only the predicted {_units} predicts the next token almost as well.",
        matters=TENTH,
        uses=(f"deja-vu/{_units}-are-told-a-layer-before",),
    )(partial(_skipped, units=_units))

COLOURS = (BLUE, ORANGE, GREEN, PURPLE)
SETS = ("best", "predicted", "from the token", "static", "permuted", "random")
"""From the most that a set can carry to the least that it should."""


def draw(run: Run) -> list[Drawing]:
    """Over training, then at the end what sets carry, then what they cost."""
    seen = Active(run)
    return [_over_training(seen), _carried(seen), _kept(seen)]


def _over_training(seen: Active) -> Drawing:
    figure, axes = panels(len(UNITS), width=4.2)
    ends: dict[tuple[str, str], list[str]] = {}
    for axis, units in zip(axes, UNITS, strict=True):
        for colour, activation in zip(COLOURS, seen.config.activations, strict=False):
            rows = seen.over_steps(activation, units, "needed")
            mean_and_band(axis, seen.steps(activation), rows, color=colour, label=activation)
            ends[activation, units] = [number(float(rows[at].mean()), "%") for at in (0, -1)]
        axis.set(title=units.capitalize(), ylabel=f"share of {units} needed", ylim=(0, 1.02))
        step_axis(axis)
    parts = [
        f"With {one}, a token needs {ends[one, NEURONS][0]} of the neurons for {number(seen.config.share, '%')} of an "
        f"MLP's output before training and {ends[one, NEURONS][1]} after it, and {ends[one, HEADS][1]} of the heads."
        for one in seen.config.activations
    ]
    how = f" Lines are means over {seen.config.seeds} networks, their layers and tokens; bands show all networks."
    return Drawing("needed-over-training", " ".join(parts) + how, figure)


def _carried(seen: Active) -> Drawing:
    figure, axes = panels(len(UNITS), width=4.6)
    found = {
        units: {
            one: dict(zip(CARRIED, seen.over_steps(one, units, "carried")[-1].T, strict=True))
            for one in seen.config.activations
        }
        for units in UNITS
    }
    for axis, units in zip(axes, UNITS, strict=True):
        _rows(axis, found[units], SETS)
        title = f"{number(seen.config.of(units), '%')} of the {units}"
        axis.set(title=title, xlabel="share of the output that they carry", xlim=(0, 1.02))
    parts = [
        f"With {one}, predicted neurons carry {_mean(sets['predicted'])} of the output, where the best carry "
        f"{_mean(sets['best'])} and one set for all tokens {_mean(sets['static'])}."
        for one, sets in found[NEURONS].items()
    ]
    how = (
        " Dots are networks at the end of training, means over tokens and all layers but the first. Sets are predicted "
        "from the input of the layer before by a linear map that was fitted on other text; from the token: from the "
        "embedding and place alone; permuted: predicted for another token."
    )
    return Drawing("what-sets-carry", " ".join(parts) + how, figure)


def _kept(seen: Active) -> Drawing:
    rows = [name for name in SETS if name in KEPT]
    figure, axes = panels(len(UNITS), width=4.6)
    found = {
        units: {one: {name: seen.worth(one, units, name) for name in rows} for one in seen.config.activations}
        for units in UNITS
    }
    for axis, units in zip(axes, UNITS, strict=True):
        _rows(axis, found[units], rows)
        axis.axvline(1, color=CONTROL, ls="--", lw=1)
        title = f"{number(seen.config.of(units), '%')} of the {units} computed"
        axis.set(title=title, xlabel=f"share kept of what the {units} are worth")
    parts = []
    for one in seen.config.activations:
        predicted, static, none = (
            number(seen.cost(one, NEURONS, by), "nats") for by in ("predicted", "static", "none")
        )
        parts.append(
            f"With {one}, a network that computes only the predicted {number(seen.config.budget, '%')} of its neurons "
            f"loses {predicted} where static sets lose {static} and no neurons at all {none}."
        )
    parts += [
        f"With {one}, the neurons that contribute most keep less than random ones, {_mean(sets['best'])} against "
        f"{_mean(sets['random'])}."
        for one, sets in found[NEURONS].items()
        if np.all(sets["best"] < sets["random"])
    ]
    how = (
        " Worth is the loss without any of them less the loss with all, in all layers but the first. Dots are networks."
    )
    return Drawing("what-sets-keep", " ".join(parts) + how, figure)


def _mean(values: Any) -> str:
    return number(known_mean(values), "%") if np.isfinite(values).any() else "no number"


def _rows(axis: Axes, values: dict[str, dict[str, Any]], rows: Sequence[str]) -> None:
    for place, (colour, (activation, sets)) in enumerate(zip(COLOURS, values.items(), strict=False)):
        for row, name in enumerate(rows):
            known = sets[name][np.isfinite(sets[name])]
            at = np.full(len(known), row + (place - (len(values) - 1) / 2) * 0.2)
            axis.plot(known, at, "o", ms=4.5, color=colour, alpha=0.8, label=activation if row == 0 else None)
    axis.set_yticks(range(len(rows)), list(rows) if axis.get_position().x0 < 0.3 else [""] * len(rows))
    axis.set(ylim=(len(rows) - 0.5, -0.5), ylabel="kind of set")
    axis.legend(loc="best", fontsize=7.5, labelcolor=INK)


STUDY = Study(
    name="deja-vu",
    title="Deja Vu: can the heads and neurons that a token needs be predicted?",
    version=1,
    claims=CLAIMS,
    # With ten seeds from 3000 on all claims were decided, most of them by differences that five seeds show.
    quick=DejaVuConfig(seeds=5),
    paper=DejaVuConfig(
        corpus="wikitext-2", tokens=1_000_000_000, vocabulary=4_000, layers=6, width=512, heads=8, mlp=2048,
        length=128, batch=16, steps=1_500, measure_at=(50, 100, 200, 400, 800), rate=5e-4, sequences=32, seeds=5,
        device="cuda", precision="tf32",
    ),
    run=run,
    draw=draw,
    check=check_text,
    about=(
        "Decoders are trained on a text, with ReLU and with GELU. At several steps, every token is asked which neurons "
        "and which heads carry 90 % of what their layer adds to the stream. Sets of one size are then compared: the "
        "best for each token, those that a linear map predicts from the input of the layer before, and as controls one "
        "set for all tokens, sets predicted for another token, and random sets. The map is fitted on other text than "
        "it is asked about. A second map sees only the token and its place. At last the networks compute only the "
        "units of a set, in all layers but the first, and their loss says what that costs. A network that did not "
        "learn does not count."
    ),
)  # fmt: skip

"""What the study `deja-vu` claims, and how it judges: what sets of units carry, over seeds, beside its controls.

What matters and the sizes were set after one look at the quick scale, and before any network of paper scale. The
rule that units worth less than `NATS` count as nothing to keep came after a quick result had been seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from joma.claims.claim import Claim
from joma.claims.evidence import at_least, at_most
from joma.claims.finding import Finding
from joma.claims.guards import hardest
from joma.claims.verdicts import Numbers, by_effect, not_run
from joma.measure.intervals import Comparison, compare
from joma.runs import Run
from joma.studies.sparsity._readings import known_mean
from joma.studies.sparsity.deja_vu.record import Active
from joma.studies.sparsity.deja_vu.run import COMMAND, HEADS, NEURONS, UNITS

UNLEARNED = "no network learned to predict the next token"
TENTH = 0.1  # of the units, or of what they are worth: half of the budget of a fifth
OUTPUT = 0.05  # of the output's norm: a predictor that tells no more than this is not worth its cost
MOST = 0.9  # of the output: what "approximately the same output" is taken to mean
ALMOST_ALL = 0.95  # of what the units are worth
UNMISSED = "with each activation, the {} after the first layer are worth 0.02 nats in fewer than two networks"
CONTROLS = ("static", "permuted", "random")


def _claim(name: str, place: str, says: str, matters: float, *uses: str) -> Claim:
    return Claim(name, place, says, matters=matters, unit="%", ceiling=1.0, uses=uses)


SUFFICE = {
    units: _claim(
        f"few-{units}-suffice",
        "Deja Vu Sec. 3",
        f"In a trained network few of {whose} {units}, others for each token, carry nearly all of its output.",
        TENTH,
    )
    for units, whose in ((NEURONS, "an MLP's"), (HEADS, "a layer's"))
}
ARISES = _claim(
    "sparsity-of-neurons-arises",
    "JoMA talk slide Further",
    "Over training fewer and fewer neurons are needed for a token.",
    TENTH,
)
PREDICTED = {
    units: _claim(
        f"{units}-are-told-a-layer-before",
        "Deja Vu Sec. 4",
        f"The input of the layer before tells which {units} a token needs.",
        OUTPUT,
        f"deja-vu/few-{units}-suffice",
    )
    for units in UNITS
}
SKIPPED = {
    units: _claim(
        f"other-{units}-can-be-left-out",
        "Deja Vu Sec. 4",
        f"A network that computes only the predicted {units} predicts the next token almost as well.",
        TENTH,
        f"deja-vu/{units}-are-told-a-layer-before",
    )
    for units in UNITS
}


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
    """By the hardest control of every activation. compared: activations, and their controls; not run without any."""
    if not compared:
        return not_run(claim, expected, reason, COMMAND)
    cases = {}
    for activation, controls in compared.items():
        ((control, found),) = hardest(claim, controls).items()
        cases[f"{activation}, beside {control}"] = found
    return by_effect(claim, cases, expected=expected, details={**details, **seen.lost}, **evidence)


def _suffice(units: str, run: Run) -> Finding:
    seen = Active(run)
    few, most = _percent(seen.config.of(units)), _percent(MOST)
    best = {one: seen.carried(one, units, "best") for one in seen.trained}
    return _by_hardest(
        SUFFICE[units],
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
        size=[at_least(f"carried, {one}", known_mean(row), MOST, "%") for one, row in best.items()],
        details={
            one: {
                f"share of the {units} needed for {_percent(seen.config.share)}": known_mean(seen.needed(one, units)),
                "the same, untrained": known_mean(seen.needed(one, units, step=0)),
                "static set, untrained": known_mean(seen.carried(one, units, "static", step=0)),
            }
            for one in best
        },
    )


def _arises(run: Run) -> Finding:
    seen = Active(run)
    expected = "10 % of the neurons fewer at the end than at the start, and no more than 5 % above the least on the way"
    cases, form = {}, []
    for activation in seen.trained:
        # What can be done without, so that more is what the claim says.
        cases[activation] = compare(1 - seen.needed(activation), 1 - seen.needed(activation, step=0))
        course = seen.over_steps(activation, NEURONS, "needed")[:, seen.learned[activation]].mean(1)
        form.append(at_most(f"end above the least, {activation}", float(course[-1] - course.min()), TENTH / 2, "%"))
    if not cases:
        return not_run(ARISES, expected, UNLEARNED, COMMAND)
    what = f"share of the neurons that is not needed for {_percent(seen.config.share)} of the output"
    return by_effect(ARISES, cases, what=what, expected=expected, size=form, details=seen.lost)


def _predicted(units: str, run: Run) -> Finding:
    seen = Active(run)
    compared, size, details = {}, [], {}
    for one in seen.trained:
        carried = {by: seen.carried(one, units, by) for by in ("best", "predicted", "from the token", *CONTROLS)}
        compared[one] = {f"{by} sets": compare(carried["predicted"], carried[by]) for by in CONTROLS}
        best = known_mean(carried["best"])
        size.append(at_least(f"of what the best carry, {one}", known_mean(carried["predicted"]) / best, MOST, "%"))
        first, usual = (known_mean(seen.carried(one, units, by, step=0)) for by in ("predicted", "static"))
        details[one] = {
            "best sets": best,
            "told from the token and its place alone": known_mean(carried["from the token"]),
            "untrained, predicted beyond static": first - usual,
        }
    return _by_hardest(
        PREDICTED[units],
        seen,
        compared,
        what=f"share of the output that the predicted {_percent(seen.config.of(units))} of the {units} carry",
        expected="5 % more of the output than static, permuted and random sets, and "
        f"{_percent(MOST)} of what the best carry",
        size=size,
        details=details,
    )


def _skipped(units: str, run: Run) -> Finding:
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
        SKIPPED[units],
        seen,
        {one: {f"{by} sets": compare(row, seen.worth(one, units, by)) for by in CONTROLS} for one, row in kept.items()},
        what=f"share that the predicted {units} keep of what all of them are worth",
        expected=f"{_percent(ALMOST_ALL)} of what the {units} are worth, and 10 % more than static, permuted, random "
        "sets",
        reason=UNMISSED.format(units) if seen.trained else UNLEARNED,
        size=[at_least(f"kept, {one}", known_mean(row), ALMOST_ALL, "%") for one, row in kept.items()],
        details={f"{one}, in nats": {name: seen.cost(one, units, by) for name, by in costs.items()} for one in missed},
    )


CLAIMS: dict[Claim, Callable[[Run], Finding]] = {
    **{SUFFICE[units]: partial(_suffice, units) for units in UNITS},
    ARISES: _arises,
    **{PREDICTED[units]: partial(_predicted, units) for units in UNITS},
    **{SKIPPED[units]: partial(_skipped, units) for units in UNITS},
}

"""What the study `deja-vu` claims, and how it judges: what sets of units carry, over seeds, beside its controls.

What matters and the sizes were set after one look at the quick scale, and before any network of paper scale. The
rule that units worth less than `NATS` count as nothing to keep came after a quick result had been seen.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log
from typing import Any

import numpy as np

from joma.claims.claim import Claim
from joma.claims.evidence import at_least, at_most
from joma.claims.finding import Finding
from joma.claims.guards import hardest
from joma.claims.verdicts import Numbers, by_effect, not_run
from joma.measure.intervals import Comparison, compare
from joma.runs import Run
from joma.studies.sparsity._active_networks import CARRIED, HEADS, KEPT, NEURONS, Config

COMMAND = "joma verify deja-vu --scale paper"
UNLEARNED = "no network learned to predict the next token"
FALLEN = 0.1  # of the loss of guessing: networks that end less below it have not learned
TENTH = 0.1  # of the units, or of what they are worth: half of the budget of a fifth
OUTPUT = 0.05  # of the output's norm: a predictor that tells no more than this is not worth its cost
MOST = 0.9  # of the output: what "approximately the same output" is taken to mean
ALMOST_ALL = 0.95  # of what the units are worth
NATS = 0.02  # of a loss: units that are worth less are not missed, whichever are left out; as in Figures 6 and 8
UNMISSED = "with each activation, the {} after the first layer are worth 0.02 nats in fewer than two networks"


def _claim(name: str, place: str, says: str, matters: float, *uses: str) -> Claim:
    return Claim(name, place, says, matters=matters, unit="%", ceiling=1.0, uses=uses)


NEURONS_SUFFICE = _claim(
    "few-neurons-suffice",
    "Deja Vu Sec. 3",
    "In a trained network few of an MLP's neurons, others for each token, carry nearly all of its output.",
    TENTH,
)
HEADS_SUFFICE = _claim(
    "few-heads-suffice",
    "Deja Vu Sec. 3",
    "In a trained network few of a layer's heads, others for each token, carry nearly all of its output.",
    TENTH,
)
ARISES = _claim(
    "sparsity-of-neurons-arises",
    "JoMA talk slide Further",
    "Over training fewer and fewer neurons are needed for a token.",
    TENTH,
)
NEURONS_TOLD = _claim(
    "neurons-are-told-a-layer-before",
    "Deja Vu Sec. 4",
    "The input of the layer before tells which neurons a token needs.",
    OUTPUT,
    "deja-vu/few-neurons-suffice",
)
HEADS_TOLD = _claim(
    "heads-are-told-a-layer-before",
    "Deja Vu Sec. 4",
    "The input of the layer before tells which heads a token needs.",
    OUTPUT,
    "deja-vu/few-heads-suffice",
)
NEURONS_SKIPPED = _claim(
    "other-neurons-can-be-left-out",
    "Deja Vu Sec. 4",
    "A network that computes only the predicted neurons predicts the next token almost as well.",
    TENTH,
    "deja-vu/neurons-are-told-a-layer-before",
)
HEADS_SKIPPED = _claim(
    "other-heads-can-be-left-out",
    "Deja Vu Sec. 4",
    "A network that computes only the predicted heads predicts the next token almost as well.",
    TENTH,
    "deja-vu/heads-are-told-a-layer-before",
)
CLAIMS = (NEURONS_SUFFICE, HEADS_SUFFICE, ARISES, NEURONS_TOLD, HEADS_TOLD, NEURONS_SKIPPED, HEADS_SKIPPED)


class Active:
    """What a run recorded. Every number is a row over seeds; networks that did not learn are NaN."""

    def __init__(self, run: Run) -> None:
        self.run = run
        known = {name: x for name, x in run.config.items() if name in Config.__dataclass_fields__}
        values: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in known.items()}
        self.config = Config(**values)
        self.guessing = log(int(run.value("words")))

    def steps(self, activation: str) -> Any:
        return self.run.steps(f"{activation}/active/{NEURONS} needed")

    def over_steps(self, activation: str, units: str, what: str) -> Any:
        """(steps, seeds, ...) of what is recorded; mean over layers."""
        found = self.run.array(f"{activation}/active/{units} {what}")
        return found if what == "loss" else found.mean(2)

    def learned(self, activation: str) -> Any:
        """(seeds,) bool."""
        return self.over_steps(activation, NEURONS, "loss")[-1, :, 0] <= (1 - FALLEN) * self.guessing

    def _of_learned(self, activation: str, rows: Any) -> Any:
        return np.where(self.learned(activation), rows, np.nan)

    def needed(self, activation: str, units: str = NEURONS, step: int = -1) -> Any:
        """(seeds,)."""
        return self._of_learned(activation, self.over_steps(activation, units, "needed")[step])

    def carried(self, activation: str, units: str, by: str, step: int = -1) -> Any:
        """(seeds,)."""
        return self._of_learned(activation, self.over_steps(activation, units, "carried")[step][:, CARRIED.index(by)])

    def worth(self, activation: str, units: str, by: str) -> Any:
        """(seeds,): the share that is left of what the units are worth, which is what the loss lacks without any.

        NaN where they are worth nothing.
        """
        loss = self.over_steps(activation, units, "loss")[-1]
        none, everything = loss[:, KEPT.index("none")], loss[:, KEPT.index("all")]
        worth = np.where(none - everything >= NATS, none - everything, np.nan)
        return self._of_learned(activation, (none - loss[:, KEPT.index(by)]) / worth)

    def cost(self, activation: str, units: str, by: str) -> float:
        """In nats, mean over the networks that learned."""
        loss = self.over_steps(activation, units, "loss")[-1]
        return _mean(self._of_learned(activation, loss[:, KEPT.index(by)] - loss[:, KEPT.index("all")]))

    @property
    def lost(self) -> Numbers:
        """How many networks do not count; empty where all do."""
        count = sum(int((~self.learned(activation)).sum()) for activation in self.config.activations)
        return {"left out because they did not learn": {"networks": float(count)}} if count else {}


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _mean(row: Any) -> float:
    return float(np.nanmean(row))


def _cases(
    claim: Claim, activations: list[str], against: Callable[[str], dict[str, Comparison]]
) -> dict[str, Comparison]:
    """The hardest comparison of every activation."""
    cases = {}
    for activation in activations:
        ((control, found),) = hardest(claim, against(activation)).items()
        cases[f"{activation}, beside {control}"] = found
    return cases


def _trained(seen: Active) -> list[str]:
    """Activations with two networks that learned, or more."""
    return [activation for activation in seen.config.activations if seen.learned(activation).sum() >= 2]


def _suffice(claim: Claim, units: str) -> Callable[[Run], Finding]:
    def judge(run: Run) -> Finding:
        seen = Active(run)
        budget = seen.config.of(units)
        few, most = _percent(budget), _percent(MOST)
        expected = f"the best {few} of a token's {units} carry at least {most}, and 10 % more than controls"

        def against(activation: str) -> dict[str, Comparison]:
            best = seen.carried(activation, units, "best")
            return {
                "the untrained network": compare(best, seen.carried(activation, units, "best", step=0)),
                "the same set for all tokens": compare(best, seen.carried(activation, units, "static")),
            }

        if not (cases := _cases(claim, _trained(seen), against)):
            return not_run(claim, expected, UNLEARNED, COMMAND)
        best = {activation: _mean(seen.carried(activation, units, "best")) for activation in _trained(seen)}
        return by_effect(
            claim,
            cases,
            what=f"share of the output that the best {_percent(budget)} of the {units} carry",
            expected=expected,
            size=[at_least(f"carried, {activation}", share, MOST, "%") for activation, share in best.items()],
            details={
                activation: {
                    f"share of the {units} needed for {_percent(seen.config.share)}": _mean(
                        seen.needed(activation, units)
                    ),
                    "the same, untrained": _mean(seen.needed(activation, units, step=0)),
                    "static set, untrained": _mean(seen.carried(activation, units, "static", step=0)),
                }
                for activation in best
            }
            | dict(seen.lost),
        )

    return judge


def _arises(run: Run) -> Finding:
    seen = Active(run)
    expected = "10 % of the neurons fewer at the end than at the start, and no more than 5 % above the least on the way"
    cases, form = {}, []
    for activation in _trained(seen):
        # What can be done without, so that more is what the claim says.
        cases[activation] = compare(1 - seen.needed(activation), 1 - seen.needed(activation, step=0))
        course = seen.over_steps(activation, NEURONS, "needed")[:, seen.learned(activation)].mean(1)
        form.append(at_most(f"end above the least, {activation}", float(course[-1] - course.min()), TENTH / 2, "%"))
    if not cases:
        return not_run(ARISES, expected, UNLEARNED, COMMAND)
    return by_effect(
        ARISES,
        cases,
        what=f"share of the neurons that is not needed for {_percent(seen.config.share)} of the output",
        expected=expected,
        size=form,
        details=seen.lost,
    )


def _told(claim: Claim, units: str) -> Callable[[Run], Finding]:
    def judge(run: Run) -> Finding:
        seen = Active(run)
        expected = (
            f"5 % more of the output than static, permuted and random sets, and {_percent(MOST)} of what the best carry"
        )

        def against(activation: str) -> dict[str, Comparison]:
            told = seen.carried(activation, units, "predicted")
            return {
                f"{control} sets": compare(told, seen.carried(activation, units, control))
                for control in ("static", "permuted", "random")
            }

        if not (cases := _cases(claim, _trained(seen), against)):
            return not_run(claim, expected, UNLEARNED, COMMAND)
        size, beside = [], {}
        for activation in _trained(seen):
            best, told, token = (
                _mean(seen.carried(activation, units, by)) for by in ("best", "predicted", "from the token")
            )
            first, usual = (_mean(seen.carried(activation, units, by, step=0)) for by in ("predicted", "static"))
            size.append(at_least(f"of what the best carry, {activation}", told / best, MOST, "%"))
            beside[activation] = {
                "best sets": best,
                "told from the token and its place alone": token,
                "untrained, predicted beyond static": first - usual,
            }
        return by_effect(
            claim,
            cases,
            what=f"share of the output that the predicted {_percent(seen.config.of(units))} of the {units} carry",
            expected=expected,
            size=size,
            details=beside | dict(seen.lost),
        )

    return judge


def _skipped(claim: Claim, units: str) -> Callable[[Run], Finding]:
    def judge(run: Run) -> Finding:
        seen = Active(run)
        expected = (
            f"{_percent(ALMOST_ALL)} of what the {units} are worth, and 10 % more than static, permuted, random sets"
        )

        def against(activation: str) -> dict[str, Comparison]:
            left = seen.worth(activation, units, "predicted")
            return {
                f"{control} sets": compare(left, seen.worth(activation, units, control))
                for control in ("static", "permuted", "random")
            }

        missed = [one for one in _trained(seen) if np.isfinite(seen.worth(one, units, "best")).sum() >= 2]
        if not (cases := _cases(claim, missed, against)):
            reason = UNMISSED.format(units) if _trained(seen) else UNLEARNED
            return not_run(claim, expected, reason, COMMAND)
        worth = {activation: _mean(seen.worth(activation, units, "predicted")) for activation in missed}
        return by_effect(
            claim,
            cases,
            what=f"share that the predicted {units} keep of what all of them are worth",
            expected=expected,
            size=[at_least(f"kept, {activation}", share, ALMOST_ALL, "%") for activation, share in worth.items()],
            details={
                f"{activation}, in nats": {
                    f"what the {units} are worth": seen.cost(activation, units, "none"),
                    "loss by predicted sets": seen.cost(activation, units, "predicted"),
                    "by static sets": seen.cost(activation, units, "static"),
                    "by the best sets": seen.cost(activation, units, "best"),
                }
                for activation in worth
            }
            | dict(seen.lost),
        )

    return judge


JUDGES: tuple[Callable[[Run], Finding], ...] = (
    _suffice(NEURONS_SUFFICE, NEURONS),
    _suffice(HEADS_SUFFICE, HEADS),
    _arises,
    _told(NEURONS_TOLD, NEURONS),
    _told(HEADS_TOLD, HEADS),
    _skipped(NEURONS_SKIPPED, NEURONS),
    _skipped(HEADS_SKIPPED, HEADS),
)

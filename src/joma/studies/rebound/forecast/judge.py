"""Judges of `forecast`: entropy and logits are the cases, the best control decides.

The skill is compared with that of the best control: "no change", whose skill is 0, a straight line, or earlier runs,
whichever has the highest mean. That rule was made after the first quick run had been seen.
"""

from __future__ import annotations

from joma.claims.contract import Claim, Finding
from joma.claims.verdicts import by_effect, not_run
from joma.measure.intervals import Comparison, compare
from joma.recipes.language_curves import mean_over_seeds
from joma.recipes.language_findings import diverged, learned_nothing
from joma.runs import Run
from joma.studies.rebound.forecast.record import CONTROLS, KNOWN, QUANTITIES, THEOREM, skill_of, variants_of
from joma.studies.rebound.forecast.theory import Form

MATTERS = 0.1
"""Of the squared error of persistence. Who plans by a forecast that avoids less than a tenth of it gains nothing that
another seed would not take away."""


def judge_skill(claim: Claim, names: dict[Form, str], run: Run) -> Finding:
    """The skill of the forecaster that has these names, printed and corrected."""
    expected = (
        "entropy and logits at step 2t are foretold with a skill above that of no change and of every other control, "
        f"by at least {100 * MATTERS:g} % of the squared error of persistence and by more than seeds differ (95 %)"
    )
    trained = [name.removesuffix("/rates") for name in run.names() if name.endswith("/rates")]
    by_optimizer = variants_of(run)
    everyone = [name for variants in by_optimizer.values() for name in variants]
    if not everyone:
        reasons = "; ".join(learned_nothing(run, name) for name in trained)
        return not_run(claim, expected, reasons, f"joma run forecast with more --steps than {run.config['steps']}")
    details = {}
    for quantity in QUANTITIES:
        ours = compare(skill_of(run, everyone, quantity, names["corrected"]))
        numbers = {"skill": ours.value, "from": ours.low, "to": ours.high}
        details[f"corrected form against no change, {quantity}"] = numbers
    for optimizer, variants in by_optimizer.items():
        for quantity in QUANTITIES if variants else ():
            known = (KNOWN["corrected"],) if names == THEOREM and quantity == "logits" else ()
            forecasters = (*CONTROLS, *names.values(), *known)
            details[f"skill with {optimizer}, {quantity}"] = {
                name: mean_over_seeds(skill_of(run, variants, quantity, name)) for name in forecasters
            }
    return by_effect(
        claim,
        _cases(run, everyone, names["printed"]),
        corrected=_cases(run, everyone, names["corrected"]),
        expected=expected,
        what="skill over persistence",
        details=details | diverged(run, trained),
    )


def _cases(run: Run, variants: list[str], forecaster: str) -> dict[str, Comparison]:
    found = {}
    for quantity in QUANTITIES:
        ours = skill_of(run, variants, quantity, forecaster)
        against = {"no change": compare(ours, 0.0)}
        against |= {name: compare(ours, skill_of(run, variants, quantity, name)) for name in CONTROLS}
        best = max(against, key=lambda name: against[name].control)
        found[f"{quantity}, against {best}"] = against[best]
    return found

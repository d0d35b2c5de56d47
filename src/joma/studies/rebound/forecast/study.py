"""The study `forecast`: its claims and their judge."""

from __future__ import annotations

from functools import partial

from joma.claims.contract import Claim, Drawing, Finding, Study
from joma.claims.verdicts import by_effect, not_run
from joma.measure.intervals import Comparison, compare
from joma.recipes.language import PAPER, same_text
from joma.recipes.language.curves import diverged, learned_nothing, mean_over_seeds
from joma.runs import Run
from joma.studies.rebound.forecast.figures import draw_paths, draw_skill
from joma.studies.rebound.forecast.record import CONTROLS, EQUATION, KNOWN, QUANTITIES, THEOREM, skill_of, variants_of
from joma.studies.rebound.forecast.run import ForecastConfig, run
from joma.studies.rebound.forecast.theory import Form

MATTERS = 0.1
"""Of the squared error of persistence. Who plans by a forecast that avoids less than a tenth of it gains nothing that
another seed would not take away."""

FORETELLS = Claim(
    "theorem-1-foretells",
    "JoMA Thm 1",
    "Attention follows from the MLP's weights. Tested as a forecast: from step t, attention at step 2t is foretold "
    "better than by no change, by a straight line, or by earlier runs.",
    corrected="The same, with the mean attention b̄ of the time in place of that of the start.",
    matters=MATTERS,
    unit="%",
    ceiling=1.0,
    uses=("fig6/logits-of-a-language-model",),
)
GROWTH = Claim(
    "equation-6-foretells",
    "JoMA eq. 6",
    "The MLP's weights grow towards a target μ, at a speed that attention multiplies. Tested as a forecast with a "
    "fitted μ: from step t, attention at step 2t is foretold better than by no change, by a straight line, or by "
    "earlier runs.",
    corrected="The same with attention softmax(v²/2), which follows from eq. 6 and Theorem 1, in place of softmax(v²).",
    matters=MATTERS,
    unit="%",
    ceiling=1.0,
    uses=("eq6/entropy-drops", "eq6/entropy-rebounds"),
)


def judge_skill(claim: Claim, names: dict[Form, str], run: Run) -> Finding:
    """The skill of the forecaster that has these names, printed and corrected, of entropy and of logits.

    It is compared with that of the best control: "no change", whose skill is 0, a straight line, or earlier runs,
    whichever has the highest mean. That rule was made after the first quick run had been seen.
    """
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


def draw(run: Run) -> list[Drawing]:
    """Skill over t by forecaster, and what three of them say on the way."""
    learned = {optimizer: variants for optimizer, variants in variants_of(run).items() if variants}
    return [draw_skill(run, learned), draw_paths(run, learned)]


STUDY = Study(
    name="forecast",
    title="Forecast: what JoMA foretells of a real training",
    version=1,
    claims={
        FORETELLS: partial(judge_skill, FORETELLS, THEOREM),
        GROWTH: partial(judge_skill, GROWTH, EQUATION),
    },
    quick=ForecastConfig(),
    paper=ForecastConfig(
        **PAPER | {"length": 35, "valid_sequences": 100, "steps": 11_585, "every": 8, "seeds": 6},
        rate=1e-4,
        sgd_rate=3.0,
        words=100,
        first=64,
    ),
    run=run,
    draw=draw,
    check=same_text,
    about=(
        "Decoders are trained and measured at steps that are √2 apart. From each step t, the attention at step 2t is "
        "foretold: the entropy of each layer, and the logits of the most frequent words. Theorem 1 gives logits from "
        "the MLP's weights, which go on as they did since step t/2. Eq. 6 gives the growth of these weights, with μ "
        "fitted to the past. For entropy, the curve of eq. 6 is fitted to the entropy's past. The controls are: no "
        "change, a straight line in t and in log t through the past since t/2, and the mean curve of earlier runs (the "
        "other seeds), moved to the present value. Skill is the part of the squared error of no change that a "
        "forecast avoids. No forecast sees anything of its own run after step t."
    ),
)

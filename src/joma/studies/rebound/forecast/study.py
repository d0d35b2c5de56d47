"""The study `forecast`: its claims, its sizes and what it is about."""

from __future__ import annotations

from functools import partial

from joma.claims.contract import Claim, Drawing, Study
from joma.recipes.language import PAPER, same_text
from joma.runs import Run
from joma.studies.rebound.forecast.figures import draw_paths, draw_skill
from joma.studies.rebound.forecast.judge import MATTERS, judge_skill
from joma.studies.rebound.forecast.record import EQUATION, THEOREM, variants_of
from joma.studies.rebound.forecast.run import ForecastConfig, run

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

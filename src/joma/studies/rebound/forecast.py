"""Can JoMA foretell a training? Attention at step 2t from what is known at step t, beside forecasts without theory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Claim, Drawing, Finding, Progress, Study, each_claim
from joma.claims.verdicts import by_effect, not_run
from joma.data.text import Corpus
from joma.measure.intervals import Comparison, compare
from joma.recipes.language import PAPER, LanguageModelConfig, Recipe, corpus, recipe, same_text
from joma.recipes.language_findings import diverged, learned_nothing
from joma.runs import Run
from joma.studies.rebound._forecast_figures import draw_paths, draw_skill
from joma.studies.rebound._forecast_reading import skill_of, skills, variants_of
from joma.studies.rebound._forecast_scores import (
    CONTROLS,
    EQUATION,
    KNOWN,
    QUANTITIES,
    THEOREM,
    WORDS,
    keep_scores,
    past_of_words,
)
from joma.studies.rebound._forecast_theory import Form, Past, logit_shift
from joma.studies.rebound._forecast_words import Words, entropy_after, look_at_words, words_of
from joma.studies.rebound._points import Measure, read_at_points, spread_points, train_measured

AHEAD = 2
MATTERS = 0.1
"""Of the squared error of persistence. Who plans by a forecast that avoids less than a tenth of it gains nothing that
another seed would not take away."""


@dataclass(frozen=True)
class Config(LanguageModelConfig):
    """Small models of Python source, trained with Adam and, as the theory has it, with SGD."""

    vocabulary: int = 200
    width: int = 24
    mlp: int = 24
    streams: int = 4
    length: int = 24
    sequence: int = 5
    valid_sequences: int = 4
    steps: int = 91
    every: int = 8
    """The first measuring point after the start. Each later one is √2 times as late."""
    layers: tuple[int, ...] = (1, 2)
    rate: float = 3e-3
    """Of Adam."""
    sgd_rate: float = 1.0
    """Of SGD, which trains networks of the first of these depths."""
    words: int = 40
    """The most frequent words, whose logits are foretold."""
    first: int = 16
    """The first step from which something is foretold."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.first < AHEAD * self.every:
            raise ValueError(
                f"first must be at least {AHEAD} times every = {self.every} to have a past, got {self.first}"
            )
        if self.steps < AHEAD * self.first:
            raise ValueError(f"steps must be at least {AHEAD} times first = {self.first}, got {self.steps}")
        if self.heads > 1:
            raise ValueError(f"heads must be 1: with several the theorem does not say whose logits, got {self.heads}")


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


def run(config: Config, run: Run, progress: Progress) -> None:
    """Train, recording what Theorem 1 foretells while the networks are there; then make all other forecasts."""
    text = corpus(config, progress)
    variants = _variants(config, text)
    points = spread_points(config.every, config.steps)
    followed = {name: _words(config, variant, text) for name, variant in variants.items()}
    one = next(iter(followed.values()))
    run.keep(f"{WORDS}/sizes", lambda: one.sizes.cpu().numpy())
    run.keep(f"{WORDS}/shares", lambda: one.shares.cpu().numpy())
    measures = {name: {WORDS: _foretelling(words, name, run, points)} for name, words in followed.items()}
    train_measured(variants, text, run, progress, points, measures)
    for name in variants:
        progress(0.96, f"{name}: making forecasts")
        keep_scores(run, name, config.first)


def _variants(config: Config, text: Corpus) -> dict[str, Recipe]:
    adam = {
        f"Adam, {_depth(layers)}": recipe(config, text, layers=layers, rates=(config.rate,)) for layers in config.layers
    }
    first = adam[f"Adam, {_depth(config.layers[0])}"]
    sgd = first.with_(rates=(config.sgd_rate,)).with_optimizer(kind="sgd", renew_every=None)
    return {**adam, f"SGD, {_depth(config.layers[0])}": sgd}


def _depth(layers: int) -> str:
    return f"{layers} layer{'s' if layers > 1 else ''}"


def _words(config: Config, variant: Recipe, text: Corpus) -> Words:
    seen, tokens = read_at_points(variant, text)
    if config.words >= len(seen.vocabulary):
        raise ValueError(f"words must be below {len(seen.vocabulary)}, those of the vocabulary, got {config.words}")
    return words_of(seen, tokens, config.words)


def _foretelling(words: Words, variant: str, run: Run, points: Sequence[int]) -> Measure:
    """The words now, and the entropy of every layer at step 2t by Theorem 1. The past is read from the record."""
    sizes, shares = words.sizes.cpu(), words.shares.cpu()

    def measure(decoder: Any, members: Sequence[int]) -> dict[str, Tensor]:
        now = look_at_words(decoder, words)
        past = _with(past_of_words(run, variant, np.asarray(members)), points, now) if _begun(run, variant) else None
        found = {name: value.float() for name, value in now.items()}
        for form in get_args(Form):
            shift = torch.zeros_like(now["logits"])
            if past is not None:
                shift = logit_shift(past, AHEAD * float(past.steps[-1]), sizes, shares, form=form).to(shift)
            found[f"entropy, {form}"] = entropy_after(decoder, words, shift)
        return found

    return measure


def _begun(run: Run, variant: str) -> bool:
    return f"{variant}/{WORDS}/logits" in run


def _with(past: Past, points: Sequence[int], now: dict[str, Tensor]) -> Past:
    """The past and the present, which is recorded only when all is measured; in the numbers that are recorded."""
    step = torch.tensor([float(points[len(past.steps)])], dtype=torch.float64)
    parts = [now[name].float().double().cpu()[None] for name in ("logits", "squares", "attention")]
    return Past(torch.cat([past.steps, step]), *(torch.cat(pair) for pair in zip(past[1:], parts, strict=True)))


def _judged(claim: Claim, run: Run, names: dict[Form, str]) -> Finding:
    """Entropy and logits are the cases. The skill is compared with that of the best control: "no change", whose skill
    is 0, a straight line, or earlier runs, whichever has the highest mean. That rule was made after the first quick run
    had been seen.
    """
    expected = (
        "entropy and logits at step 2t are foretold with a skill above that of no change and of every other control, "
        f"by at least {100 * MATTERS:g} % of the squared error of persistence and by more than seeds differ (95 %)"
    )
    told = variants_of(run)
    if not any(told.values()):
        reasons = "; ".join(learned_nothing(run, name) for name in _recorded(run))
        return not_run(claim, expected, reasons, f"joma run forecast with more --steps than {run.config['steps']}")
    forms = {form: _cases(run, told, name) for form, name in names.items()}
    return by_effect(
        claim,
        forms["printed"],
        corrected=forms["corrected"],
        expected=expected,
        what="skill over persistence",
        details=_beside(run, told, names) | diverged(run, _recorded(run)),
    )


def _cases(run: Run, told: dict[str, list[str]], forecaster: str) -> dict[str, Comparison]:
    found = {}
    variants = [name for names in told.values() for name in names]
    for quantity in QUANTITIES:
        ours = skill_of(run, variants, quantity, forecaster)
        against = {"no change": compare(ours, 0.0)}
        against |= {name: compare(ours, skill_of(run, variants, quantity, name)) for name in CONTROLS}
        best = max(against, key=lambda name: against[name].control)
        found[f"{quantity}, against {best}"] = against[best]
    return found


def _beside(run: Run, told: dict[str, list[str]], names: dict[Form, str]) -> dict[str, dict[str, float]]:
    """The skill of every forecaster, and what Theorem 1 would say of the logits if it knew the weights to come."""
    found = {}
    everyone = [name for variants in told.values() for name in variants]
    for quantity in QUANTITIES:
        ours = compare(skill_of(run, everyone, quantity, names["corrected"]))
        found[f"corrected form against no change, {quantity}"] = {
            "skill": ours.value,
            "from": ours.low,
            "to": ours.high,
        }
    for optimizer, variants in told.items():
        for quantity in QUANTITIES if variants else ():
            known = (KNOWN["corrected"],) if names == THEOREM and quantity == "logits" else ()
            forecasters = (*CONTROLS, *names.values(), *known)
            found[f"skill with {optimizer}, {quantity}"] = skills(run, variants, quantity, forecasters)
    return found


def _recorded(run: Run) -> list[str]:
    return [name.removesuffix("/rates") for name in run.names() if name.endswith("/rates")]


def _theorem(run: Run) -> Finding:
    return _judged(FORETELLS, run, THEOREM)


def _equation(run: Run) -> Finding:
    return _judged(GROWTH, run, EQUATION)


def draw(run: Run) -> list[Drawing]:
    """Skill over t by forecaster, and what three of them say on the way."""
    told = variants_of(run)
    return [draw_skill(run, told), draw_paths(run, told)]


STUDY = Study(
    name="forecast",
    title="Forecast: what JoMA foretells of a real training",
    version=1,
    claims=(FORETELLS, GROWTH),
    quick=Config(),
    paper=Config(
        **PAPER | {"length": 35, "valid_sequences": 100, "steps": 11_585, "every": 8, "seeds": 6},
        rate=1e-4,
        sgd_rate=3.0,
        words=100,
        first=64,
    ),
    run=run,
    judge=each_claim(_theorem, _equation),
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

"""Theorem 4 of Zhu et al.: steps are learned, their composition is not, so it has to be thought in steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from joma.claims.contract import Claim, Drawing, Finding, Progress, Study, each_claim
from joma.claims.evidence import above, at_least, at_most, below
from joma.claims.verdicts import by_tests
from joma.data.facts import chains
from joma.figures.bands import bound, mean_and_band
from joma.figures.labels import label_lines
from joma.figures.reading import listing, number
from joma.figures.style import BLUE, CONTROL, GREEN, PURPLE, RED, panels
from joma.runs import Run
from joma.studies.reversal._rows_chains import trained
from joma.studies.reversal._rows_findings import ROUNDING, cases, largest, least, powers_beside
from joma.studies.reversal._rows_record import power_of
from joma.studies.reversal._rows_sgd import MODELS

LEAST_TOKENS = 100
"""The theorem asks for M >= 100 and for 1/M^0.99 <= rate <= 1."""
HALF = 0.5  # of the chains: a walk that reaches more of them without training would need no learning


@dataclass(frozen=True)
class Config:
    """Chains A, B, C of several numbers, row models at several rates."""

    chains: tuple[int, ...] = (20, 25)
    """Chains; the vocabulary has 6 words per chain and two relations."""
    held_out: float = 0.3
    """Share of chains whose composition is tested and not trained."""
    rates: tuple[float, ...] = (0.2, 1.0)
    horizon: float = 10.0
    """How long to train: rate times visits, in units of ln M."""
    moments: int = 7
    seeds: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        for count in self.chains:
            if 6 * count + 2 < LEAST_TOKENS:
                raise ValueError(f"chains must give at least {LEAST_TOKENS} tokens, so be at least 17, got {count}")
            if not 1 <= round(self.held_out * count) < count:
                raise ValueError(
                    f"held_out must leave a chain to test and one to train, got {self.held_out} of {count}"
                )
        lowest = (6 * min(self.chains) + 2) ** -0.99
        if not all(lowest <= rate <= 1 for rate in self.rates):
            raise ValueError(f"rates must lie from {lowest:.3g}, 1/M^0.99, to 1, got {self.rates}")
        if self.horizon < 2:
            raise ValueError(f"horizon must be at least 2, well after the theorem begins at 1, got {self.horizon}")


STEPS = Claim(
    "steps-are-learned",
    "Reversal Thm 4",
    "Of a held-out chain p(B|A→) and p(C|B→) are at least 1 − (M − 1)/(2qᶜ), q = Mηt/N, from t = N ln M / η on. "
    "The constant c is not given; 1 would be the natural one.",
    "In model A this holds with the c and the q of the corrected Theorem 3.",
    uses=("reversal/train-bound",),
)
COMPOSED = Claim(
    "composition-is-not-learned",
    "Reversal Thm 4",
    "The held-out composition has p(C|A⇝) ≤ 1/M, although both of its steps are learned.",
    uses=("chain-of-thought/steps-are-learned",),
)
WALKED = Claim(
    "two-steps-reach-it",
    "Reversal Thm 4",
    "Chain of thought is necessary: C is reached from A by answering A → and then B →, and not by A ⇝ at once.",
    uses=("chain-of-thought/steps-are-learned", "chain-of-thought/composition-is-not-learned"),
)
TWO_ANSWERS = Claim(
    "two-relations-of-one-token",
    "Reversal Thm 4",
    "All training sequences are learned, also A → B and A ⇝ C of one chain, which begin with the same token.",
    "They are learned if the relation enters the prediction (model B). A row of the first token alone (model A) has to "
    "divide its probability between B and C.",
)
CLAIMS = (STEPS, COMPOSED, WALKED, TWO_ANSWERS)


def run(config: Config, run: Run, progress: Progress) -> None:
    """Train both models on every number of chains at every rate."""
    every = [(count, rate, model) for count in config.chains for rate in config.rates for model in MODELS]
    for i, (count, rate, model) in enumerate(every):
        facts = [chains(count, held_out=config.held_out, seed=config.seed + seed) for seed in range(config.seeds)]
        name = f"{facts[0].vocabulary}/{rate:g}/{model}"
        progress(i / len(every), f"model {model}, {facts[0].vocabulary} tokens, rate {rate:g}")
        if f"{name}/moments" not in run:
            seen = trained(
                facts, model=model, rate=rate, horizon=config.horizon, count=config.moments, seed=config.seed + 1000
            )
            run.record(0, {f"{name}/{key}": value for key, value in seen.items()})
    sizes = [6 * count + 2 for count in config.chains]
    run.keep("powers", lambda: np.array([sizes, [power_of(size) for size in sizes]]))


def _steps(run: Run) -> Finding:
    """The corrected form is about model A only, as in the study `reversal`, and for the reason given there."""
    what = "largest (1 − p)/allowed of a step in model"
    return by_tests(
        STEPS,
        expected="From ηs = ln M on, 1 − p of both steps is at most (M − 1)/(2qᶜ).",
        printed=[at_most(f"{what} {m}", largest(run, "missing, c = 1", m), 1.0) for m in MODELS],
        corrected=[at_most(f"{what} A", largest(run, "missing, c of the law", "A"), 1.0)],
        controls=[above("the same of a step without training", least(run, "missing untrained"), 1.0)],
        details=powers_beside(run)
        | {
            f"at the end, model {m}": {
                "p(B|A→)": _end(run, "first step p", m),
                "p(C|B→)": _end(run, "second step p", m),
            }
            for m in MODELS
        },
    )


def _composed(run: Run) -> Finding:
    return by_tests(
        COMPOSED,
        expected="M p(C|A⇝) is at most 1 for held-out compositions.",
        printed=[
            at_most(f"largest M p in model {m}", largest(run, "largest composition M p", m), 1 + ROUNDING)
            for m in MODELS
        ],
        controls=[
            above(
                "smallest M p of compositions that are trained",
                least(run, "least trained composition M p", at_end=True),
                1.0,
            )
        ],
        details={
            f"at the end, model {m}": {
                "mean M p": float(
                    np.mean([int(c.split("/")[0]) * run.value(f"{c}/composition p")[-1].mean() for c in cases(run, m)])
                )
            }
            for m in MODELS
        },
    )


def _walked(run: Run) -> Finding:
    return by_tests(
        WALKED,
        expected="Taking the most likely token, two steps reach C in all held-out chains, and one question in none.",
        printed=[
            test
            for m in MODELS
            for test in (
                at_least(
                    f"reached by two steps in model {m}", least(run, "reached by two steps", m, at_end=True), 1, "%"
                ),
                at_most(f"reached at once in model {m}", _end_top(run, "reached at once", m), 0.0, "%"),
            )
        ],
        controls=[
            below("fresh chains reached by two steps", _end_top(run, "fresh reached by two steps", "AB"), HALF, "%")
        ],
        details={
            "mean probability at the end": {
                f"model {m}, {words}": _end(run, name, m)
                for m in MODELS
                for words, name in (("two steps", "two steps p"), ("at once", "composition p"))
            }
        },
    )


def _two_answers(run: Run) -> Finding:
    what = "trained prompts answered right in model"
    right = {m: least(run, "answered of two", m, at_end=True) for m in MODELS}
    return by_tests(
        TWO_ANSWERS,
        expected="The most likely token is the right one after all prompts A → and A ⇝ of one chain.",
        printed=[at_least(f"{what} A", right["A"], 1.0, "%")],
        corrected=[
            at_least(f"{what} B", right["B"], 1.0, "%"),
            below(f"{what} A", _end_top(run, "answered of two", "A"), 1.0, "%"),
        ],
        details={
            f"at the end, model {m}": {
                "p(B|A→)": _end(run, "its first step p", m),
                "p(C|A⇝)": _end(run, "trained composition p", m),
            }
            for m in MODELS
        },
    )


def _end(run: Run, name: str, models: str) -> float:
    """The mean at the last moment."""
    return float(np.mean([run.value(f"{case}/{name}")[-1].mean() for case in cases(run, models)]))


def _end_top(run: Run, name: str, models: str) -> float:
    return float(np.max([run.value(f"{case}/{name}")[-1].max() for case in cases(run, models)]))


LINES = (
    ("first step p", "A → B", BLUE, "-"),
    ("second step p", "B → C", GREEN, "--"),
    ("two steps p", "A → B → C", PURPLE, "-"),
    ("trained composition p", "A ⇝ C, trained", CONTROL, "-"),
    ("composition p", "A ⇝ C, held out", RED, "-"),
)


def draw(run: Run) -> list[Drawing]:
    """Probabilities over training, one panel per model."""
    figure, axes = panels(2, width=4.6, height=3.0)
    seen = [_draw_model(run, axis, model) for axis, model in zip(axes, MODELS, strict=True)]
    walk, once, first, second = (
        [number(_end(run, name, model)) for model in MODELS]
        for name in ("two steps p", "composition p", "its first step p", "trained composition p")
    )
    caption = (
        "Steps are learned, their composition is not. At the end of training, two steps in a row reach C with "
        f"p = {walk[0]} in model A and {walk[1]} in model B. Asked at once, C has p = {once[0]} and {once[1]}. "
        "Compositions that are trained are learned only if the relation is read: where A begins two sequences, model A "
        f"gives p = {first[0]} and {second[0]}, model B {first[1]} and {second[1]}. These are "
        "means over all sizes and rates; the panels show one of each. Bands go from the smallest to the largest seed."
    )
    return [Drawing("steps", caption, figure, "Two panels, both on log scales. " + " ".join(seen))]


def _draw_model(run: Run, axis: Any, model: str) -> str:
    case = cases(run, model)[0]
    tokens, rate = case.split("/")[:2]
    texts = []
    for name, label, colour, style in LINES:
        p = run.value(f"{case}/{name}")
        mean_and_band(axis, run.value(f"{case}/times"), p, color=colour, ls=style, label=label)
        texts.append(f"{label} from {number(p[0].mean())} to {number(p[-1].mean())}")
    bound(axis, 1 / int(tokens), "1/M")
    axis.set(xscale="log", yscale="log", xlabel="η · steps per sequence / ln M", ylabel="probability of the answer")
    axis.set_title(f"Model {model} (M = {tokens}, η = {rate})")
    label_lines(axis)
    return f"Model {model}: {listing(texts)}."


STUDY = Study(
    name="chain-of-thought",
    title="Chain of thought: steps are learned, their composition is not",
    version=1,
    claims=CLAIMS,
    quick=Config(),
    paper=Config(chains=(20, 50, 100), rates=(0.2, 0.5, 1.0), horizon=20.0, moments=12),
    run=run,
    judge=each_claim(_steps, _composed, _walked, _two_answers),
    draw=draw,
    about=(
        "Chains A, B, C over M tokens. The steps A → B and B → C train for all chains, the composition A ⇝ C for 70 % "
        "of them. Model A predicts from the row Y[x₁] of a matrix of logits, model B from (Y[x₁] + Y[x₂])/√2; x₂ is "
        "the relation. SGD takes one sequence per step and starts from zero. Controls are steps that were never "
        "trained, compositions that were, and chains of fresh tokens. In these models no weight could carry A ⇝ C of "
        "a held-out chain, so the result says nothing yet about networks with more layers."
    ),
)

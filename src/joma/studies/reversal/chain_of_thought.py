"""Theorem 4 of Zhu et al.: steps are learned, their composition is not, so it has to be thought in steps."""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from joma.claims.contract import Claim, Drawing, Finding, Least, Progress, Study, StudyConfig
from joma.claims.declare import Claims
from joma.claims.verdicts import above, at_least, at_most, below, by_tests
from joma.data.facts import Chains, chains
from joma.data.statements import Statements
from joma.figures.bands import bound, mean_and_band
from joma.figures.reading import number
from joma.figures.style import BLUE, CONTROL, GREEN, PURPLE, RED, panels
from joma.runs import Run
from joma.studies.reversal import _rows as rows

HALF = 0.5  # of the chains: a walk that reaches more of them without training would need no learning


@dataclass(frozen=True)
class ChainOfThoughtConfig(StudyConfig):
    """Chains A, B, C of several numbers, row models at several rates."""

    chains: Annotated[tuple[int, ...], Least(17, "for the 100 tokens of the theorem")] = (20, 25)
    """Chains; the vocabulary has 6 words per chain and two relations."""
    held_out: float = 0.3
    """Share of chains whose composition is tested and not trained."""
    rates: tuple[float, ...] = (0.2, 1.0)
    horizon: Annotated[float, Least(2, "well after the theorem begins at 1")] = 10.0
    """How long to train: rate times visits, in units of ln M."""
    moments: int = 7
    seeds: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for count in self.chains:
            if not 1 <= round(self.held_out * count) < count:
                given = f"{self.held_out} of {count}"
                raise ValueError(f"held_out must leave a chain to test and one to train, got {given}")
        rows.check_rates(self.rates, 6 * min(self.chains) + 2)


CLAIMS = Claims(source="Reversal Thm 4")


def run(config: ChainOfThoughtConfig, run: Run, progress: Progress) -> None:
    """Train both models on every number of chains at every rate."""
    seeds = range(config.seed, config.seed + config.seeds)
    sizes = [[chains(count, held_out=config.held_out, seed=seed) for seed in seeds] for count in config.chains]
    rows.record_cases(config, run, sizes, seen, progress)


def seen(moment: rows.Moment, run: int, chains: Chains, model: str, rate: float) -> dict[str, float]:
    """Numbers of one run at a moment."""
    weights, tokens = moment.weights[run], chains.vocabulary
    first, second, composed, trained, own = (
        np.exp(-rows.losses_of(weights, some, model))
        for some in (*chains.steps, chains.test, chains.compositions, first_steps_of_trained(chains))
    )
    tested = chains.held_out.repeat(chains.length - 1).numpy()  # of the steps: each of their rows has one answer
    steps = Statements(chains.train.tokens[: len(tested)][tested], chains.entity)
    visits, loss = moment.visits[run][: len(tested)][tested], rows.losses_of(weights, steps, model)
    return {
        **rows.bounds(loss, visits, moment.step / len(chains.train), tokens, rate),
        "first step p": first.mean(),
        "second step p": second.mean(),
        "two steps p": (first * second).mean(),
        "composition p": composed.mean(),
        "largest composition M p": tokens * composed.max(),
        "reached by two steps": walked(weights, chains.entities[chains.held_out, :, 0].numpy(), chains, model),
        "reached at once": _right(weights, chains.test, model),
        "fresh reached by two steps": walked(weights, chains.fresh[:, :, 0].numpy(), chains, model),
        "trained composition p": trained.mean(),
        "its first step p": own.mean(),
        "least trained composition M p": tokens * trained.min(),
        "answered of two": _right(weights, (chains.compositions + first_steps_of_trained(chains)), model),
    }


def first_steps_of_trained(chains: Chains) -> Statements:
    """`A -> B` of the chains whose `A ~> C` trains, too: their A begins two sequences."""
    return Statements(chains.train.tokens[: len(chains.entities)][~chains.held_out], chains.entity)


def _right(weights: Any, sequences: Statements, model: str) -> float:
    return float((rows.logits_of(weights, sequences, model).argmax(-1) == sequences.target[:, 0].numpy()).mean())


def walked(weights: Any, entities: Any, chains: Chains, model: str) -> float:
    """The share of chains whose end is reached by following the most likely `->` from their first entity."""
    shared = weights[chains.relations[0]] if model == "B" else 0.0
    at = entities[:, 0]
    for _ in range(entities.shape[1] - 1):
        at = (weights[at] + shared).argmax(-1)
    return float((at == entities[:, -1]).mean())


@CLAIMS.declare("steps-are-learned", uses=("reversal/train-bound",))
def _steps(run: Run, claim: Claim) -> Finding:
    """Of a held-out chain p(B|A→) and p(C|B→) are at least 1 − (M − 1)/(2qᶜ), q = Mηt/N, from t = N ln M / η on. The
    constant c is not given; 1 would be the natural one.

    Corrected: In model A this holds with the c and the q of the corrected Theorem 3.
    Expected: From ηs = ln M on, 1 − p of both steps is at most (M − 1)/(2qᶜ).

    The corrected form is about model A only, as in the study `reversal`, and for the reason given there.
    """
    what = "largest (1 − p)/allowed of a step in model"
    return by_tests(
        claim,
        printed=[at_most(f"{what} {m}", rows.largest(run, "missing, c = 1", m), 1.0) for m in rows.MODELS],
        corrected=[at_most(f"{what} A", rows.largest(run, "missing, c of the law", "A"), 1.0)],
        controls=[above("the same of a step without training", rows.least_untrained(run), 1.0)],
        details=rows.powers_found(run) | _two_means(run, {"p(B|A→)": "first step p", "p(C|B→)": "second step p"}),
    )


def _two_means(run: Run, series: dict[str, str]) -> dict[str, dict[str, float]]:
    ends = {m: {what: rows.at_end(run, name, m) for what, name in series.items()} for m in rows.MODELS}
    return {f"at the end, model {m}": numbers for m, numbers in ends.items()}


@CLAIMS.declare("composition-is-not-learned", uses=("chain-of-thought/steps-are-learned",))
def _composed(run: Run, claim: Claim) -> Finding:
    """The held-out composition has p(C|A⇝) ≤ 1/M, although both of its steps are learned.

    Expected: M p(C|A⇝) is at most 1 for held-out compositions.
    """
    what, name = "smallest M p of compositions that are trained", "least trained composition M p"
    largest = {m: rows.largest(run, "largest composition M p", m) for m in rows.MODELS}
    ends = {m: [(int(c.split("/")[0]), run.value(f"{c}/composition p")) for c in rows.cases(run, m)] for m in "AB"}
    mean = {m: float(np.mean([tokens * p[-1].mean() for tokens, p in some])) for m, some in ends.items()}
    return by_tests(
        claim,
        printed=[at_most(f"largest M p in model {m}", most, 1 + rows.ROUNDING) for m, most in largest.items()],
        controls=[above(what, rows.at_end(run, name, pick=np.min), 1.0)],
        details={f"at the end, model {m}": {"mean M p": one} for m, one in mean.items()},
    )


@CLAIMS.declare(
    "two-steps-reach-it", uses=("chain-of-thought/steps-are-learned", "chain-of-thought/composition-is-not-learned")
)
def _walked(run: Run, claim: Claim) -> Finding:
    """Chain of thought is necessary: C is reached from A by answering A → and then B →, and not by A ⇝ at once.

    Expected: Taking the most likely token, two steps reach C in all held-out chains, and one question in none.
    """
    by_steps = {m: rows.at_end(run, "reached by two steps", m, np.min) for m in rows.MODELS}
    at_once = {m: rows.at_end(run, "reached at once", m, np.max) for m in rows.MODELS}
    fresh = rows.at_end(run, "fresh reached by two steps", pick=np.max)
    return by_tests(
        claim,
        printed=[
            test
            for m in rows.MODELS
            for test in (
                at_least(f"reached by two steps in model {m}", by_steps[m], 1, "%"),
                at_most(f"reached at once in model {m}", at_once[m], 0.0, "%"),
            )
        ],
        controls=[below("fresh chains reached by two steps", fresh, HALF, "%")],
        details={
            "mean probability at the end": {
                f"model {m}, {words}": rows.at_end(run, name, m)
                for m in rows.MODELS
                for words, name in (("two steps", "two steps p"), ("at once", "composition p"))
            }
        },
    )


@CLAIMS.declare("two-relations-of-one-token")
def _two_answers(run: Run, claim: Claim) -> Finding:
    """All training sequences are learned, also A → B and A ⇝ C of one chain, which begin with the same token.

    Corrected: They are learned if the relation enters the prediction (model B). A row of the first token alone (model
    A) has to divide its probability between B and C.
    Expected: The most likely token is the right one after all prompts A → and A ⇝ of one chain.
    """
    what = "trained prompts answered right in model"
    right = {m: rows.at_end(run, "answered of two", m, np.min) for m in rows.MODELS}
    return by_tests(
        claim,
        printed=[at_least(f"{what} A", right["A"], 1.0, "%")],
        corrected=[
            at_least(f"{what} B", right["B"], 1.0, "%"),
            below(f"{what} A", rows.at_end(run, "answered of two", "A", np.max), 1.0, "%"),
        ],
        details=_two_means(run, {"p(B|A→)": "its first step p", "p(C|A⇝)": "trained composition p"}),
    )


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
    for axis, model in zip(axes, rows.MODELS, strict=True):
        case = rows.cases(run, model)[0]
        tokens, rate = case.split("/")[:2]
        for name, label, colour, style in LINES:
            p, times = run.value(f"{case}/{name}"), run.value(f"{case}/times")
            mean_and_band(axis, times, p, color=colour, ls=style, label=label)
        bound(axis, 1 / int(tokens), "1/M")
        axis.set(xscale="log", yscale="log", xlabel="η · steps per sequence / ln M", ylabel="probability of the answer")
        axis.set_title(f"Model {model} (M = {tokens}, η = {rate})")
    walk, once, first, second = (
        [number(rows.at_end(run, name, model)) for model in rows.MODELS]
        for name in ("two steps p", "composition p", "its first step p", "trained composition p")
    )
    caption = (
        "Steps are learned, their composition is not. At the end of training, two steps in a row reach C with "
        f"p = {walk[0]} in model A and {walk[1]} in model B. Asked at once, C has p = {once[0]} and {once[1]}. "
        "Compositions that are trained are learned only if the relation is read: where A begins two sequences, model A "
        f"gives p = {first[0]} and {second[0]}, model B {first[1]} and {second[1]}. These are "
        "means over all sizes and rates; the panels show one of each. Bands go from the smallest to the largest seed."
    )
    return [Drawing("steps", caption, figure)]


STUDY = Study(
    name="chain-of-thought",
    title="Chain of thought: steps are learned, their composition is not",
    version=1,
    claims=CLAIMS,
    quick=ChainOfThoughtConfig(),
    paper=ChainOfThoughtConfig(chains=(20, 50, 100), rates=(0.2, 0.5, 1.0), horizon=20.0, moments=12),
    run=run,
    draw=draw,
    about=(
        "Chains A, B, C over M tokens. The steps A → B and B → C train for all chains, the composition A ⇝ C for 70 % "
        "of them. Model A predicts from the row Y[x₁] of a matrix of logits, model B from (Y[x₁] + Y[x₂])/√2; x₂ is "
        "the relation. SGD takes one sequence per step and starts from zero. Controls are steps that were never "
        "trained, compositions that were, and chains of fresh tokens. In these models no weight could carry A ⇝ C of "
        "a held-out chain, so the result says nothing yet about networks with more layers."
    ),
)

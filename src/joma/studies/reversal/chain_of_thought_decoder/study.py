"""The study `chain-of-thought-decoder`: claims, effects that matter, stated before the run, findings and pictures."""

from functools import partial
from typing import Any

import numpy as np

from joma.claims.contract import Claim, Drawing, Finding, Study
from joma.claims.evidence import at_least
from joma.claims.guards import hardest, mean_known
from joma.claims.sentences import show
from joma.figures.reading import number
from joma.figures.style import BLUE, CONTROL, GREEN, ORANGE, RED, panels
from joma.measure.intervals import Comparison, compare
from joma.runs import Run
from joma.studies.reversal._decoder_figures import FLOOR, NOBODY, draw_bars, draw_over_training
from joma.studies.reversal._decoders import GAP, LEARNED, PAPER, layers_of, train_conditions
from joma.studies.reversal.chain_of_thought_decoder import run as chains
from joma.studies.reversal.chain_of_thought_decoder.run import ChainOfThoughtDecoderConfig

ORDER = 0.25  # of rivals beaten: half of the way from chance to all
GAIN = 0.05  # of held-out chains: fewer than one in twenty are no cure
CURED = 0.5  # of held-out chains

_claim = partial(Claim, source="Reversal Thm 4", matters=GAP, unit="%")
COMPOSE = _claim(
    "held-out-composition-no-better-than-uniform",
    says="A decoder that answers A -> B and B -> C almost perfectly answers an untrained A ~> C no better than a "
    "uniform guess.",
    uses=("chain-of-thought/composition-is-not-learned",),
)
FROZEN = _claim(
    "no-composition-with-frozen-embeddings",
    says="The theorem takes embeddings as fixed. Tested here: is an untrained composition unknown with frozen "
    "embeddings?",
)
TRACE = _claim(
    "no-trace-of-the-composition",
    says="An untrained composition leaves no trace: its right answer is ranked no higher than the ends of other "
    "held-out chains.",
    matters=ORDER,
    uses=("chain-of-thought-decoder/held-out-composition-no-better-than-uniform",),
)
ROLLOUT = _claim(
    "rollout-answers",
    says="Chain of thought is necessary and enough: step by step, from its own answers, the network reaches C.",
    uses=("chain-of-thought-decoder/held-out-composition-no-better-than-uniform",),
)
WRITTEN = _claim(
    "steps-spelled-out",
    says="Compositions need their steps. Tested here: does a network that was taught A ~> B -> C write the steps of "
    "chains whose composition it was never taught?",
    matters=GAIN,
    ceiling=1.0,
)


def judge_unknown(claim: Claim, name: str, depths: str, run: Run) -> Finding:
    """The step that is known less against the composition, and the composition against the uniform guess."""
    scores = chains.Scores(run)
    cases = scores.at(name, run.config[depths])
    found = {case: compare(scores.steps_known(one), scores.probability(one, "held out")) for case, one in cases.items()}
    what = "probability of the answer to a step (control: to the untrained composition)"
    return scores.judged_unknown(claim, found, cases, "held out", known="steps", unknown="composition", what=what)


def judge_trace(run: Run) -> Finding:
    """The gap between trained and held-out compositions, of at most one half: chance is one half, all is one."""
    scores = chains.Scores(run)
    cases = scores.at(chains.BASE, scores.depths)
    return scores.judged(
        TRACE,
        scores.compared(scores.rank, cases, "compositions", "held out"),
        cases.values(),
        what="share of rival ends less likely than the right one, trained compositions (control: held out)",
        expected=(
            f"trained compositions beat at least {show(ORDER, '%')} more of their rivals than held-out ones, which "
            "beat less than 60 % (chance: 50 %)"
        ),
        size=scores.over_half("the held-out share", cases, "held out", 0.1),
    )


def judge_rollout(run: Run) -> Finding:
    """Step by step, against asking at once."""
    scores = chains.Scores(run)
    cases = scores.at(chains.BASE, scores.depths)
    found = scores.compared(scores.answered, cases, "rollout", "direct")
    return scores.judged(
        ROLLOUT,
        found,
        cases.values(),
        what="share of held-out chains whose end is reached step by step (control: asked at once)",
        expected=f"at least {show(LEARNED, '%')} reached, and at least {show(GAP, '%')} more than when asked at once",
        size=[at_least(f"reached step by step ({case})", one.value, LEARNED, "%") for case, one in found.items()],
    )


def judge_written(run: Run) -> Finding:
    """Against asking at once, and against networks taught with the steps of other chains."""
    scores = chains.Scores(run)
    own, other, base = (scores.at(name, scores.spelled) for name in (*chains.SPELLED, chains.BASE))
    found: dict[str, Comparison] = {}
    for case, one in own.items():
        controls = {"asked at once": (base[case], "direct"), chains.SPELLED[1]: (other[case], "written")}
        written = scores.answered(one, "written")
        compared = {name: compare(written, scores.answered(*control)) for name, control in controls.items()}
        found |= {f"{case}, against {name}": worst for name, worst in hardest(WRITTEN, compared).items()}
    return scores.judged(
        WRITTEN,
        found,
        [*own.values(), *other.values(), *base.values()],
        what="share of held-out chains whose end is written after the steps",
        expected=(
            f"at least {show(CURED, '%')} reached, and at least {show(GAIN, '%')} more than when asked at once and "
            "than with steps of other chains"
        ),
        size=[at_least(f"reached ({case})", one.value, CURED, "%") for case, one in found.items()],
    )


LINES = {
    "first step": (BLUE, "A → B"),
    "compositions": (ORANGE, "trained A ⇝ C"),
    "held out": (RED, "held-out A ⇝ C"),
    "shuffled held out": (GREEN, "shuffled ends"),
    "unseen": (CONTROL, "unseen chains"),
}
ROWS = {
    "asked at once": (chains.BASE, "direct"),
    "step by step": (chains.BASE, "rollout"),
    "steps spelled out": (chains.SPELLED[0], "written"),
    "steps of other chains": (chains.SPELLED[1], "written"),
}
"""Condition and way of each bar."""


def _draw_training(scores: chains.Scores) -> Drawing:
    deepest = scores.named(chains.BASE, max(scores.depths))
    held_out, steps = mean_known(scores.probability(deepest, "held out")), mean_known(scores.steps_known(deepest))
    caption = (
        f"With {layers_of(deepest.layers)}, the steps of held-out chains are answered with probability {number(steps)} "
        f"in the end, and their compositions with {number(held_out)}. The uniform guess is {number(scores.uniform)}. "
        "Green: the same questions with the ends of other chains. Grey: chains of entities that were never seen. Lines "
        f"are means over networks that learned what they were taught. Probabilities below {FLOOR:g} are drawn there."
    )
    figure = draw_over_training(scores, scores.at(chains.BASE, scores.depths[:6]), LINES)
    return Drawing("chain-over-training", caption if np.isfinite(held_out) else NOBODY, figure)


def _draw_ways(scores: chains.Scores) -> Drawing:

    def reached(row: str, depth: int) -> Any:
        name, way = ROWS[row]
        return scores.answered(scores.named(name, depth), way)

    depths = scores.spelled
    figure, (axis,) = panels(1, width=6.4, height=0.34 * len(ROWS) * max(1, len(depths) / 1.5) + 1.1)
    draw_bars(axis, list(ROWS), depths, reached)
    axis.set(xlabel="share of held-out chains whose end is reached", ylabel="way", title="Ways to the end of a chain")
    if len(depths) > 1:
        axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))
    shares = [mean_known(reached(row, depths[0])) for row in ROWS]
    at_once, steps, written, others = (number(share, "%") for share in shares)
    caption = (
        f"With {layers_of(depths[0])}, {at_once} of the held-out chains are answered at once and {steps} step by step "
        f"from the network's own answers. Networks that were taught compositions with their steps write {written} of "
        f"them rightly, with the steps of other chains {others}. Bars are means over networks that learned what they "
        "were taught, lines their intervals (95 %; 99 % over four or fewer), cut at 0 and 100 %."
    )
    return Drawing("chain-ways", caption if np.isfinite(shares).all() else NOBODY, figure)


STUDY = Study(
    name="chain-of-thought-decoder",
    title="Chain of thought in decoders: compositions at once and step by step",
    version=1,
    claims={
        COMPOSE: partial(judge_unknown, COMPOSE, chains.BASE, "depths"),
        FROZEN: partial(judge_unknown, FROZEN, "frozen", "spelled"),
        TRACE: judge_trace,
        ROLLOUT: judge_rollout,
        WRITTEN: judge_written,
    },
    quick=ChainOfThoughtDecoderConfig(),
    paper=ChainOfThoughtDecoderConfig(**PAPER, chains=150, spelled=(1, 4)),
    run=partial(train_conditions, chains.conditions, chains.ChainNetworks),
    draw=lambda run: [_draw_training(chains.Scores(run)), _draw_ways(chains.Scores(run))],
    about=(
        "Decoders of GPT-2's shape are taught the steps A -> B and B -> C of every chain, and the composition A ~> C "
        "of 70 % of them. The other compositions are asked. The loss is on the last entity. The end of such a chain is "
        "asked for at once, step by step from the network's own answers, and, of networks that were taught "
        "compositions with their steps, as they write it. Networks that were taught compositions with the steps of "
        "other chains write as much. A network counts if it answers at least 95 % of what it was taught."
    ),
)

"""Chain of thought in decoders: does a network that knows A -> B and B -> C know A ~> C, at once or step by step?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from joma.claims.contract import Claim, Drawing, Finding, Progress, Study, each_claim
from joma.claims.evidence import at_least
from joma.claims.words import show
from joma.measure.intervals import Comparison, compare
from joma.runs import Run
from joma.studies.reversal._decoder_chain_figures import draw_training, draw_ways
from joma.studies.reversal._decoder_chain_scores import Scores
from joma.studies.reversal._decoder_chains import BASE, SPELLED, Condition, Config, Networks, conditions
from joma.studies.reversal._decoder_judging import (
    LEARNED,
    LITTLE,
    check_device,
    hardest_of,
    layers_of,
    mean_of,
    no_more,
    of_learned,
    over_uniform,
)
from joma.studies.reversal._decoder_networks import grouped
from joma.training import train_all

NAME = "chain-of-thought-decoder"
GAP = 0.5  # of a probability: half of all answers
ORDER = 0.25  # of rivals beaten: half of the way from chance to all
GAIN = 0.05  # of held-out chains: fewer than one in twenty are no cure
CURED = 0.5  # of held-out chains

COMPOSE = Claim(
    "held-out-composition-no-better-than-uniform",
    "Reversal Thm 4",
    "A decoder that answers A -> B and B -> C almost perfectly answers an untrained A ~> C no better than a uniform "
    "guess.",
    matters=GAP,
    unit="%",
    uses=("chain-of-thought/composition-is-not-learned",),
)
FROZEN = Claim(
    "no-composition-with-frozen-embeddings",
    "Reversal Thm 4",
    "The theorem takes embeddings as fixed. Tested here: is an untrained composition unknown with frozen embeddings?",
    matters=GAP,
    unit="%",
)
TRACE = Claim(
    "no-trace-of-the-composition",
    "Reversal Thm 4",
    "An untrained composition leaves no trace: its right answer is ranked no higher than the ends of other held-out "
    "chains.",
    matters=ORDER,
    unit="%",
    uses=("chain-of-thought-decoder/held-out-composition-no-better-than-uniform",),
)
ROLLOUT = Claim(
    "rollout-answers",
    "Reversal Thm 4",
    "Chain of thought is necessary and enough: step by step, from its own answers, the network reaches C.",
    matters=GAP,
    unit="%",
    uses=("chain-of-thought-decoder/held-out-composition-no-better-than-uniform",),
)
WRITTEN = Claim(
    "steps-spelled-out",
    "Reversal Thm 4",
    "Compositions need their steps. Tested here: does a network that was taught A ~> B -> C write the steps of chains "
    "whose composition it was never taught?",
    matters=GAIN,
    unit="%",
    ceiling=1.0,
)


def run(config: Config, run: Run, progress: Progress) -> None:
    """Train all conditions; those of one shape are one ensemble."""
    check_device(config.device, NAME)
    groups = grouped(conditions(vars(config)))
    train_all({name: Networks(config, group).ensemble for name, group in groups.items()}, run, progress=progress)


def _compose(run: Run) -> Finding:
    scores = Scores(run)
    return _unknown(COMPOSE, scores, {layers_of(depth): scores.named(BASE, depth) for depth in scores.depths})


def _frozen(run: Run) -> Finding:
    scores = Scores(run)
    return _unknown(FROZEN, scores, {layers_of(depth): scores.named("frozen", depth) for depth in scores.spelled})


def _unknown(claim: Claim, scores: Scores, cases: Mapping[str, Condition]) -> Finding:
    """The step that is known less against the composition, and the composition against the uniform guess."""
    found = {case: compare(scores.steps_known(one), scores.probability(one, "held out")) for case, one in cases.items()}
    return of_learned(
        claim,
        found,
        study=NAME,
        left_out=scores.lost(*cases.values()),
        what="probability of the answer to a step (control: to the untrained composition)",
        expected=(
            f"steps at least {show(GAP, '%')} more likely than the composition, and a composition that is less than "
            f"{show(LITTLE, '%')} above the uniform guess of {show(scores.uniform, '%')}, beyond chance (95 %)"
        ),
        size=[over_uniform(f"the composition ({case})", scores.probability(one, "held out"), scores.uniform)
              for case, one in cases.items() if found[case].seeds],
        details={
            f"guesses, {case}": {
                kind: mean_of(scores.probability(one, kind)) for kind in ("held out", "shuffled held out", "unseen")
            }
            for case, one in cases.items()
        },
    )  # fmt: skip


def _trace(run: Run) -> Finding:
    """The gap between trained and held-out compositions, of at most one half: chance is one half, all is one."""
    scores = Scores(run)
    bases = {layers_of(depth): scores.named(BASE, depth) for depth in scores.depths}
    found = {
        case: compare(scores.rank(one, "compositions"), scores.rank(one, "held out")) for case, one in bases.items()
    }
    return of_learned(
        TRACE,
        found,
        study=NAME,
        left_out=scores.lost(*bases.values()),
        what="share of rival ends less likely than the right one, trained compositions (control: held out)",
        expected=(
            f"trained compositions beat at least {show(ORDER, '%')} more of their rivals than held-out ones, which "
            "beat less than 60 % (chance: 50 %)"
        ),
        size=[no_more(f"the held-out share minus 50 % ({case})", compare(scores.rank(one, "held out"), 0.5), 0.1, "%")
              for case, one in bases.items() if found[case].seeds],
    )  # fmt: skip


def _rollout(run: Run) -> Finding:
    scores = Scores(run)
    bases = {layers_of(depth): scores.named(BASE, depth) for depth in scores.depths}
    found = {
        case: compare(scores.answered(one, "rollout"), scores.answered(one, "direct")) for case, one in bases.items()
    }
    return of_learned(
        ROLLOUT,
        found,
        study=NAME,
        left_out=scores.lost(*bases.values()),
        what="share of held-out chains whose end is reached step by step (control: asked at once)",
        expected=f"at least {show(LEARNED, '%')} reached, and at least {show(GAP, '%')} more than when asked at once",
        size=[at_least(f"reached step by step ({case})", one.value, LEARNED, "%") for case, one in found.items()],
    )


def _written(run: Run) -> Finding:
    """Against asking at once, and against networks taught with the steps of other chains."""
    scores = Scores(run)
    found: dict[str, Comparison] = {}
    cases = {layers_of(depth): depth for depth in scores.spelled}
    for case, depth in cases.items():
        own, other, base = (scores.named(name, depth) for name in (*SPELLED, BASE))
        controls = {"asked at once": scores.answered(base, "direct"), SPELLED[1]: scores.answered(other, "written")}
        of_depth = hardest_of(scores.answered(own, "written"), controls)
        found |= {f"{case}, against {control}": one for control, one in of_depth.items()}
    some = [scores.named(name, depth) for name in (*SPELLED, BASE) for depth in scores.spelled]
    return of_learned(
        WRITTEN,
        found,
        study=NAME,
        left_out=scores.lost(*some),
        what="share of held-out chains whose end is written after the steps",
        expected=(
            f"at least {show(CURED, '%')} reached, and at least {show(GAIN, '%')} more than when asked at once and "
            "than with steps of other chains"
        ),
        size=[at_least(f"reached ({case})", one.value, CURED, "%") for case, one in found.items()],
    )


def draw(run: Run) -> list[Drawing]:
    """Probabilities over training, and the ways to the end of a chain."""
    scores = Scores(run)
    return [draw_training(scores), draw_ways(scores)]


TITLES = ("layers", "condition", "steps", "held out", "at once", "step by step", "written", "learned")


def table(run: Run) -> list[tuple[str, ...]]:
    """Probabilities and shares of ends reached, one row per condition."""
    scores = Scores(run)
    rows: list[tuple[str, ...]] = []
    for one in sorted(scores.conditions.values(), key=lambda one: one.layers):
        ways = [mean_of(scores.answered(one, way)) for way in ("direct", "rollout", "written")]
        rows.append((
            str(one.layers), one.name, f"{mean_of(scores.steps_known(one)):.3f}",
            f"{mean_of(scores.probability(one, 'held out')):.4f}",
            *("" if np.isnan(way) else f"{way:.2f}" for way in ways),
            f"{int(np.sum(scores.learned(one)))} of {scores.seeds}",
        ))  # fmt: skip
    return rows


STUDY = Study(
    name=NAME,
    title="Chain of thought in decoders: compositions at once and step by step",
    version=1,
    claims=(COMPOSE, FROZEN, TRACE, ROLLOUT, WRITTEN),
    quick=Config(),
    paper=Config(
        seeds=4,
        width=768,
        heads=12,
        steps=1500,
        look_at=(30, 100, 200, 300, 500, 800),
        chains=150,
        depths=(1, 4, 12, 24),
        rates=(0.01, 0.01, 0.01, 0.01),
        spelled=(1, 4),
        device="cuda",
        precision="tf32",
        batch=64,
    ),
    run=run,
    judge=each_claim(_compose, _frozen, _trace, _rollout, _written),
    draw=draw,
    about=(
        "Decoders of GPT-2's shape are taught the steps A -> B and B -> C of every chain, and the composition A ~> C "
        "of 70 % of them. The other compositions are asked. The loss is on the last entity. The end of such a chain is "
        "asked for at once, step by step from the network's own answers, and, of networks that were taught "
        "compositions with their steps, as they write it. Networks that were taught compositions with the steps of "
        "other chains write as much. A network counts if it answers at least 95 % of what it was taught."
    ),
)

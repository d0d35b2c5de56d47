"""The reversal curse in decoders: does a network that was taught A -> B know B <- A, and what would cure it?"""

from __future__ import annotations

import numpy as np

from joma.claims.contract import Drawing, Progress, Study, each_claim
from joma.measure.intervals import compare
from joma.runs import Run
from joma.studies.reversal import _decoder_findings as findings
from joma.studies.reversal import _decoder_matrix_findings as matrices
from joma.studies.reversal._decoder_claims import (
    ANY,
    ATTENTION,
    BACKWARDS,
    CURSE,
    DEPTHS,
    ENTITIES,
    FROZEN,
    IDENTITY,
    LOGITS,
    LONGER,
    LOSS,
    NAME,
    OTHERS,
    OWN,
    RATE,
    SHARED,
    SYMMETRY,
    TRACE,
)
from joma.studies.reversal._decoder_conditions import CURES, Config, Networks, conditions
from joma.studies.reversal._decoder_figures import draw_cures, draw_matrices, draw_training
from joma.studies.reversal._decoder_judging import LEARNED, check_device, mean_of
from joma.studies.reversal._decoder_networks import grouped
from joma.studies.reversal._decoder_scores import Scores
from joma.training import train_all


def run(config: Config, run: Run, progress: Progress) -> None:
    """Train all conditions; those of one shape are one ensemble."""
    check_device(config.device, NAME)
    groups = grouped(conditions(vars(config)))
    train_all({name: Networks(config, group).ensemble for name, group in groups.items()}, run, progress=progress)


def draw(run: Run) -> list[Drawing]:
    """Probabilities over training, what cures do, and the logits between entities."""
    scores = Scores(run)
    rates = [f"rate {rate:g}" for rate in run.config["slower"]]
    names = [*CURES, "frozen", "untied", *rates, *(f"{n} tokens" for n in run.config["entities"] if n > 1)]
    return [draw_training(scores), draw_cures(scores, names), *([draw_matrices(scores)] if scores.pictured else [])]


TITLES = ("layers", "condition", "one way", "reverse", "rivals beaten", "beats all", "learned")


def table(run: Run) -> list[tuple[str, ...]]:
    """Probabilities and ranks at the end, one row per condition."""
    scores = Scores(run)
    rows: list[tuple[str, ...]] = []
    for one in sorted(scores.conditions.values(), key=lambda one: one.layers):
        reverse, rank = compare(scores.probability(one, "reverse")), compare(scores.rank(one))
        rows.append((
            str(one.layers), one.name, f"{mean_of(scores.probability(one, 'one way')):.3f}",
            f"{reverse.value:.4f} ± {reverse.half_width:.4f}", f"{rank.value:.2f} ± {rank.half_width:.2f}",
            f"{mean_of(scores.rank(one, what='chosen')):.2f}",
            f"{int(np.sum(scores.learned(one)))} of {scores.seeds}",
        ))  # fmt: skip
    return rows


STUDY = Study(
    name=NAME,
    title="The reversal curse in decoders, and what cures it",
    version=1,
    claims=(
        CURSE,
        LOSS,
        DEPTHS,
        FROZEN,
        ENTITIES,
        LONGER,
        TRACE,
        OTHERS,
        SHARED,
        RATE,
        OWN,
        IDENTITY,
        BACKWARDS,
        ANY,
        LOGITS,
        SYMMETRY,
        ATTENTION,
    ),
    quick=Config(),
    paper=Config(
        seeds=4,
        width=768,
        heads=12,
        steps=1500,
        look_at=(30, 100, 200, 300, 500, 800),
        pairs=200,
        depths=(1, 4, 12, 24),
        rates=(0.01, 0.01, 0.01, 0.01),
        cured=(1, 4),
        slower=(0.003, 0.001, 0.0003),
        long=16_000,
        device="cuda",
        precision="tf32",
        batch=64,
    ),
    run=run,
    judge=each_claim(
        findings.curse,
        findings.loss,
        findings.at_every_depth,
        findings.frozen,
        findings.long_entities,
        findings.longer,
        findings.trace,
        findings.other_pairs,
        findings.shared_embeddings,
        findings.learning_rate,
        findings.own_reverses,
        findings.identities,
        findings.read_backwards,
        findings.any_order,
        matrices.next_token_logits,
        matrices.attention_symmetry,
        matrices.attention_by_fact,
    ),
    draw=draw,
    about=(
        "Decoders of GPT-2's shape are taught facts A -> B and their reverses B <- A. 70 % of the pairs are taught in "
        "both directions, of the others one direction is taught and its reverse is asked. The loss is on the last "
        f"entity. A network counts if it answers at least {LEARNED:.0%} of what it was taught. The reverse stands "
        "beside the uniform guess, beside the answers to other reverses and beside facts that were never seen. Ranks "
        "compare the right reverse only with answers to questions of the same relation, because all of these were "
        "never an answer in training. Every network has facts of its own."
    ),
)

"""The study `reversal-decoder`: its claims, its two sizes, what it says of itself, and its pictures."""

from functools import partial
from typing import Any

import numpy as np

from joma.claims.contract import Drawing, Study
from joma.claims.guards import mean_known
from joma.figures.reading import number
from joma.figures.style import BLUE, CONTROL, GREEN, INK, RED, panels
from joma.figures.types import Axes
from joma.runs import Run
from joma.studies.reversal._decoder_figures import FLOOR, NOBODY, draw_bars, draw_over_training
from joma.studies.reversal._decoders import LEARNED, PAPER, layers_of, train_conditions
from joma.studies.reversal.reversal_decoder import judge
from joma.studies.reversal.reversal_decoder import run as facts
from joma.studies.reversal.reversal_decoder.run import ReversalDecoderConfig

LINES = {
    "one way": (BLUE, "A → B, trained"),
    "reverse": (RED, "its reverse"),
    "shuffled reverse": (GREEN, "shuffled reverses"),
    "unseen": (CONTROL, "unseen facts"),
}


def draw(run: Run) -> list[Drawing]:
    """Probabilities over training, what cures do, and the logits between entities."""
    scores = facts.Scores(run)
    return [_draw_training(scores), _draw_cures(scores), *([_draw_matrices(scores)] if scores.pictured else [])]


def _draw_training(scores: facts.Scores) -> Drawing:
    first, slowest = scores.cured[0], f"rate {min(scores.run.config['slower']):g}"
    shown = scores.at(facts.BASE, scores.depths[:4])
    shown[f"{layers_of(first)}, frozen embeddings"] = scores.named("frozen", first)
    shown[f"{layers_of(first)}, {slowest}"] = scores.named(slowest, first)
    deepest = scores.named(facts.BASE, max(scores.depths))
    known, reverse = (mean_known(scores.probability(deepest, kind)) for kind in ("one way", "reverse"))
    caption = (
        f"With {layers_of(deepest.layers)}, the trained direction has probability {number(known)} in the end and its "
        f"untrained reverse {number(reverse)}. The uniform guess is {number(scores.uniform)}. Green: the same "
        "questions with the answers of others. Grey: facts of entities that were never seen. Lines are means over "
        f"networks that learned what they were taught. Probabilities below {FLOOR:g} are drawn there."
    )
    figure = draw_over_training(scores, shown, LINES)
    return Drawing("reversal-over-training", caption if np.isfinite(known) else NOBODY, figure)


def _draw_cures(scores: facts.Scores) -> Drawing:
    rates = [f"rate {rate:g}" for rate in scores.run.config["slower"]]
    long = [f"{n} tokens" for n in scores.run.config["entities"] if n > 1]
    names, depths = [*facts.CURES, "frozen", "untied", *rates, *long], scores.cured
    figure, (left, right) = panels(2, width=4.6, height=0.26 * len(names) * max(1, len(depths) / 1.5) + 1.2)
    draw_bars(left, names, depths, lambda name, depth: scores.probability(scores.named(name, depth), "reverse"))
    draw_bars(right, names, depths, lambda name, depth: scores.rank(scores.named(name, depth), "reverse"))
    left.axvline(scores.uniform, ls=":", lw=1, color=INK)
    right.axvline(0.5, ls=":", lw=1, color=INK)
    left.set(xlabel="probability of the untrained reverse", ylabel="condition", title="Dotted: uniform guess")
    right.set(xlabel="share of rival answers beaten by it", ylabel="same conditions", title="Dotted: chance")
    right.tick_params(labelleft=False)
    if len(depths) > 1:
        right.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))
    reverse = {name: mean_known(scores.probability(scores.named(name, depths[0]), "reverse")) for name in names}
    beaten = mean_known(scores.rank(scores.named(facts.BASE, depths[0]), "reverse"))
    best = max(names, key=lambda name: np.nan_to_num(reverse[name], nan=-1.0))
    caption = (
        f"With {layers_of(depths[0])}, the reverse has probability {number(reverse[facts.BASE])} as published and "
        f"{number(reverse[best])} with '{best}'. As published, the right reverse beats {number(beaten, '%')} of its "
        "rivals, which are the answers to other untrained reverses of the same relation; chance is 50 %. Bars are "
        "means over networks that learned, lines their intervals (95 %; 99 % over four or fewer), cut at 0 and 100 %."
    )
    return Drawing("reversal-cures", caption if np.isfinite(reverse[facts.BASE]) else NOBODY, figure)


def _draw_matrices(scores: facts.Scores) -> Drawing:
    seed = int(np.argmax(scores.learned(scores.named(facts.BASE, 1))))
    figure, axes = panels(2, width=4.4, height=3.9)
    titles = {"logits": "Logit of the column's entity", "attention": "Attention logit on the column's entity"}
    for axis, (what, title) in zip(axes, titles.items(), strict=True):
        halves = np.split(scores.matrix(what, -1)[seed], 2, axis=-1)
        _draw_blocks(axis, np.concatenate([half - half.mean(-1, keepdims=True) for half in halves], -1), title)
    ahead, back = (mean_known(facts.excess(block)) for block in facts.blocks(scores.matrix("logits", -1)))
    trained, untrained = (mean_known(facts.asymmetry(scores.matrix("attention", point))) for point in (-1, 0))
    caption = (
        f"In the trained direction (top right) a partner's logit lies {number(ahead)} nats above its rivals, in the "
        f"reverse (bottom left) {number(back)} nats. The asymmetry of attention logits is {number(trained)}, that of "
        f"the untrained network {number(untrained)} (0: symmetric, 0.5: independent entries). Left: logits after the "
        "entity of the row with its relation, minus the mean of the block's row. Right: the entity of the row "
        "looks at that of the column. One network of one layer; the numbers are means over networks."
    )
    return Drawing("reversal-logits", caption if np.isfinite(ahead) else NOBODY, figure)


def _draw_blocks(axis: Axes, matrix: Any, title: str) -> None:
    matrix = np.nan_to_num(matrix)
    most = float(np.abs(matrix).max()) or 1.0
    axis.imshow(matrix, cmap="PuOr", vmin=-most, vmax=most)
    half = len(matrix) / 2
    for line in (axis.axhline, axis.axvline):
        line(half - 0.5, color="black", lw=0.8)
    places, names = [half / 2 - 0.5, 1.5 * half - 0.5], ["subjects", "answers"]
    axis.set_xticks(places, names)
    axis.set_yticks(places, names, rotation=90, va="center")
    axis.set(title=title, xlabel=f"entity (colours reach ± {number(most)})", ylabel="entity in the row")


STUDY = Study(
    name="reversal-decoder",
    title="The reversal curse in decoders, and what cures it",
    version=1,
    claims={
        judge.CURSE: partial(judge.curse, judge.CURSE, lambda scores: scores.at(facts.BASE, [max(scores.depths)])),
        judge.LOSS: judge.loss,
        judge.DEPTHS: partial(judge.curse, judge.DEPTHS, lambda scores: scores.at(facts.BASE, scores.depths)),
        judge.FROZEN: partial(judge.curse, judge.FROZEN, lambda scores: scores.at("frozen", scores.cured)),
        judge.ENTITIES: partial(judge.curse, judge.ENTITIES, judge.long_entities),
        judge.LONGER: partial(judge.curse, judge.LONGER, judge.trained_longer),
        judge.TRACE: judge.trace,
        judge.OTHERS: judge.other_pairs,
        judge.SHARED: judge.shared_embeddings,
        judge.RATE: judge.learning_rate,
        judge.OWN: judge.own_reverses,
        judge.IDENTITY: partial(judge.cure, judge.IDENTITY, "identities", ("other identities",)),
        judge.BACKWARDS: partial(judge.cure, judge.BACKWARDS, "read backwards", ()),
        judge.ANY: partial(judge.cure, judge.ANY, "any order", ("fill the end",)),
        judge.LOGITS: judge.logits,
        judge.SYMMETRY: judge.symmetry,
        judge.ATTENTION: judge.attention,
    },
    quick=ReversalDecoderConfig(),
    paper=ReversalDecoderConfig(**PAPER, pairs=200, cured=(1, 4), slower=(0.003, 0.001, 0.0003), long=16_000),
    run=partial(train_conditions, facts.conditions, facts.FactNetworks),
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

"""The reversal curse in decoders: does a network that was taught A -> B know B <- A, and what would cure it?"""

from collections.abc import Callable
from functools import partial
from math import log
from typing import Any

import numpy as np

from joma.claims.contract import Claim, Drawing, Finding, Study
from joma.claims.declare import Claims
from joma.claims.guards import at_paper_scale, hardest, mean_known, no_more
from joma.claims.sentences import show
from joma.claims.verdicts import Numbers, Test, at_least, not_run
from joma.figures.reading import number
from joma.figures.style import BLUE, CONTROL, GREEN, INK, RED, Axes, panels
from joma.measure.intervals import Comparison, compare
from joma.runs import Run
from joma.studies.reversal._decoders import (
    FLOOR,
    GAP,
    LEARNED,
    NOBODY,
    PAPER,
    draw_bars,
    draw_over_training,
    layers_of,
    train_conditions,
)
from joma.studies.reversal.reversal_decoder import run as facts
from joma.studies.reversal.reversal_decoder.run import (
    BASE,
    LONG,
    Condition,
    ReversalDecoderConfig,
    Scores,
    asymmetry,
    blocks,
    excess,
)

GAIN = 0.05  # of a probability: a cure that answers fewer than one reverse in twenty is none
CURED = 0.5  # of a probability: half of all reverses
ORDER = 0.1  # of rivals beaten; 0.5 is chance, 1 the most
NEARER = 0.25  # of rivals beaten: half of the way from chance to all
MORE_LOSS = 0.5  # nats of loss: a factor 1.6 in the odds
NATS = 1.0  # of a logit: a factor e in the odds
SHARE = 0.1  # of asymmetry, from 0 to 1
SPREAD = 0.5  # of the standard deviation of attention logits

UNIFORM, TRACE = (f"reversal-decoder/{name}" for name in ("reverse-no-better-than-uniform", "no-trace-of-the-reverse"))
CLAIMS = Claims(source="Reversal Thm 3")

Cases = dict[str, Condition]


def _curse(name: str, says: str, cases_of: Callable[[Scores], Cases], uses: tuple[str, ...] = ()) -> None:
    def judge(run: Run, claim: Claim) -> Finding:
        scores = Scores(run)
        cases = cases_of(scores)
        found = scores.compared(scores.probability, cases, "one way", "reverse")
        what = "probability of the answer in the trained direction (control: of the reverse)"
        words = {"known": "the trained direction", "unknown": "reverse", "what": what}
        return scores.judged_unknown(claim, found, cases, "reverse", **words)

    CLAIMS.declare(name, text=says, matters=GAP, unit="%", uses=uses)(judge)


_curse(
    "reverse-no-better-than-uniform",
    "A decoder that answers A -> B almost perfectly answers the untrained B <- A no better than a uniform guess.",
    lambda scores: scores.at(BASE, [max(scores.depths)]),
    uses=("reversal/reverse-is-a-guess",),
)


def trained_longer(scores: Scores) -> Cases:
    """The networks that were trained for longer."""
    depth = scores.cured[0]
    return {f"{layers_of(depth)}, {scores.run.config['long']} steps": scores.named(LONG, depth)}


def long_entities(scores: Scores) -> Cases:
    """The networks whose entities have several tokens."""
    some = [one for one in scores.conditions.values() if one.entity > 1]
    return {f"{one.entity} tokens, {layers_of(one.layers)}": one for one in some}


@CLAIMS.declare("reverse-loss-above-uniform", matters=MORE_LOSS, unit="nats", uses=(UNIFORM,))
def loss(run: Run, claim: Claim) -> Finding:
    """The probability of an untrained reverse is at most uniform: its loss is above that of a uniform guess.

    The deepest network's; the details have the others', and that of the network that was trained for longer. Added when
    the first record at paper scale had been seen: there a few reverses are known and lift the mean probability, while
    the mean loss is far above uniform.
    """
    scores = Scores(run)
    deepest, guess = scores.named(BASE, max(scores.depths)), log(1 / scores.uniform)
    others = scores.at(BASE, [depth for depth in scores.depths if depth < deepest.layers]) | trained_longer(scores)
    return scores.judged(
        claim,
        {layers_of(deepest.layers): compare(scores.loss(deepest), guess)},
        [deepest],
        what="loss on untrained reverses (control: a uniform guess among the entities)",
        expected=f"at least {MORE_LOSS:g} nats more than the {show(guess)} nats of a uniform guess",
        details={case: {"loss": mean_known(scores.loss(one))} for case, one in others.items()},
    )


_curse(
    "curse-at-every-depth",
    "The theorem is about one layer. Tested here: is there a curse at every depth?",
    lambda scores: scores.at(BASE, scores.depths),
    uses=(UNIFORM,),
)
_curse(
    "curse-with-frozen-embeddings",
    "The theorem takes embeddings as fixed. Tested here: is there a curse with frozen embeddings?",
    lambda scores: scores.at("frozen", scores.cured),
)
_curse(
    "curse-with-long-entities",
    "The theorem takes an entity as one token. Tested here: is there a curse with entities of several tokens?",
    long_entities,
)
_curse(
    "longer-training-does-not-help",
    "At all later times the reverse stays at the uniform guess: the curse is there after longer training.",
    trained_longer,
    uses=(UNIFORM,),
)


@CLAIMS.declare("no-trace-of-the-reverse", "JoMA talk slide Reversal", matters=NEARER, unit="%", uses=(UNIFORM,))
def trace(run: Run, claim: Claim) -> Finding:
    """You only learn what you see in the training set: the right reverse is ranked no higher than the reverses of other
    facts.

    Reverses of the same relation are rivals: all of them are entities that were never an answer.
    """
    scores = Scores(run)
    cases = scores.at(BASE, scores.depths)
    return scores.judged(
        claim,
        scores.compared(scores.rank, cases, "one way", "reverse"),
        cases.values(),
        what="share of rival answers that are less likely than the right one, trained direction (control: reverse)",
        expected=(
            f"the right answer beats at least {show(NEARER, '%')} more of its rivals in the trained direction than "
            f"in the reverse, where it beats less than {show(0.5 + ORDER, '%')} (chance: 50 %)"
        ),
        size=scores.over_half("the reverse's share", cases, "reverse", ORDER),
    )


@CLAIMS.declare("other-pairs-both-ways", matters=ORDER, unit="%", ceiling=1.0)
def other_pairs(run: Run, claim: Claim) -> Finding:
    """Whatever else is trained, an untrained reverse stays unlikely. Tested here: does training other pairs in both
    directions teach a decoder to reverse?

    Some pairs both ways, against none.
    """
    scores = Scores(run)
    half = scores.at("half the reverses", scores.cured)
    return _ranks(
        claim,
        scores,
        scores.at("no pair both ways", scores.cured),
        what=f"share of rivals that the right reverse beats, with {run.config['both']:.0%} of the pairs both ways "
        "(control: none)",
        expected=(
            f"at least {show(ORDER, '%')} more rivals beaten than where no pair trains both ways, and a probability "
            f"of at least {show(CURED, '%')}"
        ),
        size=_cured(scores, scores.at(BASE, scores.cured)),
        details=_reverses(scores, {f"with half of the other reverses too, {case}": one for case, one in half.items()}),
    )


def _ranks(claim: Claim, scores: Scores, controls: Cases, **evidence: Any) -> Finding:
    """How many rivals the right reverse beats in the published training, against its controls."""
    pairs = {case: (scores.named(BASE, one.layers), one) for case, one in controls.items()}
    found = {case: compare(*(scores.rank(one, "reverse") for one in pair)) for case, pair in pairs.items()}
    return scores.judged(claim, found, [one for pair in pairs.values() for one in pair], **evidence)


def _reverses(scores: Scores, cases: Cases) -> Numbers:
    measures = {"probability": scores.probability, "rivals beaten": scores.rank}
    return {
        case: {name: mean_known(measure(one, "reverse")) for name, measure in measures.items()}
        for case, one in cases.items()
    }


def _cured(scores: Scores, cases: Cases) -> list[Test]:
    known = {case: mean_known(scores.probability(one, "reverse")) for case, one in cases.items()}
    return [at_least(f"probability of the reverse ({case})", one, CURED, "%") for case, one in known.items()]


@CLAIMS.declare("trace-needs-shared-embeddings", matters=ORDER, unit="%", ceiling=1.0, uses=(TRACE,))
def shared_embeddings(run: Run, claim: Claim) -> Finding:
    """The theorem has no embeddings. Tested here: is a trace of the reverse carried by learned embeddings that input
    and output share?

    Learned and shared embeddings, against untied ones and against frozen ones.
    """
    scores = Scores(run)
    controls = [(name, depth) for depth in scores.cured for name in ("untied", "frozen")]
    return _ranks(
        claim,
        scores,
        {f"{name}, {layers_of(depth)}": scores.named(name, depth) for name, depth in controls},
        what="share of rivals that the right reverse beats (control: embeddings untied, or frozen)",
        expected=f"at least {show(ORDER, '%')} more rivals beaten than with untied and with frozen embeddings",
    )


@CLAIMS.declare("trace-grows-with-the-rate", matters=ORDER, unit="%", ceiling=1.0, uses=(TRACE,))
def learning_rate(run: Run, claim: Claim) -> Finding:
    """The theorem is about a small learning rate. Tested here: does a larger rate, as in the authors' experiment, leave
    more of a trace?

    The usual rate against the smallest one.
    """
    scores = Scores(run)
    names = [f"rate {rate:g}" for rate in run.config["slower"]]
    slowest = f"rate {min(run.config['slower']):g}"
    cases = {f"{name}, {case}": one for name in names for case, one in scores.at(name, scores.cured).items()}
    return _ranks(
        claim,
        scores,
        scores.at(slowest, scores.cured),
        what=f"share of rivals that the right reverse beats (control: {slowest})",
        expected=f"at least {show(ORDER, '%')} more rivals beaten than with {slowest}",
        details=_reverses(scores, cases),
    )


@CLAIMS.declare("reversed-statements", matters=GAIN, unit="%", ceiling=1.0)
def own_reverses(run: Run, claim: Claim) -> Finding:
    """A statement that is trained is answered: the reverse is known where it is taught itself.

    Reverses that were taught, against those that were not, in the same network.
    """
    scores = Scores(run)
    half = scores.at("half the reverses", scores.cured)
    found = scores.compared(scores.probability, half, "added reverse", "reverse")
    return scores.judged(
        claim,
        found,
        half.values(),
        what="probability of reverses that were taught (control: of those that were not, in the same network)",
        expected=f"at least {show(CURED, '%')}, and more than untaught reverses by at least {show(GAIN, '%')}",
        size=[at_least(f"probability ({case})", one, CURED, "%") for case, one in found.items()],
    )


def _cure(claimed: str, says: str, name: str, *twins: str) -> None:
    def judge(run: Run, claim: Claim) -> Finding:
        scores = Scores(run)
        controls, cases = (BASE, *twins), scores.at(name, scores.cured)
        found: dict[str, Comparison] = {}
        for case, one in cases.items():
            mine = scores.probability(one, "reverse")
            twin_of = {twin: scores.named(twin, one.layers) for twin in controls}
            others = {twin: compare(mine, scores.probability(other, "reverse")) for twin, other in twin_of.items()}
            found |= {f"{case}, against {twin}": control for twin, control in hardest(claim, others).items()}
        listed = " and ".join(f"'{twin}'" for twin in controls)
        ranks = {case: mean_known(scores.rank(one, "reverse")) for case, one in cases.items()}
        return scores.judged(
            claim,
            found,
            cases.values(),
            what=f"probability of the untrained reverse, with {name}",
            expected=f"at least {show(CURED, '%')}, and at least {show(GAIN, '%')} more than {listed}",
            size=_cured(scores, cases),
            details={f"{case}, {name}": {"rivals beaten": beaten} for case, beaten in ranks.items()},
        )

    CLAIMS.declare(claimed, text=says, matters=GAIN, unit="%", ceiling=1.0)(judge)


_cure(
    "identity-statements",
    "Only trained statements are learned. Tested here: do statements 'A is A' let a decoder answer untrained reverses?",
    "identities",
    "other identities",
)
_cure(
    "text-read-backwards",
    "Only the trained direction is learned. Tested here: is the curse cured by training text that is read backwards?",
    "read backwards",
)
_cure(
    "any-order-objective",
    "The theorem is about predicting what follows. Tested here: is the curse cured by filling in either entity?",
    "any order",
    "fill the end",
)


def _of_one_layer(
    claim: Claim, run: Run, look: Callable[[Scores], tuple[Comparison, list[Test]]], *, expected: str, what: str
) -> Finding:
    scores = Scores(run)
    if not scores.pictured:
        return not_run(claim, expected, "no network of one layer was trained", at_paper_scale(run.study))
    found, size = look(scores)
    return scores.judged(claim, found, [scores.named(BASE, 1)], what=what, expected=expected, size=size)


@CLAIMS.declare("next-token-logits", matters=NATS, unit="nats", uses=(UNIFORM,))
def logits(run: Run, claim: Claim) -> Finding:
    """Training A -> B raises the logit of B after A and leaves that of A after B where it was.

    The logit of the partner minus the mean of the other partners in its row, trained direction and reverse.
    """

    def look(scores: Scores) -> tuple[Comparison, list[Test]]:
        trained, reverse = (excess(block) for block in blocks(scores.matrix("logits", -1)))
        what = "the partner's logit minus its rivals' in the reverse"
        return compare(trained, reverse), [no_more(what, compare(reverse), NATS, "nats")]

    return _of_one_layer(
        claim,
        run,
        look,
        expected=f"a partner's logit at least {NATS:g} nat further above its rivals in the trained direction than in "
        f"the reverse, and in the reverse less than {NATS:g} nat above them",
        what="logit of the partner minus that of its rivals, trained direction (control: reverse)",
    )


def _against_untrained(measure: Callable[[Any], Any]) -> Callable[[Scores], tuple[Comparison, list[Test]]]:
    return lambda scores: (compare(*(measure(scores.matrix("attention", point)) for point in (-1, 0))), [])


@CLAIMS.declare("attention-not-symmetric", "JoMA talk slide Reversal", matters=SHARE, ceiling=1.0)
def symmetry(run: Run, claim: Claim) -> Finding:
    """The curse is explained by attention logits between tokens, which training makes asymmetric.

    The asymmetry of attention logits, against the untrained network's.
    """
    return _of_one_layer(
        claim,
        run,
        _against_untrained(asymmetry),
        expected=f"attention logits between entities at least {SHARE:g} less symmetric than in the untrained network "
        "(0: symmetric, 0.5: independent entries)",
        what="asymmetry of attention logits between entities (control: untrained)",
    )


@CLAIMS.declare(
    "attention-follows-facts",
    "JoMA talk slide Reversal",
    matters=SPREAD,
    unit="standard deviations",
    uses=("reversal-decoder/attention-not-symmetric",),
)
def attention(run: Run, claim: Claim) -> Finding:
    """Attention logits between the entities of a fact differ by its direction: A looks at B as B does not look at A.

    What attention makes of the direction of facts, against the untrained network.
    """

    def direction(matrix: Any) -> Any:
        """(seeds,): in standard deviations of all attention logits between entities."""
        ahead, back = (excess(block) for block in blocks(matrix))
        return (ahead - back) / matrix.std((-2, -1))

    return _of_one_layer(
        claim,
        run,
        _against_untrained(direction),
        expected="attention from subject to answer further above its rivals than from answer to subject, by at least "
        f"{SPREAD:g} standard deviations more than in the untrained network",
        what="attention logit of subject on answer minus that of answer on subject, above rivals (control: untrained)",
    )


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
    claims=CLAIMS,
    # Up to two of ten seeds from 3000 on learned too little: of six enough are left.
    quick=ReversalDecoderConfig(seeds=6),
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

"""The claims of `reversal-decoder`, which effects matter, stated before the run, and what was found."""

from collections.abc import Callable
from functools import partial
from math import log
from typing import Any

from joma.claims.contract import Claim, Finding
from joma.claims.evidence import Test, at_least
from joma.claims.guards import at_paper_scale, hardest, mean_known, no_more
from joma.claims.sentences import show
from joma.claims.verdicts import Numbers, not_run
from joma.measure.intervals import Comparison, compare
from joma.runs import Run
from joma.studies.reversal._decoders import GAP, layers_of
from joma.studies.reversal.reversal_decoder.run import BASE, LONG, Condition, Scores, asymmetry, blocks, excess

GAIN = 0.05  # of a probability: a cure that answers fewer than one reverse in twenty is none
CURED = 0.5  # of a probability: half of all reverses
ORDER = 0.1  # of rivals beaten; 0.5 is chance, 1 the most
NEARER = 0.25  # of rivals beaten: half of the way from chance to all
MORE_LOSS = 0.5  # nats of loss: a factor 1.6 in the odds
NATS = 1.0  # of a logit: a factor e in the odds
SHARE = 0.1  # of asymmetry, from 0 to 1
SPREAD = 0.5  # of the standard deviation of attention logits

_curse = partial(Claim, source="Reversal Thm 3", matters=GAP, unit="%")
_trace = partial(Claim, source="Reversal Thm 3", matters=ORDER, unit="%", ceiling=1.0)
_cure = partial(Claim, source="Reversal Thm 3", matters=GAIN, unit="%", ceiling=1.0)

CURSE = _curse(
    "reverse-no-better-than-uniform",
    says="A decoder that answers A -> B almost perfectly answers the untrained B <- A no better than a uniform guess.",
    uses=("reversal/reverse-is-a-guess",),
)
LOSS = Claim(
    "reverse-loss-above-uniform",
    "Reversal Thm 3",
    "The probability of an untrained reverse is at most uniform: its loss is above that of a uniform guess.",
    matters=MORE_LOSS,
    unit="nats",
    uses=("reversal-decoder/reverse-no-better-than-uniform",),
)
"""Added when the first record at paper scale had been seen: there a few reverses are known and lift the mean
probability, while the mean loss is far above uniform."""
DEPTHS = _curse(
    "curse-at-every-depth",
    says="The theorem is about one layer. Tested here: is there a curse at every depth?",
    uses=("reversal-decoder/reverse-no-better-than-uniform",),
)
FROZEN = _curse(
    "curse-with-frozen-embeddings",
    says="The theorem takes embeddings as fixed. Tested here: is there a curse with frozen embeddings?",
)
ENTITIES = _curse(
    "curse-with-long-entities",
    says="The theorem takes an entity as one token. Tested here: is there a curse with entities of several tokens?",
)
TRACE = Claim(
    "no-trace-of-the-reverse",
    "JoMA talk slide Reversal",
    "You only learn what you see in the training set: the right reverse is ranked no higher than the reverses of other "
    "facts.",
    matters=NEARER,
    unit="%",
    uses=("reversal-decoder/reverse-no-better-than-uniform",),
)
OTHERS = _trace(
    "other-pairs-both-ways",
    says="Whatever else is trained, an untrained reverse stays unlikely. Tested here: does training other pairs in "
    "both directions teach a decoder to reverse?",
)
SHARED = _trace(
    "trace-needs-shared-embeddings",
    says="The theorem has no embeddings. Tested here: is a trace of the reverse carried by learned embeddings that "
    "input and output share?",
    uses=("reversal-decoder/no-trace-of-the-reverse",),
)
RATE = _trace(
    "trace-grows-with-the-rate",
    says="The theorem is about a small learning rate. Tested here: does a larger rate, as in the authors' experiment, "
    "leave more of a trace?",
    uses=("reversal-decoder/no-trace-of-the-reverse",),
)
LONGER = _curse(
    "longer-training-does-not-help",
    says="At all later times the reverse stays at the uniform guess: the curse is there after longer training.",
    uses=("reversal-decoder/reverse-no-better-than-uniform",),
)
OWN = _cure(
    "reversed-statements",
    says="A statement that is trained is answered: the reverse is known where it is taught itself.",
)
IDENTITY = _cure(
    "identity-statements",
    says="Only trained statements are learned. Tested here: do statements 'A is A' let a decoder answer untrained "
    "reverses?",
)
BACKWARDS = _cure(
    "text-read-backwards",
    says="Only the trained direction is learned. Tested here: is the curse cured by training text that is read "
    "backwards?",
)
ANY = _cure(
    "any-order-objective",
    says="The theorem is about predicting what follows. Tested here: is the curse cured by filling in either entity?",
)
LOGITS = Claim(
    "next-token-logits",
    "Reversal Thm 3",
    "Training A -> B raises the logit of B after A and leaves that of A after B where it was.",
    matters=NATS,
    unit="nats",
    uses=("reversal-decoder/reverse-no-better-than-uniform",),
)
SYMMETRY = Claim(
    "attention-not-symmetric",
    "JoMA talk slide Reversal",
    "The curse is explained by attention logits between tokens, which training makes asymmetric.",
    matters=SHARE,
    ceiling=1.0,
)
ATTENTION = Claim(
    "attention-follows-facts",
    "JoMA talk slide Reversal",
    "Attention logits between the entities of a fact differ by its direction: A looks at B as B does not look at A.",
    matters=SPREAD,
    unit="standard deviations",
    uses=("reversal-decoder/attention-not-symmetric",),
)


Cases = dict[str, Condition]


def curse(claim: Claim, cases_of: Callable[[Scores], Cases], run: Run) -> Finding:
    """The trained direction against its reverse, and the reverse against the uniform guess."""
    scores = Scores(run)
    cases = cases_of(scores)
    found = scores.compared(scores.probability, cases, "one way", "reverse")
    what = "probability of the answer in the trained direction (control: of the reverse)"
    words = {"known": "the trained direction", "unknown": "reverse", "what": what}
    return scores.judged_unknown(claim, found, cases, "reverse", **words)


def trained_longer(scores: Scores) -> Cases:
    """The networks that were trained for longer."""
    depth = scores.cured[0]
    return {f"{layers_of(depth)}, {scores.run.config['long']} steps": scores.named(LONG, depth)}


def long_entities(scores: Scores) -> Cases:
    """The networks whose entities have several tokens."""
    some = [one for one in scores.conditions.values() if one.entity > 1]
    return {f"{one.entity} tokens, {layers_of(one.layers)}": one for one in some}


def loss(run: Run) -> Finding:
    """The deepest network's; the details have the others', and that of the network that was trained for longer."""
    scores = Scores(run)
    deepest, guess = scores.named(BASE, max(scores.depths)), log(1 / scores.uniform)
    others = scores.at(BASE, [depth for depth in scores.depths if depth < deepest.layers]) | trained_longer(scores)
    return scores.judged(
        LOSS,
        {layers_of(deepest.layers): compare(scores.loss(deepest), guess)},
        [deepest],
        what="loss on untrained reverses (control: a uniform guess among the entities)",
        expected=f"at least {MORE_LOSS:g} nats more than the {show(guess)} nats of a uniform guess",
        details={case: {"loss": mean_known(scores.loss(one))} for case, one in others.items()},
    )


def trace(run: Run) -> Finding:
    """Reverses of the same relation are rivals: all of them are entities that were never an answer."""
    scores = Scores(run)
    cases = scores.at(BASE, scores.depths)
    return scores.judged(
        TRACE,
        scores.compared(scores.rank, cases, "one way", "reverse"),
        cases.values(),
        what="share of rival answers that are less likely than the right one, trained direction (control: reverse)",
        expected=(
            f"the right answer beats at least {show(NEARER, '%')} more of its rivals in the trained direction than "
            f"in the reverse, where it beats less than {show(0.5 + ORDER, '%')} (chance: 50 %)"
        ),
        size=scores.over_half("the reverse's share", cases, "reverse", ORDER),
    )


def other_pairs(run: Run) -> Finding:
    """Some pairs both ways, against none."""
    scores = Scores(run)
    half = scores.at("half the reverses", scores.cured)
    return _ranks(
        OTHERS,
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


def shared_embeddings(run: Run) -> Finding:
    """Learned and shared embeddings, against untied ones and against frozen ones."""
    scores = Scores(run)
    controls = [(name, depth) for depth in scores.cured for name in ("untied", "frozen")]
    return _ranks(
        SHARED,
        scores,
        {f"{name}, {layers_of(depth)}": scores.named(name, depth) for name, depth in controls},
        what="share of rivals that the right reverse beats (control: embeddings untied, or frozen)",
        expected=f"at least {show(ORDER, '%')} more rivals beaten than with untied and with frozen embeddings",
    )


def learning_rate(run: Run) -> Finding:
    """The usual rate against the smallest one."""
    scores = Scores(run)
    names = [f"rate {rate:g}" for rate in run.config["slower"]]
    slowest = f"rate {min(run.config['slower']):g}"
    cases = {f"{name}, {case}": one for name in names for case, one in scores.at(name, scores.cured).items()}
    return _ranks(
        RATE,
        scores,
        scores.at(slowest, scores.cured),
        what=f"share of rivals that the right reverse beats (control: {slowest})",
        expected=f"at least {show(ORDER, '%')} more rivals beaten than with {slowest}",
        details=_reverses(scores, cases),
    )


def own_reverses(run: Run) -> Finding:
    """Reverses that were taught, against those that were not, in the same network."""
    scores = Scores(run)
    half = scores.at("half the reverses", scores.cured)
    found = scores.compared(scores.probability, half, "added reverse", "reverse")
    return scores.judged(
        OWN,
        found,
        half.values(),
        what="probability of reverses that were taught (control: of those that were not, in the same network)",
        expected=f"at least {show(CURED, '%')}, and more than untaught reverses by at least {show(GAIN, '%')}",
        size=[at_least(f"probability ({case})", one.value, CURED, "%") for case, one in found.items()],
    )


def cure(claim: Claim, name: str, twins: tuple[str, ...], run: Run) -> Finding:
    """Against the published training and against twins, whichever is harder to exceed."""
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


def _of_one_layer(
    claim: Claim, run: Run, look: Callable[[Scores], tuple[Comparison, list[Test]]], *, expected: str, what: str
) -> Finding:
    scores = Scores(run)
    if not scores.pictured:
        return not_run(claim, expected, "no network of one layer was trained", at_paper_scale(run.study))
    found, size = look(scores)
    return scores.judged(claim, found, [scores.named(BASE, 1)], what=what, expected=expected, size=size)


def logits(run: Run) -> Finding:
    """The logit of the partner minus the mean of the other partners in its row, trained direction and reverse."""

    def look(scores: Scores) -> tuple[Comparison, list[Test]]:
        trained, reverse = (excess(block) for block in blocks(scores.matrix("logits", -1)))
        what = "the partner's logit minus its rivals' in the reverse"
        return compare(trained, reverse), [no_more(what, compare(reverse), NATS, "nats")]

    return _of_one_layer(
        LOGITS,
        run,
        look,
        expected=f"a partner's logit at least {NATS:g} nat further above its rivals in the trained direction than in "
        f"the reverse, and in the reverse less than {NATS:g} nat above them",
        what="logit of the partner minus that of its rivals, trained direction (control: reverse)",
    )


def _against_untrained(measure: Callable[[Any], Any]) -> Callable[[Scores], tuple[Comparison, list[Test]]]:
    return lambda scores: (compare(*(measure(scores.matrix("attention", point)) for point in (-1, 0))), [])


def symmetry(run: Run) -> Finding:
    """The asymmetry of attention logits, against the untrained network's."""
    return _of_one_layer(
        SYMMETRY,
        run,
        _against_untrained(asymmetry),
        expected=f"attention logits between entities at least {SHARE:g} less symmetric than in the untrained network "
        "(0: symmetric, 0.5: independent entries)",
        what="asymmetry of attention logits between entities (control: untrained)",
    )


def attention(run: Run) -> Finding:
    """What attention makes of the direction of facts, against the untrained network."""

    def direction(matrix: Any) -> Any:
        """(seeds,): in standard deviations of all attention logits between entities."""
        ahead, back = (excess(block) for block in blocks(matrix))
        return (ahead - back) / matrix.std((-2, -1))

    return _of_one_layer(
        ATTENTION,
        run,
        _against_untrained(direction),
        expected="attention from subject to answer further above its rivals than from answer to subject, by at least "
        f"{SPREAD:g} standard deviations more than in the untrained network",
        what="attention logit of subject on answer minus that of answer on subject, above rivals (control: untrained)",
    )

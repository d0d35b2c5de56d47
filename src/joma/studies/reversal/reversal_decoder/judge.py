"""What `reversal-decoder` found: the curse, what is left of the reverse, what cures it, and logits between entities."""

from __future__ import annotations

from collections.abc import Callable
from math import log
from typing import Any

from joma.claims.contract import Claim, Finding
from joma.claims.evidence import Test, at_least
from joma.claims.guards import at_paper_scale, hardest, mean_known, no_more
from joma.claims.sentences import show
from joma.claims.verdicts import Numbers, not_run
from joma.measure.intervals import Comparison, compare
from joma.runs import Run
from joma.studies.reversal._decoders import LITTLE, layers_of
from joma.studies.reversal.reversal_decoder import claims as c
from joma.studies.reversal.reversal_decoder.record import Scores, asymmetry, blocks, excess
from joma.studies.reversal.reversal_decoder.run import BASE, LONG, Condition

Cases = dict[str, Condition]


def curse(claim: Claim, cases_of: Callable[[Scores], Cases], run: Run) -> Finding:
    """The trained direction against its reverse, and the reverse against the uniform guess."""
    scores = Scores(run)
    cases = cases_of(scores)
    return scores.judged(
        claim,
        scores.compared(scores.probability, cases, "one way", "reverse"),
        cases.values(),
        what="probability of the answer in the trained direction (control: of the reverse)",
        expected=(
            f"the trained direction at least {show(c.GAP, '%')} more likely than the reverse, and a reverse that is "
            f"less than {show(LITTLE, '%')} above the uniform guess of {show(scores.uniform, '%')}, beyond chance "
            "(95 %)"
        ),
        size=scores.over_uniform("the reverse", cases, "reverse"),
        details=scores.guesses(cases, "reverse", "shuffled reverse", "unseen"),
    )


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
        c.LOSS,
        {layers_of(deepest.layers): compare(scores.loss(deepest), guess)},
        [deepest],
        what="loss on untrained reverses (control: a uniform guess among the entities)",
        expected=f"at least {c.MORE_LOSS:g} nats more than the {show(guess)} nats of a uniform guess",
        details={case: {"loss": mean_known(scores.loss(one))} for case, one in others.items()},
    )


def trace(run: Run) -> Finding:
    """Reverses of the same relation are rivals: all of them are entities that were never an answer."""
    scores = Scores(run)
    cases = scores.at(BASE, scores.depths)
    return scores.judged(
        c.TRACE,
        scores.compared(scores.rank, cases, "one way", "reverse"),
        cases.values(),
        what="share of rival answers that are less likely than the right one, trained direction (control: reverse)",
        expected=(
            f"the right answer beats at least {show(c.NEARER, '%')} more of its rivals in the trained direction than "
            f"in the reverse, where it beats less than {show(0.5 + c.ORDER, '%')} (chance: 50 %)"
        ),
        size=scores.over_half("the reverse's share", cases, "reverse", c.ORDER),
    )


def other_pairs(run: Run) -> Finding:
    """Some pairs both ways, against none."""
    scores = Scores(run)
    half = scores.at("half the reverses", scores.cured)
    return _ranks(
        c.OTHERS,
        scores,
        scores.at("no pair both ways", scores.cured),
        what=f"share of rivals that the right reverse beats, with {run.config['both']:.0%} of the pairs both ways "
        "(control: none)",
        expected=(
            f"at least {show(c.ORDER, '%')} more rivals beaten than where no pair trains both ways, and a probability "
            f"of at least {show(c.CURED, '%')}"
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
    return {
        case: {
            "probability": mean_known(scores.probability(one, "reverse")),
            "rivals beaten": mean_known(scores.rank(one, "reverse")),
        }
        for case, one in cases.items()
    }


def _cured(scores: Scores, cases: Cases) -> list[Test]:
    return [
        at_least(f"probability of the reverse ({case})", mean_known(scores.probability(one, "reverse")), c.CURED, "%")
        for case, one in cases.items()
    ]


def shared_embeddings(run: Run) -> Finding:
    """Learned and shared embeddings, against untied ones and against frozen ones."""
    scores = Scores(run)
    return _ranks(
        c.SHARED,
        scores,
        {
            f"{name}, {layers_of(depth)}": scores.named(name, depth)
            for depth in scores.cured
            for name in ("untied", "frozen")
        },
        what="share of rivals that the right reverse beats (control: embeddings untied, or frozen)",
        expected=f"at least {show(c.ORDER, '%')} more rivals beaten than with untied and with frozen embeddings",
    )


def learning_rate(run: Run) -> Finding:
    """The usual rate against the smallest one."""
    scores = Scores(run)
    rates = run.config["slower"]
    slowest = f"rate {min(rates):g}"
    return _ranks(
        c.RATE,
        scores,
        scores.at(slowest, scores.cured),
        what=f"share of rivals that the right reverse beats (control: {slowest})",
        expected=f"at least {show(c.ORDER, '%')} more rivals beaten than with {slowest}",
        details=_reverses(
            scores,
            {
                f"rate {rate:g}, {case}": one
                for rate in rates
                for case, one in scores.at(f"rate {rate:g}", scores.cured).items()
            },
        ),
    )


def own_reverses(run: Run) -> Finding:
    """Reverses that were taught, against those that were not, in the same network."""
    scores = Scores(run)
    half = scores.at("half the reverses", scores.cured)
    found = scores.compared(scores.probability, half, "added reverse", "reverse")
    return scores.judged(
        c.OWN,
        found,
        half.values(),
        what="probability of reverses that were taught (control: of those that were not, in the same network)",
        expected=f"at least {show(c.CURED, '%')}, and more than untaught reverses by at least {show(c.GAIN, '%')}",
        size=[at_least(f"probability ({case})", one.value, c.CURED, "%") for case, one in found.items()],
    )


def cure(claim: Claim, name: str, twins: tuple[str, ...], run: Run) -> Finding:
    """Against the published training and against twins, whichever is harder to exceed."""
    scores = Scores(run)
    controls, cases = (BASE, *twins), scores.at(name, scores.cured)
    found: dict[str, Comparison] = {}
    for case, one in cases.items():
        mine = scores.probability(one, "reverse")
        others = {
            twin: compare(mine, scores.probability(scores.named(twin, one.layers), "reverse")) for twin in controls
        }
        found |= {f"{case}, against {twin}": control for twin, control in hardest(claim, others).items()}
    listed = " and ".join(f"'{twin}'" for twin in controls)
    return scores.judged(
        claim,
        found,
        cases.values(),
        what=f"probability of the untrained reverse, with {name}",
        expected=f"at least {show(c.CURED, '%')}, and at least {show(c.GAIN, '%')} more than {listed}",
        size=_cured(scores, cases),
        details={
            f"{case}, {name}": {"rivals beaten": mean_known(scores.rank(one, "reverse"))} for case, one in cases.items()
        },
    )


def _of_one_layer(
    claim: Claim, run: Run, look: Callable[[Scores], tuple[Comparison, list[Test]]], *, expected: str, what: str
) -> Finding:
    """Of logits between entities, which only networks of one layer record."""
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
        return compare(trained, reverse), [no_more(what, compare(reverse), c.NATS, "nats")]

    return _of_one_layer(
        c.LOGITS,
        run,
        look,
        expected=f"a partner's logit at least {c.NATS:g} nat further above its rivals in the trained direction than in "
        f"the reverse, and in the reverse less than {c.NATS:g} nat above them",
        what="logit of the partner minus that of its rivals, trained direction (control: reverse)",
    )


def _against_untrained(measure: Callable[[Any], Any]) -> Callable[[Scores], tuple[Comparison, list[Test]]]:
    return lambda scores: (compare(*(measure(scores.matrix("attention", point)) for point in (-1, 0))), [])


def symmetry(run: Run) -> Finding:
    """The asymmetry of attention logits, against the untrained network's."""
    return _of_one_layer(
        c.SYMMETRY,
        run,
        _against_untrained(asymmetry),
        expected=f"attention logits between entities at least {c.SHARE:g} less symmetric than in the untrained network "
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
        c.ATTENTION,
        run,
        _against_untrained(direction),
        expected="attention from subject to answer further above its rivals than from answer to subject, by at least "
        f"{c.SPREAD:g} standard deviations more than in the untrained network",
        what="attention logit of subject on answer minus that of answer on subject, above rivals (control: untrained)",
    )

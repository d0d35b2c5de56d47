"""What `reversal-decoder` found: the curse, what is left of the reverse, and what cures it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log

from joma.claims.contract import Claim, Finding
from joma.claims.evidence import Test, at_least
from joma.claims.verdicts import Numbers
from joma.claims.words import show
from joma.measure.intervals import Comparison, compare
from joma.runs import Run
from joma.studies.reversal._decoder_claims import (
    ANY,
    BACKWARDS,
    CURED,
    CURSE,
    DEPTHS,
    ENTITIES,
    FROZEN,
    GAIN,
    GAP,
    IDENTITY,
    LONGER,
    LOSS,
    MORE_LOSS,
    NAME,
    NEARER,
    ORDER,
    OTHERS,
    OWN,
    RATE,
    SHARED,
    TRACE,
)
from joma.studies.reversal._decoder_conditions import BASE, LONG, Condition
from joma.studies.reversal._decoder_judging import (
    LITTLE,
    hardest_of,
    layers_of,
    mean_of,
    no_more,
    of_learned,
    over_uniform,
)
from joma.studies.reversal._decoder_scores import Scores


def curse(run: Run) -> Finding:
    scores = Scores(run)
    return _cursed(CURSE, scores, {layers_of(max(scores.depths)): scores.base(max(scores.depths))})


def loss(run: Run) -> Finding:
    """The deepest network's; the others' stand beside it, and that of the network that was trained for longer."""
    scores = Scores(run)
    deepest, guess = scores.base(max(scores.depths)), log(1 / scores.uniform)
    others = {layers_of(depth): scores.base(depth) for depth in scores.depths if depth < deepest.layers}
    others[f"{layers_of(scores.cured[0])}, {run.config['long']} steps"] = scores.named(LONG, scores.cured[0])
    return of_learned(
        LOSS,
        {layers_of(deepest.layers): compare(scores.loss(deepest), guess)},
        study=NAME,
        left_out=scores.lost(deepest),
        what="loss on untrained reverses (control: a uniform guess among the entities)",
        expected=f"at least {MORE_LOSS:g} nats more than the {show(guess)} nats of a uniform guess",
        details={case: {"loss": mean_of(scores.loss(one))} for case, one in others.items()},
    )


def at_every_depth(run: Run) -> Finding:
    scores = Scores(run)
    return _cursed(DEPTHS, scores, {layers_of(depth): scores.base(depth) for depth in scores.depths})


def frozen(run: Run) -> Finding:
    scores = Scores(run)
    return _cursed(FROZEN, scores, {layers_of(depth): scores.named("frozen", depth) for depth in scores.cured})


def long_entities(run: Run) -> Finding:
    scores = Scores(run)
    cases = {
        f"{one.entity} tokens, {layers_of(one.layers)}": one for one in scores.conditions.values() if one.entity > 1
    }
    return _cursed(ENTITIES, scores, cases)


def _cursed(claim: Claim, scores: Scores, cases: Mapping[str, Condition]) -> Finding:
    """The trained direction against its reverse, and the reverse against the uniform guess."""
    found = {
        case: compare(scores.probability(one, "one way"), scores.probability(one, "reverse"))
        for case, one in cases.items()
    }
    return of_learned(
        claim,
        found,
        study=NAME,
        left_out=scores.lost(*cases.values()),
        what="probability of the answer in the trained direction (control: of the reverse)",
        expected=(
            f"the trained direction at least {show(GAP, '%')} more likely than the reverse, and a reverse that is less "
            f"than {show(LITTLE, '%')} above the uniform guess of {show(scores.uniform, '%')}, beyond chance (95 %)"
        ),
        size=[over_uniform(f"the reverse ({case})", scores.probability(one, "reverse"), scores.uniform)
              for case, one in cases.items() if found[case].seeds],
        details=_other_guesses(scores, cases),
    )  # fmt: skip


def _other_guesses(scores: Scores, cases: Mapping[str, Condition]) -> Numbers:
    """What else the reverse stands beside: answers to other reverses, and facts that were never seen."""
    return {
        f"guesses, {case}": {
            kind: mean_of(scores.probability(one, kind)) for kind in ("reverse", "shuffled reverse", "unseen")
        }
        for case, one in cases.items()
    }


def trace(run: Run) -> Finding:
    """Reverses of the same relation are rivals: all of them are entities that were never an answer."""
    scores = Scores(run)
    bases = {layers_of(depth): scores.base(depth) for depth in scores.depths}
    found = {case: compare(scores.rank(one, "one way"), scores.rank(one)) for case, one in bases.items()}
    return of_learned(
        TRACE,
        found,
        study=NAME,
        left_out=scores.lost(*bases.values()),
        what="share of rival answers that are less likely than the right one, trained direction (control: reverse)",
        expected=(
            f"the right answer beats at least {show(NEARER, '%')} more of its rivals in the trained direction than in "
            f"the reverse, where it beats less than {show(0.5 + ORDER, '%')} (chance: 50 %)"
        ),
        size=[no_more(f"the reverse's share minus 50 % ({case})", compare(scores.rank(one), 0.5), ORDER, "%")
              for case, one in bases.items() if found[case].seeds],
    )  # fmt: skip


def other_pairs(run: Run) -> Finding:
    scores = Scores(run)
    pairs = {layers_of(d): (scores.base(d), scores.named("no pair both ways", d)) for d in scores.cured}
    found = {case: compare(scores.rank(one), scores.rank(other)) for case, (one, other) in pairs.items()}
    share = run.config["both"]
    return of_learned(
        OTHERS,
        found,
        study=NAME,
        left_out=scores.lost(*(one for pair in pairs.values() for one in pair)),
        what=f"share of rivals that the right reverse beats, with {share:.0%} of the pairs both ways (control: none)",
        expected=(
            f"at least {show(ORDER, '%')} more rivals beaten than where no pair trains both ways, and a probability of "
            f"at least {show(CURED, '%')}"
        ),
        size=_cured(scores, {case: one for case, (one, _) in pairs.items()}),
        details=_half(scores),
    )


def _half(scores: Scores) -> Numbers:
    return {
        f"with half of the other reverses too, {layers_of(depth)}": {
            "probability": mean_of(scores.probability(scores.named("half the reverses", depth), "reverse")),
            "rivals beaten": mean_of(scores.rank(scores.named("half the reverses", depth))),
        }
        for depth in scores.cured
    }


def shared_embeddings(run: Run) -> Finding:
    scores = Scores(run)
    pairs = {
        f"{name}, {layers_of(depth)}": (scores.base(depth), scores.named(name, depth))
        for depth in scores.cured
        for name in ("untied", "frozen")
    }
    return of_learned(
        SHARED,
        {case: compare(scores.rank(one), scores.rank(other)) for case, (one, other) in pairs.items()},
        study=NAME,
        left_out=scores.lost(*(one for pair in pairs.values() for one in pair)),
        what="share of rivals that the right reverse beats (control: embeddings untied, or frozen)",
        expected=f"at least {show(ORDER, '%')} more rivals beaten than with untied and with frozen embeddings",
    )


def learning_rate(run: Run) -> Finding:
    """The usual rate against the smallest one."""
    scores = Scores(run)
    slowest = f"rate {min(run.config['slower']):g}"
    pairs = {layers_of(depth): (scores.base(depth), scores.named(slowest, depth)) for depth in scores.cured}
    others = {(f"rate {rate:g}", depth): depth for rate in run.config["slower"] for depth in scores.cured}
    return of_learned(
        RATE,
        {case: compare(scores.rank(one), scores.rank(other)) for case, (one, other) in pairs.items()},
        study=NAME,
        left_out=scores.lost(*(one for pair in pairs.values() for one in pair)),
        what=f"share of rivals that the right reverse beats (control: {slowest})",
        expected=f"at least {show(ORDER, '%')} more rivals beaten than with {slowest}",
        details={
            f"{name}, {layers_of(depth)}": {
                "probability": mean_of(scores.probability(scores.named(name, depth), "reverse")),
                "rivals beaten": mean_of(scores.rank(scores.named(name, depth))),
            }
            for name, depth in others
        },
    )


def longer(run: Run) -> Finding:
    scores = Scores(run)
    depth = scores.cured[0]
    return _cursed(LONGER, scores, {f"{layers_of(depth)}, {run.config['long']} steps": scores.named(LONG, depth)})


def own_reverses(run: Run) -> Finding:
    scores = Scores(run)
    half = {layers_of(depth): scores.named("half the reverses", depth) for depth in scores.cured}
    found = {
        case: compare(scores.probability(one, "added reverse"), scores.probability(one, "reverse"))
        for case, one in half.items()
    }
    return of_learned(
        OWN,
        found,
        study=NAME,
        left_out=scores.lost(*half.values()),
        what="probability of reverses that were taught (control: of those that were not, in the same network)",
        expected=f"at least {show(CURED, '%')}, and more than untaught reverses by at least {show(GAIN, '%')}",
        size=[at_least(f"probability ({case})", found[case].value, CURED, "%") for case in half],
    )


def identities(run: Run) -> Finding:
    return _cure(IDENTITY, run, "identities", ("other identities",))


def read_backwards(run: Run) -> Finding:
    return _cure(BACKWARDS, run, "read backwards", ())


def any_order(run: Run) -> Finding:
    return _cure(ANY, run, "any order", ("fill the end",))


def _cure(claim: Claim, run: Run, name: str, twins: Sequence[str]) -> Finding:
    """Against the published training and against twins, whichever is harder to exceed."""
    scores = Scores(run)
    found: dict[str, Comparison] = {}
    for depth in scores.cured:
        others = {twin: scores.probability(scores.named(twin, depth), "reverse") for twin in (BASE, *twins)}
        of_depth = hardest_of(scores.probability(scores.named(name, depth), "reverse"), others)
        found |= {f"{layers_of(depth)}, against {twin}": one for twin, one in of_depth.items()}
    cases = {layers_of(depth): scores.named(name, depth) for depth in scores.cured}
    controls = f"{_listed((BASE, *twins))}"
    return of_learned(
        claim,
        found,
        study=NAME,
        left_out=scores.lost(*cases.values()),
        what=f"probability of the untrained reverse, with {name}",
        expected=f"at least {show(CURED, '%')}, and at least {show(GAIN, '%')} more than {controls}",
        size=_cured(scores, cases),
        details={f"{case}, {name}": {"rivals beaten": mean_of(scores.rank(one))} for case, one in cases.items()},
    )


def _listed(twins: Sequence[str]) -> str:
    """Names of conditions in a sentence."""
    return " and ".join(f"'{twin}'" for twin in twins)


def _cured(scores: Scores, cases: Mapping[str, Condition]) -> list[Test]:
    return [
        at_least(f"probability of the reverse ({case})", mean_of(scores.probability(one, "reverse")), CURED, "%")
        for case, one in cases.items()
    ]

"""Does one number, the variance of logits, carry the entropy of attention, and which part of it is the rebound?

The claims come from a sketch on seeds 0 to 7. The controls, the step of the valley and what matters were decided before
any run at paper scale, which uses other seeds. What matters: 0.05 nats of entropy, as in the ablations; a factor of two
for what grows first; a tenth of |A|² on the way back; 40 % of the rise beyond the control.
"""

from collections.abc import Callable, Iterable

import numpy as np

from joma.claims.contract import Claim, Finding, NotRun, Study
from joma.claims.declare import Claims
from joma.claims.guards import at_paper_scale, hardest, no_more
from joma.claims.verdicts import at_least, at_most, by_effect
from joma.measure.intervals import Comparison, compare
from joma.recipes.language import PAPER, QUICK, same_text
from joma.recipes.language.curves import diverged, mean_over_seeds
from joma.runs import Run
from joma.studies.rebound.rebound_cause.run import MATTERS, Case
from joma.studies.rebound.spread import record
from joma.studies.rebound.spread.figures import draw
from joma.studies.rebound.spread.onset import IN_TIME, judge_onset
from joma.studies.rebound.spread.run import SpreadConfig, run

TWICE = 0.69  # ln 2: a part that doubles
TENTH = 0.1  # of |A|², in its logarithm: half of what it grew by in the sketch
NEAR = 0.1
"""Nats by which the entropy that follows from s2 may miss: twice what matters, half of the sketch's largest miss."""
REMOVED, LEFT = 0.6, 0.2
"""Shares of the rise: what must be removed at least for sizes to be the rebound, and what a control may remove."""

COMES_BACK = ("fig6/fig6-one-layer", "fig6/fig6-top-layers")
CLAIMS = Claims(source="JoMA Sec. 4")


@CLAIMS.declare("entropy-follows-variance", "JoMA Fig. 6", matters=MATTERS, unit="nats")
def judge_entropy(run: Run, claim: Claim) -> Finding:
    """The figure shows the entropy of attention. Tested here: over training it is that of Gaussian logits with the
    variance of the layer's own logits, which has no free number.

    Expected: the error of the entropy that follows from a layer's own variance is at least {MATTERS:g} nats smaller
    than that from another layer's (one layer: another seed's), beyond chance, and at most {NEAR:g} nats
    """
    cases = _cases(run, record.all_cases)
    own, others = ({c: c.mean(record.errors(run, c.base, others=o)) for c in cases} for o in (False, True))
    size = [at_most(f"{c.name}, error", compare(own[c]).value, NEAR, "nats") for c in cases]
    found = {c.name: compare(-own[c], -others[c]) for c in cases}
    what = "minus the error of the entropy; control: another's variance"
    return by_effect(claim, found, what=what, size=size, details=_left_out(run))


@CLAIMS.declare("aligns-before-it-grows", matters=TWICE)
def judge_alignment(run: Run, claim: Claim) -> Finding:
    """Attention becomes sparse as its logits grow. Tested here: to the valley they grow because weights turn to the
    input (alignment), more than because weights become larger (growth).

    Expected: from start to valley, ln of alignment rises by at least {TWICE:g} more than ln of growth does, and than
    alignment does where the text is shuffled or queries and keys are frozen, beyond chance

    With frozen embeddings weights can still turn, so that a rise there speaks against nothing: its numbers stand in the
    details.
    """
    cases = _cases(run, record.all_cases)
    found: dict[str, Comparison] = {}
    for case in cases:
        ours = record.case_logs(run, case, "alignment")
        against = {"growth": compare(ours, record.case_logs(run, case, "growth"))}
        for what, control in record.controls(run, case.base).items():
            if what != record.EMBEDDINGS:
                against[what] = compare(ours, record.case_logs(run, case, "alignment", variant=control))
        found |= {f"{case.name}, against {name}": one for name, one in hardest(claim, against).items()}
    details = _log_details(run, cases, ("growth", "alignment", "context"))
    return by_effect(claim, found, what="rise of ln of alignment", details=details)


@CLAIMS.declare("shared-preference-first", matters=TWICE)
def judge_shared_first(run: Run, claim: Claim) -> Finding:
    """Attention first picks few keys. Tested here: to the valley, the preference for keys that all queries share grows
    by a larger factor than what is specific to a query.

    Expected: from start to valley, ln of the shared part rises by at least {TWICE:g} more than ln of the specific one
    """
    cases = _cases(run, record.all_cases)
    found = {c.name: compare(record.case_logs(run, c, "shared"), record.case_logs(run, c, "specific")) for c in cases}
    what = "rise of ln of the shared part; control: of the specific part"
    details = _log_details(run, cases, ("shared", "specific"))
    return by_effect(claim, found, what=what, details=details)


@CLAIMS.declare("logits-fade-while-weights-grow", matters=TENTH, uses=COMES_BACK)
def judge_fading(run: Run, claim: Claim) -> Finding:
    """Attention becomes dense again. Tested here: in layers that come back, logits spread less from the valley on,
    although the weights of queries and keys still grow.

    Expected: from valley to end, ln of |A|² rises by at least {TENTH:g}, beyond chance, while ln of the variance of
    logits falls, in every layer that comes back
    """
    cases = _cases(run, record.cases_back)
    found: dict[str, Comparison] = {}
    falls = []
    for case in cases:
        weights, logits = (record.case_logs(run, case, what, back=True) for what in ("growth", "variance"))
        against = {"no change": compare(weights), "the change of ln s2": compare(weights, logits)}
        found |= {f"{case.name}, against {name}": one for name, one in hardest(claim, against).items()}
        falls.append(no_more(f"the change of ln s2, {case.name}", compare(logits), 0.0))
    names = ("variance", "growth", "alignment", "context", "mean_share", "rank")
    details = _log_details(run, cases, names, back=True)
    return by_effect(claim, found, what="rise of ln of |A|²", controls=falls, details=details)


@CLAIMS.declare("shared-preference-fades-more", matters=MATTERS, unit="nats", uses=COMES_BACK)
def judge_shared_fades(run: Run, claim: Claim) -> Finding:
    """Attention becomes dense again. Tested here: in layers that come back, the preference that all queries share loses
    more of its size than what is specific to a query.

    Expected: from valley to end, half the shared variance falls by at least {MATTERS:g} nats more than half the
    specific one, beyond chance, in every layer that comes back
    """
    cases = _cases(run, record.cases_back)
    lost = {c: {p: c.mean(-record.half_change(run, c.base, p)) for p in ("shared", "specific", "cross")} for c in cases}
    details = {
        f"{case.name}, nats lost (half the variance)": {part: mean_over_seeds(one) for part, one in parts.items()}
        for case, parts in lost.items()
    }
    return by_effect(
        claim,
        {case.name: compare(parts["shared"], parts["specific"]) for case, parts in lost.items()},
        what="loss of the shared part; control: of the specific part",
        details=details | _left_out(run),
    )


@CLAIMS.declare("sizes-are-the-rebound", "JoMA Fig. 6", matters=REMOVED - LEFT, unit="%", uses=COMES_BACK)
def judge_sizes(run: Run, claim: Claim) -> Finding:
    """Attention entropy comes back. Tested here: at the end, the shared and the specific logits brought back to their
    sizes at the valley, and nothing else, remove at least 60 % of the rise.

    Expected: at the end, logits with the sizes of the valley remove at least 60 % of the rise of entropy, at least 40 %
    more than the mixture or the weights of the valley do, beyond chance; the mixture removes at most 20 %

    The mixture: the parts have the ratio of the valley, and the variance stays that of the end. If the kind of logits
    and not their size made the rebound, this would undo it. The weights: all logits are multiplied as if |A| were that
    of the valley. Sizes of another seed are no control, because networks of one recipe fade alike; neither is as much
    variance along random directions, because entropy follows the variance whatever its direction.
    """
    cases = _cases(run, record.cases_back)
    found: dict[str, Comparison] = {}
    shares = {case: {held: _share(run, case, held) for held in record.HELD} for case in cases}
    for case, of in shares.items():
        against = {f"the {rival}": compare(of["both sizes"], of[rival]) for rival in ("mixture", "weights")}
        found |= {f"{case.name}, against {name}": one for name, one in hardest(claim, against).items()}
    details = {
        f"{case.name}, share of the rise removed by": {held: mean_over_seeds(one) for held, one in of.items()}
        for case, of in shares.items()
    }
    least = [(f"{c.name}, share removed", compare(of["both sizes"])) for c, of in shares.items()]
    most = [(f"the share that the mixture removes, {c.name}", compare(of["mixture"])) for c, of in shares.items()]
    return by_effect(
        claim,
        found,
        what="share of the rise removed",
        size=[at_least(what, share, REMOVED, "%") for what, share in least],
        controls=[no_more(what, share, LEFT, "%") for what, share in most],
        details=details | _left_out(run),
    )


@CLAIMS.declare("turns-with-the-rank", "JoMA Fig. 6", matters=IN_TIME, uses=COMES_BACK)
def judge_turning(run: Run, claim: Claim) -> Finding:
    """After it was sparse, attention becomes dense again. Tested here: it begins to when the participation rank of what
    the layer reads begins to rise.

    Expected: in layers that come back, the steps of lowest entropy and of lowest rank differ by at most 0.22 in their
    logarithm, by {IN_TIME:g} less than with the rank of another seed, beyond chance
    """
    return judge_onset(claim, run, _cases(run, record.cases_back))


def _share(run: Run, case: Case, held: str) -> np.ndarray:
    rise = mean_over_seeds(case.mean(record.rises(run, case.base)))
    return case.mean(record.removed(run, case.base, held)) / rise


def _log_details(
    run: Run, cases: Iterable[Case], names: Iterable[str], *, back: bool = False
) -> dict[str, dict[str, float]]:
    """Means over seeds of changes of logarithms, of the controls too."""
    way, found = "valley to end" if back else "start to valley", {}
    for case in cases:
        variants = {"": case.base, **({} if back else record.controls(run, case.base))}
        for what, variant in variants.items():
            means = {
                name: mean_over_seeds(record.case_logs(run, case, name, variant=variant, back=back)) for name in names
            }
            known = {name: mean for name, mean in means.items() if np.isfinite(mean)}
            found[f"{case.name}{', ' * bool(what)}{what}, rise of ln, {way}"] = known
    return found | _left_out(run)


def _left_out(run: Run) -> dict[str, dict[str, float]]:
    return diverged(run, record.bases(run))


def _cases(run: Run, of: Callable[[Run, str], list[Case]]) -> list[Case]:
    reasons = [record.unsound(run, base) for base in record.bases(run)]
    if all(reasons):
        raise NotRun("; ".join(reasons), steps=2 * run.config["steps"])
    if cases := [case for base in record.bases(run) if not record.unsound(run, base) for case in of(run, base)]:
        return cases
    found = {
        Case(base, (layer,)).name: compare(rise)
        for base, reason in zip(record.bases(run), reasons, strict=True)
        if not reason
        for layer, rise in enumerate(record.rises(run, base))
    }
    most = max(found, key=lambda name: found[name].value)
    reason = (
        f"no layer comes back by {MATTERS:g} nats beyond chance; the largest rise, from the minimum to the end, is "
        f"{found[most].value:.3f} nats ({found[most].low:.3f} to {found[most].high:.3f}), {most}"
    )
    raise NotRun(reason, at_paper_scale(run.study))


STUDY = Study(
    name="spread",
    title="How far logits spread: what carries entropy, and what comes back",
    version=1,
    claims=CLAIMS,
    # One layer: the second one does not come back in so few steps, and the controls would cost as much again.
    # Six seeds of 1 on left two claims open that asked for 13. Judged on others.
    quick=SpreadConfig(
        **QUICK | {"steps": 720, "every": 8}, deep_steps=720, layers=(1,), seeds=14, seed=100, valley=300,
    ),
    # The valley and the lengths are those of rebound-cause. In the kept records of optimizer-or-rate and of norm, the
    # second layer with SGD at a rate of 3 and with norms before turns near step 2,000 too.
    paper=SpreadConfig(
        **PAPER | {"valid_sequences": 40, "steps": 10_000, "every": 16, "seeds": 6, "seed": 50}, dropout=0.2, length=35,
        layers=(1, 2, 5, 10), rate=1e-4, valley=2_000, deep_steps=6_000, others=True, sgd_rate=3.0, many_heads=4,
    ),
    run=run,
    draw=lambda run: [draw(run)],
    check=same_text,
    about=(
        "Figure 6's language models are trained and measured at steps that are √2 apart. The variance of a query's "
        "logits over its keys is split into what all queries share, what is specific to a query, and their cross "
        "term; and into growth of weights, alignment with the input, and context. Networks have 1, 2, 5 and 10 layers; "
        "those of two layers are also trained with SGD, and with norms before and four heads. Controls of two layers "
        "read shuffled text, or have queries and keys, or embeddings, frozen. Sizes are compared at the start, at one "
        "step that was fixed before the run (the minimum), and at the end. Way back: only layers that come back are "
        "judged. Networks of five and ten layers train for 6,000 steps, the others for 10,000. Quick scale trains "
        "small models on Python source."
    ),
)  # fmt: skip

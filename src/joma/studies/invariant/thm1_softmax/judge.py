"""How each claim is judged: identities by their residuals, estimates of the logits beside estimates that know less."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from joma.claims.contract import Claim, Finding
from joma.claims.evidence import Test, above, at_least, at_most, below
from joma.claims.guards import hardest
from joma.claims.verdicts import by_effect, by_residual, by_tests, not_run
from joma.measure.intervals import compare
from joma.runs import Run
from joma.studies.invariant.thm1_softmax.run import KINDS, Kind, Networks, concentration, relative

CLOSE = 0.2  # relative error of a prediction worth the name
HIGH, LOW = 0.9, 0.5  # Pearson correlations that count as high, and as none
MARGIN = 0.05  # by how much a correlation must exceed its control
CONCENTRATED = 0.1  # by how much a share of growth must exceed its control

SUM = "thm1-softmax/eq17-sum"
SUMS = Claim(
    "eq17-sum",
    "JoMA eq. 17",
    "If b is uncorrelated with g h′ b, then z′ = Σ v_k′∘v_k − b̄ v_k′·v_k. The sum sign stands only before the "
    "first term.",
    "The sum over nodes covers both terms.",
)
COVARIANCE = Claim(
    "eq17-covariance",
    "JoMA eq. 17",
    "In training, z′ = Σ(v_k′∘v_k − b̄ v_k′·v_k).",
    "z′ = Σ(v_k′∘v_k − b̄ v_k′·v_k) − Cov(s, b), times κ/T, with s = Σ g_k h_k′ b·v_k. It is exact at every step of "
    "SGD.",
    uses=(SUM,),
)
CONSTANT = Claim(
    "eq18-constant-mean",
    "JoMA eq. 18",
    "With constant b̄ the integral of eq. 17 is z = ½Σ(v² − ‖v‖² b̄) + c.",
    "b̄ moves whenever z moves. If Cov(s, b) = 0, then z = z(0) + ∫[Σ v_k∘v_k′ − b̄(t) Σ v_k·v_k′] dt.",
    uses=(SUM,),
)
CONDITION = Claim(
    "softmax-condition",
    "JoMA Thm 1",
    "The condition E[Σ g_k h_k′ b bᵀ] = b̄ E[Σ g_k h_k′ b]ᵀ is enough for the softmax case (with constant b̄).",
    "The condition must hold for each node, or contain v_k: Σ E[g_k h_k′ b bᵀ] v_k = b̄ Σ v_k′·v_k.",
    uses=(SUM,),
)
MEAN = Claim(
    "softmax-mean-logit",
    "JoMA eq. 17",
    "The right-hand side sums to zero over tokens, so the mean logit never moves.",
    uses=("thm1-softmax/eq17-covariance",),
)
CLOSED_FORM = ("thm1-softmax/eq18-constant-mean",)
_estimate = partial(Claim, matters=MARGIN, ceiling=1.0, uses=CLOSED_FORM)
PUBLISHED = _estimate(
    "softmax-published",
    "JoMA Thm 1",
    "½Σ(v² − ‖v‖² b̄) + c with constant b̄ predicts the softmax logits fairly well, although its assumptions fail.",
)
CORRELATES = {
    kind: _estimate(
        f"fig2-{kind}",
        "JoMA Fig. 2",
        f"The estimate from V correlates highly with the true logits ({kind} classes).",
    )
    for kind in KINDS
}
PARTS = Claim(
    "fig2-components",
    "JoMA Fig. 2",
    "Neither of the two terms, ½Σv² and −½Σ‖v‖² b̄, correlates with the logits alone.",
    "The second term does not. The first term, ½Σv², does at the end of training.",
    matters=HIGH - LOW,
    uses=CLOSED_FORM,
)
CURRENT = _estimate(
    "eq18-current-mean",
    "JoMA eq. 18",
    "The closed form can be computed with b̄ as the theorem defines it: the mean attention at that time.",
)
REBUILT = Claim(
    "softmax-rebuilt",
    "JoMA eq. 18",
    "A closed form gives the logits from V(t), so attention does not need training.",
    "The path of V and the inputs x give the logits: integrate eq. 17 with b̄ computed from the estimate itself.",
    matters=CLOSE,
    ceiling=1.0,
    uses=("thm1-softmax/eq17-sum",),
)
GROWTH = {
    kind: Claim(
        f"fig3-{kind}",
        "JoMA Fig. 3",
        f"Late in training only some components of v keep growing, and the others stop ({kind} classes).",
        matters=CONCENTRATED,
        unit="%",
        ceiling=1.0,
    )
    for kind in KINDS
}


EXACT = 1e-12  # identities of SGD steps
FLOW = 1e-10  # identities along a solved flow
UNEQUAL = 0.2  # relative: two sides that differ by more do not agree, not even roughly
NEAR_ONE = 0.99  # the correlation of an estimate that also has the right size
STILL, MOST = 0.1, 0.5  # a component stands still below this share of the largest movement; most of them must
TERMS = {"first term": "½Σv²", "second term": "−½Σ‖v‖² b̄"}


def _off_in_training(run: Run) -> dict[str, float]:
    """The relative error of eq. 17 with the true b̄(t) after training on many samples, where Cov(s, b) ≠ 0."""
    ends = {kind: relative(run.value(f"{kind}/integrated"), run.value(f"{kind}/z"))[:, -1] for kind in KINDS}
    return {kind: float(end.mean()) for kind, end in ends.items()}


def _where_uncorrelated(run: Run, claim: Claim, expected: str, tolerance: float, **off: Any) -> Finding:
    """Both forms on one sample, where Cov(s, b) = 0. In training, where it is not, eq. 17 must be off."""
    control = {"in training, where Cov(s, b) ≠ 0": np.min(list(_off_in_training(run).values()))}  # NaN if one is
    forms = {form: each.max() for form, each in off.items()}
    return by_residual(claim, tolerance=tolerance, what="relative error", expected=expected, control=control, **forms)


def sums(run: Run) -> Finding:
    """With the sum over nodes as printed and over both terms."""
    expected = "The formula equals z′ where Cov(s, b) = 0 (as printed: with the best node in the second term)."
    printed, corrected = (run.value(f"one/velocity, {nodes}") for nodes in ("one node", "all nodes"))
    return _where_uncorrelated(run, SUMS, expected, EXACT, printed=printed, corrected=corrected)


def constant(run: Run) -> Finding:
    """The closed form with constant b̄, and the integral with b̄(t)."""
    expected = "The relative error is 0 where Cov(s, b) = 0."
    printed, corrected = (relative(run.value(f"one/z {way}"), run.value("one/z")) for way in ("closed", "integrated"))
    return _where_uncorrelated(run, CONSTANT, expected, FLOW, printed=printed, corrected=corrected)


def covariance(run: Run) -> Finding:
    """In training, without and with Cov(s, b); the control takes Cov(s, b) from the other classes."""
    z, without, identity = (
        {kind: run.value(f"{kind}/{name}") for kind in KINDS} for name in ("z", "integrated", "identity")
    )
    swapped = [
        relative(without[kind] + identity[other] - without[other], z[kind])[:, -1].mean()
        for kind, other in zip(KINDS, reversed(KINDS), strict=True)
    ]
    return by_residual(
        COVARIANCE,
        printed=np.max(list(_off_in_training(run).values())),
        corrected=np.max([relative(identity[kind], z[kind]) for kind in KINDS]),
        tolerance=EXACT,
        what="relative error",
        expected="The relative error is 0 after all steps.",
        control={"with Cov(s, b) of the other classes": np.min(swapped)},
    )


def condition(run: Run) -> Finding:
    """The printed condition is met and its conclusion, eq. 17 with the true mean, fails all the same."""
    sides = np.max([run.value(f"{kind}/condition/{side}") for kind in KINDS for side in ("left", "right")])
    met = "one sample, where both sides agree for each node: relative error of eq. 17"
    each = "classes, where eq. 17 is not exact: difference of both sides for each node"
    return by_tests(
        CONDITION,
        expected="Where the condition holds, eq. 17 is exact.",
        printed=[
            at_most("largest value of either side of the condition", sides, EXACT),
            *(
                at_most(f"{kind} classes: relative error of eq. 17 with the true b̄ at the end", off, EXACT)
                for kind, off in _off_in_training(run).items()
            ),
        ],
        corrected=[at_most(met, run.value("one/velocity, all nodes").max(), EXACT)],
        controls=[above(f"{kind} {each}", run.value(f"{kind}/condition/each").mean(), UNEQUAL, "%") for kind in KINDS],
    )


def mean(run: Run) -> Finding:
    """How far the mean logit moves in training, in the worst network; without its second term eq. 17 moves it."""
    moved, without = (
        np.max([np.ptp(run.value(f"{kind}/{name}").mean(-1), axis=-1) for kind in KINDS])
        for name in ("z", "first term")
    )
    expected = "The mean logit stays constant during training."
    control = {"½Σv² without the second term": without}
    return by_residual(MEAN, printed=moved, tolerance=EXACT, what="largest change", expected=expected, control=control)


Evidence = Callable[[dict[Kind, Networks]], dict[str, Any]]


def _by_learned(claims: Claim | dict[Kind, Claim], expected: str) -> Callable[[Evidence], Callable[..., Finding]]:
    """Judge a claim, or that of each kind of classes, by evidence from the networks that learned. Else not run."""

    def judge_by(evidence: Evidence) -> Callable[..., Finding]:
        def judge(run: Run, *, kind: Kind = KINDS[0]) -> Finding:
            claim, kinds = (claims, KINDS) if isinstance(claims, Claim) else (claims[kind], (kind,))
            found = {kind: Networks(run, kind) for kind in kinds}
            if nothing := [kind for kind, networks in found.items() if not networks.learned.any()]:
                where = " and the ".join(nothing)
                reason = f"in the {where} classes the logits of no network moved, or they are not finite"
                return not_run(claim, expected, reason, "joma run thm1-softmax --steps 2000 --rate 0.1")
            given = evidence(found)
            lost = {f"{kind} classes": float((~networks.learned).sum()) for kind, networks in found.items()}
            if any(lost.values()):
                given["details"]["networks left out, whose logits did not move or are not finite"] = lost
            return by_effect(claim, given.pop("found"), expected=expected, **given)

        return judge

    return judge_by


def _means(rows: Any) -> dict[str, float]:
    return dict(zip(("at a quarter", "at half", "at the end"), rows.mean(0).tolist(), strict=True))


def _worst_error(kind: Kind, networks: Networks, method: str) -> Test:
    worst = networks.error(method).mean(0).max()
    return at_most(f"{kind} classes: largest relative error at the three moments", worst, CLOSE)


@_by_learned(
    PUBLISHED,
    f"The correlation is above that of the start. The relative error is at most {CLOSE} at all three moments.",
)
def published(found: dict[Kind, Networks]) -> dict[str, Any]:
    """The correlation beside that of the start, which predicts that z never moves; the size by relative errors."""
    details, effects = {}, {}
    for kind, networks in found.items():
        correlation, (guess, off) = networks.correlation("published"), networks.never_moves
        details[f"{kind} classes, relative error"] = _means(networks.error("published"))
        details[f"{kind} classes, relative error if z is predicted never to move"] = _means(off)
        details[f"{kind} classes, correlation"] = _means(correlation)
        attention = networks.series("mean attention")
        strayed = float(np.abs(attention[:, -1] - attention[:, 0]).sum(-1).mean())
        details[f"{kind} classes, b̄"] = {"distance moved, at most 2": strayed}
        effects[f"{kind} classes"] = compare(correlation[:, -1], guess[:, -1])
    size = [_worst_error(kind, networks, "published") for kind, networks in found.items()]
    return {"found": effects, "what": "correlation of the estimate with z at the end", "size": size, "details": details}


@_by_learned(CORRELATES, f"The correlation is at least {HIGH} at the end of training and above both controls.")
def figure_2(found: dict[Kind, Networks]) -> dict[str, Any]:
    """The end of training, beside the harder of two controls: V of another seed, V trained with frozen attention."""
    ((kind, networks),) = found.items()
    own = networks.correlation("published")[:, -1]
    controls = {
        "V of another seed": networks.correlation("published", roll=1)[:, -1],
        "V trained with frozen attention": networks.correlation("frozen/published")[:, -1],
    }
    compared = {f"beside {name}": compare(own, control) for name, control in controls.items()}
    return {
        "found": hardest(CORRELATES[kind], compared),
        "what": "correlation with z at the end",
        "size": [at_least("mean correlation at the end", own.mean(), HIGH)],
        "details": {"correlation": {f"of {name}": float(control.mean()) for name, control in controls.items()}},
    }


@_by_learned(
    PARTS,
    f"As printed: both stay below {LOW}. As corrected: only the second does, and the first ends at {HIGH} or more.",
)
def components(found: dict[Kind, Networks]) -> dict[str, Any]:
    """What a term lacks in correlation, 1 − r, beside what the whole estimate lacks (printed) or the first term
    (corrected).

    On random classes ½Σv² of another seed must not do as well. On smooth classes all seeds have nearly the same z.
    """
    printed, corrected, size, corrected_size, details = {}, {}, [], [], {}
    for kind, networks in found.items():
        estimate, *terms = (networks.correlation(name) for name in ("published", *TERMS))
        stranger = networks.correlation("first term", roll=1)
        for name, term in zip(TERMS.values(), terms, strict=True):
            printed[f"{kind} classes, {name} beside both terms"] = compare(1 - term[:, -1], 1 - estimate[:, -1])
            what = f"{kind} classes, {name}: largest |correlation| at the three moments"
            size.append(below(what, np.abs(term.mean(0)).max(), LOW))
        first, second = (term[:, -1] for term in terms)
        corrected[f"{kind} classes, {TERMS['second term']} beside ½Σv²"] = compare(1 - second, 1 - first)
        corrected_size += [size[-1], at_least(f"{kind} classes, ½Σv²: correlation at the end", first.mean(), HIGH)]
        details[f"{kind} classes, correlation of ½Σv²"] = _means(terms[0])
        details[f"{kind} classes, correlation of ½Σv² of another seed"] = _means(stranger)
    other = "random classes, ½Σv² of another seed: correlation at the end"
    return {
        "found": printed,
        "what": "1 − correlation with z at the end",
        "size": size,
        "corrected": corrected,
        "corrected_size": corrected_size,
        "controls": [below(other, stranger[:, -1].mean(), LOW)],  # the random classes are the last
        "details": details,
    }


@_by_learned(CURRENT, f"The correlation is at least {HIGH} at all three moments and above that of the start.")
def current(found: dict[Kind, Networks]) -> dict[str, Any]:
    """The closed form with b̄ of the moment, beside the start, which predicts that z never moves."""
    details, effects, size = {}, {}, []
    for kind, networks in found.items():
        correlation, (guess, _) = networks.correlation("current mean"), networks.never_moves
        details[f"{kind} classes, correlation"] = _means(correlation)
        details[f"{kind} classes, correlation with b̄ of the start"] = _means(networks.correlation("published"))
        effects[f"{kind} classes"] = compare(correlation[:, -1], guess[:, -1])
        what = f"{kind} classes: smallest correlation at the three moments"
        size.append(at_least(what, correlation.mean(0).min(), HIGH))
    return {"found": effects, "what": "correlation of the estimate with z at the end", "size": size, "details": details}


@_by_learned(
    REBUILT, f"The relative error is at most {CLOSE} at all three moments. The correlation is at least {NEAR_ONE}."
)
def rebuilt(found: dict[Kind, Networks]) -> dict[str, Any]:
    """Beside the estimate that z never moves. Rebuilt from V of another seed it must be wrong, on random classes: on
    smooth classes all seeds have nearly the same z.
    """
    printed, corrected = (
        {
            f"{kind} classes": compare(1 - networks.error(method)[:, -1], 1 - networks.never_moves[1][:, -1])
            for kind, networks in found.items()
        }
        for method in ("published", "self-consistent")
    )
    well = []
    for kind, networks in found.items():
        end = networks.correlation("self-consistent")[:, -1].mean()
        well.append(_worst_error(kind, networks, "self-consistent"))
        well.append(at_least(f"{kind} classes: correlation at the end", end, NEAR_ONE))
    stranger = found["random"].error("self-consistent", roll=1)[:, -1].mean()
    other = "random classes, rebuilt from V of another seed: relative error at the end"
    return {
        "found": printed,
        "what": "1 − relative error at the end",
        "size": [_worst_error(kind, networks, "published") for kind, networks in found.items()],
        "corrected": corrected,
        "corrected_size": well,
        "controls": [above(other, stranger, CLOSE)],
        "details": {
            f"{kind} classes, relative error {name}": _means(networks.error(method))
            for method, name in (("self-consistent", "rebuilt"), ("integrated", "with the true b̄(t)"))
            for kind, networks in found.items()
        },
    }


@_by_learned(
    GROWTH, "A few components have most of the growth in the second half of training. Most others stand still."
)
def figure_3(found: dict[Kind, Networks]) -> dict[str, Any]:
    """How far late growth is concentrated, beside the same network trained with frozen attention."""
    (networks,) = found.values()
    moving, frozen = (networks.series(f"{which}v") for which in ("", "frozen/"))
    still = "share of the components that stand still"
    return {
        "found": compare(concentration(moving), concentration(frozen)),
        "what": "share of the late growth in the fastest fifth of the components",
        "size": [at_least(still, _standing_still(moving), MOST, "%")],
        "details": {"with frozen attention": {still: _standing_still(frozen)}},
    }


def _standing_still(v: Any) -> float:
    """The share of tokens that move late by less than a tenth of what their node's largest has moved in all."""
    return float((np.abs(v[:, 2] - v[:, 1]) < STILL * np.abs(v[:, 2] - v[:, 0]).max(1, keepdims=True)).mean())

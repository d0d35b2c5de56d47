"""Theorem 1 under softmax attention, eq. 17, eq. 18, Figures 2 and 3."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from joma.claims.contract import Claim, Drawing, Finding, Study
from joma.claims.declare import Claims
from joma.claims.guards import hardest
from joma.claims.verdicts import Test, above, at_least, at_most, below, by_effect, by_residual, by_tests, not_run
from joma.figures.bands import bound
from joma.figures.labels import end_label
from joma.figures.reading import number
from joma.figures.style import CONTROL, CORRECTED, GREEN, ORANGE, PRINTED, PURPLE, SERIES, panels
from joma.measure.correlation import pearson
from joma.measure.intervals import compare
from joma.runs import Run
from joma.studies.invariant.thm1_softmax.run import (
    KINDS,
    Kind,
    Networks,
    Thm1SoftmaxConfig,
    concentration,
    relative,
    run,
)

CLOSE = 0.2  # relative error of a prediction worth the name
HIGH, LOW = 0.9, 0.5  # Pearson correlations that count as high, and as none
MARGIN = 0.05  # by how much a correlation must exceed its control
CONCENTRATED = 0.1  # by how much a share of growth must exceed its control
EXACT = 1e-12  # identities of SGD steps
FLOW = 1e-10  # identities along a solved flow
UNEQUAL = 0.2  # relative: two sides that differ by more do not agree, not even roughly
NEAR_ONE = 0.99  # the correlation of an estimate that also has the right size
STILL, MOST = 0.1, 0.5  # a component stands still below this share of the largest movement; most of them must
TERMS = {"first term": "½Σv²", "second term": "−½Σ‖v‖² b̄"}
CLOSED_FORM = ("thm1-softmax/eq18-constant-mean",)
OF_ESTIMATES: Any = {"matters": MARGIN, "ceiling": 1.0, "uses": CLOSED_FORM}
CLAIMS = Claims()


def _off_in_training(run: Run) -> dict[str, float]:
    """The relative error of eq. 17 with the true b̄(t) after training on many samples, where Cov(s, b) ≠ 0."""
    ends = {kind: relative(run.value(f"{kind}/integrated"), run.value(f"{kind}/z"))[:, -1] for kind in KINDS}
    return {kind: float(end.mean()) for kind, end in ends.items()}


def _where_uncorrelated(run: Run, claim: Claim, tolerance: float, **off: Any) -> Finding:
    """Both forms on one sample, where Cov(s, b) = 0. In training, where it is not, eq. 17 must be off."""
    control = {"in training, where Cov(s, b) ≠ 0": np.min(list(_off_in_training(run).values()))}  # NaN if one is
    forms = {form: each.max() for form, each in off.items()}
    return by_residual(claim, tolerance=tolerance, what="relative error", control=control, **forms)


Found = dict[Kind, Networks]
Evidence = Callable[[Found, Claim], dict[str, Any]]


def _of_learned(
    name: str, source: str, text: str = "", *, kinds: tuple[Kind, ...] = KINDS, **said: Any
) -> Callable[[Evidence], Evidence]:
    """Declares a claim that is judged by evidence from the networks that learned, of some kinds of classes."""

    def register(evidence: Evidence) -> Evidence:
        @wraps(evidence)
        def judging(run: Run, claim: Claim) -> Finding:
            found = {kind: Networks(run, kind) for kind in kinds}
            if nothing := [kind for kind, networks in found.items() if not networks.learned.any()]:
                where = " and the ".join(nothing)
                reason = f"in the {where} classes the logits of no network moved, or they are not finite"
                return not_run(claim, claim.expected, reason, steps=2000, rate=0.1)
            given = evidence(found, claim)
            lost = {f"{kind} classes": float((~networks.learned).sum()) for kind, networks in found.items()}
            if any(lost.values()):
                given["details"]["networks left out, whose logits did not move or are not finite"] = lost
            return by_effect(claim, given.pop("found"), **given)

        CLAIMS.declare(name, source, text, **said)(judging)
        return evidence

    return register


def _means(rows: Any) -> dict[str, float]:
    return dict(zip(("at a quarter", "at half", "at the end"), rows.mean(0).tolist(), strict=True))


def _worst_error(kind: Kind, networks: Networks, method: str) -> Test:
    worst = networks.error(method).mean(0).max()
    return at_most(f"{kind} classes: largest relative error at the three moments", worst, CLOSE)


@_of_learned("softmax-published", "JoMA Thm 1", **OF_ESTIMATES)
def published(found: Found, claim: Claim) -> dict[str, Any]:
    """½Σ(v² − ‖v‖² b̄) + c with constant b̄ predicts the softmax logits fairly well, although its assumptions fail.

    Expected: The correlation is above that of the start. The relative error is at most {CLOSE} at all three moments.

    The correlation beside that of the start, which predicts that z never moves; the size by relative errors.
    """
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


def figure_2(found: Found, claim: Claim) -> dict[str, Any]:
    """The end of training, beside the harder of two controls: V of another seed, V trained with frozen attention."""
    (networks,) = found.values()
    own = networks.correlation("published")[:, -1]
    controls = {
        "V of another seed": networks.correlation("published", roll=1)[:, -1],
        "V trained with frozen attention": networks.correlation("frozen/published")[:, -1],
    }
    compared = {f"beside {name}": compare(own, control) for name, control in controls.items()}
    return {
        "found": hardest(claim, compared),
        "what": "correlation with z at the end",
        "size": [at_least("mean correlation at the end", own.mean(), HIGH)],
        "details": {"correlation": {f"of {name}": float(control.mean()) for name, control in controls.items()}},
    }


for _kind in KINDS:
    _of_learned(
        f"fig2-{_kind}",
        "JoMA Fig. 2",
        f"The estimate from V correlates highly with the true logits ({_kind} classes).\n\n"
        f"Expected: The correlation is at least {HIGH} at the end of training and above both controls.",
        kinds=(_kind,),
        **OF_ESTIMATES,
    )(figure_2)


@_of_learned("fig2-components", "JoMA Fig. 2", matters=HIGH - LOW, uses=CLOSED_FORM)
def components(found: Found, claim: Claim) -> dict[str, Any]:
    """Neither of the two terms, ½Σv² and −½Σ‖v‖² b̄, correlates with the logits alone.

    Corrected: The second term does not. The first term, ½Σv², does at the end of training.
    Expected: As printed: both stay below {LOW}. As corrected: only the second does, and the first ends at {HIGH} or
    more.

    What a term lacks in correlation, 1 − r, beside what the whole estimate lacks (printed) or the first term
    (corrected). On random classes ½Σv² of another seed must not do as well. On smooth classes all seeds have nearly the
    same z.
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


@CLAIMS.declare("eq17-sum", "JoMA eq. 17")
def sums(run: Run, claim: Claim) -> Finding:
    """If b is uncorrelated with g h′ b, then z′ = Σ v_k′∘v_k − b̄ v_k′·v_k. The sum sign stands only before the first
    term.

    Corrected: The sum over nodes covers both terms.
    Expected: The formula equals z′ where Cov(s, b) = 0 (as printed: with the best node in the second term).
    """
    printed, corrected = (run.value(f"one/velocity, {nodes}") for nodes in ("one node", "all nodes"))
    return _where_uncorrelated(run, claim, EXACT, printed=printed, corrected=corrected)


@CLAIMS.declare("eq17-covariance", "JoMA eq. 17", uses=("thm1-softmax/eq17-sum",))
def covariance(run: Run, claim: Claim) -> Finding:
    """In training, z′ = Σ(v_k′∘v_k − b̄ v_k′·v_k).

    Corrected: z′ = Σ(v_k′∘v_k − b̄ v_k′·v_k) − Cov(s, b), times κ/T, with s = Σ g_k h_k′ b·v_k. It is exact at every
    step of SGD.
    Expected: The relative error is 0 after all steps.

    In training, without and with Cov(s, b); the control takes Cov(s, b) from the other classes.
    """
    z, without, identity = ({kind: run.value(f"{kind}/{s}") for kind in KINDS} for s in ("z", "integrated", "identity"))
    swapped = [
        relative(without[kind] + identity[other] - without[other], z[kind])[:, -1].mean()
        for kind, other in zip(KINDS, reversed(KINDS), strict=True)
    ]
    return by_residual(
        claim,
        printed=np.max(list(_off_in_training(run).values())),
        corrected=np.max([relative(identity[kind], z[kind]) for kind in KINDS]),
        tolerance=EXACT,
        what="relative error",
        control={"with Cov(s, b) of the other classes": np.min(swapped)},
    )


@CLAIMS.declare("eq18-constant-mean", "JoMA eq. 18", uses=("thm1-softmax/eq17-sum",))
def constant(run: Run, claim: Claim) -> Finding:
    """With constant b̄ the integral of eq. 17 is z = ½Σ(v² − ‖v‖² b̄) + c.

    Corrected: b̄ moves whenever z moves. If Cov(s, b) = 0, then z = z(0) + ∫[Σ v_k∘v_k′ − b̄(t) Σ v_k·v_k′] dt.
    Expected: The relative error is 0 where Cov(s, b) = 0.
    """
    printed, corrected = (relative(run.value(f"one/z {way}"), run.value("one/z")) for way in ("closed", "integrated"))
    return _where_uncorrelated(run, claim, FLOW, printed=printed, corrected=corrected)


@_of_learned("eq18-current-mean", "JoMA eq. 18", **OF_ESTIMATES)
def current(found: Found, claim: Claim) -> dict[str, Any]:
    """The closed form can be computed with b̄ as the theorem defines it: the mean attention at that time.

    Expected: The correlation is at least {HIGH} at all three moments and above that of the start.

    The closed form with b̄ of the moment, beside the start, which predicts that z never moves.
    """
    details, effects, size = {}, {}, []
    for kind, networks in found.items():
        correlation, (guess, _) = networks.correlation("current mean"), networks.never_moves
        details[f"{kind} classes, correlation"] = _means(correlation)
        details[f"{kind} classes, correlation with b̄ of the start"] = _means(networks.correlation("published"))
        effects[f"{kind} classes"] = compare(correlation[:, -1], guess[:, -1])
        what = f"{kind} classes: smallest correlation at the three moments"
        size.append(at_least(what, correlation.mean(0).min(), HIGH))
    return {"found": effects, "what": "correlation of the estimate with z at the end", "size": size, "details": details}


@_of_learned("softmax-rebuilt", "JoMA eq. 18", matters=CLOSE, ceiling=1.0, uses=("thm1-softmax/eq17-sum",))
def rebuilt(found: Found, claim: Claim) -> dict[str, Any]:
    """A closed form gives the logits from V(t), so attention does not need training.

    Corrected: The path of V and the inputs x give the logits: integrate eq. 17 with b̄ computed from the estimate
    itself.
    Expected: The relative error is at most {CLOSE} at all three moments. The correlation is at least {NEAR_ONE}.

    Beside the estimate that z never moves. Rebuilt from V of another seed it must be wrong, on random classes: on
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


@CLAIMS.declare("softmax-condition", "JoMA Thm 1", uses=("thm1-softmax/eq17-sum",))
def condition(run: Run, claim: Claim) -> Finding:
    """The condition E[Σ g_k h_k′ b bᵀ] = b̄ E[Σ g_k h_k′ b]ᵀ is enough for the softmax case (with constant b̄).

    Corrected: The condition must hold for each node, or contain v_k: Σ E[g_k h_k′ b bᵀ] v_k = b̄ Σ v_k′·v_k.
    Expected: Where the condition holds, eq. 17 is exact.

    The printed condition is met and its conclusion, eq. 17 with the true mean, fails all the same.
    """
    sides = np.max([run.value(f"{kind}/condition/{side}") for kind in KINDS for side in ("left", "right")])
    met = "one sample, where both sides agree for each node: relative error of eq. 17"
    each = "classes, where eq. 17 is not exact: difference of both sides for each node"
    return by_tests(
        claim,
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


@CLAIMS.declare("softmax-mean-logit", "JoMA eq. 17", uses=("thm1-softmax/eq17-covariance",))
def mean(run: Run, claim: Claim) -> Finding:
    """The right-hand side sums to zero over tokens, so the mean logit never moves.

    Expected: The mean logit stays constant during training.

    How far the mean logit moves in training, in the worst network; without its second term eq. 17 moves it.
    """
    moved, without = (
        np.max([np.ptp(run.value(f"{kind}/{name}").mean(-1), axis=-1) for kind in KINDS])
        for name in ("z", "first term")
    )
    control = {"½Σv² without the second term": without}
    return by_residual(claim, printed=moved, tolerance=EXACT, what="largest change", control=control)


def figure_3(found: Found, claim: Claim) -> dict[str, Any]:
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


for _kind in KINDS:
    _of_learned(
        f"fig3-{_kind}",
        "JoMA Fig. 3",
        f"Late in training only some components of v keep growing, and the others stop ({_kind} classes).\n\n"
        "Expected: A few components have most of the growth in the second half of training. Most others stand still.",
        kinds=(_kind,),
        matters=CONCENTRATED,
        unit="%",
        ceiling=1.0,
    )(figure_3)


def _standing_still(v: Any) -> float:
    """The share of tokens that move late by less than a tenth of what their node's largest has moved in all."""
    return float((np.abs(v[:, 2] - v[:, 1]) < STILL * np.abs(v[:, 2] - v[:, 0]).max(1, keepdims=True)).mean())


def _figure_2(run: Run) -> Drawing:
    figure, axes = panels(2, 2, width=4.6)
    step, errors = run.value("step"), []
    for kind, top, bottom in zip(KINDS, axes[:2], axes[2:], strict=True):
        z, published, first, second, integrated, rebuilt = (
            run.value(f"{kind}/{name}")
            for name in ("z", "published", "first term", "second term", "integrated", "self-consistent")
        )
        correlations: list[tuple[Any, str, str, str]] = [
            (published, PRINTED, "-", "ẑ (eq. 18)"),
            (first, ORANGE, "-", "½Σv² alone"),
            (second, GREEN, "-", "−½Σ‖v‖² b̄ alone"),
            (np.roll(published, 1, 0), CONTROL, "--", "ẑ of another seed"),
        ]
        for estimate, colour, style, label in correlations:
            top.plot(step, pearson(estimate, z).mean(0), style, color=colour, label=label)
        top.set(ylabel="correlation with z", ylim=(-0.5, 1.05), title=f"Correlation of the estimate, {kind} classes")
        for estimate, colour, style, label in (
            (published, PRINTED, "-", "eq. 18, b̄ constant"),
            (integrated, PURPLE, "-", "eq. 17, true b̄(t)"),
            (rebuilt, CORRECTED, "-", "eq. 17, b̄ rebuilt"),
            (z[:, :1], CONTROL, "--", "z never moves"),
        ):
            bottom.plot(step[1:], relative(estimate, z)[:, 1:].mean(0), style, color=colour, label=label)
        bound(bottom, CLOSE, f"tolerance {CLOSE:g}")
        bottom.set(ylabel="relative error", yscale="log", ylim=(1e-2, 200))
        bottom.set_title(f"Error of the estimates, {kind} classes")
        for axis in (top, bottom):
            axis.set_xlabel("training step")
        errors.append(f"{number(relative(published, z)[:, -1].mean())} on {kind}")
    caption = (
        "The published estimate of the softmax logits correlates with them, but its size is wrong: its relative error "
        f"ends at {' and '.join(errors)} classes. Top: correlation over tokens "
        "between the estimate and the true logits, as in Figure 2, with its two terms and the control (mean over "
        "seeds). Bottom: the relative error of the same estimate and of the two that integrate eq. 17."
    )
    return Drawing("figure-2", caption, figure)


def _figure_3(run: Run) -> Drawing:
    figure, axes = panels(2, width=4.2)
    for kind, axis in zip(KINDS, axes, strict=True):
        moving, frozen = (run.value(f"{kind}/{which}v of node 0")[0] for which in ("", "frozen/"))
        for token, colour in enumerate(SERIES[:4]):
            axis.plot(run.value("step"), moving[:, token], color=colour, label=f"token {token}")
            axis.plot(run.value("step"), frozen[:, token], "--", lw=1, color=colour)
        end_label(axis, "dashed: frozen\nattention", ls="--", lw=1)
        axis.set(xlabel="training step", ylabel="components of v₀", title=f"Weights of one node, {kind} classes")
    (smooth, smooth_frozen), (random, random_frozen) = (
        [number(float(concentration(run.value(f"{kind}/{which}v")).mean()), "%") for which in ("", "frozen/")]
        for kind in KINDS
    )
    caption = (
        f"In the second half of training the fastest fifth of the components has {smooth} of the growth on {KINDS[0]} "
        f"classes and {random} on {KINDS[1]} classes. With frozen attention it has {smooth_frozen} and "
        f"{random_frozen}. The panels show the first four components of the weights of the first node during "
        "training, as in Figure 3. Dashed lines show the same network with its attention frozen at the start."
    )
    return Drawing("figure-3", caption, figure)


STUDY = Study(
    name="thm1-softmax",
    title="Theorem 1 under softmax attention: Figures 2 and 3",
    version=1,
    claims=CLAIMS,
    quick=Thm1SoftmaxConfig(),
    paper=Thm1SoftmaxConfig(seeds=100),
    run=run,
    draw=lambda run: [_figure_2(run), _figure_3(run)],
    about=(
        "The networks of Figures 2 and 3 (20 tokens, 20 classes, linear nodes, softmax attention at T = 0.5) are "
        "trained by full-batch SGD on the mean cross-entropy from several seeds, and once more with frozen attention. "
        "The logits are compared with every estimate from V: the published one, its two terms, and the path integrals "
        "that replace it. The comparison is made for each seed at three moments: a quarter, half and the end of "
        "training. Each estimate has a control that knows less: the estimate of another seed, the estimate with frozen "
        "attention, or the guess that z never moves."
    ),
)

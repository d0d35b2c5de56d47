"""Claims and findings about trained softmax attention: how well estimates from V meet its logits, and Figures 2 and 3.

Networks are set beside their own controls, seed by seed. "Three moments" are a quarter, half and the end of training.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from joma.claims.contract import Claim, Finding
from joma.claims.evidence import Test, above, at_least, at_most, below
from joma.claims.guards import hardest
from joma.claims.verdicts import by_effect, not_run
from joma.measure.correlation import pearson
from joma.measure.intervals import Comparison, compare
from joma.runs import Run
from joma.studies.invariant._softmax_equations import relative
from joma.studies.invariant._softmax_training import KINDS, Kind

CLOSE = 0.2  # relative error of a prediction worth the name
HIGH, LOW = 0.9, 0.5  # Pearson correlations that count as high, and as none
NEAR_ONE = 0.99  # the correlation of an estimate that also has the right size
MARGIN = 0.05  # by how much a correlation must exceed its control
CONCENTRATED = 0.1  # by how much a share of growth must exceed its control
TOP = 0.2  # the fastest fifth of the components
STILL, MOST = 0.1, 0.5  # a component stands still below this share of the largest movement; most of them must
MOVED = 0.5  # of the final logits: a network whose logits moved by less has not learned to attend

CLOSED_FORM = ("thm1-softmax/eq18-constant-mean",)
PUBLISHED = Claim(
    "softmax-published",
    "JoMA Thm 1",
    "½Σ(v² − ‖v‖² b̄) + c with constant b̄ predicts the softmax logits fairly well, although its assumptions fail.",
    matters=MARGIN,
    ceiling=1.0,
    uses=CLOSED_FORM,
)
CORRELATES = {
    kind: Claim(
        f"fig2-{kind}",
        "JoMA Fig. 2",
        f"The estimate from V correlates highly with the true logits ({kind} classes).",
        matters=MARGIN,
        ceiling=1.0,
        uses=CLOSED_FORM,
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
CURRENT = Claim(
    "eq18-current-mean",
    "JoMA eq. 18",
    "The closed form can be computed with b̄ as the theorem defines it: the mean attention at that time.",
    matters=MARGIN,
    ceiling=1.0,
    uses=CLOSED_FORM,
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


def three(steps: int) -> list[int]:
    """The three moments, in steps."""
    return [steps // 4, steps // 2, steps]


def _learned(run: Run, kind: Kind) -> Any:
    """Which networks have finite logits that moved. (seeds,)."""
    z = run.value(f"{kind}/z")
    return relative(z[:, 0], z[:, -1]) > MOVED


def _nothing_learned(run: Run, claim: Claim, expected: str, *kinds: Kind) -> Finding | None:
    lost = [kind for kind in kinds if not _learned(run, kind).any()]
    reason = "in the " + " and the ".join(lost) + " classes the logits of no network moved, or they are not finite"
    return not_run(claim, expected, reason, "joma run thm1-softmax --steps 2000 --rate 0.1") if lost else None


def _at_three(run: Run, kind: Kind, name: str) -> Any:
    """A series of the networks that learned, at the three moments. (networks, 3, tokens)."""
    step = run.value("step")
    return run.value(f"{kind}/{name}")[_learned(run, kind)][:, np.searchsorted(step, three(int(step[-1])))]


def _start(run: Run, kind: Kind) -> Any:
    """The estimate that z stays where it was. (networks, 1, tokens)."""
    return run.value(f"{kind}/z")[_learned(run, kind)][:, :1]


def _correlation(run: Run, kind: Kind, method: str, *, roll: int = 0) -> Any:
    """With z of the same seed or, for `roll` = 1, of the next one. (networks, 3)."""
    return pearson(np.roll(_at_three(run, kind, method), roll, 0), _at_three(run, kind, "z"))


def _error(run: Run, kind: Kind, method: str, *, roll: int = 0) -> Any:
    return relative(np.roll(_at_three(run, kind, method), roll, 0), _at_three(run, kind, "z"))


def _untouched(run: Run, kind: Kind) -> Any:
    """The correlation with z at the end if z is predicted never to move. (networks,)."""
    return pearson(_start(run, kind), _at_three(run, kind, "z"))[:, -1]


def _end(rows: Any) -> float:
    """The mean over networks at the end."""
    return float(rows[:, -1].mean())


def _worst_error(run: Run, kind: Kind, method: str) -> Test:
    worst = _error(run, kind, method).mean(0).max()
    return at_most(f"{kind} classes: largest relative error at the three moments", worst, CLOSE)


def _moments(name: str, rows: Any) -> dict[str, dict[str, float]]:
    """The mean over networks of (networks, 3), for the reader."""
    when = ("at a quarter", "at half", "at the end")
    return {name: dict(zip(when, rows.mean(0).tolist(), strict=True))}


def _left_out(run: Run, *kinds: Kind) -> dict[str, dict[str, float]]:
    lost = {f"{kind} classes": float((~_learned(run, kind)).sum()) for kind in kinds}
    return {"networks left out, whose logits did not move or are not finite": lost} if any(lost.values()) else {}


def published(run: Run) -> Finding:
    """The correlation beside that of the start, which predicts that z never moves; the size by relative errors."""
    expected = (
        f"The correlation is above that of the start. The relative error is at most {CLOSE} at all three moments."
    )
    if lost := _nothing_learned(run, PUBLISHED, expected, *KINDS):
        return lost
    beside: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        beside |= _moments(f"{kind} classes, relative error", _error(run, kind, "published"))
        never = relative(_start(run, kind), _at_three(run, kind, "z"))
        beside |= _moments(f"{kind} classes, relative error if z is predicted never to move", never)
        beside |= _moments(f"{kind} classes, correlation", _correlation(run, kind, "published"))
        attention = run.value(f"{kind}/mean attention")[_learned(run, kind)]
        strayed = float(np.abs(attention[:, -1] - attention[:, 0]).sum(-1).mean())
        beside[f"{kind} classes, b̄"] = {"distance moved, at most 2": strayed}
    return by_effect(
        PUBLISHED,
        {
            f"{kind} classes": compare(_correlation(run, kind, "published")[:, -1], _untouched(run, kind))
            for kind in KINDS
        },
        what="correlation of the estimate with z at the end",
        expected=expected,
        size=[_worst_error(run, kind, "published") for kind in KINDS],
        details=beside | _left_out(run, *KINDS),
    )


def figure_2(run: Run, *, kind: Kind) -> Finding:
    """The end of training, beside the harder of two controls: V of another seed, V trained with frozen attention."""
    expected = f"The correlation is at least {HIGH} at the end of training and above both controls."
    if lost := _nothing_learned(run, CORRELATES[kind], expected, kind):
        return lost
    own = _correlation(run, kind, "published")[:, -1]
    controls = {
        "V of another seed": _correlation(run, kind, "published", roll=1)[:, -1],
        "V trained with frozen attention": _correlation(run, kind, "frozen/published")[:, -1],
    }
    return by_effect(
        CORRELATES[kind],
        hardest(CORRELATES[kind], {f"beside {name}": compare(own, control) for name, control in controls.items()}),
        what="correlation with z at the end",
        expected=expected,
        size=[at_least("mean correlation at the end", own.mean(), HIGH)],
        details={"correlation": {f"of {name}": float(control.mean()) for name, control in controls.items()}}
        | _left_out(run, kind),
    )


TERMS = {"first term": "½Σv²", "second term": "−½Σ‖v‖² b̄"}


def components(run: Run) -> Finding:
    """What a term lacks in correlation, 1 − r, beside what the whole estimate lacks (printed) or the first term
    (corrected).

    On random classes ½Σv² of another seed must not do as well. On smooth classes all seeds have nearly the same z.
    """
    expected = (
        f"As printed: both stay below {LOW}. As corrected: only the second does, and the first ends at {HIGH} or more."
    )
    if lost := _nothing_learned(run, PARTS, expected, *KINDS):
        return lost
    found = {kind: {term: _correlation(run, kind, term) for term in ("published", *TERMS)} for kind in KINDS}
    size = {
        (kind, term): below(
            f"{kind} classes, {TERMS[term]}: largest |correlation| at the three moments",
            np.abs(found[kind][term].mean(0)).max(),
            LOW,
        )
        for kind in KINDS
        for term in TERMS
    }
    beside: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        beside |= _moments(f"{kind} classes, correlation of ½Σv²", found[kind]["first term"])
        stranger = _correlation(run, kind, "first term", roll=1)
        beside |= _moments(f"{kind} classes, correlation of ½Σv² of another seed", stranger)
    return by_effect(
        PARTS,
        {
            f"{kind} classes, {TERMS[term]} beside both terms": _lacks(found[kind], term, "published")
            for kind in KINDS
            for term in TERMS
        },
        what="1 − correlation with z at the end",
        expected=expected,
        size=list(size.values()),
        corrected={
            f"{kind} classes, {TERMS['second term']} beside ½Σv²": _lacks(found[kind], "second term", "first term")
            for kind in KINDS
        },
        corrected_size=[
            test
            for kind in KINDS
            for test in (
                size[kind, "second term"],
                at_least(
                    f"{kind} classes, ½Σv²: correlation at the end", found[kind]["first term"][:, -1].mean(), HIGH
                ),
            )
        ],
        controls=[
            below(
                "random classes, ½Σv² of another seed: correlation at the end",
                _end(_correlation(run, "random", "first term", roll=1)),
                LOW,
            )
        ],
        details=beside | _left_out(run, *KINDS),
    )


def _lacks(correlations: dict[str, Any], term: str, other: str) -> Comparison:
    return compare(1 - correlations[term][:, -1], 1 - correlations[other][:, -1])


def current(run: Run) -> Finding:
    """The closed form with b̄ of the moment, beside the start, which predicts that z never moves."""
    expected = f"The correlation is at least {HIGH} at all three moments and above that of the start."
    if lost := _nothing_learned(run, CURRENT, expected, *KINDS):
        return lost
    found = {kind: _correlation(run, kind, "current mean") for kind in KINDS}
    beside: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        beside |= _moments(f"{kind} classes, correlation", found[kind])
        beside |= _moments(f"{kind} classes, correlation with b̄ of the start", _correlation(run, kind, "published"))
    return by_effect(
        CURRENT,
        {f"{kind} classes": compare(found[kind][:, -1], _untouched(run, kind)) for kind in KINDS},
        what="correlation of the estimate with z at the end",
        expected=expected,
        size=[
            at_least(f"{kind} classes: smallest correlation at the three moments", found[kind].mean(0).min(), HIGH)
            for kind in KINDS
        ],
        details=beside | _left_out(run, *KINDS),
    )


def rebuilt(run: Run) -> Finding:
    """Beside the estimate that z never moves. Rebuilt from V of another seed it must be wrong, on random classes: on
    smooth classes all seeds have nearly the same z.
    """
    expected = f"The relative error is at most {CLOSE} at all three moments. The correlation is at least {NEAR_ONE}."
    if lost := _nothing_learned(run, REBUILT, expected, *KINDS):
        return lost
    never = {kind: 1 - relative(_start(run, kind), _at_three(run, kind, "z"))[:, -1] for kind in KINDS}
    effects = {
        method: {f"{kind} classes": compare(1 - _error(run, kind, method)[:, -1], never[kind]) for kind in KINDS}
        for method in ("published", "self-consistent")
    }
    beside: dict[str, dict[str, float]] = {}
    for method, name in (("self-consistent", "rebuilt"), ("integrated", "with the true b̄(t)")):
        for kind in KINDS:
            beside |= _moments(f"{kind} classes, relative error {name}", _error(run, kind, method))
    return by_effect(
        REBUILT,
        effects["published"],
        what="1 − relative error at the end",
        expected=expected,
        size=[_worst_error(run, kind, "published") for kind in KINDS],
        corrected=effects["self-consistent"],
        corrected_size=[test for kind in KINDS for test in _rebuilt_well(run, kind)],
        controls=[
            above(
                "random classes, rebuilt from V of another seed: relative error at the end",
                _end(_error(run, "random", "self-consistent", roll=1)),
                CLOSE,
            )
        ],
        details=beside | _left_out(run, *KINDS),
    )


def _rebuilt_well(run: Run, kind: Kind) -> list[Test]:
    correlation = _end(_correlation(run, kind, "self-consistent"))
    return [
        _worst_error(run, kind, "self-consistent"),
        at_least(f"{kind} classes: correlation at the end", correlation, NEAR_ONE),
    ]


def figure_3(run: Run, *, kind: Kind) -> Finding:
    """How far late growth is concentrated, beside the same network trained with frozen attention."""
    expected = "A few components have most of the growth in the second half of training. Most others stand still."
    if lost := _nothing_learned(run, GROWTH[kind], expected, kind):
        return lost
    moving, frozen = (run.value(f"{kind}/{which}v")[_learned(run, kind)] for which in ("", "frozen/"))
    return by_effect(
        GROWTH[kind],
        compare(concentration(moving), concentration(frozen)),
        what="share of the late growth in the fastest fifth of the components",
        expected=expected,
        size=[at_least("share of the components that stand still", _standing_still(moving), MOST, "%")],
        details={"with frozen attention": {"share of the components that stand still": _standing_still(frozen)}}
        | _left_out(run, kind),
    )


def concentration(v: Any) -> Any:
    """v (networks, [start, half, end], tokens, nodes) -> the share of the late movement that the fastest fifth of the
    tokens holds, mean over nodes. (networks,).
    """
    late = np.sort(np.abs(v[:, 2] - v[:, 1]), axis=1)
    fastest = max(round(TOP * late.shape[1]), 1)
    return (late[:, -fastest:].sum(1) / late.sum(1)).mean(-1)


def _standing_still(v: Any) -> float:
    """The share of tokens that move late by less than a tenth of what their node's largest has moved in all."""
    largest = np.abs(v[:, 2] - v[:, 0]).max(1, keepdims=True)
    return float((np.abs(v[:, 2] - v[:, 1]) < STILL * largest).mean())

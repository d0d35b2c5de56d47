"""What the study `cdag` claims and how it judges: shares, correlations and angles over seeds, beside their controls."""

from __future__ import annotations

from collections.abc import Callable
from math import log
from typing import Any

import numpy as np

from joma.claims.claim import Claim
from joma.claims.evidence import above, at_least
from joma.claims.finding import Finding
from joma.claims.guards import beyond, hardest
from joma.claims.verdicts import Numbers, by_effect, not_run
from joma.measure.intervals import Comparison, compare
from joma.runs import Run
from joma.studies.cdag import _latent_mlp as net

MARGIN = 0.05  # of shares and of correlations: the smallest difference from a control that matters
ALL = 0.99  # of edges or nodes
DEGREES = 5.0  # the smallest difference between sums of angles that matters
FALLEN = 0.1  # of ln(classes), what guessing loses: networks whose loss falls by less have not learned
SMALL, USUAL, RESIDUALS = "small start", "usual start", "residual"
NETWORKS = (SMALL, USUAL, RESIDUALS)
COMMAND = "joma verify cdag --scale paper"
OTHER, UNTRAINED = "compared with latents of other nodes", "compared with the untrained network"
SAMPLES = "compared with latents of other samples"


def _claim(name: str, source: str, says: str, unit: str, uses: tuple[str, ...] = ()) -> Claim:
    """About a share (%), a correlation (no unit) or a sum of angles (°)."""
    matters, ceiling = (DEGREES, None) if unit == "°" else (MARGIN, 1.0)
    return Claim(name, source, says, matters=matters, unit=unit, ceiling=ceiling, uses=uses)


SIGNS = _claim(
    "signs-in-training",
    "CDAG Thm 1",
    "Suppose the gradient of a parent agrees with a class, the activation of a child agrees with a latent, and the "
    "latent agrees with the class. Then the gradient from this parent to the child agrees with the latent.",
    "%",
    ("cdag-angles/three-signs",),
)
RULE = _claim(
    "gradient-rule",
    "CDAG Thm 1",
    "The weight between child and parent has the sign of corr(f, δ).",
    "%",
    ("cdag-angles/start-of-the-weight",),
)
CHILD = _claim(
    "all-parents",
    "CDAG Sec. 1.2",
    "The gradient that a child receives from all its parents together agrees with the latent of its activation.",
    "%",
    ("cdag/signs-in-training", "cdag-angles/backpropagated"),
)
GATE = _claim(
    "behind-the-gate",
    "CDAG Sec. 1.2",
    "If the activation and the gradient of a node agree with a latent, its gradient behind the nonlinearity also does.",
    "%",
    ("cdag-angles/recursion",),
)
ENDS = _claim(
    "both-ends",
    "CDAG Sec. 1.2",
    "Near the loss the gradients agree with the label. Near the input the activations agree with latents. Both meet "
    "the premises.",
    "",
)
RESIDUAL = _claim(
    "residual",
    "CDAG Sec. 1.2",
    "Residual connections from nodes near the input to nodes near the loss make the premises easier to meet.",
    "°",
    ("cdag/both-ends",),
)
LEARNED = _claim(
    "task-distributed",
    "CDAG Sec. 1.2",
    "When the nodes above learn a class, the nodes below learn more basic latents.",
    "",
    ("cdag/all-parents",),
)
CLAIMS = (SIGNS, RULE, CHILD, GATE, ENDS, RESIDUAL, LEARNED)


# What was recorded, of the networks that can be judged.


def sound(run: Run, name: str) -> Any:
    """(members,) whether a network trained to its end: it did not diverge, and its loss is a number throughout."""
    return (run.array(f"{name}/diverged_at")[-1] < 0) & np.isfinite(run.array(f"{name}/loss")).all(0)


def _of_sound(run: Run, name: str, values: Any) -> Any:
    """Values (points, members) of the members that are sound; NaN if there is none, so that there is a picture."""
    kept = sound(run, name)
    return values[:, kept] if kept.any() else np.full(values.shape, np.nan)


def column(run: Run, name: str, what: str) -> Any:
    """One of the counts over training, (points, members)."""
    return _of_sound(run, name, run.array(f"{name}/counts")[:, :, net.COLUMNS.index(what)])


def share(run: Run, name: str, what: str, of: str = "") -> Any:
    """Of the edges or nodes counted as `of` those counted as `what`, (points, members); NaN where none is counted.

    Without `of`, those of `what` that are positive.
    """
    part, whole = (column(run, name, what), column(run, name, of)) if of else (
        column(run, name, f"{what} positive"),
        column(run, name, what),
    )  # fmt: skip
    return np.divide(part, whole, out=np.full(whole.shape, np.nan), where=whole > 0)


def learning(run: Run, name: str) -> Any:
    """Of each member the measuring points with between a tenth and nine tenths of the fall of its loss behind them.

    If there is none, that at which it is nearest to half; if the loss never falls, the last. (points, members) bool.
    """
    loss = _of_sound(run, name, run.array(f"{name}/loss"))
    whole = loss[0] - loss.min(0)
    fallen = (loss[0] - loss) / np.where(whole > 0, whole, 1.0)
    during = (fallen >= 0.1) & (fallen <= 0.9)
    nearest = np.abs(fallen - 0.5).argmin(0)
    chosen = np.where(whole > 0, nearest, len(loss) - 1)
    during[chosen, np.arange(loss.shape[1])] |= ~during.any(0)
    return during


def while_learning(run: Run, name: str, values: Any) -> Any:
    """The mean of values (points, members) over those points that have one, (members,)."""
    there = learning(run, name) & np.isfinite(values)
    total = np.where(there, values, 0.0).sum(0)
    return np.divide(total, there.sum(0), out=np.full(total.shape, np.nan), where=there.any(0))


def unlearned(run: Run, name: str) -> str | None:
    """Why nothing can be said of these networks; None if they learned."""
    if not sound(run, name).any():
        return f"all networks of the kind {name!r} diverged"
    loss = _of_sound(run, name, run.array(f"{name}/loss"))
    if (loss[0] - loss.min(0)).mean() < FALLEN * log(run.config["classes"]):
        return f"networks of the kind {name!r} did not learn the classes"
    return None


def _and_lost(run: Run, beside: dict[str, dict[str, float]]) -> Numbers:
    """With the number of networks that are left out, if there are any."""
    lost = sum(int((~sound(run, name)).sum()) for name in NETWORKS)
    return beside | ({"diverged and left out": {"networks": float(lost)}} if lost else {})


def _least_gain(found: Comparison) -> float:
    """The lower end of the interval of value - control."""
    return found.low - found.control


# One function per claim.


def _signs(run: Run) -> Finding:
    what = "share of edges with agreeing gradient, of those that meet the premises"
    expected = "While the loss falls, the gradient agrees with the latent on all edges that meet the premises."
    return _of_share(run, SIGNS, "signs", "others", what, 1.0, expected)


def _child(run: Run) -> Finding:
    what = "share of nodes whose gradient agrees with the latent"
    expected = "While the loss falls, the gradient agrees with the latent at 99 % of the nodes."
    return _of_share(run, CHILD, "children", "other children", what, ALL, expected)


def _gate(run: Run) -> Finding:
    what = "share of nodes whose gradient still agrees with the latent behind the nonlinearity"
    expected = "While the loss falls, the gradient still agrees with the latent at 99 % of the nodes."
    return _of_share(run, GATE, "gated", "other gated", what, ALL, expected)


def _of_share(run: Run, claim: Claim, own: str, other: str, what: str, needed: float, expected: str) -> Finding:
    """Beside the latents of other nodes and, because an untrained network may do as well, beside that."""
    if reason := unlearned(run, SMALL):
        return not_run(claim, expected, reason, COMMAND)
    seen = {name: _share_and_controls(run, name, own, other) for name in NETWORKS}
    value, by_other, untrained = seen[SMALL]
    return by_effect(
        claim,
        hardest(claim, {OTHER: compare(value, by_other), UNTRAINED: compare(value, untrained)}),
        what=what,
        expected=expected,
        size=[at_least("share", float(np.mean(value)), needed, "%")],
        details=_and_lost(run, {name: _means(*rows) for name, rows in seen.items()}),
    )


def _share_and_controls(run: Run, name: str, own: str, other: str) -> tuple[Any, Any, Any]:
    """While learning with a node's own latent, with another node's, and untrained: (members,) each."""
    shares = share(run, name, own)
    return while_learning(run, name, shares), while_learning(run, name, share(run, name, other)), shares[0]


def _means(value: Any, other: Any, untrained: Any) -> dict[str, float]:
    names = ("share", "with latents of other nodes", "untrained")
    return {name: float(np.mean(row)) for name, row in zip(names, (value, other, untrained), strict=True)}


def _rule(run: Run) -> Finding:
    expected = "While the loss falls, both signs are equal on 99 % of the edges."
    if reason := unlearned(run, SMALL):
        return not_run(RULE, expected, reason, COMMAND)
    agree = {name: share(run, name, "edges with the rule", of="edges") for name in NETWORKS}
    seen = {name: while_learning(run, name, values) for name, values in agree.items()}
    return by_effect(
        RULE,
        {UNTRAINED: compare(seen[SMALL], agree[SMALL][0])},
        what="share of edges whose weight has the sign of corr(f, δ)",
        expected=expected,
        size=[at_least("share", float(np.mean(seen[SMALL])), ALL, "%")],
        details=_and_lost(
            run,
            {
                name: {"share": float(np.mean(seen[name])), "untrained": float(np.mean(agree[name][0]))}
                for name in NETWORKS
            },
        ),
    )


def _ends(run: Run) -> Finding:
    """Each end beside the other end of the network and beside other samples; both falls beside the untrained ones."""
    expected = (
        "Both correlations fall away from their end, more than untrained. More edges have an angle sum below 90°."
    )
    if reason := unlearned(run, SMALL):
        return not_run(ENDS, expected, reason, COMMAND)
    names = ("C1 out", "C1 second", "C1 first", "C2 input", "C2 first", "C2 second")
    shuffled = ("C1 out shuffled", "C2 first shuffled")
    whole = {name: column(run, SMALL, name) for name in (*names, *shuffled)}
    seen = {name: while_learning(run, SMALL, values) for name, values in whole.items()}

    def fall(near: str, far: str) -> Comparison:
        return compare(seen[near] - seen[far], whole[near][0] - whole[far][0])

    inside = column(run, SMALL, "angles")
    return by_effect(
        ENDS,
        hardest(
            ENDS,
            {
                "gradients at the classes, compared with the first layer": compare(seen["C1 out"], seen["C1 first"]),
                f"gradients at the classes, {SAMPLES}": compare(seen["C1 out"], seen["C1 out shuffled"]),
                "activations at the tokens, compared with the second layer": compare(
                    seen["C2 input"], seen["C2 second"]
                ),
                f"activations in the first layer, {SAMPLES}": compare(seen["C2 first"], seen["C2 first shuffled"]),
            },
        ),
        what="correlation",
        expected=expected,
        size=[_more_below_90(inside)],
        controls=[
            beyond(ENDS, "fall of corr(z_α, δ) beyond that of the untrained network", fall("C1 out", "C1 first")),
            beyond(ENDS, "fall of corr(z_β, f) beyond that of the untrained network", fall("C2 input", "C2 second")),
        ],
        details=_and_lost(
            run,
            {
                "corr(z_α, δ) while learning": _by_layer(seen, names[:3]),
                "corr(z_α, δ) untrained": _by_layer({name: values[0] for name, values in whole.items()}, names[:3]),
                "corr(z_β, f) while learning": _by_layer(seen, names[3:]),
                "corr(z_β, f) untrained": _by_layer({name: values[0] for name, values in whole.items()}, names[3:]),
                "edges below 90°": {"most at any step, all networks": float(inside.sum(1).max())},
            },
        ),
    )


_LAYERS = {"out": "classes", "second": "second layer", "first": "first layer", "input": "tokens"}


def _by_layer(values: dict[str, Any], names: tuple[str, ...]) -> dict[str, float]:
    return {_LAYERS[name.split()[1]]: float(np.mean(values[name])) for name in names}


def _more_below_90(inside: Any) -> Any:
    """The test that edges inside the angle condition, (points, members), become more."""
    what = "edges below 90° per network at the end, beyond the untrained network (lower end of the interval)"
    return above(what, _least_gain(compare(inside[-1], inside[0])), 0.0)


def _residual(run: Run) -> Finding:
    """Sums between layers beside those on residual edges; and their gap beside that of the untrained network."""
    expected = "The angle sum is smaller on residual edges, by more than untrained, and more of them are below 90°."
    if reason := unlearned(run, RESIDUALS):
        return not_run(RESIDUAL, expected, reason, COMMAND)
    through, direct = (column(run, RESIDUALS, what) for what in ("total", "direct total"))
    seen = [while_learning(run, RESIDUALS, values) for values in (through, direct)]
    inside = column(run, RESIDUALS, "direct angles")
    return by_effect(
        RESIDUAL,
        {"between layers, compared with residual edges": compare(*seen)},
        what="sum of the angles",
        expected=expected,
        size=[_more_below_90(inside)],
        controls=[
            beyond(
                RESIDUAL,
                "gap beyond that of the untrained network",
                compare(seen[0] - seen[1], through[0] - direct[0]),
            )
        ],
        details=_and_lost(
            run,
            {
                "untrained": {"between layers": float(through[0].mean()), "on residual edges": float(direct[0].mean())},
                "residual edges below 90°": {"most at any step, all networks": float(inside.sum(1).max())},
            },
        ),
    )


def _learned(run: Run) -> Finding:
    expected = "First-layer nodes are closer to a latent than untrained, and to a lower one than second-layer nodes."
    if reason := unlearned(run, SMALL):
        return not_run(LEARNED, expected, reason, COMMAND)
    learned, shuffled = (column(run, SMALL, f"C2 first{kind}") for kind in ("", " shuffled"))
    second, first = (column(run, SMALL, f"height {layer}")[-1] for layer in ("second", "first"))
    higher = compare(second, first)
    return by_effect(
        LEARNED,
        hardest(LEARNED, {UNTRAINED: compare(learned[-1], learned[0]), SAMPLES: compare(learned[-1], shuffled[-1])}),
        what="corr(z_β, f) of first-layer nodes at the end",
        expected=expected,
        size=[
            above(
                "levels by which the latents of the second layer are higher (lower end of the interval)",
                _least_gain(higher),
                0.0,
            )
        ],
        details=_and_lost(
            run,
            {
                "corr(z_β, f) of first-layer nodes": {
                    "untrained": float(learned[0].mean()),
                    "latents of other samples": float(shuffled[-1].mean()),
                },
                "mean height of z_β": {"first layer": higher.control, "second layer": higher.value},
            },
        ),
    )


JUDGES: tuple[Callable[[Run], Finding], ...] = (_signs, _rule, _child, _gate, _ends, _residual, _learned)

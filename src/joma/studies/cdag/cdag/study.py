"""The correlations of CDAG Theorem 1 in networks that learn the classes of a latent tree."""

from functools import partial
from typing import Any

import numpy as np

from joma.claims.contract import Claim, Drawing, Finding, Study
from joma.claims.declare import Claims
from joma.claims.guards import at_paper_scale, beyond, hardest
from joma.claims.verdicts import Test, above, at_least, by_effect, not_run
from joma.figures.bands import bound, mean_and_band
from joma.figures.labels import end_label
from joma.figures.reading import number
from joma.figures.style import CONTROL, SERIES, panels
from joma.measure.intervals import Comparison, compare
from joma.runs import Run
from joma.studies.cdag.cdag import run as nets
from joma.studies.cdag.cdag.run import NETWORKS, RESIDUALS, SMALL, column, run, share, while_learning

COMMAND = at_paper_scale("cdag")
OTHER, UNTRAINED = "compared with latents of other nodes", "compared with the untrained network"
SAMPLES = "compared with latents of other samples"
MARGIN = 0.05  # of shares and of correlations: the smallest difference from a control that matters
ALL = 0.99  # of edges or nodes
DEGREES = 5.0  # the smallest difference between sums of angles that matters


OF_SHARES: Any = {"matters": MARGIN, "unit": "%", "ceiling": 1.0}
OF_CORRELATIONS: Any = {"matters": MARGIN, "ceiling": 1.0}


def _unlearned(run: Run, name: str = SMALL) -> tuple[str, str] | None:
    reason = nets.unlearned(run, name)
    return (reason, COMMAND) if reason else None


CLAIMS = Claims(source="CDAG Sec. 1.2", guard=_unlearned)


def _by_effect(run: Run, claim: Claim, found: Any, *, details: dict[str, dict[str, float]], **evidence: Any) -> Finding:
    lost = sum(int((~nets.sound(run, name)).sum()) for name in NETWORKS)
    left_out = {"diverged and left out": {"networks": float(lost)}} if lost else {}
    return by_effect(claim, found, details=details | left_out, **evidence)


def _is_higher(what: str, found: Comparison) -> Test:
    return above(f"{what} (lower end of the interval)", found.difference_low, 0.0)


def _share(run: Run, claim: Claim, own: str, other: str, what: str, needed: float) -> Finding:
    names, seen = ("share", "with latents of other nodes", "untrained"), {}
    for name in NETWORKS:
        shares = share(run, name, own)
        by_other = while_learning(run, name, share(run, name, other))
        seen[name] = while_learning(run, name, shares), by_other, shares[0]
    value, by_other, untrained = seen[SMALL]
    means = {name: dict(zip(names, (float(np.mean(row)) for row in rows), strict=True)) for name, rows in seen.items()}
    return _by_effect(
        run,
        claim,
        hardest(claim, {OTHER: compare(value, by_other), UNTRAINED: compare(value, untrained)}),
        what=what,
        size=[at_least("share", float(np.mean(value)), needed, "%")],
        details=means,
    )


CLAIMS.declare(
    "signs-in-training",
    "CDAG Thm 1",
    "Suppose the gradient of a parent agrees with a class, the activation of a child agrees with a latent, and the "
    "latent agrees with the class. Then the gradient from this parent to the child agrees with the latent.\n\n"
    "Expected: While the loss falls, the gradient agrees with the latent on all edges that meet the premises.",
    **OF_SHARES,
    uses=("cdag-angles/three-signs",),
)(
    partial(
        _share,
        own="signs",
        other="others",
        what="share of edges with agreeing gradient, of those that meet the premises",
        needed=1.0,
    )
)


@CLAIMS.declare("gradient-rule", "CDAG Thm 1", **OF_SHARES, uses=("cdag-angles/start-of-the-weight",))
def _rule(run: Run, claim: Claim) -> Finding:
    """The weight between child and parent has the sign of corr(f, δ).

    Expected: While the loss falls, both signs are equal on 99 % of the edges.
    """
    agree = {name: share(run, name, "edges with the rule", of="edges") for name in NETWORKS}
    seen = {name: while_learning(run, name, values) for name, values in agree.items()}
    means = {one: {"share": float(np.mean(seen[one])), "untrained": float(np.mean(agree[one][0]))} for one in NETWORKS}
    return _by_effect(
        run,
        claim,
        {UNTRAINED: compare(seen[SMALL], agree[SMALL][0])},
        what="share of edges whose weight has the sign of corr(f, δ)",
        size=[at_least("share", float(np.mean(seen[SMALL])), ALL, "%")],
        details=means,
    )


CLAIMS.declare(
    "all-parents",
    text="The gradient that a child receives from all its parents together agrees with the latent of its activation."
    "\n\nExpected: While the loss falls, the gradient agrees with the latent at 99 % of the nodes.",
    **OF_SHARES,
    uses=("cdag/signs-in-training", "cdag-angles/backpropagated"),
)(
    partial(
        _share,
        own="children",
        other="other children",
        what="share of nodes whose gradient agrees with the latent",
        needed=ALL,
    )
)
CLAIMS.declare(
    "behind-the-gate",
    text="If the activation and the gradient of a node agree with a latent, its gradient behind the nonlinearity also "
    "does.\n\n"
    "Expected: While the loss falls, the gradient still agrees with the latent at 99 % of the nodes.",
    **OF_SHARES,
    uses=("cdag-angles/recursion",),
)(
    partial(
        _share,
        own="gated",
        other="other gated",
        what="share of nodes whose gradient still agrees with the latent behind the nonlinearity",
        needed=ALL,
    )
)


@CLAIMS.declare("both-ends", **OF_CORRELATIONS)
def _ends(run: Run, claim: Claim) -> Finding:
    """Near the loss the gradients agree with the label. Near the input the activations agree with latents. Both meet
    the premises.

    Expected: Both correlations fall away from their end, more than untrained. More edges have an angle sum below 90°.

    Each end against the other end of the network and other samples; both falls against the untrained ones.
    """
    upper, lower = ("C1 out", "C1 second", "C1 first"), ("C2 input", "C2 first", "C2 second")
    values = {name: column(run, SMALL, name) for name in (*upper, *lower, "C1 out shuffled", "C2 first shuffled")}
    seen = {name: while_learning(run, SMALL, each) for name, each in values.items()}
    untrained = {name: each[0] for name, each in values.items()}

    def fall(what: str, near: str, far: str) -> Test:
        found = compare(seen[near] - seen[far], untrained[near] - untrained[far])
        return beyond(claim, f"fall of {what} beyond that of the untrained network", found)

    inside = column(run, SMALL, "angles")
    return _by_effect(
        run,
        claim,
        hardest(
            claim,
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
        size=[_more_below_90(inside)],
        controls=[fall("corr(z_α, δ)", "C1 out", "C1 first"), fall("corr(z_β, f)", "C2 input", "C2 second")],
        details={
            "corr(z_α, δ) while learning": _by_layer(seen, upper),
            "corr(z_α, δ) untrained": _by_layer(untrained, upper),
            "corr(z_β, f) while learning": _by_layer(seen, lower),
            "corr(z_β, f) untrained": _by_layer(untrained, lower),
            "edges below 90°": {"most at any step, all networks": float(inside.sum(1).max())},
        },
    )


_LAYERS = {"out": "classes", "second": "second layer", "first": "first layer", "input": "tokens"}


def _by_layer(values: dict[str, Any], names: tuple[str, ...]) -> dict[str, float]:
    return {_LAYERS[name.split()[1]]: float(np.mean(values[name])) for name in names}


def _more_below_90(inside: Any) -> Test:
    what = "edges below 90° per network at the end, beyond the untrained network"
    return _is_higher(what, compare(inside[-1], inside[0]))


@CLAIMS.declare("residual", matters=DEGREES, unit="°", uses=("cdag/both-ends",), guarded=False)
def _residual(run: Run, claim: Claim) -> Finding:
    """Residual connections from nodes near the input to nodes near the loss make the premises easier to meet.

    Expected: The angle sum is smaller on residual edges, by more than untrained, and more of them are below 90°.
    """
    if silent := _unlearned(run, RESIDUALS):
        return not_run(claim, claim.expected, *silent)
    through, direct = (column(run, RESIDUALS, what) for what in ("total", "direct total"))
    seen = [while_learning(run, RESIDUALS, values) for values in (through, direct)]
    inside = column(run, RESIDUALS, "direct angles")
    gap = compare(seen[0] - seen[1], through[0] - direct[0])
    return _by_effect(
        run,
        claim,
        {"between layers, compared with residual edges": compare(*seen)},
        what="sum of the angles",
        size=[_more_below_90(inside)],
        controls=[beyond(claim, "gap beyond that of the untrained network", gap)],
        details={
            "untrained": {"between layers": float(through[0].mean()), "on residual edges": float(direct[0].mean())},
            "residual edges below 90°": {"most at any step, all networks": float(inside.sum(1).max())},
        },
    )


@CLAIMS.declare("task-distributed", **OF_CORRELATIONS, uses=("cdag/all-parents",))
def _learned(run: Run, claim: Claim) -> Finding:
    """When the nodes above learn a class, the nodes below learn more basic latents.

    Expected: First-layer nodes are closer to a latent than untrained, and to a lower one than second-layer nodes.
    """
    learned, shuffled = (column(run, SMALL, f"C2 first{kind}") for kind in ("", " shuffled"))
    second, first = (column(run, SMALL, f"height {layer}")[-1] for layer in ("second", "first"))
    higher = compare(second, first)
    return _by_effect(
        run,
        claim,
        hardest(claim, {UNTRAINED: compare(learned[-1], learned[0]), SAMPLES: compare(learned[-1], shuffled[-1])}),
        what="corr(z_β, f) of first-layer nodes at the end",
        size=[_is_higher("levels by which the latents of the second layer are higher", higher)],
        details={
            "corr(z_β, f) of first-layer nodes": {
                "untrained": float(learned[0].mean()),
                "latents of other samples": float(shuffled[-1].mean()),
            },
            "mean height of z_β": {"first layer": higher.control, "second layer": higher.value},
        },
    )


def draw(run: Run) -> list[Drawing]:
    """Shares with a positive outcome, and angles, over training."""
    figure, (left, right) = panels(2, width=4.5, height=3.0)
    for name, colour in zip(NETWORKS, SERIES, strict=False):
        steps = run.steps(f"{name}/counts")[1:]
        together, alone, other = (share(run, name, one)[1:].mean(1) for one in ("children", "signs", "other children"))
        left.plot(steps, together, color=colour, label=name)
        left.plot(steps, alone, color=colour, ls="--")
        left.plot(steps, other, color=CONTROL, lw=1, label="latent of\nanother node")
    end_label(left, "solid: all parents")
    end_label(left, "dashed: one parent", ls="--")
    left.set(xscale="log", xlabel="training step", ylabel="share of gradients that agree")
    left.set(ylim=(0.3, 1.05), yticks=(0.4, 0.6, 0.8, 1.0), title="Gradients that agree with the latent")
    for what, label, colour in (("total", "between layers", SERIES[0]), ("direct total", "residual edges", SERIES[1])):
        mean_and_band(right, 1 + run.steps("residual/counts"), column(run, "residual", what), color=colour, label=label)
    bound(right, 90, "needed:\nbelow 90°")
    right.set(xscale="log", xlabel="1 + training step", ylabel="a + b + c (degrees)")
    right.set(ylim=(60, 240), yticks=(90, 135, 180, 225), title="The angles of the premises stay too large")
    own, other = (
        number(float(np.mean(while_learning(run, SMALL, share(run, SMALL, what)))), "%")
        for what in ("children", "other children")
    )
    caption = (
        "While the loss falls, the gradient from all parents together agrees with the latent of a first-layer node at "
        f"{own} of the nodes (small start); with the latent of another node it agrees at {other}. Left: this share "
        "during training, from all parents together and from each parent alone. Right: the sum of the three angles of "
        "the premises, mean over edges and seeds (bands: smallest to largest seed). Below 90° the conclusion would be "
        "certain."
    )
    return [Drawing("cdag-in-training", caption, figure)]


STUDY = Study(
    name="cdag",
    title="CDAG Theorem 1 in training: do gradients teach a node its latent?",
    version=1,
    claims=CLAIMS,
    quick=nets.CdagConfig(),
    paper=nets.CdagConfig(
        classes=20, branching=(3, 5), members=20, width=512, steps=3_000, batch=256, rate=0.5, samples=50_000,
        held_out=8_192, points=30, device="cuda",
    ),
    run=run,
    draw=draw,
    about=(
        "Networks of two hidden layers learn the class of a hierarchical latent tree from its tokens. Two signals "
        "agree if their correlation is positive. At every measuring point each node gets the latent that agrees "
        "best with its activation (or, above, the class that agrees best with its gradient) on one half of the "
        "held-out samples. On the other half the study counts how often the conclusion of the theorem is true where "
        "its premises are. The controls give a node the latent of another node, or use the untrained network. A "
        "number must exceed all of its controls over the seeds."
    ),
)  # fmt: skip

"""Theorem 1 when several queries share the MLP: only the sum of their logits is tied to its weights."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor

from joma.claims.contract import Claim, Drawing, Finding, Least, Progress, Study, StudyConfig
from joma.claims.declare import Claims
from joma.claims.verdicts import above, at_most, by_tests
from joma.figures.bands import bound
from joma.figures.labels import end_label
from joma.figures.reading import number
from joma.figures.style import CORRECTED, GREEN, INK, ORANGE, PRINTED, panels
from joma.runs import Run
from joma.studies.invariant import _blocks as blocks
from joma.studies.invariant._blocks import FLOW, KINDS, drift, kept, largest, smallest
from joma.theory.attention import value_and_derivative
from joma.theory.flow import integrate_together
from joma.theory.invariant import first_integral_over_queries

MIXED, AVERAGED = "mixed loss", "average by query"
"""How the logits of a query get their gradient: from the loss over all samples, or averaged over its own (eq. 2)."""
ALL = [(kind, way) for kind in KINDS for way in (MIXED, AVERAGED)]


@dataclass(frozen=True)
class Thm1QueriesConfig(StudyConfig):
    """A block whose samples end in queries of unequal frequency."""

    queries: int = 3
    tokens: int = 6
    nodes: int = 3
    samples: int = 24
    horizon: float = 0.5
    steps: Annotated[int, Least(2, "the start and a later moment")] = 21
    seed: int = 0


CLAIMS = Claims()


def run(config: Thm1QueriesConfig, run: Run, progress: Progress) -> None:
    """Follow blocks of several queries, carrying along what eq. 13 makes of each query's own part of v′."""
    run.keep("t", lambda: blocks.moments(config.horizon, config.steps))
    query = blocks.draw_block(config, "exp", queries=config.queries)[0].query
    run.keep("probability", lambda: torch.bincount(query, minlength=config.queries).double() / config.samples)
    cases = [*((*case, config.queries) for case in ALL), ("exp", MIXED, 1)]
    for i, (kind, way, queries) in enumerate(cases):
        name = f"{kind}/{way}/{queries} queries"
        progress(i / len(cases), name)
        if f"{name}/path" not in run:
            run.record(0, {f"{name}/{part}": value for part, value in _flow(config, kind, way, queries).items()})


def _flow(config: Thm1QueriesConfig, kind: str, way: str, queries: int) -> dict[str, Tensor]:
    """z and V, and the integral of Σ v v′ with only that part of v′ which comes from the samples of each query."""
    block, start = blocks.draw_block(config, kind, queries=queries, per_query=way == AVERAGED)
    member = torch.nn.functional.one_hot(block.query, queries).mT.double()
    member = member / (member.sum(-1, keepdim=True) if way == AVERAGED else config.samples)

    def field(time: float, w: Tensor, z: Tensor, path: Tensor) -> tuple[Tensor, ...]:
        b = block.attend(z)
        h, slope = value_and_derivative(block.activation, (b @ block.tokens.mT + block.queries.mT[block.query]) @ w)
        push = block.backprop(h, time) * slope
        pull = b * (push @ block.project(w).mT)  # Σ_k v_k g_k h′_k b, (..., samples, tokens)
        return *block.velocity(w, z, time), member @ pull

    w, z, path = integrate_together(
        field, (*start, torch.zeros_like(start.z)), blocks.moments(config.horizon, config.steps)
    )
    return {"z": z, "v": block.project(w), "path": path}


def _state(run: Run, kind: str, way: str, queries: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """z and path (steps, gradients, queries, tokens) around v (steps, gradients, tokens, nodes)."""
    name = f"{kind}/{way}/{queries or run.config['queries']} queries"
    z, v, path = (torch.as_tensor(run.value(f"{name}/{part}")) for part in ("z", "v", "path"))
    return z, v, path


def _each(run: Run, kind: str, way: str, queries: int = 0) -> float:
    z, v, _ = _state(run, kind, way, queries)
    return drift(kept(z, v[..., None, :, :], kind=kind))


def _sum(run: Run, kind: str, way: str, probability: Any = None, *, form: str = "") -> float:
    """Drift of the (weighted) sum over queries, in the form that belongs to `kind` or to another attention."""
    z, v, _ = _state(run, kind, way)
    weight = None if probability is None else torch.as_tensor(probability)
    return drift(kept(z, v, first_integral_over_queries, kind=form or kind, probability=weight))


def _unexplained(run: Run, kind: str, way: str, queries: int = 0, *, own: bool = False) -> float:
    z, v, path = _state(run, kind, way, queries)
    moved = z - z[0] if kind == "exp" else (z.square() - z[0].square()) / 2
    return float((moved - (path if own else ((v.square() - v[0].square()).sum(-1)[..., None, :] / 2))).abs().max())


def _every_query(run: Run, claim: Claim, kind: str) -> Finding:
    other, form = ("linear", "Σ z² − Σv²") if kind == "exp" else ("exp", "Σ z − ½Σv²")
    wrong = above(f"drift of {form}, the invariant of {other} attention", _sum(run, kind, MIXED, form=other), FLOW)
    alone = [at_most("drift in a block with one query", _each(run, "exp", MIXED, 1), FLOW)] if kind == "exp" else []
    return by_tests(
        claim,
        printed=[at_most("largest drift of a query", _each(run, kind, MIXED), FLOW)],
        corrected=[at_most("drift of their sum", _sum(run, kind, MIXED), FLOW)],
        controls=[*alone, wrong],
    )


CLAIMS.declare(
    "every-query-exp",
    "JoMA Thm 1",
    "Under exp attention the logits of each query keep z = ½Σv² + c."
    "\n\nCorrected: When queries share W, only the sum over queries is conserved: Σ z = ½Σv² + c."
    "\nExpected: As printed: no query drifts. As corrected: the sum over queries does not drift.",
    uses=("thm1/exp-invariant",),
)(partial(_every_query, kind="exp"))
CLAIMS.declare(
    "every-query-linear",
    "JoMA Thm 1",
    "Under linear attention the logits of each query keep z² = Σv² + c."
    "\n\nCorrected: When queries share W, only the sum over queries is conserved: Σ z² = Σv² + c."
    "\nExpected: As printed: no query drifts. As corrected: the sum over queries does not drift.",
    uses=("thm1/linear-invariant",),
)(partial(_every_query, kind="linear"))


@CLAIMS.declare(
    "average-by-query", "JoMA eq. 2", uses=("thm1-queries/every-query-exp", "thm1-queries/every-query-linear")
)
def _average(run: Run, claim: Claim) -> Finding:
    """When the logits of each query are trained on the mean over its own samples, each query keeps z = ½Σv² + c.

    Corrected: Then only the sum weighted by the frequencies p of the queries is conserved: Σ p z = ½Σv² + c.
    Expected: As printed: no query drifts. As corrected: their sum weighted by p does not drift (of z² if linear).
    """
    weighted = largest(_sum(run, kind, AVERAGED, run.value("probability")) for kind in KINDS)
    return by_tests(
        claim,
        printed=[at_most("largest drift of a query", largest(_each(run, kind, AVERAGED) for kind in KINDS), FLOW)],
        corrected=[at_most("drift of their sum, weighted by p", weighted, FLOW)],
        controls=[above("drift of their sum without p", smallest(_sum(run, kind, AVERAGED) for kind in KINDS), FLOW)],
    )


@CLAIMS.declare("pull-by-query", "JoMA eq. 13", uses=("thm1/pull-on-logits",))
def _path(run: Run, claim: Claim) -> Finding:
    """The velocity of the logits of a query is σ′/σ times Σ v v′.

    Corrected: It is σ′/σ times Σ v v′, where v′ counts only the samples of that query.
    Expected: The formula gives the motion of the logits of every query: ∫σ/σ′ dz equals the integral.
    """
    own, total = (largest(_unexplained(run, *case, own=own) for case in ALL) for own in (True, False))
    still = smallest(drift(_state(run, *case)[0]) for case in ALL)
    return by_tests(
        claim,
        printed=[at_most("largest difference", total, FLOW)],
        corrected=[at_most("largest difference", own, FLOW)],
        controls=[
            at_most("largest difference in a block with one query", _unexplained(run, "exp", MIXED, 1), FLOW),
            above("largest difference if the logits stayed at their start", still, FLOW),
        ],
    )


def draw(run: Run) -> list[Drawing]:
    """The drift of every query and of the sum, and how far the logits of each query follow V."""
    figure, (left, right) = panels(2, width=4.5)
    t, queries = run.value("t"), run.config["queries"]
    for kind, style in zip(KINDS, ("-", "--"), strict=True):
        z, v, _ = _state(run, kind, MIXED)
        each, total = kept(z, v[..., None, :, :], kind=kind), kept(z, v, first_integral_over_queries, kind=kind)
        labels = ("each query", "sum of queries") if kind == "exp" else (None, None)
        for query in range(queries):
            left.plot(t[1:], blocks.drift_over_time(each[..., query, :]), style, color=PRINTED, lw=1, label=labels[0])
        left.plot(t[1:], blocks.drift_over_time(total), style, color=CORRECTED, label=labels[1])
    bound(left, FLOW)
    end_label(left, "solid: exp")
    end_label(left, "dashed: linear", ls="--")
    left.set(yscale="log", ylim=(1e-17, 1e1), xlabel="time", ylabel="largest drift", title="Only the sum is conserved")
    z, v, _ = _state(run, "exp", MIXED)
    across, up = (v.square().sum(-1) - v[0].square().sum(-1)).flatten() / 2, z - z[0]
    for query, colour in zip(range(min(queries, 2)), (ORANGE, GREEN), strict=False):
        alone = up[..., query, :].flatten()
        right.plot(across, alone, "o", ms=2.5, mew=0, color=colour, label=f"z of query {query + 1}")
    right.plot(across, up.sum(-2).flatten(), "o", ms=2.5, mew=0, color=CORRECTED, label="sum over queries")
    right.axline((0, 0), slope=1, color=INK, lw=0.8, zorder=0, label="equality")
    right.set(xlabel="change of ½Σv² of a token", ylabel="change of logits", title="Single exp queries do not follow V")
    right.locator_params(axis="x", nbins=5)
    caption = (
        f"When {queries} queries share one MLP, only the sum of their logits is tied to its weights. The largest drift "
        f"is {number(largest(_each(run, kind, MIXED) for kind in KINDS))} for a single query and "
        f"{number(largest(_sum(run, kind, MIXED) for kind in KINDS))} for the sum. Left: the largest drift of Theorem "
        "1 for each query and for the sum over queries. Right: the sum of the logits of a token follows its weights; "
        "the logits of one query do not."
    )
    return [Drawing("several-queries", caption, figure)]


STUDY = Study(
    name="thm1-queries",
    title="Theorem 1 with several queries",
    version=1,
    claims=CLAIMS,
    quick=Thm1QueriesConfig(),
    paper=Thm1QueriesConfig(queries=8, tokens=20, nodes=20, samples=200, steps=41),
    run=run,
    draw=draw,
    about=(
        "Blocks whose samples end in several queries of unequal frequency are trained by gradient flow. One run uses "
        "one loss over all samples. The other averages the logits of each query over its own samples, as eq. 2 is "
        "written. The invariant of Theorem 1 is computed for each query and for the sum. A path integral follows what "
        "each query adds to v′."
    ),
)

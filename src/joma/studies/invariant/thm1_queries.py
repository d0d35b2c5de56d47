"""Theorem 1 when several queries share the MLP: only the sum of their logits is tied to its weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from joma.claims.contract import Claim, Drawing, Finding, Progress, Study, each_claim
from joma.claims.evidence import Test, above, at_most
from joma.claims.verdicts import by_tests
from joma.figures.bands import bound
from joma.figures.labels import end_label, label_lines
from joma.figures.reading import between, number
from joma.figures.style import CORRECTED, GREEN, INK, ORANGE, PRINTED, panels
from joma.runs import Run
from joma.studies.invariant._blocks import SMOOTH, draw_block, draw_start, drift, kept, largest, moments, smallest
from joma.theory.attention import Attention, value_and_derivative
from joma.theory.flow import Block, State, integrate_together
from joma.theory.invariant import first_integral_over_queries

FLOW = 1e-10  # what the solver keeps of a first integral, at rtol 1e-12

KINDS = ("exp", "linear")
MIXED, AVERAGED = "mixed loss", "average by query"
"""How the logits of a query get their gradient: from the loss over all samples, or averaged over its own (eq. 2)."""


@dataclass(frozen=True)
class Config:
    """A block whose samples end in queries of unequal frequency."""

    queries: int = 3
    tokens: int = 6
    nodes: int = 3
    samples: int = 24
    horizon: float = 0.5
    steps: int = 21
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps < 2:
            raise ValueError(f"steps must be at least 2, the start and a later moment, got {self.steps}")


EXP = Claim(
    "every-query-exp",
    "JoMA Thm 1",
    "Under exp attention the logits of each query keep z = ½Σv² + c.",
    "When queries share W, only the sum over queries is conserved: Σ z = ½Σv² + c.",
    uses=("thm1/exp-invariant",),
)
LINEAR = Claim(
    "every-query-linear",
    "JoMA Thm 1",
    "Under linear attention the logits of each query keep z² = Σv² + c.",
    "When queries share W, only the sum over queries is conserved: Σ z² = Σv² + c.",
    uses=("thm1/linear-invariant",),
)
AVERAGE = Claim(
    "average-by-query",
    "JoMA eq. 2",
    "When the logits of each query are trained on the mean over its own samples, each query keeps z = ½Σv² + c.",
    "Then only the sum weighted by the frequencies p of the queries is conserved: Σ p z = ½Σv² + c.",
    uses=("thm1-queries/every-query-exp", "thm1-queries/every-query-linear"),
)
PATH = Claim(
    "pull-by-query",
    "JoMA eq. 13",
    "The velocity of the logits of a query is σ′/σ times Σ v v′.",
    "It is σ′/σ times Σ v v′, where v′ counts only the samples of that query.",
    uses=("thm1/pull-on-logits",),
)


def run(config: Config, run: Run, progress: Progress) -> None:
    """Follow blocks of several queries, carrying along what eq. 13 makes of each query's own part of v′."""
    run.keep("t", lambda: moments(config.horizon, config.steps))
    run.keep("probability", lambda: _probability(_block(config, "exp", MIXED, config.queries)[0]))
    cases = [(kind, way, config.queries) for kind in KINDS for way in (MIXED, AVERAGED)]
    for i, (kind, way, queries) in enumerate([*cases, ("exp", MIXED, 1)]):
        name = _name(kind, way, queries)
        progress(i / (len(cases) + 1), name)
        _record(run, name, config, kind, way, queries)


def _record(run: Run, name: str, config: Config, kind: str, way: str, queries: int) -> None:
    @cache
    def flow() -> dict[str, Tensor]:
        return _flow(config, kind, way, queries)

    for part in ("z", "v", "path"):

        def compute(part: str = part) -> Tensor:
            return flow()[part]

        run.keep(f"{name}/{part}", compute)


def _exp(run: Run) -> Finding:
    alone = at_most("drift in a block with one query", _each(run, "exp", MIXED, 1), FLOW)
    other = above(
        "drift of Σ z² − Σv², the invariant of linear attention", _sum(run, "exp", MIXED, form="linear"), FLOW
    )
    return _every_query(run, EXP, "exp", [alone, other])


def _linear(run: Run) -> Finding:
    other = above("drift of Σ z − ½Σv², the invariant of exp attention", _sum(run, "linear", MIXED, form="exp"), FLOW)
    return _every_query(run, LINEAR, "linear", [other])


def _every_query(run: Run, claim: Claim, kind: str, controls: list[Test]) -> Finding:
    return by_tests(
        claim,
        expected="As printed: no query drifts. As corrected: the sum over queries does not drift.",
        printed=[at_most("largest drift of a query", _each(run, kind, MIXED, run.config["queries"]), FLOW)],
        corrected=[at_most("drift of their sum", _sum(run, kind, MIXED), FLOW)],
        controls=controls,
    )


def _average(run: Run) -> Finding:
    queries, p = run.config["queries"], run.value("probability")
    each, weighted, plain = zip(
        *(
            (_each(run, kind, AVERAGED, queries), _sum(run, kind, AVERAGED, p), _sum(run, kind, AVERAGED))
            for kind in KINDS
        ),
        strict=True,
    )
    return by_tests(
        AVERAGE,
        expected="As printed: no query drifts. As corrected: their sum weighted by p does not drift (of z² if linear).",
        printed=[at_most("largest drift of a query", largest(each), FLOW)],
        corrected=[at_most("drift of their sum, weighted by p", largest(weighted), FLOW)],
        controls=[above("drift of their sum without p", smallest(plain), FLOW)],
    )


def _path(run: Run) -> Finding:
    queries = run.config["queries"]
    own, whole = (
        largest(_unexplained(run, kind, way, queries, own=own) for kind in KINDS for way in (MIXED, AVERAGED))
        for own in (True, False)
    )
    alone = _unexplained(run, "exp", MIXED, 1, own=False)
    still = (drift(_state(run, kind, way, queries)[0]) for kind in KINDS for way in (MIXED, AVERAGED))
    return by_tests(
        PATH,
        expected="The formula gives the motion of the logits of every query: ∫σ/σ′ dz equals the integral.",
        printed=[at_most("largest difference", whole, FLOW)],
        corrected=[at_most("largest difference", own, FLOW)],
        controls=[
            at_most("largest difference in a block with one query", alone, FLOW),
            above("largest difference if the logits stayed at their start", smallest(still), FLOW),
        ],
    )


def draw(run: Run) -> list[Drawing]:
    """The drift of every query and of the sum, and how far the logits of each query follow V."""
    figure, (left, right) = panels(2, width=4.5)
    seen = [_draw_drift(run, left), _draw_queries(run, right)]
    queries = run.config["queries"]
    each, total = (
        number(largest(drifts))
        for drifts in zip(*((_each(run, kind, MIXED, queries), _sum(run, kind, MIXED)) for kind in KINDS), strict=True)
    )
    caption = (
        f"When {queries} queries share one MLP, only the sum of their logits is tied to its weights. The largest drift "
        f"is {each} for a single query and {total} for the sum. Left: the largest drift of Theorem 1 for each query "
        "and for the sum over queries. Right: the sum of the logits of a token follows its weights; the logits of "
        "one query do not."
    )
    return [Drawing("several-queries", caption, figure, "Two panels. " + " ".join(seen))]


def _draw_drift(run: Run, axis: Any) -> str:
    t, queries, single, whole = run.value("t"), run.config["queries"], [], []
    for kind, style in zip(KINDS, ("-", "--"), strict=True):
        z, v = _state(run, kind, MIXED, queries)
        each, total = kept(z, v[..., None, :, :], kind=kind), kept(z, v, first_integral_over_queries, kind=kind)
        named = kind == "exp"
        for query in range(queries):
            single.append(_largest(each[..., query, :]))
            axis.plot(t[1:], single[-1], style, color=PRINTED, lw=1, label="each query" if named else None)
        whole.append(_largest(total))
        axis.plot(t[1:], whole[-1], style, color=CORRECTED, label="sum of queries" if named else None)
    bound(axis, FLOW)
    end_label(axis, "solid: exp")
    end_label(axis, "dashed: linear", ls="--")
    axis.set(yscale="log", ylim=(1e-17, 1e1), xlabel="time", ylabel="largest drift", title="Only the sum is conserved")
    label_lines(axis)
    return (
        f"Left, on a log scale: the drifts of single queries end {between([path[-1] for path in single])}. The drift "
        f"of the sum is at most {number(float(torch.stack(whole).max()))}; the tolerance is {number(FLOW)}."
    )


def _draw_queries(run: Run, axis: Any) -> str:
    z, v = _state(run, "exp", MIXED, run.config["queries"])
    across = (v.square().sum(-1) - v[0].square().sum(-1)).flatten() / 2
    up = z - z[0]
    off = []
    for query, colour in zip(range(min(run.config["queries"], 2)), (ORANGE, GREEN), strict=False):
        alone = up[..., query, :].flatten()
        axis.plot(across, alone, "o", ms=2.5, mew=0, color=colour, label=f"z of query {query + 1}")
        off.append(f"{number(float((alone - across).abs().max()))} for query {query + 1}")
    total = up.sum(-2).flatten()
    axis.plot(across, total, "o", ms=2.5, mew=0, color=CORRECTED, label="sum over queries")
    axis.axline((0, 0), slope=1, color=INK, lw=0.8, zorder=0, label="equality")
    axis.set(xlabel="change of ½Σv² of a token", ylabel="change of logits", title="Single exp queries do not follow V")
    axis.locator_params(axis="x", nbins=5)
    label_lines(axis)
    return (
        "Right: the dots of the sum lie on the line of equality, within "
        f"{number(float((total - across).abs().max()))}. The dots of single queries scatter around it. Their "
        f"largest distances are {' and '.join(off)}."
    )


def _block(config: Config, kind: str, way: str, queries: int) -> tuple[Block, State]:
    generator = torch.Generator().manual_seed(config.seed)
    block = draw_block(
        tokens=config.tokens,
        nodes=config.nodes,
        samples=config.samples,
        queries=queries,
        generator=generator,
        attention=Attention(kind, norm=1 / config.tokens),  # type: ignore[arg-type]
        activation=SMOOTH["SiLU"],
        per_query=way == AVERAGED,
    )
    return block, draw_start(block, config.nodes, generator)


def _probability(block: Block) -> Tensor:
    return torch.bincount(block.query, minlength=block.queries.shape[1]).double() / len(block.query)


def _flow(config: Config, kind: str, way: str, queries: int) -> dict[str, Tensor]:
    """z and V, and the integral of Σ v v′ with only that part of v′ which comes from the samples of each query."""
    block, start = _block(config, kind, way, queries)
    member = torch.nn.functional.one_hot(block.query, queries).mT.double()
    member = member / (member.sum(-1, keepdim=True) if way == AVERAGED else config.samples)

    def field(time: float, w: Tensor, z: Tensor, path: Tensor) -> tuple[Tensor, ...]:
        b = block.attend(z)
        h, slope = value_and_derivative(block.activation, (b @ block.tokens.mT + block.queries.mT[block.query]) @ w)
        pull = b * (
            (block.backprop(h, time) * slope) @ block.project(w).mT
        )  # Σ_k v_k g_k h′_k b, (..., samples, tokens)
        return *block.velocity(w, z, time), member @ pull

    w, z, path = integrate_together(field, (*start, torch.zeros_like(start.z)), moments(config.horizon, config.steps))
    return {"z": z, "v": block.project(w), "path": path}


def _name(kind: str, way: str, queries: int) -> str:
    return f"{kind}/{way}/{queries} queries"


def _state(run: Run, kind: str, way: str, queries: int) -> tuple[Tensor, Tensor]:
    """z (steps, gradients, queries, tokens) and v (steps, gradients, tokens, nodes)."""
    name = _name(kind, way, queries)
    return torch.as_tensor(run.value(f"{name}/z")), torch.as_tensor(run.value(f"{name}/v"))


def _each(run: Run, kind: str, way: str, queries: int) -> float:
    """Drift of Theorem 1 query by query, the largest."""
    z, v = _state(run, kind, way, queries)
    return drift(kept(z, v[..., None, :, :], kind=kind))


def _sum(run: Run, kind: str, way: str, probability: Any = None, *, form: str = "") -> float:
    """Drift of the (weighted) sum over queries, in the form that belongs to `kind` or to another attention."""
    z, v = _state(run, kind, way, run.config["queries"])
    weight = None if probability is None else torch.as_tensor(probability)
    return drift(kept(z, v, first_integral_over_queries, kind=form or kind, probability=weight))


def _unexplained(run: Run, kind: str, way: str, queries: int, *, own: bool) -> float:
    """∫σ/σ′dz of every query minus the integral of Σ v v′: of the query's own part of v′, or of all of it."""
    z, v = _state(run, kind, way, queries)
    moved = z - z[0] if kind == "exp" else (z.square() - z[0].square()) / 2
    whole = (v.square() - v[0].square()).sum(-1)[..., None, :] / 2
    path = torch.as_tensor(run.value(f"{_name(kind, way, queries)}/path")) if own else whole
    return float((moved - path).abs().max())


def _largest(c: Tensor) -> Tensor:
    """The largest drift at every moment after the start."""
    return (c - c[0]).abs().flatten(1).amax(1)[1:].clamp(min=1e-17)


STUDY = Study(
    name="thm1-queries",
    title="Theorem 1 with several queries",
    version=1,
    claims=(EXP, LINEAR, AVERAGE, PATH),
    quick=Config(),
    paper=Config(queries=8, tokens=20, nodes=20, samples=200, steps=41),
    run=run,
    judge=each_claim(_exp, _linear, _average, _path),
    draw=draw,
    about=(
        "Blocks whose samples end in several queries of unequal frequency are trained by gradient flow. One run uses "
        "one loss over all samples. The other averages the logits of each query over its own samples, as eq. 2 is "
        "written. The invariant of Theorem 1 is computed for each query and for the sum. A path integral follows what "
        "each query adds to v′."
    ),
)

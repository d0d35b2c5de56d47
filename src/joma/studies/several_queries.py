"""Theorem 1 when several queries share the MLP: only the sum of their logits is tied to its weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from joma.runs import Run
from joma.studies._blocks import SMOOTH, draw_block, draw_start, drift, moments
from joma.studies.contract import Claim, Drawing, Finding, Progress, Study
from joma.studies.drawing import CORRECTED, GREEN, ORANGE, PRINTED, panels
from joma.studies.verdicts import by_residual, show
from joma.theory.attention import Attention, value_and_derivative
from joma.theory.flow import Block, State, integrate_together
from joma.theory.invariant import first_integral, first_integral_over_queries

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


EXP = Claim(
    "every-query-exp",
    "JoMA Thm 1",
    "Under exp attention the logits of each query keep z = ½Σv² + c.",
    "When queries share W only the sum over queries does: Σ z = ½Σv² + c.",
)
LINEAR = Claim(
    "every-query-linear",
    "JoMA Thm 1",
    "Under linear attention the logits of each query keep z² = Σv² + c.",
    "When queries share W only the sum over queries does: Σ z² = Σv² + c.",
)
AVERAGE = Claim(
    "average-by-query",
    "JoMA eq. 2",
    "With each query's logits trained on the mean over its own samples, each keeps z = ½Σv² + c.",
    "With those means the sum needs the frequencies p of the queries: Σ p z = ½Σv² + c.",
)
PATH = Claim(
    "pull-by-query",
    "JoMA eq. 13",
    "The logits of a query move by σ′/σ times Σ v v′.",
    "They move by σ′/σ times Σ v v′ with only that part of v′ which comes from the query's own samples.",
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


def judge(run: Run) -> list[Finding]:
    """Drift for single queries and for their sum, the largest over tokens and gradients."""
    queries, p = run.config["queries"], run.value("probability")
    alone = show(_each(run, "exp", MIXED, 1))
    own, whole = (
        max(_unexplained(run, kind, way, own=own) for kind in KINDS for way in (MIXED, AVERAGED))
        for own in (True, False)
    )
    return [
        by_residual(
            claim,
            printed=_each(run, kind, MIXED, queries),
            corrected=_sum(run, kind, MIXED, None),
            tolerance=FLOW,
            expected="no drift",
            control=f"drift {alone} for a single query (exp)",
        )
        for claim, kind in ((EXP, "exp"), (LINEAR, "linear"))
    ] + [
        by_residual(
            AVERAGE,
            printed=max(_each(run, kind, AVERAGED, queries) for kind in KINDS),
            corrected=max(_sum(run, kind, AVERAGED, p) for kind in KINDS),
            tolerance=FLOW,
            expected="no drift (exp, and z² for linear attention)",
            control=f"drift {show(_sum(run, 'exp', AVERAGED, None))} of the sum without p",
        ),
        by_residual(PATH, printed=whole, corrected=own, tolerance=FLOW, expected="∫σ/σ′ dz explained"),
    ]


def draw(run: Run) -> list[Drawing]:
    """The drift of every query and of the sum, and how far the logits of each query follow V."""
    t, queries = run.value("t"), run.config["queries"]
    figure, (left, right) = panels(2)
    for kind, style in zip(KINDS, ("-", "--"), strict=True):
        z, v = _state(run, kind, MIXED, queries)
        each, total = first_integral(z, v[..., None, :, :], kind=kind), first_integral_over_queries(z, v, kind=kind)
        for query in range(queries):
            left.plot(t[1:], _largest(each[..., query, :]), style, color=PRINTED, lw=1)
        left.plot(t[1:], _largest(total), style, color=CORRECTED)
        left.plot([], [], style, color=left.xaxis.label.get_color(), label=f"{kind} attention")
    left.plot([], [], color=PRINTED, lw=1, label="each query")
    left.plot([], [], color=CORRECTED, label="sum of queries")
    left.axhline(FLOW, ls=":", lw=1, color="gray")
    left.annotate("tolerance", (t[-1], FLOW * 1.6), fontsize=8, ha="right")
    left.set(yscale="log", ylim=(1e-17, 1e1), xlabel="time", ylabel="largest drift", title="What is conserved")
    left.legend(loc="center", ncols=2, bbox_to_anchor=(0.5, 0.62), columnspacing=1, handlelength=1.6)
    z, v = _state(run, "exp", MIXED, queries)
    across = (v.square().sum(-1) - v[0].square().sum(-1)).flatten() / 2
    up = z - z[0]
    for query, colour in zip(range(min(queries, 2)), (ORANGE, GREEN), strict=False):
        right.plot(
            across, up[..., query, :].flatten(), "o", ms=2.5, mew=0, color=colour, label=f"z of query {query + 1}"
        )
    right.plot(across, up.sum(-2).flatten(), "o", ms=2.5, mew=0, color=CORRECTED, label="sum over queries")
    right.axline((0, 0), slope=1, color="gray", lw=0.8, zorder=0)
    right.set(xlabel="change of ½Σv² of a token", ylabel="change of logits", title="Single queries are free (exp)")
    right.locator_params(axis="x", nbins=5)
    right.legend(loc="upper left", markerscale=2)
    caption = (
        f"{queries} queries share one MLP. Left: drift of Theorem 1 for each query and for the sum over queries. "
        "Right: the sum of a token's logits follows its weights, the logits of one query do not."
    )
    return [Drawing("several-queries", caption, figure)]


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
    return drift(first_integral(z, v[..., None, :, :], kind=kind))


def _sum(run: Run, kind: str, way: str, probability: Any) -> float:
    """Drift of the (weighted) sum over queries."""
    z, v = _state(run, kind, way, run.config["queries"])
    weight = None if probability is None else torch.as_tensor(probability)
    return drift(first_integral_over_queries(z, v, kind=kind, probability=weight))


def _unexplained(run: Run, kind: str, way: str, *, own: bool) -> float:
    """∫σ/σ′dz of every query minus the integral of Σ v v′: of the query's own part of v′, or of all of it."""
    queries = run.config["queries"]
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
    judge=judge,
    draw=draw,
    about=(
        "Blocks whose samples end in several queries of unequal frequency are trained by gradient flow, once on one "
        "mixed loss and once with every query's logits averaged over its own samples, as eq. 2 is written. Theorem 1 "
        "is evaluated for each query and for the sum; a path integral follows what each query adds to v′."
    ),
)

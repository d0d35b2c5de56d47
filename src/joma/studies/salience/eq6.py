"""Equation 6, Figure 4 and the remark on rank: entropy and stable rank drop, then recover."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from joma.claims.contract import Claim, Drawing, Finding, Progress, Study, each_claim
from joma.claims.evidence import above, at_least, at_most, below
from joma.claims.verdicts import by_effect, by_residual, by_tests, not_run
from joma.measure import stable_rank
from joma.measure.intervals import compare
from joma.runs import Run
from joma.studies.salience._eq6_figures import draw_figure_4, draw_rank
from joma.studies.salience._figure_4 import (
    EVERY,
    draw_targets,
    entropy,
    figure_4,
    in_order,
    joint_flow,
    linear_entropy,
    long_run,
    lowest_entropy,
    random_rows,
)
from joma.theory import salience

EXACT = 1e-9  # an identity along a flow at rtol 1e-12
CLOCK = 1e-4  # Euler steps of Figure 4, extrapolated to step 0, against the closed form
REBOUND = 0.05  # nats: what counts as one
LEARNED = 0.9  # of its target: when a component counts as learned
DROP = 0.2  # of stable rank, and nats of entropy below the control: what counts as a drop
MAJORITY = 0.5  # by how much a share of draws or pairs must exceed its control
_TARGETS, _STARTS = (0.5, 1.0, 2.0), (-2.0, 0.0, 3.0)  # of the long run


@dataclass(frozen=True)
class Config:
    """Figure 4 as it was drawn, over many draws of its targets."""

    components: int = 10
    draws: int = 50
    """Seed 0 is the figure's own."""
    checked: int = 12
    """Draws whose smallest entropy is also computed in closed form."""
    steps: int = 5000
    rate: float = 0.02
    rows: int = 24
    nodes: int = 8
    seed: int = 0
    """Of the target matrix of the rank study."""

    def __post_init__(self) -> None:
        if min(self.components, self.rows, self.nodes) < 2 or min(self.draws, self.checked, self.steps) < 1:
            raise ValueError("components, rows and nodes must be 2 or more; draws, checked and steps 1 or more")
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate must lie in (0, 1], where Euler steps cannot overshoot, got {self.rate:g}")


CRITICAL = Claim("critical-point", "JoMA eq. 6", "The factor exp(v²/2) does not change the critical point v = μ.")
FACTOR = Claim(
    "speed-factor",
    "JoMA Sec. 4",
    "Attention multiplies the speed of each component by exp(v²).",
    "The factor is exp(v²/2), in agreement with eq. 6 and Theorem 1.",
    uses=("thm1/exp-invariant",),
)
ATTENTION = Claim(
    "entropy-exponent",
    "JoMA Fig. 4",
    "The entropy in the figure is that of the attention softmax(v²).",
    "The attention is softmax(v²/2). The figure was drawn with softmax(v²/3).",
    uses=("thm1/exp-invariant",),
)
ORDER = Claim(
    "salient-learned-first",
    "JoMA Fig. 4",
    "Components with large μ are learned first, the others later.",
    matters=MAJORITY,
    unit="%",
    ceiling=1.0,
    uses=("thm4/salient-first",),
)
FALL = Claim(
    "entropy-drops",
    "JoMA Fig. 4",
    "The entropy of attention drops while the salient components learn.",
    matters=DROP,
    unit="nats",
    uses=("eq6/salient-learned-first",),
)
RISE = Claim(
    "entropy-rebounds",
    "JoMA Fig. 4",
    "The entropy rises again when the other components catch up.",
    matters=REBOUND,
    unit="nats",
    uses=("eq6/entropy-drops",),
)
SAME_PATH = Claim(
    "figure-is-eq-6",
    "JoMA Fig. 4",
    "The figure shows eq. 6.",
    "It shows eq. 6 for μ√(2/3) with another clock. The softmax instead of exp changes the times, not the path.",
    uses=("eq6/speed-factor",),
)
RANK = Claim(
    "rank-rebounds",
    "JoMA Sec. 4",
    "The rank of the lower layer of the MLP first drops and later recovers.",
    "From a zero start its rank never changes. Its stable rank drops and recovers.",
    uses=("eq6/speed-factor",),
)
NONLINEAR = Claim(
    "only-nonlinear-rebounds",
    "JoMA Sec. 5",
    "With a nonlinear MLP the entropy rises again. With a linear MLP it does not.",
    uses=("eq6/entropy-exponent", "thm2/one-hot"),
)


def run(config: Config, run: Run, progress: Progress) -> None:
    """Figure 4 with and without attention, the flow of v and z together, and the matrix version."""
    mu = draw_targets(config.draws, config.components)
    run.keep("mu", lambda: mu)
    for i, (name, attention) in enumerate((("attention", True), ("no attention", False))):
        progress(0.3 * i, f"Figure 4, {name}")
        if f"{name}/entropy" not in run:
            run.record(0, _summary(name, mu, config, attention=attention))
    equal = mu.mean(-1, keepdim=True).expand_as(mu)
    run.keep("equal targets/entropy", lambda: figure_4(equal[:1], config.steps, config.rate).entropy[:, 0])
    progress(0.6, "half the step, and the closed form")
    some = mu[: config.checked]
    run.keep("half step/lowest", lambda: figure_4(some, _early(config), config.rate / 2).entropy.min(0))
    run.keep("closed form/lowest", lambda: lowest_entropy(some))
    progress(0.8, "eq. 6 and its logits")
    _record_exponents(run, mu[0])
    progress(0.9, "rank")
    _record_rank(run, config)


def _summary(name: str, mu: torch.Tensor, config: Config, *, attention: bool) -> dict[str, Any]:
    path = figure_4(mu, config.steps, config.rate, attention=attention, share=LEARNED)
    return {
        f"{name}/entropy": path.entropy[:, 0],
        f"{name}/v": path.v[::EVERY],
        f"{name}/start": path.entropy[0],
        f"{name}/lowest": path.entropy.min(0),
        f"{name}/at": path.entropy.argmin(0),
        f"{name}/end": path.entropy[-1],
        f"{name}/in order": in_order(path.learned),
    }


def _early(config: Config) -> int:
    """Steps of half the size that surely contain the minimum of entropy."""
    return min(2 * config.steps, 4000)


def _record_exponents(run: Run, mu: torch.Tensor) -> None:
    """v and z of the figure's targets as one flow, the long run of eq. 6, and its entropies."""
    t = torch.linspace(0, 0.6, 61, dtype=torch.float64)  # past the minimum of entropy; later the flow is only stiff
    run.keep("flow/t", lambda: t)
    run.keep("flow", lambda: joint_flow(mu, t))
    run.keep("long run", lambda: torch.stack([long_run(_TARGETS, _STARTS, attention=a) for a in (True, False)]))
    long = torch.logspace(-1, 1.7, 500, dtype=torch.float64)
    run.keep("eq. 6/t", lambda: long)
    run.keep(
        "eq. 6/entropy", lambda: torch.stack([salience.entropy_curve(mu, long, scale=s) for s in (1.0, 0.5, 1 / 3)])
    )
    run.keep("linear MLP/entropy", lambda: linear_entropy(mu, 400))


def _record_rank(run: Run, config: Config) -> None:
    mu = random_rows(config.rows, config.nodes, config.seed)
    t = torch.cat([torch.zeros(1), torch.logspace(-2, 1.5, 120)]).double()
    run.keep("rank/t", lambda: t)
    run.keep("rank/stable", lambda: salience.stable_rank_curve(mu, t))
    run.keep("rank/exact", lambda: torch.linalg.matrix_rank(salience.matrix_trajectory(mu, t[1:])))
    plain = -torch.expm1(-t[1:, None, None]) * mu  # V' = Mu − V
    run.keep("rank/stable without attention", lambda: stable_rank(plain))


def _critical(run: Run) -> Finding:
    ends, targets = run.value("long run"), np.array(_TARGETS)
    return by_residual(
        CRITICAL,
        printed=float(np.abs(ends - targets).max()),
        tolerance=EXACT,
        what="largest difference",
        expected="In the long run the flow reaches v = μ from both sides, with and without the factor.",
        control={"μ of another component": float(np.abs(ends - np.roll(targets, 1)).min())},
    )


def _factor(run: Run) -> Finding:
    v, z = run.value("flow").swapaxes(0, 1)
    return by_residual(
        FACTOR,
        printed=float(np.abs(v**2 - z).max()),
        corrected=float(np.abs(v**2 / 2 - z).max()),
        tolerance=EXACT,
        what="largest difference",
        expected="The logarithm of the factor equals the logits along the flow.",
        control={"no factor": float(np.abs(z).max())},
    )


def _attention(run: Run) -> Finding:
    v, z = run.value("flow").swapaxes(0, 1)
    true = _entropy(z)
    return by_residual(
        ATTENTION,
        printed=float(np.abs(_entropy(v**2) - true).max()),
        corrected=float(np.abs(_entropy(v**2 / 2) - true).max()),
        tolerance=EXACT,
        what="largest difference",
        expected="The entropy equals that of the logits along the flow.",
        control={"uniform attention": float(np.abs(_entropy(0 * v) - true).max())},
    )


def _pair(run: Run, key: str) -> tuple[Any, Any]:
    """A number of every draw, with attention and without."""
    return run.value(f"attention/{key}"), run.value(f"no attention/{key}")


def _learned(run: Run) -> float:
    """The share of components that the figure's own draw has learned by its last recorded step, with attention or
    without, whichever is less.
    """
    ends = np.stack([weights[-1] for weights in _pair(run, "v")])
    return float((ends >= LEARNED * run.value("mu")[0]).mean(-1).min())


def _too_short(run: Run, claim: Claim, expected: str, share: float) -> Finding | None:
    """What is found if no more than `share` of the components is learned: nothing."""
    if _learned(run) > share:
        return None
    return not_run(claim, expected, "the run ended before its components were learned", "joma run eq6 --steps 5000")


def _order(run: Run) -> Finding:
    expected = "Of two components the more salient one reaches 90 % of its target first."
    if short := _too_short(run, ORDER, expected, 0.0):
        return short
    what = "share of pairs in which the more salient component is learned first"
    return by_effect(ORDER, compare(*_pair(run, "in order")), what=what, over="draws", expected=expected)


def _fall(run: Run) -> Finding:
    expected = "The entropy drops deeper than without attention, and it does not drop with equal targets."
    if short := _too_short(run, FALL, expected, 0.0):
        return short
    start, lowest, equal = _pair(run, "start"), _pair(run, "lowest"), run.value("equal targets/entropy")
    at = {"lowest at step": float(run.value("attention/at")[0])}
    return by_effect(
        FALL,
        compare(start[0] - lowest[0], start[1] - lowest[1]),
        what="drop of entropy from the start to its minimum",
        expected=expected,
        over="draws",
        controls=[at_most("equal targets: change of entropy", np.ptp(equal), EXACT, "nats")],
        details={"seed 0": {"start": float(start[0][0]), "lowest": float(lowest[0][0]), **at}},
    )


def _rise(run: Run) -> Finding:
    expected = (
        f"After its minimum the entropy rises by over {REBOUND:g} nats in most draws. It does not without attention."
    )
    if short := _too_short(run, RISE, expected, MAJORITY):
        return short
    end, lowest = _pair(run, "end"), _pair(run, "lowest")
    rise, plain = end[0] - lowest[0], end[1] - lowest[1]
    more = _share_above(rise, REBOUND) - _share_above(plain, REBOUND)
    return by_effect(
        RISE,
        compare(rise, plain),
        what="rise of entropy from its minimum to the end",
        expected=expected,
        over="draws",
        size=[
            above(
                f"share of draws that rise by {REBOUND:g} nats, minus the same share without attention",
                more,
                MAJORITY,
                "%",
            )
        ],
        details={"seed 0": {"lowest": float(lowest[0][0]), "end": float(end[0][0])}},
    )


def _share_above(values: Any, bound: float) -> float:
    return float((values > bound).mean()) if np.isfinite(values).all() else float("nan")


def _same_path(run: Run) -> Finding:
    whole, half, closed = (run.value(f"{name}/lowest") for name in ("attention", "half step", "closed form"))
    limit = 2 * half - whole[: len(half)]  # the error of an Euler step is of first order
    return by_residual(
        SAME_PATH,
        printed=float(abs(run.value("eq. 6/entropy")[1].min() - limit[0])),
        corrected=float(np.abs(closed - limit).max()),
        tolerance=CLOCK,
        what="largest difference",
        expected="The formula gives the smallest entropy of the figure at step size 0.",
        control={"without attention": float(np.abs(closed - run.value("no attention/lowest")[: len(half)]).min())},
        details={"seed 0": {"smallest entropy at step size 0": float(limit[0])}},
    )


def _rank(run: Run) -> Finding:
    """Rank and stable rank of the closed form with many nodes; without attention the stable rank must not move."""
    stable, exact, plain = (run.value(f"rank/{n}") for n in ("stable", "exact", "stable without attention"))
    return by_tests(
        RANK,
        expected=f"As printed: the rank drops and recovers. As corrected: the stable rank does, by {DROP:g}.",
        printed=[
            at_least("drop of the rank", exact[0] - exact.min(), 1.0),
            at_least("recovery of the rank", exact[-1] - exact.min(), 1.0),
        ],
        corrected=[
            above("drop of the stable rank", stable[0] - stable.min(), DROP),
            above("recovery of the stable rank", stable[-1] - stable.min(), DROP),
            at_most("change of the rank", exact.max() - exact.min(), 0.0),
        ],
        controls=[below("without attention: change of the stable rank", np.ptp(plain), DROP)],
        details={"stable rank": {"start": float(stable[0]), "lowest": float(stable.min()), "end": float(stable[-1])}},
    )


def _nonlinear(run: Run) -> Finding:
    rises = [curve[-1] - curve.min() for curve in (run.value("eq. 6/entropy")[1], run.value("linear MLP/entropy"))]
    return by_tests(
        NONLINEAR,
        expected="The entropy rises after its minimum along eq. 6, and does not rise along Theorem 2.",
        printed=[above("rise of entropy along eq. 6", rises[0], REBOUND, "nats")],
        controls=[at_most("linear MLP: rise of entropy", rises[1], REBOUND, "nats")],
    )


def draw(run: Run) -> list[Drawing]:
    """Figure 4 and its control; entropies by exponent and stable rank."""
    return [draw_figure_4(run), draw_rank(run)]


def _entropy(logits: Any) -> Any:
    return entropy(torch.from_numpy(np.array(logits))).numpy()


STUDY = Study(
    name="eq6",
    title="Equation 6 and Figure 4: entropy and rank drop and recover",
    version=1,
    claims=(CRITICAL, FACTOR, ATTENTION, ORDER, FALL, RISE, SAME_PATH, RANK, NONLINEAR),
    quick=Config(),
    paper=Config(draws=1000, checked=200, rows=96, nodes=32),
    run=run,
    judge=each_claim(_critical, _factor, _attention, _order, _fall, _rise, _same_path, _rank, _nonlinear),
    draw=draw,
    about=(
        "Figure 4 is repeated by its recipe for many draws of the targets: ten targets 1 + 3u, Euler steps of 0.02, "
        "speeds softmax(v²/3). The control gives all components the same speed and changes nothing else. The exponents "
        "are tested on a flow that follows weights and logits together. The ranks are tested on the closed form with "
        "many nodes."
    ),
)

"""Equation 6, Figure 4 and the remark on rank: entropy and stable rank drop, then recover."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from joma.measure import stable_rank
from joma.runs import Run
from joma.studies._rebound import (
    TEMPERATURE,
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
from joma.studies.contract import Claim, Drawing, Finding, Progress, Study
from joma.studies.drawing import BLUE, CONTROL, CORRECTED, ORANGE, PRINTED, depth_colours, panels
from joma.studies.verdicts import by_effect, by_residual, by_test, show
from joma.theory import salience

EXACT = 1e-9  # an identity along a flow at rtol 1e-12
CLOCK = 1e-4  # Euler steps of Figure 4, extrapolated to step 0, against the closed form
REBOUND = 0.05  # nats: what counts as one
LEARNED = 0.9  # of its target: when a component counts as learned
DROP = 0.2  # of stable rank, and nats of entropy below the control: what counts as a drop
MAJORITY = 0.5  # by how much a share of draws or pairs must exceed its control
_TARGETS, _STARTS = (0.5, 1.0, 2.0), (-2.0, 0.0, 3.0)  # of the long run
EVERY = 20  # steps between two recorded weights of the figure


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


CRITICAL = Claim("critical-point", "JoMA eq. 6", "The factor exp(v²/2) leaves the critical point v = μ where it was.")
FACTOR = Claim(
    "speed-factor",
    "JoMA Sec. 4",
    "Attention multiplies the speed of each component by exp(v²).",
    "By exp(v²/2), as eq. 6 has it and Theorem 1 demands.",
)
ATTENTION = Claim(
    "entropy-exponent",
    "JoMA Fig. 4",
    "The attention whose entropy is meant is softmax(v²).",
    "It is softmax(v²/2); the figure was drawn with softmax(v²/3).",
)
ORDER = Claim(
    "salient-learned-first",
    "JoMA Fig. 4",
    "Components with large μ are learned first, the others later.",
    empirical=True,
)
FALL = Claim(
    "entropy-drops", "JoMA Fig. 4", "The entropy of attention drops while the salient components learn.", empirical=True
)
RISE = Claim(
    "entropy-rebounds", "JoMA Fig. 4", "The entropy rises again when the other components catch up.", empirical=True
)
SAME_PATH = Claim(
    "figure-is-eq-6",
    "JoMA Fig. 4",
    "The figure shows eq. 6.",
    "It shows eq. 6 for μ√(2/3) on another clock: the softmax in place of exp changes times, not the path.",
)
RANK = Claim(
    "rank-rebounds",
    "JoMA Sec. 4",
    "The rank of the MLP's lower layer first drops and later recovers.",
    "From zero its rank never changes; its stable rank drops and recovers.",
    empirical=True,
)
NONLINEAR = Claim(
    "only-nonlinear-rebounds",
    "JoMA Sec. 5",
    "With a nonlinear MLP the entropy bounces back; with a linear one it does not.",
    empirical=True,
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


def judge(run: Run) -> list[Finding]:
    """Drops and rebounds over draws against the same without attention; exponents against the flow."""
    seen, plain = ({key: run.value(f"{n}/{key}") for key in _KEYS} for n in ("attention", "no attention"))
    rise, plain_rise = seen["end"] - seen["lowest"], plain["end"] - plain["lowest"]
    share, plain_share = float((rise > REBOUND).mean()), float((plain_rise > REBOUND).mean())
    drop, plain_drop = (float((x["start"] - x["lowest"]).mean()) for x in (seen, plain))
    literal = run.value("eq. 6/entropy")[1]
    collapse = run.value("linear MLP/entropy")
    return [
        by_residual(
            CRITICAL,
            printed=float(np.abs(run.value("long run") - np.array(_TARGETS)).max()),
            tolerance=EXACT,
            expected="v = μ in the long run of the flow, with the factor and without, from both sides",
        ),
        *_judge_exponents(run),
        by_effect(
            ORDER,
            measured=float(seen["in order"].mean()),
            control=float(plain["in order"].mean()),
            margin=MAJORITY,
            expected="the more salient of two components reaches 90 % of its target first",
            shown=f"{seen['in order'].mean():.0%} of pairs",
            control_shown=f"without attention {plain['in order'].mean():.0%}",
        ),
        by_effect(
            FALL,
            measured=drop,
            control=plain_drop,
            margin=DROP,
            expected="a deeper drop than without attention",
            shown=f"{drop:.2f} nats over {len(rise)} draws; seed 0: {seen['start'][0]:.4f} → {seen['lowest'][0]:.4f} "
            f"at step {int(seen['at'][0])}",
            control_shown=f"without attention {plain_drop:.2f}; equal targets "
            f"{show(float(np.ptp(run.value('equal targets/entropy'))))}",
        ),
        by_effect(
            RISE,
            measured=share,
            control=plain_share,
            margin=MAJORITY,
            expected=f"a rise by more than {REBOUND:g} nats after the minimum",
            shown=f"in {share:.0%} of {len(rise)} draws; seed 0: {seen['lowest'][0]:.4f} → {seen['end'][0]:.4f}",
            control_shown=f"without attention {plain_share:.0%}",
        ),
        _judge_path(run, float(literal.min())),
        _judge_rank(run),
        by_effect(
            NONLINEAR,
            measured=float(literal[-1] - literal.min()),
            control=float(collapse[-1] - collapse.min()),
            margin=REBOUND,
            expected="a rise after the minimum, along eq. 6 and along Theorem 2",
            shown=f"{literal[-1] - literal.min():.2f} nats along eq. 6",
            control_shown=f"linear MLP {show(float(collapse[-1] - collapse.min()))}",
        ),
    ]


_KEYS = ("start", "lowest", "at", "end", "in order")


def _judge_exponents(run: Run) -> list[Finding]:
    v, z = run.value("flow").swapaxes(0, 1)
    entropies = {scale: _entropy(scale * v**2) for scale in (1.0, 0.5)}
    true = _entropy(z)
    return [
        by_residual(
            FACTOR,
            printed=float(np.abs(v**2 - z).max()),
            corrected=float(np.abs(v**2 / 2 - z).max()),
            tolerance=EXACT,
            expected="the logarithm of the factor equal to the logits along the flow",
        ),
        by_residual(
            ATTENTION,
            printed=float(np.abs(entropies[1.0] - true).max()),
            corrected=float(np.abs(entropies[0.5] - true).max()),
            tolerance=EXACT,
            expected="the entropy of the logits along the flow",
        ),
    ]


def _judge_path(run: Run, literal: float) -> Finding:
    whole, half, closed = (run.value(f"{name}/lowest") for name in ("attention", "half step", "closed form"))
    limit = 2 * half - whole[: len(half)]  # the error of an Euler step is of first order
    return by_residual(
        SAME_PATH,
        printed=float(abs(literal - limit[0])),
        corrected=float(np.abs(closed - limit).max()),
        tolerance=CLOCK,
        expected=f"the smallest entropy of the figure: {limit[0]:.4f} at step size 0 for seed 0",
    )


def _judge_rank(run: Run) -> Finding:
    stable, exact, plain = (run.value(f"rank/{n}") for n in ("stable", "exact", "stable without attention"))
    start, low, end = float(stable[0]), float(stable.min()), float(stable[-1])
    drops = start - low > DROP and end - low > DROP
    return by_test(
        RANK,
        measured=f"stable rank {start:.3f} → {low:.3f} → {end:.3f}; rank {int(exact.min())} to {int(exact.max())}",
        expected=f"a drop and a recovery by more than {DROP:g}",
        as_printed=bool(exact.min() < exact[0] and exact[-1] > exact.min()),
        as_corrected=bool(drops and exact.min() == exact.max() and np.ptp(plain) < DROP),
        tolerance=DROP,
        control=f"without attention: stable rank within {show(float(np.ptp(plain)))} of {plain[0]:.3f}",
    )


def draw(run: Run) -> list[Drawing]:
    """Figure 4 and its control; entropies by exponent and stable rank."""
    return [_draw_figure_4(run), _draw_rank(run)]


def _draw_figure_4(run: Run) -> Drawing:
    mu, v, rate = run.value("mu")[0], run.value("attention/v"), float(run.config["rate"])
    figure, (left, right) = panels(2, width=3.8, height=3.0)
    time = np.arange(len(v)) * EVERY * rate
    for i, colour in enumerate(depth_colours(len(mu))):
        left.plot(time, v[:, i], color=colour)
        left.axhline(mu[i], color=colour, ls="--", lw=0.7)
    left.set(xlabel="time (step × rate)", ylabel="v", ylim=(0, None), title="Salient components first (dashed: μ)")
    curves = {name: run.value(f"{name}/entropy") for name in ("attention", "no attention", "equal targets")}
    time = np.arange(len(curves["attention"])) * rate
    right.plot(time, curves["attention"], color=BLUE, label="Figure 4")
    right.plot(time, curves["no attention"], color=CONTROL, label="without attention")
    right.plot(time, curves["equal targets"], color=CONTROL, ls=":", label="equal targets")
    low = int(curves["attention"].argmin())
    right.plot(time[low], curves["attention"][low], "o", ms=5, color=BLUE)
    right.annotate(f"{curves['attention'][low]:.4f}", (time[low], curves["attention"][low]), (6, -4), **_OFFSET)
    right.set(
        xlabel="time (step × rate)", ylabel="entropy of softmax(v²/3)", ylim=(0.7, None), title="Drop and rebound"
    )
    right.legend(loc="lower right")
    caption = (
        "Figure 4 by its recipe, targets of seed 0. Left: the components, coloured by target; large ones are learned "
        "first. Right: the entropy of attention drops below its final value and rises again; with the same speed for "
        "all components it only falls, and with equal targets it does not move."
    )
    return Drawing("entropy-rebound", caption, figure)


def _draw_rank(run: Run) -> Drawing:
    figure, (left, right) = panels(2, width=3.8, height=2.8)
    t, curves = run.value("eq. 6/t"), run.value("eq. 6/entropy")
    for curve, colour, label in zip(
        curves,
        (PRINTED, CORRECTED, ORANGE),
        ("softmax(v²), as printed", "softmax(v²/2), Theorem 1", f"softmax(v²/{TEMPERATURE:g}), as drawn"),
        strict=True,
    ):
        left.plot(t, curve, color=colour, label=label)
    left.set(xscale="log", xlabel="time of eq. 6", ylabel="entropy", ylim=(0, 3.2))
    left.set_title("Which attention? (μ of seed 0)")
    left.legend(loc="upper right")
    t = run.value("rank/t")[1:]
    right.plot(t, run.value("rank/stable")[1:], color=BLUE, label="with attention")
    right.plot(t, run.value("rank/stable without attention"), color=CONTROL, label="without")
    right.set(xscale="log", xlabel="time", ylabel="stable rank of V", title="Rank of the lower layer")
    right.legend(loc="lower right")
    caption = (
        "Left: the entropy along eq. 6 from zero, for the three exponents that text, theory and figure use. Right: the "
        "stable rank of the lower layer with many nodes drops and recovers; its rank is the same at all times."
    )
    return Drawing("rank-rebound", caption, figure)


_OFFSET: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8.5, "va": "top"}


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
    judge=judge,
    draw=draw,
    about=(
        "Figure 4 is repeated by its recipe (ten targets 1 + 3u, Euler steps of 0.02, speeds softmax(v²/3)) for many "
        "draws of the targets. The control gives all components the same speed and keeps everything else. Exponents "
        "are judged on a flow that carries weights and logits side by side, ranks on the closed form with many nodes."
    ),
)

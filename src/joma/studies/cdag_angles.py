"""CDAG Theorem 1: three signs do not decide which way the backpropagated gradient points; three angles do."""

from __future__ import annotations

from dataclasses import dataclass
from math import pi, radians, sqrt
from typing import Any

import numpy as np
import torch

from joma.runs import Run
from joma.studies import _cdag_draws
from joma.studies.contract import Claim, Drawing, Finding, Progress, Study
from joma.studies.drawing import CONTROL, CORRECTED, PRINTED, depth_colours, panels
from joma.studies.verdicts import by_residual, by_test, show
from joma.theory import cdag

EXACT = 1e-12
ERRORS = 4.0  # shares and means of draws, in standard errors


@dataclass(frozen=True)
class Config:
    """Random signals over datasets of several sizes."""

    dimensions: tuple[int, ...] = (2, 3, 10, 100)
    """Numbers of samples: a signal is a vector over them."""
    draws: int = 30_000
    """Gaussian signals, in each dimension and batch."""
    angled: int = 6_000
    """Signals at given angles, and with a given rest."""
    batches: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.dimensions, default=0) < 2:
            raise ValueError(f"dimensions must be 2 or more each, for angles to exist, got {self.dimensions}")


SIGNS = Claim(
    "three-signs",
    "CDAG Thm 1",
    "corr(z_α, δ) > 0, corr(z_β, f) > 0 and corr(z_α, z_β) ≠ 0 make corr(z_β, g_j→k) positive.",
    "The angles a = (z_α, δ), b = (z_β, f), c = (z_α, ±z_β) with a + b + c < 90° do.",
)
PICTURE = Claim(
    "picture",
    "CDAG Fig. 1",
    "Given the three signs, a drawing in the plane shows that corr(f, δ) and corr(z_β, δ) have the same sign.",
    empirical=True,
)
CONSTANT = Claim(
    "positive-constant",
    "CDAG Thm 1",
    "Whatever positive constants C₁, C₂, C₃ lie below the premises, some positive C₄ lies below the conclusion.",
    "For normalised correlations above C = cos θ only if θ < 30°, C > 0.866; then C₄ = (cos θ + cos 5θ)/2.",
)
SAME = Claim("same-latent", "CDAG Sec. 1.2", "The theorem also applies to β = α.", "With β = α it needs a + b < 90°.")
REST = Claim(
    "rest-of-the-activation",
    "CDAG Thm 1",
    "Of the child's activation nothing is asked but corr(z_β, f) > 0.",
    "If E[f | z_β, δ] = γ z_β with γ > 0, the conclusion is γ corr(z_β, δ)² ≥ 0 in the mean, at any angles.",
)
START = Claim(
    "start-of-the-weight",
    "CDAG Thm 1",
    "The weight is corr(f, δ), by the gradient rule.",
    "It is after a step from w(0) = 0; any other w(0) must have the sign of corr(f, δ).",
)
BACKPROP = Claim(
    "backpropagated",
    "CDAG Sec. 1.2",
    "What a child receives from all its parents j correlates with z_β by Σ_j corr(f, δ_j) corr(z_β, δ_j).",
)
GATE = Claim(
    "recursion",
    "CDAG Sec. 1.2",
    "From corr(z_β, f) > 0 and corr(z_β, g) > 0 follows corr(z_β, σ′g) > 0, so that the argument goes on below.",
    empirical=True,
)


def run(config: Config, run: Run, progress: Progress) -> None:
    """Draw signals with and without the premises, one step of the run a batch, and count positive conclusions."""
    example, gate = cdag.counter_example(), cdag.gate_counter_example()
    run.keep("example/premises", lambda: cdag.premises(*example))
    run.keep("example/conclusion", lambda: cdag.conclusion(example.zb, example.f, example.delta))
    run.keep("example/gated", lambda: cdag.correlation(gate.zb, (gate.f > 0) * gate.g))
    run.keep("plane/slack", lambda: _cdag_draws.planar_slack(config.angled, _numbers(config.seed, 0)))
    run.keep("backprop/linear", lambda: _cdag_draws.backpropagated(lambda x: x, _numbers(config.seed, 1)))
    run.keep("backprop/tanh", lambda: _cdag_draws.backpropagated(torch.tanh, _numbers(config.seed, 1)))
    kinds = {
        "sign": (_cdag_draws.by_sign, config.draws),
        "angle": (_cdag_draws.by_angle, config.angled),
        "rest": (_cdag_draws.by_rest, config.angled),
    }
    for batch in range(config.batches):
        for dim in config.dimensions:
            progress(batch / config.batches, f"batch {batch + 1}, {dim} samples")
            for i, (kind, (count, draws)) in enumerate(kinds.items()):
                done = run.last_step(f"{dim}/{kind}/draws")
                if done is None or done < batch:
                    counted = count(draws, dim, _numbers(config.seed, 2 + i, dim, batch))
                    names = {f"{dim}/{kind}/{name}": value for name, value in counted.items()}
                    run.record(batch, {f"{dim}/{kind}/draws": draws, **names})


def judge(run: Run) -> list[Finding]:
    """Shares of draws, violations and slacks: a theorem has to be true of every draw."""
    error = sqrt(0.5 / (run.config["draws"] * run.config["batches"]))  # of the difference of two shares, at most
    return [
        _judge_signs(run),
        _judge_picture(run, error),
        _judge_constant(run),
        _judge_same_latent(run),
        _judge_rest(run),
        _judge_start(run),
        by_residual(
            BACKPROP,
            printed=float(run.value("backprop/linear")),
            tolerance=EXACT,
            expected="automatic differentiation of linear parents after a unit step from w = 0",
            control=f"tanh parents: off by {run.value('backprop/tanh'):.0%}, for σ′ moves during the step",
        ),
        _judge_gate(run, error),
    ]


def _judge_signs(run: Run) -> Finding:
    premises, value = run.value("example/premises"), float(run.value("example/conclusion"))
    inside, violated = (int(_total(run, f"angle/{name}").sum()) for name in ("inside", "violated"))
    beyond = _total(run, "angle/draws").sum() - inside
    negative = _total(run, "angle/draws").sum() - _total(run, "angle/binned positive").sum() - violated
    return by_test(
        SIGNS,
        measured=f"premises {', '.join(f'{p:.2f}' for p in premises)} with conclusion {value:.2f}; "
        f"within the angle condition {violated} of {inside} draws negative",
        expected="no negative conclusion",
        as_printed=bool((premises > 0).all() and value > 0 and _share(run, "sign/signs").min() == 1.0),
        as_corrected=violated == 0 and inside > 0,
        control=f"beyond 90° {negative / beyond:.0%} of draws are negative",
        # shares of draws that meet the premises and not the conclusion
        residuals={"printed": float(1 - _share(run, "sign/signs").min()), "corrected": violated / max(inside, 1)},
    )


def _judge_picture(run: Run, error: float) -> Finding:
    signs, random = _share(run, "sign/signs"), _share(run, "sign/control")
    return by_test(
        PICTURE,
        measured=f"same sign in {_listed(signs)} of draws {_dimensions(run)}",
        expected="the same sign in every draw",
        as_printed=bool(signs.min() == 1.0),
        in_direction=bool((signs - random > ERRORS * error).all()),
        tolerance=ERRORS * error,
        control=f"without the premises: {_listed(random)}",
    )


def _judge_constant(run: Run) -> Finding:
    least = np.min([run.array(f"{dim}/angle/least").min(0) for dim in run.config["dimensions"]], axis=0)
    slack = np.min([run.array(f"{dim}/angle/slack") for dim in run.config["dimensions"]])
    theta = np.arccos(_cdag_draws.THRESHOLDS)
    bound = (np.cos(theta) + np.cos(np.minimum(5 * theta, pi))) / 2
    reached = float(run.value("plane/slack"))
    positive = bool((least[theta < radians(30)] > 0).all())
    bounded = bool((least >= bound - EXACT).all() and slack >= -EXACT and reached <= EXACT)
    seen = ", ".join(f"{v:.3f} (C = {c:g})" for c, v in zip(_cdag_draws.THRESHOLDS, least, strict=True))
    return by_test(
        CONSTANT,
        measured=f"least normalised conclusion {seen}",
        expected=f"positive for all C as printed; as corrected at least {', '.join(f'{b:.3f}' for b in bound)}",
        as_printed=bool((least > 0).all()),
        as_corrected=positive and bounded,
        tolerance=EXACT,
        control=f"signals fanned out in a plane reach the bound to {show(reached)}",
        # how far below zero, or below the bound
        residuals={
            "printed": max(float(-least.min()), 0.0),
            "corrected": max(float((bound - least).max()), float(-slack), 0.0),
        },
    )


def _judge_same_latent(run: Run) -> Finding:
    share = _share(run, "sign/same latent")
    inside, violated = (int(_total(run, f"angle/same {name}").sum()) for name in ("inside", "violated"))
    return by_test(
        SAME,
        measured=f"positive in {_listed(share)} of draws {_dimensions(run)}; "
        f"with a + b < 90° {violated} of {inside} negative",
        expected="no negative conclusion",
        as_printed=bool(share.min() == 1.0),
        as_corrected=violated == 0 and inside > 0,
        control=f"without the premises: {_listed(_share(run, 'sign/control'))}",
        residuals={"printed": float(1 - share.min()), "corrected": violated / max(inside, 1)},
    )


def _judge_rest(run: Run) -> Finding:
    dimensions = run.config["dimensions"]
    leaning = _total(run, "rest/leaning positive") / _total(run, "rest/leaning")
    paired = float(np.max([run.array(f"{dim}/rest/paired off") for dim in dimensions]))
    gap = np.array([run.array(f"{dim}/rest/independent gap").mean() for dim in dimensions])
    variance = np.array([run.array(f"{dim}/rest/independent variance").mean() for dim in dimensions])
    errors = float((np.abs(gap) / np.sqrt(variance / _total(run, "rest/draws"))).max())
    return by_test(
        REST,
        measured=f"with a rest of f that leans against δ: positive in {_listed(leaning)} of draws; with an unrelated "
        f"rest the mean is {errors:.1f} standard errors off γ corr², where ± pairs cancel it {show(paired)}",
        expected="positive in every draw as printed; as corrected within 4 standard errors, and exact in pairs",
        as_printed=bool(leaning.min() == 1.0),
        as_corrected=paired <= EXACT and errors <= ERRORS,
        tolerance=EXACT,
    )


def _judge_start(run: Run) -> Finding:
    inside = _total(run, "angle/inside")
    share = {kind: _total(run, f"angle/start {kind}") / inside for kind in ("random", "zero", "matched")}
    return by_test(
        START,
        measured=f"positive in {_listed(share['zero'])} of draws from w(0) = 0, {_listed(share['matched'])} from a "
        f"matching sign, {_listed(share['random'])} from a random w(0), all within the angle condition",
        expected="positive in every draw",
        as_printed=bool(share["random"].min() == 1.0),
        as_corrected=bool(share["zero"].min() == share["matched"].min() == 1.0),
        residuals={
            "printed": float(1 - share["random"].min()),
            "corrected": float(1 - min(share["zero"].min(), share["matched"].min())),
        },
    )


def _judge_gate(run: Run, error: float) -> Finding:
    gated, random = _share(run, "sign/gated"), _share(run, "sign/gated control")
    return by_test(
        GATE,
        measured=f"behind a ReLU positive in {_listed(gated)} of draws {_dimensions(run)}; "
        f"a two-sample example gives {show(float(run.value('example/gated')))}",
        expected="positive in every draw",
        as_printed=bool(gated.min() == 1.0),
        in_direction=bool((gated - random > ERRORS * error).all()),
        tolerance=ERRORS * error,
        control=f"without the premises: {_listed(random)}",
    )


def draw(run: Run) -> list[Drawing]:
    """How often the conclusion is positive, against the sum of the angles and against the dimension."""
    dimensions = run.config["dimensions"]
    figure, (left, right) = panels(2)
    middle = (np.arange(_cdag_draws.BINS) + 0.5) * _cdag_draws.BIN
    for i, (dim, colour) in enumerate(zip(dimensions, depth_colours(len(dimensions)), strict=True)):
        count, positive = _total(run, "angle/binned")[i], _total(run, "angle/binned positive")[i]
        seen = count >= 50
        left.plot(middle[seen], positive[seen] / count[seen], color=colour, label=f"{dim} samples")
    left.axvline(90, ls="--", lw=1, color=CORRECTED)
    left.annotate("90°", (66, 0.04), fontsize=8.5, color=CORRECTED)
    left.set(xlabel="a + b + c in degrees", ylabel="share with a positive conclusion", title="Angles decide")
    left.set(xticks=range(0, 271, 45), ylim=(0, 1.04))
    left.legend(loc="lower right")
    place = np.arange(len(dimensions))
    right.bar(place - 0.2, _share(run, "sign/signs"), 0.38, color=PRINTED, label="the three signs hold")
    right.bar(place + 0.2, _share(run, "sign/control"), 0.38, color=CONTROL, label="no premise")
    right.axhline(1, ls="--", lw=1, color=CORRECTED, label="a + b + c < 90°")
    right.set(xlabel="samples", ylabel="share with a positive conclusion", title="Signs do not")
    right.set(xticks=place, xticklabels=dimensions, ylim=(0, 1.55), yticks=(0, 0.25, 0.5, 0.75, 1))
    right.legend(loc="upper left")
    caption = (
        "Left: the share of draws with a positive conclusion against the sum of the three angles; below 90° it is 1. "
        "Right: the same share when only the three signs are given, and for signals drawn without any premise."
    )
    return [Drawing("cdag-angles", caption, figure)]


def _numbers(*key: int) -> torch.Generator:
    """Independent numbers for each key, so that a resumed run draws what it would have drawn."""
    return torch.Generator().manual_seed(int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1))


def _total(run: Run, name: str) -> Any:
    """Counts over all batches, one row a dimension."""
    return np.stack([run.array(f"{dim}/{name}").sum(0) for dim in run.config["dimensions"]])


def _share(run: Run, name: str) -> Any:
    return _total(run, name) / _total(run, f"{name.split('/')[0]}/draws")


def _listed(shares: Any) -> str:
    return "/".join(f"{100 * share:.3g}" for share in shares) + " %"


def _dimensions(run: Run) -> str:
    return f"with {'/'.join(map(str, run.config['dimensions']))} samples"


STUDY = Study(
    name="cdag-angles",
    title="CDAG Theorem 1: signs and angles of the backpropagated gradient",
    version=1,
    claims=(SIGNS, PICTURE, CONSTANT, SAME, REST, START, BACKPROP, GATE),
    quick=Config(),
    paper=Config(batches=50),
    run=run,
    judge=judge,
    draw=draw,
    about=(
        "Signals over 2 to 100 samples are drawn at random, once Gaussian with the signs of the theorem's premises "
        "enforced, once at angles spread evenly below 90°. Counted is how often the correlation between the latent and "
        "the backpropagated gradient is positive; a theorem has to be true of every draw, and the control drops the "
        "premises."
    ),
)

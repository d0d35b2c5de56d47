"""CDAG Theorem 1: three signs do not decide which way the backpropagated gradient points; three angles do."""

from dataclasses import dataclass
from math import pi, radians, sqrt
from typing import Annotated, Any

import numpy as np
import torch

from joma.claims.contract import Claim, Drawing, Finding, Least, Progress, Study, StudyConfig
from joma.claims.declare import Claims
from joma.claims.verdicts import Test, above, at_least, at_most, below, by_residual, by_tests
from joma.figures.reading import number
from joma.figures.style import CONTROL, CORRECTED, PRINTED, depth_colours, panels
from joma.runs import Run
from joma.studies.cdag import _draws
from joma.theory import cdag

EXACT = 1e-12
ERRORS = 4.0  # shares and means of draws, in standard errors


@dataclass(frozen=True)
class CdagAnglesConfig(StudyConfig):
    """Random signals over datasets of several sizes."""

    dimensions: Annotated[tuple[int, ...], Least(2, "for angles to exist")] = (2, 3, 10, 100)
    """Numbers of samples: a signal is a vector over them."""
    draws: int = 30_000
    """Gaussian signals, in each dimension and batch."""
    angled: int = 6_000
    """Signals at given angles, and with a given rest."""
    batches: int = 1
    seed: int = 0


THEOREM = "cdag-angles/three-signs"
CLAIMS = Claims()


def run(config: CdagAnglesConfig, run: Run, progress: Progress) -> None:
    """Draw signals with and without the premises, one step of the run per batch, and count positive conclusions."""
    example, gate = cdag.counter_example(), cdag.gate_counter_example()
    run.keep("example/premises", lambda: cdag.premises(*example))
    run.keep("example/conclusion", lambda: cdag.conclusion(example.zb, example.f, example.delta))
    run.keep("example/gated", lambda: cdag.correlation(gate.zb, (gate.f > 0) * gate.g))
    run.keep("plane/slack", lambda: _draws.planar_slack(config.angled, _numbers(config.seed, 0)))
    run.keep("backprop/linear", lambda: _draws.backpropagated(lambda x: x, _numbers(config.seed, 1)))
    run.keep("backprop/tanh", lambda: _draws.backpropagated(torch.tanh, _numbers(config.seed, 1)))
    kinds = {
        "sign": (_draws.by_sign, config.draws),
        "angle": (_draws.by_angle, config.angled),
        "rest": (_draws.by_rest, config.angled),
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


# A theorem has to be true of every draw: shares must be 1, violations 0.


@CLAIMS.declare("three-signs", "CDAG Thm 1")
def _signs(run: Run, claim: Claim) -> Finding:
    """If corr(z_α, δ) > 0, corr(z_β, f) > 0 and corr(z_α, z_β) ≠ 0, then corr(z_β, g_j→k) is positive.

    Corrected: It is positive if the angles a = (z_α, δ), b = (z_β, f) and c = (z_α, ±z_β) have a + b + c < 90°.
    Expected: The conclusion is positive in every draw.
    """
    inside, violated = (float(_total(run, f"angle/{name}").sum()) for name in ("inside", "violated"))
    beyond = _total(run, "angle/draws").sum() - inside
    negative = _total(run, "angle/draws").sum() - _total(run, "angle/binned positive").sum() - violated
    return by_tests(
        claim,
        printed=[
            at_least("smallest share of draws with a positive conclusion", _share(run, "sign/signs").min(), 1.0, "%"),
            above("conclusion of an example made by hand", float(run.value("example/conclusion")), 0.0),
        ],
        corrected=_all_positive("a + b + c < 90°", inside, violated),
        controls=[
            above("smallest premise of that example", float(run.value("example/premises").min()), 0.0),
            above("share of draws beyond 90° that are negative", negative / beyond, 0.0, "%"),
            _without_premises(run, "sign/control"),
        ],
    )


@CLAIMS.declare("picture", "CDAG Fig. 1", uses=(THEOREM,))
def _picture(run: Run, claim: Claim) -> Finding:
    """A drawing in the plane shows that corr(f, δ) and corr(z_β, δ) have the same sign if the three signs hold.

    Expected: Both signs are equal in every draw.
    """
    share = _share(run, "sign/signs")
    return by_tests(
        claim,
        printed=[at_least("smallest share of draws with equal signs", share.min(), 1.0, "%")],
        direction=[_more_often(run, "sign/signs", "sign/control")],
        controls=[_without_premises(run, "sign/control")],
        details=_by_dimension(run, share, _share(run, "sign/control")),
    )


@CLAIMS.declare("positive-constant", "CDAG Thm 1", uses=(THEOREM,))
def _constant(run: Run, claim: Claim) -> Finding:
    """For any positive lower bounds C₁, C₂, C₃ of the premises the conclusion has a positive lower bound C₄.

    Corrected: For normalised correlations above C = cos θ this holds only if θ < 30° (C > 0.866). Then C₄ = (cos θ +
    cos 5θ)/2.
    Expected: The smallest conclusion is positive. As printed: for every C. As corrected: for θ < 30°, above C₄.
    """
    least = np.min([run.array(f"{dim}/angle/least").min(0) for dim in run.config["dimensions"]], axis=0)
    slack = float(np.min([run.array(f"{dim}/angle/slack") for dim in run.config["dimensions"]]))
    theta = np.arccos(_draws.THRESHOLDS)
    bound = (np.cos(theta) + np.cos(np.minimum(5 * theta, pi))) / 2
    return by_tests(
        claim,
        printed=[above("smallest normalised conclusion", float(least.min()), 0.0)],
        corrected=[
            above("smallest normalised conclusion for θ < 30°", float(least[theta < radians(30)].min()), 0.0),
            at_least("smallest distance above C₄", float((least - bound).min()), -EXACT),
            at_least("smallest distance above the bound of each draw", slack, -EXACT),
            at_most("distance of signals in a plane from that bound", float(run.value("plane/slack")), EXACT),
        ],
        details={
            f"C = {c:g}": {"smallest normalised conclusion": float(v), "C₄": float(b)}
            for c, v, b in zip(_draws.THRESHOLDS, least, bound, strict=True)
        },
    )


@CLAIMS.declare("same-latent", "CDAG Sec. 1.2", uses=(THEOREM,))
def _same_latent(run: Run, claim: Claim) -> Finding:
    """The theorem also applies to β = α.

    Corrected: With β = α it needs a + b < 90°.
    Expected: The conclusion is positive in every draw.
    """
    share = _share(run, "sign/same latent")
    inside, violated = (float(_total(run, f"angle/same {name}").sum()) for name in ("inside", "violated"))
    return by_tests(
        claim,
        printed=[at_least("smallest share of draws with a positive conclusion", share.min(), 1.0, "%")],
        corrected=_all_positive("a + b < 90°", inside, violated),
        controls=[_without_premises(run, "sign/control")],
        details=_by_dimension(run, share, _share(run, "sign/control")),
    )


@CLAIMS.declare("rest-of-the-activation", "CDAG Thm 1")
def _rest(run: Run, claim: Claim) -> Finding:
    """The activation of the child only needs corr(z_β, f) > 0.

    Corrected: If E[f | z_β, δ] = γ z_β with γ > 0, the mean of the conclusion is γ corr(z_β, δ)² ≥ 0 at any angles.
    Expected: As printed: positive in every draw. As corrected: within 4 standard errors, and exact in pairs.
    """
    dimensions = run.config["dimensions"]
    leaning = _total(run, "rest/leaning positive") / _total(run, "rest/leaning")
    paired = float(np.max([run.array(f"{dim}/rest/paired off") for dim in dimensions]))
    gap = np.array([run.array(f"{dim}/rest/independent gap").mean() for dim in dimensions])
    variance = np.array([run.array(f"{dim}/rest/independent variance").mean() for dim in dimensions])
    errors = float((np.abs(gap) / np.sqrt(variance / _total(run, "rest/draws"))).max())
    return by_tests(
        claim,
        printed=[at_least("smallest share of positive draws if the rest points against δ", leaning.min(), 1.0, "%")],
        corrected=[
            at_most("distance of the mean from γ corr² in standard errors, with an unrelated rest", errors, ERRORS),
            at_most("distance from γ corr² if ± pairs cancel the rest", paired, EXACT),
        ],
    )


@CLAIMS.declare("start-of-the-weight", "CDAG Thm 1")
def _start(run: Run, claim: Claim) -> Finding:
    """By the gradient rule the weight is corr(f, δ).

    Corrected: This is true after one step from w(0) = 0. Any other w(0) must have the sign of corr(f, δ).
    Expected: The conclusion is positive in every draw that meets the angle condition.
    """
    inside = _total(run, "angle/inside")
    some = np.where(inside > 0, inside, np.nan)  # without a draw nothing is known
    share = {kind: (_total(run, f"angle/start {kind}") / some).min() for kind in ("random", "zero", "matched")}
    return by_tests(
        claim,
        printed=[at_least("smallest share of positive draws from a random w(0)", share["random"], 1.0, "%")],
        corrected=[
            at_least("smallest share of positive draws from w(0) = 0", share["zero"], 1.0, "%"),
            at_least("smallest share of positive draws from a w(0) of matching sign", share["matched"], 1.0, "%"),
        ],
    )


@CLAIMS.declare("backpropagated", "CDAG Sec. 1.2")
def _backprop(run: Run, claim: Claim) -> Finding:
    """The correlation of z_β with the gradient from all parents j of a child is Σ_j corr(f, δ_j) corr(z_β, δ_j).

    Expected: Automatic differentiation of linear parents after one unit step from w = 0 gives the same number.
    """
    return by_residual(
        claim,
        printed=float(run.value("backprop/linear")),
        tolerance=EXACT,
        what="largest difference",
        control={"tanh parents, whose slope changes during the step": float(run.value("backprop/tanh"))},
    )


@CLAIMS.declare("recursion", "CDAG Sec. 1.2")
def _gate(run: Run, claim: Claim) -> Finding:
    """If corr(z_β, f) > 0 and corr(z_β, g) > 0, then corr(z_β, σ′g) > 0. So the argument also holds one layer below.

    Expected: The correlation is positive in every draw.
    """
    share = _share(run, "sign/gated")
    return by_tests(
        claim,
        printed=[
            at_least("smallest share of positive draws behind a ReLU", share.min(), 1.0, "%"),
            above("an example of two samples", float(run.value("example/gated")), 0.0),
        ],
        direction=[_more_often(run, "sign/gated", "sign/gated control")],
        controls=[_without_premises(run, "sign/gated control")],
        details=_by_dimension(run, share, _share(run, "sign/gated control")),
    )


def _all_positive(condition: str, inside: float, violated: float) -> list[Test]:
    """No draw that meets the condition is negative, and there are such draws."""
    return [
        at_most(f"share of draws with {condition} that are negative", violated / max(inside, 1.0), 0.0, "%"),
        at_least(f"draws with {condition}", inside, 1.0),
    ]


def _without_premises(run: Run, control: str) -> Test:
    return below("largest share of positive draws without the premises", _share(run, control).max(), 1.0, "%")


def _more_often(run: Run, series: str, control: str) -> Test:
    """In every dimension, beyond chance: the standard error of a difference of two shares is sqrt(1/2n) at most."""
    error = sqrt(0.5 / (run.config["draws"] * run.config["batches"]))
    gain = float((_share(run, series) - _share(run, control)).min())
    return above("smallest gain over draws without the premises, in standard errors", gain / error, ERRORS)


def _by_dimension(run: Run, share: Any, control: Any) -> dict[str, dict[str, float]]:
    return {
        f"{dim} samples": {"share": float(one), "without the premises": float(other)}
        for dim, one, other in zip(run.config["dimensions"], share, control, strict=True)
    }


def draw(run: Run) -> list[Drawing]:
    """How often the conclusion is positive, against the sum of the angles and against the dimension."""
    figure, (left, right) = panels(2, width=4.2)
    dimensions, signs = run.config["dimensions"], _share(run, "sign/signs")
    middle, place = (np.arange(_draws.BINS) + 0.5) * _draws.BIN, np.arange(len(dimensions))
    counts, positives = _total(run, "angle/binned"), _total(run, "angle/binned positive")
    for dim, colour, count, positive in zip(dimensions, depth_colours(len(dimensions)), counts, positives, strict=True):
        often = count >= 50
        left.plot(middle[often], positive[often] / count[often], color=colour, label=f"{dim} samples")
    left.axvline(90, ls="--", lw=1, color=CORRECTED)
    left.annotate("90°", (86, 0.04), fontsize=8.5, ha="right")
    left.set(xlabel="a + b + c (degrees)", ylabel="share with a positive conclusion", title="Angles decide the sign")
    left.set(xticks=range(0, 271, 45), ylim=(0, 1.04))
    right.axhline(1, ls="--", lw=1, color=CORRECTED, label="a + b + c < 90°")
    right.plot(place, signs, "o-", color=PRINTED, label="three signs hold")
    right.plot(place, _share(run, "sign/control"), "s--", color=CONTROL, label="no premise")
    right.set(xlabel="number of samples", ylabel="share with a positive conclusion", title="Signs do not decide it")
    right.set(xticks=place, xticklabels=dimensions, ylim=(0, 1.04), yticks=(0, 0.25, 0.5, 0.75, 1))
    caption = (
        "Angles decide the sign of the conclusion, the three signs do not. If the three angles sum to less than 90°, "
        f"every draw is positive; if only the three signs hold, as few as {number(signs.min(), '%')} are. Left: the "
        "share of draws with a positive conclusion against the sum of the three angles. Right: the same share if only "
        "the three signs are given, and for signals drawn without any premise."
    )
    return [Drawing("cdag-angles", caption, figure)]


def _numbers(*key: int) -> torch.Generator:
    return torch.Generator().manual_seed(int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1))


def _total(run: Run, name: str) -> Any:
    """Counts over all batches, one row per dimension."""
    return np.stack([run.array(f"{dim}/{name}").sum(0) for dim in run.config["dimensions"]])


def _share(run: Run, name: str) -> Any:
    return _total(run, name) / _total(run, f"{name.split('/')[0]}/draws")


STUDY = Study(
    name="cdag-angles",
    title="CDAG Theorem 1: signs and angles of the backpropagated gradient",
    version=1,
    claims=CLAIMS,
    quick=CdagAnglesConfig(),
    paper=CdagAnglesConfig(batches=50),
    run=run,
    draw=draw,
    about=(
        "Signals over 2 to 100 samples are drawn at random: once Gaussian with the signs that the premises ask for, "
        "and once at angles spread evenly below 90°. The study counts how often the correlation between the latent and "
        "the backpropagated gradient is positive. A theorem must be true for every draw. The control drops the "
        "premises."
    ),
)

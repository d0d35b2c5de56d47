"""Lemma 4, eq. 54-59: where a ReLU node between a positive and a negative cluster stands still."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.runs import Run
from joma.studies._isotropic import difference, plain_ticks
from joma.studies.contract import Claim, Drawing, Finding, Progress, Study
from joma.studies.drawing import BLUE, GREEN, ORANGE, PRINTED, depth_colours, panels
from joma.studies.verdicts import by_residual, by_test, show
from joma.theory import isotropic
from joma.theory.radial import Ball, ExponentialRadial, Gaussian, RadialLaw, StudentT

EXACT = 1e-11
DIFFERENCES = 1e-8
LENGTHS = (0.5, 1.0, 3.0)
FAR = (1e2, 1e50, 1e100, 1e150)  # the first is on the way, the others give limits
DIMENSION = 5
CONCAVE: dict[str, RadialLaw] = {
    "Gaussian": Gaussian(DIMENSION),
    "ball": Ball(DIMENSION, 2.0),
    "exp-radial": ExponentialRadial(DIMENSION),
}


@dataclass(frozen=True)
class Config:
    """Separations m of the two clusters, and tails ν of the Student-t laws that have critical points."""

    separations: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
    tails: tuple[float, ...] = (1.5, 2.0, 3.0, 5.0, 20.0)
    grid: int = 400

    def __post_init__(self) -> None:
        if self.grid < 3:
            raise ValueError(f"grid must be at least 3 points, to see F/θ₁ rise or fall, got {self.grid}")


NECESSARY = Claim(
    "stationary-sum",
    "JoMA eq. 54",
    "At every stationary point Σ aⱼF(rⱼ) = 0, with rⱼ = v·x̄ⱼ + ξ.",
    "Σ aⱼF(ρⱼ) = 0, with the distance ρⱼ = rⱼ/‖v‖ in place of rⱼ.",
)
FREE = Claim(
    "critical-points",
    "JoMA eq. 56",
    "(v, ξ) is critical iff F(r₊)/F(r₋) = θ₁(r₊)/θ₁(r₋) = a₋/a₊, and ‖v‖ can be chosen to meet it.",
    "The equations hold in ρ, and ρ₊ − ρ₋ = ±‖x̄₊‖ is fixed by the data: rays (λv, λξ), on a curve in (‖x̄₊‖, a₋/a₊).",
)
EXISTENCE = Claim(
    "existence",
    "JoMA Lemma 4",
    "The ReLU dynamics has critical points besides v = 0.",
    "It has none if F/θ₁ is increasing, as for every log-concave marginal (Gaussian, ball); power tails have them.",
)
CRITERION = Claim("existence-criterion", "JoMA eq. 58", "pₙ(0)θ₂(0) ≥ 1/4 is sufficient for a critical point.")
BAND = Claim(
    "ratio-band",
    "JoMA eq. 59",
    "All ratios a₊/a₋ with critical points lie in (1/2, 1) or (1, 2).",
    "Only those whose two distances are both ≥ 0; otherwise the ratio is unbounded.",
)
LEVELS = Claim(
    "active-shares",
    "JoMA eq. 57",
    "With y± = θ₁⁻¹(r±), the points (y±, G(y±)) of G = F∘θ₁⁻¹ lie on one line through 0.",
    "y± = θ₁(ρ±), the active shares.",
)
LIMIT = Claim(
    "g-limit",
    "JoMA eq. 57",
    "As y → 0, G(y) = F(r) tends to the limit of rθ₁(r) at r → −∞, whose value is left open.",
)
SLOPE = Claim("g-slope", "JoMA eq. 57", "G′(y) = θ₁(x)/pₙ(x) at y = θ₁(x).")


def run(config: Config, run: Run, progress: Progress) -> None:
    """Critical rays of the Student-t laws, what really happens there, and F/θ₁ of all laws."""
    m = torch.tensor(config.separations, dtype=torch.float64)
    run.keep("separations", lambda: m)
    run.keep("tails", lambda: np.array(config.tails))
    for i, nu in enumerate(config.tails):
        progress(0.7 * i / len(config.tails), f"rays for ν = {nu:g}")
        _record_rays(run, f"{nu:g}", StudentT(DIMENSION, nu), m)
    progress(0.7, "F/θ₁")
    every = {**CONCAVE, **{f"{nu:g}": StudentT(DIMENSION, nu) for nu in config.tails}}
    for name, law in every.items():
        _record_life(run, name, law, m, config.grid)
    progress(0.9, "the Laplace law")
    run.keep("laplace", _laplace)


def _record_rays(run: Run, name: str, law: RadialLaw, m: Tensor) -> None:
    ray = isotropic.critical_rays(m, law)
    run.keep(f"{name}/ray", lambda: torch.stack(ray))  # (3, m): ratio, rho_+, rho_-
    run.keep(f"{name}/speed", lambda: _speed_on_rays(law, m, ray))
    run.keep(f"{name}/speed as printed", lambda: _speed_as_printed(law, m))
    run.keep(f"{name}/sum", lambda: _sums(law, ray))
    run.keep(f"{name}/line", lambda: _line(law, ray))
    run.keep(f"{name}/shares as printed", lambda: _printed_shares(law, ray))
    run.keep(f"{name}/G slope", lambda: _slopes(law))


def _record_life(run: Run, name: str, law: RadialLaw, m: Tensor, grid: int) -> None:
    """F/θ₁ on a grid, and for each m how near it comes to taking one value at two distances m apart."""
    end = 0.98 * law.radius if law.radius < float("inf") else 12.0
    s = torch.linspace(-end, 4.0, grid, dtype=torch.float64)
    run.keep(f"{name}/s", lambda: s)
    run.keep(f"{name}/life", lambda: law.residual_life(s))
    run.keep(f"{name}/gap", lambda: (law.residual_life(s + m[:, None]) / law.residual_life(s)).log().amin(-1))
    run.keep(f"{name}/criterion", lambda: isotropic.crossing_value(law))
    r = -torch.tensor(FAR, dtype=torch.float64)
    run.keep(f"{name}/far", lambda: torch.stack([law.F(r), r * law.theta1(r)]))


def judge(run: Run) -> list[Finding]:
    """What happens at the points of either form, and which laws have any."""
    tails = [f"{nu:g}" for nu in run.value("tails")]

    def worst(what: str) -> Any:
        return np.abs(np.stack([run.value(f"{nu}/{what}") for nu in tails]))

    sums, printed = worst("sum"), worst("speed as printed")
    unit = np.array(LENGTHS) == 1
    slope = np.stack([run.value(f"{nu}/G slope") for nu in tails])
    claimed = np.stack([run.value(f"{nu}/shares as printed") for nu in tails])  # (tails, 2, m)
    shares = ((claimed > 0) & (claimed < 1)).all(1)
    rising = {name: float(np.diff(run.value(f"{name}/life")).min()) for name in (*CONCAVE, *tails)}
    gap = {name: float(run.value(f"{name}/gap").min()) for name in (*CONCAVE, *tails)}
    still = float(worst("speed").max())
    none = all(rising[name] > 0 and gap[name] > 0 for name in CONCAVE)
    found = all(rising[name] < 0 and gap[name] < 0 for name in tails) and still <= EXACT
    return [
        by_residual(
            NECESSARY,
            printed=float(sums[:, 1].max()),
            corrected=float(sums[:, 0].max()),
            tolerance=EXACT,
            expected="0 on every critical ray, relative to Σ|aⱼ|F",
            control=f"at ‖v‖ = 1 the printed form is off by {show(float(sums[:, 1, LENGTHS.index(1.0)].max()))}",
        ),
        by_residual(
            FREE,
            printed=float(printed[:, ~unit].max()),
            corrected=still,
            tolerance=EXACT,
            expected="v′ = ξ′ = 0, relative to Σ|aⱼ|",
            control=f"printed points with ‖v‖ = 1 are off by {show(float(printed[:, unit].max()))}",
        ),
        by_test(
            EXISTENCE,
            measured="least step of F/θ₁ on a grid: "
            + ", ".join(f"{name} {show(rising[name])}" for name in CONCAVE)
            + "; Student-t "
            + ", ".join(f"ν = {name} {show(rising[name])}" for name in tails),
            expected="F/θ₁ takes one value twice",
            as_printed=all(value < 0 for value in gap.values()),
            as_corrected=none and found,
            # shares of laws that have critical points against the form, or have none
            residuals={
                "printed": float(np.mean([value >= 0 for value in gap.values()])),
                "corrected": float(np.mean([(value < 0) != (name in tails) for name, value in gap.items()])),
            },
        ),
        _judge_criterion(run, tails, gap),
        _judge_band(run, tails),
        by_test(
            LEVELS,
            measured=f"the printed y± are shares, between 0 and 1, in {shares.sum()} of {shares.size} cases; "
            f"the corrected points are off one line by {show(float(worst('line').max()))}",
            expected="two shares, and G(y₊)/y₊ = G(y₋)/y₋",
            as_printed=bool(shares.all()),
            as_corrected=float(worst("line").max()) <= EXACT,
            tolerance=EXACT,
            # shares of cases without two such shares, or off the line
            residuals={"printed": float((~shares).mean()), "corrected": float((worst("line") > EXACT).mean())},
        ),
        _judge_limit(run, tails),
        by_residual(
            SLOPE,
            printed=float(np.abs(slope[:, 0] / slope[:, 1] - 1).max()),
            tolerance=DIFFERENCES,
            expected="equal to differences of G",
        ),
    ]


def _judge_criterion(run: Run, tails: list[str], gap: dict[str, float]) -> Finding:
    value = {name: float(run.value(f"{name}/criterion")) for name in (*CONCAVE, *tails)}
    laplace, speed = run.value("laplace")
    met = [name for name, v in value.items() if v >= 0.25 * (1 - EXACT)]
    spared = [f"ν = {name} ({show(value[name])})" for name in tails if name not in met]
    return by_test(
        CRITERION,
        measured=f"met by ν = {', '.join(met)} and by the Laplace law ({show(laplace)}), all of which have critical "
        f"points; not necessary: so have {', '.join(spared)}",
        expected="a critical point wherever the value reaches 1/4",
        as_printed=all(gap[name] < 0 for name in met) and laplace >= 0.25 * (1 - EXACT) and speed <= EXACT,
        tolerance=EXACT,
        residuals={"printed": float(np.mean([gap[name] >= 0 for name in met])) if met else 0.0},
        control="none where there is no critical point: "
        + ", ".join(f"{name} {show(value[name])}" for name in CONCAVE),
    )


def _judge_band(run: Run, tails: list[str]) -> Finding:
    ray = np.stack([run.value(f"{nu}/ray") for nu in tails])  # (tails, 3, m)
    ratio, above = ray[:, 0], (ray[:, 1:] >= 0).all(1)
    inner, outer = float(ratio[above].max(initial=1)), float(ratio[~above].max(initial=1))
    return by_test(
        BAND,
        measured=f"ratios from {show(float(ratio.min()))} to {show(float(ratio.max()))}; "
        f"up to {show(inner)} in the {above.sum()} cases with both distances ≥ 0",
        expected="a₋/a₊ below 2",
        as_printed=bool(ratio.max() < 2),
        as_corrected=inner < 2 < outer,
        # shares of rays outside the band that should be inside
        residuals={"printed": float((ratio >= 2).mean()), "corrected": float(((ratio >= 2) & above).mean())},
    )


def _judge_limit(run: Run, tails: list[str]) -> Finding:
    far = np.stack([run.value(f"{name}/far") for name in (*CONCAVE, *tails)])  # (laws, [F, r θ₁], FAR)
    limit = _limit(*np.moveaxis(far[..., 1:], -1, 0))  # (laws, 2)
    off = float(np.abs(limit[:, 0] - limit[:, 1]).max())
    on_the_way = far[len(CONCAVE) :, :, 0]
    return by_test(
        LIMIT,
        measured=f"limits over all laws: of F at most {show(float(np.abs(limit[:, 0]).max()))}, of rθ₁ at most "
        f"{show(float(np.abs(limit[:, 1]).max()))}, of F − rθ₁ at most {show(off)}",
        expected="one limit for both",
        as_printed=off <= EXACT,
        tolerance=EXACT,
        control=f"on the way, at r = −{FAR[0]:g}, F/(rθ₁) is "
        + ", ".join(f"{show(f / q)} (ν = {nu})" for nu, (f, q) in zip(tails, on_the_way, strict=True)),
        residuals={"printed": off},
    )


def draw(run: Run) -> list[Drawing]:
    """F/theta1 of three laws, and the curve on which critical rays exist."""
    figure, (left, right) = panels(2)
    tails, m = [f"{nu:g}" for nu in run.value("tails")], run.value("separations")
    shown = min(tails, key=lambda nu: abs(float(nu) - 3))
    names = (("Gaussian", "Gaussian", BLUE), ("ball", "ball", ORANGE), (shown, f"Student-t, ν = {shown}", GREEN))
    for name, label, colour in names:
        left.plot(run.value(f"{name}/s"), run.value(f"{name}/life"), color=colour, label=label)
    pair = int(np.argmin(np.abs(m - 4)))
    ratio, plus, minus = run.value(f"{shown}/ray")[:, pair]
    level = np.interp([minus, plus], run.value(f"{shown}/s"), run.value(f"{shown}/life"))
    left.plot([minus, plus], level, "o-", ms=4, lw=1, color=GREEN)
    note = f"ρ₊ − ρ₋ = {m[pair]:.3g}\na₋/a₊ = {ratio:.3g}"
    left.annotate(note, ((minus + plus) / 2, level[0] + 0.15), ha="center", fontsize=8)
    left.set(xlabel="signed distance ρ", ylabel="F/θ₁", xlim=(-8, 3.5), ylim=(0, 5), title="A value taken twice")
    left.legend(loc="lower left", fontsize=8, bbox_to_anchor=(0, 0.02))
    right.axhspan(0.5, 2, color=PRINTED, alpha=0.15, lw=0, label="printed: (1/2, 2)")
    for nu, colour in zip(tails, depth_colours(len(tails)), strict=True):
        right.plot(m, run.value(f"{nu}/ray")[0], "o-", ms=3.5, color=colour, label=f"ν = {nu}")
    right.set(xscale="log", yscale="log", xlabel="separation m = ‖x̄₊‖", ylabel="a₋/a₊", ylim=(0.4, 3e4))
    plain_ticks(right.xaxis, (0.25, 0.5, 1, 2, 4, 8))
    right.set_title("Where critical rays exist")
    right.legend(loc="upper left", fontsize=8)
    caption = (
        "Left: a critical ray needs two distances, ‖x̄₊‖ apart, with the same F/θ₁. Log-concave laws never have them, "
        "power tails do. Right: the ratio of weights that a separation asks for; off the curve there is none."
    )
    return [Drawing("critical-rays", caption, figure)]


def _limit(first: Any, second: Any, third: Any) -> Any:
    """Where three equally spaced members of a geometric approach end (Aitken): exact for a power law over FAR."""
    bend = first - 2 * second + third
    ended = bend == 0
    return np.where(ended, third, (first * third - second**2) / np.where(ended, 1.0, bend))


def _clusters(m: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The axis (d,), centres (m, 2, d) and weights (m, 2) of a_+ = 1 at m and -ratio at 0."""
    axis = torch.eye(DIMENSION, dtype=torch.float64)[0]
    centres = torch.stack([m[:, None] * axis, torch.zeros(len(m), DIMENSION, dtype=torch.float64)], 1)
    return axis, centres, torch.stack([torch.ones_like(ratio), -ratio], -1)


def _relative_speed(v: Tensor, xi: Tensor, centres: Tensor, weights: Tensor, law: RadialLaw) -> Tensor:
    """‖(v', xi')‖ over the sum of |a_j|."""
    motion = isotropic.velocity(v, xi, centres, weights, law)
    speed: Tensor = torch.linalg.vector_norm(torch.cat([motion.v, motion.xi[..., None]], -1), dim=-1)
    return speed / weights.abs().sum(-1)


def _speed_on_rays(law: RadialLaw, m: Tensor, ray: isotropic.CriticalRay) -> Tensor:
    """(lengths, m): the true speed at the corrected critical points, at several places of each ray."""
    axis, centres, weights = _clusters(m, ray.ratio)
    length = torch.tensor(LENGTHS, dtype=torch.float64)[:, None]
    return _relative_speed(length[..., None] * axis, length * ray.rho_minus, centres, weights, law)


def _speed_as_printed(law: RadialLaw, m: Tensor) -> Tensor:
    """(lengths, m): the true speed at printed critical points, where r_+ - r_- = |v| m is met by choosing |v|."""
    m = m.repeat(len(LENGTHS))
    gap = m * torch.tensor(LENGTHS, dtype=torch.float64).repeat_interleave(len(m) // len(LENGTHS))
    point = isotropic.printed_critical_point(m, gap, law)
    axis, centres, weights = _clusters(m, law.theta1(point.rho_plus) / law.theta1(point.rho_minus))
    speed = _relative_speed(point.norm[:, None] * axis, point.xi, centres, weights, law)
    return speed.reshape(len(LENGTHS), -1)


def _sums(law: RadialLaw, ray: isotropic.CriticalRay) -> Tensor:
    """(2, lengths, m): sum_j a_j F at rho_j, and at r_j = |v| rho_j as printed, relative to sum_j |a_j| F."""
    length = torch.tensor(LENGTHS, dtype=torch.float64)[:, None]
    forms = []
    for scale in (torch.ones_like(length), length):
        plus, minus = law.F(scale * ray.rho_plus), ray.ratio * law.F(scale * ray.rho_minus)
        forms.append((plus - minus) / (plus + minus))
    return torch.stack(forms)


def _line(law: RadialLaw, ray: isotropic.CriticalRay) -> Tensor:
    """log of G(y_+)/y_+ over G(y_-)/y_-, (m,), with y = theta1(rho)."""
    plus, minus = (law.F(law.inverse_theta1(y)) / y for y in (law.theta1(ray.rho_plus), law.theta1(ray.rho_minus)))
    return (plus / minus).log()


def _printed_shares(law: RadialLaw, ray: isotropic.CriticalRay) -> Tensor:
    """y = theta1^-1(rho) as printed, (2, m); NaN where rho is no probability and the inverse does not exist."""
    rho = torch.stack([ray.rho_plus, ray.rho_minus])
    defined = (rho > 0) & (rho < 1)
    return torch.where(defined, law.inverse_theta1(torch.where(defined, rho, 0.5)), torch.nan)


def _slopes(law: RadialLaw) -> Tensor:
    """(2, y): G' by differences of G = F(theta1^-1(y)), and theta1/p_n."""
    y = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    x = law.inverse_theta1(y)
    by_differences = difference(lambda share: law.F(law.inverse_theta1(share)), y, step=5e-4)
    return torch.stack([by_differences, law.theta1(x) / law.density(x)])


def _laplace() -> Tensor:
    """Eq. 58's value for the Laplace law, and its speed at critical points: a_-/a_+ = e^m, any rho_+ <= 0."""
    law = ExponentialRadial(1)
    m = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    centres = torch.stack([m, torch.zeros_like(m)], -1)[..., None]
    weights = torch.stack([torch.ones_like(m), -m.exp()], -1)
    speed = _relative_speed(torch.ones(3, 1, dtype=torch.float64), -0.3 - m, centres, weights, law)
    return torch.stack([isotropic.crossing_value(law), speed.max()])


STUDY = Study(
    name="lemma4",
    title="Lemma 4: where a node between two clusters stands still",
    version=2,
    claims=(NECESSARY, FREE, EXISTENCE, CRITERION, BAND, LEVELS, LIMIT, SLOPE),
    quick=Config(),
    paper=Config(
        separations=tuple(np.geomspace(0.1, 20, 24).round(4).tolist()),
        tails=(1.1, 1.5, 2.0, 3.0, 5.0, 8.0, 20.0, 50.0),
        grid=4000,
    ),
    run=run,
    judge=judge,
    draw=draw,
    about=(
        "A ReLU node between a positive cluster at distance m and a negative one at the origin. The equations of a "
        "critical point are solved in the printed and in the corrected variable for Student-t laws, and the velocity "
        "of the node is evaluated at the solutions; F/θ₁ on a grid shows which laws can have any."
    ),
)

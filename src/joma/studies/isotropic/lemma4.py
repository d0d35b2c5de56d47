"""Lemma 4, eq. 54-59: where a ReLU node between a positive and a negative cluster stands still."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Claim, Drawing, Finding, Progress, Study, each_claim
from joma.claims.evidence import above, at_least, at_most, below
from joma.claims.verdicts import by_residual, by_tests, not_run
from joma.figures.labels import label_lines
from joma.figures.reading import between, course, number
from joma.figures.style import BLUE, GREEN, ORANGE, PRINTED, depth_colours, panels
from joma.runs import Run
from joma.studies.isotropic import _critical_rays as rays
from joma.studies.isotropic._critical_rays import DIMENSION, LENGTHS
from joma.studies.isotropic._forms import by_forms, plain_ticks
from joma.theory import isotropic
from joma.theory.radial import Ball, ExponentialRadial, Gaussian, RadialLaw, StudentT

EXACT = 1e-11
DIFFERENCES = 1e-8
QUARTER = 0.25 * (1 - EXACT)  # of eq. 58, which some laws meet exactly
GAP = "smallest rise of ln(F/θ₁) across a distance m"
FAR = (1e2, 1e50, 1e100, 1e150)  # the first is on the way, the others give limits
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
    "Σ aⱼF(ρⱼ) = 0, with the distance ρⱼ = rⱼ/‖v‖ instead of rⱼ.",
    uses=("lemma2/growth",),
)
FREE = Claim(
    "critical-points",
    "JoMA eq. 56",
    "(v, ξ) is critical if and only if F(r₊)/F(r₋) = θ₁(r₊)/θ₁(r₋) = a₋/a₊. ‖v‖ can be chosen to satisfy this.",
    "The equations hold in ρ, and the data fix ρ₊ − ρ₋ = ±‖x̄₊‖. Critical rays (λv, λξ) exist on a curve in (‖x̄₊‖, "
    "a₋/a₊).",
    uses=("lemma2/mixture-weight", "lemma2/mixture-bias"),
)
EXISTENCE = Claim(
    "existence",
    "JoMA Lemma 4",
    "The ReLU dynamics has other critical points than v = 0.",
    "It has none if F/θ₁ increases, as for every log-concave marginal (Gaussian, ball). Laws with power tails have "
    "some.",
    uses=("lemma4/critical-points",),
)
CRITERION = Claim(
    "existence-criterion",
    "JoMA eq. 58",
    "If pₙ(0)θ₂(0) ≥ 1/4, then a critical point exists.",
    uses=("lemma4/active-shares", "lemma4/g-slope"),
)
BAND = Claim(
    "ratio-band",
    "JoMA eq. 59",
    "All ratios a₊/a₋ with critical points lie in (1/2, 1) or (1, 2).",
    "This is true only if both distances are ≥ 0. Otherwise the ratio has no bound.",
    uses=("lemma4/critical-points",),
)
LEVELS = Claim(
    "active-shares",
    "JoMA eq. 57",
    "With y± = θ₁⁻¹(r±), the points (y±, G(y±)) of G = F∘θ₁⁻¹ lie on one line through 0.",
    "This holds for y± = θ₁(ρ±), the active shares.",
    uses=("lemma4/critical-points",),
)
LIMIT = Claim(
    "g-limit",
    "JoMA eq. 57",
    "As y → 0, G(y) = F(r) tends to the limit of rθ₁(r) at r → −∞. The value of the limit is not given.",
)
SLOPE = Claim(
    "g-slope",
    "JoMA eq. 57",
    "G′(y) = θ₁(x)/pₙ(x) at y = θ₁(x).",
    uses=("lemma2/f-derivative",),
)


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
    run.keep("laplace", rays.laplace)


def _record_rays(run: Run, name: str, law: RadialLaw, m: Tensor) -> None:
    ray = isotropic.critical_rays(m, law)
    run.keep(f"{name}/ray", lambda: torch.stack(ray))  # (3, m): ratio, rho_+, rho_-
    run.keep(f"{name}/speed", lambda: rays.speed_on_rays(law, m, ray))
    run.keep(f"{name}/speed as printed", lambda: rays.speed_as_printed(law, m))
    run.keep(f"{name}/sum", lambda: rays.sums(law, ray))
    run.keep(f"{name}/line", lambda: rays.line(law, ray))
    run.keep(f"{name}/shares as printed", lambda: rays.printed_shares(law, ray))
    run.keep(f"{name}/G slope", lambda: rays.slopes(law))


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


def _necessary(run: Run) -> Finding:
    sums = np.abs(_of_tails(run, "sum"))  # (tails, [in rho, in r], lengths, m)
    return by_forms(
        NECESSARY,
        printed=sums[:, 1].max(),
        corrected=sums[:, 0].max(),
        tolerance=EXACT,
        expected="The sum, relative to Σ|aⱼ|F, is 0 on every critical ray.",
        agree={"the printed form at ‖v‖ = 1": sums[:, 1, LENGTHS.index(1.0)].max()},
    )


def _free(run: Run) -> Finding:
    printed, unit = _of_tails(run, "speed as printed"), np.array(LENGTHS) == 1  # (tails, lengths, m)
    return by_forms(
        FREE,
        printed=printed[:, ~unit].max(),
        corrected=_of_tails(run, "speed").max(),
        tolerance=EXACT,
        expected="The node stands still: v′ = ξ′ = 0.",
        agree={"the printed points with ‖v‖ = 1": printed[:, unit].max()},
        what="speed relative to Σ|aⱼ|",
    )


def _existence(run: Run) -> Finding:
    tails, gap = _tails(run), _gaps(run)
    step = {name: np.diff(run.value(f"{name}/life")).min() for name in gap}
    return by_tests(
        EXISTENCE,
        expected="F/θ₁ has the same value at two distances, so it falls somewhere.",
        printed=[below(f"{GAP}, the law that falls least", _most(gap, gap), 0)],
        corrected=[
            above(f"{GAP}, log-concave laws", _least(gap, CONCAVE), 0),
            above("smallest increment of F/θ₁, log-concave laws", _least(step, CONCAVE), 0),
            below(f"{GAP}, the Student-t law that falls least", _most(gap, tails), 0),
            below("smallest increment of F/θ₁, the Student-t law that falls least", _most(step, tails), 0),
            at_most("speed on the critical rays", _of_tails(run, "speed").max(), EXACT),
        ],
        details={"smallest increment of F/θ₁": _labelled(step)},
    )


def _criterion(run: Run) -> Finding:
    gap = _gaps(run)
    value = {name: float(run.value(f"{name}/criterion")) for name in gap}
    laplace, speed = run.value("laplace")
    met = [name for name in gap if value[name] >= QUARTER]
    falling = [below(f"{GAP}, laws that reach one quarter", _most(gap, met), 0)] if met else []
    return by_tests(
        CRITERION,
        expected="Every law whose value reaches 1/4 has a critical point.",
        printed=[*falling, at_most("speed at critical points of the Laplace law", speed, EXACT)],
        controls=[
            at_least("value of the Laplace law", laplace, QUARTER),
            above(f"{GAP}, log-concave laws", _least(gap, CONCAVE), 0),
        ],
        details={"values": _labelled(value)},
    )


def _band(run: Run) -> Finding:
    ray = _of_tails(run, "ray")  # (tails, [ratio, rho_+, rho_-], m)
    ratio, inner = ray[:, 0], ~(ray[:, 1:] < 0).any(1)
    expected = "All ratios a₋/a₊ are below 2."
    if not inner.any():
        return not_run(BAND, expected, "at these separations no ray has two distances ≥ 0", "joma verify lemma4")
    return by_tests(
        BAND,
        expected=expected,
        printed=[below("largest ratio", ratio.max(), 2)],
        corrected=[
            below("largest ratio of the rays with both distances ≥ 0", ratio[inner].max(), 2),
            above("largest ratio of the other rays", ratio[~inner].max(initial=1), 2),
        ],
        controls=[above("smallest ratio", ratio.min(), 1)],
        details={"rays": {"with both distances ≥ 0": int(inner.sum()), "others": int((~inner).sum())}},
    )


def _levels(run: Run) -> Finding:
    claimed = _of_tails(run, "shares as printed")  # (tails, 2, m)
    shares = ((claimed > 0) & (claimed < 1)).all(1)
    return by_tests(
        LEVELS,
        expected="Both y± are shares between 0 and 1, and G(y₊)/y₊ = G(y₋)/y₋.",
        printed=[at_least("rays on which both y± are shares", shares.mean(), 1, "%")],
        corrected=[
            at_most(
                "largest logarithm of the ratio of G(y₊)/y₊ and G(y₋)/y₋", np.abs(_of_tails(run, "line")).max(), EXACT
            )
        ],
    )


def _limits(run: Run) -> Finding:
    tails = _tails(run)
    far = np.stack([run.value(f"{name}/far") for name in (*CONCAVE, *tails)])  # (laws, [F, r θ₁], FAR)
    limit = _limit(*np.moveaxis(far[..., 1:], -1, 0))  # (laws, 2)
    way = far[len(CONCAVE) :, :, 0]
    return by_residual(
        LIMIT,
        printed=np.abs(limit[:, 0] - limit[:, 1]).max(),
        tolerance=EXACT,
        expected="F and rθ₁ have the same limit.",
        what="difference of F and rθ₁",
        control={f"at r = −{FAR[0]:g}": np.abs(way[:, 0] - way[:, 1]).max()},
        details={
            "limits": {"of |F|": np.abs(limit[:, 0]).max(), "of |rθ₁|": np.abs(limit[:, 1]).max()},
            f"F/(rθ₁) at r = −{FAR[0]:g}": _labelled(dict(zip(tails, way[:, 0] / way[:, 1], strict=True))),
        },
    )


def _g_slope(run: Run) -> Finding:
    differences, closed = _of_tails(run, "G slope").transpose(1, 0, 2)  # (tails, y)
    return by_residual(
        SLOPE,
        printed=np.abs(differences / closed - 1).max(),
        tolerance=DIFFERENCES,
        what="relative error",
        expected="The formula equals numerical differences of G.",
        control={"at 1 − y instead of y": np.abs(differences / closed[:, ::-1] - 1).max(1).min()},
    )


def _tails(run: Run) -> list[str]:
    return [f"{nu:g}" for nu in run.value("tails")]


def _of_tails(run: Run, what: str) -> Any:
    return np.stack([run.value(f"{nu}/{what}") for nu in _tails(run)])


def _gaps(run: Run) -> dict[str, float]:
    """By law the smallest rise of ln(F/θ₁) from one distance to the one that is m further: negative if it falls."""
    return {name: float(run.value(f"{name}/gap").min()) for name in (*CONCAVE, *_tails(run))}


def _least(numbers: Mapping[str, float], names: Iterable[str]) -> float:
    """Unlike `min`, NaN if one of them is."""
    return float(np.min([numbers[name] for name in names]))


def _most(numbers: Mapping[str, float], names: Iterable[str]) -> float:
    return float(np.max([numbers[name] for name in names]))


def _labelled(numbers: Mapping[str, float]) -> dict[str, float]:
    """By the names that a reader knows: the Student-t laws are called by their tail ν."""
    return {name if name in CONCAVE else f"Student-t({name})": float(number) for name, number in numbers.items()}


def draw(run: Run) -> list[Drawing]:
    """F/theta1 of three laws, and the curve on which critical rays exist."""
    figure, (left, right) = panels(2, width=4.3)
    seen = [_draw_life(run, left), _draw_ratios(run, right)]
    ratios = _of_tails(run, "ray")[:, 0]
    caption = (
        "Only laws with power tails have critical rays, and their ratios a₋/a₊ reach "
        f"{number(ratios.max())}, far above the printed limit of 2. Left: a critical ray needs two distances, ‖x̄₊‖ "
        "apart, with the same F/θ₁. Log-concave laws (Gaussian, ball) have no such pair. Right: the ratio of weights "
        "that belongs to each separation of the clusters; away from the curve there is no critical ray."
    )
    return [Drawing("critical-rays", caption, figure, "Two panels. " + " ".join(seen))]


def _draw_life(run: Run, axis: Any) -> str:
    m, shown = run.value("separations"), min(_tails(run), key=lambda nu: abs(float(nu) - 3))
    names = (("Gaussian", "Gaussian", BLUE), ("ball", "ball", ORANGE), (shown, f"Student-t,\nν = {shown}", GREEN))
    courses = []
    for name, label, colour in names:
        s, life = run.value(f"{name}/s"), run.value(f"{name}/life")
        axis.plot(s, life, color=colour, label=label)
        seen = (s >= -8) & (s <= 3.5)
        courses.append(f"{label} {course(s[seen], life[seen], at='distance')}".replace("\n", " "))
    pair = int(np.argmin(np.abs(m - 4)))
    ratio, plus, minus = run.value(f"{shown}/ray")[:, pair]
    level = np.interp([minus, plus], run.value(f"{shown}/s"), run.value(f"{shown}/life"))
    axis.plot([minus, plus], level, "o-", ms=4, lw=1, color=GREEN)
    note = f"ρ₊ − ρ₋ = {m[pair]:.3g}\na₋/a₊ = {ratio:.3g}"
    axis.annotate(note, ((minus + plus) / 2, level[0] + 0.15), ha="center", fontsize=8)
    axis.set(xlabel="signed distance ρ", ylabel="F/θ₁", xlim=(-8, 3.5), ylim=(0, 5))
    axis.set_title("Power tails: one value at two distances")
    label_lines(axis)
    return (
        f"Left, F/θ₁: {'; '.join(courses)}. A flat line joins the two points of the Student-t curve at distances "
        f"{number(minus)} and {number(plus)}, where it has the value {number(level[0])}."
    )


def _draw_ratios(run: Run, axis: Any) -> str:
    m, tails, ends = run.value("separations"), _tails(run), []
    axis.axhspan(0.5, 2, color=PRINTED, alpha=0.15, lw=0)
    axis.axhline(2, color=PRINTED, ls="--", lw=1, label="printed:\n1/2 to 2")
    for nu, colour in zip(tails, depth_colours(len(tails)), strict=True):
        ratio = run.value(f"{nu}/ray")[0]
        axis.plot(m, ratio, "o-", ms=3.5, color=colour, label=f"ν = {nu}")
        ends.append(float(ratio[-1]))
    axis.set(xscale="log", yscale="log", xlabel="separation m = ‖x̄₊‖", ylabel="a₋/a₊", ylim=(0.4, 3e4))
    plain_ticks(axis.xaxis, (0.25, 0.5, 1, 2, 4, 8))
    axis.set_title("Where critical rays exist")
    label_lines(axis)
    return (
        f"Right, on log scales: one rising curve for each of {len(tails)} tails ν. At separation {number(m[0])} all "
        f"ratios lie {between(_of_tails(run, 'ray')[:, 0, 0])}, at separation {number(m[-1])} {between(ends)}. The "
        "printed band from 1/2 to 2 holds only their lower ends."
    )


def _limit(first: Any, second: Any, third: Any) -> Any:
    """Where three equally spaced members of a geometric approach end (Aitken): exact for a power law over FAR."""
    bend = first - 2 * second + third
    ended = bend == 0
    return np.where(ended, third, (first * third - second**2) / np.where(ended, 1.0, bend))


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
    judge=each_claim(_necessary, _free, _existence, _criterion, _band, _levels, _limits, _g_slope),
    draw=draw,
    about=(
        "A ReLU node lies between a positive cluster at distance m and a negative cluster at the origin. The equations "
        "of a critical point are solved for Student-t laws, in the printed and in the corrected variable. The velocity "
        "of the node is then computed at the solutions. The values of F/θ₁ on a grid show which laws can have critical "
        "points."
    ),
)

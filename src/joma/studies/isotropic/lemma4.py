"""Lemma 4, eq. 54-59: where a ReLU node between a positive and a negative cluster stands still."""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Claim, Drawing, Finding, Least, Progress, Study, StudyConfig
from joma.claims.declare import Claims
from joma.claims.verdicts import above, at_least, at_most, below, by_residual, by_tests, not_run
from joma.figures.reading import number
from joma.figures.style import BLUE, GREEN, ORANGE, PRINTED, depth_colours, panels
from joma.runs import Run
from joma.studies.isotropic._forms import by_forms, difference, plain_ticks
from joma.theory import isotropic
from joma.theory.radial import Ball, ExponentialRadial, Gaussian, RadialLaw, StudentT

DIMENSION = 5
LENGTHS = (0.5, 1.0, 3.0)  # of v: places on each ray
FAR = (1e2, 1e50, 1e100, 1e150)  # the first is on the way, the others give limits
CONCAVE: dict[str, RadialLaw] = {
    "Gaussian": Gaussian(DIMENSION),
    "ball": Ball(DIMENSION, 2.0),
    "exp-radial": ExponentialRadial(DIMENSION),
}


@dataclass(frozen=True)
class Lemma4Config(StudyConfig):
    """Separations m of the two clusters, and tails ν of the Student-t laws that have critical points."""

    separations: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
    tails: tuple[float, ...] = (1.5, 2.0, 3.0, 5.0, 20.0)
    grid: Annotated[int, Least(3, "to see F/θ₁ rise or fall")] = 400


def run(config: Lemma4Config, run: Run, progress: Progress) -> None:
    """Critical rays of the Student-t laws, what really happens there, and F/θ₁ of all laws."""
    m = torch.tensor(config.separations, dtype=torch.float64)
    run.keep("separations", lambda: m)
    run.keep("tails", lambda: np.array(config.tails))
    students: dict[str, RadialLaw] = {f"{nu:g}": StudentT(DIMENSION, nu) for nu in config.tails}
    for i, (name, law) in enumerate(students.items()):
        progress(0.7 * i / len(students), f"rays for ν = {name}")
        if f"{name}/ray" not in run:
            run.record(0, {f"{name}/{what}": value for what, value in _rays(law, m).items()})
    progress(0.7, "F/θ₁")
    for name, law in (CONCAVE | students).items():
        if f"{name}/s" not in run:
            run.record(0, {f"{name}/{what}": value for what, value in _life(law, m, config.grid).items()})
    progress(0.9, "the Laplace law")
    run.keep("laplace", _laplace)


def _relative_speed(v: Tensor, xi: Tensor, centres: Tensor, weights: Tensor, law: RadialLaw) -> Tensor:
    """‖(v', xi')‖ over the sum of |a_j|."""
    motion = isotropic.velocity(v, xi, centres, weights, law)
    speed: Tensor = torch.linalg.vector_norm(torch.cat([motion.v, motion.xi[..., None]], -1), dim=-1)
    return speed / weights.abs().sum(-1)


def _speed(law: RadialLaw, m: Tensor, length: Tensor, xi: Tensor, ratio: Tensor) -> Tensor:
    """The relative speed at v of a length along the axis of two clusters, a_+ = 1 at m and -ratio at 0."""
    axis = torch.eye(DIMENSION, dtype=torch.float64)[0]
    centres = torch.stack([m[:, None] * axis, torch.zeros(len(m), DIMENSION, dtype=torch.float64)], 1)
    weights = torch.stack([torch.ones_like(ratio), -ratio], -1)
    return _relative_speed(length[..., None] * axis, xi, centres, weights, law)


def _rays(law: RadialLaw, m: Tensor) -> dict[str, Tensor]:
    """The critical rays of a law, at several places of each, and what the lemma says about them."""
    ray = isotropic.critical_rays(m, law)
    length = torch.tensor(LENGTHS, dtype=torch.float64)[:, None]
    # printed critical points: r_+ - r_- = |v| m is met by choosing |v|
    placed, gap = m.repeat(len(LENGTHS)), (length * m).flatten()
    point = isotropic.printed_critical_point(placed, gap, law)
    ratio = law.theta1(point.rho_plus) / law.theta1(point.rho_minus)
    sums = []  # at rho_j, and at r_j = |v| rho_j as printed
    for scale in (torch.ones_like(length), length):
        plus, minus = law.F(scale * ray.rho_plus), ray.ratio * law.F(scale * ray.rho_minus)
        sums.append((plus - minus) / (plus + minus))
    shares = [law.theta1(ray.rho_plus), law.theta1(ray.rho_minus)]
    plus, minus = (law.F(law.inverse_theta1(y)) / y for y in shares)
    rho = torch.stack([ray.rho_plus, ray.rho_minus])
    defined = (rho > 0) & (rho < 1)  # where rho is no probability the printed inverse does not exist
    y = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    x = law.inverse_theta1(y)
    slope = difference(lambda share: law.F(law.inverse_theta1(share)), y, step=5e-4)
    return {
        "ray": torch.stack(ray),  # (3, m): ratio, rho_+, rho_-
        "speed": _speed(law, m, length, length * ray.rho_minus, ray.ratio),  # (lengths, m)
        "speed as printed": _speed(law, placed, point.norm, point.xi, ratio).reshape(len(LENGTHS), -1),
        "sum": torch.stack(sums),  # (2, lengths, m): of a_j F over that of |a_j| F
        "line": (plus / minus).log(),  # of G(y_+)/y_+ over G(y_-)/y_-
        "shares as printed": torch.where(defined, law.inverse_theta1(torch.where(defined, rho, 0.5)), torch.nan),
        "G slope": torch.stack([slope, law.theta1(x) / law.density(x)]),  # G' by differences of G = F(theta1^-1(y))
    }


def _life(law: RadialLaw, m: Tensor, grid: int) -> dict[str, Tensor]:
    """F/θ₁ on a grid, and for each m how near it comes to taking one value at two distances m apart."""
    s = torch.linspace(-(0.98 * law.radius if law.radius < float("inf") else 12.0), 4.0, grid, dtype=torch.float64)
    r = -torch.tensor(FAR, dtype=torch.float64)
    return {
        "s": s,
        "life": law.residual_life(s),
        "gap": (law.residual_life(s + m[:, None]) / law.residual_life(s)).log().amin(-1),
        "criterion": isotropic.crossing_value(law),
        "far": torch.stack([law.F(r), r * law.theta1(r)]),
    }


def _laplace() -> Tensor:
    law = ExponentialRadial(1)
    m = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    centres = torch.stack([m, torch.zeros_like(m)], -1)[..., None]
    weights = torch.stack([torch.ones_like(m), -m.exp()], -1)
    speed = _relative_speed(torch.ones(3, 1, dtype=torch.float64), -0.3 - m, centres, weights, law)
    return torch.stack([isotropic.crossing_value(law), speed.max()])


CLAIMS = Claims()


EXACT = 1e-11
DIFFERENCES = 1e-8
QUARTER = 0.25 * (1 - EXACT)  # of eq. 58, which some laws meet exactly
GAP = "smallest rise of ln(F/θ₁) across a distance m"


def tails(run: Run) -> list[str]:
    """The Student-t laws, by their tail."""
    return [f"{nu:g}" for nu in run.value("tails")]


def of_tails(run: Run, what: str) -> Any:
    """What is recorded of every Student-t law. (tails, ...)."""
    return np.stack([run.value(f"{nu}/{what}") for nu in tails(run)])


def _of_laws(run: Run, what: str) -> list[Any]:
    """What is recorded of every law: the log-concave ones first, then the Student-t laws."""
    return [run.value(f"{name}/{what}") for name in (*CONCAVE, *tails(run))]


def _labelled(run: Run, numbers: Any) -> dict[str, float]:
    """By the names that a reader knows: the Student-t laws, the last of all, are called by their tail ν."""
    names = (*CONCAVE, *(f"Student-t({nu})" for nu in tails(run)))
    return dict(zip(names[-len(numbers) :], map(float, numbers), strict=True))


@CLAIMS.declare("stationary-sum", "JoMA eq. 54", uses=("lemma2/growth",))
def necessary(run: Run, claim: Claim) -> Finding:
    """At every stationary point Σ aⱼF(rⱼ) = 0, with rⱼ = v·x̄ⱼ + ξ.

    Corrected: Σ aⱼF(ρⱼ) = 0, with the distance ρⱼ = rⱼ/‖v‖ instead of rⱼ.
    Expected: The sum, relative to Σ|aⱼ|F, is 0 on every critical ray.
    """
    sums = np.abs(of_tails(run, "sum"))  # (tails, [in rho, in r], lengths, m)
    agree = {"the printed form at ‖v‖ = 1": sums[:, 1, LENGTHS.index(1.0)].max()}
    return by_forms(claim, printed=sums[:, 1].max(), corrected=sums[:, 0].max(), tolerance=EXACT, agree=agree)


@CLAIMS.declare("critical-points", "JoMA eq. 56", uses=("lemma2/mixture-weight", "lemma2/mixture-bias"))
def free(run: Run, claim: Claim) -> Finding:
    """(v, ξ) is critical if and only if F(r₊)/F(r₋) = θ₁(r₊)/θ₁(r₋) = a₋/a₊. ‖v‖ can be chosen to satisfy this.

    Corrected: The equations hold in ρ, and the data fix ρ₊ − ρ₋ = ±‖x̄₊‖. Critical rays (λv, λξ) exist on a curve in
    (‖x̄₊‖, a₋/a₊).
    Expected: The node stands still: v′ = ξ′ = 0.

    The speed at critical points, with ρ₊ − ρ₋ fixed by the data and with ‖v‖ chosen.
    """
    printed, unit = of_tails(run, "speed as printed"), np.array(LENGTHS) == 1  # (tails, lengths, m)
    return by_forms(
        claim,
        printed=printed[:, ~unit].max(),
        corrected=of_tails(run, "speed").max(),
        tolerance=EXACT,
        agree={"the printed points with ‖v‖ = 1": printed[:, unit].max()},
        what="speed relative to Σ|aⱼ|",
    )


@CLAIMS.declare("existence", "JoMA Lemma 4", uses=("lemma4/critical-points",))
def existence(run: Run, claim: Claim) -> Finding:
    """The ReLU dynamics has other critical points than v = 0.

    Corrected: It has none if F/θ₁ increases, as for every log-concave marginal (Gaussian, ball). Laws with power tails
    have some.
    Expected: F/θ₁ has the same value at two distances, so it falls somewhere.

    Log-concave laws, for which F/θ₁ must rise, and Student-t laws, for which it must fall somewhere.
    """
    gap = np.array([gaps.min() for gaps in _of_laws(run, "gap")])  # negative if F/θ₁ falls
    step = np.array([np.diff(life).min() for life in _of_laws(run, "life")])
    few = len(CONCAVE)
    return by_tests(
        claim,
        printed=[below(f"{GAP}, the law that falls least", gap.max(), 0)],
        corrected=[
            above(f"{GAP}, log-concave laws", gap[:few].min(), 0),
            above("smallest increment of F/θ₁, log-concave laws", step[:few].min(), 0),
            below(f"{GAP}, the Student-t law that falls least", gap[few:].max(), 0),
            below("smallest increment of F/θ₁, the Student-t law that falls least", step[few:].max(), 0),
            at_most("speed on the critical rays", of_tails(run, "speed").max(), EXACT),
        ],
        details={"smallest increment of F/θ₁": _labelled(run, step)},
    )


@CLAIMS.declare("existence-criterion", "JoMA eq. 58", uses=("lemma4/active-shares", "lemma4/g-slope"))
def criterion(run: Run, claim: Claim) -> Finding:
    """If pₙ(0)θ₂(0) ≥ 1/4, then a critical point exists.

    Expected: Every law whose value reaches 1/4 has a critical point.

    Laws that reach one quarter have a critical point; log-concave laws have none.
    """
    gap = np.array([gaps.min() for gaps in _of_laws(run, "gap")])
    value, (laplace, speed) = np.array(_of_laws(run, "criterion")), run.value("laplace")
    met = gap[value >= QUARTER]
    falling = [below(f"{GAP}, laws that reach one quarter", met.max(), 0)] if met.size else []
    return by_tests(
        claim,
        printed=[*falling, at_most("speed at critical points of the Laplace law", speed, EXACT)],
        controls=[
            at_least("value of the Laplace law", laplace, QUARTER),
            above(f"{GAP}, log-concave laws", gap[: len(CONCAVE)].min(), 0),
        ],
        details={"values": _labelled(run, value)},
    )


@CLAIMS.declare("ratio-band", "JoMA eq. 59", uses=("lemma4/critical-points",))
def band(run: Run, claim: Claim) -> Finding:
    """All ratios a₊/a₋ with critical points lie in (1/2, 1) or (1, 2).

    Corrected: This is true only if both distances are ≥ 0. Otherwise the ratio has no bound.
    Expected: All ratios a₋/a₊ are below 2.
    """
    ray = of_tails(run, "ray")  # (tails, [ratio, rho_+, rho_-], m)
    ratio, inner = ray[:, 0], ~(ray[:, 1:] < 0).any(1)
    if not inner.any():
        return not_run(claim, claim.expected, "at these separations no ray has two distances ≥ 0", "joma verify lemma4")
    return by_tests(
        claim,
        printed=[below("largest ratio", ratio.max(), 2)],
        corrected=[
            below("largest ratio of the rays with both distances ≥ 0", ratio[inner].max(), 2),
            above("largest ratio of the other rays", ratio[~inner].max(initial=1), 2),
        ],
        controls=[above("smallest ratio", ratio.min(), 1)],
        details={"rays": {"with both distances ≥ 0": int(inner.sum()), "others": int((~inner).sum())}},
    )


@CLAIMS.declare("active-shares", "JoMA eq. 57", uses=("lemma4/critical-points",))
def levels(run: Run, claim: Claim) -> Finding:
    """With y± = θ₁⁻¹(r±), the points (y±, G(y±)) of G = F∘θ₁⁻¹ lie on one line through 0.

    Corrected: This holds for y± = θ₁(ρ±), the active shares.
    Expected: Both y± are shares between 0 and 1, and G(y₊)/y₊ = G(y₋)/y₋.
    """
    claimed = of_tails(run, "shares as printed")  # (tails, 2, m)
    off = np.abs(of_tails(run, "line")).max()
    return by_tests(
        claim,
        printed=[at_least("rays on which both y± are shares", ((claimed > 0) & (claimed < 1)).all(1).mean(), 1, "%")],
        corrected=[at_most("largest logarithm of the ratio of G(y₊)/y₊ and G(y₋)/y₋", off, EXACT)],
    )


@CLAIMS.declare("g-limit", "JoMA eq. 57")
def limits(run: Run, claim: Claim) -> Finding:
    """As y → 0, G(y) = F(r) tends to the limit of rθ₁(r) at r → −∞. The value of the limit is not given.

    Expected: F and rθ₁ have the same limit.

    Both limits by extrapolation; on the way F and rθ₁ must differ.
    """
    far = np.stack(_of_laws(run, "far"))  # (laws, [F, r θ₁], FAR)
    limit = _limit(*np.moveaxis(far[..., 1:], -1, 0))  # (laws, 2)
    way = far[len(CONCAVE) :, :, 0]
    return by_residual(
        claim,
        printed=np.abs(limit[:, 0] - limit[:, 1]).max(),
        tolerance=EXACT,
        what="difference of F and rθ₁",
        control={f"at r = −{FAR[0]:g}": np.abs(way[:, 0] - way[:, 1]).max()},
        details={
            "limits": {"of |F|": np.abs(limit[:, 0]).max(), "of |rθ₁|": np.abs(limit[:, 1]).max()},
            f"F/(rθ₁) at r = −{FAR[0]:g}": _labelled(run, way[:, 0] / way[:, 1]),
        },
    )


@CLAIMS.declare("g-slope", "JoMA eq. 57", uses=("lemma2/f-derivative",))
def g_slope(run: Run, claim: Claim) -> Finding:
    """G′(y) = θ₁(x)/pₙ(x) at y = θ₁(x).

    Expected: The formula equals numerical differences of G.

    Differences of G beside the closed form, which must not fit at other shares.
    """
    differences, closed = of_tails(run, "G slope").transpose(1, 0, 2)  # (tails, y)
    return by_residual(
        claim,
        printed=np.abs(differences / closed - 1).max(),
        tolerance=DIFFERENCES,
        what="relative error",
        control={"at 1 − y instead of y": np.abs(differences / closed[:, ::-1] - 1).max(1).min()},
    )


def _limit(first: Any, second: Any, third: Any) -> Any:
    bend = first - 2 * second + third
    ended = bend == 0
    return np.where(ended, third, (first * third - second**2) / np.where(ended, 1.0, bend))


def draw(run: Run) -> list[Drawing]:
    """F/theta1 of three laws, and the curve on which critical rays exist."""
    figure, (left, right) = panels(2, width=4.3)
    m, shown = run.value("separations"), min(tails(run), key=lambda nu: abs(float(nu) - 3))
    names = (("Gaussian", "Gaussian", BLUE), ("ball", "ball", ORANGE), (shown, f"Student-t,\nν = {shown}", GREEN))
    for name, label, colour in names:
        left.plot(run.value(f"{name}/s"), run.value(f"{name}/life"), color=colour, label=label)
    pair = int(np.argmin(np.abs(m - 4)))
    ratio, plus, minus = run.value(f"{shown}/ray")[:, pair]
    level = np.interp([minus, plus], run.value(f"{shown}/s"), run.value(f"{shown}/life"))
    left.plot([minus, plus], level, "o-", ms=4, lw=1, color=GREEN)
    note = f"ρ₊ − ρ₋ = {m[pair]:.3g}\na₋/a₊ = {ratio:.3g}"
    left.annotate(note, ((minus + plus) / 2, level[0] + 0.15), ha="center", fontsize=8)
    left.set(xlabel="signed distance ρ", ylabel="F/θ₁", xlim=(-8, 3.5), ylim=(0, 5))
    left.set_title("Power tails: one value at two distances")
    right.axhspan(0.5, 2, color=PRINTED, alpha=0.15, lw=0)
    right.axhline(2, color=PRINTED, ls="--", lw=1, label="printed:\n1/2 to 2")
    ratios = of_tails(run, "ray")[:, 0]
    for nu, row, colour in zip(tails(run), ratios, depth_colours(len(ratios)), strict=True):
        right.plot(m, row, "o-", ms=3.5, color=colour, label=f"ν = {nu}")
    right.set(xscale="log", yscale="log", xlabel="separation m = ‖x̄₊‖", ylabel="a₋/a₊", ylim=(0.4, 3e4))
    plain_ticks(right.xaxis, (0.25, 0.5, 1, 2, 4, 8))
    right.set_title("Where critical rays exist")
    caption = (
        "Only laws with power tails have critical rays, and their ratios a₋/a₊ reach "
        f"{number(ratios.max())}, far above the printed limit of 2. Left: a critical ray needs two distances, ‖x̄₊‖ "
        "apart, with the same F/θ₁. Log-concave laws (Gaussian, ball) have no such pair. Right: the ratio of weights "
        "that belongs to each separation of the clusters; away from the curve there is no critical ray."
    )
    return [Drawing("critical-rays", caption, figure)]


STUDY = Study(
    name="lemma4",
    title="Lemma 4: where a node between two clusters stands still",
    version=2,
    claims=CLAIMS,
    quick=Lemma4Config(),
    paper=Lemma4Config(
        separations=tuple(np.geomspace(0.1, 20, 24).round(4).tolist()),
        tails=(1.1, 1.5, 2.0, 3.0, 5.0, 8.0, 20.0, 50.0),
        grid=4000,
    ),
    run=run,
    draw=draw,
    about=(
        "A ReLU node lies between a positive cluster at distance m and a negative cluster at the origin. The equations "
        "of a critical point are solved for Student-t laws, in the printed and in the corrected variable. The velocity "
        "of the node is then computed at the solutions. The values of F/θ₁ on a grid show which laws can have critical "
        "points."
    ),
)

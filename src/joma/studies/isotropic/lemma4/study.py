"""The study of Lemma 4: its claims, its sizes and its figure."""

from typing import Any

import numpy as np

from joma.claims.contract import Claim, Drawing, Finding, Study
from joma.claims.evidence import above, at_least, at_most, below
from joma.claims.verdicts import by_residual, by_tests, not_run
from joma.figures.labels import label_lines
from joma.figures.reading import number
from joma.figures.style import BLUE, GREEN, ORANGE, PRINTED, depth_colours, panels
from joma.runs import Run
from joma.studies.isotropic._forms import by_forms, plain_ticks
from joma.studies.isotropic.lemma4.run import CONCAVE, FAR, LENGTHS, Lemma4Config, run

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
SLOPE = Claim("g-slope", "JoMA eq. 57", "G′(y) = θ₁(x)/pₙ(x) at y = θ₁(x).", uses=("lemma2/f-derivative",))


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


def necessary(run: Run) -> Finding:
    """The sum over clusters on critical rays, in ρ and in r."""
    sums = np.abs(of_tails(run, "sum"))  # (tails, [in rho, in r], lengths, m)
    expected = "The sum, relative to Σ|aⱼ|F, is 0 on every critical ray."
    agree = {"the printed form at ‖v‖ = 1": sums[:, 1, LENGTHS.index(1.0)].max()}
    return by_forms(
        NECESSARY, printed=sums[:, 1].max(), corrected=sums[:, 0].max(), tolerance=EXACT, expected=expected, agree=agree
    )


def free(run: Run) -> Finding:
    """The speed at critical points, with ρ₊ − ρ₋ fixed by the data and with ‖v‖ chosen."""
    printed, unit = of_tails(run, "speed as printed"), np.array(LENGTHS) == 1  # (tails, lengths, m)
    return by_forms(
        FREE,
        printed=printed[:, ~unit].max(),
        corrected=of_tails(run, "speed").max(),
        tolerance=EXACT,
        expected="The node stands still: v′ = ξ′ = 0.",
        agree={"the printed points with ‖v‖ = 1": printed[:, unit].max()},
        what="speed relative to Σ|aⱼ|",
    )


def existence(run: Run) -> Finding:
    """Log-concave laws, for which F/θ₁ must rise, and Student-t laws, for which it must fall somewhere."""
    gap = np.array([gaps.min() for gaps in _of_laws(run, "gap")])  # negative if F/θ₁ falls
    step = np.array([np.diff(life).min() for life in _of_laws(run, "life")])
    few = len(CONCAVE)
    return by_tests(
        EXISTENCE,
        expected="F/θ₁ has the same value at two distances, so it falls somewhere.",
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


def criterion(run: Run) -> Finding:
    """Laws that reach one quarter have a critical point; log-concave laws have none."""
    gap = np.array([gaps.min() for gaps in _of_laws(run, "gap")])
    value, (laplace, speed) = np.array(_of_laws(run, "criterion")), run.value("laplace")
    met = gap[value >= QUARTER]
    falling = [below(f"{GAP}, laws that reach one quarter", met.max(), 0)] if met.size else []
    return by_tests(
        CRITERION,
        expected="Every law whose value reaches 1/4 has a critical point.",
        printed=[*falling, at_most("speed at critical points of the Laplace law", speed, EXACT)],
        controls=[
            at_least("value of the Laplace law", laplace, QUARTER),
            above(f"{GAP}, log-concave laws", gap[: len(CONCAVE)].min(), 0),
        ],
        details={"values": _labelled(run, value)},
    )


def band(run: Run) -> Finding:
    """The ratios of all rays, and of those with both distances ≥ 0."""
    ray = of_tails(run, "ray")  # (tails, [ratio, rho_+, rho_-], m)
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


def levels(run: Run) -> Finding:
    """Whether y is a share, and whether both points lie on one line through 0."""
    claimed = of_tails(run, "shares as printed")  # (tails, 2, m)
    off = np.abs(of_tails(run, "line")).max()
    return by_tests(
        LEVELS,
        expected="Both y± are shares between 0 and 1, and G(y₊)/y₊ = G(y₋)/y₋.",
        printed=[at_least("rays on which both y± are shares", ((claimed > 0) & (claimed < 1)).all(1).mean(), 1, "%")],
        corrected=[at_most("largest logarithm of the ratio of G(y₊)/y₊ and G(y₋)/y₋", off, EXACT)],
    )


def limits(run: Run) -> Finding:
    """Both limits by extrapolation; on the way F and rθ₁ must differ."""
    far = np.stack(_of_laws(run, "far"))  # (laws, [F, r θ₁], FAR)
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
            f"F/(rθ₁) at r = −{FAR[0]:g}": _labelled(run, way[:, 0] / way[:, 1]),
        },
    )


def g_slope(run: Run) -> Finding:
    """Differences of G beside the closed form, which must not fit at other shares."""
    differences, closed = of_tails(run, "G slope").transpose(1, 0, 2)  # (tails, y)
    return by_residual(
        SLOPE,
        printed=np.abs(differences / closed - 1).max(),
        tolerance=DIFFERENCES,
        what="relative error",
        expected="The formula equals numerical differences of G.",
        control={"at 1 − y instead of y": np.abs(differences / closed[:, ::-1] - 1).max(1).min()},
    )


def _limit(first: Any, second: Any, third: Any) -> Any:
    """Where three equally spaced members of a geometric approach end (Aitken): exact for a power law over FAR."""
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
    for axis in (left, right):
        label_lines(axis)
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
    claims={
        NECESSARY: necessary,
        FREE: free,
        EXISTENCE: existence,
        CRITERION: criterion,
        BAND: band,
        LEVELS: levels,
        LIMIT: limits,
        SLOPE: g_slope,
    },
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

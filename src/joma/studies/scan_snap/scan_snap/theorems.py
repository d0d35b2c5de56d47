"""Theorem 3 (the relative gain and its bounds) and Theorem 4 (transition, late growth, freezing) on recorded flows."""

from typing import Any

import numpy as np

from joma.claims.contract import Claim, Finding
from joma.claims.declare import Claims
from joma.claims.verdicts import above, at_least, at_most, below, by_residual, by_tests
from joma.runs import Run
from joma.studies.scan_snap.scan_snap import run as series
from joma.studies.scan_snap.scan_snap.run import gains, passes, phases, recorded, straight_line

CLOSED_FORM = 1e-5  # the trapezoidal rule over 3,000 steps is good to about 1e-6
SLOW = 0.03  # the largest ratio of the rates that counts as eta_Z << eta_Y
UNEQUAL = 0.05
"""Of chi - 1: factors that differ by less are one factor. Chosen after a first look at the spread over ratios."""
JUDGED_AT = 2e4  # in units of 1/eta_Y: long after the transition; late laws are fitted from 10 transition times on
STRAIGHT = 0.05  # of the range: rms residual of a straight line through points that lie on one
FROZEN_SPEED = 0.1  # of the largest speed of B
SPARSER = 0.05  # of the entropy at the start, as in the study of decoders

CLAIMS = Claims()


@CLAIMS.declare("relative-gain", "Scan&Snap Thm 3")
def _relative_gain(run: Run, claim: Claim) -> Finding:
    """If z′ = ξ f² on the distinct tokens of a class, then r(t) = r(0) χ for every pair, with χ = exp(2 ∫ f² dB).

    Expected: r(t)/r(0) equals exp(2 ∫ f² dB) for every other token.
    """
    found = run.value("premise/gain")  # (draws, others + 2)
    ratio, chi, wrong = found[:, :-2], found[:, -2:-1], found[:, -1:]
    return by_residual(
        claim,
        printed=float(np.abs(ratio / chi - 1).max()),
        tolerance=CLOSED_FORM,
        what="largest relative difference",
        control={"exp(2 ∫ f dB), without the square": float(np.abs(ratio / wrong - 1).min())},
        details={"first draw": {"r(t)/r(0)": float(ratio[0].mean()), "χ": float(chi[0, 0])}},
    )


def relative_spread(run: Run) -> tuple[Any, Any]:
    """Of every ratio: spread of chi over the other tokens as a share of its movement, at `JUDGED_AT`."""
    chi = gains(run, "ratio")  # (steps, ratios, others)
    mean = np.exp(np.log(chi).mean(-1))
    spread = (chi.max(-1) / chi.min(-1) - 1) / np.where(mean == 1, np.nan, mean - 1)
    moved = [np.flatnonzero(column >= 1.01) for column in mean.T]
    matched = [spread[steps[0], k] if len(steps) else np.nan for k, steps in enumerate(moved)]
    return spread[int(np.abs(np.log(run.value("ratio/t") / JUDGED_AT)).argmin())], np.array(matched)


@CLAIMS.declare("one-gain-for-all", "Scan&Snap Thm 3", uses=("scan-snap/relative-gain",))
def _premise(run: Run, claim: Claim) -> Finding:
    """In the model, χ of the most frequent token is the same against all other distinct tokens of its class.

    Corrected: It is nearly the same only if η_Z is far below η_Y. Its relative spread grows with η_Z/η_Y.
    """
    ratios, (spread, matched) = run.value("ratio/ratios"), relative_spread(run)
    return by_tests(
        claim,
        expected=f"Relative spread at most {UNEQUAL:g}: at all ratios as printed, at the smallest as corrected.",
        printed=[at_most("largest relative spread", float(spread.max()), UNEQUAL)],
        corrected=[
            at_most(f"relative spread at η_Z/η_Y = {ratios[0]:g}", float(spread[0]), UNEQUAL),
            above("smallest increase from one ratio to the next", float(np.diff(spread).min()), 0.0),
            above("the same where χ has moved by 1 % at all ratios", float(np.diff(matched).min()), 0.0),
        ],
        details={
            "relative spread by ratio": {f"{r:g}": float(s) for r, s in zip(ratios, spread, strict=True)},
            "where χ has moved by 1 %": {f"{r:g}": float(s) for r, s in zip(ratios, matched, strict=True)},
        },
    )


@CLAIMS.declare("gain-bounds", "Scan&Snap Thm 3", uses=("scan-snap/one-gain-for-all",))
def _bounds(run: Run, claim: Claim) -> Finding:
    """In the model, exp(2 f(0)² B) ≤ χ ≤ exp(2 B) for the most frequent token.

    Corrected: This holds to within the spread of χ if η_Z is far below η_Y. At equal rates the lower bound fails.
    Expected: ln χ lies between 2 f(0)² B and 2 B: at all ratios as printed, at small ones as corrected.

    ln chi minus the logarithm of each bound, as a share of ln chi; chi is a geometric mean over the other tokens.
    """
    ratios, chi, growth = run.value("ratio/ratios"), gains(run, "ratio"), series.dominant_growth(run, "ratio")
    p = run.value("p")[0]
    f0 = p[int(run.config["distinct"]) - 1] / np.sqrt((p**2).sum())
    log, low, high = np.log(chi).mean(-1), 2 * f0**2 * growth, 2 * growth
    path = recorded(run, "ratio").z[..., int(run.config["distinct"]) - 1]  # dB = dz / f^2, so that int f^2 dB is z
    end = int(np.abs(np.log(run.value("ratio/t") / JUDGED_AT)).argmin())
    under, over = ((log - low) / log)[end], ((high - log) / log)[end]
    slow = ratios <= SLOW
    return by_tests(
        claim,
        printed=[
            at_least("smallest of ln χ − 2 f(0)² B, as a share of ln χ", float(under.min()), 0.0),
            at_least("smallest of 2 B − ln χ, as a share of ln χ", float(over.min()), 0.0),
        ],
        corrected=[
            at_least(f"the first for ratios up to {SLOW:g}", float(under[slow].min()), -UNEQUAL / 2),
            at_least("the second", float(over[slow].min()), 0.0),
            below("the first at the largest ratio", float(under[-1]), -UNEQUAL / 2),
        ],
        details={
            f"at η_Z/η_Y = {ratios[k]:g}": {
                "χ from r(t)/r(0)": float(np.exp(log[end, k])),
                "χ from exp(2 ∫ f² dB)": float(np.exp(2 * path[end, k])),
                "lower bound": float(np.exp(low[end, k])),
                "upper bound": float(np.exp(high[end, k])),
            }
            for k in (0, -1)
        },
    )


@CLAIMS.declare("transition-time", "Scan&Snap Thm 4")
def _transition(run: Run, claim: Claim) -> Finding:
    """Scanning turns into snapping at a time of the order of 2 K ln M / η_Y.

    Expected: The right output passes ½ between ½ and 2 times K ln M / η_Y. The factor ln M is needed.

    The measured time in units of K ln M / eta_Y, and in units without ln M.
    """
    cases, time = run.value("transition/cases"), run.value("transition/time")
    plain = cases[:, 0] / cases[:, 2]
    scaled, without = time / (plain * np.log(cases[:, 1])), time / plain
    return by_tests(
        claim,
        printed=[
            at_most("latest, in units of K ln M / η_Y", float(scaled.max()), 2.0),
            at_least("earliest", float(scaled.min()), 0.5),
        ],
        controls=[
            below(
                "largest over smallest in these units, as a share of the same without ln M",
                float((scaled.max() / scaled.min()) / (without.max() / without.min())),
                1.0,
            )
        ],
        details={
            f"K = {k:g}": {f"M = {m:g}": float(s) for (n, m, _), s in zip(cases, scaled, strict=True) if n == k}
            for k in np.unique(cases[:, 0])
        },
    )


def late_fits(run: Run) -> dict[str, Any]:
    """Straight lines through late points of every ratio: of e^B and of B, against ln^2(M t / K)."""
    t, growth = run.value("ratio/t"), series.dominant_growth(run, "ratio")
    many, words = int(run.config["classes"]), int(run.config["vocabulary"])
    found: dict[str, list[tuple[float, float, float]]] = {"printed": [], "rival": []}
    for k, begin in enumerate(passes(t, recorded(run, "ratio").alpha)):
        late = (t >= 10 * begin) & (t <= JUDGED_AT)
        x = np.log(words * t[late] / many) ** 2
        found["printed"].append(straight_line(x, np.exp(growth[late, k])))
        found["rival"].append(straight_line(x, growth[late, k]))
    return {name: np.array(lines) for name, lines in found.items()}


@CLAIMS.declare("late-growth", "Scan&Snap Thm 4", uses=("scan-snap/transition-time",))
def _late(run: Run, claim: Claim) -> Finding:
    """After the transition e^B is affine in ln²(M η_Y t / K).

    Expected: e^B against ln² is straight within 5 % of its range, and straighter than B itself.

    How straight e^B is, and whether B itself is less straight: if not, the form is not told apart.
    """
    fits, ratios = late_fits(run), run.value("ratio/ratios")
    slow = ratios <= SLOW
    own, rival = (fits[name][slow, 2] for name in ("printed", "rival"))
    return by_tests(
        claim,
        printed=[at_most(f"largest rms residual for ratios up to {SLOW:g}", float(own.max()), STRAIGHT, "%")],
        controls=[above("smallest gain over B affine in ln²", float((rival - own).min()), 0.0, "%")],
        details={
            "rms residual of e^B by ratio": _by_ratio(ratios, fits["printed"][:, 2]),
            "rms residual of B by ratio": _by_ratio(ratios, fits["rival"][:, 2]),
        },
    )


@CLAIMS.declare("late-slope", "Scan&Snap Thm 4", uses=("scan-snap/late-growth",))
def _slope(run: Run, claim: Claim) -> Finding:
    """The slope of e^B against ln²(M η_Y t / K) is 2 K η_Z/η_Y.

    Expected: The slope is the printed one within 10 % for small ratios.
    """
    fits, ratios, many = late_fits(run), run.value("ratio/ratios"), int(run.config["classes"])
    found = fits["printed"][:, 1]
    share = found / (2 * many * ratios)
    slow = ratios <= SLOW
    return by_tests(
        claim,
        printed=[at_most("largest relative error for small ratios", float(np.abs(share[slow] - 1).max()), 0.1)],
        direction=[above("smallest increase with the ratio, for small ones", float(np.diff(found[slow]).min()), 0.0)],
        details={
            "slope over η_Z/η_Y by ratio": _by_ratio(ratios, found / ratios),
            "share of the printed slope": _by_ratio(ratios, share),
        },
    )


def _by_ratio(ratios: Any, values: Any) -> dict[str, float]:
    return {f"{ratio:g}": float(value) for ratio, value in zip(ratios, values, strict=True)}


def same_clock(run: Run) -> float:
    """The largest difference of B at equal rate x time between the smallest rate and the others."""
    growth, rates = series.dominant_growth(run, "equal"), np.array(run.config["equal_rates"])
    steps, worst = np.arange(len(growth)), 0.0
    for k, factor in enumerate(rates / rates[0]):
        if factor == round(factor):
            mine = steps[:: int(factor)]
            worst = max(worst, float(np.abs(growth[mine, 0] - growth[: len(mine), k]).max()))
    return worst


@CLAIMS.declare("larger-rates-larger-growth", "Scan&Snap Thm 4")
def _equal(run: Run, claim: Claim) -> Finding:
    """If η_Y = η_Z, larger rates give an earlier transition and a larger B at the same time.

    Expected: From rate to rate the transition is earlier and B at the last time larger.

    Time of the transition and B at the last time, for every rate. In the flow a rate is only a clock.
    """
    flow = recorded(run, "equal")
    time, growth = passes(flow.t, flow.alpha), series.dominant_growth(run, "equal")[-1]
    rates = run.config["equal_rates"]
    return by_tests(
        claim,
        printed=[
            below("largest change of the transition from rate to rate", float(np.diff(time).max()), 0.0),
            above("smallest change of B from rate to rate", float(np.diff(growth).min()), 0.0),
        ],
        details={
            "transition by rate": _by_ratio(rates, time),
            "B by rate": _by_ratio(rates, growth),
            "rates only set the clock": {"largest difference of B at equal rate × time": same_clock(run)},
        },
    )


@CLAIMS.declare("faster-decoder-denser-attention", "Scan&Snap Thm 4")
def _fixed(run: Run, claim: Claim) -> Finding:
    """If η_Z is fixed, a larger η_Y gives a slightly smaller B: denser attention.

    Expected: B falls from η_Y to η_Y: late at a small η_Z, and at every η_Z of the phase plot.

    B at the last time of one eta_Z, and at every eta_Z of the phase plot.

    The phase plot was added to the tests after a first look at it: there B rises with eta_Y where eta_Z is large.
    """
    growth, rates = series.dominant_growth(run, "fixed")[-1], run.config["decoder_rates"]
    change = np.diff(phases(run)["growth"], axis=0)  # from one eta_Y to the next, at every eta_Z
    late = below("largest change of B from η_Y to η_Y, late and at a small η_Z", float(np.diff(growth).max()), 0.0)
    return by_tests(
        claim,
        printed=[late, below("the same over the phase plot", float(change.max()), 0.0)],
        direction=[late],
        details={
            f"B at t = {run.value('fixed/t')[-1]:g} by η_Y, η_Z = {run.config['fixed_rate']:g}": _by_ratio(
                rates, growth
            ),
            "phase plot": {"share of steps in η_Y at which B falls": float((change < 0).mean())},
        },
    )


@CLAIMS.declare(
    "attention-sparser",
    "JoMA talk slide Winners",
    uses=("scan-snap/common-tokens-lose", "scan-snap/distinct-tokens-gain"),
)
def _sparse(run: Run, claim: Claim) -> Finding:
    """Attention becomes sparse: it moves to the distinct tokens of the class."""
    flow = recorded(run, "ratio")
    share = series.attention(run, flow.z[:, -1])
    begin = series.attention(run, np.zeros_like(flow.z[0, -1]))
    course, start = series.entropy(share), float(series.entropy(begin))
    own = slice(0, int(run.config["distinct"]))
    moved = above("gain of the distinct tokens' share", float(share[-1, own].sum() - begin[own].sum()), 0.0, "%")
    lost = 1 - float(course[-1]) / start
    return by_tests(
        claim,
        expected=f"At the largest ratio entropy only falls, by at least {SPARSER:.0%} at the last time.",
        printed=[
            at_most("largest step upwards", float(np.diff(course).max()), 1e-9, "nats"),
            at_least("share of the entropy that is lost", lost, SPARSER, "%"),
            moved,
        ],
        direction=[above("share of the entropy that is lost", lost, 0.0, "%"), moved],
        details={
            "at the last time": {
                "share of the most frequent token": float(share[-1].max()),
                "entropy in nats": float(course[-1]),
                "entropy at the start": start,
            }
        },
    )


@CLAIMS.declare("attention-frozen", "JoMA talk slide Frozen", uses=("scan-snap/transition-time",))
def _frozen(run: Run, claim: Claim) -> Finding:
    """After the transition attention is frozen.

    Expected: At 100 transition times B moves at less than 10 % of its peak, and slows down more than the decoder.

    Speeds at 100 transition times as a share of their peaks: of B, and of the decoder's margin as the control.
    """
    flow, ratios = recorded(run, "ratio"), run.value("ratio/ratios")
    begin = passes(flow.t, flow.alpha)
    own, decoder = (_slowed(flow.t, value, begin) for value in (flow.growth[..., -1], flow.margin))
    after = 1 - np.array([np.interp(10 * b, flow.t, g) for b, g in zip(begin, flow.growth[..., -1].T, strict=True)])
    after = 1 - (1 - after) / flow.growth[-1, :, -1]
    return by_tests(
        claim,
        printed=[at_most("speed of B at 100 transition times, of its peak", float(own.max()), FROZEN_SPEED, "%")],
        controls=[below("that as a multiple of the decoder's", float((own / decoder).min()), 1.0)],
        details={
            "speed of B by ratio": _by_ratio(ratios, own),
            "speed of the decoder's margin": _by_ratio(ratios, decoder),
            "share of B gained after 10 transition times": _by_ratio(ratios, after),
        },
    )


def _slowed(t: Any, values: Any, begin: Any) -> Any:
    speed = np.gradient(values, t, axis=0)
    return np.array([np.interp(100 * b, t, s) / s.max() for b, s in zip(begin, speed.T, strict=True)])

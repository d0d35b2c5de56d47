"""The study of Theorem 1 outside gradient flow: its claims, its sizes and its figure."""

from functools import partial
from typing import Any

import numpy as np

from joma.claims.contract import Claim, Drawing, Finding, Study
from joma.claims.evidence import Test, above, at_most
from joma.claims.verdicts import by_effect, by_residual, by_tests, not_run
from joma.figures.labels import end_label, label_lines
from joma.figures.reading import number
from joma.figures.style import BLUE, GREEN, ORANGE, PURPLE, RED, panels
from joma.measure.intervals import compare
from joma.runs import Run
from joma.studies.invariant.thm1_sgd.run import KINDS, RECIPES, Kind, Thm1SgdConfig, run

HALF = 0.5  # of the movement of z: a relation that leaves more than half of it open does not describe it
INVARIANTS = ("thm1/exp-invariant", "thm1/linear-invariant")
IDENTITY_EXP = Claim(
    "sgd-identity-exp",
    "JoMA Thm 1",
    "Under exp attention z − κΣv²/(2T) does not change in training (κ, T printed as 1).",
    "Under SGD it changes by exactly −κ/(2T) ΣΣ(Δv)², summed over steps and nodes, for any batches. So z lags behind.",
    uses=("thm1/exp-invariant",),
)
IDENTITY_LINEAR = Claim(
    "sgd-identity-linear",
    "JoMA Thm 1",
    "Under linear attention z² − κΣv² does not change in training (κ printed as 1).",
    "Under SGD it changes by exactly Σ[(Δz)² − κΣ(Δv)²], summed over steps and nodes, for any batches.",
    uses=("thm1/linear-invariant",),
)
LIMIT = Claim(
    "sgd-limit",
    "JoMA Thm 1",
    "The relation is derived for gradient flow. It also describes SGD with small steps.",
    uses=INVARIANTS,
)
BATCHES = Claim(
    "sgd-minibatch",
    "JoMA Thm 1",
    "The relation holds for any data, so it also describes minibatch training with small steps.",
    uses=INVARIANTS,
)
MOMENTUM = Claim(
    "sgd-momentum",
    "JoMA Thm 1",
    "The relation holds in training. Momentum is not mentioned.",
    "With momentum β the drift is still O(η). It is (1 + β)/(1 − β) times the drift of SGD at the same effective rate.",
    uses=("thm1-sgd/sgd-limit",),
)
ADAM = Claim(
    "adam",
    "JoMA Thm 1",
    "The relation is derived for gradient flow and stated for training in general. So it covers Adam with small steps.",
    matters=HALF,
    unit="%",
    ceiling=1.0,
    uses=INVARIANTS,
)
DECAY_EXP = Claim(
    "weight-decay-exp",
    "JoMA Thm 1",
    "The relation for exp attention holds in training. Weight decay is not mentioned.",
    "Weight decay adds exactly −η_z(λ_z z − λ_w Σv²/T) per step to the drift of SGD. No small rate removes it.",
    uses=("thm1-sgd/sgd-identity-exp",),
)
DECAY_LINEAR = Claim(
    "weight-decay-linear",
    "JoMA Thm 1",
    "The relation for linear attention holds in training. Weight decay is not mentioned.",
    "Weight decay adds exactly −2η_z(λ_z z² − λ_w Σv²) per step. At equal rates and decay z² − Σv² falls as exp(−2λt).",
    uses=("thm1-sgd/sgd-identity-linear",),
)


EXACT = 1e-13  # an identity of finite sums: only rounding is left
ORDER = 0.15  # how far a fitted order may lie from 1
LAW = 0.05  # relative, for a law that holds to first order in the rate


def relative_drift(run: Run, name: str) -> Any:
    """|drift| over |movement|, norms over all tokens of all members. (rates,)."""
    drift, moved = (np.linalg.norm(run.value(f"{name}/{key}"), axis=(-2, -1)) for key in ("drift", "moved"))
    return drift / moved


def _explained(run: Run, name: str) -> Any:
    """1 − |drift| / |movement| of every member at the smallest rate: 1 if the relation is exact, 0 if it says no more
    of z than that it stays where it was. (members,).
    """
    drift, moved = (np.linalg.norm(run.value(f"{name}/{key}")[-1], axis=-1) for key in ("drift", "moved"))
    with np.errstate(divide="ignore", invalid="ignore"):  # a network that did not move has no such share
        return 1 - drift / moved


def _order(run: Run, name: str) -> float:
    """The power of the rate with which the relative drift vanishes."""
    return float(np.polyfit(np.log(run.value("rates")), np.log(relative_drift(run, name)), 1)[0])


def _orders(run: Run, recipe: str) -> dict[str, float]:
    what = "distance of the order of the drift in η from 1"
    return {f"{kind} attention: {what}": abs(_order(run, f"{kind}/{recipe}") - 1) for kind in KINDS}


def _first_order(run: Run, recipe: str) -> list[Test]:
    return [at_most(what, off, ORDER) for what, off in _orders(run, recipe).items()]


def _drifts(run: Run, *recipes: str) -> dict[str, dict[str, float]]:
    """Relative drifts at the smallest rate and their orders."""
    return {
        f"{kind} attention, {recipe}": {
            "drift / movement of z at the smallest η": float(relative_drift(run, f"{kind}/{recipe}")[-1]),
            "order in η": _order(run, f"{kind}/{recipe}"),
        }
        for recipe in recipes
        for kind in KINDS
    }


def identity(run: Run, *, claim: Claim, kind: Kind, decayed: bool) -> Finding:
    """With the sums over the steps of other batches, or of SGD without decay, the identity must not come out."""
    recipes = ("weight decay",) if decayed else ("full batch", "minibatch")
    foreign = ("full batch",) if decayed else ("minibatch", "full batch")
    control = "the sum over the steps of " + ("SGD without decay" if decayed else "the other batches")
    drift, predicted, other = (
        np.stack([run.value(f"{kind}/{recipe}/{key}") for recipe in which])
        for which, key in ((recipes, "drift"), (recipes, "predicted"), (foreign, "predicted"))
    )
    return by_residual(
        claim,
        printed=np.abs(drift).max(),
        corrected=np.abs(drift - predicted).max(),
        tolerance=EXACT,
        what="largest difference",
        expected="The drift equals its sum over steps at every rate.",
        control={control: np.abs(drift - other).max()},
    )


def vanishes(run: Run, *, claim: Claim, recipe: str) -> Finding:
    """The drift of `recipe` is of order 1 in the rate; with weight decay, which no small rate removes, it must not."""
    expected = "The drift is of order 1 in η."
    controls = [above(f"with weight decay, {what}", off, ORDER) for what, off in _orders(run, "weight decay").items()]
    return by_tests(
        claim, expected=expected, printed=_first_order(run, recipe), controls=controls, details=_drifts(run, recipe)
    )


def momentum(run: Run) -> Finding:
    """The drift at rate 0 beside that of SGD; plain SGD itself must not follow the law."""
    law = (1 + float(run.config["momentum"])) / (1 - float(run.config["momentum"]))
    largest = np.abs([run.value(f"{kind}/momentum/drift") for kind in KINDS]).max()
    ratio, plain = (
        {str(kind): _ratio_to_sgd(run, kind, recipe) for kind in KINDS} for recipe in ("momentum", "full batch")
    )
    what = "attention: relative distance of drift / drift of SGD at η → 0 from (1 + β)/(1 − β)"
    return by_tests(
        MOMENTUM,
        expected="As printed: no drift. As corrected: (1 + β)/(1 − β) times the drift of SGD at η → 0.",
        printed=[at_most("largest drift", largest, EXACT)],
        corrected=[at_most(f"{kind} {what}", abs(ratio[kind] / law - 1), LAW) for kind in KINDS],
        controls=[above(f"plain SGD, {kind} {what}", abs(plain[kind] / law - 1), LAW) for kind in KINDS],
        details={"drift / drift of SGD at η → 0": ratio | {"(1 + β)/(1 − β)": law}} | _drifts(run, "momentum"),
    )


def _ratio_to_sgd(run: Run, kind: Kind, recipe: str) -> float:
    """The ratio of drifts at rate 0, from the two smallest rates: what is left of order η cancels."""
    ratio = relative_drift(run, f"{kind}/{recipe}") / relative_drift(run, f"{kind}/full batch")
    return float(np.polyval(np.polyfit(run.value("rates")[-2:], ratio[-2:], 1), 0.0))


def adam(run: Run) -> Finding:
    """Beside the estimate that z stays where it was: a relation that covers Adam explains more than that."""
    expected = "The relation explains most of the movement of z at the smallest rate, and its drift is of order 1 in η."
    explained = {f"{kind} attention": compare(_explained(run, f"{kind}/Adam"), 0.0) for kind in KINDS}
    if not all(shares.seeds for shares in explained.values()):
        reason = "no network moved by a finite amount under Adam"
        return not_run(ADAM, expected, reason, "joma run thm1-sgd --rates 0.05 0.025 0.0125")
    what = "share of the movement of z that the relation explains at the smallest η"
    details = _drifts(run, "Adam", "full batch")
    return by_effect(
        ADAM, explained, what=what, expected=expected, over="networks", size=_first_order(run, "Adam"), details=details
    )


def draw(run: Run) -> list[Drawing]:
    """Relative drift against the rate, and one drift over training beside its identity."""
    figure, (left, right) = panels(2, width=4.6, height=3.0)
    rates = run.value("rates")
    colours = dict(zip(RECIPES, (BLUE, GREEN, ORANGE, RED, PURPLE), strict=True))
    for recipe, colour in colours.items():
        for kind, style, label in zip(KINDS, ("o-", "s:"), (recipe, None), strict=True):
            left.plot(rates, relative_drift(run, f"{kind}/{recipe}"), style, color=colour, ms=4, label=label)
    end_label(left, "circles: exp", marker="o", ms=4, ls="-")
    end_label(left, "squares: linear", marker="s", ms=4, ls=":")
    left.set(xscale="log", yscale="log", xlabel="learning rate η", ylabel="drift / movement of z")
    left.set_title("Which optimisers keep Theorem 1")
    left.set_xticks(rates, [f"{rate:g}" for rate in rates])
    left.minorticks_off()
    left.set_xlim(rates.max() * 1.1, rates.min() / 1.1)
    for recipe in ("full batch", "minibatch"):
        path, predicted = (run.value(f"exp/{recipe}/{key}")[:, 0] for key in ("drift path", "predicted path"))
        time = np.arange(len(path)) * rates[-1]
        right.plot(time, path, color=colours[recipe], label=recipe)
        dots = slice(None, None, max(len(path) // 12, 1))
        right.plot(time[dots], predicted[dots], "o", ms=4, mfc="none", color=colours[recipe])
    end_label(right, "circles: exact sum\n−κ/(2T) ΣΣ(Δv)²", marker="o", ms=4, mfc="none", ls="")
    right.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    right.set(xlabel="training time η · steps", ylabel="change of z − κΣv²/(2T)")
    right.set_title(f"The drift of one token is known (exp, η = {rates[-1]:g})", pad=14)
    for axis in (left, right):
        label_lines(axis)
    plain, adam = (number(relative_drift(run, f"exp/{recipe}")[-1], "%") for recipe in ("full batch", "Adam"))
    caption = (
        "Plain SGD, minibatches and momentum approach Theorem 1 as the rate falls. Adam and weight decay stay far "
        f"from it. At the smallest rate the drift under exp attention is {plain} of the movement for plain SGD and "
        f"{adam} for Adam. Left: "
        "the drift of the invariant at the end of training, as a share of the movement of the logits, against the "
        "learning rate. Right: the drift of one token over training, with its exact sum over steps."
    )
    return [Drawing("sgd-drift", caption, figure)]


STUDY = Study(
    name="thm1-sgd",
    title="Theorem 1 under SGD, momentum, Adam and weight decay",
    version=1,
    claims={
        IDENTITY_EXP: partial(identity, claim=IDENTITY_EXP, kind="exp", decayed=False),
        IDENTITY_LINEAR: partial(identity, claim=IDENTITY_LINEAR, kind="linear", decayed=False),
        LIMIT: partial(vanishes, claim=LIMIT, recipe="full batch"),
        BATCHES: partial(vanishes, claim=BATCHES, recipe="minibatch"),
        MOMENTUM: momentum,
        ADAM: adam,
        DECAY_EXP: partial(identity, claim=DECAY_EXP, kind="exp", decayed=True),
        DECAY_LINEAR: partial(identity, claim=DECAY_LINEAR, kind="linear", decayed=True),
    },
    quick=Thm1SgdConfig(),
    paper=Thm1SgdConfig(samples=40, batch=8, members=64, rates=(0.2, 0.1, 0.05, 0.025, 0.0125, 0.00625), horizon=8.0),
    run=run,
    draw=draw,
    about=(
        "A JoMA block with tanh nodes and a cross-entropy loss is trained by real optimisers. Several networks are "
        "trained at several rates up to the same training time, under exp and under linear attention. The change of "
        "the invariant is compared with its exact sum over steps. A line is fitted to the drift, as a share of the "
        "movement of the logits, against the rate. Momentum gets the rate η(1 − β), so that it moves as far as plain "
        "SGD. For Adam the interval is over networks. It asks whether the relation predicts the logits better than the "
        "guess that they never move."
    ),
)

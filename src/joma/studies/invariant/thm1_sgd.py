"""Theorem 1 outside gradient flow: finite steps, minibatches, momentum, Adam, weight decay."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Above, Claim, Drawing, Finding, Progress, Study, StudyConfig, Values
from joma.claims.declare import Claims
from joma.claims.verdicts import Test, above, at_most, by_effect, by_residual, by_tests, not_run
from joma.figures.labels import end_label
from joma.figures.reading import number
from joma.figures.style import BLUE, GREEN, ORANGE, PURPLE, RED, panels
from joma.measure.intervals import compare
from joma.models import JomaBlock
from joma.runs import Run
from joma.studies.invariant._blocks import as_module
from joma.theory.attention import Attention, random_orthonormal
from joma.theory.flow import State
from joma.theory.invariant import first_integral, sgd_drift

Kind = Literal["exp", "linear"]
KINDS: tuple[Kind, ...] = ("exp", "linear")
RECIPES = ("full batch", "minibatch", "momentum", "Adam", "weight decay")
KNOWN = ("full batch", "minibatch", "weight decay")  # Recipes whose drift is an exact sum over steps


@dataclass(frozen=True)
class Thm1SgdConfig(StudyConfig):
    """A JoMA block trained with the same data and start at several rates, up to one training time."""

    tokens: int = 10
    nodes: int = 4
    samples: int = 24
    batch: int = 6
    members: int = 6
    """Independent starts and data sets, trained at once."""
    rates: Annotated[tuple[float, ...], Values(2, "for an order"), Above(0)] = (0.2, 0.1, 0.05, 0.025)
    horizon: float = 4.0
    """Training time: rate times steps."""
    kappa: float = 0.5
    """Rate of z over rate of W."""
    temperature: float = 0.8
    momentum: float = 0.9
    decay_w: float = 0.1
    decay_z: float = 0.05
    seed: int = 0

    def form(self, kind: Kind) -> dict[str, Any]:
        return {"kind": kind, "kappa": self.kappa, "temperature": self.heat(kind)}

    def heat(self, kind: Kind) -> float:
        return self.temperature if kind == "exp" else 1.0


class Data(NamedTuple):
    """Members x samples: token frequencies, labels; and a start for every member."""

    x: Tensor
    label: Tensor
    start: State
    embeddings: Tensor


def run(config: Thm1SgdConfig, run: Run, progress: Progress) -> None:
    """Train every recipe at every rate and record how far the first integral went, and how far it should have."""
    generator = torch.Generator().manual_seed(config.seed)
    m, n, t = config.members, config.samples, config.tokens
    x = torch.rand(m, n, t, generator=generator, dtype=torch.float64)
    label = torch.randint(config.nodes, (m, n), generator=generator)
    embeddings = random_orthonormal(t + 2, t + 1, generator=generator)
    w = 0.3 * torch.randn(m, t + 2, config.nodes, generator=generator, dtype=torch.float64)
    z = 0.5 * torch.randn(m, 1, t, generator=generator, dtype=torch.float64)
    data = Data(x / x.sum(-1, keepdim=True) * 4, label, State(w, z), embeddings)
    run.keep("rates", lambda: np.array(config.rates))
    cases = [(kind, recipe) for kind in KINDS for recipe in RECIPES]
    for i, (kind, recipe) in enumerate(cases):
        progress(i / len(cases), f"{kind} attention, {recipe}")
        if f"{kind}/{recipe}/drift" not in run:
            record = _train_at_all_rates(kind, recipe, data, config)
            run.record(0, {f"{kind}/{recipe}/{name}": value for name, value in record.items()})


def _train_at_all_rates(kind: Kind, recipe: str, data: Data, config: Thm1SgdConfig) -> dict[str, Tensor]:
    """Drifts at the end of training, (rates, members, tokens), and over training for one member at the last rate."""
    ends: dict[str, list[Tensor]] = {"drift": [], "predicted": [], "moved": []}
    paths = {}
    for rate in config.rates:
        z, v = _train(kind, recipe, rate, data, config)
        invariant = first_integral(z, v, **config.form(kind))
        paths["drift"] = invariant - invariant[:, :1]
        if recipe in KNOWN:
            paths["predicted"] = _predicted(z, v, kind, recipe, rate, config)
        moving = z if kind == "exp" else z.square()  # what the drift is measured against
        ends["moved"].append(moving[:, -1] - moving[:, 0])
        for name, path in paths.items():
            ends[name].append(path[:, -1])
    record = {name: torch.stack(end) for name, end in ends.items() if end}
    return record | {f"{name} path": path[0] for name, path in paths.items()}


def _train(kind: Kind, recipe: str, rate: float, data: Data, config: Thm1SgdConfig) -> tuple[Tensor, Tensor]:
    """z (members, steps + 1, tokens) and V (members, steps + 1, tokens, nodes) along real training of the module."""
    attention = Attention(kind, temperature=config.heat(kind))
    embeddings = data.embeddings[:, :-1], data.embeddings[:, -1:]
    block = as_module(data.start, *embeddings, attention=attention, activation=torch.tanh)
    optimizer = _optimizer(block, recipe, rate, config)
    size = config.batch if recipe == "minibatch" else config.samples
    generator = torch.Generator().manual_seed(config.seed + 1)
    query = torch.zeros(size, dtype=torch.long)
    z, w = [data.start.z[:, 0]], [data.start.w]
    for _ in range(round(config.horizon / rate)):
        x, label = data.x, data.label
        if recipe == "minibatch":
            chosen = torch.rand(label.shape, generator=generator).argsort(-1)[:, :size]
            x, label = x.take_along_dim(chosen[..., None], 1), label.take_along_dim(chosen, 1)
        optimizer.zero_grad()
        likelihood = block(x, query).log_softmax(-1).take_along_dim(label[..., None], -1)
        loss = -likelihood.mean((-2, -1)).sum()  # the mean over samples; members do not touch each other
        loss.backward()
        optimizer.step()
        z.append(block.z.detach()[:, 0].clone())
        w.append(block.w.detach().clone())
    return torch.stack(z, 1), block.tokens.mT @ torch.stack(w, 1)


def _optimizer(block: JomaBlock, recipe: str, rate: float, config: Thm1SgdConfig) -> torch.optim.Optimizer:
    rate_w, rate_z = rate, rate * config.kappa
    if recipe == "momentum":
        still = 1 - config.momentum  # so that the effective rate is `rate`
        return block.sgd(rate_w=rate_w * still, rate_z=rate_z * still, momentum=config.momentum)
    if recipe == "Adam":
        return torch.optim.Adam([{"params": [block.w], "lr": rate_w}, {"params": [block.z], "lr": rate_z}])
    optimizer = block.sgd(rate_w=rate_w, rate_z=rate_z)
    if recipe == "weight decay":
        for group, decay in zip(optimizer.param_groups, (config.decay_w, config.decay_z), strict=True):
            group["weight_decay"] = decay
    return optimizer


def _predicted(z: Tensor, v: Tensor, kind: Kind, recipe: str, rate: float, config: Thm1SgdConfig) -> Tensor:
    """The drift that plain SGD has on this path, plus what weight decay adds. (members, steps + 1, tokens)."""
    drift = sgd_drift(z, v, **config.form(kind))
    if recipe != "weight decay":
        return drift
    squares = v.square().sum(-1)
    if kind == "exp":
        added = config.decay_w * squares / config.temperature - config.decay_z * z
    else:
        added = 2 * (config.decay_w * squares - config.decay_z * z.square())
    sums = rate * config.kappa * added[:, :-1].cumsum(1)
    return drift + torch.cat([torch.zeros_like(sums[:, :1]), sums], 1)


HALF = 0.5  # of the movement of z: a relation that leaves more than half of it open does not describe it
INVARIANTS = ("thm1/exp-invariant", "thm1/linear-invariant")
CLAIMS = Claims(source="JoMA Thm 1")


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
    return float(np.polyfit(np.log(run.value("rates")), np.log(relative_drift(run, name)), 1)[0])


def _orders(run: Run, recipe: str) -> dict[str, float]:
    what = "distance of the order of the drift in η from 1"
    return {f"{kind} attention: {what}": abs(_order(run, f"{kind}/{recipe}") - 1) for kind in KINDS}


def _first_order(run: Run, recipe: str) -> list[Test]:
    return [at_most(what, off, ORDER) for what, off in _orders(run, recipe).items()]


def _drifts(run: Run, *recipes: str) -> dict[str, dict[str, float]]:
    return {
        f"{kind} attention, {recipe}": {
            "drift / movement of z at the smallest η": float(relative_drift(run, f"{kind}/{recipe}")[-1]),
            "order in η": _order(run, f"{kind}/{recipe}"),
        }
        for recipe in recipes
        for kind in KINDS
    }


def identity(run: Run, claim: Claim, kind: Kind, decayed: bool) -> Finding:
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


def vanishes(run: Run, claim: Claim, recipe: str) -> Finding:
    """The drift of `recipe` is of order 1 in the rate; with weight decay, which no small rate removes, it must not."""
    controls = [above(f"with weight decay, {what}", off, ORDER) for what, off in _orders(run, "weight decay").items()]
    return by_tests(
        claim,
        expected="The drift is of order 1 in η.",
        printed=_first_order(run, recipe),
        controls=controls,
        details=_drifts(run, recipe),
    )


CLAIMS.declare(
    "sgd-identity-exp",
    text="Under exp attention z − κΣv²/(2T) does not change in training (κ, T printed as 1)."
    "\n\nCorrected: Under SGD it changes by exactly −κ/(2T) ΣΣ(Δv)², summed over steps and nodes, for any "
    "batches. So z lags behind.",
    uses=("thm1/exp-invariant",),
)(partial(identity, kind="exp", decayed=False))
CLAIMS.declare(
    "sgd-identity-linear",
    text="Under linear attention z² − κΣv² does not change in training (κ printed as 1)."
    "\n\nCorrected: Under SGD it changes by exactly Σ[(Δz)² − κΣ(Δv)²], summed over steps and nodes, for any "
    "batches.",
    uses=("thm1/linear-invariant",),
)(partial(identity, kind="linear", decayed=False))
CLAIMS.declare(
    "sgd-limit",
    text="The relation is derived for gradient flow. It also describes SGD with small steps.",
    uses=INVARIANTS,
)(partial(vanishes, recipe="full batch"))
CLAIMS.declare(
    "sgd-minibatch",
    text="The relation holds for any data, so it also describes minibatch training with small steps.",
    uses=INVARIANTS,
)(partial(vanishes, recipe="minibatch"))


@CLAIMS.declare("sgd-momentum", uses=("thm1-sgd/sgd-limit",))
def momentum(run: Run, claim: Claim) -> Finding:
    """The relation holds in training. Momentum is not mentioned.

    Corrected: With momentum β the drift is still O(η). It is (1 + β)/(1 − β) times the drift of SGD at the same
    effective rate.
    Expected: As printed: no drift. As corrected: (1 + β)/(1 − β) times the drift of SGD at η → 0.

    The drift at rate 0 beside that of SGD; plain SGD itself must not follow the law.
    """
    law = (1 + float(run.config["momentum"])) / (1 - float(run.config["momentum"]))
    largest = np.abs([run.value(f"{kind}/momentum/drift") for kind in KINDS]).max()
    ratio, plain = ({str(kind): _ratio_to_sgd(run, kind, how) for kind in KINDS} for how in ("momentum", "full batch"))
    what = "attention: relative distance of drift / drift of SGD at η → 0 from (1 + β)/(1 − β)"
    return by_tests(
        claim,
        printed=[at_most("largest drift", largest, EXACT)],
        corrected=[at_most(f"{kind} {what}", abs(ratio[kind] / law - 1), LAW) for kind in KINDS],
        controls=[above(f"plain SGD, {kind} {what}", abs(plain[kind] / law - 1), LAW) for kind in KINDS],
        details={"drift / drift of SGD at η → 0": ratio | {"(1 + β)/(1 − β)": law}} | _drifts(run, "momentum"),
    )


def _ratio_to_sgd(run: Run, kind: Kind, recipe: str) -> float:
    ratio = relative_drift(run, f"{kind}/{recipe}") / relative_drift(run, f"{kind}/full batch")
    return float(np.polyval(np.polyfit(run.value("rates")[-2:], ratio[-2:], 1), 0.0))


@CLAIMS.declare("adam", matters=HALF, unit="%", ceiling=1.0, uses=INVARIANTS)
def adam(run: Run, claim: Claim) -> Finding:
    """The relation is derived for gradient flow and stated for training in general. So it covers Adam with small steps.

    Expected: The relation explains most of the movement of z at the smallest rate, and its drift is of order 1 in η.

    Beside the estimate that z stays where it was: a relation that covers Adam explains more than that.
    """
    explained = {f"{kind} attention": compare(_explained(run, f"{kind}/Adam"), 0.0) for kind in KINDS}
    if not all(shares.seeds for shares in explained.values()):
        reason = "no network moved by a finite amount under Adam"
        return not_run(claim, claim.expected, reason, rates=[0.05, 0.025, 0.0125])
    what = "share of the movement of z that the relation explains at the smallest η"
    details = _drifts(run, "Adam", "full batch")
    return by_effect(claim, explained, what=what, over="networks", size=_first_order(run, "Adam"), details=details)


CLAIMS.declare(
    "weight-decay-exp",
    text="The relation for exp attention holds in training. Weight decay is not mentioned."
    "\n\nCorrected: Weight decay adds exactly −η_z(λ_z z − λ_w Σv²/T) per step to the drift of SGD. No small rate"
    " removes it.",
    uses=("thm1-sgd/sgd-identity-exp",),
)(partial(identity, kind="exp", decayed=True))
CLAIMS.declare(
    "weight-decay-linear",
    text="The relation for linear attention holds in training. Weight decay is not mentioned."
    "\n\nCorrected: Weight decay adds exactly −2η_z(λ_z z² − λ_w Σv²) per step. At equal rates and decay z² − Σv²"
    " falls as exp(−2λt).",
    uses=("thm1-sgd/sgd-identity-linear",),
)(partial(identity, kind="linear", decayed=True))


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
    claims=CLAIMS,
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

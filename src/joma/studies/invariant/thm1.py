"""Theorem 1 for linear, exp and any other pointwise attention: eq. 14 and what follows from it along the flow."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Claim, Drawing, Finding, Least, Progress, Study, StudyConfig, Values
from joma.claims.declare import Claims
from joma.claims.verdicts import above, at_least, at_most, by_residual, by_tests
from joma.figures.bands import bound
from joma.figures.reading import number
from joma.figures.style import CONTROL, CORRECTED, GREEN, INK, ORANGE, panels
from joma.host.seeds import stream
from joma.runs import Run
from joma.studies.invariant import _blocks as blocks
from joma.studies.invariant._blocks import FLOW, KINDS, SMOOTH, drift, kept, largest, moments, pack, smallest, unpack
from joma.theory.attention import Attention, Sigma, derivative
from joma.theory.flow import Block, State, identity, integrate_together

COARSE = 1e-6  # the solver's rtol for controls, which drift by far more
SIGMAS: dict[str, Sigma] = {"sinh z": torch.sinh, "z³ + z": lambda z: z**3 + z}
BOTH_SIGMAS = blocks.side_by_side(list(SIGMAS.values()), 0)


@dataclass(frozen=True)
class Thm1Config(StudyConfig):
    """Random blocks of every activation, gradient and width, with and without the residual connection."""

    tokens: int = 6
    nodes: tuple[int, ...] = (1, 4)
    samples: int = 16
    horizon: float = 0.75
    steps: Annotated[int, Least(2, "the start and a later moment")] = 21
    kink_steps: Annotated[tuple[int, int], Values(2, "a coarse and a finer one", exactly=True, rising=True)] = (20, 80)
    """Runge-Kutta steps through half the horizon of a ReLU flow: a coarse and a fine count."""
    seed: int = 0


def run(config: Thm1Config, run: Run, progress: Progress) -> None:
    """Follow every block by an adaptive solver that knows nothing of the invariants, and record z and v."""
    run.keep("t", lambda: moments(config.horizon, config.steps))
    flows: dict[str, Callable[[], Tensor]] = {
        **{f"{kind}/{n} nodes": partial(_follow, config, kind, nodes=n) for kind in KINDS for n in config.nodes},
        "sigma": partial(_follow, config, "sigma"),
        **{f"{kind}/no residual": partial(_follow, config, kind, residual=False) for kind in KINDS},
        **{f"ReLU/{steps} steps": partial(_through_kinks, config, steps) for steps in config.kink_steps},
        "exp/other data": partial(_other_data, config),
        "exp/overlapping query": partial(_overlapping, config),
        "exp/two gradients": partial(_two_gradients, config),
    }
    for i, (name, compute) in enumerate(flows.items()):
        progress(i / (len(flows) + 1), name)
        run.keep(name, compute)
    progress(0.9, "the pull on the logits")
    run.keep("pull", lambda: _pull(config))
    run.keep("saliency", lambda: _saliency(config, *unpack(run.value("exp/no residual"))))
    run.keep("zero start/ReLU", lambda: _relu_at_zero(config))


def _block(config: Thm1Config, kind: str, *, nodes: int = 0, residual: bool = True) -> tuple[Block, State]:
    """A block and a start with one member for each smooth activation and gradient, (2, activations, gradients, ...)."""
    sigma: Any = BOTH_SIGMAS if kind == "sigma" else kind
    activation = blocks.side_by_side(list(SMOOTH.values()), -4)
    sizes: dict[str, Any] = {"nodes": nodes or config.nodes[-1], "activation": activation, "residual": residual}
    block, start = blocks.draw_block(config, sigma, 2, len(SMOOTH), **sizes)
    if kind != "sigma":
        start.w[1], start.z[1] = 0.0, 0.0
    return block, start


def _follow(config: Thm1Config, kind: str, **sizes: Any) -> Tensor:
    return _path(*_block(config, kind, **sizes), config)


def _path(block: Block, start: State, config: Thm1Config, *, rtol: float = 1e-12) -> Tensor:
    w, z = block.solve(*start, moments(config.horizon, config.steps), rtol=rtol)
    return pack(z, block.project(w))


def _through_kinks(config: Thm1Config, steps: int) -> Tensor:
    """ReLU flows of both KINDS side by side, (steps + 1, kinds, gradients, tokens, 1 + nodes)."""
    block, start = _block(config, "exp")
    sigma = blocks.side_by_side([torch.exp, identity], 0)
    block = replace(block, activation=torch.relu, attention=Attention(sigma, norm=block.attention.norm))
    (w, z), h = (part[0, : len(KINDS)] for part in start), config.horizon / 2 / steps
    path = [(z, w)]
    for time in torch.arange(steps, dtype=torch.float64).mul(h).tolist():
        k1 = block.velocity(w, z, time)
        k2 = block.velocity(w + h / 2 * k1.w, z + h / 2 * k1.z, time + h / 2)
        k3 = block.velocity(w + h / 2 * k2.w, z + h / 2 * k2.z, time + h / 2)
        k4 = block.velocity(w + h * k3.w, z + h * k3.z, time + h)
        w = w + h / 6 * (k1.w + 2 * k2.w + 2 * k3.w + k4.w)
        z = z + h / 6 * (k1.z + 2 * k2.z + 2 * k3.z + k4.z)
        path.append((z, w))
    logits, weights = (torch.stack(part) for part in zip(*path, strict=True))
    return pack(logits, block.project(weights))


def _other_data(config: Thm1Config) -> Tensor:
    """One token per sample, heavy tails, and samples that are all alike: (steps, 3, gradients, tokens, 1 + nodes)."""
    block, start = _block(config, "exp")
    generator = torch.Generator().manual_seed(stream(config.seed, "other data"))
    one_hot = torch.eye(config.tokens, dtype=torch.float64)[torch.arange(config.samples) % config.tokens]
    heavy = (3 * blocks.normal(config.samples, config.tokens, generator=generator)).softmax(-1)
    x = torch.stack([one_hot, heavy, block.x[:1].expand_as(heavy)])[:, None]  # beside the gradients
    return _path(replace(block, x=x, activation=SMOOTH["SiLU"]), State(start.w[0], start.z[0]), config)


def _overlapping(config: Thm1Config) -> Tensor:
    """The control: a query whose embedding is not orthogonal to those of the tokens."""
    block, start = _block(config, "exp")
    towards = 0.8 * block.queries + 0.6 * block.tokens.mean(-1, keepdim=True) * config.tokens**0.5
    return _path(replace(block, queries=towards), start, config, rtol=COARSE)


def _two_gradients(config: Thm1Config) -> Tensor:
    """The control: W and z each receive a gradient of their own."""
    block, start = _block(config, "exp")
    generator = torch.Generator().manual_seed(stream(config.seed, "two gradients"))
    other = replace(block, backprop=blocks.three_gradients(config.samples, start.w.shape[-1], generator))

    def field(time: float, w: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        return block.velocity(w, z, time).w, other.velocity(w, z, time).z

    w, z = integrate_together(field, start, moments(config.horizon, config.steps), rtol=COARSE)
    return pack(z, block.project(w))


def _pull(config: Thm1Config) -> Tensor:
    block, start = _block(config, "sigma")
    velocity = block.velocity(*start)
    left = (BOTH_SIGMAS(start.z) / derivative(BOTH_SIGMAS, start.z) * velocity.z)[..., 0, :]
    return torch.stack([left, (block.project(start.w) * block.project(velocity.w)).sum(-1)])


def _saliency(config: Thm1Config, z: Tensor, v: Tensor) -> Tensor:
    """E[g x] along the exp flow without residual, (steps, starts, activations, gradients, tokens, nodes)."""
    block, _ = _block(config, "exp", residual=False)
    states = zip(block.tokens @ v, z[..., None, :], moments(config.horizon, config.steps), strict=True)
    gradients = [block.backprop(block.hidden(w, z), float(time)) for w, z, time in states]
    return block.x.mT @ torch.stack(gradients) / config.samples


def _relu_at_zero(config: Thm1Config) -> Tensor:
    """v' of exp attention at w = z = 0 when the activation is ReLU, whose slope at 0 counts as 0."""
    block, start = _block(config, "exp")
    return block.project(replace(block, activation=torch.relu).velocity(start.w[1, 0], start.z[1, 0]).w)


BOTH = ("thm1/exp-invariant", "thm1/linear-invariant")
CLAIMS = Claims()


EXACT = 1e-12  # identities at one moment
KINK = 1e-6  # what is kept of a first integral through the kinks of ReLU, with a fixed small step
WRONG = {"exp": "z − Σv²", "linear": "z² − Σv²/2"}


def conserved(run: Run, claim: Claim, kind: str) -> Finding:
    """The control has a wrong factor and must drift at every width."""
    wrong = smallest(drift(wrong_integral(*path, kind)) for path in widths(run, kind))
    return _still(claim, _worst(run, kind), {WRONG[kind]: wrong})


def _still(claim: Claim, drift: float, control: dict[str, float]) -> Finding:
    return by_residual(claim, printed=drift, tolerance=FLOW, what="drift", control=control)


CLAIMS.declare(
    "exp-invariant",
    "JoMA Thm 1",
    "Under exp attention every token keeps z = ½Σv² + c during training by gradient flow."
    "\n\nExpected: The invariant does not drift at any width, activation or gradient.",
    uses=("thm1/pull-on-logits",),
)(partial(conserved, kind="exp"))
CLAIMS.declare(
    "linear-invariant",
    "JoMA Thm 1",
    "Under linear attention every token keeps z² = Σv² + c during training by gradient flow."
    "\n\nExpected: The invariant does not drift at any width, activation or gradient.",
    uses=("thm1/pull-on-logits",),
)(partial(conserved, kind="linear"))


@CLAIMS.declare("pull-on-logits", "JoMA eq. 14", uses=("block/projected-velocity",))
def pulled(run: Run, claim: Claim) -> Finding:
    """For any pointwise σ, the velocity of z times σ/σ′ equals Σ v v′.

    Expected: Both sides of eq. 14 are equal.

    Both sides of eq. 14; with the opposite sign on one side they must differ.
    """
    left, right = run.value("pull")
    return by_residual(
        claim,
        printed=np.abs(left - right).max(),
        tolerance=EXACT,
        what="largest difference",
        control={"the opposite sign on one side": np.abs(left + right).max()},
    )


@CLAIMS.declare("any-sigma", "JoMA eq. 14", uses=("thm1/pull-on-logits",))
def sigma(run: Run, claim: Claim) -> Finding:
    """The integral of eq. 14 is an invariant for every pointwise σ: ∫σ/σ′ dz = ½Σv² + c.

    Expected: The invariant does not drift for σ = sinh z and for σ = z³ + z.

    Each σ has its own invariant; that of exp attention must drift.
    """
    z, v = unpack(run.value("sigma"))
    members = [(z[:, i], v[:, i], sigma) for i, sigma in enumerate(SIGMAS.values())]
    return _still(
        claim,
        largest(drift(kept(z, v, kind=sigma)) for z, v, sigma in members),
        {"z − ½Σv², the invariant of exp attention": smallest(drift(kept(z, v)) for z, v, _ in members)},
    )


@CLAIMS.declare("relu", "JoMA Thm 1", uses=BOTH)
def kinks(run: Run, claim: Claim) -> Finding:
    """The invariants hold for any activation, also across the kinks of ReLU.

    Expected: The drift is small, and the finer step at least halves it.

    Of both KINDS the largest drift; with a wrong factor the smallest.
    """
    paths = [unpack(run.value(f"ReLU/{steps} steps")) for steps in run.config["kink_steps"]]
    coarse, fine = (largest(drift(kept(z[:, i], v[:, i], kind=kind)) for i, kind in enumerate(KINDS)) for z, v in paths)
    z, v = paths[1]
    wrong = smallest(drift(wrong_integral(z[:, i], v[:, i], kind)) for i, kind in enumerate(KINDS))
    return by_tests(
        claim,
        printed=[
            at_most("drift with the fine step", fine, KINK),
            at_most("drift with the fine step, compared with half the drift of the coarse step", fine, coarse / 2),
        ],
        controls=[above("drift with a wrong factor", wrong, KINK)],
    )


@CLAIMS.declare("stationary-gradient", "JoMA Assumption 1", uses=BOTH)
def stationary(run: Run, claim: Claim) -> Finding:
    """Expectations of the back-propagated gradient, such as E[g x], stay constant during training.

    Corrected: They change, and the invariants still hold. They only need z and W to receive the same gradient.
    Expected: As printed: E[g x] does not change. As corrected: the invariants do not drift.

    E[g x] moves in training on cross-entropy. With different gradients for z and W the invariant must drift.
    """
    saliency = run.value("saliency")[:, 0, :, blocks.GRADIENTS.index("cross-entropy")]  # from random starts
    moved = np.abs(saliency - saliency[0]).max() / np.abs(saliency[0]).max()
    unlike = _drift(run, "exp/two gradients", "exp")
    return by_tests(
        claim,
        printed=[at_most("relative change of E[g x]", moved, FLOW)],
        corrected=[at_most("drift of the invariants", largest(_worst(run, kind) for kind in KINDS), FLOW)],
        controls=[above("drift when z and W receive different gradients", unlike, FLOW)],
    )


@CLAIMS.declare("any-data", "JoMA talk Thm 1", uses=("thm1/exp-invariant",))
def any_data(run: Run, claim: Claim) -> Finding:
    """The invariants hold for any distribution of the data.

    Expected: The invariant does not drift for one-hot, heavy-tailed and identical samples.
    """
    z, v = unpack(run.value("exp/other data"))
    wrong = smallest(drift(wrong_integral(z[:, i], v[:, i], "exp")) for i in range(z.shape[1]))
    return _still(claim, drift(kept(z, v)), {WRONG["exp"]: wrong})


@CLAIMS.declare("residual", "JoMA App. A.2", uses=(*BOTH, "block/projected-velocity"))
def residual(run: Run, claim: Claim) -> Finding:
    """The residual connection does not change the invariants, because the query embedding is orthogonal to the tokens.

    Expected: The invariants do not drift, with or without the residual connection.

    With and without it; a query that overlaps with the tokens must break the invariant.
    """
    drifts = [each for kind in KINDS for each in (_worst(run, kind), _drift(run, f"{kind}/no residual", kind))]
    control = {"a query that overlaps with the tokens": _drift(run, "exp/overlapping query", "exp")}
    return _still(claim, largest(drifts), control)


@CLAIMS.declare("zero-start-exp", "JoMA Thm 1", uses=("thm1/exp-invariant",))
def zero_exp(run: Run, claim: Claim) -> Finding:
    """From w = z = 0 under exp attention the constant is zero: z = ½Σv².

    Expected: z equals ½Σv², and every z grows.

    From a zero start the constant is zero; from random starts it must not be.
    """
    paths = widths(run, "exp")
    off = [kept(z, v).abs() for z, v in paths]  # (steps, starts, ...): the second start is zero
    return by_tests(
        claim,
        printed=[at_most("largest |z − ½Σv²|", largest(float(each[:, 1].max()) for each in off), FLOW)],
        controls=[
            above("smallest z at the end", smallest(float(z[-1, 1].min()) for z, _ in paths), FLOW),
            above("largest |z − ½Σv²| from random starts", smallest(float(each[:, 0].max()) for each in off), FLOW),
        ],
        details={"ReLU from a zero start": {"largest |v′|": float(np.abs(run.value("zero start/ReLU")).max())}},
    )


@CLAIMS.declare("zero-start-linear", "JoMA Thm 1", uses=("thm1/linear-invariant",))
def zero_linear(run: Run, claim: Claim) -> Finding:
    """From w = z = 0 linear attention learns and keeps z² = Σv².

    Corrected: From w = z = 0 linear attention never moves v or z. The statement is true, but says nothing.
    Expected: As printed: v and z move and keep z² = Σv². As corrected: they never move.

    From a zero start nothing moves; from random starts every block must.
    """
    paths = [run.value(f"linear/{n} nodes") for n in run.config["nodes"]]  # (times, starts, ...): random and zero
    moved = ([np.abs(path[:, 0] - path[0, 0]) for path in paths], [np.abs(path[:, 1]) for path in paths])
    from_random, from_zero = (np.stack([one.max((0, -2, -1)) for one in some]) for some in moved)
    off = (float(kept(z[:, 1], v[:, 1], kind="linear").abs().max()) for z, v in widths(run, "linear"))
    return by_tests(
        claim,
        printed=[
            at_least("share of blocks that move", (from_zero > EXACT).mean(), 1.0, "%"),
            at_most("largest |z² − Σv²|", largest(off), FLOW),
        ],
        corrected=[at_most("largest motion of v and z", from_zero.max(), EXACT)],
        controls=[above("smallest motion of a block from a random start", from_random.min(), EXACT)],
    )


def widths(run: Run, kind: str) -> list[tuple[Tensor, Tensor]]:
    """The recorded z and v of one attention, for every number of nodes."""
    return [unpack(run.value(f"{kind}/{n} nodes")) for n in run.config["nodes"]]


def _worst(run: Run, kind: str) -> float:
    return largest(drift(kept(*path, kind=kind)) for path in widths(run, kind))


def _drift(run: Run, name: str, kind: str) -> float:
    return drift(kept(*unpack(run.value(name)), kind=kind))


def wrong_integral(z: Tensor, v: Tensor, kind: str) -> Tensor:
    """The invariant of Theorem 1 with a wrong factor, which is not conserved."""
    squares = v.square().sum(-1)
    return z - squares if kind == "exp" else z.square() - squares / 2


def draw(run: Run) -> list[Drawing]:
    """What the logits do against what V predicts, and the drift of right and wrong invariants."""
    figure, (left, right) = panels(2, width=4.6)
    z, v = (part[:, 0] for part in widths(run, "exp")[-1])  # from random starts
    predicted = v.square().sum(-1) / 2
    for i, (gradient, colour) in enumerate(zip(blocks.GRADIENTS, (CORRECTED, ORANGE, GREEN), strict=True)):
        across, up = ((part - part[0])[:, :, i].flatten() for part in (predicted, z))
        left.plot(across, up, "o", ms=2.5, mew=0, alpha=0.6, color=colour, label=f"g {gradient}")
    ends = torch.stack([predicted - predicted[0], z - z[0]]).aminmax()
    left.axline((0, 0), slope=1, lw=1, color=INK, zorder=0, label="equality")
    left.set(xlim=tuple(map(float, ends)), ylim=tuple(map(float, ends)), title="Exp logits follow the weights")
    left.set(xlabel="change of ½Σv² of a token", ylabel="change of its logit z")
    reached: dict[str, list[float]] = {"Theorem 1": [], "wrong factor": []}
    for kind, style in zip(KINDS, ("-", "--"), strict=True):
        path = widths(run, kind)[-1]
        constants = (kept(*path, kind=kind), CORRECTED), (wrong_integral(*path, kind), CONTROL)
        for label, (c, colour) in zip(reached, constants, strict=True):
            drifts = blocks.drift_over_time(c)
            right.plot(run.value("t")[1:], drifts, color=colour, ls=style, label=f"{label}, {kind}")
            reached[label].append(float(drifts.max()))
    bound(right, FLOW)
    right.set(yscale="log", ylim=(1e-15, 1e1), xlabel="time", ylabel="largest drift")
    right.set_title("Only Theorem 1 is conserved")
    caption = (
        "The logits move as Theorem 1 predicts from the weights: the invariants drift by at most "
        f"{number(max(reached['Theorem 1']))}. With a wrong factor the drift is at least "
        f"{number(min(reached['wrong factor']))}. Left: the change of each exp logit against "
        "its prediction, for all tokens, activations and times; the line marks equality. Right: the largest drift of "
        "the invariants over all activations and gradients. The control is an invariant with a wrong factor: z − Σv² "
        "(exp) and z² − Σv²/2 (linear)."
    )
    return [Drawing("first-integral", caption, figure)]


STUDY = Study(
    name="thm1",
    title="Theorem 1: what attention and MLP conserve together",
    version=2,
    claims=CLAIMS,
    quick=Thm1Config(),
    paper=Thm1Config(tokens=20, nodes=(1, 4, 20), samples=64, steps=41, kink_steps=(100, 400)),
    run=run,
    draw=draw,
    about=(
        "One block with random data is trained by gradient flow. The runs cover linear, SiLU and tanh activations, "
        "three kinds of gradient (constant, cross-entropy, changing in time), one and several nodes, and the block "
        "with and without a residual connection. The solver does not use Theorem 1. The invariants are computed "
        "afterwards from the recorded z and V."
    ),
)

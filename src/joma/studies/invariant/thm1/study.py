"""The study of Theorem 1: its claims, its sizes and its figure."""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Claim, Drawing, Finding, Study
from joma.claims.evidence import above, at_least, at_most
from joma.claims.verdicts import by_residual, by_tests
from joma.figures.bands import bound
from joma.figures.labels import label_lines
from joma.figures.reading import number
from joma.figures.style import CONTROL, CORRECTED, GREEN, INK, ORANGE, panels
from joma.runs import Run
from joma.studies.invariant import _blocks as blocks
from joma.studies.invariant._blocks import FLOW, KINDS, drift, kept, largest, smallest, unpack
from joma.studies.invariant.thm1.run import SIGMAS, Thm1Config, run

BOTH = ("thm1/exp-invariant", "thm1/linear-invariant")
EXP = Claim(
    "exp-invariant",
    "JoMA Thm 1",
    "Under exp attention every token keeps z = ½Σv² + c during training by gradient flow.",
    uses=("thm1/pull-on-logits",),
)
LINEAR = Claim(
    "linear-invariant",
    "JoMA Thm 1",
    "Under linear attention every token keeps z² = Σv² + c during training by gradient flow.",
    uses=("thm1/pull-on-logits",),
)
PULL = Claim(
    "pull-on-logits",
    "JoMA eq. 14",
    "For any pointwise σ, the velocity of z times σ/σ′ equals Σ v v′.",
    uses=("block/projected-velocity",),
)
SIGMA = Claim(
    "any-sigma",
    "JoMA eq. 14",
    "The integral of eq. 14 is an invariant for every pointwise σ: ∫σ/σ′ dz = ½Σv² + c.",
    uses=("thm1/pull-on-logits",),
)
KINKS = Claim("relu", "JoMA Thm 1", "The invariants hold for any activation, also across the kinks of ReLU.", uses=BOTH)
STATIONARY = Claim(
    "stationary-gradient",
    "JoMA Assumption 1",
    "Expectations of the back-propagated gradient, such as E[g x], stay constant during training.",
    "They change, and the invariants still hold. They only need z and W to receive the same gradient.",
    uses=BOTH,
)
ANY_DATA = Claim(
    "any-data", "JoMA talk Thm 1", "The invariants hold for any distribution of the data.", uses=("thm1/exp-invariant",)
)
RESIDUAL = Claim(
    "residual",
    "JoMA App. A.2",
    "The residual connection does not change the invariants, because the query embedding is orthogonal to the tokens.",
    uses=(*BOTH, "block/projected-velocity"),
)
ZERO_EXP = Claim(
    "zero-start-exp",
    "JoMA Thm 1",
    "From w = z = 0 under exp attention the constant is zero: z = ½Σv².",
    uses=("thm1/exp-invariant",),
)
ZERO_LINEAR = Claim(
    "zero-start-linear",
    "JoMA Thm 1",
    "From w = z = 0 linear attention learns and keeps z² = Σv².",
    "From w = z = 0 linear attention never moves v or z. The statement is true, but says nothing.",
    uses=("thm1/linear-invariant",),
)


EXACT = 1e-12  # identities at one moment
KINK = 1e-6  # what is kept of a first integral through the kinks of ReLU, with a fixed small step
WRONG = {"exp": "z − Σv²", "linear": "z² − Σv²/2"}


def conserved(run: Run, *, claim: Claim, kind: str) -> Finding:
    """The control has a wrong factor and must drift at every width."""
    wrong = smallest(drift(wrong_integral(*path, kind)) for path in widths(run, kind))
    expected = "The invariant does not drift at any width, activation or gradient."
    return _still(claim, _worst(run, kind), expected, {WRONG[kind]: wrong})


def _still(claim: Claim, drift: float, expected: str, control: dict[str, float]) -> Finding:
    return by_residual(claim, printed=drift, tolerance=FLOW, what="drift", expected=expected, control=control)


def pulled(run: Run) -> Finding:
    """Both sides of eq. 14; with the opposite sign on one side they must differ."""
    left, right = run.value("pull")
    return by_residual(
        PULL,
        printed=np.abs(left - right).max(),
        tolerance=EXACT,
        what="largest difference",
        expected="Both sides of eq. 14 are equal.",
        control={"the opposite sign on one side": np.abs(left + right).max()},
    )


def sigma(run: Run) -> Finding:
    """Each σ has its own invariant; that of exp attention must drift."""
    z, v = unpack(run.value("sigma"))
    members = [(z[:, i], v[:, i], sigma) for i, sigma in enumerate(SIGMAS.values())]
    return _still(
        SIGMA,
        largest(drift(kept(z, v, kind=sigma)) for z, v, sigma in members),
        "The invariant does not drift for σ = sinh z and for σ = z³ + z.",
        {"z − ½Σv², the invariant of exp attention": smallest(drift(kept(z, v)) for z, v, _ in members)},
    )


def kinks(run: Run) -> Finding:
    """Of both KINDS the largest drift; with a wrong factor the smallest."""
    paths = [unpack(run.value(f"ReLU/{steps} steps")) for steps in run.config["kink_steps"]]
    coarse, fine = (largest(drift(kept(z[:, i], v[:, i], kind=kind)) for i, kind in enumerate(KINDS)) for z, v in paths)
    z, v = paths[1]
    wrong = smallest(drift(wrong_integral(z[:, i], v[:, i], kind)) for i, kind in enumerate(KINDS))
    return by_tests(
        KINKS,
        expected="The drift is small, and the finer step at least halves it.",
        printed=[
            at_most("drift with the fine step", fine, KINK),
            at_most("drift with the fine step, compared with half the drift of the coarse step", fine, coarse / 2),
        ],
        controls=[above("drift with a wrong factor", wrong, KINK)],
    )


def stationary(run: Run) -> Finding:
    """E[g x] moves in training on cross-entropy. With different gradients for z and W the invariant must drift."""
    saliency = run.value("saliency")[:, 0, :, blocks.GRADIENTS.index("cross-entropy")]  # from random starts
    moved = np.abs(saliency - saliency[0]).max() / np.abs(saliency[0]).max()
    unlike = _drift(run, "exp/two gradients", "exp")
    return by_tests(
        STATIONARY,
        expected="As printed: E[g x] does not change. As corrected: the invariants do not drift.",
        printed=[at_most("relative change of E[g x]", moved, FLOW)],
        corrected=[at_most("drift of the invariants", largest(_worst(run, kind) for kind in KINDS), FLOW)],
        controls=[above("drift when z and W receive different gradients", unlike, FLOW)],
    )


def any_data(run: Run) -> Finding:
    """Three unusual kinds of data, each with its own control."""
    z, v = unpack(run.value("exp/other data"))
    wrong = smallest(drift(wrong_integral(z[:, i], v[:, i], "exp")) for i in range(z.shape[1]))
    expected = "The invariant does not drift for one-hot, heavy-tailed and identical samples."
    return _still(ANY_DATA, drift(kept(z, v)), expected, {WRONG["exp"]: wrong})


def residual(run: Run) -> Finding:
    """With and without it; a query that overlaps with the tokens must break the invariant."""
    drifts = [each for kind in KINDS for each in (_worst(run, kind), _drift(run, f"{kind}/no residual", kind))]
    expected = "The invariants do not drift, with or without the residual connection."
    control = {"a query that overlaps with the tokens": _drift(run, "exp/overlapping query", "exp")}
    return _still(RESIDUAL, largest(drifts), expected, control)


def zero_exp(run: Run) -> Finding:
    """From a zero start the constant is zero; from random starts it must not be."""
    paths = widths(run, "exp")
    off = [kept(z, v).abs() for z, v in paths]  # (steps, starts, ...): the second start is zero
    return by_tests(
        ZERO_EXP,
        expected="z equals ½Σv², and every z grows.",
        printed=[at_most("largest |z − ½Σv²|", largest(float(each[:, 1].max()) for each in off), FLOW)],
        controls=[
            above("smallest z at the end", smallest(float(z[-1, 1].min()) for z, _ in paths), FLOW),
            above("largest |z − ½Σv²| from random starts", smallest(float(each[:, 0].max()) for each in off), FLOW),
        ],
        details={"ReLU from a zero start": {"largest |v′|": float(np.abs(run.value("zero start/ReLU")).max())}},
    )


def zero_linear(run: Run) -> Finding:
    """From a zero start nothing moves; from random starts every block must."""
    paths = [run.value(f"linear/{n} nodes") for n in run.config["nodes"]]  # (times, starts, ...): random and zero
    moved = ([np.abs(path[:, 0] - path[0, 0]) for path in paths], [np.abs(path[:, 1]) for path in paths])
    from_random, from_zero = (np.stack([one.max((0, -2, -1)) for one in some]) for some in moved)
    off = (float(kept(z[:, 1], v[:, 1], kind="linear").abs().max()) for z, v in widths(run, "linear"))
    return by_tests(
        ZERO_LINEAR,
        expected="As printed: v and z move and keep z² = Σv². As corrected: they never move.",
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
    for axis in (left, right):
        label_lines(axis)
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
    claims={
        EXP: partial(conserved, claim=EXP, kind="exp"),
        LINEAR: partial(conserved, claim=LINEAR, kind="linear"),
        PULL: pulled,
        SIGMA: sigma,
        KINKS: kinks,
        STATIONARY: stationary,
        ANY_DATA: any_data,
        RESIDUAL: residual,
        ZERO_EXP: zero_exp,
        ZERO_LINEAR: zero_linear,
    },
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

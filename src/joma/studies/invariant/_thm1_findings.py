"""What the study of Theorem 1 claims, and how each claim is judged by the recorded z and V."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from joma.claims.contract import Claim, Finding, each_claim
from joma.claims.evidence import above, at_least, at_most
from joma.claims.verdicts import by_residual, by_tests
from joma.runs import Run
from joma.studies.invariant._blocks import GRADIENTS, drift, kept, largest, smallest, unpack
from joma.theory.attention import Sigma

EXACT = 1e-12  # identities at one moment
FLOW = 1e-10  # what the solver keeps of a first integral, at rtol 1e-12
KINK = 1e-6  # the same through the kinks of ReLU, with a fixed small step

KINDS = ("exp", "linear")
SIGMAS: dict[str, Sigma] = {"sinh z": torch.sinh, "z³ + z": lambda z: z**3 + z}
WRONG = {"exp": "z − Σv²", "linear": "z² − Σv²/2"}

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
KINKS = Claim(
    "relu",
    "JoMA Thm 1",
    "The invariants hold for any activation, also across the kinks of ReLU.",
    uses=BOTH,
)
STATIONARY = Claim(
    "stationary-gradient",
    "JoMA Assumption 1",
    "Expectations of the back-propagated gradient, such as E[g x], stay constant during training.",
    "They change, and the invariants still hold. They only need z and W to receive the same gradient.",
    uses=BOTH,
)
ANY_DATA = Claim(
    "any-data",
    "JoMA talk Thm 1",
    "The invariants hold for any distribution of the data.",
    uses=("thm1/exp-invariant",),
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


def _exp(run: Run) -> Finding:
    return _conserved(run, EXP, "exp")


def _linear(run: Run) -> Finding:
    return _conserved(run, LINEAR, "linear")


def _conserved(run: Run, claim: Claim, kind: str) -> Finding:
    """The control has a wrong factor and must drift at every width."""
    wrong = smallest(drift(wrong_integral(*unpack(run.value(name)), kind)) for name in _widths(run, kind))
    return by_residual(
        claim,
        printed=_worst(run, kind),
        tolerance=FLOW,
        what="drift",
        expected="The invariant does not drift at any width, activation or gradient.",
        control={WRONG[kind]: wrong},
    )


def _pull(run: Run) -> Finding:
    left, right = run.value("pull")
    return by_residual(
        PULL,
        printed=float(np.abs(left - right).max()),
        tolerance=EXACT,
        what="largest difference",
        expected="Both sides of eq. 14 are equal.",
        control={"the opposite sign on one side": float(np.abs(left + right).max())},
    )


def _sigma(run: Run) -> Finding:
    z, v = unpack(run.value("sigma"))
    members = [(z[:, i], v[:, i], sigma) for i, sigma in enumerate(SIGMAS.values())]
    return by_residual(
        SIGMA,
        printed=largest(drift(kept(z, v, kind=sigma)) for z, v, sigma in members),
        tolerance=FLOW,
        what="drift",
        expected="The invariant does not drift for σ = sinh z and for σ = z³ + z.",
        control={"z − ½Σv², the invariant of exp attention": smallest(drift(kept(z, v)) for z, v, _ in members)},
    )


def _kinks(run: Run) -> Finding:
    coarse, fine = (_through_kinks(run, steps) for steps in run.config["kink_steps"])
    wrong = _through_kinks(run, run.config["kink_steps"][1], wrong=True)
    return by_tests(
        KINKS,
        expected="The drift is small, and the finer step at least halves it.",
        printed=[
            at_most("drift with the fine step", fine, KINK),
            at_most("drift with the fine step, compared with half the drift of the coarse step", fine, coarse / 2),
        ],
        controls=[above("drift with a wrong factor", wrong, KINK)],
    )


def _stationary(run: Run) -> Finding:
    saliency = run.value("saliency")[:, 0, :, GRADIENTS.index("cross-entropy")]  # from random starts
    moved = float(np.abs(saliency - saliency[0]).max() / np.abs(saliency[0]).max())
    return by_tests(
        STATIONARY,
        expected="As printed: E[g x] does not change. As corrected: the invariants do not drift.",
        printed=[at_most("relative change of E[g x]", moved, FLOW)],
        corrected=[at_most("drift of the invariants", largest(_worst(run, kind) for kind in KINDS), FLOW)],
        controls=[
            above("drift when z and W receive different gradients", _drift(run, "exp/two gradients", "exp"), FLOW)
        ],
    )


def _any_data(run: Run) -> Finding:
    z, v = unpack(run.value("exp/other data"))
    wrong = (drift(wrong_integral(z[:, i], v[:, i], "exp")) for i in range(z.shape[1]))
    return by_residual(
        ANY_DATA,
        printed=drift(kept(z, v)),
        tolerance=FLOW,
        what="drift",
        expected="The invariant does not drift for one-hot, heavy-tailed and identical samples.",
        control={WRONG["exp"]: smallest(wrong)},
    )


def _residual(run: Run) -> Finding:
    drifts = [f(run, kind) for kind in KINDS for f in (_worst, _without_residual)]
    return by_residual(
        RESIDUAL,
        printed=largest(drifts),
        tolerance=FLOW,
        what="drift",
        expected="The invariants do not drift, with or without the residual connection.",
        control={"a query that overlaps with the tokens": _drift(run, "exp/overlapping query", "exp")},
    )


def _zero_exp(run: Run) -> Finding:
    starts = [unpack(run.value(name)) for name in _widths(run, "exp")]
    off = [kept(z, v).abs() for z, v in starts]  # (steps, starts, ...): the second start is zero
    return by_tests(
        ZERO_EXP,
        expected="z equals ½Σv², and every z grows.",
        printed=[at_most("largest |z − ½Σv²|", largest(float(each[:, 1].max()) for each in off), FLOW)],
        controls=[
            above("smallest z at the end", smallest(float(z[-1, 1].min()) for z, _ in starts), FLOW),
            above("largest |z − ½Σv²| from random starts", smallest(float(each[:, 0].max()) for each in off), FLOW),
        ],
        details={"ReLU from a zero start": {"largest |v′|": float(np.abs(run.value("zero start/ReLU")).max())}},
    )


def _zero_linear(run: Run) -> Finding:
    paths = [run.value(name) for name in _widths(run, "linear")]
    from_zero = np.stack([_motion(path[:, 1]) for path in paths])
    from_random = np.stack([_motion(path[:, 0] - path[0, 0]) for path in paths])
    off = (float(kept(*unpack(path[:, 1]), kind="linear").abs().max()) for path in paths)
    return by_tests(
        ZERO_LINEAR,
        expected="As printed: v and z move and keep z² = Σv². As corrected: they never move.",
        printed=[
            at_least("share of blocks that move", float((from_zero > EXACT).mean()), 1.0, "%"),
            at_most("largest |z² − Σv²|", largest(off), FLOW),
        ],
        corrected=[at_most("largest motion of v and z", float(from_zero.max()), EXACT)],
        controls=[above("smallest motion of a block from a random start", float(from_random.min()), EXACT)],
    )


def _motion(path: np.ndarray) -> np.ndarray:
    """How far v or z of a block gets from zero at most, (activations, gradients)."""
    return np.asarray(np.abs(path).max((0, -2, -1)))


def _widths(run: Run, kind: str) -> list[str]:
    """The recorded paths of one attention, by the number of nodes."""
    return [f"{kind}/{n} nodes" for n in run.config["nodes"]]


def _drift(run: Run, name: str, kind: str) -> float:
    return drift(kept(*unpack(run.value(name)), kind=kind))


def _worst(run: Run, kind: str) -> float:
    return largest(_drift(run, name, kind) for name in _widths(run, kind))


def _without_residual(run: Run, kind: str) -> float:
    return _drift(run, f"{kind}/no residual", kind)


def _through_kinks(run: Run, steps: int, *, wrong: bool = False) -> float:
    """Of both KINDS the largest drift; with a wrong factor the smallest."""
    z, v = unpack(run.value(f"ReLU/{steps} steps"))
    paths = [(z[:, i], v[:, i], kind) for i, kind in enumerate(KINDS)]
    if wrong:
        return smallest(drift(wrong_integral(*path)) for path in paths)
    return largest(drift(kept(z, v, kind=kind)) for z, v, kind in paths)


def wrong_integral(z: Tensor, v: Tensor, kind: str) -> Tensor:
    """The invariant of Theorem 1 with a wrong factor, which is not conserved."""
    squares = v.square().sum(-1)
    return z - squares if kind == "exp" else z.square() - squares / 2


CLAIMS = (EXP, LINEAR, PULL, SIGMA, KINKS, STATIONARY, ANY_DATA, RESIDUAL, ZERO_EXP, ZERO_LINEAR)
judge = each_claim(_exp, _linear, _pull, _sigma, _kinks, _stationary, _any_data, _residual, _zero_exp, _zero_linear)

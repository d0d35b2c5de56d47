"""Small random problems, followed exactly, and the memory columns of the paper's tables against its own formula.

Theorem 3.2: the gradient of a weight inside a network without biases, by autograd and by formula. And Lemma B.6: the
weights V of several nodes under attention that they share, and how fast its rows grow.

Theorem 3.8: how |P^T G Q| changes in one step with fixed projections, where A, B and C depend on W.
B_i(W) = B_i0 + L_B wave(<U_i, W>) V_i with |V_i|_F = 1, and C_i likewise: they have the Lipschitz constants L_B and L_C
in Frobenius norms. A wave goes straight up and down from 0 at 0. The proof of the theorem uses |B| <= L_B D and
|C| <= L_C D, which is so where B(0) = C(0) = 0. In the other family B and C may be anything.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import pi, sqrt
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.linalg import matrix_norm
from torch.nn.functional import leaky_relu

from joma.claims.contract import Least, Progress, StudyConfig
from joma.runs import Run
from joma.studies.galore.galore_theory import descent
from joma.theory import galore, linear
from joma.theory.attention import Attention, random_orthonormal
from joma.theory.flow import Block, constant_gradient
from joma.theory.galore import adam_bytes, contraction, contraction_as_printed, galore_bytes, lora_bytes

PIECEWISE = ("linear", "ReLU", "leaky ReLU", "residual ReLU")
POWERS = {"square": 2.0, "cube": 3.0}
BENT = "tanh"  # not reversible by any definition: the control
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: x,
    "ReLU": torch.relu,
    "leaky ReLU": lambda x: leaky_relu(x, 0.1),
    "residual ReLU": torch.relu,
    "square": lambda x: x**2,
    "cube": lambda x: x**3,
    BENT: torch.tanh,
}
WIDTHS = (5, 7, 6, 4)  # input, the studied layer, one more, output
ACTIVATIONS_ABOVE = 2
EQUATION, PER_NODE, CORRECTED = EQUATIONS = ("eq. 43", "eq. 44", "corrected")  # Three equations for V'
DOUBLE = torch.float64


def errors(kind: str, draws: int, seed: int) -> Tensor:
    """Relative errors of the gradient formula, as printed and with the degree of the activations, (2, draws)."""
    generator, degree = torch.Generator().manual_seed(seed), POWERS.get(kind, 1.0) ** ACTIVATIONS_ABOVE
    first, second, third, last = WIDTHS
    act, around = ACTIVATIONS[kind], kind.startswith("residual")
    found: list[Tensor] = []
    while len(found) < draws:
        f, y = _normal(generator, first), _normal(generator, last)
        w, up, out = (_normal(generator, *shape) for shape in ((second, first), (third, second), (last, third)))

        def above(h: Tensor, up: Tensor = up, out: Tensor = out) -> Tensor:
            middle = up @ act(h) + up @ h if around else up @ act(h)  # around: a residual block between two maps
            answer: Tensor = out @ act(middle)
            return answer

        jacobian = torch.autograd.functional.jacobian(above, w @ f)
        truth = _autograd(lambda weight: -(y - above(weight @ f)).square().sum() / 2, w)  # noqa: B023 - called at once
        if truth.any():  # else every unit was off
            forms = [galore.reversible_gradient(jacobian, w, f, y, degree=power) for power in (1.0, degree)]
            found.append(torch.stack([(form - truth).norm() / truth.norm() for form in forms]))
    return torch.stack(found, -1)


def softmax_errors(classes: int, sizes: Tensor, draws: int, seed: int) -> Tensor:
    """How far formula (b) is from autograd, over its linear term, at logits of these largest sizes, (sizes, draws)."""
    generator, hidden, inputs = torch.Generator().manual_seed(seed), 6, 5
    found = torch.zeros(len(sizes), draws, dtype=DOUBLE)
    for draw in range(draws):
        j, f = _normal(generator, classes, hidden), _normal(generator, inputs)
        w, y = _normal(generator, hidden, inputs), torch.zeros(classes, dtype=DOUBLE)
        y[int(torch.randint(classes, (), generator=generator))] = 1.0
        logits = j @ w @ f
        largest = (logits - logits.mean()).abs().max()
        for i, size in enumerate(sizes):
            weight = w * size / largest
            truth = _autograd(lambda x: (y * torch.log_softmax(j @ x @ f, -1)).sum(), weight)  # noqa: B023
            form = galore.softmax_gradient(j, weight, f, y)
            found[i, draw] = (form - truth).norm() / (form - galore.softmax_gradient(j, 0 * weight, f, y)).norm()
    return found


def _autograd(gain: Callable[[Tensor], Tensor], w: Tensor) -> Tensor:
    leaf = w.clone().requires_grad_()
    (found,) = torch.autograd.grad(gain(leaf), leaf)
    return found


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Scaled so that numbers keep their size from layer to layer."""
    return torch.randn(*shape, generator=generator, dtype=DOUBLE) / (shape[-1] ** 0.5 if len(shape) > 1 else 1.0)


def rows(tokens: int, nodes: int, blocks: int, steps: int, seed: int) -> dict[str, Tensor]:
    """Real blocks with a linear MLP and constant g, from zero, in units of their first blow-up time."""
    generator, samples = torch.Generator().manual_seed(seed), 4 * tokens
    embeddings = random_orthonormal(tokens + 1, tokens + 1, generator=generator)
    x = torch.rand(blocks, samples, tokens, generator=generator, dtype=DOUBLE)
    g = torch.randn(blocks, samples, nodes, generator=generator, dtype=DOUBLE)
    delta = x.mT @ g / samples
    blow_up = linear.blow_up_time(delta.norm(dim=-1)).amin(-1)[:, None, None]
    g, delta = g * blow_up, delta * blow_up
    query = torch.zeros(samples, dtype=torch.long)
    block = Block(x, query, embeddings[:, :-1], embeddings[:, -1:], constant_gradient(g), Attention("exp"))
    share = torch.linspace(0, 0.95, steps, dtype=DOUBLE)
    start = torch.zeros(blocks, tokens + 1, nodes, dtype=DOUBLE)
    path = block.solve(start, torch.zeros(blocks, 1, tokens, dtype=DOUBLE), share)
    v, truth = block.project(path.w), block.project(block.velocity(path.w, path.z).w)  # (steps, blocks, tokens, nodes)
    forms = {
        EQUATION: (v.square() / 2).exp().sum(-1, keepdim=True) * delta,
        PER_NODE: (v.square() / 2).exp() * delta,
        CORRECTED: (v.square().sum(-1, keepdim=True) / 2).exp() * delta,
    }
    largest, t = delta.abs().amax(-1), share[:, None, None]
    growth = {
        "alpha": (v * delta).sum(-1) / delta.square().sum(-1),
        "low": _solved(t, largest),
        "high": nodes * _solved(t, nodes * largest),
        "closed": _solved(t, delta.norm(dim=-1) / sqrt(2)),
    }
    off = {f"off/{name}": _error(form, truth).mT for name, form in forms.items()}
    return {"share": share, **off, **{f"growth/{name}": value.movedim(0, 1) for name, value in growth.items()}}


def _error(form: Tensor, truth: Tensor) -> Tensor:
    """With the best normaliser A at every moment, because the lemma does not say whether it moves."""
    best = (form * truth).sum((-1, -2), keepdim=True) / form.square().sum((-1, -2), keepdim=True)
    off: Tensor = torch.linalg.matrix_norm(best * form - truth) / torch.linalg.matrix_norm(truth)
    return off


def _solved(t: Tensor, slope: Tensor) -> Tensor:
    """x(t) of x' = exp(slope^2 x^2) from zero: h of eq. 54 with A = 1. Infinite from its blow-up on."""
    done = 2 * slope * t / sqrt(pi)
    return torch.where(done < 1, torch.erfinv(done.clamp(max=1.0)) / slope, torch.inf)


THROUGH_ZERO, FREE = FAMILIES = ("B(0) = C(0) = 0", "any B and C")
PAIRS, RANK = 2, 2
Curve = Callable[[Tensor], Tensor]
FACTOR = 0.9  # paths whose corrected factor stays below this are followed to their end


class Problem(NamedTuple):
    """Many problems at once: fields are (draws, ...)."""

    a0: Tensor
    b0: Tensor
    c0: Tensor
    along: Tensor  # U_i, (draws, 3, pairs, m, n), for A, B and C
    a1: Tensor
    b1: Tensor
    c1: Tensor
    lipschitz: Tensor  # (draws, 3)
    p: Tensor
    q: Tensor

    def parts(self, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = (self.along * w[:, None, None]).sum((-2, -1)).movedim(1, 0)  # (3, draws, pairs)
        la, lb, lc = self.lipschitz.T[..., None] * torch.stack([x[0].sin(), wave(x[1]), wave(x[2])])
        a, b, c = (
            fixed + size[..., None, None] * moved
            for fixed, size, moved in ((self.a0, la, self.a1), (self.b0, lb, self.b1), (self.c0, lc, self.c1))
        )
        return a, b, c


def wave(x: Tensor) -> Tensor:
    """The distance to the nearest even number: 0 at 0, slopes 1 and -1."""
    return (x - 2 * (x / 2).round()).abs()


def drawn(family: str, draws: int, m: int, n: int, generator: torch.Generator, calm: float = 1.0) -> Problem:
    """Random problems. calm: what Lipschitz constants are multiplied with."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(draws, *shape, generator=generator, dtype=DOUBLE)

    def positive(size: int) -> Tensor:
        half = normal(PAIRS, size, size)
        return _unit(half @ half.mT)

    free = float(family == FREE)
    return Problem(
        normal(PAIRS, m, n),
        free * (positive(m) + torch.eye(m, dtype=DOUBLE)),
        free * (positive(n) + torch.eye(n, dtype=DOUBLE)),
        _unit(normal(3, PAIRS, m, n)),
        _unit(normal(PAIRS, m, n)),
        positive(m),
        positive(n),
        calm * torch.rand(draws, 3, generator=generator, dtype=DOUBLE),
        torch.linalg.qr(normal(m, RANK)).Q,
        torch.linalg.qr(normal(n, RANK)).Q,
    )


def search(draws: int, m: int, n: int, seed: int) -> dict[str, Tensor]:
    """One step from a random W. Per family and draw: the factor of |R|, three bounds, the rate, kappa's share."""
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, Tensor] = {}
    for family in FAMILIES:
        problem = drawn(family, draws, m, n, generator)
        w = 2 * torch.rand(draws, 1, 1, generator=generator, dtype=DOUBLE)
        w = w * _unit(torch.randn(draws, m, n, generator=generator, dtype=DOUBLE))
        share = torch.rand(draws, generator=generator, dtype=DOUBLE)  # of the largest rate with rate top <= 1
        found |= {f"{family}/{name}": value for name, value in _step(problem, w, share)[1].items()}
    return found


def settle(draws: int, m: int, n: int, steps: int, seed: int) -> dict[str, Tensor]:
    """Paths of calm problems: the largest corrected factor on the way, and |R| at the end over that at the start."""
    generator = torch.Generator().manual_seed(seed)
    problem = drawn(FREE, draws, m, n, generator, calm=0.05)
    w, worst = torch.zeros(draws, m, n, dtype=DOUBLE), torch.zeros(draws, dtype=DOUBLE)
    share, first = torch.full((draws,), 0.9, dtype=DOUBLE), _projected(problem, w)
    for _ in range(steps):
        w, seen = _step(problem, w, share)
        worst = torch.maximum(worst, seen["corrected"])
    return {"worst factor": worst, "left": matrix_norm(_projected(problem, w)) / matrix_norm(first)}


def _projected(problem: Problem, w: Tensor) -> Tensor:
    a, b, c = problem.parts(w)
    r: Tensor = problem.p.mT @ (a - b @ w[:, None] @ c).mean(1) @ problem.q
    return r


def _bounds(
    kappa: Any, top: Any, rate: Tensor, la: Any, lb: Any, lc: Any, *, w: Any, b: Any, c: Any
) -> dict[str, Tensor]:
    """What the theorem, its proof and the corrected form allow the factor of |R| to be. w, b, c: the largest norms."""
    form = {"rate": rate, "la": la, "lb": lb, "lc": lc}
    return {
        "printed": contraction_as_printed(kappa, **form, d=w),
        "proof": contraction_as_printed(kappa, **form, d=w, factor=2.0),
        "corrected": contraction(kappa, top, **form, w=w, b=b, c=c),
        "rate": rate,
    }


def _step(problem: Problem, w: Tensor, share: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """W after one step, and the factor of |R| with its bounds."""
    _, b, c = problem.parts(w)
    left, right = problem.p.mT[:, None] @ b @ problem.p[:, None], problem.q.mT[:, None] @ c @ problem.q[:, None]
    kappa = (torch.linalg.eigvalsh(left)[..., 0] * torch.linalg.eigvalsh(right)[..., 0]).mean(-1)
    top = torch.linalg.eigvalsh(torch.einsum("dpij,dpkl->dikjl", left, right).flatten(1, 2).flatten(2) / PAIRS)[:, -1]
    rate = share / top.clamp(min=1.0)
    r = _projected(problem, w)
    after = w + rate[:, None, None] * problem.p @ r @ problem.q.mT
    _, b2, c2 = problem.parts(after)
    size = torch.maximum(matrix_norm(w), matrix_norm(after))
    la, lb, lc = problem.lipschitz.T
    most_b, most_c = (matrix_norm(torch.stack(both), 2).amax((0, -1)) for both in ((b, b2), (c, c2)))
    return after, {
        "factor": matrix_norm(_projected(problem, after)) / matrix_norm(r),
        **_bounds(kappa, top, rate, la, lb, lc, w=size, b=most_b, c=most_c),
        "kappa over its condition": kappa / (la + lb * lc * size.square()),
    }


def peak(rates: Tensor, push: float = 1e-3) -> dict[str, Tensor]:
    """One number instead of matrices, B = C = wave(W), just beyond the top of the wave: what the constant must be."""
    w, after = torch.ones_like(rates), 1 + rates * push
    return _scalar(wave, wave, w, after, push, rates, lb=1.0, lc=1.0) | {"kappa over its condition": 1 / after.square()}


def constant_c(rates: Tensor, push: float = 1e-3) -> dict[str, Tensor]:
    """C = 1 does not move, so L_C = 0 and both printed terms vanish. B falls as W grows, and the gradient grows."""
    w, after = torch.full_like(rates, 0.75), 0.75 + rates * push
    return _scalar(lambda x: 1 - x, torch.ones_like, w, after, push, rates, lb=1.0, lc=0.0)


def _scalar(
    b: Curve, c: Curve, w: Tensor, after: Tensor, r: float, rate: Tensor, lb: float, lc: float
) -> dict[str, Tensor]:
    """A is constant and such that the gradient at w is r."""
    b0, c0, b1, c1 = b(w), c(w), b(after), c(after)
    kappa, most_b, most_c = b0 * c0, torch.maximum(b0, b1), torch.maximum(c0, c1)
    allowed = _bounds(kappa, kappa, rate, 0.0, lb, lc, w=after, b=most_b, c=most_c)
    return {"factor": 1 + (kappa * w - b1 * c1 * after) / r, **allowed}


def high_rate(rates: Tensor) -> dict[str, Tensor]:
    """Nothing moves, so all Lipschitz constants are 0. The eigenvalues are 0.1 and 1, and R is along the second."""
    values, r = torch.tensor([[0.1, 1.0], [0.01, 1.0]], dtype=DOUBLE)
    after = (1 - rates[:, None] * values) * r
    return {"factor": after.norm(dim=-1) / r.norm(), **_bounds(0.1, 1.0, rates, 0.0, 0.0, 0.0, w=1.0, b=1.0, c=1.0)}


def cycle(steps: int) -> dict[str, Tensor]:
    """C = 1, B = 0.1 below W = 1 and steep above it, rate 1: a true gradient whose descent never ends.

    kappa >= 0.1 > 0 = L_A + L_B L_C D^2, and |R| still goes up and down.
    """
    w = torch.tensor(0.5, dtype=DOUBLE)
    sizes, kappas = [], []
    for _ in range(steps):
        b = 0.1 + 5 * (w - 1).clamp(0, 1)
        r = 0.66 - b * w
        sizes.append(r.abs())
        kappas.append(b)
        w = w + r
    return {"size": torch.stack(sizes), "kappa": torch.stack(kappas)}


def _unit(x: Tensor) -> Tensor:
    unit: Tensor = x / matrix_norm(x)[..., None, None]
    return unit


KEPT = 1e-9  # a bound may be missed by rounding, as a share of it
LOGIT = 0.05  # how small a small logit is, beside 1 or beside sqrt(K)
RATES = (0.01, 0.03, 0.1, 0.3)  # of the two problems of Theorem 3.8 that were made by hand
MODELS = ("60M", "130M", "350M", "1B")
HIDDEN, INTERMEDIATE, LAYERS = (512, 768, 1024, 2048), (1376, 2048, 2736, 5461), (8, 12, 24, 24)
"""The paper's Table 5. It has 32 layers and 24 heads for 1B; the published configuration has 24 and 32."""
RANKS, VOCABULARY = (128, 256, 256, 512), 32000
NOMINAL = (60e6, 130e6, 350e6, 1.33e9)  # parameters in round numbers, as the paper seems to have counted weights
UNITS = {"GB (10⁹)": 1e9, "GiB (2³⁰)": 2.0**30, "1.024 · 10⁹": 1.024e9}
ODD = UNITS["1.024 · 10⁹"]
"""The unit in which the paper's columns for LoRA and for full rank come out: 1,024 megabytes of 10^6 bytes."""
PRINTED = {
    "printed states": (0.13, 0.28, 0.54, 1.78),
    "printed total": (0.24, 0.52, 1.22, 4.38),
    "printed lora": (0.17, 0.37, 0.72, 2.38),
    "printed adam": (0.23, 0.51, 1.37, 5.20),
}
"""The columns of the paper's tables, by model."""


@dataclass(frozen=True)
class GaloreTheoryConfig(StudyConfig):
    """Small random problems, followed exactly."""

    height: Annotated[int, Least(2, "for a rank to fall")] = 3
    width: Annotated[int, Least(2, "for a rank to fall")] = 4
    """Of the gradients of Lemma 3.3 and Theorem 3.8."""
    draws: int = 12
    """Random problems per family of Lemma 3.3."""
    steps: int = 60
    inputs: Annotated[int, Least(5, "so that one less is well above half")] = 16
    """Dimensions of Corollary 3.4, with one input less."""
    networks: int = 5
    """Random networks per kind of activation."""
    classes: Annotated[tuple[int, ...], Least(2)] = (10, 100, 10_000)
    """Of the softmax loss."""
    searches: int = 500
    """Random problems per family of Theorem 3.8."""
    settled: int = 10
    """Problems that are followed to their end."""
    tokens: int = 5
    nodes: Annotated[int, Least(2, "for one the equations are the same")] = 3
    blocks: int = 1
    """Of Lemma B.6."""
    seed: int = 0


def run(config: GaloreTheoryConfig, run: Run, progress: Progress) -> None:
    """Each part is recorded once, as a whole."""
    c, seed = config, config.seed
    parts: tuple[tuple[str, Callable[[], dict[str, Tensor]]], ...] = (
        ("lemma", lambda: descent.lemma(c.height, c.width, c.draws, c.steps, seed)),
        ("half", lambda: descent.half(c.inputs, 40, seed)),
        ("rank one", lambda: descent.rank_one(c.height, c.width, c.draws, 300, seed)),
        ("network", lambda: {kind: errors(kind, c.networks, seed) for kind in ACTIVATIONS}),
        ("softmax", lambda: _softmax(c)),
        ("projection", lambda: _projections(c)),
        ("rows", lambda: rows(c.tokens, c.nodes, c.blocks, 20, seed)),
        ("memory", _memory),
    )
    for i, (name, compute) in enumerate(parts):
        progress(i / len(parts), name)
        if f"{name}/done" not in run:
            run.record(0, {**{f"{name}/{key}": value for key, value in compute().items()}, f"{name}/done": np.array(1)})


def _softmax(config: GaloreTheoryConfig) -> dict[str, Tensor]:
    sizes = torch.logspace(-4, -1, 4, dtype=DOUBLE)
    found = {"sizes": sizes, "classes": torch.tensor(config.classes)}
    for k in config.classes:
        largest = {"small": sizes, "printed": torch.tensor([LOGIT * k**0.5]), "corrected": torch.tensor([LOGIT])}
        for name, at in largest.items():
            found[f"{k}/{name}"] = softmax_errors(k, at, config.networks, config.seed)
    return found


def _projections(config: GaloreTheoryConfig) -> dict[str, Tensor]:
    rates = torch.tensor(RATES, dtype=DOUBLE)
    found = search(config.searches, config.height, config.width, config.seed)
    parts = {
        "peak": peak(rates),
        "constant C": constant_c(rates),
        "high rate": high_rate(torch.tensor([1.85, 1.9, 1.95], dtype=DOUBLE)),
        "cycle": cycle(400),
        "settle": settle(config.settled, config.height, config.width, 150, config.seed),
    }
    return found | {f"{name}/{key}": value for name, part in parts.items() for key, value in part.items()}


def _memory() -> dict[str, Tensor]:
    """Bytes by model: weights, and states of Adam, GaLore and LoRA. Embeddings and head are trained in full."""
    m, n, rank, layers, nominal = (
        torch.tensor(given, dtype=DOUBLE) for given in (HIDDEN, INTERMEDIATE, RANKS, LAYERS, NOMINAL)
    )
    embeddings, norms = adam_bytes(2 * VOCABULARY, m), 2 * (2 * layers + 1) * m
    found = {"embedding states": embeddings.states}
    for name, of in (("galore", galore_bytes), ("lora", lora_bytes)):
        attention, mlp = (one.states + one.projection for one in (of(m, m, rank), of(m, n, rank)))
        found[f"{name} matrices"] = layers * (4 * attention + 3 * mlp)
    weights = layers * (4 * adam_bytes(m, m).weights + 3 * adam_bytes(m, n).weights) + embeddings.weights + norms
    return {
        **found,
        "weights": weights,
        "adam": 2 * weights,
        "galore": found["galore matrices"] + embeddings.states + 2 * norms,
        "lora": found["lora matrices"] + embeddings.states,
        "nominal weights": 2 * nominal,
        **{name: torch.tensor(column, dtype=DOUBLE) for name, column in PRINTED.items()},
    }


def worst(values: Any) -> float:
    """The largest, or NaN if there is one among them."""
    return float(np.max(list(values)))


def excess(run: Run, family: str, form: str) -> Any:
    """By how much of it the stable rank is above a bound at its worst moment, (cases,)."""
    rank, bound = run.value(f"lemma/{family}/rank"), run.value(f"lemma/{family}/{form}")
    return (rank / bound - 1).max(-1)


def share_broken(run: Run, family: str) -> float:
    """Of the random cases: how many are above the printed bound at some time."""
    return float((excess(run, family, "printed")[1:] > KEPT).mean())


def columns(run: Run) -> dict[str, Any]:
    """Bytes and printed numbers by model, and three quarters of LoRA's states, in the paper's unit."""
    names = ("weights", "nominal weights", "galore", "galore matrices", "lora", *PRINTED)
    return {name: run.value(f"memory/{name}") for name in names} | {
        "three quarters": 0.75 * run.value("memory/lora") / ODD
    }

"""Theorem 3.2: the gradient of a weight inside a network without biases, by autograd and by formula.

And Lemma B.6: the weights V of several nodes under attention that they share, and how fast its rows grow.
"""

from collections.abc import Callable
from math import pi, sqrt

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from joma.theory import galore, linear
from joma.theory.attention import Attention, random_orthonormal
from joma.theory.flow import Block, constant_gradient

PIECEWISE = ("linear", "ReLU", "leaky ReLU", "residual ReLU")
POWERS = {"square": 2.0, "cube": 3.0}
BENT = "tanh"
"""Not reversible by any definition: the control."""
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
EQUATION, PER_NODE, CORRECTED = EQUATIONS = ("eq. 43", "eq. 44", "corrected")
"""Three equations for V'."""
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
    """The gradient that descent adds: of minus the loss."""
    leaf = w.clone().requires_grad_()
    (found,) = torch.autograd.grad(gain(leaf), leaf)
    return found


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Scaled so that numbers keep their size from layer to layer."""
    return torch.randn(*shape, generator=generator, dtype=DOUBLE) / (shape[-1] ** 0.5 if len(shape) > 1 else 1.0)


def rows(tokens: int, nodes: int, blocks: int, steps: int, seed: int) -> dict[str, Tensor]:
    """Real blocks with a linear MLP and constant g, from zero, in units of their first blow-up time.

    Relative errors of three equations for V', (blocks, steps); and of each row its length over that of its saliency,
    alpha, with the bounds (53) and the closed form, (blocks, steps, tokens).
    """
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

"""Theorem 3.2: the gradient of a weight inside a network without biases, by autograd and by formula."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from joma.theory import galore

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
DOUBLE = torch.float64


def errors(kind: str, draws: int, seed: int) -> Tensor:
    """Relative errors of the gradient formula, as printed and with the degree of the activations, (2, draws)."""
    generator = torch.Generator().manual_seed(seed)
    degree = POWERS.get(kind, 1.0) ** ACTIVATIONS_ABOVE
    found = [_one(kind, degree, generator) for _ in range(draws)]
    return torch.stack(found, -1)


def _one(kind: str, degree: float, generator: torch.Generator) -> Tensor:
    first, second, third, last = WIDTHS
    f, y = _normal(generator, first), _normal(generator, last)
    w, up, out = _normal(generator, second, first), _normal(generator, third, second), _normal(generator, last, third)
    act, around = ACTIVATIONS[kind], kind.startswith("residual")

    def above(h: Tensor) -> Tensor:
        middle = up @ act(h)
        if around:  # a residual block between two maps
            middle = middle + up @ h
        answer: Tensor = out @ act(middle)
        return answer

    jacobian = torch.autograd.functional.jacobian(above, w @ f)
    truth = _autograd(lambda weight: -(y - above(weight @ f)).square().sum() / 2, w)
    if not truth.any():  # every unit was off
        return _one(kind, degree, generator)
    forms = [galore.reversible_gradient(jacobian, w, f, y, degree=power) for power in (1.0, degree)]
    return torch.stack([(form - truth).norm() / truth.norm() for form in forms])


def softmax_errors(classes: int, sizes: Tensor, draws: int, seed: int) -> Tensor:
    """How far formula (b) is from autograd, over its linear term, at logits of these largest sizes, (sizes, draws)."""
    generator = torch.Generator().manual_seed(seed)
    rows = [_softmax(classes, sizes, generator) for _ in range(draws)]
    return torch.stack(rows, -1)


def _softmax(classes: int, sizes: Tensor, generator: torch.Generator) -> Tensor:
    hidden, inputs = 6, 5
    j, f = _normal(generator, classes, hidden), _normal(generator, inputs)
    w = _normal(generator, hidden, inputs)
    y = torch.zeros(classes, dtype=DOUBLE)
    y[int(torch.randint(classes, (), generator=generator))] = 1.0
    logits = j @ w @ f
    largest = (logits - logits.mean()).abs().max()
    found = []
    for size in sizes:
        weight = w * size / largest
        truth = _autograd(lambda x: (y * torch.log_softmax(j @ x @ f, -1)).sum(), weight)
        form = galore.softmax_gradient(j, weight, f, y)
        linear = form - galore.softmax_gradient(j, 0 * weight, f, y)
        found.append((form - truth).norm() / linear.norm())
    return torch.stack(found)


def _autograd(gain: Callable[[Tensor], Tensor], w: Tensor) -> Tensor:
    """The gradient that descent adds: of minus the loss."""
    leaf = w.clone().requires_grad_()
    (found,) = torch.autograd.grad(gain(leaf), leaf)
    return found


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Scaled so that numbers keep their size from layer to layer."""
    return torch.randn(*shape, generator=generator, dtype=DOUBLE) / (shape[-1] ** 0.5 if len(shape) > 1 else 1.0)

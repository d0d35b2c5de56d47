"""One step of an ensemble's optimizer, against the textbook in float64, member by member and tensor by tensor."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from joma.training import Optimizer
from joma.training.optimizers import by_parameter

SHAPES = ((2, 3), (4,), (2, 3, 2), ())


def quintic(x):
    u, values, v = torch.linalg.svd(x / (x.norm() + 1e-7), full_matrices=False)
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return u @ values.diag() @ v


def textbook(optimizer, rate, weights, steps):
    weights = [w.double() for w in weights]
    first, second = ([torch.zeros_like(w) for w in weights] for _ in range(2))
    third = [torch.zeros_like(w) for w in weights]
    b1, b2 = optimizer.betas
    for t, gradients in enumerate(steps, start=1):
        gradients = [g.double() for g in gradients]
        if optimizer.clip is not None:
            norm = math.sqrt(sum(float((g**2).sum()) for g in gradients))
            gradients = [g * min(1.0, optimizer.clip / (norm + 1e-6)) for g in gradients]
        for i, g in enumerate(gradients):
            if optimizer.kind in ("adamw", "muon"):
                weights[i] = weights[i] * (1 - rate * optimizer.weight_decay)
            else:
                g = g + optimizer.weight_decay * weights[i]
            if optimizer.kind == "sgd":
                first[i] = optimizer.momentum * first[i] + g
                weights[i] = weights[i] - rate * first[i]
            elif optimizer.kind == "muon" and g.ndim == 3:  # Nesterov's momentum, each matrix made orthogonal
                third[i] = optimizer.momentum * third[i] + (1 - optimizer.momentum) * g
                ahead = optimizer.momentum * third[i] + (1 - optimizer.momentum) * g
                change = torch.stack([quintic(one) for one in ahead])
                weights[i] = weights[i] - rate * 0.2 * max(g.shape[1:]) ** 0.5 * change
            else:
                first[i] = b1 * first[i] + (1 - b1) * g
                second[i] = b2 * second[i] + (1 - b2) * g**2
                depth = (second[i] / (1 - b2**t)).sqrt() + optimizer.epsilon
                weights[i] = weights[i] - rate * first[i] / (1 - b1**t) / depth
    return weights


OPTIMIZERS = some.builds(
    Optimizer,
    kind=some.sampled_from(["adam", "adamw", "muon"]),
    rate=some.tuples(*[some.sampled_from([0.3, 0.01, 0.0])] * 3),
    betas=some.sampled_from([(0.9, 0.999), (0.0, 0.5), (0.8, 0.0)]),
    epsilon=some.sampled_from([1e-8, 0.1]),
    weight_decay=some.sampled_from([0.0, 0.3]),
    clip=some.sampled_from([None, 0.5, 100.0]),
) | some.builds(
    Optimizer,
    kind=some.sampled_from(["sgd", "muon"]),
    rate=some.tuples(*[some.sampled_from([0.3, 0.01, 0.0])] * 3),
    momentum=some.sampled_from([0.0, 0.9]),
    weight_decay=some.sampled_from([0.0, 0.3]),
    clip=some.sampled_from([None, 0.5, 100.0]),
)


@given(optimizer=OPTIMIZERS, seed=some.integers(0, 2**16), dtype=some.sampled_from([torch.float32, torch.float64]))
def test_steps_are_those_of_the_textbook(optimizer, seed, dtype):
    draw = torch.Generator().manual_seed(seed)
    weights = [torch.randn(3, *shape, generator=draw, dtype=dtype) for shape in SHAPES]
    sizes = torch.tensor([0.1, 1.0, 30.0], dtype=dtype)  # members whose gradients differ in size are clipped apart
    steps = [
        [torch.randn(w.shape, generator=draw, dtype=dtype) * sizes.view(3, *[1] * (w.ndim - 1)) for w in weights]
        for _ in range(4)
    ]
    rates = torch.tensor(optimizer.rates(3), dtype=torch.float64)
    ours, state = [w.clone() for w in weights], optimizer.start(weights)
    for age, gradients in enumerate(steps, start=1):
        before = [g.clone() for g in gradients]
        optimizer.update(ours, gradients, state, rates, torch.tensor(float(age), dtype=torch.float64))
        assert all(map(torch.equal, gradients, before)), "gradients are the caller's"
    near = 1e-5 if dtype == torch.float32 else 1e-11
    for member, rate in enumerate(optimizer.rates(3)):
        alone = [w[member] for w in weights], [[g[member] for g in gradients] for gradients in steps]
        for mine, wanted in zip(ours, textbook(optimizer, rate, *alone), strict=True):
            torch.testing.assert_close(mine[member].double(), wanted, rtol=10 * near, atol=near)


def test_a_gradient_in_another_order_of_memory_is_the_same():
    """Autograd gives gradients of matrices that were read transposed with their strides the other way round."""
    weight, gradient = torch.zeros(2, 3, 4), torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0)).mT
    optimizer = Optimizer("sgd", rate=1.0)
    optimizer.update([weight], [gradient], [], torch.ones(2), torch.ones(()))
    assert torch.equal(weight, -gradient)


def test_rows_are_views_in_the_order_of_the_parameters():
    parameters = [torch.zeros(2, *shape) for shape in SHAPES]
    rows = torch.arange(46.0).view(2, 23)
    parts = by_parameter(rows, parameters)
    assert [part.shape for part in parts] == [p.shape for p in parameters]
    assert torch.equal(torch.cat([part.reshape(2, -1) for part in parts], 1), rows)
    parts[1].zero_()
    assert rows[:, 6:10].abs().sum() == 0
    assert rows[:, :6].min() == 0 < rows[:, 10:].min()


@pytest.mark.parametrize(
    ("kind", "momentum", "count"), [("muon", 0.9, 3), ("adam", 0.0, 2), ("sgd", 0.9, 1), ("sgd", 0.0, 0)]
)
def test_the_state_begins_with_zeros(kind, momentum, count):
    state = Optimizer(kind, momentum=momentum).start([torch.ones(2, *shape) for shape in SHAPES])
    assert [tuple(one.shape) for one in state] == [(2, 23)] * count
    assert not any(one.any() for one in state)

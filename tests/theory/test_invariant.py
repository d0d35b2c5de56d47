"""Theorem 1 along flows and along SGD, and what softmax conserves instead."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from later import some_now
from refusals import refusals

from joma.studies.invariant._blocks import SMOOTH, draw_block, side_by_side
from joma.theory.attention import Attention, value_and_derivative
from joma.theory.flow import Block, State, constant_gradient
from joma.theory.invariant import first_integral, first_integral_over_queries, sgd_drift, softmax_estimate

FLOW, STEP, EXACT = 1e-10, 1e-13, 1e-12
seeds = st.integers(0, 2**31 - 1)
SIGMAS = {"sinh": torch.sinh, "cubic": lambda z: z**3 + z}


def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def flowing(seed, kind, *, nodes=4, temperature=1.0, queries=1, **options):
    """A block and its start, with a member for each smooth activation and each kind of gradient."""
    sizes = SimpleNamespace(tokens=4, nodes=nodes, samples=10, seed=seed)
    attention = Attention(SIGMAS.get(kind, kind), temperature=temperature, norm=0.25)
    activation = side_by_side(list(SMOOTH.values()), -4)
    block, (w, z) = draw_block(sizes, attention, len(SMOOTH), queries=queries, activation=activation, **options)
    return block, State(w, temperature * z)


def drift(c):
    return float((c - c[0]).abs().max())


@pytest.mark.parametrize(("nodes", "residual"), some_now([(4, True), (1, True), (1, False), (4, False)], every=2))
@pytest.mark.parametrize(
    ("kind", "temperature", "rates"),
    [
        ("exp", 1.0, (1.0, 1.0)),
        ("exp", 0.5, (1.0, 0.3)),
        ("linear", 1.0, (0.5, 2.0)),
        ("sinh", 1.0, (1.0, 0.5)),
        ("cubic", 1.0, (1.0, 1.0)),
    ],
)
def test_the_first_integral_is_constant_along_the_flow(kind, temperature, rates, nodes, residual):
    rate_w, rate_z = rates
    block, state = flowing(
        nodes, kind, nodes=nodes, temperature=temperature, residual=residual, rate_w=rate_w, rate_z=rate_z
    )
    w, z = block.solve(*state, [0.0, 0.15, 0.3])
    z, v = z[..., 0, :], block.project(w)
    given = {"kind": SIGMAS.get(kind, kind), "kappa": block.kappa, "temperature": temperature}
    assert drift(first_integral(z, v, **given)) <= FLOW
    assert drift(z) > 1e-3
    assert drift(first_integral(z, v, **{**given, "kappa": 2 * block.kappa})) > 1e3 * FLOW


@pytest.mark.parametrize("kind", ["exp", "linear", "cubic"])
@pytest.mark.parametrize("per_query", [True, False])
def test_several_queries_conserve_their_sum_alone(kind, per_query):
    block, state = flowing(0, kind, queries=3, per_query=per_query, rate_z=0.5)
    w, z = block.solve(*state, [0.0, 0.15, 0.3])
    v = block.project(w)
    given = {"kind": SIGMAS.get(kind, kind), "kappa": block.kappa}
    p = torch.bincount(block.query).double() / len(block.query)
    assert drift(first_integral_over_queries(z, v, **given, probability=p if per_query else None)) <= FLOW
    assert drift(first_integral_over_queries(z, v, **given, probability=None if per_query else p)) > 1e-3
    assert drift(first_integral(z[..., 0, :], v, **given)) > 1e-3


def descend(seed, kind, *, steps, rate, kappa, temperature=1.0, samples=8):
    """SGD by eq. 2 on a fresh minibatch and a fresh gradient at every step. Returns z (steps, tokens) and v."""
    tokens, nodes = 4, 3
    u = torch.eye(tokens + 1, dtype=torch.float64)
    query = torch.zeros(samples, dtype=torch.long)
    w, z = 0.5 * draw(seed, tokens + 1, nodes), 0.5 * draw(seed + 1, 1, tokens)
    path = [(z[0], w[:tokens])]
    for step in range(steps):
        x = draw(seed + 10 * step + 2, samples, tokens).softmax(-1)
        g = draw(seed + 10 * step + 3, samples, nodes)
        attention = Attention(kind, temperature=temperature)
        block = Block(x, query, u[:, :tokens], u[:, tokens:], constant_gradient(g), attention, torch.tanh)
        move = block.velocity(w, z)
        w, z = w + rate * move.w, z + kappa * rate * move.z
        path.append((z[0], w[:tokens]))
    return (torch.stack(part) for part in zip(*path, strict=True))


@settings(max_examples=12, deadline=None)
@given(seeds, st.sampled_from([("exp", 1.0), ("exp", 0.5), ("linear", 1.0)]), st.floats(0.01, 0.3), st.floats(0.2, 2.0))
def test_the_drift_of_sgd_is_exact(seed, kind, rate, kappa):
    kind, temperature = kind
    z, v = descend(seed, kind, steps=20, rate=rate, kappa=kappa, temperature=temperature)
    c = first_integral(z, v, kind=kind, kappa=kappa, temperature=temperature)
    predicted = sgd_drift(z, v, kind=kind, kappa=kappa, temperature=temperature)
    assert predicted.shape == z.shape
    assert predicted[0].eq(0).all()
    torch.testing.assert_close(c - c[0], predicted, rtol=0, atol=STEP * max(1.0, float(c.abs().max())))
    if kind == "exp":
        assert (predicted.diff(dim=0) <= 0).all()


def softmax_descent(seed, *, samples, steps=30, rate=0.3, kappa=0.7, temperature=0.5):
    """SGD with softmax attention on fixed data. Returns x, z, v, bbar and eta_w Cov(s, b) of every step."""
    tokens, nodes = 5, 3
    u = torch.eye(tokens + 1, dtype=torch.float64)
    x = draw(seed, samples, tokens).softmax(-1)
    g = constant_gradient(draw(seed + 1, samples, nodes))
    query = torch.zeros(samples, dtype=torch.long)
    attention = Attention("softmax", temperature=temperature)
    block = Block(x, query, u[:, :tokens], u[:, tokens:], g, attention, torch.tanh, rate_w=rate, rate_z=kappa * rate)
    w, z = draw(seed + 2, tokens + 1, nodes), draw(seed + 3, 1, tokens)
    path = []
    for _ in range(steps):
        b = block.attend(z)
        h, slope = value_and_derivative(torch.tanh, (b @ u[:tokens] + u[tokens]) @ w)
        s = ((block.backprop(h, 0.0) * slope) @ w[:tokens].mT * b).sum(-1, keepdim=True)
        path.append((z[0], w[:tokens], b.mean(0), rate * ((s * b).mean(0) - s.mean() * b.mean(0))))
        w, z = (part + move for part, move in zip((w, z), block.velocity(w, z), strict=True))
    z, v, bbar, covariance = (torch.stack(part) for part in zip(*path, strict=True))
    return x, z, v, bbar, covariance


@settings(max_examples=10, deadline=None)
@given(seeds, st.integers(1, 6))
def test_the_softmax_identity_is_exact(seed, samples):
    x, z, v, bbar, covariance = softmax_descent(seed, samples=samples)
    given = {"kappa": 0.7, "temperature": 0.5, "z0": z[0]}
    exact = softmax_estimate(v, method="identity", mean_attention=bbar, covariance=covariance, **given)
    torch.testing.assert_close(exact, z, rtol=EXACT, atol=EXACT)
    estimates = [
        exact,
        softmax_estimate(v, x=x, **given),
        softmax_estimate(v, method="integrated", mean_attention=bbar, **given),
        softmax_estimate(v, method="published", mean_attention=bbar[0], **given),
    ]
    for estimate in estimates:
        assert estimate.shape == z.shape
        assert estimate[0].equal(z[0])
        assert drift(estimate.sum(-1)) <= EXACT * max(1.0, float(estimate.abs().max()))


def test_one_sample_has_no_covariance_and_needs_no_identity():
    x, z, v, bbar, covariance = softmax_descent(0, samples=1)
    given = {"kappa": 0.7, "temperature": 0.5, "z0": z[0]}
    assert covariance.abs().max() <= EXACT
    torch.testing.assert_close(softmax_estimate(v, x=x, **given), z, rtol=EXACT, atol=EXACT)
    integrated = softmax_estimate(v, method="integrated", mean_attention=bbar, **given)
    torch.testing.assert_close(integrated, z, rtol=EXACT, atol=EXACT)
    published = softmax_estimate(v, method="published", mean_attention=bbar[0], **given)
    assert (published - z).abs().max() > 1e-3


def test_estimates_are_batched():
    paths = [softmax_descent(seed, samples=4) for seed in (0, 100)]
    x, z, v, bbar, covariance = (torch.stack(part) for part in zip(*paths, strict=True))
    given = {"kappa": 0.7, "temperature": 0.5}
    both = {
        "self-consistent": {"x": x},
        "published": {"mean_attention": bbar[:, 0]},
        "integrated": {"mean_attention": bbar},
        "identity": {"mean_attention": bbar, "covariance": covariance},
    }
    for method, needs in both.items():
        together = softmax_estimate(v, method=method, z0=z[:, 0], **needs, **given)
        for i in range(2):
            alone = {name: value[i] for name, value in needs.items()}
            torch.testing.assert_close(together[i], softmax_estimate(v[i], method=method, z0=z[i, 0], **alone, **given))
        assert softmax_estimate(v, method=method, **needs, **given).shape == z.shape  # from z0 = 0


@pytest.mark.parametrize(
    ("sigma", "primitive"),
    [
        (torch.exp, lambda z: z),
        (lambda z: z, lambda z: z**2 / 2),
        (torch.sinh, lambda z: z.cosh().log()),
        (torch.sigmoid, lambda z: z + z.exp() - 1),
    ],
)
def test_any_sigma_has_its_primitive(sigma, primitive):
    z = torch.linspace(-3, 3, 13, dtype=torch.float64)
    c = first_integral(z, torch.zeros(13, 1, dtype=torch.float64), kind=sigma)
    torch.testing.assert_close(c, primitive(z), rtol=EXACT, atol=EXACT)


def test_gradients_pass_through():
    z, v = draw(0, 2, 3).requires_grad_(), draw(1, 2, 3, 2).requires_grad_()
    for kind in ("exp", "linear", torch.sinh):
        assert torch.autograd.gradcheck(lambda z, v, kind=kind: first_integral(z, v, kind=kind, kappa=1.7), (z, v))
    for kind in ("exp", "linear"):
        assert torch.autograd.gradcheck(lambda z, v, kind=kind: sgd_drift(z, v, kind=kind), (z, v))
    x = draw(2, 5, 3).softmax(-1)
    assert torch.autograd.gradcheck(lambda v: softmax_estimate(v, x=x), (v,))


Z, V = torch.zeros(3, 2), torch.ones(3, 2, 4)


@pytest.mark.parametrize("kind", ["exp", "linear"])
def test_drift_of_many_logits_beside_one_path_of_weights(kind):
    z, v = draw(0, 2, 6, 3), draw(1, 6, 3, 2)
    for logits, weights in ((z, v), (z[0], v.expand(2, 6, 3, 2))):
        drift = sgd_drift(logits, weights, kind=kind)
        assert drift.shape == (2, 6, 3)
        assert (drift[:, 0] == 0).all()
    drift = sgd_drift(z, v, kind=kind)
    for i in range(2):
        torch.testing.assert_close(drift[i], sgd_drift(z[i], v, kind=kind))


test_bad_input_gets_one_sentence = refusals(
    (lambda: first_integral(Z, V, kappa=0.0), "kappa must be positive"),
    (lambda: first_integral(Z, V, temperature=-1.0), "temperature must be positive"),
    (lambda: first_integral(Z, V, kind="softmax"), "softmax conserves nothing, see softmax_estimate"),
    (lambda: first_integral(Z, V, kind="linear", temperature=2.0), "temperature belongs to 'exp'"),
    (lambda: first_integral(Z + 1, V, kind=torch.cosh), "sigma/sigma' cannot be integrated from 0 to z = 1"),
    (lambda: first_integral([[0.5, 2.5, 4.0]], torch.ones(1, 3, 1), kind=torch.sin), "to z = 2.5; does"),
    (lambda: first_integral(Z + 2, V, kind=torch.sin), "does sigma' vanish there"),
    (lambda: first_integral(Z + 1, V, kind=torch.ones_like), "cannot be integrated"),
    (lambda: first_integral_over_queries(Z, V[0], probability=[1, 2, 3]), r"probability must lie in \[0, 1\]"),
    (lambda: first_integral_over_queries(Z, V[0], probability=[0.5, 0.5, 0.5]), "probability must sum to 1"),
    (lambda: sgd_drift(Z, V, kind="softmax"), "kind must be 'exp' or 'linear', got 'softmax'"),
    (lambda: sgd_drift(Z, V, kind="linear", temperature=2.0), "temperature belongs to 'exp'"),
    (lambda: softmax_estimate(V, method="best"), "method must be one of published"),
    (lambda: softmax_estimate(V), "method 'self-consistent' needs x"),
    (lambda: softmax_estimate(V, x=Z, mean_attention=Z), "does not use mean_attention"),
    (lambda: softmax_estimate(V, x=-torch.ones(5, 2)), "x must hold frequencies"),
    (lambda: softmax_estimate(V, x=torch.ones(5, 2), temperature=[1.0, 2.0]), "temperature must be one number each"),
    (lambda: softmax_estimate(V, x=torch.ones(7, 5, 2)), "x must fit the leading dimensions"),
    (lambda: softmax_estimate(V, x=torch.ones(5, 2), z0=torch.zeros(5)), r"z0 must fit the shape \(2,\)"),
    (lambda: softmax_estimate(V, method="published", mean_attention=Z), "mean_attention must fit the shape"),
    (lambda: softmax_estimate(V, method="integrated", mean_attention=Z[:2]), "mean_attention must fit the shape"),
)

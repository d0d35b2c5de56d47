"""Attention kinds against autograd, entropy, embeddings."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusals

from joma.theory.attention import Attention, derivative, entropy, random_orthonormal, value_and_derivative

TOL = 1e-12
seeds = st.integers(0, 2**31 - 1)
SIGMAS = {"sinh": torch.sinh, "cubic": lambda z: z**3 + z}
kinds = st.sampled_from(["linear", "exp", "softmax", *SIGMAS])


def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def attention(kind, temperature=1.0, norm=1.0):
    if kind in SIGMAS:
        return Attention(SIGMAS[kind], norm=norm)
    return Attention(kind, temperature=temperature, norm=1.0 if kind == "softmax" else norm)


@settings(max_examples=40, deadline=None)
@given(seeds, kinds, st.floats(0.2, 3.0), st.floats(0.2, 3.0))
def test_pull_back_is_what_autograd_finds(seed, kind, temperature, norm):
    kind = attention(kind, temperature, norm)
    z, upstream = draw(seed, 2, 1, 5).requires_grad_(), draw(seed + 1, 2, 4, 5)
    x = draw(seed + 2, 4, 5).abs()
    b = kind.weights(z, x)
    (expected,) = torch.autograd.grad(b, z, upstream)
    pulled = kind.pull_back(z, x, b, upstream)
    assert pulled.shape == (2, 4, 5)
    torch.testing.assert_close(pulled.sum(1, keepdim=True), expected, rtol=TOL, atol=TOL)


def test_weights_are_those_of_eq_1():
    z, x = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64), torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    torch.testing.assert_close(Attention("linear", temperature=2.0, norm=4.0).weights(z, x), z / 2 * x / 4)
    torch.testing.assert_close(Attention("exp", temperature=2.0, norm=4.0).weights(z, x), (z / 2).exp() * x / 4)
    raw = (z / 2).exp() * x
    torch.testing.assert_close(Attention("softmax", temperature=2.0).weights(z, x), raw / raw.sum())
    torch.testing.assert_close(Attention(torch.sinh, norm=4.0).weights(z, x), z.sinh() * x / 4)


def test_softmax_is_stable_and_a_missing_token_gets_nothing():
    b = Attention("softmax").weights(torch.tensor([900.0, 1000.0, 0.0]), torch.tensor([0.5, 0.5, 0.0]))
    torch.testing.assert_close(b, torch.tensor([0.0, 1.0, 0.0]))
    z = torch.zeros(3, requires_grad=True)
    (slope,) = torch.autograd.grad(Attention("softmax").weights(z, torch.tensor([0.5, 0.5, 0.0]))[0], z)
    assert slope.isfinite().all()


def test_derivative_has_derivatives():
    x = draw(0, 4).requires_grad_()
    torch.testing.assert_close(derivative(torch.tanh, x), 1 - x.tanh() ** 2, rtol=TOL, atol=TOL)
    assert torch.autograd.gradcheck(lambda x: derivative(torch.tanh, x), (x,))
    assert torch.autograd.gradcheck(lambda x: value_and_derivative(torch.sinh, x), (x,))


def test_derivative_of_a_constant_is_zero_and_no_graph_is_left_behind():
    x = draw(0, 3)
    assert derivative(lambda x: torch.ones_like(x.detach()), x).eq(0).all()
    for part in value_and_derivative(torch.tanh, x):
        assert not part.requires_grad
    with torch.no_grad():
        value, slope = value_and_derivative(torch.tanh, x.requires_grad_())
    assert not value.requires_grad
    torch.testing.assert_close(slope, 1 - value**2, rtol=TOL, atol=TOL)


@settings(max_examples=25, deadline=None)
@given(seeds, st.integers(1, 30))
def test_entropy_lies_between_one_hot_and_uniform(seed, tokens):
    p = draw(seed, 3, tokens).softmax(-1)
    h = entropy(p)
    assert h.shape == (3,)
    assert (h >= 0).all()
    assert (h <= math.log(tokens) + TOL).all()
    torch.testing.assert_close(entropy(p.mT, dim=0), h)
    one_hot, uniform = torch.eye(tokens)[0], torch.full((tokens,), 1 / tokens, dtype=torch.float64)
    assert entropy(one_hot) == 0
    assert float(entropy(uniform)) == pytest.approx(math.log(tokens), abs=TOL)


@settings(max_examples=20, deadline=None)
@given(seeds, st.integers(1, 8), st.integers(0, 5))
def test_embeddings_are_orthonormal_and_repeatable(seed, count, spare):
    u = random_orthonormal(count + spare, count, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(u.mT @ u, torch.eye(count, dtype=torch.float64), rtol=0, atol=TOL)
    assert u.equal(random_orthonormal(count + spare, count, generator=torch.Generator().manual_seed(seed)))


test_bad_input_gets_one_sentence = refusals(
    (lambda: Attention("cosine"), "attention must be 'linear', 'exp', 'softmax' or a function, got 'cosine'"),
    (lambda: Attention("exp", temperature=0.0), "temperature must be a finite number above 0, got 0.0"),
    (lambda: Attention("exp", temperature=float("nan")), "temperature must be a finite number above 0, got nan"),
    (lambda: Attention("linear", norm=-1.0), "norm must be a finite number above 0, got -1.0"),
    (lambda: Attention("softmax", norm=2.0), "softmax makes its own normaliser"),
    (lambda: Attention(torch.sinh, temperature=2.0), "carries its own temperature"),
    (lambda: entropy([1.5, -0.5]), "p must not be negative, got -0.5"),
    (lambda: random_orthonormal(2, 3, generator=torch.Generator()), "3 orthonormal vectors do not fit into 2"),
    (lambda: random_orthonormal(2, 0, generator=torch.Generator()), "count must be a whole number of at least 1"),
)

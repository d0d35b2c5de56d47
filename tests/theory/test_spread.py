"""Entropy of Gaussian logits against samples and other integrals."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from later import some_now

from joma.theory import spread

KEYS = st.sampled_from([1.5, 2.0, 3.0, 17.0, 256.0, 1e4, 1e6, 1e9])
VARIANCES = st.floats(-8, 8).map(lambda power: 10**power)


def by_two_keys(variance):
    """Two keys: one integral over the difference of their logits, N(0, 2 variance)."""
    scale = min(1.0, variance**-0.5)
    g = np.linspace(0, 10, 200_001) * (1 if scale == 1 else 4 * scale)
    gap = g * math.sqrt(2 * variance)
    small = np.exp(-gap)
    entropy = np.log1p(small) + gap * small / (1 + small)
    return 2 * np.trapezoid(entropy * np.exp(-(g**2) / 2) / math.sqrt(2 * math.pi), g)


def by_free_energy(variance, n):
    """E ln Z - E sum p z, with E ln Z = int e^(-t) - phi(t)^n dt/t and E sum p z = variance E(1 - sum p^2)."""
    s, step = math.sqrt(variance), 0.05
    g = np.arange(-11, 11, 0.05)
    u = np.arange(-math.log(n) - variance - 12 * s - 45, 12 * s + 8, step)
    x = np.exp(u[:, None] + s * g)
    weight = np.exp(-(g**2) / 2) / math.sqrt(2 * math.pi) * 0.05
    below, density = -np.expm1(-x) @ weight, (x * np.exp(-x)) @ weight
    above = np.log1p(-np.minimum(below, 1 - 1e-16))
    free = (np.exp(-np.exp(u)) - np.exp(n * above)).sum() * step
    spent = n * (n - 1) * (density**2 * np.exp((n - 2) * above)).sum() * step
    return free - variance * spent


@pytest.mark.parametrize("variance", [1e-4, 0.1, 0.159, 0.161, 1.0, 9.0, 400.0, 1e6])
def test_two_keys(variance):
    assert spread.gaussian_entropy(variance, 2).item() == pytest.approx(by_two_keys(variance), rel=1e-8)


@pytest.mark.parametrize("n", some_now([1.5, 2, 10, 1000, 1e6], every=2))
@pytest.mark.parametrize("variance", [0.01, 0.15, 0.17, 2.0, 6.0, 30.0])
def test_entropy_is_free_energy_less_energy(variance, n):
    assert spread.gaussian_entropy(variance, n).item() == pytest.approx(by_free_energy(variance, n), abs=1e-11)


def test_ends():
    n = torch.tensor([1.0, 1.25, 2.0, 64.0, 1e6, 1e100], dtype=torch.float64)
    torch.testing.assert_close(spread.gaussian_entropy(0.0, n), n.log(), rtol=1e-13, atol=0)
    assert (spread.gaussian_entropy([0.0, 0.1, 3.0, 1e300], 1) == 0).all()
    # like s^(-1) at last: the digits of a small entropy are not lost
    far = spread.gaussian_entropy([1e20, 1e40, 1e300], 64)
    torch.testing.assert_close(far * torch.tensor([1e10, 1e20, 1e150], dtype=torch.float64), far[:1].expand(3) * 1e10)


@settings(max_examples=12, deadline=None)
@given(VARIANCES, KEYS, st.floats(1.01, 10))
def test_entropy_falls_with_variance_and_rises_with_keys(variance, n, factor):
    here = spread.gaussian_entropy(variance, n)
    assert 0 < here <= math.log(n) * (1 + 1e-12)
    assert spread.gaussian_entropy(variance * factor, n) < here
    assert spread.gaussian_entropy(variance, n * factor) > here


@pytest.mark.parametrize("n", some_now([10, 1.5, 1e6], every=3))
@pytest.mark.parametrize("variance", [0.01, 0.15, 0.17, 6.0])
def test_slope_against_differences_of_the_other_integral(variance, n):
    v = torch.tensor(variance, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(spread.gaussian_entropy(v, n), v)
    e = variance / 50
    one, two = (by_free_energy(variance + k * e, n) - by_free_energy(variance - k * e, n) for k in (1, 2))
    assert slope.item() == pytest.approx((8 * one - two) / (12 * e), rel=1e-6)


def test_slope_at_the_ends():
    v = torch.tensor([0.0, 1e-300, 1e-12], dtype=torch.float64, requires_grad=True)
    for n in (1.0, 2.0, 50.0, 1e6):
        (slope,) = torch.autograd.grad(spread.gaussian_entropy(v, n).sum(), v)
        torch.testing.assert_close(slope, torch.full_like(slope, -(n - 1) / (2 * n)))
    v = torch.tensor([1e10, 1e300], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(spread.gaussian_entropy(v, 50).sum(), v)
    assert slope[0].item() == pytest.approx(-spread.gaussian_entropy(1e10, 50).item() / 2e10)
    assert slope[1] == 0


def test_curvature():
    v = torch.tensor([0.1, 0.3, 5.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda v: spread.gaussian_entropy(v, 64), (v,))


def test_a_batch_is_its_elements():
    v = torch.logspace(-3, 3, 45, dtype=torch.float64).reshape(9, 5)  # both rules, more than one chunk
    n = torch.tensor([2.0, 3.0, 10.0, 100.0, 1e6], dtype=torch.float64)
    found = spread.gaussian_entropy(v, n)
    for i in (0, 4, 8):
        for j in range(5):
            assert found[i, j].item() == pytest.approx(spread.gaussian_entropy(v[i, j], n[j]).item(), rel=1e-12)


def test_the_random_energy_limit_is_approached_from_above():
    """At a share of the critical variance; entropy over ln n tends to the limit over ln n."""
    n = torch.tensor([1e2, 1e4, 1e8, 1e16, 1e32, 1e64, 1e100], dtype=torch.float64)
    for share in (0.25, 0.5, 1.0, 2.0):
        variance = share * spread.critical_variance(n)
        off = (spread.gaussian_entropy(variance, n) - spread.random_energy_entropy(variance, n)) / n.log()
        assert (off > -1e-12).all()
        assert (off.diff() < 1e-12).all()
        assert off[-1] < (1e-12 if share < 1 else 0.08)
        torch.testing.assert_close(
            spread.random_energy_entropy(variance, n), n.log() * max(1 - share, 0), rtol=1e-13, atol=1e-12
        )


def test_frozen_entropy_is_that_of_the_poisson_dirichlet_law():
    m, generator = 0.4, np.random.default_rng(0)
    stick = generator.beta(1 - m, m * np.arange(1, 401), (3000, 400))  # breaks off in an order drawn by weight
    left = np.cumprod(1 - stick, 1)
    weights = stick * np.concatenate([np.ones((3000, 1)), left[:, :-1]], 1)
    sampled = -(weights * np.log(np.maximum(weights, 1e-300))).sum(1)
    n = 1e50
    limit = spread.frozen_entropy(2 * math.log(n) / m**2, n).item()
    assert abs(sampled.mean() - limit) < 4 * sampled.std() / 3000**0.5 + 3 * left[:, -1].mean()
    for n, off in ((1e3, 0.6), (1e12, 0.3), (1e100, 0.04)):
        exact = spread.gaussian_entropy(2 * math.log(n) / m**2, n).item()
        assert 0 < limit - exact < off
    assert spread.frozen_entropy([0.0, 1.5 * math.log(64), 2 * math.log(64)], 64).tolist() == [math.inf] * 3

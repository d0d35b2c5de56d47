"""Radial laws against scipy, against each other, and against their own samples."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusals
from scipy import special, stats

from joma.theory.radial import Ball, ExponentialRadial, Gaussian, StudentT

TOL = 1e-12
LAWS = [
    Gaussian(3, 1.3),
    Ball(1, 0.7),
    Ball(2, 2.0),
    Ball(5, 2.0),
    StudentT(3, 1.5),
    StudentT(4, 3.0),
    ExponentialRadial(1, 2.0),
    ExponentialRadial(2),
    ExponentialRadial(5, 1.5),
]
by_name = pytest.mark.parametrize("law", LAWS, ids=str)


def grid(law, count=81, reach=8.0):
    end = 0.999 * law.radius if law.radius < math.inf else reach * law.mean_distance
    return torch.linspace(-end, end, count, dtype=torch.float64)


def close(a, b, tol=TOL):
    torch.testing.assert_close(a.double(), torch.as_tensor(b, dtype=torch.float64), rtol=tol, atol=0)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.1, 10), st.floats(-30, 30))
def test_gaussian_share_is_the_normal_distribution(scale, z):
    close(Gaussian(4, scale).theta1(z * scale), stats.norm.cdf(z))


@settings(max_examples=40, deadline=None)
@given(st.floats(1.05, 100), st.floats(-1e3, 50))
def test_student_share_is_students_distribution(nu, s):
    close(StudentT(3, nu).theta1(s), stats.t.cdf(s, nu), 1e-11)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 300), st.floats(0.01, 0.9999), st.floats(0.1, 10))
def test_ball_share_is_an_incomplete_beta(n, part, radius):
    s = -radius * (1 - part)
    close(Ball(n, radius).theta1(s), special.betainc((n + 1) / 2, (n + 1) / 2, (1 + s / radius) / 2), 1e-10)


@pytest.mark.parametrize("n", [1, 2, 4, 5])
def test_exponential_density_is_a_bessel_function(n):
    s = torch.linspace(0.05, 60, 50, dtype=torch.float64)
    order = n / 2
    constant = 2**order * special.gamma(order + 0.5) * math.sqrt(math.pi)
    close(ExponentialRadial(n).density(s), s.numpy() ** order * special.kv(order, s.numpy()) / constant)


@by_name
def test_what_belongs_together_fits_together(law):
    s = grid(law)
    far = s > -law.mean_distance  # where theta2 + s theta1 does not cancel
    close(law.F(s)[far], (law.theta2(s) + s * law.theta1(s))[far], 1e-11)
    close(law.theta1(s) + law.theta1(-s), torch.ones_like(s))
    close(law.theta2(s), law.theta2(-s))
    assert (law.theta1(s).diff() > 0).all()
    assert (law.F(s) > 0).all()
    u, w = law.half_rule
    close(2 * w.sum(), 1.0)
    close(2 * (w * u).sum(), law.mean_distance)


@by_name
def test_derivatives_by_autograd_and_by_differences(law):
    s = (0.8 * grid(law, 12, 3.0)).requires_grad_()
    density, share = law.density(s).detach(), law.theta1(s).detach()
    for function, slope in ((law.theta1, density), (law.theta2, -s * density), (law.F, share)):
        (derivative,) = torch.autograd.grad(function(s).sum(), s)
        torch.testing.assert_close(derivative, slope.detach(), rtol=1e-10, atol=1e-14)
        assert torch.autograd.gradcheck(function, (s,))
    assert torch.autograd.gradgradcheck(law.F, (s,))


@pytest.mark.parametrize(
    "law",
    [pytest.param(law, marks=[pytest.mark.long] * (type(law) is type(last))) for last, law in pairwise([None, *LAWS])],
    ids=lambda law: f"{type(law).__name__}-{law.dimension}",
)
def test_samples_follow_the_marginal_in_every_direction(law):
    x = law.sample(4_000, generator=torch.Generator().manual_seed(3))
    assert x.shape == (4_000, law.dimension)
    direction = torch.ones(law.dimension, dtype=torch.float64) / math.sqrt(law.dimension)
    for u in (x[:, 0], x @ direction):
        share = law.theta1(-u).numpy()  # uniform if u has the law's marginal
        assert stats.kstest(share, "uniform").pvalue > 1e-3


def test_samples_repeat_with_the_seed():
    draw = [StudentT(3, 2.5).sample(5, generator=torch.Generator().manual_seed(1)) for _ in range(2)]
    assert torch.equal(*draw)


@by_name
def test_inverse(law):
    y = torch.tensor([1e-6, 0.2, 0.5, 0.9], dtype=torch.float64)
    close(law.theta1(law.inverse_theta1(y)), y, 1e-9)


def test_residual_life_rises_for_log_concave_laws_only():
    s = torch.linspace(-6, 3, 200, dtype=torch.float64)
    assert (Gaussian(3).residual_life(s).diff() > 0).all()
    assert (StudentT(3, 3.0).residual_life(s).diff() < 0).any()


@pytest.mark.parametrize("n", [60, 127, 128, 1000, 3000, 50_000])
def test_high_dimensions(n):
    """E|u| is E|x'| times the mean |cos|; half of a law lies on either side of its middle."""
    mean_cosine = math.exp(math.lgamma(n / 2) - math.lgamma((n + 1) / 2)) / math.sqrt(math.pi)
    lengths = {Gaussian(n): math.sqrt(2 / math.pi) / mean_cosine, Ball(n): n / (n + 1), ExponentialRadial(n): n}
    for law, length in lengths.items():
        assert law.mean_distance == pytest.approx(length * mean_cosine, rel=2e-10)  # of lgamma, not of the law
        assert law.theta1(0.0).item() == pytest.approx(0.5, abs=1e-11)
        assert law.F(0.0).item() == pytest.approx(law.theta2(0.0).item(), rel=1e-11)


@pytest.mark.parametrize("law", [Gaussian(600, 0.4), Ball(600, 8.0), StudentT(100, 3.0), ExponentialRadial(150, 20.0)])
def test_densities_in_high_dimensions_integrate_to_one(law):
    """In logarithms: volumes and powers leave the range of float64 long before the density does."""
    n = law.dimension
    r = torch.linspace(1e-3, 8.0 if isinstance(law, Ball) else 400.0, 400_001, dtype=torch.float64)
    density = law.radial(r)
    area = math.log(2) + n / 2 * math.log(math.pi) - math.lgamma(n / 2)
    shells = torch.where(density > 0, torch.exp(density.log() + (n - 1) * r.log() + area), 0.0)
    assert torch.trapezoid(shells, r).item() == pytest.approx(1, abs=3e-3)


def test_far_out_nothing_is_left_and_nothing_is_nan():
    s = torch.tensor([-1e300, -1e30, 1e30, 1e300], dtype=torch.float64)
    for law in LAWS:
        assert law.F(s)[2:].tolist() == [1e30, 1e300]
        assert (law.F(s)[:2] <= 1e-14).all()  # a power tail with nu = 1.5 falls like s^-0.5
        torch.testing.assert_close(law.theta1(s), (s > 0).double(), rtol=0, atol=1e-20)


test_bad_input_gets_one_sentence = refusals(
    (lambda: Gaussian(0), "dimension must be a whole number"),
    (lambda: Gaussian(2, -1.0), "scale must be a finite number above 0"),
    (lambda: Ball(2, math.inf), "radius must be a finite number above 0"),
    (lambda: StudentT(2, 1.0), "nu must be a finite number above 1"),
    (lambda: ExponentialRadial(2, math.nan), "rate must be a finite number above 0"),
    (lambda: Gaussian(2).inverse_theta1(1.0), "y must lie strictly between 0 and 1"),
    (lambda: Gaussian(2).sample(0), "count must be a whole number"),
)

"""Lemmas 1-5 and Theorem 3 against samples, autograd and differences."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusals

from joma.theory import isotropic as iso
from joma.theory.radial import Ball, ExponentialRadial, Gaussian, StudentT

TOL = 1e-12
LAWS = [Gaussian(4, 0.8), Ball(4, 2.0), StudentT(4, 3.0), ExponentialRadial(4, 2.0)]
by_law = pytest.mark.parametrize("law", LAWS, ids=str)
slopes = st.sampled_from([(0.0, 1.0), (0.1, 1.0), (-1.0, 1.0), (1.0, 1.0)])
seeds = st.integers(0, 2**31 - 1)


def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def two_clusters(m, ratio, dimension=4):
    axis = torch.eye(dimension, dtype=torch.float64)[0]
    weights = torch.stack([torch.ones_like(torch.as_tensor(ratio)), -torch.as_tensor(ratio)])
    return axis, torch.stack([m * axis, 0 * axis]), weights


@by_law
@pytest.mark.parametrize("length", [0.3, 2.5])
@pytest.mark.parametrize("psi", [None, torch.sigmoid], ids=["step", "sigmoid"])
def test_lemma1_against_samples(law, length, psi):
    """In a subspace, with a v that sticks out of it; the printed form misses by hundreds of standard errors."""
    basis = torch.linalg.qr(draw(0, 6, 4)).Q
    inside = basis @ draw(1, 4)
    outside = draw(2, 6) / 3
    v = length * inside / inside.norm() + outside - basis @ (basis.T @ outside)
    centre, xi = draw(3, 6) / 3, torch.tensor(0.1, dtype=torch.float64)
    x = centre + law.sample(40_000, generator=torch.Generator().manual_seed(4)) @ basis.T
    active = (lambda y: (y > 0).to(y))(x @ v + xi) if psi is None else psi(x @ v + xi)
    samples = torch.cat([active[:, None], active[:, None] * x], -1)
    error = samples.std(0) / len(x) ** 0.5 + 1e-12
    exact = iso.hyperplane_mean(v, xi, centre, law, psi=psi, basis=basis)
    printed = iso.printed_hyperplane_mean(v, xi, centre, law, psi=psi, basis=basis)
    off = (torch.cat([exact.mean[None], exact.vector]) - samples.mean(0)) / error
    assert off.abs().max() < 4.5
    assert ((torch.cat([printed.mean[None], printed.vector]) - samples.mean(0)) / error).abs().max() > 50


@by_law
def test_printed_forms_are_right_at_length_one(law):
    v = draw(0, 3, 4)
    v = v / v.norm(dim=-1, keepdim=True)
    xi, centres, weights = draw(1, 3), draw(2, 3, 2, 4), draw(3, 3, 2)
    for psi in (None, torch.sigmoid):
        exact = iso.hyperplane_mean(v, xi, centres[:, 0], law, psi=psi)
        torch.testing.assert_close(iso.printed_hyperplane_mean(v, xi, centres[:, 0], law, psi=psi), exact)
    motion = iso.velocity(v, xi, centres, weights, law)
    torch.testing.assert_close(iso.printed_velocity(v, xi, centres, weights, law), motion)
    growth = (v * motion.v).sum(-1)
    torch.testing.assert_close(iso.printed_growth(v, xi, motion.xi, centres, weights, law), growth)


@by_law
def test_a_steep_sigmoid_is_a_step(law):
    r = torch.tensor([-0.7, 0.4], dtype=torch.float64)
    steep = iso.smooth_thetas(r, 1.0, law, lambda y: torch.sigmoid(40 * y))
    step = iso.thetas(r, law)
    torch.testing.assert_close(steep, step, rtol=0, atol=2e-3)


@settings(max_examples=15, deadline=None)
@given(seeds, st.sampled_from(LAWS), slopes, st.floats(0, 1))
def test_velocity_and_hessian_are_derivatives_of_the_objective(seed, law, slope, decay):
    v, xi = draw(seed, 2, 4).requires_grad_(), draw(seed + 1, 2).requires_grad_()
    setting = (draw(seed + 2, 3, 4), draw(seed + 3, 3), law)
    height = iso.objective(v, xi, *setting, decay=decay, slopes=slope)
    motion = iso.velocity(v, xi, *setting, decay=decay, slopes=slope)
    torch.testing.assert_close(torch.autograd.grad(height.sum(), (v, xi)), (motion.v, motion.xi), rtol=TOL, atol=TOL)
    rows = torch.cat([motion.v, motion.xi[..., None]], -1)
    for i in range(5):
        by_v, by_xi = torch.autograd.grad(rows[:, i].sum(), (v, xi), retain_graph=True)
        row = iso.hessian(v, xi, *setting, decay=decay, slopes=slope)[:, i]
        torch.testing.assert_close(torch.cat([by_v, by_xi[:, None]], -1), row, rtol=1e-10, atol=1e-11)


@settings(max_examples=25, deadline=None)
@given(seeds, st.sampled_from(LAWS), st.floats(0.1, 10))
def test_only_the_direction_counts_and_growth_is_the_objective(seed, law, scale):
    v, xi, centres, weights = draw(seed, 4), draw(seed + 1, 1)[0], draw(seed + 2, 3, 4), draw(seed + 3, 3)
    motion = iso.velocity(v, xi, centres, weights, law)
    torch.testing.assert_close(iso.velocity(scale * v, scale * xi, centres, weights, law), motion)
    growth = v @ motion.v + xi * motion.xi
    torch.testing.assert_close(growth, iso.objective(v, xi, centres, weights, law), rtol=TOL, atol=TOL)
    neutral = iso.hessian(v, xi, centres, weights, law) @ torch.cat([v, xi[None]])
    assert neutral.abs().max() < TOL


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(LAWS), slopes, st.floats(-1.8, 1.8))
def test_lemmas_3_and_5_by_differences(law, slope, s):
    at = torch.tensor([s - 1e-4, s + 1e-4], dtype=torch.float64)
    first, second = iso.thetas(at, law, slopes=slope)
    truth = iso.theta_derivatives(s, law, slopes=slope)
    assert abs(first.diff().item() / 2e-4 - truth.first.item()) < 1e-6
    assert abs(second.diff().item() / 2e-4 - truth.second.item()) < 1e-6
    rise = (second + at * first).diff().item() / 2e-4
    assert abs(rise - iso.thetas(s, law, slopes=slope).first.item()) < 1e-6
    torch.testing.assert_close(second + at * first, iso.excess(at, law, slopes=slope), rtol=1e-11, atol=1e-13)


def test_lemma5_as_printed_takes_the_sum_of_the_slopes():
    kinked, straight = (-1.0, 1.0), (1.0, 1.0)
    law, s = Gaussian(3), 0.5
    assert iso.printed_theta_derivatives(s, law, slopes=kinked).first == 0
    assert iso.theta_derivatives(s, law, slopes=straight).first == 0
    assert iso.printed_theta_derivatives(s, law, slopes=straight).first > 0.7


@pytest.mark.parametrize("n", [2, 3, 4, 7, 10])
def test_eq_36_is_right(n):
    s = torch.linspace(-1.9, 1.9, 9, dtype=torch.float64)
    for law in (Gaussian(n), Ball(n, 2.0), StudentT(n, 3.0), ExponentialRadial(n)):
        torch.testing.assert_close(iso.printed_marginal(s, law), law.density(s), rtol=TOL, atol=0)


def test_critical_rays_of_students_law():
    """The table of ratios that contradicts "between 1/2 and 2"."""
    m = torch.tensor([0.25, 0.5, 1.0, 2.0, 4.0, 8.0], dtype=torch.float64)
    ray = iso.critical_rays(m, StudentT(4, 3.0))
    expected = torch.tensor([1.265, 1.599, 2.530, 5.955, 24.02, 149.6], dtype=torch.float64)
    torch.testing.assert_close(ray.ratio, expected, rtol=5e-4, atol=0)
    back = iso.critical_rays(m, StudentT(4, 3.0), side=-1)
    torch.testing.assert_close(back.ratio, 1 / ray.ratio)
    torch.testing.assert_close(back.rho_plus, ray.rho_minus)


@settings(max_examples=6, deadline=None)
@given(st.floats(1.2, 30), st.floats(0.1, 6), st.floats(0.2, 5), st.sampled_from([1, -1]))
def test_nothing_moves_on_a_critical_ray(nu, m, length, side):
    law = StudentT(4, nu)
    ray = iso.critical_rays(m, law, side=side)
    axis, centres, weights = two_clusters(m, ray.ratio)
    motion = iso.velocity(side * length * axis, length * ray.rho_minus, centres, weights, law)
    scale = weights.abs().max() * law.theta1(max(ray.rho_plus, ray.rho_minus))
    assert motion.v.abs().max() < 1e-11 * scale * (1 + m)
    assert motion.xi.abs() < 1e-11 * scale


@pytest.mark.parametrize("law", [Gaussian(4), Ball(4, 1.0), ExponentialRadial(4), ExponentialRadial(1)], ids=str)
def test_log_concave_laws_have_no_critical_ray(law):
    ray = iso.critical_rays([0.2, 1.0, 5.0], law)
    assert all(part.isnan().all() for part in ray)


def test_the_crossing_value_is_sufficient_but_not_necessary():
    values = [iso.crossing_value(StudentT(2, nu)).item() for nu in (1.5, 2, 3, 5, 20)]
    assert values == pytest.approx([0.348, 0.25, 0.203, 0.180, 0.163], abs=6e-4)
    assert iso.crossing_value(Gaussian(2)).item() == pytest.approx(1 / (2 * math.pi))
    assert iso.printed_existence(StudentT(2, 2.0))
    assert not iso.printed_existence(StudentT(2, 3.0))
    assert iso.critical_rays(1.0, StudentT(2, 3.0)).ratio.isfinite()


@by_law
def test_with_decay_there_is_an_isolated_stable_point(law):
    m, a_minus, decay = 1.5, torch.tensor(1.2, dtype=torch.float64), 0.1
    point = iso.decayed_point(m, 1.0, a_minus, law, decay)
    axis, centres, weights = two_clusters(m, a_minus)
    mu = point.norm * axis
    motion = iso.velocity(mu, point.xi, centres, weights, law, decay=decay)
    assert max(motion.v.abs().max(), motion.xi.abs()) < 1e-12
    assert torch.linalg.eigvalsh(iso.hessian(mu, point.xi, centres, weights, law, decay=decay)).max() < -0.5 * decay
    twice = iso.decayed_point(m, 1.0, a_minus, law, 2 * decay)
    torch.testing.assert_close(2 * twice.norm, point.norm)  # decay sets the distance, not the direction


def test_where_the_negative_cluster_wins_everything_decays():
    point = iso.decayed_point([0.5, 2.0], 1.0, [20.0, 1.0], StudentT(3, 3.0), 0.1)
    assert point.norm.isnan().tolist() == [True, False]
    assert point.rho_plus.isnan().tolist() == [True, False]


@pytest.mark.parametrize(("side", "m"), [(1, 0.5), (1, 2.0), (-1, 2.0)])
def test_linearisation_is_the_jacobian_at_fixed_bias(side, m):
    law = StudentT(4, 3.0)
    ray = iso.critical_rays(m, law, side=side)
    axis, centres, weights = two_clusters(m, ray.ratio)
    mu, xi = side * 1.7 * axis, 1.7 * ray.rho_minus
    jacobian = torch.autograd.functional.jacobian(lambda v: iso.velocity(v, xi, centres, weights, law).v, mu)
    exact = iso.linearisation(mu, xi, centres[0], 1.0, ray.ratio, law)
    torch.testing.assert_close(exact.C, -jacobian, rtol=1e-9, atol=1e-10)
    assert exact.beta1 * side > 0
    printed = iso.printed_linearisation(mu, xi, centres[0], 1.0, ray.ratio, law)
    assert (printed.C + jacobian).abs().max() > 0.01


@by_law
def test_linearisation_with_decay(law):
    decay = 0.1
    point = iso.decayed_point(2.0, 1.0, 1.0, law, decay)
    axis, centres, weights = two_clusters(2.0, torch.tensor(1.0, dtype=torch.float64))
    block = iso.hessian(point.norm * axis, point.xi, centres, weights, law, decay=decay)[:4, :4]
    exact = iso.linearisation(point.norm * axis, point.xi, centres[0], 1.0, 1.0, law, decay=decay)
    torch.testing.assert_close(exact.C, -block, rtol=1e-10, atol=1e-12)


def test_printed_linearisation_belongs_to_the_printed_velocity():
    law, m, gap = StudentT(4, 3.0), 2.0, 1.0
    ratio = iso.critical_rays(gap, law).ratio
    point = iso.printed_critical_point(m, gap, law)
    axis, centres, weights = two_clusters(m, ratio)
    mu = point.norm * axis
    assert iso.printed_velocity(mu, point.xi, centres, weights, law).v.abs().max() < TOL
    assert iso.velocity(mu, point.xi, centres, weights, law).v.abs().max() > 0.9
    jacobian = torch.autograd.functional.jacobian(
        lambda v: iso.printed_velocity(v, point.xi, centres, weights, law).v, mu
    )
    printed = iso.printed_linearisation(mu, point.xi, centres[0], 1.0, ratio, law)
    torch.testing.assert_close(printed.C, -jacobian, rtol=1e-10, atol=1e-10)


@by_law
def test_eq_69(law):
    v, centre, power = draw(0, 4), draw(1, 4), 3.0

    def pushed(v):
        return law.theta2(v @ centre + 0.3) * v / v.norm() ** power

    jacobian = torch.autograd.functional.jacobian(pushed, v)
    torch.testing.assert_close(iso.theta2_jacobian(v, 0.3, centre, law, power=power), jacobian)
    assert (iso.printed_theta2_jacobian(v, 0.3, centre, law, power=power) - jacobian).abs().max() > 1e-3


LAW = Gaussian(2)


@pytest.mark.parametrize("size", [1e-300, 1e300])
def test_the_size_of_v_and_xi_does_not_matter_however_extreme(size):
    """Without decay v' and xi' depend on directions alone, and J grows with (v, xi); squares of 1e300 do not exist."""
    v, xi = torch.tensor([[0.6, -0.8], [0.3, 0.1]], dtype=torch.float64), torch.tensor([0.2, -0.1], dtype=torch.float64)
    clusters = ([[1.0, 0.5], [0.0, 0.0]], [1.0, -1.0], StudentT(2, 3.0))
    plain, scaled = iso.velocity(v, xi, *clusters), iso.velocity(size * v, size * xi, *clusters)
    torch.testing.assert_close(scaled.v, plain.v, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(scaled.xi, plain.xi, rtol=1e-13, atol=1e-15)
    height = iso.objective(v, xi, *clusters)
    torch.testing.assert_close(iso.objective(size * v, size * xi, *clusters) / size, height, rtol=1e-13, atol=0)


def test_the_derivative_in_decay_where_there_is_none():
    v, xi, decay = draw(0, 2), draw(1, 1)[0], torch.zeros((), dtype=torch.float64, requires_grad=True)
    height = iso.objective(v, xi, [[1.0, 0.5], [0.0, 0.0]], [1.0, -1.0], Gaussian(2), decay=decay)
    (slope,) = torch.autograd.grad(height, decay)
    torch.testing.assert_close(slope, -(v @ v + xi * xi) / 2)


def test_batches_of_every_argument_broadcast():
    v, xi, centres, weights = draw(0, 4, 1, 2), draw(1, 3), draw(2, 3, 5, 2), draw(3, 4, 3, 5)
    decay, law = draw(4, 4, 1) ** 2, Gaussian(2)
    velocity = iso.velocity(v, xi, centres, weights, law, decay=decay)
    height = iso.objective(v, xi, centres, weights, law, decay=decay)
    bend = iso.hessian(v, xi, centres, weights, law, decay=decay)
    for i in range(4):
        for j in range(3):
            one = (v[i, 0], xi[j], centres[j], weights[i, j], law)
            alone = iso.velocity(*one, decay=decay[i, 0])
            torch.testing.assert_close(velocity.v[i, j], alone.v)
            torch.testing.assert_close(velocity.xi[i, j], alone.xi)
            torch.testing.assert_close(height[i, j], iso.objective(*one, decay=decay[i, 0]))
            torch.testing.assert_close(bend[i, j], iso.hessian(*one, decay=decay[i, 0]))


def test_an_objective_that_overflows_is_not_one_without_a_maximum():
    """NaN says that everything decays to zero; too large a number is another matter."""
    with pytest.raises(ValueError, match="m, a_plus and a_minus must be smaller: the objective leaves the range"):
        iso.decayed_point(1e300, 1e300, 1.0, Gaussian(2), 0.1)
    assert iso.decayed_point(1.0, 1.0, 1.0, Gaussian(2), 1e-320).norm.isinf()
    assert iso.decayed_point(1.0, 1.0, 1.0, Gaussian(2), 1e-320).rho_minus.isfinite()
    assert iso.decayed_point(0.1, 0.01, 1.0, Gaussian(2), 0.1).norm.isnan()


def test_a_power_tail_in_float32():
    """Its nodes reach farther out than float32 does."""
    law = StudentT(3, 3.0)
    found = iso.smooth_thetas(torch.tensor([0.3, -1.0]), torch.tensor(0.8), law, torch.sigmoid)
    wanted = iso.smooth_thetas([0.3, -1.0], 0.8, law, torch.sigmoid)
    for part, same in zip(found, wanted, strict=True):
        torch.testing.assert_close(part.double(), same, rtol=1e-5, atol=0)


test_bad_input_gets_one_sentence = refusals(
    (lambda: iso.hyperplane_mean([0.0, 0.0], 0.0, [1.0, 0.0], LAW), "v must not be zero"),
    (
        lambda: iso.hyperplane_mean([1.0, 0.0, 0.0], 0.0, [1.0, 0.0, 0.0], LAW, basis=torch.ones(3, 2)),
        "basis must have orthonormal columns",
    ),
    (lambda: iso.hyperplane_mean([1.0], 0.0, [1.0], LAW, basis=torch.ones(3, 2)), r"basis must be \(1, 2\)"),
    (lambda: iso.smooth_thetas(0.0, 0.0, LAW, torch.sigmoid), "a must be positive"),
    (lambda: iso.thetas(0.0, LAW, slopes=(0.0, math.inf)), "slopes must be two finite numbers"),
    (lambda: iso.critical_rays(-1.0, LAW), "m must be positive"),
    (lambda: iso.critical_rays(1.0, LAW, side=0), "side must be 1 or -1"),
    (lambda: iso.decayed_point(1.0, 1.0, 1.0, LAW, 0.0), "decay must be positive"),
    (lambda: iso.linearisation([1.0, 1.0], 0.0, [1.0, 0.0], 1.0, 1.0, LAW), "mu must be parallel to centre"),
    (lambda: iso.linearisation([1.0, 0.0], 0.0, [1.0, 0.0], 1.0, 1.0, LAW), "mu is not a critical point"),
    (lambda: iso.printed_marginal(0.0, Gaussian(1)), "dimension must be a whole number of at least 2"),
)

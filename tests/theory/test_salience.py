"""Equation 6 without time stepping, against an ODE solver and a quadrature that know nothing of it."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from later import some_now
from refusals import refusals
from scipy.integrate import quad, solve_ivp
from scipy.special import dawsn

from joma.measure import stable_rank
from joma.theory import salience
from joma.theory.flow import integrate

TOL = 1e-9
seeds = st.integers(0, 2**31 - 1)


def uniform(seed, *shape, low=0.0, high=1.0):
    u = torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return low + (high - low) * u


def elapsed(mu, v0, v):
    """The time from v0 to v as a plain integral of dv/v', by an adaptive quadrature."""
    return quad(lambda u: math.exp(-u * u / 2) / (mu - u), v0, v, epsabs=0, epsrel=1e-13, limit=200)[0]


@pytest.mark.parametrize(
    ("mu", "v0"), [(1.0, 0.0), (2.5, 0.05), (4.0, 0.0), (-3.0, 0.0), (3.0, -2.0), (1.0, 4.0), (0.0, 3.0), (-0.5, -4.0)]
)
def test_trajectory_follows_the_flow(mu, v0):
    t = np.linspace(0, 3, 7)
    flow = solve_ivp(lambda _, v: (mu - v) * np.exp(v * v / 2), (0, 3), [v0], "LSODA", t_eval=t, rtol=1e-12, atol=1e-13)
    closed = salience.trajectory([mu], t.tolist(), v0=v0)[:, 0]
    torch.testing.assert_close(closed, torch.from_numpy(flow.y[0]), rtol=0, atol=TOL)


@settings(max_examples=25, deadline=None)
@given(st.floats(-35, 35), st.floats(-35, 35), st.floats(0.001, 0.999))
def test_every_start_and_target_is_met_at_its_time(mu, v0, share):
    """Choose where to end, ask the quadrature how long that takes, ask the trajectory where it is then."""
    v = v0 + (mu - v0) * share
    if abs(mu - v0) < 1e-3:
        return
    t = elapsed(mu, v0, v)
    if t < 1e-290:
        return
    found = salience.trajectory([mu], [t], v0=[v0]).item()
    # A rounding error of t moves v by v' times it, and v' is anything up to 1e266.
    slack = 1e-11 * t * abs(mu - v) * math.exp(v * v / 2)
    assert abs(found - v) <= 1e-10 * max(1.0, abs(v)) + slack


def exact_time(mu, v0, v):
    """The same integral to 30 digits, in pieces on each of which the integrand changes by a few e-folds at most."""
    mp = pytest.importorskip("mpmath")
    with mp.workdps(30):
        edges = [mp.mpf(v0)]
        while edges[-1] != v:
            u = edges[-1]
            piece = min(mp.mpf(1) / 2, 4 / max(1, abs(u)), abs(mu - u) / 2)
            edges.append(u + piece if v > u + piece else u - piece if v < u - piece else mp.mpf(v))
        largest = mp.mpf(min(abs(v0), abs(v))) ** 2 / 2  # scaled by it: mpmath's quadrature counts absolute errors
        whole = mp.quad(lambda u: mp.exp(largest - u * u / 2) / (mu - u), edges) * mp.exp(-largest)
        speed = (mu - mp.mpf(v)) * mp.exp(mp.mpf(v) ** 2 / 2)
        return float(whole), float(abs(speed * whole))


CLOSE_STARTS = [(mu, mu - gap, (1, 8, 16, 22)) for mu in (15.0, 20.0, 27.0, 35.0) for gap in (0.05, 1.7, 2.0)]
FAR_STARTS = [(35.0, 5.0, (12,)), (28.6, 22.0, (16,)), (30.9, 16.5, (20,)), (13.8, 10.6, (18,))]


@pytest.mark.parametrize(("mu", "v0", "many"), some_now(CLOSE_STARTS + FAR_STARTS, every=3))
def test_starts_at_large_v_are_met_at_their_time(mu, v0, many):
    """Where e^(-u^2/2) falls by many e-folds between v0 and mu, though they may be close: when it has by `folds`."""
    for folds in many:
        v = min(math.sqrt(v0 * v0 + 2 * folds), (v0 + mu) / 2)
        t, stiffness = exact_time(mu, v0, v)
        for sign in (1, -1):
            found = salience.trajectory([sign * mu], [t], v0=[sign * v0]).item()
            # t itself is rounded, and a relative error of t moves v by t v' times it.
            assert abs(found - sign * v) <= 1e-13 * v + 4e-13 * stiffness, (folds, sign)
            level = salience.depth([sign * mu], [t], v0=[sign * v0]).item()
            wanted = pytest.approx(-math.log(1 - v / mu), abs=1e-12 + 4e-13 * stiffness / (mu - v))
            assert level == wanted, (folds, sign)


def test_large_starts_among_others_in_one_call():
    mu = torch.tensor([2.0, 31.6, 20.0], dtype=torch.float64)
    v0 = torch.tensor([0.1, 29.7, 18.5], dtype=torch.float64)
    v = v0 + 0.3 * (mu - v0)
    t = [exact_time(*each)[0] for each in zip(mu.tolist(), v0.tolist(), v.tolist(), strict=True)]
    order = sorted(range(3), key=t.__getitem__)
    found = salience.trajectory(mu, sorted(t), v0=v0)
    torch.testing.assert_close(found[torch.arange(3), order], v[order], rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("mu", "v0", "v"),
    [
        (9.0, 7.0, 7.4),
        (12.0, 9.0, 9.3),
        (20.0, 18.5, 18.6),
        (-20.0, -18.5, -18.6),
        (30.0, 29.0, 29.05),
        (-3.0, 8.0, 7.5),
    ],
)
def test_gradients_of_starts_at_large_v(mu, v0, v):
    """Both ends lie in the tail of the error function, where its difference is lost."""
    t, _ = exact_time(mu, v0, v)
    given = [torch.tensor([x], dtype=torch.float64, requires_grad=True) for x in (mu, t, v0)]
    slopes = torch.autograd.grad(salience.trajectory(given[0], given[1], v0=given[2]).sum(), given)
    for i, width in enumerate((1e-6, 1e-6 * t, 1e-6)):
        ends = []
        for sign in (1, -1):
            moved = [mu, t, v0]
            moved[i] += sign * width
            ends.append(salience.trajectory([moved[0]], [moved[1]], v0=[moved[2]]).item())
        assert slopes[i].item() == pytest.approx((ends[0] - ends[1]) / (2 * width), rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.floats(-6, 0.9999), st.floats(-10, 10))
def test_time_to_is_the_integral_of_eq_79(r, mu):
    expected = quad(lambda x: math.exp(-((mu * x) ** 2) / 2) / (1 - x), 0, r, epsabs=0, epsrel=1e-12)[0]
    assert salience.time_to(r, mu).item() == pytest.approx(expected, rel=1e-11)
    rest = expected + math.exp(-mu * mu / 2) * math.log1p(-r)
    assert salience.remainder(r, mu).item() == pytest.approx(rest, rel=1e-9, abs=1e-12)


@settings(max_examples=20, deadline=None)
@given(seeds, st.floats(0.5, 12.0))
def test_time_and_depth_are_inverse_to_each_other(seed, largest):
    mu = uniform(seed, 64, low=-largest, high=largest)
    t = 10 ** uniform(seed + 1, 5, low=-6, high=3)
    level = salience.depth(mu, t)
    assert (level > 0).all()
    back = salience.time_to_depth(level, mu)
    torch.testing.assert_close(back, t[:, None].expand(5, 64), rtol=1e-12, atol=0)


def test_depth_outlives_delta():
    level = salience.depth([6.0], [10.0])
    assert salience.trajectory([6.0], [10.0]) == 6.0
    assert level.item() == pytest.approx(math.exp(18) * (10 - salience.remainder(1.0, 6.0).item()), rel=1e-12)
    assert salience.time_to([1.0, 0.0], 2.0).tolist() == [torch.inf, 0.0]
    assert salience.time_to_depth(torch.inf, 2.0) == torch.inf


def test_depth_is_counted_from_the_start():
    v = salience.trajectory([2.0, -3.0, 1.0], [0.3], v0=[0.5, -0.5, 2.0])
    expected = -torch.log((1 - v / torch.tensor([2.0, -3.0, 1.0], dtype=torch.float64)).abs())
    torch.testing.assert_close(salience.depth([2.0, -3.0, 1.0], [0.3], v0=[0.5, -0.5, 2.0]), expected)


def test_small_times_keep_their_digits():
    t = torch.tensor([1e-12, 1e-3], dtype=torch.float64)
    mu = torch.tensor([0.3, 2.0, 5.0], dtype=torch.float64)
    series = mu * t[:, None] - mu * t[:, None] ** 2 / 2 + (mu + mu**3) * t[:, None] ** 3 / 6
    torch.testing.assert_close(salience.trajectory(mu, t)[0], series[0], rtol=1e-14, atol=0)
    torch.testing.assert_close(salience.trajectory(mu, t)[1], series[1], rtol=1e-6, atol=0)


def test_the_bounded_part_is_bounded_and_its_bound_is_reached():
    mu = torch.linspace(0, 35, 4001, dtype=torch.float64)
    whole = salience.remainder(1.0, mu)
    assert whole.max() <= salience.REMAINDER_BOUND
    assert whole.max() > salience.REMAINDER_BOUND - 1e-5
    r = torch.linspace(0, 1, 50, dtype=torch.float64)[:, None]
    grid = salience.remainder(r, mu[::40])
    assert (grid.diff(dim=0) >= -1e-15).all()
    assert (grid >= 0).all()
    # The paper's way to it: eq. 86 at r -> 1 with zeta <= sup zeta, and Lemma 7's G (a Dawson function).
    lemma7 = math.sqrt(2) * dawsn(mu.numpy() / math.sqrt(2))
    assert (whole.numpy() <= (math.sqrt(math.pi / 2) + 1) * lemma7 + 1e-12).all()


@settings(max_examples=25, deadline=None)
@given(st.floats(0.2, 4), st.floats(0.2, 4), st.floats(0.01, 50))
def test_theorem_4(mu_j, mu_k, t):
    ratio, leading, deviation = salience.convergence_ratio(mu_j, mu_k, [t])
    level = salience.depth([mu_j, mu_k], [t])[0]
    assert ratio.item() == pytest.approx((level[0] / level[1]).item(), rel=1e-12)
    assert ratio.item() == pytest.approx((leading * (1 + deviation)).item(), rel=1e-9)
    assert abs(deviation.item()) * level[1].item() * math.exp(-(mu_k**2) / 2) <= salience.REMAINDER_BOUND


def test_entropy_drops_and_recovers():
    mu = torch.tensor([4.0, 3.0, 2.0, 1.0], dtype=torch.float64)
    t = torch.linspace(0, 40, 400, dtype=torch.float64)
    entropy = salience.entropy_curve(mu, t, scale=1 / 3)
    last = torch.softmax(mu**2 / 3, 0)
    assert entropy[0].item() == pytest.approx(math.log(4))
    assert entropy.min() < entropy[-1] - 0.1
    assert entropy[-1].item() == pytest.approx(torch.special.entr(last).sum().item(), abs=1e-9)


@settings(max_examples=5, deadline=None)
@given(seeds)
def test_rows_follow_the_flow(seed):
    mu, v0 = uniform(seed, 2, 3, 2, low=-1.5, high=1.5)
    t = torch.linspace(0, 1.5, 4, dtype=torch.float64)

    def field(time, v):
        return (mu - v) * torch.exp((v * v).sum(-1, keepdim=True) / 2)

    for start in (torch.zeros_like(v0), v0):
        flow = integrate(field, start, t)
        torch.testing.assert_close(salience.matrix_trajectory(mu, t, v0=start), flow, rtol=0, atol=TOL)


def test_times_of_rows_keep_their_digits():
    """A row of one node is a token: 0.3 and 1.1 are no numbers of float32."""
    t = torch.tensor([0.3, 1.1], dtype=torch.float64)
    flow = integrate(lambda time, v: (0.8 - v) * torch.exp(v * v / 2), torch.zeros(1, 1), t)
    torch.testing.assert_close(salience.matrix_trajectory([[0.8]], t), flow, rtol=0, atol=1e-11)


def test_stable_rank_drops_and_recovers_while_the_rank_stays():
    mu = uniform(5, 12, 6, low=-1, high=1) * torch.linspace(0.5, 2.5, 12, dtype=torch.float64)[:, None]
    t = torch.linspace(0, 40, 200, dtype=torch.float64)
    curve = salience.stable_rank_curve(mu, t)
    torch.testing.assert_close(curve[1:], stable_rank(salience.matrix_trajectory(mu, t))[1:])
    torch.testing.assert_close(curve[[0, -1]], stable_rank(mu).expand(2), rtol=1e-6, atol=0)
    assert curve.min() < curve[0] - 0.3
    assert (torch.linalg.matrix_rank(salience.matrix_trajectory(mu, t[1:])) == 6).all()
    assert salience.stable_rank_curve(torch.zeros(2, 2), [0.0, 1.0]).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("mu", "v0"), [(3.0, 0.1), (3.0, 5.0), (-2.0, -0.3), (2.0, -0.3), (-1.0, 0.5), (0.0, 0.7), (0.0, -0.7), (2.0, 0.0)]
)
def test_linear_attention_follows_the_flow(mu, v0):
    t = torch.tensor([0.0, 0.3, 4.0], dtype=torch.float64)
    flow = integrate(lambda time, v: (mu - v) * v.abs(), torch.tensor([v0], dtype=torch.float64), t)
    v = salience.linear_attention_trajectory([mu], t, v0=v0)
    torch.testing.assert_close(v, flow, rtol=0, atol=1e-10)
    if mu:
        level = salience.linear_attention_depth([mu], t, v0=v0)
        torch.testing.assert_close(level, -torch.log((1 - v / mu).abs()), rtol=1e-9, atol=1e-9)


def test_linear_attention_ratio_tends_to_the_ratio_of_mu():
    level = salience.linear_attention_depth([3.0, 1.0], [30.0, 1000.0, 1e7], v0=0.001)
    ratio = level[:, 0] / level[:, 1]
    assert ratio.tolist() == pytest.approx([3.5506, 3.0128, 3.0], abs=2e-4)


def test_batches_and_gradients():
    mu = uniform(0, 2, 3, low=-3, high=3).requires_grad_()
    v0 = uniform(1, 3, low=-4, high=4).requires_grad_()
    t = torch.tensor([0.05, 0.6], dtype=torch.float64, requires_grad=True)
    assert salience.trajectory(mu, t, v0=v0).shape == (2, 2, 3)
    for function in (salience.trajectory, salience.depth):
        assert torch.autograd.gradcheck(lambda m, t, v: function(m, t, v0=v), (mu, t, v0))
        assert torch.autograd.gradgradcheck(lambda m, t, v: function(m, t, v0=v), (mu, t, v0), fast_mode=True)
    assert torch.autograd.gradcheck(lambda m, v: salience.matrix_trajectory(m, [0.2], v0=v), (mu, v0))
    assert torch.autograd.gradcheck(lambda m, v: salience.linear_attention_trajectory(m, [0.2], v0=v), (mu, v0))
    r = torch.tensor([[-0.5], [0.6]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda r, m: salience.time_to(r, m[0]), (r, mu))


def test_gradients_where_nothing_moves():
    mu = torch.tensor([0.0, 2.0, -1.0], dtype=torch.float64, requires_grad=True)
    v0 = torch.tensor([0.0, 2.0, -1.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda m, v: salience.trajectory(m, [0.4], v0=v), (mu, v0))
    v = salience.trajectory(mu, [1e9])
    (slope,) = torch.autograd.grad(v.sum(), mu)
    torch.testing.assert_close(slope, torch.ones(3, dtype=torch.float64))  # long converged: v is mu


def test_rows_at_rest_have_their_gradient():
    """Near rest (mu - v)' = -(mu - v) exp(|mu|^2/2), so dv/dmu = 1 - exp(-t exp(|mu|^2/2))."""
    rows = torch.tensor([[1.0, 0.5], [0.0, 0.0]], dtype=torch.float64)
    mu = rows.clone().requires_grad_()
    v = salience.matrix_trajectory(mu, [0.4], v0=rows)
    torch.testing.assert_close(v[0], rows)
    (slope,) = torch.autograd.grad(v.sum(), mu)
    speed = torch.tensor([[0.625], [0.0]], dtype=torch.float64).exp()
    torch.testing.assert_close(slope, (1 - (-0.4 * speed).exp()).expand(2, 2), rtol=1e-9, atol=0)


def test_mixed_batches_do_not_disturb_each_other():
    mu, v0 = uniform(7, 40, low=-8, high=8), uniform(8, 40, low=-8, high=8)
    t = torch.tensor([0.0, 1e-9, 0.05, 2.0], dtype=torch.float64)
    together = salience.trajectory(mu, t, v0=v0)
    alone = torch.stack([salience.trajectory(m[None], t, v0=v) for m, v in zip(mu, v0, strict=True)], -1)[:, 0]
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-12)
    assert torch.equal(together[0], v0)


def test_float32_stays_float32_and_is_computed_in_float64():
    mu = torch.tensor([1.0, 20.0])
    v = salience.trajectory(mu, torch.tensor([0.06]))
    assert v.dtype == torch.float32
    torch.testing.assert_close(v.double(), salience.trajectory([1.0, 20.0], torch.tensor([0.06])), rtol=1e-7, atol=0)
    assert salience.trajectory(torch.ones(2, 0), [1.0]).shape == (2, 1, 0)


test_bad_input_gets_one_sentence = refusals(
    (lambda: salience.trajectory([40.0], [0.1]), r"mu must lie in \[-35, 35\], got 40"),
    (lambda: salience.trajectory([1.0], [0.1], v0=-36.0), r"v0 must lie in \[-35, 35\]"),
    (lambda: salience.trajectory([1.0], [-0.1]), "t must not be negative"),
    (lambda: salience.depth([0.0], [0.1]), "mu must not be zero"),
    (lambda: salience.time_to(1.5, 1.0), "r must not exceed 1, got 1.5"),
    (lambda: salience.convergence_ratio(2.0, 1.0, [0.0]), "t must be positive"),
    (lambda: salience.entropy_curve([1.0], [0.1], scale=0.0), "scale must be positive"),
    (lambda: salience.entropy_curve([1.0, 2.0], [0.1], scale=[0.5, 1.0]), "scale must be a single number"),
    (lambda: salience.matrix_trajectory([[30.0, 30.0]], [0.1]), "no row of mu may be longer than 35"),
    (lambda: salience.linear_attention_depth([0.0], [0.1], v0=0.1), "mu must not be zero"),
)


@pytest.mark.parametrize(("mu", "v0"), some_now([(30.0, 29.0), (30.0, 20.0), (34.0, 30.0), (20.0, 19.0)], every=2))
def test_near_the_end_of_a_race_v_is_as_exact_as_its_time(mu, v0):
    """There v' is up to 1e10 times v over t: the last digit of t moves v in the seventh.

    The oracle is the integral of eq. 6 in 40 digits, scaled: mpmath stops at an absolute error, and such a time may be
    1e-185.
    """
    import mpmath

    with mpmath.workdps(40):
        for share in (0.1, 0.5, 0.9, 0.99):
            v = v0 + (mu - v0) * share
            scale = mpmath.mpf(v0) ** 2 / 2
            pieces = mpmath.linspace(mpmath.mpf(v0), mpmath.mpf(v), 30)
            t = mpmath.quad(lambda u, scale=scale: mpmath.e ** (scale - u * u / 2) / (mu - u), pieces,
                            method="gauss-legendre") * mpmath.e**-scale  # fmt: skip
            moved_by_a_digit = float(t * (mu - mpmath.mpf(v)) * mpmath.e ** (mpmath.mpf(v) ** 2 / 2)) * 2**-52
            found = salience.trajectory([mu], [float(t)], v0=[v0]).item()
            assert abs(found - v) < 1000 * moved_by_a_digit + 1e-13 * mu, share

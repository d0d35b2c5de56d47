"""Theorem 2 in closed form against an ODE solver that knows nothing of it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusals

from joma.theory import linear
from joma.theory.flow import integrate

TOL = 1e-10
seeds = st.integers(0, 2**31 - 1)


def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def solve_exp(delta, v0, z0, kappa, norm, t):
    """The flow of v and z together, one row of nodes a token."""

    def field(time, y):
        v, z = y[..., :-1], y[..., -1:]
        dv = delta * z.exp() / norm
        return torch.cat([dv, kappa * (v * dv).sum(-1, keepdim=True)], -1)

    return integrate(field, torch.cat([v0, z0[..., None]], -1), t)


@settings(max_examples=15, deadline=None)
@given(seeds, st.floats(0.2, 4.0), st.floats(0.3, 3.0), st.floats(0.1, 0.99))
def test_trajectory_follows_the_flow(seed, kappa, norm, share):
    delta, v0, z0 = draw(seed, 3, 5)
    end = share * linear.blow_up_time(delta, v0=v0, z0=z0, kappa=kappa, norm=norm).min()
    t = torch.linspace(0, 1, 5, dtype=torch.float64) * end
    flow = solve_exp(delta[:, None], v0[:, None], z0, kappa, norm, t)[..., 0]
    closed = linear.trajectory(delta, t, v0=v0, z0=z0, kappa=kappa, norm=norm)
    torch.testing.assert_close(closed, flow, rtol=TOL, atol=TOL)


@settings(max_examples=10, deadline=None)
@given(seeds, st.floats(0.2, 4.0), st.floats(0.1, 0.95))
def test_rows_follow_the_flow(seed, kappa, share):
    delta, v0 = draw(seed, 2, 4, 3)
    z0 = draw(seed + 1, 4)
    along = (v0 * delta).sum(-1) / delta.norm(dim=-1)
    end = share * linear.blow_up_time(delta.norm(dim=-1), v0=along, z0=z0, kappa=kappa).min()
    t = torch.linspace(0, 1, 4, dtype=torch.float64) * end
    flow = solve_exp(delta, v0, z0, kappa, 1.0, t)[..., :-1]
    closed = linear.row_trajectory(delta, t, v0=v0, z0=z0, kappa=kappa)
    torch.testing.assert_close(closed, flow, rtol=TOL, atol=TOL)


@settings(max_examples=10, deadline=None)
@given(seeds, st.floats(0.2, 4.0), st.floats(0.5, 2.0))
def test_linear_attention_follows_the_flow(seed, kappa, norm):
    delta, v0 = draw(seed, 2, 4, 3)
    z0 = draw(seed + 1, 4)
    t = torch.linspace(0, 2, 4, dtype=torch.float64)

    def field(time, y):
        v, z = y[..., :-1], y[..., -1:]
        return torch.cat([delta * z / norm, kappa * (delta * v).sum(-1, keepdim=True) / norm], -1)

    flow = integrate(field, torch.cat([v0, z0[:, None]], -1), t)
    v, z = linear.linear_attention_row_trajectory(delta, t, v0=v0, z0=z0, kappa=kappa, norm=norm)
    torch.testing.assert_close(v, flow[..., :-1], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(z, flow[..., -1], rtol=1e-9, atol=1e-9)


def test_a_token_is_infinite_from_its_blow_up_on_and_the_losers_stop_there():
    delta = torch.tensor([1.0, -0.7, 0.2, 0.0], dtype=torch.float64)
    end = linear.blow_up_time(delta)
    assert end[3] == torch.inf
    just_before, at, after = linear.trajectory(delta, [end[0] * (1 - 1e-12), end[0], end[1] * 1.01])
    assert just_before.isfinite().all()
    assert at[0] == torch.inf
    torch.testing.assert_close(at[1:], linear.limits(delta)[1:], rtol=TOL, atol=TOL)
    assert after[1] == -torch.inf
    assert after[3] == 0


def test_the_moment_of_the_blow_up_spoils_no_gradient():
    """With kappa = pi/2 erf grows by delta t / norm, so that a token of delta 1 is at infinity at t = 1 exactly."""
    norm = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    winner, loser = linear.trajectory([1.0, 0.5], [1.0], kappa=torch.pi / 2, norm=norm)[0]
    assert winner == torch.inf
    loser.backward()
    # v = 2 / sqrt(pi) erfinv(1 / (2 norm)), and erfinv' = sqrt(pi)/2 exp(erfinv^2)
    slope = -0.5 * torch.erfinv(torch.tensor(0.5, dtype=torch.float64)).square().exp()
    torch.testing.assert_close(norm.grad, slope, rtol=1e-12, atol=0)


def test_deep_in_the_opposite_tail_nothing_is_lost():
    t = [1.0, 10.0]
    closed = linear.trajectory([1.0], t, v0=-7.5)
    flow = integrate(lambda time, v: torch.exp((v**2 - 7.5**2) / 2), torch.tensor([-7.5]), t, rtol=1e-12)
    torch.testing.assert_close(closed, flow, rtol=1e-9, atol=1e-9)


def test_winner_growth_is_an_asymptote():
    gap = torch.tensor([1e-2, 1e-5, 1e-10], dtype=torch.float64)
    exact = linear.trajectory([1.0], (torch.pi / 2) ** 0.5 * (1 - gap))[:, 0]
    error = (linear.winner_growth(1 - gap) / exact - 1).abs()
    assert (error.diff() < 0).all()
    assert error[0] < 0.016
    assert error[2] < 6e-4
    start = linear.winner_growth([0.0]) ** 2  # W0(2 / pi): the smallest tau that there is
    torch.testing.assert_close(start * start.exp(), torch.full_like(start, 2 / torch.pi))


def test_batches_and_gradients():
    delta = draw(0, 2, 3, 4).requires_grad_()
    v0 = (0.3 * draw(1, 4)).requires_grad_()
    t = torch.tensor([0.1, 0.2], dtype=torch.float64, requires_grad=True)
    assert linear.trajectory(delta, t, v0=v0).shape == (2, 3, 2, 4)
    assert torch.autograd.gradcheck(lambda d, t, v: linear.trajectory(d, t, v0=v, kappa=1.7), (delta, t, v0))
    still = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda d: linear.trajectory(d, [0.5], z0=0.3), (still,))


def test_gradients_at_rows_and_entries_of_zeros():
    """A row of zeros moves by t e^z0 / norm times whatever saliency it is given; an entry of zero like its row."""
    delta = torch.tensor([[0.0, 0.0], [0.7, 0.0], [0.4, -0.3]], dtype=torch.float64, requires_grad=True)
    v0, z0 = (0.3 * draw(2, 3, 2)).requires_grad_(), (0.3 * draw(3, 3)).requires_grad_()
    t = torch.tensor([0.1, 0.5], dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(
        lambda d: linear.row_trajectory(d, t, v0=v0, z0=z0, norm=2.0), delta.detach()
    )
    wanted = t[:, None, None] * z0[0].exp() / 2 * torch.eye(2, dtype=torch.float64)
    torch.testing.assert_close(jacobian[:, 0, :, 0, :], wanted)
    for rows in (linear.row_trajectory, linear.linear_attention_row_trajectory):
        assert torch.autograd.gradcheck(
            lambda d, v, z, rows=rows: rows(d, t, v0=v, z0=z, kappa=1.7, norm=2.0), (delta, v0, z0)
        )


def by_differences(function, x, width=1e-6):
    slope = torch.zeros_like(x)
    for i in range(x.numel()):
        step = torch.zeros(x.numel(), dtype=x.dtype)
        step[i] = width
        ends = [float(function(x.detach() + sign * step.view(x.shape))) for sign in (1, -1)]
        slope.view(-1)[i] = (ends[0] - ends[1]) / (2 * width)
    return slope


def finite_sum(path):
    return torch.where(path.isfinite(), path, 0.0).sum()


ARGUMENTS = {
    "delta": torch.tensor([[0.9, -0.6], [0.2, 0.0], [0.0, 0.0], [-0.5, 0.4]], dtype=torch.float64),
    "v0": 0.3 * draw(2, 4, 2),
    "z0": 0.3 * draw(3, 4),
    "kappa": torch.tensor(1.3, dtype=torch.float64),
    "norm": torch.tensor(1.7, dtype=torch.float64),
    "t": torch.tensor([0.1, 0.5, 1.5, 400.0], dtype=torch.float64),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_gradients_of_what_is_finite_when_later_steps_are_past_the_blow_up(name):
    path = linear.row_trajectory(**ARGUMENTS)
    assert path[-1].isinf().any()  # rows 0, 1 and 3 are gone, row 2 never moves
    assert path[0].isfinite().all()

    def total(x):
        return finite_sum(linear.row_trajectory(**{**ARGUMENTS, name: x}))

    x = ARGUMENTS[name].clone().requires_grad_()
    (slope,) = torch.autograd.grad(total(x), x)
    wanted = by_differences(total, x)
    if name == "delta":  # a row of zeros has a derivative that differences of finite entries also see
        wanted[2] = slope[2]
    torch.testing.assert_close(slope, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("function", [linear.limits, linear.blow_up_time])
def test_gradients_beside_infinite_answers(function):
    """The winner stands at infinity, a token without saliency never blows up: the others have gradients."""
    delta = torch.tensor([2.0, -1.0, 0.0, 0.7], dtype=torch.float64, requires_grad=True)
    kappa = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    assert function(delta, kappa=kappa).isinf().any()
    slopes = torch.autograd.grad(finite_sum(function(delta, kappa=kappa)), (delta, kappa))
    wanted = by_differences(lambda k: finite_sum(function(delta.detach(), kappa=k)), kappa)
    torch.testing.assert_close(slopes[1], wanted, rtol=1e-7, atol=1e-7)
    moving = torch.tensor([True, True, function is linear.limits, True])
    wanted = by_differences(lambda d: finite_sum(function(torch.where(moving, d, delta.detach()), kappa=1.3)), delta)
    torch.testing.assert_close(slopes[0], wanted, rtol=1e-7, atol=1e-7)


def test_linear_attention_that_decays_or_rests_for_a_long_time():
    t = torch.tensor([0.0, 1e-9, 1.0, 30.0, 2000.0], dtype=torch.float64)
    v, z = linear.linear_attention_trajectory([1.0], t, v0=1.0, z0=-1.0)
    torch.testing.assert_close(v[:, 0], torch.exp(-t), rtol=1e-12, atol=0)  # as cosh - sinh all digits are lost at 18
    torch.testing.assert_close(z[:, 0], -torch.exp(-t), rtol=1e-12, atol=0)
    assert [float(part.abs().max()) for part in linear.linear_attention_trajectory([1.0], t)] == [0.0, 0.0]
    early = linear.linear_attention_trajectory([1.0], t[1:2], z0=1.0).v
    torch.testing.assert_close(early, torch.sinh(t[1:2])[:, None], rtol=1e-14, atol=0)


def test_an_infinite_row_leaves_entries_without_saliency_where_they_are():
    (end,) = linear.row_trajectory([[1.0, 0.0], [0.0, 0.0]], [2.0], v0=[[0.0, 0.3], [0.1, 0.2]])
    torch.testing.assert_close(end, torch.tensor([[torch.inf, 0.3], [0.1, 0.2]], dtype=torch.float64))


test_bad_input_gets_one_sentence = refusals(
    (lambda: linear.trajectory([1.0], [-0.1]), "t must not be negative"),
    (lambda: linear.trajectory([1.0], [[0.1]]), "t must be a number or have shape"),
    (lambda: linear.trajectory([1.0], [0.1], kappa=0.0), "kappa must be positive"),
    (lambda: linear.blow_up_time([1.0], norm=-1.0), "norm must be positive"),
    (lambda: linear.blow_up_time([1.0], v0=50.0), r"kappa v0\^2/2 must not exceed 700"),
    (lambda: linear.trajectory(torch.ones(1), [0.0], z0=90.0), "z0 must not exceed 79"),
    (lambda: linear.limits([0.0, 0.0]), "delta must not be all zero"),
    (lambda: linear.limits([]), "delta must hold at least one token"),
    (lambda: linear.limits(torch.ones(2, 0)), "delta must hold at least one token"),
    (lambda: linear.winner_growth([1.0]), r"tau must lie in \[0, 1\)"),
    (lambda: linear.winner_growth([-1e-9]), r"tau must lie in \[0, 1\)"),
)

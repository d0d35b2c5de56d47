"""Eq. 2 against autograd, the solver against closed forms."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusals

from joma.theory import linear
from joma.theory.attention import Attention, random_orthonormal
from joma.theory.flow import Block, constant_gradient, cross_entropy_gradient, identity, integrate, integrate_together

TOL = 1e-12
seeds = st.integers(0, 2**31 - 1)
attentions = st.sampled_from(
    [Attention("linear", temperature=2.0), Attention("exp", norm=0.5), Attention("softmax", temperature=0.5)]
    + [Attention(torch.sinh), Attention(lambda z: z**3 + z)]
)
activations = st.sampled_from([identity, torch.nn.functional.silu, torch.tanh, torch.relu])
TOKENS, NODES, SAMPLES = 4, 3, 7


def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make(seed, *, queries=2, samples=SAMPLES, **options):
    u = random_orthonormal(TOKENS + queries + 1, TOKENS + queries, generator=torch.Generator().manual_seed(seed))
    options.setdefault("backprop", constant_gradient(draw(seed + 1, samples, NODES)))
    x = draw(seed + 2, samples, TOKENS).softmax(-1)
    return Block(x, torch.arange(samples) % queries, u[:, :TOKENS], u[:, TOKENS:], **options)


def start(seed, block, *lead, nodes=NODES):
    width, queries = block.queries.shape
    return 0.5 * draw(seed + 3, *lead, width, nodes), 0.5 * draw(seed + 4, *lead, queries, TOKENS)


@settings(max_examples=25, deadline=None)
@given(seeds, attentions, activations, st.booleans(), st.integers(1, 3))
def test_velocity_is_the_gradient_of_the_objective(seed, attention, activation, residual, queries):
    """Eq. 2 is gradient ascent on E[sum_k g_k h_k] with g held fixed, eq. 9."""
    block = make(seed, queries=queries, attention=attention, activation=activation, residual=residual)
    w, z = (part.requires_grad_() for part in start(seed, block))
    g = draw(seed + 1, SAMPLES, NODES)
    objective = (g * block.hidden(w, z)).sum(-1).mean()
    expected = torch.autograd.grad(objective, (w, z))
    with torch.no_grad():
        velocity = block.velocity(w, z)
    for mine, theirs in zip(velocity, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=TOL, atol=TOL)


@settings(max_examples=20, deadline=None)
@given(seeds, attentions)
def test_cross_entropy_gradient_descends_the_loss(seed, attention):
    label = torch.arange(SAMPLES) % NODES
    block = make(seed, attention=attention, backprop=cross_entropy_gradient(label), activation=torch.tanh)
    w, z = (part.requires_grad_() for part in start(seed, block))
    loss = torch.nn.functional.cross_entropy(block.hidden(w, z), label)
    for mine, theirs in zip(block.velocity(w, z), torch.autograd.grad(loss, (w, z)), strict=True):
        torch.testing.assert_close(mine, -theirs, rtol=TOL, atol=TOL)


@settings(max_examples=15, deadline=None)
@given(seeds, attentions, st.floats(0.1, 3.0), st.floats(0.1, 3.0))
def test_rates_and_the_average_by_query(seed, attention, rate_w, rate_z):
    block = make(seed, attention=attention)
    state = start(seed, block)
    plain = block.velocity(*state)
    other = replace(block, rate_w=rate_w, rate_z=rate_z, per_query=True)
    p = torch.bincount(block.query)[:, None] / SAMPLES
    torch.testing.assert_close(other.velocity(*state).w, rate_w * plain.w)
    torch.testing.assert_close(other.velocity(*state).z * p, rate_z * plain.z)
    assert other.kappa == rate_z / rate_w


def test_members_flow_side_by_side():
    block = make(0, activation=torch.tanh)
    w, z = start(0, block, 2, 3)
    together = block.velocity(w, z)
    for i in range(2):
        for j in range(3):
            alone = block.velocity(w[i, j], z[i, j])
            torch.testing.assert_close(together.w[i, j], alone.w)
            torch.testing.assert_close(together.z[i, j], alone.z)
    path = block.solve(w, z, [0.0, 0.1])
    assert path.w.shape == (2, *w.shape)
    torch.testing.assert_close(path.z[1, 1, 2], block.solve(w[1, 2], z[1, 2], [0.1]).z[0], rtol=1e-11, atol=1e-11)


def test_velocity_is_differentiable():
    block = make(0, activation=torch.tanh)
    w, z = (part.requires_grad_() for part in start(0, block))
    assert torch.autograd.gradcheck(lambda w, z: tuple(block.velocity(w, z)), (w, z))


@settings(max_examples=5, deadline=None)
@given(seeds, st.floats(0.1, 0.9))
def test_a_linear_node_under_exp_attention_meets_theorem_2(seed, share):
    g = draw(seed, SAMPLES, 1)
    block = make(seed, queries=1, backprop=constant_gradient(g), rate_z=2.0)
    w, z = start(seed, block, nodes=1)
    delta, v0, z0 = (g * block.x).mean(0), block.project(w)[:, 0], z[0]
    end = share * linear.blow_up_time(delta, v0=v0, z0=z0, kappa=2.0).min()
    t = torch.linspace(0, 1, 4, dtype=torch.float64) * end
    v = block.project(block.solve(w, z, t).w)[..., 0]
    closed = linear.trajectory(delta, t, v0=v0, z0=z0, kappa=2.0)
    torch.testing.assert_close(v, closed, rtol=1e-10, atol=1e-10)


def test_integrate_returns_the_start_and_any_shape():
    y0 = torch.ones(2, 3)
    path = integrate(lambda time, y: -y, y0, [0.0, 0.5, 2.0])
    assert path.shape == (3, 2, 3)
    assert path.dtype == torch.float64
    t = torch.tensor([0.0, 0.5, 2.0], dtype=torch.float64)
    torch.testing.assert_close(path, (-t).exp()[:, None, None].expand(3, 2, 3), rtol=1e-11, atol=1e-11)
    assert integrate(lambda time, y: -y, y0, 0.0).equal(y0.double()[None])
    stiff = integrate(lambda time, y: -1000 * (y - time), y0[0], [1.0], rtol=1e-8, method="Radau")
    torch.testing.assert_close(stiff, torch.full((1, 3), 1 - 1e-3, dtype=torch.float64), rtol=1e-6, atol=0)


def test_a_field_may_carry_a_graph_and_threads_come_back():
    scale = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    threads, inside = torch.get_num_threads(), []

    def field(time, y):
        inside.append(torch.get_num_threads())
        return scale * y

    path = integrate(field, torch.ones(1), [1.0])
    assert float(path) == pytest.approx(torch.e**2, rel=1e-10)
    assert set(inside) == {1}
    with pytest.raises(RuntimeError, match="boom"):
        integrate(lambda time, y: (_ for _ in ()).throw(RuntimeError("boom")), torch.ones(1), [1.0])
    assert torch.get_num_threads() == threads


def test_parts_of_any_shape_flow_together():
    a, b = integrate_together(
        lambda time, a, b: (b.sum() * torch.ones(2, 2), torch.zeros(3)), (torch.zeros(2, 2), torch.ones(3)), [1.0, 2.0]
    )
    torch.testing.assert_close(a[:, 0, 0], torch.tensor([3.0, 6.0], dtype=torch.float64))
    assert b.shape == (2, 3)


def test_float32_stays_float32():
    block = make(0, backprop=constant_gradient(torch.ones(SAMPLES, NODES)))
    block = replace(block, x=block.x.float(), tokens=block.tokens.float(), queries=block.queries.float())
    w, z = (part.float() for part in start(0, block))
    assert {part.dtype for part in block.velocity(w, z)} == {torch.float32}
    with pytest.raises(ValueError, match="a flow is followed in float64"):
        block.solve(w, z, [1.0])


BLOCK = make(0)
W, Z = start(0, BLOCK)


test_bad_input_gets_one_sentence = refusals(
    (lambda: replace(BLOCK, x=torch.ones(3)), r"x must be float64, .* and have shape \(..., samples, tokens\)"),
    (lambda: replace(BLOCK, x=torch.ones(SAMPLES, TOKENS, dtype=torch.long)), "x must be float64"),
    (lambda: replace(BLOCK, x=BLOCK.x * float("nan")), "x contains NaN"),
    (lambda: replace(BLOCK, queries=BLOCK.queries[1:]), r"queries must have shape \(7, queries\)"),
    (lambda: integrate(lambda t, y: y, torch.ones(1), []), "t must hold at least one time"),
    (lambda: integrate(lambda t, y: y, torch.tensor([torch.nan]), [1.0]), "y0 contains NaN"),
    (lambda: replace(BLOCK, x=-BLOCK.x, attention=Attention("softmax")), "x must hold frequencies"),
    (lambda: replace(BLOCK, x=0 * BLOCK.x, attention=Attention("softmax")), "x must hold frequencies"),
    (lambda: replace(BLOCK, query=BLOCK.query + 1), "query must index one of 2 queries, got 1 to 2"),
    (lambda: replace(BLOCK, query=BLOCK.query - 1), "query must index one of 2 queries, got -1 to 0"),
    (lambda: replace(BLOCK, rate_w=0.0).kappa, "kappa = rate_z / rate_w needs a positive rate_w"),
    (lambda: replace(BLOCK, backprop=lambda h, t: torch.ones(NODES)).velocity(W, Z), "backprop must return"),
    (lambda: integrate(lambda t, y: y, torch.ones(1), [0.5, 0.5]), "in increasing order"),
    (lambda: integrate(lambda t, y: y**2, torch.ones(1), [2.0]), "could not be followed to t = 2"),
    (lambda: integrate(lambda t, y: y, torch.ones(1), [9.0], max_evaluations=50), "took 50 evaluations"),
)

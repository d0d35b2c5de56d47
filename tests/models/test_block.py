"""The module that SGD trains is the block that the theory describes."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusals

from joma.models import JomaBlock
from joma.theory.attention import Attention, random_orthonormal
from joma.theory.flow import Block, cross_entropy_gradient, identity
from joma.theory.invariant import first_integral, sgd_drift

TOL = 1e-12
TOKENS, QUERIES, NODES, SAMPLES = 4, 2, 3, 6
LABEL = torch.arange(SAMPLES) % NODES
QUERY = torch.arange(SAMPLES) % QUERIES
seeds = st.integers(0, 2**31 - 1)
attentions = st.sampled_from(
    [Attention("linear"), Attention("exp", temperature=0.5), Attention("softmax"), Attention(torch.sinh)]
)


def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make(seed, *, members=(), **options):
    width = TOKENS + QUERIES
    u = random_orthonormal(width, width, generator=torch.Generator().manual_seed(seed))
    block = JomaBlock(u[:, :TOKENS], u[:, TOKENS:], nodes=NODES, members=members, **options)
    with torch.no_grad():
        block.w.copy_(0.5 * draw(seed + 1, *block.w.shape))
        block.z.copy_(0.5 * draw(seed + 2, *block.z.shape))
    return block


def theory(block, x, **options):
    return Block(
        x,
        QUERY,
        block.tokens,
        block.queries,
        cross_entropy_gradient(LABEL),
        block.attention,
        block.activation,
        block.residual,
        **options,
    )


def loss_of(block, x):
    h = block(x, QUERY)
    return torch.nn.functional.cross_entropy(h.flatten(0, -2), LABEL.repeat(h[..., 0].numel() // SAMPLES)) * (
        h[..., 0].numel() / SAMPLES
    )


@settings(max_examples=30, deadline=None)
@given(seeds, attentions, st.sampled_from([identity, torch.tanh]), st.booleans(), st.sampled_from([(), (2,), (2, 3)]))
def test_theory_and_training_meet(seed, attention, activation, residual, members):
    block = make(seed, attention=attention, activation=activation, residual=residual, members=members)
    x = draw(seed + 3, SAMPLES, TOKENS).softmax(-1)
    predicted = theory(block, x).velocity(block.w.detach(), block.z.detach())
    loss_of(block, x).backward()
    torch.testing.assert_close(-block.w.grad, predicted.w, rtol=TOL, atol=TOL)
    torch.testing.assert_close(-block.z.grad, predicted.z, rtol=TOL, atol=TOL)
    torch.testing.assert_close(block.v.detach(), theory(block, x).project(block.w.detach()), rtol=TOL, atol=TOL)


def test_an_optimizer_step_is_an_euler_step_and_keeps_the_drift_identity():
    block = make(0, attention=Attention("exp", temperature=0.5), activation=torch.tanh)
    with torch.no_grad():  # a single query, as Theorem 1 has it
        block.queries[:, 1] = block.queries[:, 0]
        block.z[1] = block.z[0]
    query = torch.zeros(SAMPLES, dtype=torch.long)
    optimizer = block.sgd(rate_w=0.2, rate_z=0.1)
    path = []
    for step in range(30):
        path.append((block.z[0].detach().clone(), block.v.detach()))
        x = draw(step, SAMPLES, TOKENS).softmax(-1)
        before = block.w.detach().clone()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(block(x, query), LABEL).backward()
        grad = block.w.grad.clone()
        optimizer.step()
        torch.testing.assert_close(block.w.detach(), before - 0.2 * grad, rtol=TOL, atol=TOL)
    z, v = (torch.stack(part) for part in zip(*path, strict=True))
    c = first_integral(z, v, kappa=0.5, temperature=0.5)
    torch.testing.assert_close(c - c[0], sgd_drift(z, v, kappa=0.5, temperature=0.5), rtol=0, atol=1e-13)
    assert (c[-1] - c[0]).abs().max() > 1e-6


def test_momentum_and_rates_reach_the_optimizer():
    optimizer = make(0).sgd(rate_w=0.2, rate_z=0.1, momentum=0.9)
    assert [(group["lr"], group["momentum"]) for group in optimizer.param_groups] == [(0.2, 0.9), (0.1, 0.9)]


def test_shapes_and_the_residual_connection():
    x = draw(1, SAMPLES, TOKENS).softmax(-1)
    block = make(0, members=(5,))
    assert block(x, QUERY).shape == (5, SAMPLES, NODES)
    assert block.attend(x, QUERY).shape == (5, SAMPLES, TOKENS)
    with_residual, without = make(0), make(0, residual=False)
    bias = (with_residual.queries.mT @ with_residual.w)[QUERY]
    torch.testing.assert_close(with_residual(x, QUERY), without(x, QUERY) + bias)


def test_only_w_and_z_are_trained_and_everything_is_saved():
    block = make(0)
    assert [name for name, _ in block.named_parameters()] == ["w", "z"]
    assert set(block.state_dict()) == {"w", "z", "tokens", "queries"}
    fresh = JomaBlock(torch.eye(4)[:, :3], torch.eye(4)[:, 3:], nodes=2)
    assert fresh.w.eq(0).all()
    assert fresh.z.eq(0).all()
    assert fresh(torch.ones(1, 3), torch.zeros(1, dtype=torch.long)).dtype == torch.float32


test_bad_input_gets_one_sentence = refusals(
    (lambda: JomaBlock(torch.eye(4), torch.eye(3), nodes=2), "tokens and queries must share their width"),
    (lambda: JomaBlock(torch.ones(4), torch.eye(4), nodes=2), "tokens and queries must share their width"),
    (lambda: JomaBlock(torch.eye(4), torch.eye(4), nodes=0), "nodes must be at least 1, got 0"),
)

"""The row law against its own equation, against SGD and against Lambert's W; the bounds and the bilinear model."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusals

from joma.theory import reversal
from joma.theory.reversal import bilinear_losses, bound_power, row_gap, row_loss, row_probability, smallest_power

SETTINGS = settings(max_examples=60, deadline=None)
tokens = st.one_of(st.integers(2, 2000), st.floats(2, 1e12))
rates = st.floats(1e-6, 1e3)
visits = st.one_of(st.integers(0, 10_000), st.floats(0, 1e12))
GRID = torch.logspace(0, 6, 200, dtype=torch.float64)


def sides(gap, m, eta, s):
    return torch.expm1(gap) + (m - 1) * gap, m * eta * s


@SETTINGS
@given(visits, tokens, rates)
def test_the_gap_solves_its_equation(s, m, eta):
    left, right = sides(row_gap(s, tokens=m, rate=eta), m, eta, s)
    assert float(left) == pytest.approx(right, rel=1e-12, abs=1e-300)


@SETTINGS
@given(st.floats(1, 600), st.integers(2, 1000))
def test_the_gap_is_the_printed_form_with_lamberts_w(s, m):
    from scipy.special import lambertw

    c = (m * 0.5 * s + 1) / (m - 1)
    if c > 600:
        return  # e^C leaves the range of floats; `row_gap` does not need it
    wanted = c - lambertw(math.exp(c) / (m - 1)).real
    assert float(row_gap(s, tokens=m, rate=0.5)) == pytest.approx(wanted, rel=1e-9, abs=1e-9)


def test_numbers_of_any_size():
    gap = row_gap([1e300, 1e-300, 1e308, 0.0], tokens=[100.0, 1e300, 2.0, 7.0], rate=[1e300, 1.0, 1.0, 5.0])
    wanted = [600 * math.log(10) + math.log(100), 1e-300, 308 * math.log(10) + math.log(2), 0.0]
    assert gap.tolist() == pytest.approx(wanted, rel=1e-13)


@SETTINGS
@given(visits, st.integers(2, 2000), st.floats(1e-4, 1))
def test_probability_and_loss_belong_together(s, m, eta):
    p, loss = (float(f(s, tokens=m, rate=eta)) for f in (row_probability, row_loss))
    assert p == pytest.approx(math.exp(-loss), rel=1e-12)
    assert p >= 1 / m * (1 - 1e-12)


@pytest.mark.parametrize("m", [100, 802])
@pytest.mark.parametrize("eta", [0.01, 0.2, 1.0])
def test_the_law_describes_sgd(m, eta):
    """The plain law to 0.2 eta, so to 0.04 for rates up to 0.2; the one with finite steps to 0.013 at all of them."""
    steps = torch.arange(2001, dtype=torch.float64)
    sgd = reversal.row_recursion(2000, tokens=m, rate=eta)
    plain = sgd - row_gap(steps, tokens=m, rate=eta)
    closer = sgd - reversal.sgd_gap(steps, tokens=m, rate=eta)
    assert -1e-12 <= float(plain.min()) <= float(plain.max()) <= 0.2 * eta
    assert float(closer.abs().max()) <= 0.02 * eta**2 + 1e-9


def test_the_recursion_is_sgd_on_a_row_of_logits():
    row = torch.zeros(7, dtype=torch.float64)
    wanted = reversal.row_recursion(20, tokens=7, rate=0.3)
    for step in range(20):
        assert float(row[2] - row[0]) == pytest.approx(float(wanted[step]), abs=1e-14)
        row = row - 0.3 * (row.softmax(0) - torch.nn.functional.one_hot(torch.tensor(2), 7))
        others = row[[0, 1, 3, 4, 5, 6]]
        assert float(others.max() - others.min()) < 1e-14


@SETTINGS
@given(st.floats(0, 1e4), st.floats(0.01, 1))
def test_the_law_with_finite_steps_solves_its_equation(s, eta):
    gap = reversal.sgd_gap(s, tokens=50, rate=eta)
    more = torch.log((torch.exp(gap) + 49) / 50) / 2
    left, right = sides(gap, 50, eta, s + more)
    assert float(left) == pytest.approx(float(right), rel=1e-10, abs=1e-12)


def test_derivatives():
    arguments = [
        torch.tensor(values, dtype=torch.float64, requires_grad=True)
        for values in ([1.0, 50.0, 1e5], [100.0, 50.0, 1e3], [0.1, 1.0, 0.5])
    ]
    gap = lambda s, m, eta: row_gap(s, tokens=m, rate=eta)
    assert torch.autograd.gradcheck(gap, arguments)
    assert torch.autograd.gradgradcheck(gap, arguments)
    start = torch.zeros((), dtype=torch.float64, requires_grad=True)
    row_gap(start, tokens=100, rate=0.3).backward()
    assert float(start.grad) == pytest.approx(0.3)


@pytest.mark.parametrize("m", [100, 402, 802, 10_000])
def test_the_bound_holds_up_to_its_power_and_not_beyond(m):
    late = math.log(m) * GRID
    power = float(bound_power(math.log(m), tokens=m, rate=1.0))
    p = row_probability(late, tokens=m, rate=1.0)
    assert 0.71 < power < 0.79
    assert bool((p >= reversal.train_bound(late, tokens=m, rate=1.0, power=power) - 1e-12).all())
    assert float(p[0]) < float(reversal.train_bound(late[0], tokens=m, rate=1.0, power=power + 0.01))


def test_the_power_rises_from_where_the_theorem_begins_and_depends_on_rate_times_visits():
    for m in (100, 802):
        power = bound_power(math.log(m) * GRID, tokens=m, rate=1.0)
        assert bool((power.diff() > 0).all())
        assert float(power[-1]) < 1
        torch.testing.assert_close(power, bound_power(10 * math.log(m) * GRID, tokens=m, rate=0.1))


def test_with_power_one_the_bound_is_wrong_by_a_factor_of_two():
    late = torch.tensor(1e9, dtype=torch.float64)
    missing = -torch.expm1(-row_loss(late, tokens=200, rate=1.0))
    allowed = 199 / (2 * 200 * late)
    assert float(missing / allowed) == pytest.approx(2, rel=1e-4)
    assert float(1 - reversal.train_bound(1e3, tokens=200, rate=1.0)) == pytest.approx(199 / (2 * 200 * 1e3))


def descend(embeddings, facts, steps=200, rate=1.0):
    theta = torch.zeros(2 * [embeddings.shape[1]], dtype=torch.float64, requires_grad=True)
    path = []
    for _ in range(steps):
        losses = bilinear_losses(theta, embeddings, facts)
        path.append(torch.stack(losses).detach())
        (slope,) = torch.autograd.grad(losses.forward, theta)
        theta = (theta - rate * slope).detach().requires_grad_(True)
    return torch.stack(path, -1)


def test_with_orthonormal_embeddings_nothing_of_the_reverse_is_learned():
    forward, reverse = descend(torch.eye(10, dtype=torch.float64), [[0, 1], [2, 3], [4, 5]])
    assert torch.allclose(reverse, torch.full_like(reverse, math.log(10)), rtol=0, atol=1e-14)
    law = row_loss(torch.arange(200), tokens=10, rate=1 / 3)
    assert torch.allclose(forward, law, atol=0.05)
    assert float(forward[-1]) < 0.1
    assert float(smallest_power(forward, reverse)) < 1e-12


def test_bilinear_losses_are_cross_entropies():
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(4, 3, 3, generator=generator, dtype=torch.float64)
    table = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    facts = torch.tensor([[0, 1], [2, 5]])
    found = bilinear_losses(theta, table, facts)
    for member in range(4):
        for loss, (start, end) in zip(found, ((0, 1), (1, 0)), strict=True):
            logits = table[facts[:, start]] @ theta[member] @ table.T
            wanted = torch.nn.functional.cross_entropy(logits, facts[:, end])
            assert float(loss[member]) == pytest.approx(float(wanted), rel=1e-12)


def test_the_smallest_power_is_the_smallest():
    forward, reverse = [4.0, 2.0, 1.0, 5.0], [3.0, 2.9, 2.0, 0.1]
    eps = float(smallest_power(forward, reverse))
    assert eps == pytest.approx(math.log(2 / 3) / math.log(1 / 4))
    held = [r / 3 >= (f / 4) ** eps - 1e-12 for f, r in zip(forward[:3], reverse[:3], strict=True)]
    assert all(held)
    assert reverse[2] / 3 < (1 / 4) ** (eps - 0.01)
    assert float(smallest_power([2.0, 1.0], [2.0, 3.0])) == 0


test_bad_input_gets_its_sentence = refusals(
    (lambda: row_gap(-1, tokens=100, rate=0.5), "visits must not be negative, got -1"),
    (lambda: row_gap(1, tokens=1, rate=0.5), "tokens must be at least 2, the answer and another one, got 1"),
    (lambda: row_gap(1, tokens=9, rate=0.0), "rate must be positive, got 0"),
    (lambda: reversal.sgd_gap(1, tokens=9, rate=1.5), "rate must be at most 1, .* got 1.5"),
    (lambda: reversal.row_recursion(1.5, tokens=9, rate=1.0), "visits must be a whole number of at least 0"),
    (lambda: bound_power(0.01, tokens=9, rate=1.0), "visits must make q = tokens .* larger than 1"),
    (lambda: bilinear_losses([[0.0]], [[1.0], [1.0]], [[0, 2]]), "facts must hold tokens from 0 to 1.* got 0 to 2"),
    (lambda: bilinear_losses([[0.0]], [[1.0], [1.0]], [[1, 1]]), "two different tokens, .* sides are equal"),
    (lambda: smallest_power([1.0], [1.0]), "forward must hold a start and at least one later step, got 1"),
    (lambda: smallest_power([1.0, 0.0], [1.0, 1.0]), "forward must be positive, got 0"),
)


def test_a_row_that_was_not_visited_has_its_second_derivative():
    """Of e^g - 1 + (M - 1) g = M eta s: g'' = -eta^2 / M at s = 0; finite steps bend it as they do a moment later."""
    s = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(reversal.row_gap(s, tokens=100, rate=0.5), s, create_graph=True)
    (second,) = torch.autograd.grad(first, s)
    assert first.item() == pytest.approx(0.5, rel=1e-12)
    assert second.item() == pytest.approx(-(0.5**2) / 100, rel=1e-12)

    def bends(at):
        s = torch.tensor(at, dtype=torch.float64, requires_grad=True)
        (first,) = torch.autograd.grad(reversal.sgd_gap(s, tokens=7, rate=0.5), s, create_graph=True)
        return first.item(), torch.autograd.grad(first, s)[0].item()

    assert bends(0.0) == pytest.approx(bends(1e-5), rel=1e-4)


def test_visits_that_would_never_end_are_refused():
    with pytest.raises(ValueError, match=r"visits are gone through one by one, at most 10,000,000; row_gap"):
        reversal.row_recursion(2**70, tokens=100, rate=0.5)

"""Floors of attention's entropy: never undercut, attained, and what was printed of them."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joma.theory.attention import entropy_floor, entropy_floor_of_range

seeds = st.integers(0, 2**31 - 1)


def slow_entropy(z):
    """Of softmax, in float64, without the code under test."""
    log_p = z - torch.logsumexp(z, -1, keepdim=True)
    return -(log_p.exp() * log_p).sum(-1)


def rows(seed, n, count=200):
    """Logits of many shapes: Gaussian, one-sided, of two or three levels."""
    source = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=source, dtype=torch.float64)
    levels = torch.randint(3, (count, n), generator=source).double() * draw(count, 1)
    tops = (torch.arange(n) < torch.randint(1, n, (count, 1), generator=source)).double()
    return torch.cat(
        [draw(count, n), draw(count, n).exp(), levels + 1e-3 * draw(count, n), tops + 1e-6 * draw(count, n)]
    )


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(2, 40), st.floats(0.01, 30))
def test_no_row_is_below_its_floor(seed, n, size):
    z = rows(seed, n)
    z = z - z.mean(-1, keepdim=True)
    long = size * z / z.norm(dim=-1, keepdim=True)
    assert (slow_entropy(long) > entropy_floor(size, n) - 1e-12).all()
    wide = size * z / (z.amax(-1) - z.amin(-1))[:, None]
    assert (slow_entropy(wide) > entropy_floor_of_range(size, n) - 1e-12).all()


@pytest.mark.parametrize("n", [2, 3, 7, 30])
@pytest.mark.parametrize("size", [0.3, 2.0, 5.0])
def test_descent_ends_at_the_floor(n, size):
    """Gradient descent on rows of one length, from many starts: what it finds is the floor."""
    x = rows(n, n, count=10).requires_grad_()
    optimizer = torch.optim.Adam([x], lr=0.05)
    for _ in range(400):
        centred = x - x.mean(-1, keepdim=True)
        found = slow_entropy(size * centred / centred.norm(dim=-1, keepdim=True))
        optimizer.zero_grad()
        found.sum().backward()
        optimizer.step()
    assert float(found.detach().min()) == pytest.approx(float(entropy_floor(size, n)), abs=1e-6)


@pytest.mark.parametrize("n", [2, 5, 64])
def test_inputs_of_width_two_attain_what_zhai_et_al_bound(n):
    """Theorem 3.1 in its own terms: sigma = |W| |X X'|, and the first query's row is as long as that."""
    first, all_of_them = torch.eye(n, dtype=torch.float64)[0], torch.ones(n, dtype=torch.float64)
    x, _ = torch.linalg.qr(torch.stack([first, all_of_them], 1))  # orthonormal columns
    peak = first - 1 / n
    weights = 3.0 * torch.outer(x.mT @ first, x.mT @ peak / peak.norm())
    sigma = torch.linalg.matrix_norm(weights, 2) * torch.linalg.matrix_norm(x @ x.mT, 2)
    logits = x @ weights @ x.mT
    assert float(sigma) == pytest.approx(3.0)
    assert float(slow_entropy(logits[0])) == pytest.approx(float(entropy_floor(sigma, n)), rel=1e-12)
    assert (slow_entropy(logits) >= entropy_floor(sigma, n) - 1e-12).all()


def test_the_floor_is_the_printed_formula():
    sigma, t = torch.tensor([0.1, 1.0, 4.0, 12.0], dtype=torch.float64)[:, None], torch.tensor([2.0, 10.0, 1000.0])
    beta = (-sigma * (t / (t - 1)).sqrt()).exp()
    printed = (1 + (t - 1) * beta).log() + sigma * (t * (t - 1)).sqrt() * beta / (1 + (t - 1) * beta)
    torch.testing.assert_close(entropy_floor(sigma, t), printed.double(), rtol=1e-6, atol=0)


def test_the_printed_remark_needs_few_keys():
    """n sigma exp(-sigma): right where n exp(-sigma) is small, and above ln n, so no floor, where it is not."""
    remark = lambda sigma, n: n * sigma * math.exp(-sigma)
    ratios = [float(entropy_floor(sigma, 1e6)) / remark(sigma, 1e6) for sigma in (30.0, 100.0, 400.0)]
    assert [abs(each - 1) for each in ratios] == sorted((abs(each - 1) for each in ratios), reverse=True)
    assert ratios[-1] == pytest.approx(1, abs=0.01)
    assert remark(3.0, 1000) > 20 * math.log(1000)
    assert float(entropy_floor(3.0, 1000)) == pytest.approx(math.log(1000), rel=0.03)


@pytest.mark.parametrize("n", [2, 3, 4, 9, 64, 301])
def test_the_floor_of_a_range_is_the_best_of_all_splits(n):
    for span in (1e-5, 1e-3, 2e-3, 0.1, 1.0, 2.5, 6.0, 15.0):
        tops = (torch.arange(n) < torch.arange(1, n)[:, None]).double()
        best = slow_entropy(span * tops).min()
        assert float(entropy_floor_of_range(span, n)) == pytest.approx(float(best), rel=1e-9, abs=1e-13)


def test_one_key_has_no_entropy_and_huge_logits_leave_none():
    for floor in (entropy_floor, entropy_floor_of_range):
        assert floor([0.0, 5.0, 1e300], 1).tolist() == [0.0, 0.0, 0.0]
        assert floor([1.7e308, 2e4], 2).tolist() == [0.0, 0.0]
        assert floor(0.0, [2, 50]).tolist() == pytest.approx([math.log(2), math.log(50)])


@pytest.mark.parametrize("floor", [entropy_floor, entropy_floor_of_range])
def test_floors_have_slopes(floor):
    at = torch.tensor([0.5, 2.0, 7.0, 2000.0], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(floor(at, 20).sum(), at)
    step = 1e-6
    expected = (floor(at.detach() + step, 20) - floor(at.detach() - step, 20)) / (2 * step)
    torch.testing.assert_close(slope, expected, rtol=1e-6, atol=1e-9)

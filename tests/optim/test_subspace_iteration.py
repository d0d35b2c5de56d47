"""The search for leading directions, step by step: its polynomials, their degrees, when it ends, what it keeps."""

from math import acos, acosh, cos, cosh

import numpy as np
import pytest
import torch
from numpy.polynomial import chebyshev
from test_fast_step import Operations

from joma.optim.projector import (
    DEGREE,
    FOLLOWED,
    GROWTH,
    ROUNDS,
    Gram,
    _edges,
    _limits,
    follow,
    have_settled,
    orthonormalize,
    recurrence,
    search,
)


def counting(product):
    made = []
    return made, lambda block: made.append(1) or product(block)


STEPS = {
    "plain": lambda values, slope: recurrence(lambda block: values[..., None] * block, slope),
    "in one call": lambda values, slope: Gram(torch.diag_embed(values.sqrt()), 2).recurrence(slope),
    "not formed": lambda values, slope: Gram(torch.diag_embed(values.sqrt()), 0).recurrence(slope),
}


def polynomial(degree, x):
    return cosh(degree * acosh(x)) if x > 1 else cos(degree * acos(x))


def test_it_ends_by_what_a_round_gains_per_product():
    """Of diag(1, 1/2) from (1, 1), by hand: the first round is one product, so it may gain a sixth of the tolerance."""
    energy = lambda x, y: (x**2 + y**2 / 2) / (x**2 + y**2)
    before, now = energy(1, 1 / 2), energy(1, 1 / 4)  # after one product and after two
    first = (now - before) / now
    x, y = (polynomial(DEGREE, 2 * a / now - 1) for a in (1.0, 0.5))  # a block of one has its edge at its quotient
    then = energy(x, y / 4)
    second = (then - now) / then
    start = torch.tensor([[[1.0], [1.0]]]).double() / 2**0.5
    gram = torch.diag(torch.tensor([1.0, 0.5])).double()
    rounds = {6 * first * 1.01: (3, (1, 1 / 4)), 6 * first * 0.99: (9, (x, y / 4)), second * 1.01: (9, (x, y / 4))}
    for tolerance, (products, direction) in rounds.items():
        made, product = counting(lambda block: gram @ block)
        found = search(product, start, 1, tolerance)[0, :, 0]
        assert len(made) == products
        wanted = torch.tensor(direction).double()
        torch.testing.assert_close(found.abs(), (wanted / wanted.norm()).abs(), rtol=0, atol=1e-5)
    made, product = counting(lambda block: gram @ block)
    assert search(product, start, 1, second * 0.99) is not None
    assert len(made) > 9


@pytest.mark.parametrize("ratio", [1.0, 1.5, 2.0, 3.0, 10.0, 1000.0])
def test_the_degree_is_the_largest_that_does_not_amplify_too_much(ratio):
    """Exact eigenvectors stay what they are, and a tolerance that nothing reaches lets all rounds be counted."""
    gram = torch.diag(torch.tensor([1.0, 1 / ratio, 1e-9])).double()
    made, product = counting(lambda block: gram @ block)
    assert search(product, torch.eye(3, 2).double()[None], 1, -1.0) is None
    fitting = [degree for degree in range(1, DEGREE + 1) if cosh(degree * acosh(2 * ratio - 1)) <= GROWTH]
    assert len(made) == 3 + (ROUNDS - 1) * max(fitting, default=1)


@pytest.mark.parametrize("ratios", [(1000.0, 1.0), (1.0, 1000.0)])
def test_a_steep_matrix_does_not_shorten_the_rounds_of_a_flat_one(ratios):
    """Each of a stack has a degree of its own: a round takes as many products as the largest of them."""
    gram = torch.diag_embed(torch.tensor([[1.0, 1 / ratio, 1e-9] for ratio in ratios])).double()
    made, product = counting(lambda block: gram @ block)
    assert search(product, torch.eye(3, 2).double().repeat(2, 1, 1), 1, -1.0) is None
    assert len(made) == 3 + (ROUNDS - 1) * DEGREE


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_limits_lie_on_the_device_of_the_energies_and_in_their_precision(dtype):
    """A block on a CPU was there before: what is kept for it is not for others."""
    for device in ("cpu", "meta"):
        found = _limits(dtype, torch.device(device))
        assert (found.device.type, found.dtype, found.shape) == (device, dtype, (DEGREE - 1, 1))


def test_only_the_best_of_a_block_must_settle():
    """Two directions that have settled beside one that has not: with rank 2 the search ends in its first round."""
    gram = torch.diag(torch.tensor([1.0, 0.9, 0.1, 0.05])).double()
    start = torch.eye(4, 3).double()
    start[:, 2] = torch.tensor([0.0, 0.0, 1.0, 1.0]).double() / 2**0.5
    for rank, goes_on in ((2, False), (3, True)):
        made, product = counting(lambda block: gram @ block)
        search(product, start[None], rank, 1e-4)
        assert (len(made) > 3) == goes_on


def test_one_round_keeps_the_span_of_columns_that_are_almost_one():
    """A difference of 1e-3 between two columns is 1e-6 in their Gram matrix, which float32 would not hold."""
    luck = torch.Generator().manual_seed(0)
    first, second, third = torch.linalg.qr(torch.randn(40, 3, generator=luck, dtype=torch.float64))[0].T
    block = torch.stack([first, first + 1e-3 * second, first + 1e-3 * third], dim=1).float()
    basis = orthonormalize(block, rounds=1).double()
    torch.testing.assert_close(basis.T @ basis, torch.eye(3).double(), rtol=0, atol=1e-5)
    for direction in (first, second, third):
        assert float((basis.T @ direction).norm()) > 1 - 1e-4


def test_edges_are_the_smallest_quotients_but_never_far_below_the_largest():
    """By hand. A smallest quotient of zero, or below it by rounding, is that of a gradient of smaller rank."""
    energies = torch.tensor([[3.0, 2.0, 1.0], [2.0, 0.5, 0.0], [2.0, 0.5, -1e-9], [0.0, 0.0, 0.0]]).double()
    torch.testing.assert_close(_edges(energies), torch.tensor([1.0, 2 / GROWTH, 2 / GROWTH, 1.0]).double())


@pytest.mark.parametrize(
    ("first", "last", "degree", "settles"),
    [
        (0.0, 0.0, 1, True),
        (0.4, 0.2, 6, False),  # the last round has brought too much
        (0.4, -0.2, 6, False),  # and so it has where it took away
        (0.05, 0.05, 6, True),
        (0.05, 0.05, 1, False),  # the next one would bring as much, by one product
        (0.4, 0.05, 3, True),  # an eighth of it by three
        (0.001, 0.05, 6, True),  # no more than the last, although that has brought more than the first
    ],
)
def test_what_has_settled_by_hand(first, last, degree, settles):
    """Shares that two rounds have brought, at a tolerance of 0.1; one beside it that has not settled."""
    between = 1 - last
    course = torch.tensor([[between * (1 - first), 0.3], [between, 0.5], [1.0, 1.0], [degree, 6.0]]).double()
    assert have_settled(course, 0.1).tolist() == [settles, False]


def iterated(values, block, rank, rounds):
    """Energies of the best, gains and degrees of rounds after the first product, by numpy's QR and polynomials."""
    quotients = lambda basis: (basis * values[:, None] * basis).sum(0)
    basis = np.linalg.qr(values[:, None] * block)[0]
    energies, found = quotients(basis), []
    for _ in range(rounds):
        edge = max(energies.min(), energies.max() / GROWTH)
        ratio = energies.max() / edge
        fitting = [d for d in range(2, DEGREE + 1) if np.exp(d * acosh(2 * ratio - 1)) / 2 <= GROWTH]
        degree = max(fitting, default=1)
        factor = chebyshev.chebval(2 * values / edge - 1, [0] * degree + [1]) if degree > 1 else values
        basis = np.linalg.qr(factor[:, None] * basis)[0]
        before, energies = energies, quotients(basis)
        best, last = np.sort(energies)[::-1][:rank].sum(), np.sort(before)[::-1][:rank].sum()
        found.append((best, abs(best - last) / best, degree))
    return found


@pytest.mark.parametrize("largest", [1.0, 4.0, 50.0, 300.0])
def test_following_ends_by_the_last_gain_and_by_the_one_that_would_come(largest):
    """After two rounds those to come bring less, as the last one did; few products must bring less.

    Each bound is tried from both sides, with a margin for the noise that fills blocks.
    """
    values = np.concatenate([[largest], 1 - 0.01 * np.arange(30)])
    block = np.linalg.qr(np.random.default_rng(0).normal(size=(31, 3)) + 2 * np.eye(31, 3))[0]
    rank = 3
    rounds = iterated(values, block, rank, 2)
    (_, first, _), (_, last, degree) = rounds
    bounds = last, last * min(1.0, last / first) * DEGREE / degree
    gram = Gram(torch.diag(torch.tensor(values).sqrt())[None], rank)
    for by, settles in ((1.05, True), (0.95, False)):
        with Operations() as started:
            found = follow(gram, torch.tensor(block)[None], rank, by * max(bounds))
        assert found.sound.tolist() == [True]
        assert found.settled.tolist() == [settles]
        np.testing.assert_allclose(found.course[1:, 0], [rounds[0][0], rounds[1][0], degree], rtol=1e-5)
        factored = FOLLOWED + 2  # each takes a product of a block with itself
        assert started.names["bmm"] - factored == 2 + FOLLOWED
        assert started.names["baddbmm_"] == FOLLOWED * (DEGREE - 1)

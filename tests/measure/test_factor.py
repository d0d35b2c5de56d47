"""The Gram matrix, the searches in it, and the bound by a Cholesky factor."""

import math

import pytest
import torch
from matrices import LARGE, assert_certified, rng, with_values

from joma.measure import _factor, _lanczos
from joma.measure.spectrum import spectrum


@pytest.mark.parametrize("accelerator", [False, True])
def test_the_gram_matrix_is_as_exact_as_float32(accelerator, monkeypatch):
    monkeypatch.setattr(_factor, "on_cpu", lambda _: not accelerator)
    monkeypatch.setattr(_factor, "COLUMNS", 256)  # fewer than rows: the pieces are of columns
    w = torch.randn(2, 300, 1500, generator=rng())
    for scale in (1.0, 1e-3, 1e30):
        half = torch.full((2, 1, 1), scale**-0.5)
        exact = w.double() @ w.double().mT
        error = _factor.gram(w * scale, half).double() - exact
        assert (torch.linalg.matrix_norm(error, 2) < 1e-5 * torch.linalg.matrix_norm(exact, 2)).all()


@pytest.mark.parametrize("name", ["gaussian", "power law", "two equal leaders", "identity", "one entry", "rank one"])
def test_both_searches_find_the_leader_of_a_gram_matrix(name):
    w = LARGE[name]() / torch.linalg.matrix_norm(LARGE[name]())
    g = (w @ w.mT)[None]
    true = torch.linalg.eigvalsh(g.double())[:, -1:]
    start = torch.randn(1, len(w), 16, generator=rng())
    for theta, u in (_factor.by_lanczos(g, start, 40, 1), _factor.by_squaring(g, start, 9)):
        torch.testing.assert_close(theta, true, rtol=3e-4, atol=0)
        torch.testing.assert_close(u.mT @ u, torch.ones(1, 1, 1), rtol=0, atol=1e-4)
        torch.testing.assert_close((u.mT @ g @ u)[..., 0].double(), theta, rtol=1e-4, atol=0)


@pytest.mark.parametrize("probes", [1, 2, 4, 16])
@pytest.mark.parametrize("rank", [1, 3, 20])
def test_the_measured_rounding_is_underrated_no_more_often_than_promised(rank, probes):
    """|E|_2 <= |E Gamma|_2 / t. With rank one and one probe the promise is kept with nothing to spare."""
    e = torch.diag(torch.cat([torch.ones(rank), torch.zeros(20 - rank)])).double()
    failure, tries = 0.05, 5_000
    images = e @ torch.randn(tries, 20, probes, generator=rng(), dtype=torch.float64)
    bound = torch.linalg.matrix_norm(images, 2) / _lanczos.least_overlap(1, probes, failure)
    missed = (bound < 1).double().mean().item()
    assert missed <= failure + 3 * math.sqrt(failure / tries)
    if rank == probes == 1:
        assert missed > failure / 2


@pytest.mark.parametrize("hidden", [1.1e-3, 0.1])
@pytest.mark.parametrize("rest", [torch.ones(40), torch.linspace(1, 0, 40), torch.tensor([1.0] * 3 + [0.1] * 37)])
def test_a_gram_matrix_that_hides_the_leader_certifies_nothing_wrong(rest, hidden, monkeypatch):
    """The leader is lowered by more than the tolerance before anybody looks: the factor is that of another matrix.

    Two probes only, and a failure of 20 %, so that the promise is put to the test.
    """
    w = with_values(rest.sqrt(), 50).double()
    leader = torch.linalg.svd(w).U[:, :1]
    w = (w + (math.sqrt(1 + hidden) - 1) * leader @ leader.mT @ w).float()[None]
    true = torch.linalg.svdvals(w.double())[0, 0] ** 2
    lowered = hidden * (leader @ leader.mT).float()
    exact = _factor.gram
    monkeypatch.setattr(_factor, "gram", lambda a, half: exact(a, half) - lowered)
    start, probes = torch.randn(100, 40, 18, generator=rng()).split([16, 2], dim=-1)
    found = _factor.certify(w.expand(100, -1, -1), torch.ones(100).double(), start, probes, 1, 1e-3, 0.2)
    wrong = true > found.squares[:, 0] * (1 + found.excess[:, 0])
    assert wrong.double().mean() <= 0.2


def test_what_a_factor_cannot_settle_goes_to_lanczos(monkeypatch):
    w = LARGE["gaussian"]()
    monkeypatch.setattr(
        _factor, "by_lanczos", lambda g, start, steps, count: (torch.zeros(1, 1).double(), start[..., :1])
    )
    assert_certified(spectrum(w), w)

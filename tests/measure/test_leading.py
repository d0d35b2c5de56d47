"""The largest singular value of one matrix on a CPU, against a full SVD, and against errors that are planted in it."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matrices import rng, with_values

from joma.measure import _leading, registry
from joma.measure._leading import fits, leading


def gaussian(*shape, seed=0):
    return torch.randn(*shape, generator=rng(seed))


MATRICES = {
    "wide": lambda: gaussian(200, 700),
    "tall": lambda: gaussian(700, 200),
    "square": lambda: gaussian(300, 300),
    "transposed": lambda: gaussian(250, 400).mT,
    "common mean": lambda: gaussian(200, 300) + 3,
    "two alike": lambda: with_values(torch.tensor([3.0, 3.0 - 1e-4, *[1.0] * 198]), 260),
    "power law": lambda: with_values(torch.arange(1, 201) ** -0.7, 260),
    "slow to tell": lambda: with_values(1 - torch.linspace(0, 0.4, 200) ** 2, 260),
    "rank one": lambda: gaussian(200, 1) @ gaussian(1, 240, seed=1),
    "identity": lambda: torch.eye(200),
    "small numbers": lambda: gaussian(200, 240) * 1e-9,
    "large numbers": lambda: gaussian(200, 240) * 1e5,
    "half": lambda: gaussian(200, 240).bfloat16(),
}


@pytest.mark.parametrize("name", MATRICES)
def test_both_norms_are_those_of_a_full_svd(name):
    w = MATRICES[name]()
    squares = torch.linalg.svdvals(w.double()).square()
    assert fits(w)
    found = leading(w, 1e-3, 1e-6, rng(3))
    assert found.frobenius == pytest.approx(float(squares.sum()), rel=1e-5)
    assert found.spectral == pytest.approx(float(squares[0]), rel=1e-4)
    assert found.spectral <= float(squares[0]) * (1 + 1e-6)
    assert float(squares[0]) <= found.spectral * (1 + found.excess)
    assert 0 < found.excess <= 1e-3
    rank, norm = registry.leading_spectrum(w, rng(3))
    assert (rank, norm**2) == (pytest.approx(found.frobenius / found.spectral), pytest.approx(found.spectral))


def test_a_spectrum_with_a_gap_takes_the_fewest_steps(monkeypatch):
    (blas, lapack), steps = _leading._calls(), []
    counted = SimpleNamespace(**vars(blas) | {"ssymv": lambda *a, **k: steps.append(1) or blas.ssymv(*a, **k)})
    monkeypatch.setattr(_leading, "_calls", lambda: (counted, lapack))
    for values, wanted in (
        (torch.tensor([3.0, *[1.0] * 199]), 3),
        (torch.tensor([2.0, *torch.linspace(1.6, 0.1, 199)]), 20),
    ):
        assert leading(with_values(values, 260), 1e-3, 1e-6, rng()).spectral == pytest.approx(float(values[0]) ** 2)
        assert len(steps) <= wanted
        steps.clear()


@pytest.mark.parametrize("wrong", ["second vector", "random vector"])
def test_a_search_that_misses_the_largest_is_noticed(monkeypatch, wrong):
    """The factorisation breaks down: there is an eigenvalue above the limit."""
    w = with_values(torch.tensor([1.01, 1.0, *[0.5] * 198]), 260)
    second = torch.linalg.svd(w)[0][:, 1].numpy() if wrong == "second vector" else gaussian(200).numpy()
    monkeypatch.setattr(_leading, "_search", lambda *_: second)
    assert leading(w, 1e-3, 1e-6, rng()) is None


@pytest.mark.parametrize("side", ["below", "above"])
def test_a_gram_matrix_that_is_not_that_of_the_matrix_is_noticed(monkeypatch, side):
    """By the probes alone: the search and the factor see the wrong one, and agree."""
    w, triangle, change = gaussian(200, 260), _leading._triangle, -0.5 if side == "below" else 0.001

    def spoiled(tall):
        made = np.tril(triangle(tall))
        u = np.linalg.eigh(made + np.tril(made, -1).T)[1][:, -1]
        return np.asfortranarray(made + np.tril(change * float(u @ made @ u) * np.outer(u, u)).astype(np.float32))

    monkeypatch.setattr(_leading, "_triangle", spoiled)
    assert leading(w, 1e-3, 1e-6, rng()) is None


def test_a_factor_that_is_wrong_is_noticed(monkeypatch):
    blas, lapack = _leading._calls()

    def spotrf(*given, **named):
        factor, broken = lapack.spotrf(*given, **named)
        factor[50, 20] += 0.1 * factor[50, 50]
        return factor, broken

    monkeypatch.setattr(_leading, "_calls", lambda: (blas, SimpleNamespace(spotrf=spotrf, dstev=lapack.dstev)))
    assert leading(gaussian(200, 260), 1e-3, 1e-6, rng()) is None


def test_probes_are_drawn_apart_from_the_search_and_products_are_exact_whatever_is_set(monkeypatch):
    (blas, lapack), seen = _leading._calls(), []

    def noted(call, at):
        return lambda *given, **how: (
            seen.append((given[at], torch.get_float32_matmul_precision())) or call(*given, **how)
        )

    spied = SimpleNamespace(**vars(blas) | {"strmm": noted(blas.strmm, 2)})
    monkeypatch.setattr(_leading, "_calls", lambda: (spied, lapack))
    monkeypatch.setattr(_leading, "_triangle", noted(_leading._triangle, 0))
    monkeypatch.setattr(_leading, "_search", noted(_leading._search, 1))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert leading(gaussian(200, 260), 1e-3, 1e-6, rng()) is not None
    finally:
        torch.set_float32_matmul_precision(before)
    (_, precision), (start, _), (probes, _), _ = seen
    assert precision == "highest"
    assert np.abs(np.corrcoef(probes.T, start)[:-1, -1]).max() < 0.4


@pytest.mark.parametrize("value", [0.0, 1e-30, 1e30, float("nan"), float("inf")])
def test_what_leaves_the_range_goes_the_other_way(value):
    w = torch.full((200, 260), value)
    assert leading(w, 1e-3, 1e-6, rng()) is None
    if np.isfinite(value):
        rank, norm = registry.leading_spectrum(w, rng())
        assert (rank, norm) == (pytest.approx(float(value > 0)), pytest.approx(value * (200 * 260) ** 0.5))
    else:
        with pytest.raises(ValueError, match="w must be finite"):
            registry.leading_spectrum(w, rng())


def test_which_matrices_it_is_for():
    few, many = _leading.SIDES
    for shape in ((few, many + 9), (9 * many, many)):
        assert fits(torch.empty(shape))
        assert not fits(torch.empty(shape, dtype=torch.float64))
        assert not fits(torch.empty(shape, device="meta"))
    for shape in ((few - 1, many), (many + 1, many + 1), (2, 300, 300)):
        assert not fits(torch.empty(shape))


def test_a_scan_takes_it_one_by_one_and_in_stacks(monkeypatch):
    monkeypatch.setattr(registry, "spectrum", None)
    stack = torch.stack([gaussian(200, 210, seed=seed) for seed in range(3)])
    alone = [registry.leading_spectrum(w, torch.Generator().manual_seed(0)) for w in stack]
    assert registry.MEASURES["stable_rank"].stacked(stack) == alone
    assert len({rank for rank, _ in alone}) == 3


def test_the_same_seed_gives_the_same_numbers():
    w = gaussian(300, 300)
    assert leading(w, 1e-3, 1e-6, rng(4)) == leading(w, 1e-3, 1e-6, rng(4))
    first, other = (leading(w, 1e-3, 1e-6, rng(seed)) for seed in (4, 5))
    assert first.spectral == pytest.approx(other.spectral, rel=1e-4)

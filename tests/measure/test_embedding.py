"""Coherence against all pairs in float64, and against what is known of random directions."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusals
from scipy.special import betaincinv

from joma.measure.embedding import coherence, random_cosine_quantiles, random_mean_cosine


def vectors(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def oracle(x, levels):
    x = x.double()[(x != 0).any(-1)]
    x = x / x.norm(dim=-1, keepdim=True)
    i, j = torch.triu_indices(len(x), len(x), offset=1)
    cosines = (x @ x.mT).abs()[i, j]
    return cosines.mean(), torch.quantile(cosines, torch.tensor(levels, dtype=torch.float64))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**31 - 1), st.integers(2, 40), st.integers(1, 30), st.floats(-30, 30))
def test_all_pairs(seed, tokens, width, exponent):
    x = vectors(2, tokens, width, seed=seed) * 10**exponent
    levels = (0.0, 0.3, 0.9, 1.0)
    found = coherence(x, quantiles=levels)
    for i in range(2):
        mean, quantiles = oracle(x[i], levels)
        torch.testing.assert_close(found.mean[i], mean)
        torch.testing.assert_close(found.quantiles[i], quantiles)
    assert found.pairs.tolist() == [tokens * (tokens - 1) // 2] * 2
    assert (found.mean_error == 0).all()


def test_sampled_pairs_are_within_their_standard_errors():
    x = vectors(300, 16) + 0.5
    mean, quantiles = oracle(x, (0.5, 0.9, 0.99))
    z = []
    for seed in range(40):
        found = coherence(x, sample=2000, generator=torch.Generator().manual_seed(seed))
        assert found.pairs.item() == 2000
        z.append(
            torch.cat(
                [((found.mean - mean) / found.mean_error)[None], (found.quantiles - quantiles) / found.quantiles_error]
            )
        )
    z = torch.stack(z)
    assert (z.mean(0).abs() < 4 / 40**0.5).all()
    assert ((z.std(0) > 0.6) & (z.std(0) < 1.5)).all()


def test_random_vectors_show_the_value_of_random_vectors():
    found = coherence(vectors(2000, 64, dtype=torch.float32))
    assert abs(found.mean.item() - found.random_mean) < 4 * found.mean_error.item() + 1e-4
    assert ((found.quantiles - found.random_quantiles).abs() < 4 * found.quantiles_error + 2e-3).all()
    assert coherence(vectors(2000, 64) + 0.5).mean > 1.5 * found.random_mean  # a common direction: the control


def test_random_values_are_those_of_the_integral():
    for width in (2, 3, 10, 1000):
        angle = torch.linspace(0, torch.pi / 2, 2_000_001, dtype=torch.float64)
        density = angle.cos() ** (width - 2)  # of the angle to the equator
        total = torch.trapezoid(density, angle)
        assert random_mean_cosine(width) == pytest.approx(
            (torch.trapezoid(density * angle.sin(), angle) / total).item(), rel=1e-6
        )
        q = random_cosine_quantiles(width, torch.tensor([0.9]))
        below = angle.sin() <= q
        assert (torch.trapezoid(density[below], angle[below]) / total).item() == pytest.approx(0.9, abs=1e-5)
    assert random_mean_cosine(50_000) == pytest.approx((2 / (torch.pi * 50_000)) ** 0.5, rel=1e-4)


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 17, 64, 768, 12_288, 50_000])
def test_random_quantiles_are_those_of_scipy(width):
    tails = torch.tensor([1e-12, 1e-6, 1e-3], dtype=torch.float64)
    levels = torch.cat([tails, torch.linspace(0, 1, 101, dtype=torch.float64), 1 - tails])
    found = random_cosine_quantiles(width, levels)
    assert found.dtype == torch.float64
    squares = betaincinv(0.5, (width - 1) / 2, levels.numpy()) if width > 1 else np.ones(len(levels))
    torch.testing.assert_close(found, torch.from_numpy(squares).sqrt(), rtol=2e-12, atol=0)
    assert (found[levels == 0] == (0 if width > 1 else 1)).all()
    assert (found[levels == 1] == 1).all()


def test_random_means_keep_their_digits_in_high_dimensions():
    mp = pytest.importorskip("mpmath")
    for width in (2, 3, 100, 199, 200, 50_000, 10_000_000):
        exact = mp.gammaprod([mp.mpf(width) / 2], [mp.mpf(width + 1) / 2]) / mp.sqrt(mp.pi)
        assert random_mean_cosine(width) == pytest.approx(float(exact), rel=5e-14)


def test_quantiles_of_any_shape_are_asked_once():
    levels = torch.tensor([[0.1, 0.9], [0.5, 0.1]])
    found = random_cosine_quantiles(40, levels)
    assert found.shape == (2, 2)
    assert found[0, 0] == found[1, 1]
    found.zero_()  # what is kept is not handed out
    assert (random_cosine_quantiles(40, levels) > 0).all()


def test_zero_vectors_are_left_out_and_counted():
    x = vectors(3, 20, 8)
    x[0, 4:7] = 0
    x[1, 1:] = 0
    x[2] = 0
    found = coherence(x)
    assert found.zeros.tolist() == [3, 19, 20]
    assert found.pairs.tolist() == [17 * 16 // 2, 0, 0]
    torch.testing.assert_close(found.mean[0], oracle(x[0], (0.5,))[0])
    assert found.mean[1:].isnan().all()


def test_half_precision_and_shapes():
    x = vectors(2, 3, 50, 32, dtype=torch.bfloat16)
    found = coherence(x)
    assert found.mean.dtype == torch.float32
    assert found.quantiles.shape == (2, 3, 3)
    torch.testing.assert_close(found.mean, coherence(x.double()).mean.float(), rtol=1e-5, atol=0)


def test_the_training_run_keeps_its_random_numbers():
    before = torch.get_rng_state()
    first = coherence(vectors(2000, 4))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first.mean, coherence(vectors(2000, 4)).mean)


test_bad_input_gets_one_sentence = refusals(
    (lambda: coherence(torch.ones(3)), "vectors must have shape"),
    (lambda: coherence(torch.ones(1, 3)), "at least two tokens"),
    (lambda: coherence(torch.ones(3, 3, dtype=torch.int64)), "vectors must hold floating numbers"),
    (lambda: coherence(torch.tensor([[1.0], [torch.inf]])), "must be finite"),
    (lambda: coherence(torch.ones(3, 3), sample=1), "sample must be"),
    (lambda: coherence(torch.ones(3, 3), quantiles=(1.5,)), "quantiles must lie in"),
    (lambda: random_mean_cosine(0), "width must be a whole number of at least 1, got 0"),
    (lambda: random_cosine_quantiles(2.5, torch.ones(1)), "width must be a whole number"),
    (lambda: random_cosine_quantiles(3, torch.tensor([1.5])), r"levels must lie in \[0, 1\], got 1.5"),
)

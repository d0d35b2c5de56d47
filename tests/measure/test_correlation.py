"""Correlations against scipy's, for arrays and tensors alike."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from joma.measure.correlation import pearson, spearman


@given(st.integers(2, 30), st.integers(0, 2**32 - 1))
def test_pearson_is_scipys(count, seed):
    x, y = np.random.default_rng(seed).normal(size=(2, 3, count))
    truth = [stats.pearsonr(a, b).statistic for a, b in zip(x, y, strict=True)]
    assert pearson(x, y) == pytest.approx(truth, abs=1e-12)
    assert pearson(torch.from_numpy(x), torch.from_numpy(y)).numpy() == pytest.approx(truth, abs=1e-12)


def test_leading_dimensions_broadcast():
    x = np.random.default_rng(0).normal(size=(4, 5))
    assert pearson(x[0], x).shape == (4,)
    assert pearson(x[0], x)[0] == pytest.approx(1.0)


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_what_does_not_vary_correlates_with_nothing(kind):
    flat, other = kind(np.ones(4)), kind(np.arange(4.0))
    assert np.isnan(float(pearson(flat, other)))
    assert np.isnan(float(pearson(other, flat)))
    assert float(pearson(flat, other, constant=0.5)) == float(pearson(other, flat, constant=0.5)) == 0.5
    for number in (np.nan, np.inf):
        assert float(pearson(kind(np.array([1.0, number, 2.0, 4.0])), other, constant=0.5)) == 0.5


def test_what_hardly_varies_keeps_its_digits():
    x, y = 1.1e12 + np.array([0.3, 1.1, 2.7, 4.9]), np.array([1.0, 0.0, 5.0, 3.0])
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x - x[0], y).statistic, abs=1e-14)  # that difference is exact


@given(st.lists(st.integers(0, 5), min_size=3, max_size=20), st.integers(0, 2**32 - 1))
def test_spearman_is_scipys_with_ties(x, seed):
    y = np.random.default_rng(seed).integers(0, 6, len(x)).astype(float)
    x = np.array(x, dtype=float)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        assert np.isnan(spearman(x, y))
    else:
        assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)


def test_spearman_leaves_out_what_is_not_finite():
    assert spearman(np.array([1.0, 2.0, np.nan, 3.0]), np.array([1.0, 2.0, 9.0, np.inf])) == pytest.approx(1.0)
    assert np.isnan(spearman(np.array([1.0]), np.array([1.0])))

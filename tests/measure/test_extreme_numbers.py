"""Numbers near the ends of float64, whose squares are 0 or infinite: the answers are those of the same numbers near 1.

Multiplied by a power of two, numbers keep their digits, and so does what is in proportion to them. What is expected is
worked out near 1, with numpy or scipy.
"""

import numpy as np
import pytest
import torch
from measure.calls import CONTEXTS
from scipy import stats

from joma.measure import active, attention, correlation, forecast, intervals, power_law, registry, superposition

SCALES = (2.0**-1000, 2.0**1000)
each_scale = pytest.mark.parametrize("scale", SCALES, ids=["tiny", "huge"])
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(2, 5, 12))
CLOSE = {"rtol": 1e-12, "atol": 0}


def half_width(row, level):
    return stats.t.ppf((1 + level) / 2, len(row) - 1) * row.std(ddof=1) / np.sqrt(len(row))


@each_scale
def test_intervals(scale):
    found = intervals.mean_interval(X * scale, dim=1, level=0.9)
    np.testing.assert_allclose(found.mean / scale, X.mean(1), **CLOSE)
    np.testing.assert_allclose(found.half_width / scale, [half_width(row, 0.9) for row in X], rtol=1e-8)
    one, other = X[0], Y[0, :8]
    paired = intervals.compare(one * scale, Y[0] * scale, level=0.9)
    np.testing.assert_allclose(paired.half_width / scale, half_width(one - Y[0], 0.9), rtol=1e-8)
    welch = intervals.compare(one * scale, other * scale, paired=False, level=0.9)
    truth = stats.ttest_ind(one, other, equal_var=False)
    assert welch.freedom == int(truth.df)
    error = abs((one.mean() - other.mean()) / truth.statistic)
    np.testing.assert_allclose(welch.half_width / scale, stats.t.ppf(0.95, welch.freedom) * error, rtol=1e-8)


@pytest.mark.parametrize("freedom", [10**5, 10**5 + 1, 10**7, 10**9])
def test_students_law_with_many_degrees(freedom):
    for level in (0.001, 0.5, 0.95, 1 - 1e-6):
        assert intervals.t_quantile(level, freedom) == pytest.approx(stats.t.ppf((1 + level) / 2, freedom), rel=1e-8)


@each_scale
def test_correlations(scale):
    truth = [stats.pearsonr(a, b).statistic for a, b in zip(X, Y, strict=True)]
    np.testing.assert_allclose(correlation.pearson(X * scale, Y), truth, rtol=1e-12)
    np.testing.assert_allclose(correlation.pearson(X * scale, torch.tensor(Y / scale)), truth, rtol=1e-12)
    assert np.isnan(correlation.pearson(np.full(10, 0.1) * scale, Y[0, :10]))  # its mean is not quite 0.1


@each_scale
def test_contributions(scale):
    hidden, output = RNG.normal(size=(3, 4)), RNG.normal(size=(4, 6))
    found = active.neuron_contributions(hidden, output * scale)
    np.testing.assert_allclose(found / scale, np.abs(hidden) * np.linalg.norm(output, axis=1), **CLOSE)
    mixed = hidden.reshape(3, 2, 2).swapaxes(0, 1)  # two heads of width 2
    heads = [np.linalg.norm(mixed[i] @ output[2 * i : 2 * i + 2], axis=1) for i in range(2)]
    np.testing.assert_allclose(active.head_contributions(mixed, output * scale) / scale, np.stack(heads, 1), **CLOSE)


@each_scale
def test_a_predictor(scale):
    features, contributions = X.T, np.abs(Y.T)
    shares = contributions / contributions.sum(1, keepdims=True)
    x = features - features.mean(0)
    gram = x.T @ x
    weight = np.linalg.solve(gram + 0.01 * np.trace(gram) / 5 * np.eye(5), x.T @ (shares - shares.mean(0)))
    found = active.fit_predictor(features * scale, contributions)
    np.testing.assert_allclose(found(features * scale), x @ weight + shares.mean(0), rtol=1e-9)


@each_scale
def test_skill(scale):
    made, truth, persisted = RNG.normal(size=(3, 4, 6))
    error, still = (((one - truth) ** 2).mean(1) for one in (made, persisted))
    found = forecast.skill(made * scale, truth * scale, persisted * scale)
    np.testing.assert_allclose(found, (still - error) / still.mean(), rtol=1e-12)
    assert forecast.skill(made * SCALES[1], truth, persisted).eq(-torch.inf).all()


@each_scale
def test_spectra(scale):
    w = RNG.normal(size=(24, 30))
    singular = np.linalg.svd(w, compute_uv=False)[::-1]
    squares = singular**2
    fits = []  # of every tail: distance, alpha, xmin, how many
    for i in range(len(squares) - 1):
        tail = squares[i:]
        alpha = 1 + len(tail) / np.log(tail / tail[0]).sum()
        law = 1 - (tail / tail[0]) ** (1 - alpha)
        fits.append((np.abs(law - np.arange(len(tail)) / len(tail)).max(), alpha, tail[0], len(tail)))
    distance, alpha, xmin, tail = min(fits)
    found = power_law.spectral_power_law(w * scale)
    np.testing.assert_allclose([found.alpha, found.distance, found.tail], [alpha, distance, tail], rtol=1e-9)
    rank, norm, exponent = registry.full_spectrum(torch.tensor(w * scale), torch.Generator())
    np.testing.assert_allclose(
        [rank, norm / scale, exponent.alpha], [squares.sum() / squares[-1], singular[-1], alpha], rtol=1e-9
    )
    assert found.xmin == power_law.squared_singular_values(w * scale)[0] == (0.0 if scale < 1 else torch.inf)
    root = np.sqrt(scale)
    np.testing.assert_allclose(power_law.squared_singular_values(w * root) / scale, squares, rtol=1e-9)
    np.testing.assert_allclose(power_law.spectral_power_law(w * root).xmin / scale, xmin, rtol=1e-9)


@each_scale
def test_superposition_counts_shares_of_attention(scale):
    given = {**CONTEXTS, "weights": CONTEXTS["weights"].double(), "contexts": 4}
    near = superposition.superposition(**given)
    far = superposition.superposition(
        **{**given, "weights": given["weights"] * scale, "tokens": given["tokens"] + 2**60}
    )
    assert not near.z.isnan().any()
    for part, same in zip(far, near, strict=True):
        torch.testing.assert_close(part, same)


def test_sets_of_one_text_compare_nothing():
    """Of many neurons that fire on the same three texts, a shuffled set may have one text three times."""
    texts, neurons = 30, 40
    height = torch.zeros(texts, neurons)
    height[:3] = torch.tensor([3.0, 2.0, 1.0])[:, None]
    tokens = torch.randint(4, (texts, 5), generator=torch.Generator().manual_seed(0))
    found = superposition.superposition(height, torch.full((texts, neurons), 4), tokens, contexts=3)
    assert not found.shuffled_score.isnan().any()
    assert not found.z.isnan().any()


@pytest.mark.parametrize("window", [5, 6, 2**70, 10**400])
def test_a_window_beyond_all_keys_hides_none(window):
    q = torch.zeros(1, 1, 5, 4)
    found = attention.attention_stats(q, q, causal=False, window=window)
    torch.testing.assert_close(found.effective_keys, torch.full((1, 1, 5), 5.0))
    q = q[:, :, :2]  # aligned with the last keys: the first of the two is the fourth
    found = attention.attention_stats(q, torch.zeros(1, 1, 5, 4), window=window)
    torch.testing.assert_close(found.effective_keys, torch.tensor([[[4.0, 5.0]]]))

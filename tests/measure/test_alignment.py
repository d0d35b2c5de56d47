"""Alignment against loops over np.corrcoef and least squares in float64, and against what chance alone would do."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusals

from joma.measure import alignment
from joma.measure.alignment import RIDGES, best_neuron_correlation, held_out_correlation, linear_probe


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def bits(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < 0.4


def fresh(activity, latents):
    return {"fresh_activity": activity, "fresh_latents": latents}


def slow_correlations(activity, latents):
    x, y = activity.double().numpy(), latents.double().numpy()
    table = np.full((y.shape[1], x.shape[1]), np.nan)
    for j in range(y.shape[1]):
        for k in range(x.shape[1]):
            if np.ptp(x[:, k]) > 0 and np.ptp(y[:, j]) > 0:
                table[j, k] = np.corrcoef(x[:, k], y[:, j])[0, 1]
    return table


def slow_best(table, absolute):
    rank = np.abs(table) if absolute else table
    known = ~np.isnan(rank).all(1)
    neuron = np.array([np.nanargmax(row) if ok else -1 for row, ok in zip(rank, known, strict=True)])
    return np.where(known, rank[np.arange(len(rank)), neuron], np.nan), neuron


def slow_ridge(x, y, new, ridge):
    x, y, new = (a.double().numpy() for a in (x, y, new))
    live = np.ptp(x, axis=0) > 0
    length = np.linalg.norm(x[:, live] - x[:, live].mean(0), axis=0)
    unit, placed = (x[:, live] - x[:, live].mean(0)) / length, (new[:, live] - x[:, live].mean(0)) / length
    size = unit.shape[1]
    tall = np.vstack([unit, np.sqrt(ridge * size) * np.eye(size)])
    w = np.linalg.lstsq(tall, np.vstack([y - y.mean(0), np.zeros((size, y.shape[1]))]), rcond=None)[0]
    return y.mean(0) + placed @ w


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**31 - 1),
    samples=st.integers(3, 30),
    neurons=st.integers(1, 12),
    exponent=st.floats(-20, 20),
    offset=st.floats(-100, 100),
    absolute=st.booleans(),
)
def test_best_neuron_is_that_of_the_loop(seed, samples, neurons, exponent, offset, absolute):
    activity = (normal(2, samples, neurons, seed=seed) + offset) * 10**exponent
    activity[0, :, -1] = 0.1 * 10**exponent
    latents = bits(2, samples, 4, seed=seed)
    found = best_neuron_correlation(activity, latents, absolute=absolute)
    for i in range(2):
        table = slow_correlations(activity[i], latents[i])
        varies = latents[i].any(0) & ~latents[i].all(0)
        assert found.excluded[i] == (~varies).sum()
        if np.isnan(table).all():
            assert (found.per_latent[i][varies] == 0).all()
            continue
        value, neuron = slow_best(table, absolute)
        np.testing.assert_allclose(found.per_latent[i], value, rtol=0, atol=1e-9)
        # Another neuron may only be chosen where it is as good to rounding.
        rank = np.abs(table) if absolute else table
        chosen = rank[np.arange(4), found.neuron[i]][varies]
        np.testing.assert_allclose(chosen, value[varies.numpy()], rtol=0, atol=1e-9)
        assert ((found.neuron[i] == -1).numpy() == (neuron == -1)).all()
        np.testing.assert_allclose(found.score[i], value[varies.numpy()].mean(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("absolute", [False, True])
def test_held_out_is_that_of_the_loop(absolute):
    x, new = normal(3, 20, 9), normal(3, 15, 9, seed=1)
    y, wanted = bits(3, 20, 5, seed=2), bits(3, 15, 5, seed=3)
    found = held_out_correlation(x, y, **fresh(new, wanted), absolute=absolute)
    for i in range(3):
        table, again = slow_correlations(x[i], y[i]), slow_correlations(new[i], wanted[i])
        _, neuron = slow_best(table, absolute)
        rows = np.arange(5)
        expected = again[rows, neuron] * (np.sign(table[rows, neuron]) if absolute else 1)
        assert found.neuron[i].tolist() == neuron.tolist()
        np.testing.assert_allclose(found.per_latent[i], expected, rtol=0, atol=1e-12)
        np.testing.assert_allclose(found.score[i], expected.mean(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("samples", "neurons"), [(12, 30), (30, 12), (20, 20), (9, 1)])
@pytest.mark.parametrize("ridge", [1e-6, 1e-2, 1.0])
def test_linear_probe_is_least_squares(samples, neurons, ridge):
    """On both sides of the dual form."""
    x, new = normal(2, samples, neurons) * 10 + 3, normal(2, 25, neurons, seed=1) * 10 + 3
    if neurons > 1:
        x[1, :, 0] = 4.0
    y, wanted = normal(2, samples, 3, seed=2), normal(2, 25, 3, seed=3)
    found = linear_probe(x, y, **fresh(new, wanted), ridge=ridge)
    for i in range(2):
        prediction, truth = slow_ridge(x[i], y[i], new[i], ridge), wanted[i].numpy()
        expected = [np.corrcoef(prediction[:, j], truth[:, j])[0, 1] for j in range(3)]
        r2 = 1 - ((truth - prediction) ** 2).sum(0) / ((truth - truth.mean(0)) ** 2).sum(0)
        within = min(1e-8, 1e-12 / ridge)  # a small ridge leaves a matrix that is hard to invert
        np.testing.assert_allclose(found.per_latent[i], expected, rtol=0, atol=within)
        np.testing.assert_allclose(found.r2[i], r2, rtol=10 * within, atol=10 * within)
    assert (found.ridge == ridge).all()


@pytest.mark.parametrize(("samples", "neurons"), [(40, 60), (60, 20)])
def test_the_ridge_is_the_best_of_two_folds_and_the_fresh_samples_have_no_say(samples, neurons):
    x, y = normal(samples, neurons), normal(samples, 4, seed=1)
    y[:, :2] += 3 * x[:, :2]
    y[:, 1] += x.sum(-1)
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(0))
    halves = order[: samples // 2], order[samples // 2 :]
    error = np.zeros((len(RIDGES), 4))
    for fit, held in (halves, halves[::-1]):
        for k, ridge in enumerate(RIDGES):
            error[k] += ((slow_ridge(x[fit], y[fit], x[held], ridge) - y[held].numpy()) ** 2).sum(0)
    expected = [RIDGES[k] for k in error.argmin(0)]
    assert len(set(expected)) > 1
    for seed in (5, 6):
        found = linear_probe(x, y, **fresh(normal(30, neurons, seed=seed), normal(30, 4, seed=seed + 10)))
        assert found.ridge.tolist() == expected


def everything(activity, latents, split):
    halves = fresh(activity[..., split:, :], latents[..., split:, :])
    first = activity[..., :split, :], latents[..., :split, :]
    return [
        best_neuron_correlation(*first),
        best_neuron_correlation(*first, absolute=True),
        held_out_correlation(*first, **halves),
        held_out_correlation(*first, **halves, absolute=True),
        linear_probe(*first, **halves),
    ]


def test_the_best_of_many_is_good_by_chance_and_the_held_out_score_is_not_fooled():
    """No signal at all: what one chooses and scores on the same samples grows with the number of neurons."""
    samples, count = 100, 5
    seen = []
    for neurons, members in ((4, 40), (64, 40), (1024, 8)):  # many neurons take long
        latents = bits(members, 2 * samples, count)
        activity = normal(members, 2 * samples, neurons, seed=neurons)
        chosen, _, held, held_absolute, probe = everything(activity, latents, samples)
        seen.append(chosen.score.mean().item())
        for found in (held, held_absolute, probe):
            # Each value is a correlation of independent samples: mean 0, deviation 1 / sqrt(samples - 1).
            sigma = 1 / (count * members * (samples - 1)) ** 0.5
            assert abs(found.score.mean()) < 4 * sigma
    assert seen[0] < 0.15 < 0.2 < seen[1] < 0.28 < 0.3 < seen[2]
    assert seen[2] == pytest.approx((2 * np.log(1024) / samples) ** 0.5, rel=0.2)


@pytest.mark.parametrize(
    ("dtype", "scale"), [(torch.float32, 1e20), (torch.float32, 1e-20), (torch.float64, 1e300), (torch.float64, 1e-300)]
)
def test_any_scale(dtype, scale):
    latents, activity = bits(80, 3), normal(80, 10)
    for plain, scaled in zip(
        everything(activity, latents, 40),
        everything((activity * scale).to(dtype), latents.to(dtype) * scale, 40),
        strict=True,
    ):
        assert scaled.per_latent.dtype == dtype
        torch.testing.assert_close(plain.per_latent.to(dtype), scaled.per_latent, rtol=0, atol=2e-6)


def test_a_neuron_that_hardly_varies_keeps_its_digits():
    """One unit in the last place of float64: a mean taken first would round it away."""
    latents = bits(1000, 1).double()
    activity = 0.1 + latents * 2.0**-56
    assert activity.unique().numel() == 2
    assert best_neuron_correlation(activity, latents).score.item() == pytest.approx(1, abs=1e-12)


def test_half_precision_bool_and_whole_numbers():
    activity, latents = normal(2, 50, 7).to(torch.bfloat16), bits(2, 50, 3)
    for a, b in zip(everything(activity, latents, 25), everything(activity.double(), latents.long(), 25), strict=True):
        assert a.score.dtype == torch.float32
        torch.testing.assert_close(a.per_latent, b.per_latent.float(), rtol=0, atol=1e-6)


def test_dead_neurons_are_never_chosen_and_constant_latents_are_counted():
    latents = bits(40, 5)
    latents[:, 1] = True
    latents[:, 4] = False
    activity = normal(40, 6)
    activity[:, ::2] = 0.1  # a mean of forty of them is not 0.1
    for found in everything(activity, latents, 20):
        assert found.excluded == 2
        assert found.silent == 0
        assert found.per_latent.isnan().tolist() == [False, True, False, False, True]
        assert found.score.item() == pytest.approx(found.per_latent.nanmean().item())
        if isinstance(found, alignment.Alignment):
            assert (found.neuron[[0, 2, 3]] % 2 == 1).all()
            assert (found.neuron[[1, 4]] == -1).all()


def test_a_dead_layer_scores_zero_and_constant_latents_nothing():
    latents = bits(20, 3)
    for found in everything(torch.full((20, 4), 0.3), latents, 10):
        assert found.score == 0
        assert (found.silent, found.excluded) == (3, 0)
    for found in everything(normal(20, 4), torch.ones(20, 3), 10):
        assert found.score.isnan()
        assert (found.silent, found.excluded) == (0, 3)


def test_a_neuron_silent_on_fresh_samples_scores_zero_and_a_latent_constant_there_is_left_out():
    x, y = normal(30, 2), bits(30, 2)
    x[:, 0] += 10 * y[:, 0]
    x[:, 1] += 10 * y[:, 1]
    x[20:, 0] = 0.7
    y[20:, 1] = True
    found = held_out_correlation(x[:20], y[:20], **fresh(x[20:], y[20:]))
    assert found.per_latent[0] == 0
    assert found.per_latent[1].isnan()
    assert (found.score, found.silent, found.excluded) == (0, 1, 1)
    assert found.neuron.tolist() == [0, -1]
    probe = linear_probe(x[:20], y[:20], **fresh(x[20:], y[20:]))
    assert probe.excluded == 1
    assert probe.r2[1].isnan()


def test_what_varies_only_on_fresh_samples_does_not_count():
    x, y = normal(20, 3), bits(20, 2)
    x[:10], y[:10, 1] = 0.7, True
    for find in (held_out_correlation, linear_probe):
        found = find(x[:10], y[:10], **fresh(x[10:], y[10:]))
        assert found.per_latent[0] == 0
        assert found.per_latent[1].isnan()
        assert (found.silent, found.excluded) == (1, 1)


def test_a_neuron_that_wakes_up_on_fresh_samples_has_no_weight():
    x, y = normal(40, 5), normal(40, 2, seed=1)
    x[:20, 2] = 1.0
    x[20:, 2] = 1e6
    without = x[:, [0, 1, 3, 4]]
    a, b = (linear_probe(z[:20], y[:20], **fresh(z[20:], y[20:])) for z in (x, without))
    torch.testing.assert_close(a.per_latent, b.per_latent)


def test_groups_and_chunks_do_not_change_the_answer(monkeypatch):
    activity, latents = normal(5, 3, 40, 33), bits(5, 3, 40, 4)
    whole = everything(activity, latents, 20)
    for entries in (1, 50, 20 * 33 * 4):  # one neuron at a time, two, four members together
        monkeypatch.setattr(alignment, "TOGETHER", entries)
        for a, b in zip(whole, everything(activity, latents, 20), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


def test_leading_dimensions_broadcast():
    activity, latents = normal(4, 1, 40, 12), bits(3, 40, 2)
    for found in everything(activity, latents, 20):
        assert found.score.shape == (4, 3)
        assert found.per_latent.shape == (4, 3, 2)
    each = best_neuron_correlation(activity[2, 0], latents[1])
    torch.testing.assert_close(best_neuron_correlation(activity, latents).per_latent[2, 1], each.per_latent)
    turned = best_neuron_correlation(normal(3, 40, 2, 12).transpose(1, 2).transpose(0, 1), bits(2, 3, 40, 2))
    assert turned.neuron.shape == (2, 3, 2)


def test_what_is_given_stays_as_it_is():
    activity, latents = normal(2, 20, 5), normal(2, 20, 3)
    before = activity.clone(), latents.clone(), torch.get_rng_state()
    everything(activity.requires_grad_(), latents, 10)
    assert torch.equal(activity, before[0])
    assert torch.equal(latents, before[1])
    assert torch.equal(torch.get_rng_state(), before[2])


X, Y = torch.zeros(6, 3), torch.zeros(6, 2)


test_bad_input_gets_one_sentence = refusals(
    (lambda: best_neuron_correlation(X[0], Y), r"activity must have shape \(..., samples, neurons\)"),
    (lambda: best_neuron_correlation(X[:1], Y[:1]), "two samples or more"),
    (lambda: best_neuron_correlation(X, Y[:, :0]), r"latents must have shape \(..., samples, latents\).*empty"),
    (lambda: best_neuron_correlation(X[None][:0], Y), "nothing empty"),
    (lambda: best_neuron_correlation(X.long(), Y), "activity must hold floating numbers"),
    (lambda: best_neuron_correlation(X, Y[:5]), r"the same samples, got activity \(6, 3\), latents \(5, 2\)"),
    (lambda: best_neuron_correlation(X.expand(2, 6, 3), Y.expand(3, 6, 2)), "shapes do not fit together: activity"),
    (lambda: best_neuron_correlation(X, Y * torch.nan), "latents must be finite, got NaN or infinity$"),
    (lambda: best_neuron_correlation(X / X.new_tensor([[[1]], [[0]]]), Y), r"activity .* leading index \[1\]$"),
    (lambda: held_out_correlation(X, Y, **fresh(X, Y[:4])), "fresh_activity and fresh_latents must have the same"),
    (lambda: held_out_correlation(X, Y, **fresh(X[:, :2], Y)), "activity and fresh_activity .* same columns"),
    (lambda: held_out_correlation(X, Y, **fresh(X, Y[:, :1])), "latents and fresh_latents .* same columns"),
    (lambda: held_out_correlation(X, Y, **fresh(X + torch.inf, Y)), "fresh_activity must be finite"),
    (lambda: linear_probe(X, Y, **fresh(X, Y + torch.nan)), "fresh_latents must be finite"),
    (lambda: linear_probe(X, Y, **fresh(X, Y), ridge=0.0), "ridge must be a number or numbers of at least 1e-10"),
    (lambda: linear_probe(X, Y, **fresh(X, Y), ridge=(1.0, torch.nan)), "ridge contains NaN"),
    (lambda: linear_probe(X, Y, **fresh(X, Y), ridge=()), "ridge must be"),
    (lambda: linear_probe(X[:3], Y[:3], **fresh(X, Y)), "at least 4 samples to choose a ridge"),
)

"""Stable ranks of gradients, measured before they are cleared, and the coherence of embeddings."""

import math

import numpy as np
import pytest
import torch
from networks import PROBE, TEXT, loss_of, made
from torch import nn

from joma.host.errors import JomaError
from joma.monitor import Monitor

RANK, COHERENCE, NORM = "gradient_stable_rank", "embedding_coherence", "gradient_norm"


def slow_rank(w):
    sigma = torch.linalg.svdvals(w.double())
    return float(sigma.square().sum() / sigma[0] ** 2)


def test_they_are_those_of_the_gradients_of_the_step():
    model = made()
    loss_of(model, TEXT[5]).backward()  # of a step before the block, which is none of its steps
    with Monitor(model, probe=PROBE, every=2, measures=[RANK]) as monitor:
        assert monitor.latest == {}
        for step in range(2):
            model.zero_grad()
            loss_of(model, TEXT[step]).backward()
            monitor.step()
    table = monitor.latest[RANK]
    assert len(table.rows.names) == 9
    expected = [slow_rank(model.get_parameter(name).grad) for name in table.rows.names]
    np.testing.assert_allclose(table.values, expected, rtol=1e-5)
    weights = [slow_rank(model.get_parameter(name).detach()) for name in table.rows.names]
    assert np.abs(table.values - weights).min() > 1e-3


def norms_by_layer(gradients):
    layers = {}
    for name, each in gradients.items():
        layer = next((name[: len(start)] for start in ("h.0", "h.1") if name.startswith(start)), name)
        layers.setdefault(layer, []).append(each.double().flatten())
    return {layer: float(torch.cat(each).norm()) for layer, each in layers.items()}


def test_the_norm_of_a_layer_is_that_of_all_its_gradients():
    model = made()
    model.h[1].norm.requires_grad_(False)
    with Monitor(model, probe=PROBE, every=1, measures=[NORM], exclude="head.bias") as monitor:
        loss_of(model, TEXT[5]).backward()
        monitor.step()
    there = {name: p.grad for name, p in model.named_parameters() if p.grad is not None and name != "head.bias"}
    expected, table = norms_by_layer(there), monitor.latest[NORM]
    assert dict(zip(table.rows.names, table.values, strict=True)) == pytest.approx(expected)
    assert list(expected) == ["embed.weight", "h.0", "h.1", "head.weight"]
    assert table.rows.dims == {"layer": list(expected)}


def test_gradients_are_measured_before_they_are_cleared_where_the_loop_says_so():
    model, seen = made(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitor(model, probe=PROBE, every=2, measures=[RANK], sinks=lambda step, _: seen.append(step)) as monitor:
        for step in range(4):
            loss_of(model, TEXT[step]).backward()
            monitor.gradients()
            expected = {name: each.grad.clone() for name, each in model.named_parameters() if each.ndim == 2}
            optimizer.step()
            optimizer.zero_grad()
            monitor.step()
    assert seen == [2, 4]
    table = monitor.latest[RANK]
    np.testing.assert_allclose(table.values, [slow_rank(expected[name]) for name in table.rows.names], rtol=1e-5)


def test_a_loop_that_has_cleared_them_is_told_where_the_call_belongs():
    with Monitor(made(), probe=PROBE, every=2, measures=[RANK]) as monitor:
        monitor.step()
        with pytest.raises(JomaError, match=r"at step 2 there are none: call monitor.step\(\) before they are cleared"):
            monitor.step()


def test_a_later_step_without_gradients_is_left_out():
    model, seen = made(), []
    with Monitor(model, probe=PROBE, every=1, measures=[RANK], sinks=lambda step, _: seen.append(step)) as monitor:
        loss_of(model, TEXT[0]).backward()
        monitor.step()
        model.zero_grad()
        monitor.step()
    assert seen == [1]


def test_a_matrix_without_gradient_has_rank_zero_and_one_that_is_not_finite_has_none():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].requires_grad_(False)
    with Monitor(model, probe=torch.zeros(1, 4), every=1, measures=[RANK], alarms=[]) as monitor:
        model(torch.randn(3, 4)).square().sum().backward()
        model[2].weight.grad[0, 0] = math.inf
        monitor.step()
    first, second, third = monitor.latest[RANK].values
    assert first == pytest.approx(slow_rank(model[0].weight.grad), rel=1e-5)
    assert second == 0
    assert math.isnan(third)


def test_coherence_is_the_mean_cosine_of_two_tokens():
    model = made()
    with Monitor(model, probe=PROBE, every=1, measures=[COHERENCE]) as monitor:
        with torch.no_grad():
            model.embed.weight.add_(1.0)
        monitor.step()
    table = monitor.latest[COHERENCE]
    assert table.rows.names == ("embed.weight",)
    rows = torch.nn.functional.normalize(model.embed.weight.detach().double(), dim=1)
    cosines = [abs(float(rows[i] @ rows[j])) for i in range(len(rows)) for j in range(i)]
    assert table.values[0] == pytest.approx(sum(cosines) / len(cosines), rel=1e-5)
    assert table.values[0] > 0.3


def test_coherence_of_a_broken_embedding_is_no_number_and_one_must_be_there():
    model = made()
    with Monitor(model, probe=PROBE, every=1, measures=[COHERENCE], alarms=[]) as monitor:
        model.embed.weight.data[0, 0] = math.nan
        monitor.step()
    assert math.isnan(monitor.latest[COHERENCE].values[0])
    with pytest.raises(
        JomaError, match=r"embedding_coherence needs an embedding, and Linear has none that is followed"
    ):
        Monitor(nn.Linear(3, 4), probe=torch.zeros(1, 3), measures=[COHERENCE]).__enter__()

"""Refreshes spread over the updates between them: each matrix as often as before, few in one step."""

import pytest
import torch
from torch import nn
from training import network, train

from joma.optim import GaLore, _matrix


def refreshes(count, steps, **options):
    """Which matrices were refreshed in which step."""
    weights = [nn.Parameter(torch.zeros(6, 9)) for _ in range(count)]
    named = [(f"w{place}", each) for place, each in enumerate(weights)]
    optimizer = GaLore(named, torch.optim.SGD, **({"rank": 2, "refresh": 4, "lr": 0.0} | options))
    found = []
    for step in range(steps):
        luck = torch.Generator().manual_seed(step)
        for each in weights:
            each.grad = torch.randn(6, 9, generator=luck)
        expected = optimizer.due()
        optimizer.step()
        found.append([int(m.name[1:]) for m in optimizer.matrices if m.refreshed == step])
        assert expected == [f"w{place}" for place in found[-1]]
    return found


def test_the_first_step_finds_all_and_the_others_have_turns():
    found = refreshes(4, 9)
    assert found == [[0, 1, 2, 3], [1], [2], [3], [0], [1], [2], [3], [0]]


def test_more_matrices_than_updates_share_turns_and_fewer_leave_gaps():
    assert refreshes(6, 6)[1:] == [[2], [3, 4], [5], [0, 1], [2]]
    assert refreshes(2, 6)[1:] == [[], [1], [], [0], []]


def test_together_where_it_is_asked_for_and_with_the_exact_projector():
    for options in ({"stagger": False}, {"projector": "exact"}):
        assert refreshes(4, 6, **options) == [[0, 1, 2, 3], [], [], [], [0, 1, 2, 3], []]
    assert refreshes(4, 3, projector="exact", stagger=True)[1:] == [[1], [2]]


def test_few_at_a_time_where_products_are_stacked(monkeypatch):
    monkeypatch.setattr(_matrix, "STACKED_ON", ("cpu",))
    assert refreshes(6, 6)[1:] == [[], [4, 5], [], [0, 1, 2, 3], []]


@pytest.mark.parametrize(("way", "turns"), [("per_layer", [0, 0, 0, 0, 1, 1]), ("project_in_backward", [*range(6)])])
def test_one_at_a_time_where_gradients_are_not_there_together(way, turns, monkeypatch):
    """With per_layer those of neighbours are."""
    monkeypatch.setattr(_matrix, "STACKED_ON", ("cpu",))
    weights = [nn.Parameter(torch.zeros(6, 9)) for _ in range(6)]
    optimizer = GaLore(weights, rank=2, skip=(), **{way: True})
    assert [matrix.turn for matrix in optimizer.matrices] == [(turn, max(turns) + 1) for turn in turns]


def test_a_resumed_run_has_the_turns_of_the_run_before():
    model = network()
    optimizer = GaLore(model, rank=4, refresh=6, lr=0.01)
    train(model, optimizer, 4)
    again = GaLore(model, rank=4, refresh=6, lr=0.01)
    again.load_state_dict(optimizer.state_dict())
    assert [matrix.turn for matrix in again.matrices] == [(0, 2), (1, 2)]
    for _ in range(8):
        assert again.due() == optimizer.due()
        train(model, again, 1)
        optimizer.count_replays()
        for mine, theirs in zip(optimizer.matrices, again.matrices, strict=True):
            mine.refreshed = theirs.refreshed


def test_steps_that_a_graph_replays_are_counted():
    model = network()
    optimizer = GaLore(model, rank=4, refresh=6, lr=0.01, stagger=False)
    train(model, optimizer, 1)
    assert optimizer.due() == []
    optimizer.count_replays(5)
    assert optimizer.due() == ["layers.0.weight", "layers.2.weight"]
    assert optimizer.state[model.layers[0].weight]["count"] == 6


@pytest.mark.parametrize("refresh", [1, 2])
def test_a_refresh_at_every_step_is_one(refresh):
    assert [len(each) for each in refreshes(3, 5, refresh=refresh)][1:] == ([3] * 4 if refresh == 1 else [1, 2, 1, 2])

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


def test_together_where_a_subclass_says_so_and_with_the_exact_projector(monkeypatch):
    assert refreshes(4, 6, projector="exact") == [[0, 1, 2, 3], [], [], [], [0, 1, 2, 3], []]
    monkeypatch.setattr(GaLore, "staggered", False)
    assert refreshes(4, 6) == [[0, 1, 2, 3], [], [], [], [0, 1, 2, 3], []]


def test_few_at_a_time_where_products_are_stacked(monkeypatch):
    monkeypatch.setattr(_matrix, "STACKED_ON", ("cpu",))
    assert refreshes(6, 6)[1:] == [[], [4, 5], [], [0, 1, 2, 3], []]


@pytest.mark.parametrize(("way", "turns"), [(True, [0, 0, 0, 0, 1, 1]), ("project", [*range(6)])])
def test_one_at_a_time_where_gradients_are_not_there_together(way, turns, monkeypatch):
    """With per_layer those of neighbours are."""
    monkeypatch.setattr(_matrix, "STACKED_ON", ("cpu",))
    weights = [nn.Parameter(torch.zeros(6, 9)) for _ in range(6)]
    optimizer = GaLore(weights, rank=2, skip=(), per_layer=way)
    assert [matrix.turn for matrix in optimizer.matrices] == [(turn, max(turns) + 1) for turn in turns]


TURNS = {  # shapes of a layer, entries of a bucket in which such layers are, layers; the turns of their matrices
    "three alike in a bucket": ([(6, 9)] * 3, 2, [0, 0, 0, 1, 1, 1]),
    "two alike in a bucket": ([(6, 9)] * 2, 3, [0, 0, 1, 1, 2, 2]),
    "five alike in a bucket": ([(6, 9)] * 5, 2, [0, 0, 0, 0, 1, 2, 2, 2, 2, 3]),
    "one of each kind in a bucket": ([(6, 9), (9, 6)], 6, [0, 2, 0, 2, 0, 2, 0, 2, 1, 3, 1, 3]),
    "a bucket of one between others": ([(6, 9), (6, 9), (9, 6), (18, 6)], 2, [0, 0, 2, 3, 1, 1, 2, 3]),
}


@pytest.mark.parametrize("way", [{}, {"per_layer": True}], ids=["plain", "per_layer"])
@pytest.mark.parametrize(("layer", "layers", "turns"), TURNS.values(), ids=TURNS)
def test_a_turn_keeps_within_a_bucket_that_has_several_alike(layer, layers, turns, way, monkeypatch):
    """A bucket has as many entries as a layer: half of those of the largest parameter, which passes."""
    monkeypatch.setattr(_matrix, "STACKED_ON", ("cpu",))
    weights = [nn.Parameter(torch.zeros(shape)) for _ in range(layers) for shape in layer]
    largest = nn.Parameter(torch.zeros(2 * sum(rows * columns for rows, columns in layer)))
    optimizer = GaLore([*weights, largest], rank=2, skip=(), **way)
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


def test_steps_that_a_graph_replays_are_counted(monkeypatch):
    monkeypatch.setattr(GaLore, "staggered", False)
    model = network()
    optimizer = GaLore(model, rank=4, refresh=6, lr=0.01)
    train(model, optimizer, 1)
    assert optimizer.due() == []
    for _ in range(5):
        optimizer.count_replays()
    assert optimizer.due() == ["layers.0.weight", "layers.2.weight"]
    assert optimizer.state[model.layers[0].weight]["count"] == 6


@pytest.mark.parametrize("refresh", [1, 2])
def test_a_refresh_at_every_step_is_one(refresh):
    assert [len(each) for each in refreshes(3, 5, refresh=refresh)][1:] == ([3] * 4 if refresh == 1 else [1, 2, 1, 2])

"""Which parameters are projected and which pass: by rank, size, kind and name; and the rank that an energy chooses."""

import pytest
import torch
from torch import nn
from training import network, train

from joma.optim import Energy, GaLore


def test_what_is_no_matrix_or_is_named_passes_as_it_would_alone():
    model, alone = network(), network()
    optimizer = GaLore(model, rank=4, lr=0.01)
    passing = [each.name for each in optimizer.passing]
    assert [matrix.name for matrix in optimizer.matrices] == ["layers.0.weight", "layers.2.weight"]
    assert passing == [
        "embed_tokens.weight", "layers.0.bias", "layers.2.bias", "layers.3.weight", "layers.3.bias", "lm_head.weight",
    ]  # fmt: skip
    for one, maker in ((model, optimizer), (alone, torch.optim.AdamW(alone.parameters(), lr=0.01))):
        train(one, maker, 1)
    for name in passing:
        assert torch.equal(model.get_parameter(name), alone.get_parameter(name)), name


def test_a_matrix_is_projected_if_its_shorter_side_is_above_the_rank_and_not_below_the_smallest():
    sides = {"a": (3, 9), "b": (9, 4), "c": (5, 9), "d": (9, 6)}
    given = [(name, nn.Parameter(torch.zeros(shape))) for name, shape in sides.items()]
    chosen = lambda **options: "".join(matrix.name for matrix in GaLore(given, **options).matrices)
    assert [chosen(rank=3), chosen(rank=4), chosen(rank=2)] == ["bcd", "cd", "abcd"]
    assert [chosen(rank=2, smallest=least) for least in (3, 4, 5, 6)] == ["abcd", "bcd", "cd", "d"]
    assert [chosen(rank=Energy(0.9, most=20, least=least)) for least in (3, 4)] == ["bcd", "cd"]


def test_the_rank_that_an_energy_chooses_has_bounds():
    shares = torch.tensor([0.5, 0.2, 0.15, 0.1, 0.05])
    cases = {(0.5, 5, 1): 1, (0.51, 5, 1): 2, (0.85, 5, 1): 3, (0.85, 2, 1): 2, (0.5, 5, 4): 4, (1.0, 9, 1): 5}
    assert {case: Energy(*case).choose(shares) for case in cases} == cases
    assert Energy(0.5, most=9, least=8).choose(shares) == 5


def test_names_say_what_is_left_out():
    model = network()
    chosen = {"One.Head.weight": True, "heads.weight": False, "a.HEAD_b": True, "wte.x": True, "only.this": True}
    given = [(name, nn.Parameter(torch.zeros(8, 9))) for name in chosen]
    projected = [matrix.name for matrix in GaLore(given, rank=4, skip=["head", "wte", "only.this"]).matrices]
    assert projected == [name for name, skipped in chosen.items() if not skipped]
    assert len(GaLore(model.named_parameters(), rank=4, skip=["layers"]).matrices) == 2
    assert [m.name for m in GaLore(model, rank=4, skip=()).matrices] == [
        "layers.0.weight", "layers.2.weight", "lm_head.weight",
    ]  # fmt: skip


def test_rank_by_energy():
    weight = nn.Parameter(torch.zeros(6, 8))
    optimizer = GaLore([weight], torch.optim.Adagrad, rank=Energy(0.9, most=5), projector="exact", lr=0.1)
    weight.grad = torch.zeros(6, 8)
    weight.grad[range(6), range(6)] = torch.tensor([3.0, 1.0, 0.5, 0.1, 0.0, 0.0])
    optimizer.step()
    assert optimizer.matrices[0].rank == 2  # 9 of 10.26 is 0.877, 10 of 10.26 is 0.975
    assert optimizer.state[weight]["sum"].shape == (2, 8)
    assert optimizer.captured()["group 0, parameter 0"] == pytest.approx(10 / 10.26)

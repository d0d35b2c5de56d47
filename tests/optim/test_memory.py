"""Bytes of training, measured and by formula."""

import json

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from training import loss_of, network, train

from joma.optim import GaLore, memory
from joma.optim.memory import _readable

pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # of bfloat16, on a CPU that has none

OPTIMIZERS = {
    "AdamW": (torch.optim.AdamW, {}),
    "AMSGrad": (torch.optim.Adam, {"amsgrad": True}),
    "SGD": (torch.optim.SGD, {}),
    "SGD with momentum": (torch.optim.SGD, {"momentum": 0.9}),
    "RMSprop": (torch.optim.RMSprop, {"momentum": 0.5, "centered": True}),
    "Adagrad": (torch.optim.Adagrad, {}),
    "Adafactor": (torch.optim.Adafactor, {}),
    "NAdam": (torch.optim.NAdam, {}),
    "RAdam": (torch.optim.RAdam, {}),
    "Adamax": (torch.optim.Adamax, {}),
    "RMSprop alone": (torch.optim.RMSprop, {}),
    "RMSprop with momentum": (torch.optim.RMSprop, {"momentum": 0.5}),
}


def trained(make, model=None):
    model = model or network()
    optimizer = make(model)
    train(model, optimizer, 1)
    loss_of(model).backward()
    return memory(model, optimizer)


def is_near(row, tolerance=0.03):
    for part in ("weights", "gradients", "states", "projections"):
        there, expected = getattr(row.measured, part), getattr(row.formula, part)
        assert there == pytest.approx(expected, rel=tolerance, abs=40), part


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_formula_is_what_is_measured(name):
    inner, options = OPTIMIZERS[name]
    for row in trained(lambda model: inner(model.parameters(), **options)).rows:
        is_near(row)
    for row in trained(lambda model: GaLore(model, inner, rank=4, **options)).rows:
        is_near(row)


def test_galore_in_numbers():
    model = nn.Linear(300, 200, bias=False)
    optimizer = GaLore(model, rank=10)
    model(torch.ones(2, 300)).sum().backward()
    optimizer.step()
    (row,) = memory(model, optimizer).rows
    assert row.name == "group 0, projected"
    assert (row.tensors, row.entries) == (1, 60_000)
    assert row.formula.weights == row.formula.gradients == row.measured.gradients == 4 * 200 * 300
    assert row.formula.projections == 4 * 200 * 10
    assert row.formula.states == 4 * 2 * 300 * 10
    assert row.measured.states == row.formula.states + 4  # the step count
    assert row.measured.projections == row.formula.projections + 4 * 10  # the energies


def test_project_in_backward_keeps_compact_gradients_alone():
    table = trained(lambda model: GaLore(model, rank=4, per_layer="project"))
    assert table.rows[0].measured.gradients == table.rows[0].formula.gradients == 2 * 4 * 40 * 4
    is_near(table.rows[0])


def test_half_precision():
    model = network(torch.bfloat16)
    table = trained(lambda model: GaLore(model, rank=4), model)
    assert table.rows[0].formula.weights == 2 * 2 * 24 * 40
    for row in table.rows:
        is_near(row, 0.05)


def test_what_the_optimizer_does_not_have_is_a_row():
    model = network()
    rows = trained(lambda model: GaLore([("up", model.layers[0].weight)], rank=4), model).rows
    assert [row.name for row in rows] == ["group 0, projected", "not in the optimizer"]
    assert rows[1].measured.states == 0
    assert rows[1].tensors == 7


Foreign = type("Foreign", (torch.optim.Rprop,), {})  # of nobody's library


def test_an_optimizer_that_is_not_known_is_measured():
    table = trained(lambda model: Foreign(model.parameters()))
    assert table.total.formula is None
    assert table.total.measured.states > 0
    assert "not known" in str(table)
    is_unknown = trained(lambda model: GaLore(model, Foreign, rank=4))
    assert is_unknown.rows[0].formula is None


def test_what_is_held_is_counted_and_not_what_is_seen():
    """A number seen as a matrix is a number, a part of a larger memory its own part, a wrapper what it wraps."""
    model = nn.Linear(6, 5, bias=False)
    optimizer = GaLore(model, rank=2)
    two = TwoTensor(torch.zeros(5, 6), torch.zeros(5, 6))
    views = {4: torch.ones(1, 1).expand(5, 6), 4 * 30: torch.zeros(50, 6)[:5], 2 * 4 * 30: two}
    for held, gradient in views.items():
        model.weight.grad = gradient
        assert memory(model, optimizer).total.measured.gradients == held
    assert memory(model, optimizer).total.measured.weights == 4 * 30


def test_units():
    counts = [999, 1000, 1024, 999 * 1024, 1000 * 1024, 1 << 20, 1 << 30, 5 << 40]
    assert [_readable(count) for count in counts] == [
        "999 B", "0.977 KiB", "1 KiB", "999 KiB", "0.977 MiB", "1 MiB", "1 GiB", "5.12e+03 GiB",
    ]  # fmt: skip


def test_the_table_prints_and_adds_up():
    table = trained(lambda model: GaLore(model, rank=4))
    *lines, last = str(table).splitlines()
    assert len(lines) == 1 + 2 * 3
    assert last == "1,920 of 3,472 parameters are projected (55.3%)"
    assert lines[0].split() == ["group", "tensors", "by", "weights", "gradients", "states", "projections", "total"]
    assert len({len(line) for line in lines}) == 1
    listed = json.loads(table.json())
    assert [row["name"] for row in listed] == ["group 0, projected", "group 0, passing", "total"]
    for part in ("weights", "gradients", "states", "projections"):
        assert listed[2]["measured"][part] == listed[0]["measured"][part] + listed[1]["measured"][part]
    assert table.total.entries == sum(each.numel() for each in network().parameters())
    assert repr(table).startswith("Memory(2 groups, ")

"""Matrices that share a compact parameter train as each would alone, also when they part or come together again."""

import numpy as np
import pytest
import torch
from oracle import SlowGaLore
from torch import nn
from training import near, network, train

from joma.optim import GaLore, Projected, _matrix
from joma.optim._matrix import Matrix, Pack

SHAPES = [(5, 9), (5, 9), (9, 5), (5, 9), (9, 5)]


def drawn(seed, shapes=SHAPES, dtype=torch.float64):
    luck = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=luck, dtype=dtype) for shape in shapes]


def made(weights, inner=torch.optim.Adam, **options):
    own = {"rank": 3, "refresh": 2, "scale": 0.25, "projector": "exact", "lr": 0.1, "weight_decay": 0.3, "skip": ()}
    return GaLore([(f"w{place}", each) for place, each in enumerate(weights)], inner, **(own | options))


def give(weights, gradients):
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = None if gradient is None else gradient.clone()


@pytest.fixture(params=[False, True], ids=["one by one", "stacked"])
def _stacked(request, monkeypatch):
    if request.param:
        monkeypatch.setattr(_matrix, "STACKED_ON", ("cpu",))


@pytest.mark.usefixtures("_stacked")
@pytest.mark.parametrize("stagger", [False, True])
def test_each_matrix_as_the_slow_version_makes_it_alone(stagger, monkeypatch):
    """The third step has no gradient for two of them, so their packs part; counts and moments are their own."""
    weights = [nn.Parameter(each) for each in drawn(0)]
    starts = [each.detach().numpy().copy() for each in weights]
    monkeypatch.setattr(GaLore, "staggered", stagger)
    optimizer = made(weights, refresh=2)
    assert [len(pack.matrices) for pack in optimizer.packs] == [3, 2]
    slow = [SlowGaLore(s, rank=3, refresh=2, scale=0.25, lr=0.1, decay=0.3) for s in starts]
    for step in range(7):
        gradients = [None if step == 3 and place in (1, 4) else each for place, each in enumerate(drawn(1 + step))]
        give(weights, gradients)
        due = [optimizer.is_due(matrix) for matrix in optimizer.matrices]
        optimizer.step()
        for place, (weight, gradient, one) in enumerate(zip(weights, gradients, slow, strict=True)):
            if gradient is None:
                continue
            one.refresh = 1 if due[place] else 10**9  # when is another test's matter
            one.count = 1
            one.step(gradient.numpy(), optimizer.matrices[place].basis.numpy())
            np.testing.assert_allclose(weight.detach().numpy(), one.weight, rtol=1e-9, atol=1e-9)
    assert sorted(matrix.count for matrix in optimizer.matrices) == [6, 6, 7, 7, 7]
    assert len(optimizer.packs) == 4


@pytest.mark.parametrize("inner", [torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adagrad])
def test_stacked_products_give_what_single_ones_give(inner, monkeypatch):
    weights = [[nn.Parameter(each) for each in drawn(0)] for _ in range(2)]
    options = {"momentum": 0.9} if inner in (torch.optim.SGD, torch.optim.RMSprop) else {}
    for some, kinds in zip(weights, ((), ("cpu",)), strict=True):
        monkeypatch.setattr(_matrix, "STACKED_ON", kinds)
        optimizer = made(some, inner, on_move="rotate", **options)
        for step in range(5):
            give(some, drawn(1 + step))
            optimizer.step()
    for one, other in zip(*weights, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("inner", [torch.optim.Adafactor, torch.optim.Muon])
def test_optimizers_that_look_at_whole_matrices_have_each_alone(inner):
    optimizer = made([nn.Parameter(each) for each in drawn(0)], inner)
    assert [pack.compact.ndim for pack in optimizer.packs] == [2] * 5


def test_resets_and_per_layer_have_each_alone():
    for options in ({"on_move": "reset"}, {"per_layer": True}):
        assert len(made([nn.Parameter(each) for each in drawn(0)], **options).packs) == 5


def test_the_state_of_a_parameter_is_the_live_one():
    weights = [nn.Parameter(each) for each in drawn(0)]
    optimizer = made(weights, torch.optim.AdamW)
    assert not optimizer.state
    for step in range(2):
        give(weights, drawn(1 + step))
        optimizer.step()
    entry = optimizer.state[weights[1]]
    assert set(entry) == {"basis", "energies", "count", "refreshed", "step", "exp_avg", "exp_avg_sq"}
    assert (entry["count"], entry["refreshed"], float(entry["step"])) == (2, 0, 2.0)
    entry["exp_avg"].fill_(7.0)
    held = optimizer.inner.state[optimizer.matrices[1].pack.compact]["exp_avg"]
    assert [bool((one == 7).all()) for one in held] == [False, True, False]
    kept = entry["exp_avg"]
    give(weights, drawn(5))
    optimizer.step()
    assert optimizer.state[weights[1]]["exp_avg"] is kept
    assert optimizer.state[weights[1]]["count"] == 3
    assert optimizer.state[weights[1]]["refreshed"] == 2


@pytest.mark.parametrize(("least", "at_once"), [(0, {1}), (1 << 17, {2})])
def test_few_packs_are_unfolded_at_once(least, at_once, monkeypatch):
    """Whatever the memory allows, the weights are the same."""
    weights, others = ([nn.Parameter(each) for each in drawn(0, SHAPES * 4)] for _ in range(2))
    plain, narrow = made(weights), made(others)
    monkeypatch.setattr("joma.optim._update.UNFOLDED_LEAST", least)
    seen = []
    step = narrow.inner.step
    monkeypatch.setattr(narrow.inner, "step", lambda: seen.append(unfolded(narrow)) or step())
    for turn in range(3):
        give(others, drawn(1 + turn, SHAPES * 4))
        narrow.step()
    assert set(seen) == at_once
    monkeypatch.undo()
    for turn in range(3):
        give(weights, drawn(1 + turn, SHAPES * 4))
        plain.step()
    assert all(torch.equal(one, other) for one, other in zip(weights, others, strict=True))


def unfolded(optimizer):
    return sum(pack.compact.untyped_storage().nbytes() > 8 for pack in optimizer.packs)


@pytest.mark.parametrize("kept", [torch.bfloat16, torch.float32, torch.float64])
def test_bases_and_states_have_the_precision_that_is_asked_for(kept):
    model, wide = network(), network()
    optimizer = GaLore(model, rank=4, refresh=3, lr=0.01, projected=Projected(basis_dtype=kept, state_dtype=kept))
    train(model, optimizer, 5)
    entry = optimizer.state[model.layers[0].weight]
    assert [entry[key].dtype for key in ("basis", "exp_avg", "exp_avg_sq")] == [kept] * 3
    train(wide, GaLore(wide, rank=4, refresh=3, lr=0.01), 5)
    assert near(model, wide, 2e-2 if kept == torch.bfloat16 else 1e-4)


def test_half_precision_keeps_what_its_parameters_have_unless_that_is_too_narrow():
    for dtype, kept in ((torch.bfloat16, torch.bfloat16), (torch.float16, torch.float32)):
        weight = nn.Parameter(torch.zeros(8, 12, dtype=dtype))
        optimizer = GaLore([weight], rank=2)
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        assert {optimizer.state[weight][key].dtype for key in ("basis", "exp_avg", "exp_avg_sq")} == {kept}


def test_neighbours_take_subspaces_at_their_places_and_no_others_do():
    matrices = [Matrix(f"w{place}", nn.Parameter(torch.zeros(5, 9)), 0, place, 2) for place in range(4)]
    pack = Pack(matrices)
    bases, shares = torch.randn(2, 5, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([[0.6, 0.3]] * 2)
    pack.take_subspaces(1, bases, shares)
    assert [matrix.found for matrix in matrices] == [False, True, True, False]
    assert torch.equal(matrices[1].basis, bases[0])
    assert torch.equal(matrices[2].basis, bases[1])
    assert matrices[0].basis is None
    assert matrices[2].energies.tolist() == shares[1].tolist()
    assert not pack.basis[[0, 3]].any()


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize(
    ("dtype", "basis_dtype"), [(torch.bfloat16, None), (torch.float32, torch.bfloat16), (torch.float32, None)]
)
@pytest.mark.parametrize(("columns", "least", "kinds", "padded"), [
    (29, 1, ("cpu",), 5 * 2 * 2), (32, 1, ("cpu",), 0), (29, 1, (), 0), (29, 1 << 21, ("cpu",), 0),
])  # fmt: skip
def test_products_of_an_odd_side_are_padded(columns, least, kinds, padded, dtype, basis_dtype, decay, monkeypatch):
    """Padded or not, each update is that of float64 to what bfloat16 rounds; what stands in the padding is NaN here."""
    for name, value in {"PADDED_ON": kinds, "ALONE": least}.items():
        monkeypatch.setattr(_matrix, name, value)
    products, own = [], _matrix.padded_product
    monkeypatch.setattr(_matrix, "padded_product", lambda *two: products.append(own(*two)) or products[-1])
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    weights = [nn.Parameter(each) for each in drawn(0, [(16, columns)] * 2 + [(columns, 16), (40, 13)], dtype)]
    chosen = {"refresh": 99, "lr": 0.25, "weight_decay": decay, "projected": Projected(basis_dtype=basis_dtype)}
    optimizer = made(weights, torch.optim.SGD, rank=8, **chosen)
    torch.use_deterministic_algorithms(True)
    try:
        for step in range(5):
            before = [each.detach().double() for each in weights]
            give(weights, gradients := drawn(1 + step, [each.shape for each in weights], dtype))
            optimizer.step()
            for matrix, gradient, start in zip(optimizer.matrices, gradients, before, strict=True):
                basis, right = matrix.basis.double(), matrix.side == "right"
                lifted = gradient.double() @ basis @ basis.T if right else basis @ basis.T @ gradient.double()
                expected = start * (1 - 0.25 * decay) - 0.25 * 0.25 * lifted
                off = (matrix.parameter.detach().double() - expected).abs()
                assert bool((off <= 2**-8 * (expected.abs() + 0.2)).all())
                assert float((expected - start).abs().max()) > 0.1
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(products) == (padded if torch.bfloat16 in (dtype, basis_dtype) else 0)
    assert all(one.shape[1] % 8 == columns % 8 and one.stride(0) % 8 == 0 for one in products)

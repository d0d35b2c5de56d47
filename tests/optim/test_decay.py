"""Weight decay of numbers in half precision: less than the distance of two of them, it must not be rounded away.

With weights between 1 and 2 decay is about a fifth of that distance. So no single weight says whether it acts, but the
mean of many does: it is compared with the same step without decay.
"""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from test_fast_step import NewBytes
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
from training import IN_8_BITS

from joma.optim import APOLLO, Fira, GaLore, Muon, Projected, _matrix
from joma.optim._matrix import shrink_and_add
from joma.optim._update import Guard

pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # of bfloat16, on a CPU that has none
RATE, RANK, SHAPE = 2.0, 8, (160, 240)
WEAK, STRONG = 0.001, 0.0035  # decay in one step, below and above what bfloat16 can lose: 2^-9
EPSILON = {torch.bfloat16: WEAK, torch.float16: 0.0001}


def drawn(count, shape, dtype, seed):
    luck = torch.Generator().manual_seed(seed)
    return [(torch.rand(shape, generator=luck, dtype=torch.float64) + 1).to(dtype) for _ in range(count)]


def stepped(decay, device, kind=GaLore, *, shape=SHAPE, dtype=torch.bfloat16, rate=RATE, spoil=False, **options):
    """Weights before and after one step that shrinks them by `decay`."""
    weights = [nn.Parameter(each.to(device)) for each in drawn(3, shape, dtype, 0)]
    before = [each.detach().clone() for each in weights]
    options = {"rank": RANK, "skip": (), "nonfinite": "skip", "fused": True} | options
    lr = rate if isinstance(rate, float) else rate.to(device, copy=True)
    named = [(f"w{place}", each) for place, each in enumerate(weights)]
    optimizer = kind(named, lr=lr, weight_decay=decay / float(rate), **options)
    for weight, gradient in zip(weights, drawn(3, shape, dtype, 1), strict=True):
        weight.grad = (gradient - 1.5).to(device)
    if spoil:
        optimizer.step()  # subspaces are searched for in gradients that are finite
        before = [each.detach().clone() for each in weights]
        weights[-1].grad[3, 4] = torch.nan
    optimizer.step()
    return before, [each.detach() for each in weights]


def shrunk_by(decay, device, **options):
    (_, without), (_, having) = (stepped(each, device, **options) for each in (0.0, decay))
    gone = sum(float((one.double() - other.double()).sum()) for one, other in zip(without, having, strict=True))
    return gone / sum(float(each.double().sum()) for each in without)


@pytest.fixture(params=["host", "device", "large", "gpu", "large on a gpu"])
def device(request, monkeypatch):
    """Who knows whether gradients are finite, and how products are made.

    A CPU stands for a GPU, but where weights are shrunk by torch's fused SGD: on a CPU it leaves bfloat16 as it is.
    """
    if "gpu" in request.param and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    if request.param in ("device", "large"):
        monkeypatch.setattr(Guard, "devices", ("cpu",))
    if "large" in request.param:
        monkeypatch.setattr(_matrix, "STACKED_ON", ("cpu", "cuda"))
        monkeypatch.setattr(_matrix, "ALONE", 1)
    return "cuda" if "gpu" in request.param else "cpu"


CASES = {
    "as it is": {},
    "tall": {"shape": SHAPE[::-1]},
    "float16": {"dtype": torch.float16},
    "a rate on the device": {"rate": torch.tensor(RATE)},
    "an exact basis": {"projected": Projected(basis_dtype=torch.float32)},
    "few bits": {"projected": IN_8_BITS},
    "APOLLO": {"kind": APOLLO},
    "Fira": {"kind": Fira},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_decay_acts(case, device):
    decay = EPSILON[case.get("dtype", torch.bfloat16)]
    assert 0.9 < shrunk_by(decay, device, **case) / decay < 1.1


@pytest.mark.parametrize("case", [{}, {"rate": torch.tensor(RATE)}, {"kind": APOLLO}], ids=str)
def test_decay_that_is_not_lost_by_itself_acts_as_much_as_it_says(case, device):
    """Alone it would be rounded to nothing or to twice as much, which of them depends on the weight."""
    assert 0.95 < shrunk_by(STRONG, device, **case) / STRONG < 1.05


@pytest.mark.parametrize("decay", [WEAK, STRONG, 0.5])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_step_that_is_held_changes_no_bit(case, decay, device):
    before, after = stepped(decay, device, spoil=True, **case)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize("rate", [RATE, torch.tensor(RATE)], ids=["host", "rate on device"])
@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_where_numbers_are_fine_decay_is_what_it_was(dtype, by_columns, rate, device):
    """W_with = W_without - decay * W, entry by entry."""
    weights = [each.to(device) for each in drawn(3, SHAPE, dtype, 0)]
    found = []
    for decay in (0.0, 0.3):
        mine = [nn.Parameter(each.mT.contiguous().mT if by_columns else each.clone()) for each in weights]
        lr = rate if isinstance(rate, float) else rate.to(device, copy=True)
        optimizer = GaLore(mine, rank=RANK, lr=lr, weight_decay=decay / RATE, skip=(), fused=True)
        for weight, gradient in zip(mine, drawn(3, SHAPE, dtype, 1), strict=True):
            weight.grad = (gradient - 1.5).to(device)
        optimizer.step()
        found.append(mine)
    for without, having, weight in zip(*found, weights, strict=True):
        exact = without.detach() - 0.3 * weight
        eps = torch.finfo(dtype if isinstance(rate, float) else torch.float32).eps
        torch.testing.assert_close(having.detach(), exact, rtol=100 * eps, atol=0)


def test_large_matrices_have_no_copy_in_full_shape(monkeypatch):
    for name, value in {"STACKED_ON": ("cpu",), "ALONE": 1}.items():
        monkeypatch.setattr(_matrix, name, value)
    monkeypatch.setattr(Guard, "devices", ("cpu",))
    weights = [nn.Parameter(each) for each in drawn(3, SHAPE, torch.bfloat16, 0)]
    optimizer = GaLore(weights, rank=2, refresh=50, lr=RATE, weight_decay=WEAK / RATE, skip=(), fused=True)
    for turn in range(2):
        for weight, gradient in zip(weights, drawn(3, SHAPE, torch.bfloat16, turn), strict=True):
            weight.grad = gradient
        with NewBytes(*weights) as new:
            optimizer.step()
    assert new.most < weights[0].numel() * 2


@pytest.mark.parametrize("factor", [0.999, torch.tensor(0.999)], ids=["host", "device"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_weights_are_rounded_once(dtype, factor):
    weight, added = (each.to(dtype) for each in drawn(2, SHAPE, torch.float64, 3))
    added = (added - 1.5) / 8
    exact = (0.999 * weight.double() + 0.25 * added.double()).to(dtype)
    shrink_and_add(weight, added.clone(), 0.25, factor)
    same = float((weight == exact).double().mean())
    assert same > (0.99 if dtype != torch.float32 else 0.5)
    torch.testing.assert_close(weight, exact, rtol=1.5 * torch.finfo(dtype).eps, atol=0)


def test_a_matrix_that_passes_at_a_rate_of_its_own_is_shrunk_by_its_inner_optimizer(monkeypatch):
    """In the same kernel: alone, decay would be lost. One whose decay is of the gradient is shrunk apart."""
    monkeypatch.setattr(Guard, "devices", ("cpu",))
    for inner, acts in ((torch.optim.AdamW, True), (torch.optim.Adam, False)):
        found = []
        for decay in (0.0, WEAK):
            narrow, other = (nn.Parameter(each) for each in drawn(2, (RANK, 4800), torch.bfloat16, 0))
            projected = nn.Parameter(torch.ones(9, 12))
            named = [("narrow", narrow), ("other", other), ("projected", projected)]
            options = {"rank": RANK, "scale": 0.125, "skip": (), "fused": True}
            optimizer = GaLore(named, inner, lr=RATE, weight_decay=0.0, **options)
            for seed in (1, 2):  # the first step of Adam is as long for all
                optimizer.param_groups[0]["weight_decay"] = decay / RATE if seed == 2 else 0.0
                for weight, gradient in zip((narrow, other), drawn(2, (RANK, 4800), torch.bfloat16, seed), strict=True):
                    weight.grad = gradient - 1.5
                optimizer.step()
            found.append(narrow.detach().double())
        share = float((found[0] - found[1]).sum() / found[0].sum()) / WEAK
        assert (0.9 < share < 1.1) if acts else share == 0


@pytest.mark.parametrize("inner", [torch.optim.Adam, torch.optim.SGD, torch.optim.AdamW])
def test_a_step_that_is_held_changes_no_bit_of_what_passes_in_any_precision(inner, monkeypatch):
    """Decay that bfloat16 loses acts on float32, which is in the same group and comes later."""
    monkeypatch.setattr(Guard, "devices", ("cpu",))
    weights = [nn.Parameter(drawn(1, (RANK, 40), dtype, 0)[0]) for dtype in (torch.bfloat16, torch.float32)]
    named = [("coarse", weights[0]), ("fine", weights[1]), ("projected", nn.Parameter(torch.ones(9, 12)))]
    optimizer = GaLore(named, inner, rank=RANK, lr=1.0, weight_decay=WEAK, skip=(), fused=True, nonfinite="skip")
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    weights[0].grad[3, 4] = torch.nan
    before = [each.detach().clone() for each in weights]
    optimizer.step()
    assert optimizer.skipped == 1
    assert all(torch.equal(one, other) for one, other in zip(before, weights, strict=True))


@pytest.mark.parametrize("known", ["to the host", "to the device"])
@pytest.mark.parametrize(
    "inner", [torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD], ids=lambda inner: inner.__name__
)
def test_each_group_has_its_own_decay(inner, known, monkeypatch):
    """Gradients are zero: what is left of a weight is 1 - lr * weight_decay, where decay does not go by gradients."""
    if known == "to the device":
        monkeypatch.setattr(Guard, "devices", ("cpu",))
    shapes = {"projected": (9, 12), "narrow": (4, 12), "bias": (12,)}
    groups = [{"lr": 0.5, "weight_decay": 0.3, "scale": 0.25}, {"lr": 0.125, "weight_decay": 0.7, "scale": 0.5}]
    for group in groups:
        group["params"] = [(f"{name}{group['lr']}", nn.Parameter(torch.ones(shape))) for name, shape in shapes.items()]
    optimizer = GaLore([dict(group) for group in groups], inner, rank=4, skip=(), fused=True)
    for weight in (each for group in optimizer.param_groups for each in group["params"]):
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    for group in groups:
        strength = group["lr"] * group["weight_decay"]
        projected, narrow, bias = (float(each.detach().mean()) for _, each in group["params"])
        assert [projected, narrow] == pytest.approx([1 - strength] * 2, rel=1e-6)
        if inner is not torch.optim.Adam:  # whose first step has the same length, whatever the gradient
            assert bias == pytest.approx(1 - strength, rel=1e-6)


def test_decay_of_muon_acts():
    found, shape = [], (16, 2400)  # products with a short side are quick in bfloat16 too
    for decay in (0.0, WEAK):
        weights = [nn.Parameter(each) for each in drawn(3, shape, torch.bfloat16, 0)]
        for weight, gradient in zip(weights, drawn(3, shape, torch.bfloat16, 1), strict=True):
            weight.grad = gradient - 1.5
        Muon(weights, lr=0.1, weight_decay=decay / 0.1).step()
        found.append(torch.stack([each.detach().double() for each in weights]))
    assert 0.9 < float((found[0] - found[1]).sum() / found[0].sum()) / WEAK < 1.1


@pytest.fixture
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("shape", [SHAPE, SHAPE[::-1]], ids=str)
def test_decay_acts_on_rows_that_lie_on_several_processes(shape, mesh):
    found = []
    for decay in (0.0, WEAK):
        weight = nn.Parameter(distribute_tensor(drawn(1, shape, torch.bfloat16, 0)[0], mesh, [Shard(0)]))
        weight.grad = distribute_tensor(drawn(1, shape, torch.bfloat16, 1)[0] - 1.5, mesh, [Shard(0)])
        GaLore([("w", weight)], rank=RANK, lr=RATE, weight_decay=decay / RATE, skip=()).step()
        found.append(weight.detach().to_local().double())
    assert 0.9 < float((found[0] - found[1]).sum() / found[0].sum()) / WEAK < 1.1


@pytest.mark.parametrize("shape", [(9, 12), (12, 9)], ids=str)
def test_rows_that_lie_on_several_processes_step_as_those_of_one_and_stay_where_a_step_is_held(
    shape, mesh, monkeypatch
):
    monkeypatch.setattr(Guard, "devices", ("cpu",))
    found = []
    for placed in (torch.clone, partial(distribute_tensor, device_mesh=mesh, placements=[Shard(0)])):
        weight = nn.Parameter(placed(drawn(1, shape, torch.float32, 0)[0]))
        options = {"rank": 4, "lr": 0.25, "weight_decay": 0.5, "nonfinite": "skip", "fused": True}
        optimizer = GaLore([("w", weight)], skip=(), **options)
        gradient = drawn(1, shape, torch.float32, 1)[0]
        for _ in range(2):
            weight.grad = placed(gradient)
            optimizer.step()
            found.append(_matrix.local(weight.detach()).clone())
            gradient[3, 4] = torch.nan
        assert optimizer.skipped == 1
    one, one_held, rows, rows_held = found
    torch.testing.assert_close(rows, one)
    assert torch.equal(one, one_held)
    assert torch.equal(rows, rows_held)

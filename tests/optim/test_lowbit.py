"""Bases in 8 bits: against a slow GaLore that rounds in float64, saved, resumed, in every way of stepping."""

import copy
import io
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from oracle import SlowGaLore
from slow_channels import SlowApollo, SlowFira
from test_fast_step import NewBytes
from test_galore_state import stored
from torch import nn
from training import IN_8_BITS, network, train

from joma.optim import APOLLO, Fira, GaLore, Projected, memory
from joma.optim._matrix import to_stored

pytestmark = [
    pytest.mark.filterwarnings("ignore:mkldnn_matmul failed"),  # of bfloat16, on a CPU that has none
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),  # one process is what is meant
]
LARGEST = 127
OPTIONS = {"rank": 4, "refresh": 3, "lr": 0.01}


def decoded(basis, rows):
    codes = basis.numpy().astype(np.int64)
    assert codes.shape[0] == rows
    return codes / np.sqrt((codes**2).sum(0))


def rounded(directions):
    codes = np.zeros_like(directions)
    for column in range(directions.shape[1]):
        one = directions[:, column]
        codes[:, column] = np.round(one / np.abs(one).max() * LARGEST)
    return codes / np.sqrt((codes**2).sum(0))


class SlowLowbit(SlowGaLore):
    apart = 0.05

    def kept(self, vectors):
        return rounded(vectors)


@pytest.mark.parametrize("on_move", ["keep", "rotate", "reset"])
@pytest.mark.parametrize("shape", [(16, 9), (9, 16), (8, 8)], ids=["tall", "wide", "square"])
def test_equal_to_the_slow_version_that_rounds(shape, on_move):
    start, *gradients = torch.randn(8, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    weight = nn.Parameter(start.clone())
    both = {"refresh": 3, "scale": 0.25, "lr": 0.1, "on_move": on_move}
    options = {"projector": "exact", "weight_decay": 0.1, "projected": IN_8_BITS}
    optimizer = GaLore([{"params": [weight], "rank": 3}], torch.optim.Adam, **options, **both)
    slow = SlowLowbit(start.numpy(), rank=3, decay=0.1, **both)
    for gradient in gradients:
        weight.grad = gradient
        optimizer.step()
        basis = optimizer.state[weight]["basis"]
        assert basis.dtype == torch.int8
        slow.step(gradient.numpy(), decoded(basis, min(shape)))
        torch.testing.assert_close(weight.detach(), torch.from_numpy(slow.weight), rtol=1e-9, atol=1e-9)
    assert np.abs(slow.basis.T @ slow.basis - np.eye(3)).max() > 1e-4  # it is rounded indeed


def test_a_search_begins_with_the_last_directions():
    """So each keeps its sign. A search that begins anywhere has any signs."""
    weight = nn.Parameter(torch.zeros(30, 40))
    optimizer = GaLore([weight], rank=8, refresh=1, lr=0.01, projected=IN_8_BITS)
    drawn = torch.Generator().manual_seed(0)
    falling = torch.diag(0.7 ** torch.arange(30.0))
    gradient = falling @ torch.linalg.qr(torch.randn(40, 30, generator=drawn))[0].T
    bases = []
    for _ in range(4):
        weight.grad = gradient.clone()
        optimizer.step()
        bases.append(decoded(optimizer.state[weight]["basis"], 30))
    for before, after in pairwise(bases):
        assert ((before * after).sum(0) > 0.9).all()


@pytest.mark.parametrize(("kind", "slow"), [(APOLLO, SlowApollo), (Fira, SlowFira)])
def test_the_other_members_use_what_is_kept(kind, slow):
    start, *gradients = torch.randn(6, 9, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    weight = nn.Parameter(start.clone())
    optimizer = kind(
        [weight], rank=3, refresh=2, lr=0.05, eps=1e-30, weight_decay=0.0, growth=None, projected=IN_8_BITS
    )
    oracle = slow(start.numpy(), lr=0.05, eps=1e-30)
    oracle.apart = 0.5
    for gradient in gradients:
        weight.grad = gradient
        optimizer.step()
        oracle.step(gradient.numpy(), decoded(optimizer.state[weight]["basis"], 9))
        np.testing.assert_allclose(weight.detach().numpy(), oracle.weight, rtol=0, atol=1e-11)


# ---- what is kept ---------------------------------------------------------------------------------------------------


def kept_in(optimizer, basis_dtype):
    again = GaLore(network(), projected=Projected(basis_dtype=basis_dtype), **OPTIONS)
    again.load_state_dict(stored(optimizer.state_dict()))
    found = [entry["basis"] for entry in again.state.values() if "basis" in entry]
    directions = [each.double().numpy() if each.is_floating_point() else decoded(each, 24) for each in found]
    return found, directions


def test_files_of_every_precision_are_read_in_every_other():
    """An older file has floating bases; directions are rounded again only where the bits are others."""
    model = network()
    optimizer = GaLore(model, **OPTIONS)
    train(model, optimizer, 2)
    wide = [entry["basis"].double().numpy() for entry in optimizer.state.values() if "basis" in entry]
    for found, directions in zip(kept_in(optimizer, torch.int8)[1], wide, strict=True):
        np.testing.assert_allclose(found, rounded(directions), rtol=0, atol=1e-12)
    few = GaLore(model, projected=IN_8_BITS, **OPTIONS)
    few.load_state_dict(optimizer.state_dict())
    codes = [entry["basis"] for entry in few.state.values() if "basis" in entry]
    assert all(map(torch.equal, kept_in(few, torch.int8)[0], codes))
    directions = [decoded(each, 24) for each in codes]
    for asked, exact in ((None, 1e-7), (torch.bfloat16, 4e-3)):
        for found, wanted in zip(kept_in(few, asked)[1], directions, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=0, atol=exact)


def test_codes_stay_as_they_are_when_packs_are_parted():
    """Rounded from a bfloat16 direction once more, some would be others. Lengths and energies are precise."""
    weights = [nn.Parameter(torch.zeros(300, 301, dtype=torch.bfloat16)) for _ in range(2)]
    optimizer = GaLore(weights, rank=8, refresh=50, lr=0.01, skip=(), projector="random", projected=IN_8_BITS)
    for weight in weights:
        weight.grad = torch.randn(300, 301, generator=torch.Generator().manual_seed(0)).bfloat16()
    optimizer.step()
    before = [optimizer.state[weight]["basis"].clone() for weight in weights]
    (pack,) = optimizer.packs
    assert pack.bases().dtype == torch.bfloat16
    for found, weight in zip(pack.bases().double().numpy(), weights, strict=True):  # to half of bfloat16's last bit
        wanted = decoded(optimizer.state[weight]["basis"], 300)
        assert (np.abs(found - wanted) <= 1.01 * 2**-8 * np.abs(wanted)).all()
    assert optimizer.state[weights[0]]["energies"].dtype == torch.float32
    weights[0].grad = None
    optimizer.step()
    assert len(optimizer.packs) == 2
    assert all(torch.equal(optimizer.state[weight]["basis"], one) for weight, one in zip(weights, before, strict=True))


def test_experts_and_kernels_have_few_bits_too():
    model = nn.Sequential(nn.Conv2d(9, 16, 2))
    model.register_parameter("experts", nn.Parameter(torch.randn(4, 9, 16)))
    make = partial(GaLore, rank=3, projected=Projected(conv=True, experts=True, basis_dtype=torch.int8))
    optimizer = make(model)
    for each in model.parameters():
        each.grad = torch.randn_like(each)
    optimizer.step()
    again = make(copy.deepcopy(model))
    again.load_state_dict(stored(optimizer.state_dict()))
    for each in (optimizer, again):
        shapes = sorted(tuple(entry["basis"].shape) for entry in each.state.values() if "basis" in entry)
        assert shapes == [(4, 9, 3), (16, 3)]
    assert all(
        torch.equal(one.basis, other.basis) for one, other in zip(optimizer.matrices, again.matrices, strict=True)
    )


def test_codes_are_those_of_the_directions_as_they_were_found():
    """Weights in bfloat16: a direction that was rounded to their precision first has about 3 % other codes."""
    gradient = torch.randn(150, 160, generator=torch.Generator().manual_seed(0)).bfloat16()
    weight = nn.Parameter(torch.zeros_like(gradient))
    weight.grad = gradient.clone()
    optimizer = GaLore([weight], rank=8, lr=0.01, skip=(), projector="exact", projected=IN_8_BITS)
    optimizer.step()
    found = optimizer.state[weight]["basis"].numpy().astype(np.int64)
    vectors = np.linalg.svd(gradient.double().numpy())[0][:, :8]
    vectors = vectors * np.sign((vectors * found).sum(0))
    wanted = np.round(vectors / np.abs(vectors).max(0) * 127)
    assert (found != wanted).mean() < 0.005


def test_codes_of_coarse_directions_are_worked_out_precisely():
    """A saved basis in bfloat16 that is kept in 8 bits from now on: in its own precision many codes would be others."""
    coarse = torch.randn(300, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    found = to_stored(coarse, torch.int8).numpy().astype(np.int64)
    vectors = coarse.double().numpy()
    wanted = np.round(vectors / np.abs(vectors).max(0) * 127)
    assert (found != wanted).mean() < 0.002  # what lies between two codes may be rounded to either


@pytest.mark.parametrize("shorter", [200, 201])
def test_the_formula_is_what_is_measured(shorter):
    model = nn.Linear(300, shorter, bias=False)
    optimizer = GaLore(model, rank=10, projected=IN_8_BITS)
    model(torch.ones(2, 300)).sum().backward()
    optimizer.step()
    (row,) = memory(model, optimizer).rows
    assert row.formula.projections == 10 * shorter
    assert row.measured.projections == row.formula.projections + 4 * 10  # the energies
    file = io.BytesIO()
    torch.save(optimizer.state[model.weight]["basis"].clone(), file)
    assert file.tell() < row.formula.projections + 2000


def test_one_basis_at_a_time_is_unpacked():
    """Beside what a step with floating bases makes, there is little more than one basis, however many there are."""
    most = {}
    for basis_dtype in (None, torch.int8):
        weights = [nn.Parameter(torch.randn(64, 65)) for _ in range(32)]
        optimizer = GaLore(weights, rank=16, refresh=50, lr=0.01, skip=(), projected=Projected(basis_dtype=basis_dtype))
        for weight in weights:
            weight.grad = torch.randn_like(weight)
        optimizer.step()
        assert max(len(pack.matrices) for pack in optimizer.packs) > 8
        with NewBytes() as seen:
            optimizer.step()
        most[basis_dtype] = seen.most
    assert most[torch.int8] <= most[None] + 3 * 4 * 64 * 16

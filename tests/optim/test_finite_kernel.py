"""The kernel that looks whether a large gradient is finite. On a CPU it runs under Triton's interpreter."""

import math
import os

import pytest
import quick_interpreter
import torch

from joma.optim import _update

pytest.importorskip("triton", reason="Triton is not installed here")

from joma.optim import _finite_triton
from joma.optim._finite_triton import BLOCK, covers, zero_if_finite

DEVICE = os.environ.get("JOMA_TEST_DEVICE", "cpu")
quick_interpreter.install()
KINDS = [torch.float32, torch.float16] if DEVICE == "cpu" else [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("entries", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK])
def test_one_entry_that_is_not_finite_is_seen_wherever_it_is(entries, dtype):
    """What lies behind the gradient is not read: it is not finite either."""
    memory = torch.full((entries + 2 * BLOCK,), math.nan, dtype=dtype, device=DEVICE)
    gradient = memory[:entries].fill_(torch.finfo(dtype).max)
    assert zero_if_finite(gradient).item() == 0
    assert zero_if_finite(gradient).dtype == dtype
    for at in {0, entries // 2, entries - 1}:
        for wrong in (math.nan, math.inf, -math.inf):
            before = gradient[at].item()
            gradient[at] = wrong
            assert zero_if_finite(gradient).item() == math.inf, (at, wrong)
            gradient[at] = before
    gradient.fill_(-torch.finfo(dtype).max)
    assert zero_if_finite(gradient).item() == 0


def test_what_has_gaps_or_is_of_another_kind_is_left_to_torch():
    memory = torch.zeros(6, 8)
    assert covers(memory)
    assert covers(memory.mT)
    assert not covers(memory[:, ::2])
    assert not covers(memory[:, :4])
    assert not covers(memory.double())  # 1e300 is finite there, and would not be in float32
    assert not covers(torch.zeros(3, 4, 5).transpose(0, 1))
    assert covers(torch.zeros(8))
    assert not covers(torch.zeros(8)[::2])  # one axis has no other order
    assert not covers(torch.zeros(1).expand(8))
    assert covers(torch.zeros(()))


@pytest.mark.skipif(DEVICE == "cpu", reason="the kernel is for a GPU")
def test_large_gradients_on_a_gpu_are_looked_at_by_the_kernel(monkeypatch):
    monkeypatch.setattr(_update, "LARGE", 64)
    looked = []
    monkeypatch.setattr(_finite_triton, "zero_if_finite", lambda one: looked.append(one.shape) or zero_if_finite(one))
    sizes = [(4, 4), (64, 64), (8, 8), (80, 64)]
    for dtype in (torch.bfloat16, torch.float32):
        for wrong in (None, *range(len(sizes))):
            gradients = [torch.randn(size, device=DEVICE, dtype=dtype) for size in sizes]
            if wrong is not None:
                gradients[wrong][-1, -1] = math.nan
            looked.clear()
            found = _update.are_finite(gradients).tolist()
            assert found == [at != wrong for at in range(len(sizes))]
            assert looked == [torch.Size(size) for size in sizes[1:]]


@pytest.mark.skipif(DEVICE == "cpu", reason="the kernel is for a GPU")
def test_large_gradients_that_the_kernel_does_not_cover_are_seen_all_the_same(monkeypatch):
    """What lies between their entries is not finite, and what is large in float64 is."""
    monkeypatch.setattr(_update, "LARGE", 16)
    for wrong in (False, True):
        memory = torch.full((8, 16), math.nan, device=DEVICE)
        gaps = memory[:, ::2].fill_(1.0)
        wide = torch.full((8, 16), 1e300, device=DEVICE, dtype=torch.float64)
        row = torch.full((64,), math.nan, device=DEVICE)[::2].fill_(1.0)
        if wrong:
            gaps[7, 7] = wide[7, 15] = row[31] = math.inf
        assert _update.are_finite([gaps, wide, row]).tolist() == [not wrong] * 3

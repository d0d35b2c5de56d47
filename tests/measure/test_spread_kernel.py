"""The kernel of the spread against one that goes key by key in float64; on a CPU under Triton's interpreter.

With JOMA_TEST_DEVICE=cuda the same tests run compiled, in half precision too.
"""

import os
from itertools import product

import pytest
import quick_interpreter
import torch
from later import some_now
from spread_oracle import slow_spread

from joma.measure import spread as room
from joma.measure._attention_problem import Problem

pytest.importorskip("triton", reason="Triton is not installed here")

from joma.measure import _spread_triton as kernel

DEVICE = os.environ.get("JOMA_TEST_DEVICE", "cpu")
quick_interpreter.install()
BLOCKS = (16, 16, 4, 2) if DEVICE == "cpu" else None
DTYPES = [torch.float32] if DEVICE == "cpu" else [torch.float32, torch.bfloat16, torch.float16]

# By name: batch, heads, key-value heads, queries, keys, causal.
CASES = {
    "causal, grouped heads": (2, 4, 2, 21, 21, True),
    "fewer queries than keys": (1, 2, 1, 18, 40, True),  # the last block sees two blocks of keys in full
    "all keys": (1, 2, 2, 18, 35, False),
    "fewer keys than queries": (2, 1, 1, 20, 9, False),
}


def draw(batch, heads, kv_heads, queries, keys, dtype):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(batch, heads, queries, 16, generator=generator) + torch.randn(heads, 1, 16, generator=generator)
    k = torch.randn(batch, kv_heads, keys, 16, generator=generator) + 5
    return q.to(dtype), k.to(dtype), torch.rand(batch, queries, generator=generator) > 0.4


@pytest.mark.parametrize(("padded", "case", "dtype"), some_now(product([True, False], CASES, DTYPES), every=3))
def test_the_kernel_is_as_key_by_key(case, padded, dtype):
    *shape, causal = CASES[case]
    q, k, real = draw(*shape, dtype)
    real = real if padded else None
    given = (
        torch.where(real[:, None, :, None], q, torch.nan) if padded else q
    )  # a query that is padding may be anything
    problem = Problem.of(given.to(DEVICE), k.to(DEVICE), None, causal=causal)
    found = kernel.launch(problem, None if real is None else real.to(DEVICE), BLOCKS)
    got = torch.stack(found).cpu()
    want = slow_spread(q, k, causal=causal, query_padding=real)
    size = want[1:3].sum(0)
    assert ((got[:3] - want[1:4]) / size).abs().max() < 1e-5
    torch.testing.assert_close(got[3], want[5], rtol=1e-9, atol=1e-9)


def test_keys_far_from_zero_lose_no_digits():
    q, k, _ = draw(*CASES["causal, grouped heads"][:-1], torch.float32)
    found = torch.stack(kernel.launch(Problem.of(q.to(DEVICE), (k + 100).to(DEVICE), None), None, BLOCKS)).cpu()
    want = slow_spread(q, k + 100)
    assert ((found[:3] - want[1:4]) / want[1:3].sum(0)).abs().max() < 1e-5


def test_a_view_of_queries_in_another_order_of_memory():
    q, k, _ = draw(*CASES["causal, grouped heads"][:-1], torch.float32)
    mixed = [x.transpose(1, 2).contiguous().transpose(1, 2).to(DEVICE) for x in (q, k)]
    found = torch.stack(kernel.launch(Problem.of(*mixed, None), None, BLOCKS)).cpu()
    torch.testing.assert_close(found[:3], slow_spread(q, k)[1:4], rtol=1e-5, atol=1e-5)


def test_no_query_that_counts():
    q, k, real = draw(*CASES["causal, grouped heads"][:-1], torch.float32)
    none = torch.zeros_like(real).to(DEVICE)
    found = kernel.launch(Problem.of(q.to(DEVICE), k.to(DEVICE), None), none, BLOCKS)
    assert all(part.isnan().all() for part in found)


def test_what_the_kernel_takes():
    q, k = (x.to(torch.bfloat16) for x in torch.zeros(2, 1, 2, 8, 16))
    assert kernel.covers(Problem.of(q, k, None))
    assert kernel.covers(Problem.of(q, k, None, causal=False))
    for given in ({"window": 3}, {"softcap": 1.0}, {"cu_seqlens": [0, 8]}, {"bias": torch.zeros(8)},
                  {"key_padding": torch.ones(1, 8, dtype=torch.bool)}):  # fmt: skip
        assert not kernel.covers(Problem.of(q, k, None, **given))
    assert not kernel.covers(Problem.of(q.float(), k.float(), None))  # float32 has no tensor cores
    long = torch.zeros(1, 1, 1, 16, dtype=torch.bfloat16).expand(1, 1, kernel.LONGEST + 1, 16)
    assert not kernel.covers(Problem.of(long, long, None))


@pytest.mark.skipif(DEVICE == "cpu", reason="compiled kernels run on a GPU")
def test_on_a_gpu_spread_takes_the_kernel(monkeypatch):
    q, k = (x.to(DEVICE, torch.bfloat16) for x in torch.randn(2, 1, 2, 70, 16))
    monkeypatch.setattr(room, "_sums", None)
    assert bool((room.spread(q, k).variance > 0).all())

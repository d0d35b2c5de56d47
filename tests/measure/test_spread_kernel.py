"""The kernel of the spread against one that goes key by key in float64; on a CPU under Triton's interpreter.

With JOMA_TEST_DEVICE=cuda the same tests run compiled, in half precision too.
"""

import os
from itertools import pairwise, product

import pytest
import quick_interpreter
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
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

# By name: batch, heads, key-value heads, queries, keys, and the mask.
CASES = {
    "causal, grouped heads": ((2, 4, 2, 21, 21), {}),
    "window": ((1, 2, 1, 20, 53), {"window": 21}),  # the last block: one of keys in part, one in full, one in part
    "window that leaves out one key": ((1, 2, 1, 16, 48), {"window": 47}),  # the first tile is full but for that
    "packed": ((1, 2, 1, 53, 53), {"cu_seqlens": [0, 5, 6, 50, 53]}),  # a block of two documents, one inside another
    "fewer queries than keys": ((1, 2, 1, 18, 40), {}),  # the last block sees two blocks of keys in full
    "packed, all keys": ((2, 1, 1, 53, 53), {"cu_seqlens": [[0, 5, 45, 53], [0, 1, 53, 53]], "causal": False}),
    "a bias by key": ((2, 2, 1, 21, 21), {"bias": (1, 2, 1, 21)}),
    "all keys": ((1, 2, 2, 18, 35), {"causal": False}),
    "narrow window both ways": ((1, 1, 1, 20, 20), {"window": 5, "causal": False}),
    "window both ways": ((1, 1, 1, 37, 37), {"window": 20, "causal": False}),
    "packed, window": ((1, 1, 1, 53, 53), {"cu_seqlens": [0, 1, 49, 53], "window": 19}),
    "fewer keys than queries": ((2, 1, 1, 20, 9), {"causal": False}),
    "a bias that hides keys": ((2, 2, 1, 21, 21), {"bias": (2, 2, 1, 21), "hidden": True, "cu_seqlens": [0, 9, 21]}),
    "own scale": ((1, 1, 1, 18, 18), {"scale": 0.7}),
}


def draw(batch, heads, kv_heads, queries, keys, dtype):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(batch, heads, queries, 16, generator=generator) + torch.randn(heads, 1, 16, generator=generator)
    k = torch.randn(batch, kv_heads, keys, 16, generator=generator) + 5
    return q.to(dtype), k.to(dtype), torch.rand(batch, queries, generator=generator) > 0.4


def options(given):
    made = {name: value for name, value in given.items() if name != "hidden"}
    if "bias" in made:
        bias = 3 * torch.randn(made["bias"], generator=torch.Generator().manual_seed(1)) + 40
        made["bias"] = bias
        if given.get("hidden"):
            bias[0, 0, 0, :4] = -torch.inf  # the first queries of this head see nothing
            bias[1, :, 0, 12] = -torch.inf
    return made


def by_kernel(q, k, real=None, **given):
    given = {name: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for name, x in given.items()}
    problem = Problem.of(q.to(DEVICE), k.to(DEVICE), None, **given)
    return torch.stack(kernel.launch(problem, None if real is None else real.to(DEVICE), BLOCKS)).cpu()


def close(got, want, tolerance=1e-5):
    size = (want[1:3].sum(0) + want[4].abs()).clamp(min=0.01)  # a query of one key has no spread
    assert ((got[:4] - want[1:5]) / size).abs().max() < tolerance
    torch.testing.assert_close(got[4], want[5], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("padded", "case", "dtype"), some_now(product([True, False], CASES, DTYPES), every=3))
def test_the_kernel_is_as_key_by_key(case, padded, dtype):
    shape, mask = CASES[case]
    q, k, real = draw(*shape, dtype)
    real, mask = real if padded else None, options(mask)
    # A query that is padding may be anything.
    given = torch.where(real[:, None, :, None], q, torch.nan) if padded else q
    close(by_kernel(given, k, real, **mask), slow_spread(q, k, query_padding=real, **mask))


@settings(max_examples=5, deadline=None)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=5).filter(any),
    st.booleans(),
    st.none() | st.integers(1, 35),
    st.sampled_from([(1, 1), (2, 1)]),
)
def test_the_kernel_on_packed_rows(lengths, causal, window, heads):
    ends = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    q, k, _ = draw(1, *heads, ends[-1], ends[-1], torch.float32)
    mask = {"cu_seqlens": ends, "causal": causal, "window": window}
    close(by_kernel(q, k, **mask), slow_spread(q, k, **mask))


@settings(max_examples=5, deadline=None)
@given(st.integers(1, 40), st.integers(0, 30), st.booleans(), st.integers(1, 45))
def test_the_kernel_under_any_window(queries, more, causal, window):
    q, k, _ = draw(1, 1, 1, queries, queries + more, torch.float32)
    mask = {"causal": causal, "window": window}
    close(by_kernel(q, k, **mask), slow_spread(q, k, **mask))


@pytest.mark.parametrize("case", ["causal, grouped heads", "window", "all keys"])
def test_keys_far_from_zero_lose_no_digits(case):
    shape, mask = CASES[case]
    q, k, _ = draw(*shape, torch.float32)
    close(by_kernel(q, k + 100, **mask), slow_spread(q, k + 100, **mask))


@pytest.mark.parametrize("causal", [True, False])
def test_documents_far_from_each_other_lose_few_digits(causal):
    q, k, _ = draw(1, 2, 1, 53, 53, torch.float32)
    mask = {"cu_seqlens": [0, 5, 6, 30, 53], "causal": causal}
    for start, stop in pairwise(mask["cu_seqlens"]):
        k[:, :, start:stop] += start  # up to 30 times as far as keys of one document lie from each other
    close(by_kernel(q, k, **mask), slow_spread(q, k, **mask))


def test_a_bias_far_from_zero_loses_no_digits():
    q, k, _ = draw(1, 2, 1, 40, 40, torch.float32)
    mask = {"bias": 50 * torch.arange(40.0).expand(1, 1, 1, 40), "window": 3}
    close(by_kernel(q, k, **mask), slow_spread(q, k, **mask))


def test_a_view_of_queries_in_another_order_of_memory():
    q, k, _ = draw(2, 4, 2, 21, 21, torch.float32)
    mixed = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k)]
    close(by_kernel(*mixed), slow_spread(q, k))


def test_no_query_that_counts():
    q, k, real = draw(2, 4, 2, 21, 21, torch.float32)
    assert by_kernel(q, k, torch.zeros_like(real)).isnan().all()


def test_what_the_kernel_takes():
    q, k = (x.to(torch.bfloat16) for x in torch.zeros(2, 1, 2, 8, 16))
    for mask in ({}, {"causal": False}, {"window": 3}, {"cu_seqlens": [0, 8]}, {"bias": torch.zeros(8)},
                  {"cu_seqlens": [0, 3, 8], "window": 2}):  # fmt: skip
        assert kernel.covers(Problem.of(q, k, None, **mask))
    for mask in ({"softcap": 1.0}, {"bias": torch.zeros(8, 8)}, {"key_padding": torch.ones(1, 8, dtype=torch.bool)}):
        assert not kernel.covers(Problem.of(q, k, None, **mask))
    assert not kernel.covers(Problem.of(q, k[:, :, :3], None, causal=False, window=2))  # the first queries see nothing
    assert not kernel.covers(Problem.of(q.float(), k.float(), None))  # float32 has no tensor cores
    long = torch.zeros(1, 1, 1, 16, dtype=torch.bfloat16).expand(1, 1, kernel.LONGEST + 1, 16)
    assert not kernel.covers(Problem.of(long, long, None))
    assert kernel.covers(Problem.of(long, long, None, window=1000))
    assert kernel.covers(Problem.of(long, long, None, cu_seqlens=[0, 20_000, kernel.LONGEST + 1]))


@pytest.mark.skipif(DEVICE == "cpu", reason="compiled kernels run on a GPU")
def test_on_a_gpu_spread_takes_the_kernel(monkeypatch):
    q, k = (x.to(DEVICE, torch.bfloat16) for x in torch.randn(2, 1, 2, 70, 16))
    monkeypatch.setattr(room, "_sums", None)
    assert bool((room.spread(q, k).variance > 0).all())

"""The kernel of attention statistics against the float64 matrix, on every kind of mask.

On a CPU it runs under Triton's interpreter, in float32 (its bf16 product is wrong there). With JOMA_TEST_DEVICE=cuda
the same tests run compiled, in bf16 too. Either way time goes by the number of programs and of kinds of kernels, so
each shape is the smallest that meets the edges of its mask in blocks of 16 queries and 16 keys.
"""

import itertools
import os
from dataclasses import replace

import pytest
import quick_interpreter
import torch
from attention_masks import close, options
from hypothesis import given, settings
from hypothesis import strategies as st
from sparsity_oracle import matrix

from joma.measure import attention
from joma.measure._attention_problem import Problem, Sink
from joma.measure.attention import attention_stats, attention_stats_reference

pytest.importorskip("triton", reason="Triton is not installed here")

from joma.host import kernels
from joma.measure._attention_triton import _bytes, covers, launch
from joma.measure._tiles_triton import documents

DEVICE = os.environ.get("JOMA_TEST_DEVICE", "cpu")
quick_interpreter.install()
TOLERANCE = {torch.float32: 5e-5, torch.bfloat16: 2e-3}
BLOCKS = (16, 16, 4, 2) if DEVICE == "cpu" else None

# By name: batch, heads, key-value heads, queries, keys, and the mask.
CASES = {
    "grouped heads": ((2, 4, 2, 5, 37), {}),
    "causal": ((1, 1, 1, 20, 53), {}),  # the last block sees two blocks of keys in full and one in part
    "all keys": ((1, 2, 1, 20, 37), {"causal": False}),
    "fewer keys than queries": ((1, 1, 1, 20, 9), {"causal": False}),  # the first queries have no own key
    "window": ((1, 1, 1, 20, 53), {"window": 21}),  # the last block: one of keys in part, one in full, one in part
    "window that leaves out one key": ((1, 1, 1, 16, 48), {"window": 47}),  # the first tile is full but for that
    "narrow window": ((1, 1, 1, 37, 37), {"window": 7}),
    "window both ways": ((1, 1, 1, 37, 37), {"window": 20, "causal": False}),  # the second block: as above
    "narrow window both ways": ((1, 1, 1, 20, 20), {"window": 5, "causal": False}),
    "soft cap": ((1, 1, 1, 5, 20), {"softcap": 4.0}),
    "alibi": ((2, 2, 1, 5, 20), {"bias": (1, 2, 1, 20)}),
    "full bias": ((2, 2, 1, 5, 20), {"bias": (2, 2, 5, 20)}),
    "sinks": ((1, 2, 1, 5, 20), {"sinks": True}),
    "padding": ((2, 1, 1, 20, 20), {"key_padding": True}),
    "own scale": ((1, 1, 1, 5, 20), {"scale": 0.3}),
    "packed": ((1, 1, 1, 37, 37), {"cu_seqlens": [0, 5, 6, 34, 37]}),  # the last block of queries is in two documents
    "documents of one token": ((1, 1, 1, 20, 20), {"cu_seqlens": [*range(19), 20]}),
    "documents that end with a tile": ((1, 2, 1, 48, 48), {"cu_seqlens": [0, 16, 48]}),
    "packed, all keys": ((2, 1, 1, 37, 37), {"cu_seqlens": [[0, 5, 29, 37], [0, 1, 37, 37]], "causal": False}),
    "packed, window": ((1, 1, 1, 53, 53), {"cu_seqlens": [0, 1, 49, 53], "window": 19}),
    "everything": (
        (2, 2, 1, 20, 20),
        {
            "cu_seqlens": [0, 11, 20],
            "window": 7,
            "softcap": 6.0,
            "bias": (2, 2, 20, 20),
            "sinks": True,
            "key_padding": True,
        },
    ),
}

F32, BF16 = torch.float32, torch.bfloat16
KINDS = [(case, F32) for case in CASES]
if DEVICE != "cpu":
    KINDS = [*((case, BF16) for case in CASES), *((case, F32) for case in ("causal", "packed", "everything"))]


def draw(seed, batch, heads, kv_heads, queries, keys, dtype=torch.float32, spread=1.0):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, heads, queries, 16, generator=generator) * spread
    k, v = torch.randn(2, batch, kv_heads, keys, 16, generator=generator)
    return tuple(tensor.to(dtype) for tensor in (q, k, v))


def kernel(q, k, v=None, **given):
    given = {name: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for name, x in given.items()}
    sinks = given.pop("sinks", None)
    problem = Problem.of(q.to(DEVICE), k.to(DEVICE), None if v is None else v.to(DEVICE), **given)
    assert covers(problem)
    found = launch(problem, BLOCKS)
    return found if sinks is None else Sink.of(problem, sinks, None, None, counted=False).applied(found)


@pytest.mark.parametrize(("case", "dtype"), KINDS)
def test_the_kernel_agrees_with_the_matrix(case, dtype):
    shape, mask = CASES[case]
    q, k, v = draw(1, *shape, dtype=dtype)
    given = options(mask, heads=shape[1], keys=shape[4])
    *stats, output = kernel(q, k, v, **given)
    close(stats, attention_stats_reference(q, k, **given), TOLERANCE[dtype])
    weights, _ = matrix(q, k, **given)
    if "sinks" not in mask:
        entropy = torch.special.entr(weights).sum(-1)
        torch.testing.assert_close(stats[0].double().cpu(), entropy, rtol=1e-5, atol=TOLERANCE[dtype])
    exact = weights @ v.double().repeat_interleave(shape[1] // shape[2], 1)
    torch.testing.assert_close(output.double().cpu(), exact, rtol=0, atol=1e-5 if dtype == torch.float32 else 2e-2)


def test_the_kernel_without_values_reads_nothing_beyond_the_bias():
    """The last block has rows that are no queries. What lies behind the bias would overflow: warnings are errors."""
    q, k, _ = draw(1, 1, 2, 1, 20, 20)
    size = 2 * 20 * 20
    memory = torch.full((size + 64 * 20,), 3e38, device=DEVICE)
    bias = memory[:size].view(1, 2, 20, 20).normal_()
    close(kernel(q, k, bias=bias), attention_stats_reference(q, k, bias=bias.cpu()), TOLERANCE[q.dtype])


@pytest.mark.parametrize("shape", [(2, 1, 20, 37), (1, 2, 20, 37), (2, 2, 1, 37)])
def test_the_kernel_takes_a_mask_as_it_is(shape):
    """A row, a head and a sample without keys among them; the first key and the own one are hidden from some."""
    q, k, v = draw(3, 2, 2, 1, 20, 37)
    seen = torch.rand(shape, generator=torch.Generator().manual_seed(0)) > 0.5
    seen[0, 0, -1] = False
    problem = Problem.of(*(x.to(DEVICE) for x in (q, k, v)), causal=False, bias=seen.to(DEVICE), mask_stays=True)
    assert problem.bias.dtype == torch.bool
    *stats, output = launch(problem, BLOCKS)
    added = torch.zeros(shape, dtype=torch.float64).masked_fill(~seen, -torch.inf)
    close(stats, attention_stats_reference(q, k, causal=False, bias=added), TOLERANCE[q.dtype])
    weights, _ = matrix(q, k, causal=False, bias=added)
    exact = weights @ v.double().repeat_interleave(2, 1)
    torch.testing.assert_close(output.double().cpu(), exact, rtol=0, atol=1e-5)


def test_a_mask_has_the_gradients_of_what_it_hides(monkeypatch):
    """The kernel takes it as it is; the backward pass adds it."""
    monkeypatch.setattr(attention, "_fastest", lambda problem: lambda given: launch(given, BLOCKS))
    q, k, _ = draw(4, 1, 2, 1, 5, 20)
    seen = torch.rand(2, 5, 20, generator=torch.Generator().manual_seed(1)) > 0.5
    seen[..., 0] = True
    mine = q.to(DEVICE).requires_grad_()
    found = attention_stats(mine, k.to(DEVICE), causal=False, bias=seen.to(DEVICE)).entropy
    (gradient,) = torch.autograd.grad(found.sum(), mine)
    plain = q.double().requires_grad_()
    logits = (plain @ k.double().mT / 16**0.5).masked_fill(~seen, -torch.inf)
    entropy = -(logits.softmax(-1) * logits.log_softmax(-1).masked_fill(~seen, 0.0)).sum(-1)
    torch.testing.assert_close(found.double().cpu(), entropy, rtol=0, atol=TOLERANCE[q.dtype])
    torch.testing.assert_close(gradient.double().cpu(), torch.autograd.grad(entropy.sum(), plain)[0], rtol=0, atol=1e-4)


def test_a_mask_is_not_copied():
    seen = torch.rand(1, 1, 5, 7).gt(0.5).expand(2, 3, 5, 7)
    shown = _bytes(seen)
    assert (shown.dtype, shown.stride(), shown.data_ptr()) == (torch.int8, seen.stride(), seen.data_ptr())
    assert torch.equal(shown != 0, seen)


@pytest.mark.skipif(DEVICE == "cpu", reason="triton's interpreter compiles nothing that could be kept")
def test_a_kernel_that_is_kept_serves_only_what_it_was_compiled_for():
    """Other addresses, steps, lengths, scales and kinds of numbers, each twice, between each other."""
    for turn in range(2):
        for dtype in (F32, BF16):
            for queries, scale, shift, masked in itertools.product((16, 17), (0.3, 1.0), (0, 1), (False, True)):
                q, k, _ = draw(queries + turn, 2, 2, 1, queries, 32, dtype=dtype)
                memory = torch.empty(q.numel() + shift, dtype=dtype, device=DEVICE)
                there = memory[shift:].view_as(q).copy_(q)
                seen = torch.ones(queries, 32, dtype=torch.bool).tril(3) if masked else None
                found = attention_stats(
                    there, k.to(DEVICE), scale=scale, bias=None if seen is None else seen.to(DEVICE)
                )
                close(found, attention_stats_reference(q, k, scale=scale, bias=seen), TOLERANCE[dtype])
    assert len(kernels._FOUND) >= 16


@pytest.mark.skipif(DEVICE == "cpu", reason="triton's interpreter compiles nothing that could be kept")
def test_few_kernels_are_kept(monkeypatch):
    monkeypatch.setattr(kernels, "MOST", 3)
    kernels._FOUND.clear()
    for queries in range(16, 26):
        q, k, _ = draw(0, 1, 1, 1, queries, queries, dtype=BF16)
        close(attention_stats(q.to(DEVICE), k.to(DEVICE)), attention_stats_reference(q, k), TOLERANCE[BF16])
        assert 1 <= len(kernels._FOUND) <= 3


@pytest.mark.long
@settings(max_examples=4, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 40),
    st.integers(0, 30),
    st.booleans(),
    st.none() | st.integers(1, 45),
    st.sampled_from([1.0, 16.0]),
)
def test_the_kernel_on_any_shape(seed, queries, more, causal, window, spread):
    q, k, _ = draw(seed, 1, 1, 1, queries, queries + more, spread=spread)
    stats = kernel(q, k, causal=causal, window=window)
    close(stats, attention_stats_reference(q, k, causal=causal, window=window), 5e-5)
    assert (stats[0] >= 0).all()


@settings(max_examples=4, deadline=None)
@given(
    st.integers(0, 10**6),
    st.lists(st.integers(0, 25), min_size=1, max_size=5).filter(any),
    st.booleans(),
    st.none() | st.integers(1, 35),
)
def test_the_kernel_on_packed_rows(seed, lengths, causal, window):
    ends = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    q, k, _ = draw(seed, 1, 1, 1, ends[-1], ends[-1])
    given = {"cu_seqlens": ends, "causal": causal, "window": window}
    close(kernel(q, k, **given), attention_stats_reference(q, k, **given), 1e-4)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(0, 400), min_size=1, max_size=6).filter(any), st.sampled_from([torch.int32, torch.int64]))
def test_every_token_knows_its_document(lengths, kind):
    """Empty documents repeat a number, also at the beginning and at the end."""
    ends = torch.tensor([0, *lengths]).cumsum(0)
    keys = int(ends[-1])
    q = torch.zeros(2, 1, keys, 16, device=DEVICE)
    other = torch.where(ends < keys, 0, keys)  # one document, and empty ones
    given = torch.stack([ends, other]).to(DEVICE, kind)
    begin, end, stride = documents(Problem.of(q, q, None, cu_seqlens=given))
    assert stride == keys
    for token in range(keys):
        at = max(i for i, start in enumerate(ends.tolist()) if start <= token)
        assert (begin[0, token], end[0, token]) == (ends[at], ends[at + 1])
    assert (begin[1] == 0).all()
    assert (end[1] == keys).all()


@pytest.mark.parametrize("wrong", [[0, 9, 7, 20], [1, 9, 9, 20], [0, 9, 9, 19], [0, 30, 9, 20]])
def test_wrong_documents_that_nobody_looked_at_give_nan(wrong):
    q, k, v = (x.to(DEVICE) for x in draw(0, 1, 2, 1, 20, 20))
    problem = Problem.of(q, k, v, cu_seqlens=[0, 9, 9, 20])
    found = launch(replace(problem, cu_seqlens=torch.tensor([wrong], device=DEVICE)), BLOCKS)
    assert all(part.isnan().all() for part in found)


@pytest.mark.skipif(DEVICE == "cpu", reason="there is nobody to wait for")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("where", ["cpu", DEVICE])
def test_packed_text_waits_for_no_gpu(where):
    """Whoever waits is refused by torch: that is what is asserted."""
    q, k, _ = (x.to(DEVICE, torch.bfloat16) for x in draw(0, 1, 2, 1, 70, 70))
    ends = torch.tensor([0, 30, 70], device=where)
    attention_stats(q, k, cu_seqlens=ends)  # compiled
    try:
        torch.cuda.set_sync_debug_mode("error")
        attention_stats(q, k, cu_seqlens=ends)
    finally:
        torch.cuda.set_sync_debug_mode("default")

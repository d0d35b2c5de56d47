"""Kernels of sparsity against the float64 matrix, on every kind of mask.

On a CPU they run under Triton's interpreter, in float32. With JOMA_TEST_DEVICE=cuda they run compiled, in bf16 too.
The interpreter's time goes by the number of programs, so there each shape is the smallest that meets the edges of its
mask in blocks of 16 queries and 16 keys; a compiler's goes by the kinds of kernels, so there all have as many heads.
"""

import os
from functools import cache

import pytest
import quick_interpreter
import sparsity_oracle as oracle
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joma.measure import sparsity
from joma.measure._attention_problem import Problem
from joma.measure._sparsity_blocks import Attention, part_of, seen_keys

triton = pytest.importorskip("triton", reason="Triton is not installed here")

from joma.measure._sparsity_cuda import Blocks, Ends, Passes, top  # noqa: E402

DEVICE = os.environ.get("JOMA_TEST_DEVICE", "cpu")
quick_interpreter.install()
SMALL = Blocks(16, 16, 4, 2) if DEVICE == "cpu" else None
PADDING = torch.rand(2, 20, generator=torch.Generator().manual_seed(5)) > 0.4
PADDING[0, :7] = False  # the first queries of this sample see nothing at all
NUMBERS = torch.randn(2, 20, 20, generator=torch.Generator().manual_seed(6))
ADDED = torch.where(NUMBERS > 1, -torch.inf, NUMBERS)
# By name: batch, heads, queries, keys, and the mask. There is one key-value head.
MASKS = {
    "causal": ((1, 1, 20, 53), {}),  # the last block sees two blocks of keys in full and one in part
    "all keys": ((1, 1, 20, 37), {"causal": False}),
    "window": ((1, 1, 20, 53), {"window": 21}),  # the last block: one of keys in part, one in full, one in part
    "window both ways": ((1, 1, 37, 37), {"window": 20, "causal": False}),  # the second block: as above
    "soft cap": ((1, 1, 20, 20), {"softcap": 2.0}),
    "alibi": ((1, 2, 20, 20), {"bias": NUMBERS[None, :, :1]}),
    "masking bias": ((1, 2, 20, 20), {"bias": ADDED[None]}),
    "padding": ((2, 1, 20, 20), {"key_padding": PADDING}),
    "learned logits": ((1, 2, 20, 20), {"sinks": NUMBERS[:, 0, 0]}),
    "learned key": ((1, 2, 20, 20), {"sink_key": NUMBERS[:1, 0, :16]}),
    "packed": ((1, 1, 37, 37), {"cu_seqlens": [0, 5, 6, 34, 37]}),
    "packed by sample": ((2, 1, 21, 21), {"cu_seqlens": [[0, 5, 17, 21], [0, 1, 21, 21]], "causal": False}),
    "everything": (
        (1, 2, 20, 20),
        {
            "cu_seqlens": [0, 12, 20],
            "window": 9,
            "softcap": 3.0,
            "bias": ADDED[None],
            "sinks": NUMBERS[:, 0, 0],
            "key_padding": PADDING,
        },
    ),
}
F32, BF16 = torch.float32, torch.bfloat16
# The interpreter is slow: masks that differ from others only before the kernels are left to the blocks' tests.
MOST = ["causal", "window", "window both ways", "padding", "learned key", "packed by sample", "masking bias"]
LATER = ("window", "masking bias")  # "window both ways" and "everything" go the same ways


def of_each(*masks):
    return [pytest.param(mask, F32, marks=[pytest.mark.long] * (mask in LATER)) for mask in masks]


MASSES = of_each(*MOST, "everything")
TOP = of_each("window", "masking bias", "packed by sample", "everything")
if DEVICE != "cpu":
    MASSES = TOP = [*((mask, BF16) for mask in MASKS), ("causal", F32), ("everything", F32)]


def draw(seed, batch, heads, queries, keys, width=16, spread=2.0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, heads, queries, width, generator=generator) * spread
    return q.to(dtype), torch.randn(batch, 1, keys, width, generator=generator).to(dtype)


def on_device(options):
    return {name: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for name, x in options.items()}


def passes(q, k, causal=True, blocks=SMALL, **options):
    return Passes.of(Attention.of(q.to(DEVICE), k.to(DEVICE), causal, **on_device(options)), blocks)


@cache
def solved(mask, dtype):
    shape, options = MASKS[mask]
    shape = shape if DEVICE == "cpu" else (2, 2, *shape[2:])
    q, k = draw(0, *shape, dtype=dtype)
    if "key_padding" in options:
        options = {**options, "key_padding": options["key_padding"][: shape[0]]}
    return passes(q, k, **options), *oracle.matrix(q, k, **options)


def close(found, wanted, tolerance=4e-6):
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double().cpu(), wanted, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("mask", "dtype"), MASSES)
def test_masses_agree_with_the_matrix(mask, dtype):
    found, p, seen = solved(mask, dtype)
    first = oracle.sink_mass(p, 4, MASKS[mask][1].get("cu_seqlens"))
    assert (found.seen.cpu() == seen.sum(-1)).all()
    for relative in (False, True):
        least = 0.05 * p.amax(-1, keepdim=True) if relative else 0.05
        assert ((p / least - 1).abs() > 1e-5)[seen].all(), "a probability at the threshold would decide by rounding"
        mass, count, sinks = found.masses(0.05, relative, first=4)
        close(mass, oracle.mass_above(p, 0.05, relative))
        assert (count.cpu() == (p > least).sum(-1)).all()
        close(sinks, first)
    close(found.sink_mass(4), first)


@pytest.mark.parametrize(("mask", "dtype"), TOP)
def test_top_masses_agree_with_the_matrix(mask, dtype):
    found, p, seen = solved(mask, dtype)
    for keep in (0.3,) if DEVICE == "cpu" else (1, 5, p.shape[-1], 0.3):
        kept = keep if isinstance(keep, int) else part_of(found.seen, keep)
        close(found.top_mass(kept), oracle.top_mass(p, seen, keep))


@pytest.mark.parametrize("mask", ["padding", "learned key", "packed by sample"])
def test_what_keys_receive_agrees_with_the_matrix(mask):
    found, p, seen = solved(mask, torch.float32)
    for start, stop, even in ((0, p.shape[2], True), (11, 19, True), (11, 19, False)):
        score, could = found.received(slice(start, stop), even)
        close(score, oracle.scores(p[:, :, start:stop], seen[:, :, start:stop], even), 4e-5)
        assert (could.cpu() == seen[:, :, start:stop].any(-2)).all()


@pytest.mark.long
@settings(max_examples=3 if DEVICE == "cpu" else 10, deadline=None)  # on CUDA odd sizes are kernels of their own
@given(
    st.integers(0, 10**6),
    st.integers(1, 30),
    st.integers(0, 10),
    st.booleans(),
    st.none() | st.integers(1, 35),
    st.sampled_from([0.0, 0.01, 1.0, 16.0]),
    st.floats(0.01, 1.0),
)
def test_any_shape(seed, queries, more, causal, window, spread, share):
    q, k = draw(seed, 1, 1, queries, queries + more, spread=spread)
    options = {"causal": causal, "window": window}
    p, seen = oracle.matrix(q, k, **options)
    found = passes(q, k, **options)
    wanted = oracle.top_mass(p, seen, share)
    close(found.top_mass(part_of(found.seen, share)), wanted, 4e-6 if spread < 16 else 4e-5)
    problem = found.problem
    assert (seen_keys(problem, problem.interval).cpu() == seen.sum(-1)[0, 0]).all()
    assert all((a == b).all() for a, b in zip(found.ends[:2], problem.interval, strict=True))
    mass, count, _ = found.masses(1.0, relative=False)
    assert not mass.any()
    assert not count.any()
    everything, count, _ = found.masses(0.0, relative=True)
    close(everything, torch.ones_like(wanted))
    assert (count.cpu() == seen.sum(-1)).all()


@pytest.mark.parametrize("name", ["equal", "two levels", "heavy tail"])
def test_the_search_ends_with_its_certificate(name):
    """Equal weights are the hardest: the bracket must close on them, and counts cannot separate them."""
    keys, wide = 64, Blocks(16, 64, 4, 2) if DEVICE == "cpu" else None
    generator = torch.Generator().manual_seed(0)
    s = {
        "equal": torch.zeros(keys),
        "two levels": torch.arange(keys) % 2 * 3.0,
        "heavy tail": torch.randn(keys, generator=generator) ** 3,
    }[name]
    q, k = torch.ones(1, 1, 1, 16), (s[:, None] / 16).expand(keys, 16).contiguous()[None, None]
    found = passes(q, k, causal=False, scale=1.0, blocks=wide)
    p = s.double().softmax(0).sort(descending=True).values
    for keep in (1, 40):
        rows = found.search(torch.full_like(found.m, keep), found.seen.to(found.m))
        mass, gap = top(found.problem, found.ends, rows, 1e-6, wide)
        assert gap.item() <= 1e-6
        assert mass.item() == pytest.approx(p[:keep].sum().item(), abs=3e-6)


def test_kernels_read_nothing_beyond_the_bias():
    """The last block has rows that are no queries. What lies behind the bias would overflow: warnings are errors."""
    q, k = draw(1, 1, 1, 20, 20)
    size = 20 * 20
    memory = torch.full((size + 64 * 20,), 3e38)
    bias = memory[:size].view(1, 1, 20, 20).normal_()
    p, seen = oracle.matrix(q, k, bias=bias)
    close(passes(q, k, bias=memory.to(DEVICE)[:size].view_as(bias)).top_mass(5), oracle.top_mass(p, seen, 5))


@pytest.mark.skipif(DEVICE == "cpu", reason="without CUDA the public functions work in blocks")
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_public_functions_use_the_kernels_and_agree_with_the_blocks(dtype):
    q, k = draw(2, 2, 2, 300, 300, width=64, dtype=dtype)
    on = q.to(DEVICE), k.to(DEVICE)
    assert sparsity._passes(Attention.of(*on, True)) is not None
    calls = [("mass_above", 0.01), ("keys_above", 0.0123), ("top_mass", 20), ("top_mass", 0.1), ("sink_mass", 4)]
    for name, argument in calls:
        measure = getattr(sparsity, name)
        wanted, found = measure(q, k, argument), measure(*on, argument).cpu()
        torch.testing.assert_close(found.float(), wanted.float(), rtol=0, atol=2 if name == "keys_above" else 1e-5)
    for wanted, found in zip(sparsity.sparsity_stats(q, k), sparsity.sparsity_stats(*on), strict=True):
        torch.testing.assert_close(found.cpu().float(), wanted.float(), rtol=1e-4, atol=1e-4)
    for even in (False, True):
        wanted, found = (sparsity.heavy_hitters(*pair, 20, even=even) for pair in ((q, k), on))
        torch.testing.assert_close(found.score.cpu(), wanted.score, rtol=1e-4, atol=1e-4)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(-5, 8), st.booleans(), st.none() | st.integers(1, 15))
def test_intervals_made_in_fewer_steps_are_the_same(queries, more, causal, window):
    keys = max(1, queries + (max(0, more) if causal else more))  # without a causal mask there may be fewer keys
    q, k = (torch.zeros(1, 1, count, 16, device=DEVICE) for count in (queries, keys))
    problem = Attention.of(q, k, causal, window=window).problem
    ends = Ends.of(problem)
    assert all(end.dtype == torch.int32 for end in ends)
    for mine, slow in zip(ends, (*problem.interval, problem.first_key), strict=True):
        assert (mine == slow).all()


def test_places_beyond_32_bits_and_too_many_heads_are_left_to_the_other_path():
    """The kernels count places inside a head in 32 bits: a bias of 46,342 queries and keys would be read elsewhere."""
    from joma.measure._attention_triton import covers

    def problem(heads=1, queries=64, bias=False):
        q = torch.empty(1, heads, queries, 64, device="meta")
        added = torch.empty(1, heads, queries, queries, device="meta") if bias else None
        return Problem(q, q, None, True, 0.125, None, added, None, None, None)

    assert covers(problem(queries=46_340, bias=True))
    assert not covers(problem(queries=46_342, bias=True))
    assert covers(problem(queries=46_342))
    assert covers(problem(heads=65_535))
    assert not covers(problem(heads=65_536))

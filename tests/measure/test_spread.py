"""The spread of logits against one that goes key by key in float64, on every kind of mask, and what must not matter."""

import os

import hypothesis
import pytest
import torch
from attention_masks import options as tensors_of
from hypothesis import settings
from hypothesis import strategies as st
from largest import LargestTensor
from later import some_now
from spread_oracle import slow_spread

from joma.measure import _spread_blocks, _spread_sums
from joma.measure.attention import attention_stats
from joma.measure.spread import Spread, spread, spread_sums

DEVICE = os.environ.get("JOMA_TEST_DEVICE", "cpu")
MASKS = {
    "causal": {},
    "all keys": {"causal": False},
    "narrow window": {"window": 3},
    "window": {"window": 12},
    "window both ways": {"window": 11, "causal": False},
    "packed": {"cu_seqlens": [0, 3, 4, 20, 29]},
    "packed, all keys": {"cu_seqlens": [[0, 3, 21, 29], [0, 1, 29, 29]], "causal": False},
    "padding": {"key_padding": True},
    "padded queries": {"key_padding": True, "query_padding": True},
    "own scale": {"scale": 0.3},
    "packed, window, padding": {"cu_seqlens": [0, 20, 29], "window": 9, "key_padding": True, "query_padding": True},
    "alibi": {"bias": (1, 4, 1, 29)},
    "any mask": {"bias": (2, 4, 29, 29), "causal": False, "hidden": True},
    "one mask for all heads": {"bias": (2, 1, 29, 29), "causal": False, "hidden": True, "query_padding": True},
    "soft cap": {"softcap": 1.5},
    "everything": {
        "bias": (2, 4, 29, 29), "hidden": True, "softcap": 2.0, "window": 13, "cu_seqlens": [0, 20, 29],
        "key_padding": True, "query_padding": True,
    },
}  # fmt: skip


def draw(seed, batch=2, heads=4, kv_heads=2, queries=29, keys=29, width=6, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, heads, queries, width, generator=generator) + torch.randn(
        heads, 1, width, generator=generator
    )
    k = torch.randn(batch, kv_heads, keys, width, generator=generator) + 2
    return q.to(DEVICE, dtype), k.to(DEVICE, dtype)


def options(given, batch=2, queries=29, keys=29):
    return tensors_of(given, batch=batch, queries=queries, keys=keys, device=DEVICE)


def table(found: Spread) -> torch.Tensor:
    return torch.stack(list(found)).double().cpu()


def close(got: Spread, want: torch.Tensor, tolerance=1e-5):
    size = want[1:3].sum(0).clamp(min=1e-30)
    off = ((table(got) - want)[:5] / size).abs().max().item()
    assert off < tolerance, f"off by {off:.1e}: {table(got)} for {want}"
    torch.testing.assert_close(table(got)[5], want[5], rtol=1e-6, atol=1e-6)
    off = (got.shared + got.specific + got.cross + got.added - got.variance).abs().cpu()
    assert bool((off <= 1e-6 * size).all())


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(_spread_sums, "BLOCKS", (8, 8))
    monkeypatch.setattr(_spread_sums, "NUMBERS", {"cpu": 1, "cuda": 1})
    monkeypatch.setitem(_spread_blocks.ELEMENTS, "cpu", 4 * 29 * 5)


@pytest.mark.parametrize("mask", MASKS)
def test_every_mask_is_as_key_by_key(mask, small):
    q, k = draw(0)
    given = options(MASKS[mask])
    close(spread(q, k, **given), slow_spread(q.cpu(), k.cpu(), **_on_cpu(given)))


def _on_cpu(given):
    return {name: x.cpu() if isinstance(x, torch.Tensor) else x for name, x in given.items()}


@pytest.mark.parametrize("numbers", some_now([2000, 1, 1 << 30], every=3))
def test_how_many_heads_are_worked_at_a_time_does_not_matter(numbers, monkeypatch):
    monkeypatch.setattr(_spread_sums, "NUMBERS", {"cpu": numbers, "cuda": numbers})
    q, k = draw(1, batch=3, heads=6, kv_heads=3, queries=40, keys=40)
    given = options({"key_padding": True}, batch=3, queries=40, keys=40)
    close(spread(q, k, **given), slow_spread(q.cpu(), k.cpu(), **_on_cpu(given)))


@pytest.mark.parametrize("queries", [1, 7, 8, 21])
def test_fewer_queries_than_keys_end_with_the_last_key(queries, small):
    q, k = draw(2, queries=queries)
    for given in ({}, {"window": 5}, {"causal": False}):
        close(spread(q, k, **given), slow_spread(q.cpu(), k.cpu(), **given))


def test_more_queries_than_keys(small):
    q, k = draw(3, queries=29, keys=11)
    for given in ({}, {"window": 15}):  # the first queries have no key of their own, and see none in their window
        close(spread(q, k, causal=False, **given), slow_spread(q.cpu(), k.cpu(), causal=False, **given))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("mask", some_now(["causal", "window", "alibi"], every=3))
def test_types(dtype, mask, small):
    q, k = draw(4, dtype=dtype)
    given = options(MASKS[mask])
    found = spread(q, k, **given)
    exact = dtype == torch.float64
    assert {part.dtype for part in found} == {torch.float64 if exact else torch.float32}
    close(found, slow_spread(q.cpu(), k.cpu(), **_on_cpu(given)), 1e-12 if exact else 1e-5)


def test_a_short_document_that_begins_with_a_block_has_nothing_before(small):
    q, k = draw(13, queries=32, keys=32, batch=1, heads=2, kv_heads=1)
    for given in ({"cu_seqlens": [0, 24, 32]}, {"cu_seqlens": [0, 24, 32], "causal": False}):
        close(spread(q, k, **given), slow_spread(q.cpu(), k.cpu(), **given))


def test_keys_far_from_zero_lose_no_digits(small):
    """Key biases of real models are a hundred times as large as what tells keys apart."""
    q, k = draw(5)
    for given in ({}, {"window": 12}, {"cu_seqlens": [0, 13, 29]}, {"bias": torch.zeros(1, 1, 1, 29, device=DEVICE)}):
        close(spread(q, k + 300, **given), slow_spread(q.cpu(), (k + 300).cpu(), **_on_cpu(given)))


def test_keys_that_drift_lose_no_digits(small):
    """A window sees little of what all keys differ by."""
    q, k = draw(6, queries=96, keys=96, batch=1, heads=2, kv_heads=1)
    k = k + 30 * torch.arange(96, device=DEVICE)[:, None]
    for given in ({"window": 17}, {"window": 4}, {"cu_seqlens": list(range(0, 97, 12))}):
        close(spread(q, k, **given), slow_spread(q.cpu(), k.cpu(), **given))


def test_documents_far_from_each_other_lose_no_digits(small):
    """Sums over all documents before are a hundred thousand times what is left of their difference."""
    q, k = draw(12, queries=96, keys=96, batch=1, heads=2, kv_heads=1)
    k = k + 100 * (torch.arange(96, device=DEVICE) // 24)[:, None]
    given = {"cu_seqlens": [0, 24, 48, 72, 96]}
    close(spread(q, k, **given), slow_spread(q.cpu(), k.cpu(), **given))
    given = {"cu_seqlens": [0, 21, 48, 72, 96], "window": 17}
    moved = k.clone()
    moved[:, :, 21:24] += 100  # they begin the second document
    close(spread(q, moved, **given), slow_spread(q.cpu(), moved.cpu(), **given))


def test_no_query_that_counts():
    q, k = draw(7)
    for given in ({}, {"bias": torch.zeros(1, 1, 1, 29, device=DEVICE)}):
        found = spread(q, k, query_padding=torch.zeros(2, 29, dtype=torch.bool, device=DEVICE), **given)
        assert all(part.isnan().all() for part in found)


def test_what_padded_places_hold_does_not_matter(small):
    q, k = draw(8)
    for bias in ({}, {"bias": torch.zeros(1, 1, 1, 29, device=DEVICE)}):
        given = options({"key_padding": True, "query_padding": True}) | bias
        before = spread(q, k, **given)
        other = torch.where(given["query_padding"][:, None, :, None], q, torch.nan)
        seen = torch.where(given["key_padding"][:, None, :, None], k, torch.inf)
        torch.testing.assert_close(table(spread(other, seen, **given)), table(before), rtol=1e-5, atol=1e-7)


shapes = st.tuples(
    st.integers(1, 2), st.integers(1, 3), st.integers(1, 2), st.integers(1, 40), st.integers(1, 9), st.integers(0, 999)
)
intervals = st.fixed_dictionaries({"causal": st.booleans(), "window": st.none() | st.integers(1, 45)})


def drawn(shape):
    batch, group, kv_heads, length, width, seed = shape
    return draw(seed, batch, group * kv_heads, kv_heads, length, length, width)


@settings(max_examples=15, deadline=None)
@hypothesis.given(shapes, intervals, st.data())
def test_any_interval_is_as_key_by_key(shape, given, data):
    q, k = drawn(shape)
    q = q[:, :1]
    k = k[:, :1]
    cuts = data.draw(st.lists(st.integers(0, shape[3]), max_size=4))
    if cuts:
        given = given | {"cu_seqlens": [0, *sorted(cuts), shape[3]]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_spread_sums, "BLOCKS", (4, 8))
        close(spread(q, k, **given), slow_spread(q.cpu(), k.cpu(), **given))


@pytest.mark.parametrize("mask", ["causal", "padded queries", "everything"])
def test_a_text_in_pieces_gives_what_it_gives_at_once(mask):
    q, k = draw(9, batch=2)
    given = options(MASKS[mask])
    q = q + torch.tensor([0.0, 3.0], device=DEVICE)[:, None, None, None]  # the pieces have other means
    per_sample = ("bias", "key_padding", "query_padding")
    pieces = [
        spread_sums(q[i : i + 1], k[i : i + 1], **{n: x[i : i + 1] if n in per_sample else x for n, x in given.items()})
        for i in range(2)
    ]
    joined = pieces[0].joined(pieces[1])
    whole = spread_sums(q, k, **given)
    for got, want in zip(joined, whole, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4 * want.abs().max().item())
    torch.testing.assert_close(table(joined.spread), table(whole.spread), rtol=1e-4, atol=1e-5)


def test_entropy_of_small_logits_is_that_of_second_order():
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 2, 3, 200, 16, generator=generator).to(DEVICE)
    found = spread(0.2 * q, k)
    entropy = attention_stats(0.2 * q, k).entropy.mean((0, 2))
    assert bool((found.variance > 0.03).all())
    torch.testing.assert_close(found.second_order_entropy, entropy, rtol=0, atol=2e-4)
    torch.testing.assert_close(found.uniform, torch.arange(1, 201).log().mean().expand(3).to(DEVICE))


@pytest.mark.parametrize("given", [{}, {"window": 700}, {"cu_seqlens": [0, 900, 2048]}, {"causal": False}])
def test_memory_is_linear_in_the_keys(given):
    q = torch.zeros(1, 1, 2048, 16, device=DEVICE)
    with LargestTensor() as largest:
        spread(q, q, **given)
    assert largest.numbers <= 2048 * 16 * 12  # of 2048 x 2048


def test_no_gradient_and_no_change_of_the_inputs():
    q, k = (x.requires_grad_() for x in draw(10))
    before = q.detach().clone(), k.detach().clone()
    assert not spread(q, k).variance.requires_grad
    assert torch.equal(q, before[0])
    assert torch.equal(k, before[1])


@pytest.mark.parametrize(("wrong", "says"), [
    ({"query_padding": torch.ones(2, 28, dtype=torch.bool)}, "query_padding must be bool"),
    ({"query_padding": torch.ones(2, 29)}, "query_padding must be bool"),
    ({"key_padding": torch.ones(2, 28, dtype=torch.bool)}, "key_padding must be bool"),
    ({"window": 0}, "window must be"),
    ({"cu_seqlens": [0, 28]}, "cu_seqlens must rise"),
])  # fmt: skip
def test_wrong_arguments_get_one_sentence(wrong, says):
    q, k = draw(11)
    with pytest.raises(ValueError, match=says):
        spread(q, k, **wrong)


def test_a_window_of_whole_blocks_makes_one_run_per_block():
    """Runs are padded to a block of queries, so that twice as many take twice the time."""
    at = torch.arange(64)
    for window in (16, 15):
        found = _spread_sums.plan((at - window + 1).clamp(min=0), at + 1, 8)
        assert len(found.first) <= (10 if window == 16 else 16)
        assert bool((found.inside.sum(1) > 0).all())
        assert found.queries[found.inside].tolist() == at.tolist()


def test_a_plan_goes_where_the_keys_are():
    ends = torch.arange(20).clamp(min=3)
    made = _spread_sums.plan(torch.zeros_like(ends), ends + 1, 8)
    moved = made.to(torch.device("meta"))
    for before, after in zip(made, moved, strict=True):
        if isinstance(before, torch.Tensor):
            assert (after.device.type, after.shape, after.dtype) == ("meta", before.shape, before.dtype)
        else:
            assert after == before


def test_plans_that_are_kept_are_made_once_and_serve_only_their_own_lengths(monkeypatch):
    """Other windows, lengths, masks and widths, each twice, between each other."""
    made, own = [], _spread_sums.plan
    monkeypatch.setattr(_spread_sums, "plan", lambda *ends: made.append(1) or own(*ends))
    monkeypatch.setattr(_spread_sums, "BLOCKS", (4, 16))
    kinds = [
        ({}, {}), ({"queries": 21}, {}), ({"keys": 40, "queries": 40}, {}), ({"width": 12}, {}), ({}, {"window": 5}),
        ({}, {"window": 12}), ({}, {"causal": False}), ({}, {"window": 5, "causal": False}),
    ]  # fmt: skip
    kept = {}
    for turn in range(2):
        for shape, given in kinds:
            q, k = draw(turn, **shape)
            with _spread_sums.plans_kept(kept):
                found = spread(q, k, **given)
            close(found, slow_spread(q.cpu(), k.cpu(), **given))
        assert len(made) == len(kept) == len(kinds)
    q, k = draw(0)
    spread(q, k)
    assert len(made) == len(kinds) + 1  # nothing is kept for others
    given = {"cu_seqlens": [0, 3, 29]}
    with _spread_sums.plans_kept(kept):
        close(spread(q, k, **given), slow_spread(q.cpu(), k.cpu(), **given))
    assert len(kept) == len(kinds)  # a plan of documents does not follow from lengths


def test_plans_are_kept_by_whom_they_are_made_for():
    """By the inner of two, by the outer after it, and by nobody after an error."""
    (q, k), outer, inner = draw(0), {}, {}

    def fail():
        with _spread_sums.plans_kept(inner):
            raise KeyError

    with _spread_sums.plans_kept(outer):
        with _spread_sums.plans_kept(inner):
            spread(q, k)
        assert (len(outer), len(inner)) == (0, 1)
        with pytest.raises(KeyError):
            fail()
        spread(q, k, window=3)
        assert (len(outer), len(inner)) == (1, 1)
    spread(q, k, window=4)
    assert (len(outer), len(inner)) == (1, 1)

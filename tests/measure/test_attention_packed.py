"""Packed documents and learned sinks: against each document alone and against a slow float64 oracle."""

import itertools
import os

import pytest
import torch
from attention_oracle import slow_stats
from hypothesis import given, settings
from hypothesis import strategies as st
from largest import LargestTensor

from joma.measure import _attention_blocks as blocks
from joma.measure.attention import AttentionStats, attention_stats, attention_stats_reference, attention_with_stats

DEVICE = os.environ.get("JOMA_TEST_DEVICE", "cpu")
CLOSE = {"rtol": 1e-5, "atol": 3e-5}


def draw(seed, length, heads=4, kv_heads=2, width=16, batch=2, spread=1.0):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, heads, length, width, generator=generator) * spread
    k, v = torch.randn(2, batch, kv_heads, length, width, generator=generator)
    return q.to(DEVICE), k.to(DEVICE), v.to(DEVICE)


def bounds(lengths):
    return [0, *torch.tensor(lengths).cumsum(0).tolist()]


lengths = st.lists(st.integers(0, 15), min_size=1, max_size=5).filter(any)
masks = st.fixed_dictionaries(
    {"causal": st.booleans(), "window": st.none() | st.integers(1, 18), "softcap": st.none() | st.just(3.0)}
)


@settings(max_examples=12 if DEVICE == "cpu" else 6, deadline=None)  # on CUDA every kind of mask is compiled
@given(st.integers(0, 10**6), lengths, masks, st.sampled_from([1.0, 12.0]), st.sampled_from([40, 1 << 20]))
def test_packed_equals_each_document_alone(seed, lengths, mask, spread, elements):
    ends = bounds(lengths)
    q, k, v = draw(seed, ends[-1], spread=spread)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "ELEMENTS", elements)
        patch.setattr(blocks, "LEAST", 4)
        together, packed = attention_with_stats(q, k, v, cu_seqlens=ends, **mask)
        bare = attention_stats(q, k, cu_seqlens=ends, **mask)
    for start, stop in itertools.pairwise(ends):
        if start < stop:
            alone, stats = attention_with_stats(*(x[:, :, start:stop] for x in (q, k, v)), **mask)
            torch.testing.assert_close(together[:, :, start:stop], alone, **CLOSE)
            for name, a, b, c in zip(stats._fields, stats, packed, bare, strict=True):
                torch.testing.assert_close(b[:, :, start:stop], a, **CLOSE, msg=lambda m, name=name: f"{name}: {m}")
                assert torch.equal(b, c) or torch.allclose(b, c, atol=1e-6)


@pytest.mark.parametrize("path", [attention_stats, attention_stats_reference])
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("kind", ["none", "logit", "plus one", "key"])
def test_every_path_agrees_with_the_slow_oracle(kind, counted, path):
    q, k, _ = (x.cpu() for x in draw(1, 11, spread=2.0))
    generator = torch.Generator().manual_seed(5)
    logits, key = torch.randn(4, generator=generator) * 2, torch.randn(2, 16, generator=generator) * 2
    ours, oracle = {}, {}
    if kind == "logit":
        ours, oracle = {"sinks": logits}, {"sink": logits}
    elif kind == "plus one":
        ours, oracle = {"sinks": 0.0}, {"sink": torch.zeros(4)}
    elif kind == "key":
        ours = oracle = {"sink_key": key}
    for mask in ({}, {"causal": False}, {"window": 3}, {"softcap": 2.0}):
        got = path(q, k, cu_seqlens=[0, 4, 11], sink_in_entropy=counted, **ours, **mask)
        want = slow_stats(q, k, [(0, 4), (4, 11)], sink_in_entropy=counted, **oracle, **mask)
        for name, a, b in zip(got._fields, got, want[:6], strict=True):
            torch.testing.assert_close(a.double(), b, **CLOSE, msg=lambda m, name=name: f"{kind} {mask} {name}: {m}")
        if kind in ("logit", "plus one"):
            z = torch.as_tensor(ours["sinks"]).expand(4)[None, :, None]
            torch.testing.assert_close((z - got.lse).exp().double(), want[6], **CLOSE)


def test_softmax_plus_one_is_a_key_of_zeros_without_value():
    q, k, v = draw(2, 9)
    zeros = torch.zeros(2, 16, device=DEVICE)
    output, stats = attention_with_stats(q, k, v, sinks=0.0)
    other, same = attention_with_stats(q, k, v, sink_key=zeros, sink_value=zeros)
    wide = torch.cat([torch.zeros_like(k[:, :, :1]), k], 2), torch.cat([torch.zeros_like(v[:, :, :1]), v], 2)
    longer = torch.cat([q[:, :, :1], q], 2)
    whole, every = attention_with_stats(longer, *wide)
    torch.testing.assert_close(output, other, **CLOSE)
    torch.testing.assert_close(output, whole[:, :, 1:], **CLOSE)
    for a, b in zip(stats, same, strict=True):
        torch.testing.assert_close(a, b, **CLOSE)
    counted = attention_stats(q, k, sinks=0.0, sink_in_entropy=True)
    torch.testing.assert_close(counted.entropy, every.entropy[:, :, 1:], **CLOSE)
    assert (counted.entropy > stats.entropy).all()


def test_a_sink_key_adds_its_value():
    q, k, v = draw(3, 8)
    key, value = (torch.randn(2, 16, generator=torch.Generator().manual_seed(i)).to(DEVICE) for i in (0, 1))
    output, _ = attention_with_stats(q, k, v, sink_key=key, sink_value=value, causal=False)
    wide = (torch.cat([x, y[None, :, None].expand(2, 2, 1, 16)], 2) for x, y in ((k, key), (v, value)))
    want, _ = attention_with_stats(q, *wide, causal=False)
    torch.testing.assert_close(output, want, **CLOSE)


def test_a_strong_sink_leaves_no_entropy_and_a_weak_one_all_of_it():
    q, k, _ = draw(4, 7)
    bare, strong = attention_stats(q, k), attention_stats(q, k, sinks=200.0, sink_in_entropy=True)
    assert strong.entropy.abs().max() < 1e-6
    assert (strong.lse - 200).abs().max() < 1e-4
    assert (strong.max_logit == bare.max_logit).all()
    weak = attention_stats(q, k, sinks=-200.0)
    for a, b in zip(weak, bare, strict=True):
        torch.testing.assert_close(a, b)


def test_rows_that_see_no_key_have_their_sink_alone():
    q, k, v = draw(5, 6)
    nothing = torch.zeros(2, 6, dtype=torch.bool, device=DEVICE)
    output, stats = attention_with_stats(q, k, v, key_padding=nothing, sinks=1.5, sink_in_entropy=True)
    assert (output == 0).all()
    assert (stats.lse == 1.5).all()
    assert (stats.max_logit == -torch.inf).all()
    for name in ("entropy", "sink_mass", "self_mass", "effective_keys"):
        assert (getattr(stats, name) == 0).all(), name


def test_gradients_flow_through_documents_and_sinks():
    generator = torch.Generator().manual_seed(0)
    tensors = [
        torch.randn(s, generator=generator, dtype=torch.float64) for s in ((1, 2, 6, 3), (1, 1, 6, 3), (1, 1, 6, 2))
    ]
    sinks = [torch.randn(s, generator=generator, dtype=torch.float64) for s in ((1, 3), (1, 2), (2,))]

    def outputs(q, k, v, key, value, logits):
        first, a = attention_with_stats(q, k, v, cu_seqlens=[0, 2, 6], sink_key=key, sink_value=value)
        second, b = attention_with_stats(q, k, v, cu_seqlens=[0, 2, 6], sinks=logits, sink_in_entropy=True)
        return first, a.entropy, a.lse, second, b.entropy, b.self_mass

    assert torch.autograd.gradcheck(outputs, tuple(t.requires_grad_() for t in (*tensors, *sinks)), fast_mode=True)


def test_no_tensor_of_queries_times_keys_on_packed_rows(monkeypatch):
    length = 1000
    monkeypatch.setattr(blocks, "ELEMENTS", 1 << 16)
    q, k, v = (x[:1].cpu() for x in draw(7, length, heads=1, kv_heads=1))
    with LargestTensor() as largest:
        output, stats = attention_with_stats(q, k, v, cu_seqlens=[0, 240, 260, length])
    assert largest.numbers <= blocks.ELEMENTS < length * length / 4
    assert isinstance(stats, AttentionStats)
    assert output.shape == q.shape


def test_the_value_of_a_sink_needs_its_key():
    q, value = torch.zeros(1, 2, 4, 8), torch.zeros(2, 8)
    with pytest.raises(ValueError, match="sink_value belongs to a sink_key, and none is given"):
        attention_with_stats(q, q, q, sink_value=value)


def test_ends_that_were_changed_in_place_are_read_again():
    q, k, _ = draw(3, 6)
    ends = torch.tensor([0, 2, 6])
    attention_stats(q, k, cu_seqlens=ends)
    ends[1] = 4
    assert torch.equal(
        attention_stats(q, k, cu_seqlens=ends).entropy, attention_stats(q, k, cu_seqlens=[0, 4, 6]).entropy
    )
    longer = draw(3, 8)[:2]
    with pytest.raises(ValueError, match="rise from 0 to the number of keys, 8"):
        attention_stats(*longer, cu_seqlens=ends)

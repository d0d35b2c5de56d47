"""Attention statistics: blocks against the float64 matrix, and that against the definition, on every kind of mask."""

import os

import pytest
import torch
from attention_masks import close, options
from largest import LargestTensor
from sparsity_oracle import matrix, sink_mass

from joma.measure import _attention_blocks as blocks
from joma.measure import attention
from joma.measure._attention_problem import Problem, Sink, _column
from joma.measure.attention import AttentionStats, attention_stats, attention_stats_reference, attention_with_stats
from joma.measure.sparsity import top_mass
from joma.measure.spread import spread

DEVICE = os.environ.get("JOMA_TEST_DEVICE", "cpu")
DTYPES = [torch.float32] if DEVICE == "cpu" else [torch.float32, torch.bfloat16]
TOLERANCE = {torch.float32: 5e-5, torch.bfloat16: 2e-3}

MASKS = {
    "causal": {},
    "all keys": {"causal": False},
    "window": {"window": 7},
    "window both ways": {"window": 5, "causal": False},
    "soft cap": {"softcap": 4.0},
    "alibi": {"bias": (1, 4, 1, 37)},
    "full bias": {"bias": (2, 4, 37, 37)},
    "sinks": {"sinks": True},
    "padding": {"key_padding": True},
    "everything": {"window": 9, "softcap": 6.0, "bias": (1, 4, 1, 37), "sinks": True, "key_padding": True},
    "own scale": {"scale": 0.3},
    "packed": {"cu_seqlens": [0, 5, 6, 29, 37]},
    "packed, all keys": {"cu_seqlens": [[0, 5, 29, 37], [0, 1, 37, 37]], "causal": False},
    "packed, everything": {
        "cu_seqlens": [0, 20, 37],
        "window": 9,
        "softcap": 6.0,
        "bias": (2, 4, 37, 37),
        "sinks": True,
        "key_padding": True,
    },
}


def draw(seed, heads=4, kv_heads=2, queries=37, keys=37, width=16, dtype=torch.float32, spread=1.0):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(2, heads, queries, width, generator=generator) * spread
    k, v = torch.randn(2, 2, kv_heads, keys, width, generator=generator)
    return tuple(tensor.to(DEVICE, dtype) for tensor in (q, k, v))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("elements", [2 * 37 * 5, 1 << 20])
def test_blocks_agree_with_the_matrix(mask, dtype, elements, monkeypatch):
    monkeypatch.setattr(blocks, "LEAST", 8)
    monkeypatch.setattr(blocks, "ELEMENTS", elements)  # four queries of one key head at a time, or all
    q, k, _ = draw(0, dtype=dtype)
    given = options(MASKS[mask], device=DEVICE)
    found = AttentionStats(*_solved(q, k, **given))
    close(found, attention_stats_reference(q, k, **given), TOLERANCE[dtype])


def _solved(q, k, sinks=None, **given):
    problem = Problem.of(q, k, None, **given)
    found = blocks.forward(problem)
    return found if sinks is None else Sink.of(problem, sinks, None, None, counted=False).applied(found)


@pytest.mark.parametrize("mask", MASKS)
def test_the_matrix_is_the_definition(mask):
    """What all paths are measured against shares their masks: here it meets one that goes key by key."""
    q, k, v = (x.cpu() for x in draw(1, queries=37, keys=37))
    given = options(MASKS[mask])
    p, seen = matrix(q, k, **given)
    found = attention_stats_reference(q, k, **given)
    torch.testing.assert_close(found.entropy, -torch.xlogy(p, p).sum(-1), rtol=0, atol=1e-12)
    torch.testing.assert_close(found.sink_mass, sink_mass(p, 1, given.get("cu_seqlens")), rtol=0, atol=1e-12)
    torch.testing.assert_close(found.self_mass, p.diagonal(dim1=-2, dim2=-1), rtol=0, atol=1e-12)
    assert torch.equal(found.max_logit.isfinite(), seen.any(-1))
    at = seen.any(-1)
    torch.testing.assert_close(  # so that max_logit - lse is right; the doctest and the slow oracle have each alone
        (found.max_logit - found.lse)[at].exp(), p.amax(-1)[at], rtol=0, atol=1e-12
    )
    torch.testing.assert_close(found.effective_keys[at], found.entropy[at].exp(), rtol=1e-12, atol=0)
    output, _ = attention_with_stats(q.double(), k.double(), v.double(), **_double(given))
    torch.testing.assert_close(output, p @ v.double().repeat_interleave(2, 1), rtol=0, atol=1e-12)


def _double(given):
    return {n: t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t for n, t in given.items()}


@pytest.mark.parametrize("dtype", DTYPES)
def test_sharp_rows_have_no_negative_entropy(dtype):
    q, k, _ = draw(3, queries=60, keys=60, dtype=dtype, spread=16.0)
    stats = attention_stats(q, k)
    assert (stats.entropy >= 0).all()
    close(stats, attention_stats_reference(q, k), TOLERANCE[dtype])


def test_decoding_is_the_end_of_the_whole():
    q, k, _ = draw(4)
    whole, end = attention_stats(q, k, window=20), attention_stats(q[:, :, -3:], k, window=20)
    for a, b in zip(end, whole, strict=True):
        torch.testing.assert_close(a, b[:, :, -3:], rtol=1e-6, atol=1e-6)


def test_rows_that_see_nothing_follow_the_rule():
    q, k, v = draw(5)
    nothing = torch.zeros(2, 37, dtype=torch.bool, device=DEVICE)
    output, stats = attention_with_stats(q, k, v, key_padding=nothing)
    for name, value in zip(stats._fields, stats, strict=True):
        assert (value == (-torch.inf if name in ("lse", "max_logit") else 0)).all(), name
    assert (output == 0).all()


def test_a_key_that_a_query_does_not_see_has_no_mass():
    p = torch.tensor([0.5, 0.3, 0.2]).expand(1, 2, 5, 3)
    found = _column(p, torch.tensor([[-2, -1, 0, 2, 3]]))
    torch.testing.assert_close(found, torch.tensor([0.0, 0.0, 0.5, 0.2, 0.0]).expand(1, 2, 5))


def test_gradients_flow_through_the_chunks(monkeypatch):
    monkeypatch.setattr(attention, "_RECOMPUTED", 2 * 2 * 6 * 4)
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 2, 6, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    k = torch.randn(2, 1, 6, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    v = torch.randn(2, 1, 6, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(1, 2, 1, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    sinks = torch.randn(2, generator=generator, dtype=torch.float64, requires_grad=True)

    def outputs(q, k, v, bias, sinks):
        output, stats = attention_with_stats(q, k, v, bias=bias, sinks=sinks, softcap=3.0, window=4)
        return output, stats.entropy, stats.lse, stats.sink_mass, stats.self_mass

    assert torch.autograd.gradcheck(outputs, (q, k, v, bias, sinks), fast_mode=True)


@pytest.mark.parametrize("gradients", [False, True])
def test_memory_is_linear_in_the_length(gradients, monkeypatch):
    """No tensor of queries x keys is made, neither forward nor backward."""
    length = 1_000
    monkeypatch.setattr(attention, "_RECOMPUTED", 1 << 16)
    monkeypatch.setattr(blocks, "ELEMENTS", 1 << 16)
    q, k, _ = draw(7, heads=1, kv_heads=1, queries=length, keys=length)
    q, k = (x[:1].cpu().requires_grad_(gradients) for x in (q, k))
    with LargestTensor() as largest:
        entropy = attention_stats(q, k).entropy
        if gradients:
            entropy.sum().backward()
    assert entropy.shape == (1, 1, length)
    assert largest.numbers <= 1 << 16 < length * length / 4


SAME = {"q": torch.zeros(1, 2, 5, 8)}


@pytest.mark.parametrize(("change", "sentence"), [
    ({"q": torch.zeros(2, 3, 4)}, "q and k must be"),
    ({"q": torch.zeros(1, 3, 4, 8)}, "the heads of q must be a multiple of those of k, got 3 and 2"),
    ({"q": torch.zeros(1, 2, 4, 9)}, "disagree on batch or width"),
    ({"q": torch.zeros(1, 2, 0, 8)}, "must not be empty"),
    ({"q": torch.zeros(1, 2, 6, 8)}, "causal attention aligns"),
    ({"window": 0}, "window must be a whole number of at least 1, got 0"),
    ({"softcap": -1.0}, "softcap must be a finite number above 0, got -1"),
    ({"scale": float("nan")}, "scale must be a finite number, got nan"),
    ({"sinks": torch.zeros(3)}, "sinks must be one number or have shape"),
    ({"sinks": 0.0, "sink_key": torch.zeros(2, 8)}, "two kinds of learned sink"),
    ({"sink_key": torch.zeros(2, 7)}, r"sink_key must have shape \(2, 8\)"),
    ({"cu_seqlens": [0, 5]}, "cu_seqlens needs as many queries as keys, got 4 queries and 5 keys"),
    ({"cu_seqlens": [0, 3, 2, 5], **SAME}, "cu_seqlens must rise from 0 to the number of keys, 5, got 0, 3, 2, 5"),
    ({"cu_seqlens": [0, 4], **SAME}, "cu_seqlens must rise from 0 to the number of keys, 5, got 0, 4"),
    ({"cu_seqlens": [1, 5], **SAME}, "cu_seqlens must rise from 0"),
    ({"cu_seqlens": [0.0, 5.0], **SAME}, r"cu_seqlens must be whole numbers, .* got torch.float64"),
    ({"cu_seqlens": [5], **SAME}, "cu_seqlens must be whole numbers"),
    ({"cu_seqlens": [[0, 5], [0, 5], [0, 5]], **SAME}, "cu_seqlens has 3 rows and q has 1"),
    ({"key_padding": torch.zeros(1, 5)}, "key_padding must be bool"),
    ({"bias": torch.zeros(1, 2, 3, 5)}, "bias must broadcast to"),
])  # fmt: skip
def test_bad_input_gets_one_sentence(change, sentence):
    arguments = {"q": torch.zeros(1, 2, 4, 8), "k": torch.zeros(1, 2, 5, 8), **change}
    with pytest.raises(ValueError, match=sentence):
        attention_stats(arguments.pop("q"), arguments.pop("k"), **arguments)


@pytest.mark.parametrize("shape", [(3, 7), (2, 1, 3, 7), (1, 4, 1, 7)])
@pytest.mark.parametrize("of", [attention_stats, attention_stats_reference])
def test_true_and_false_say_which_keys_are_seen(of, shape):
    """Not numbers 1 and 0 that are added, as they once were."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 7, 8)
    seen = torch.rand(shape) > 0.4
    weights, _ = matrix(q, k, causal=False, bias=torch.zeros(shape).masked_fill(~seen, -torch.inf))
    want = torch.special.entr(weights).sum(-1)
    for given in (seen, seen.tolist()):
        torch.testing.assert_close(of(q, k, causal=False, bias=given).entropy.double(), want, rtol=0, atol=1e-5)


def test_a_mask_with_gradients_and_the_same_in_other_measures():
    torch.manual_seed(0)
    q, k = torch.randn(1, 2, 5, 8, requires_grad=True), torch.randn(1, 2, 5, 8)
    seen = torch.ones(5, 5, dtype=torch.bool).tril()
    masked = attention_stats(q, k, causal=False, bias=seen).entropy
    (by_mask,) = torch.autograd.grad(masked.sum(), q)
    (causal,) = torch.autograd.grad(attention_stats(q, k).entropy.sum(), q)
    torch.testing.assert_close(by_mask, causal)
    plain = q.detach()
    for each in zip(spread(plain, k, causal=False, bias=seen), spread(plain, k), strict=True):
        torch.testing.assert_close(*each)
    torch.testing.assert_close(top_mass(plain, k, 0.3, causal=False, bias=seen), top_mass(plain, k, 0.3))


def test_a_mask_gives_its_numbers_with_gradients_too():
    """Not only the gradients: the numbers come from another copy of the problem."""
    torch.manual_seed(1)
    q, k = torch.randn(1, 2, 4, 8, requires_grad=True), torch.randn(1, 1, 6, 8)
    seen = torch.rand(1, 2, 4, 6) > 0.4
    seen[..., 0] = True
    weights, _ = matrix(q.detach(), k, causal=False, bias=torch.zeros(seen.shape).masked_fill(~seen, -torch.inf))
    found = attention_stats(q, k, causal=False, bias=seen)
    assert found.entropy.requires_grad
    torch.testing.assert_close(found.entropy.double(), torch.special.entr(weights).sum(-1), rtol=0, atol=1e-5)
    torch.testing.assert_close(found.sink_mass.double(), weights[..., 0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("of", [attention_stats, attention_stats_reference])
def test_a_query_for_which_a_mask_has_no_true_sees_nothing(of):
    """As with a bias of -inf: not as if it saw all keys alike."""
    torch.manual_seed(0)
    q, k = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 5, 8)
    seen = torch.ones(3, 5, dtype=torch.bool)
    seen[1] = False
    found = of(q, k, causal=False, bias=seen)
    assert (found.lse[:, :, 1] == -torch.inf).all()
    assert (found.max_logit[:, :, 1] == -torch.inf).all()
    for number in (found.entropy, found.sink_mass, found.effective_keys):
        assert (number[:, :, 1] == 0).all()
        assert (number[:, :, [0, 2]] > 0).all()


@pytest.mark.parametrize("shape", [(5, 7), (2, 1, 1, 7), (1, 4, 5, 7)])
def test_a_mask_that_is_the_same_for_many_is_written_out_once(shape):
    q, k = torch.zeros(2, 4, 5, 8), torch.zeros(2, 4, 7, 8)
    bias = Problem.of(q, k, None, causal=False, bias=torch.ones(shape, dtype=torch.bool)).bias
    assert bias.shape == (2, 4, 5, 7)
    assert bias.untyped_storage().nbytes() == torch.Size(shape).numel() * 4

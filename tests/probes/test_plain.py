"""Plain PyTorch attention: nn.MultiheadAttention against the weights it returns, sdpa against softmax."""

import pytest
import torch
import torch.nn.functional as F
from architectures import build, inputs
from torch import nn

from joma.measure.attention import AttentionStats
from joma.probes import ProbeError, collect, collect_plain

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def entropy(weights):
    return torch.special.entr(weights.double()).sum(-1)


def uneven(module):
    """Larger weights, so that attention is far from uniform."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.6)
    return module.eval()


PADDED = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
MASKS = {
    "no mask": {},
    "causal": {"attn_mask": torch.ones(6, 6, dtype=torch.bool).triu(1)},
    "additive": {"attn_mask": torch.linspace(-2, 2, 36).view(6, 6)},
    "a mask a head": {"attn_mask": torch.linspace(-3, 3, 2 * 4 * 36).view(8, 6, 6)},
    "padding": {"key_padding_mask": PADDED},
    "both": {"attn_mask": torch.ones(6, 6, dtype=torch.bool).triu(1), "key_padding_mask": PADDED},
    "soft padding": {"key_padding_mask": torch.where(PADDED, -1.5, 0.5)},
}


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("mask", MASKS)
def test_multihead_attention_under_every_mask(mask, batch_first):
    layer = uneven(nn.MultiheadAttention(16, 4, batch_first=batch_first))
    x = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(1))
    x = x if batch_first else x.transpose(0, 1)
    with torch.no_grad():
        out, weights = layer(x, x, x, average_attn_weights=False, **MASKS[mask])
        with collect_plain(layer) as probe:
            again, none = layer(x, x, x, need_weights=False, **MASKS[mask])
    torch.testing.assert_close(out, again)
    assert none is None
    want = entropy(weights)
    torch.testing.assert_close(probe.stats["MultiheadAttention"][0].entropy.double(), want, **CLOSE)
    counted = ~PADDED if mask in ("padding", "both") else torch.ones(2, 6, dtype=torch.bool)
    torch.testing.assert_close(probe.mean_entropy()[0], want.transpose(1, 2)[counted].mean(0), **CLOSE)
    assert probe.mean_entropy().std() > 0.02


def test_multihead_attention_over_other_keys_and_without_a_batch():
    layer = uneven(nn.MultiheadAttention(8, 2, kdim=5, vdim=3, bias=False, batch_first=True))
    q, k, v = torch.randn(4, 8), torch.randn(7, 5), torch.randn(7, 3)
    with torch.no_grad(), collect_plain(layer) as probe:
        _, weights = layer(q, k, v, average_attn_weights=False)
    torch.testing.assert_close(probe.stats["MultiheadAttention"][0].entropy[0].double(), entropy(weights), **CLOSE)


@pytest.mark.parametrize("gradients", [False, True])
def test_encoder_layers_on_their_fused_path_are_seen(gradients):
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 4, 24, batch_first=True), 3, enable_nested_tensor=False
    )
    model = uneven(model)
    x = torch.randn(2, 6, 16)
    with torch.set_grad_enabled(gradients):
        reference = model(x, src_key_padding_mask=PADDED)
        with collect_plain(model, keep=False) as probe:
            measured = model(x, src_key_padding_mask=PADDED)
    torch.testing.assert_close(measured[~PADDED], reference[~PADDED], **CLOSE)
    assert probe.layers == [f"layers.{i}.self_attn" for i in range(3)]
    assert probe.stats == {}
    assert probe.mean_entropy().shape == (3, 4)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


class Dot(nn.Module):
    """Calls scaled_dot_product_attention with what it is given."""

    def forward(self, q, k, **options):
        return F.scaled_dot_product_attention(q, k, k, **options)


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Dot(), Dot()

    def forward(self, q, k, **options):
        return self.second(self.first(q, k, **options), k, **options)


def probabilities(q, k, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3) if enable_gqa else k
    s = q.double() @ k.double().transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(s.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None:
        s = s.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else s + attn_mask
    return s.softmax(-1)


SEEN = torch.rand(6, 9, generator=torch.Generator().manual_seed(2)) > 0.3
CALLS = {
    "plain": ((2, 4, 6, 8), (2, 4, 9, 8), {}),
    "fewer queries, causal": ((2, 4, 6, 8), (2, 4, 9, 8), {"is_causal": True}),
    "more queries, causal": ((2, 4, 9, 8), (2, 4, 6, 8), {"is_causal": True}),
    "own scale": ((2, 4, 6, 8), (2, 4, 9, 8), {"scale": 1.5}),
    "grouped": ((2, 4, 6, 8), (2, 2, 9, 8), {"enable_gqa": True}),
    "bool mask": ((2, 4, 6, 8), (2, 4, 9, 8), {"attn_mask": SEEN}),
    "additive mask a sample": ((2, 4, 6, 8), (2, 4, 9, 8), {"attn_mask": torch.linspace(-3, 3, 108).view(2, 1, 6, 9)}),
    "three dimensions": ((3, 6, 8), (3, 9, 8), {"attn_mask": torch.linspace(-3, 3, 162).view(3, 6, 9)}),
    "five dimensions": ((2, 3, 4, 6, 8), (2, 3, 4, 9, 8), {"attn_mask": torch.linspace(-3, 3, 162).view(3, 1, 6, 9)}),
}


@pytest.mark.parametrize("call", CALLS)
def test_calls_of_scaled_dot_product_attention(call):
    left, right, options = CALLS[call]
    q, k = torch.randn(left) * 2, torch.randn(right)
    model = Outer()
    with collect_plain(model) as probe:
        model(q, k, **options)
    assert probe.layers == ["first", "second"]
    want = entropy(probabilities(q, k, **options))
    got = probe.stats["first"][0].entropy
    torch.testing.assert_close(got.double(), want.reshape(got.shape), **CLOSE)


def test_one_row_of_mask_is_padding():
    q = torch.randn(2, 4, 6, 8)
    mask = ~PADDED[:, None, None]
    with collect_plain(model := Dot()) as probe:
        model(q, q, attn_mask=mask)
    want = entropy(probabilities(q, q, attn_mask=mask)).transpose(1, 2)[~PADDED].mean(0)
    torch.testing.assert_close(probe.mean_entropy()[0], want, **CLOSE)


def test_both_adapters_agree_on_a_transformers_model():
    model, given = build("gpt_neox", attention="sdpa"), inputs("gpt_neox")
    with torch.no_grad(), collect_plain(model) as plain:
        model(**given)
    with torch.no_grad(), collect(model) as own:
        model(**given)
    assert plain.layers == own.layers
    for field in AttentionStats._fields:
        torch.testing.assert_close(plain.mean(field), own.mean(field))


@pytest.mark.parametrize("way", ["whole", "parts", "in place"])
def test_a_compiled_model_is_measured_uncompiled_under_the_names_of_its_own(way):
    graphs = []

    def backend(graph, example):
        graphs.append(graph)
        return graph.forward

    model, x = Outer(), torch.randn(2, 4, 6, 16, generator=torch.Generator().manual_seed(1))
    with collect_plain(model) as plain:
        model(x, x)
    compiled = model
    if way == "whole":
        compiled = torch.compile(model, backend=backend)
    elif way == "parts":
        model.first, model.second = (torch.compile(part, backend=backend) for part in (model.first, model.second))
    else:
        model.compile(backend=backend)
    compiled(x, x)
    before = len(graphs)
    assert before > 0
    with collect_plain(compiled) as probe:
        compiled(x, x)
    compiled(x, x)
    assert len(graphs) == before  # neither compiled in the block nor anew after it
    assert probe.layers == plain.layers == ["first", "second"]
    assert torch.equal(probe.mean_entropy(), plain.mean_entropy())


def test_attention_written_out_by_hand_is_refused_by_name():
    class ByHand(nn.Module):
        def forward(self, x):
            return (x @ x.mT).softmax(-1) @ x

    with (
        pytest.raises(ProbeError, match="ByHand made no attention call that can be seen"),
        collect_plain(m := ByHand()),
    ):
        m(torch.randn(1, 3, 4))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
def test_keys_that_are_no_tokens_are_sinks(option, mask):
    layer = uneven(nn.MultiheadAttention(16, 4, batch_first=True, **{option: True}))
    x = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), collect_plain(layer) as probe:
        _, weights = layer(x, x, x, average_attn_weights=False, **MASKS[mask])
    stats = probe.stats["MultiheadAttention"][0]
    torch.testing.assert_close(stats.entropy.double(), entropy(weights), **CLOSE)
    torch.testing.assert_close(stats.sink_mass, weights[..., 0], **CLOSE)


def test_two_kinds_of_sink_at_once_are_refused():
    layer = nn.MultiheadAttention(8, 2, add_bias_kv=True, add_zero_attn=True)
    x = torch.randn(3, 1, 8)
    sentence = "MultiheadAttention uses bias_k with add_zero_attn: it cannot be measured"
    with pytest.raises(ProbeError, match=sentence), collect_plain(layer):
        layer(x, x, x)
    assert not layer._forward_hooks

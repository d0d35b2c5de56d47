"""Somebody's own attention: nanoGPT's and torchtitan's, told by a function of a few lines, against a slow oracle."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from networks import LENGTH, PROBE, TOKENS, loss_of, made, same, train
from torch import nn

from joma.host.errors import JomaError
from joma.monitor import Monitor
from joma.probes import ProbeError, collect_plain

CLOSE = {"rtol": 0, "atol": 1e-5}
MEASURES = ["entropy", "largest_logit", "sink_mass", "effective_keys"]


class CausalSelfAttention(nn.Module):
    """As in nanoGPT: one product for queries, keys and values; fast attention, or written out."""

    def __init__(self, n_embd=8, n_head=2, flash=False):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.attn_dropout, self.resid_dropout = nn.Dropout(0.1), nn.Dropout(0.1)
        self.n_head, self.n_embd, self.flash = n_head, n_embd, flash
        self.register_buffer("bias", torch.tril(torch.ones(LENGTH, LENGTH)).view(1, 1, LENGTH, LENGTH))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q, k, v = (each.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for each in (q, k, v))
        if self.flash:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0.0, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = self.attn_dropout(F.softmax(att.masked_fill(self.bias[:, :, :T, :T] == 0, -torch.inf), dim=-1))
            y = att @ v
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C)))


def nanogpt(module, x):
    q, k, _ = module.c_attn(x).split(module.n_embd, dim=2)
    return [each.unflatten(-1, (module.n_head, -1)).transpose(1, 2) for each in (q, k)]


def rotated(x, freqs_cis):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * freqs_cis[None, : x.shape[1], None]).flatten(3).type_as(x)


class ByHand(nn.Module):
    """Stands in for torchtitan's FlexAttentionWrapper: nothing that joma looks for is called."""

    def forward(self, q, k, v):
        k, v = (each.repeat_interleave(q.shape[1] // each.shape[1], 1) for each in (k, v))
        hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
        return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ v


class Sdpa(nn.Module):
    """Stands in for torchtitan's ScaledDotProductAttentionWrapper."""

    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


class TitanAttention(nn.Module):
    """As torchtitan's Attention of Llama 3: fewer key heads, rotary positions, attention in a module of its own."""

    def __init__(self, dim=8, n_heads=4, n_kv_heads=2, inner=ByHand):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, dim // n_heads
        self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.wk, self.wv = (nn.Linear(dim, n_kv_heads * self.head_dim, bias=False) for _ in range(2))
        self.wo, self.inner_attention = nn.Linear(n_heads * self.head_dim, dim, bias=False), inner()

    def forward(self, x, freqs_cis, attention_masks=None):
        bs, seqlen, _ = x.shape
        xq, xk, xv = (w(x).view(bs, seqlen, -1, self.head_dim) for w in (self.wq, self.wk, self.wv))
        xq, xk = rotated(xq, freqs_cis), rotated(xk, freqs_cis)
        output = self.inner_attention(xq.transpose(1, 2), xk.transpose(1, 2), xv.transpose(1, 2))
        return self.wo(output.transpose(1, 2).contiguous().view(bs, seqlen, -1))


def torchtitan(module, x, freqs_cis, attention_masks=None):
    heads = [w(x).unflatten(-1, (-1, module.head_dim)) for w in (module.wq, module.wk)]
    return [rotated(each, freqs_cis).transpose(1, 2) for each in heads]


ADAPTERS = {CausalSelfAttention: nanogpt, TitanAttention: torchtitan}


class Network(nn.Module):
    def __init__(self, attend, layers=2):
        super().__init__()
        self.embed, self.head = nn.Embedding(TOKENS, 8), nn.Linear(8, TOKENS)
        self.layers = nn.ModuleList(attend() for _ in range(layers))
        self.embed.weight.data.mul_(3.0)  # heads that differ
        angles = torch.arange(LENGTH)[:, None] * torch.tensor([1.0])
        self.register_buffer("freqs_cis", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = x + (layer(x, self.freqs_cis) if isinstance(layer, TitanAttention) else layer(x))
        return self.head(x)


KINDS = {
    "nanogpt": CausalSelfAttention,
    "nanogpt fast": lambda: CausalSelfAttention(flash=True),
    "torchtitan": TitanAttention,
    "torchtitan sdpa": lambda: TitanAttention(inner=Sdpa),
}


@torch.no_grad()
def oracle(model, ids):
    """By measure, (layers, heads): in float64, with every logit written out by loops over heads and queries."""
    inputs, found = [], {name: [] for name in MEASURES}
    hooks = [layer.register_forward_pre_hook(lambda _, given: inputs.append(given[0])) for layer in model.layers]
    model.double()(ids)
    for hook, layer, x in zip(hooks, model.layers, inputs, strict=True):
        hook.remove()
        if isinstance(layer, TitanAttention):
            q, k = (F.linear(x, w.weight).unflatten(-1, (-1, layer.head_dim)) for w in (layer.wq, layer.wk))
            turn = model.freqs_cis.to(torch.complex128)[None, :, None]
            q, k = (torch.view_as_complex(e.unflatten(-1, (-1, 2)).contiguous()) * turn for e in (q, k))
            q, k = (torch.view_as_real(each).flatten(3) for each in (q, k))
        else:
            q, k, _ = (each.unflatten(-1, (layer.n_head, -1)) for each in layer.c_attn(x).chunk(3, -1))
        rows = {name: [] for name in MEASURES}
        for head in range(q.shape[2]):
            mine = k[:, :, head * k.shape[2] // q.shape[2]]
            numbers = []
            for b in range(len(x)):
                for at in range(x.shape[1]):
                    s = mine[b, : at + 1] @ q[b, at, head] / q.shape[-1] ** 0.5
                    p = s.softmax(0)
                    entropy = float(torch.special.entr(p).sum())
                    numbers.append((entropy, float(s.max()), float(p[0]), math.exp(entropy)))
            entropy, largest, sink, keys = np.array(numbers).T
            for name, value in zip(MEASURES, (entropy.mean(), largest.max(), sink.mean(), keys.mean()), strict=True):
                rows[name].append(value)
        for name in MEASURES:
            found[name].append(rows[name])
    model.float()
    return {name: np.array(each) for name, each in found.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["probe", "step", "inside"])
def test_numbers_are_those_of_the_slow_oracle(kind, way):
    model = made(lambda: Network(KINDS[kind])).eval()
    options = {"probe": {"probe": PROBE, "step": "step"}.get(way), "inside": way == "inside"}
    with Monitor(model, every=1, measures=MEASURES, attention=ADAPTERS, **options) as monitor:
        for _ in range(3 if way == "inside" else way == "step"):  # one module after the other, once all were seen
            loss_of(model, PROBE).backward()
            monitor.step()
    expected = oracle(model, PROBE)
    assert monitor.latest["entropy"].rows.names == ("layers.0", "layers.1")
    for name in MEASURES:
        np.testing.assert_allclose(monitor.latest[name].values, expected[name], **CLOSE)
    assert expected["entropy"].std() > 0.01


@pytest.mark.parametrize("kind", ["nanogpt", "torchtitan"])
@pytest.mark.parametrize("inside", [False, True])
def test_training_is_the_same_bit_for_bit(kind, inside):
    found = []
    for watched in (False, True):
        model = made(lambda: Network(KINDS[kind]))
        options = {"inside": True} if inside else {"probe": PROBE}
        monitor = Monitor(model, every=1, measures=MEASURES, attention=ADAPTERS, **options) if watched else None
        found.append(train(model, monitor, steps=5))
    assert same(*found)


def test_fast_attention_needs_no_function():
    model = made(lambda: Network(KINDS["torchtitan sdpa"])).eval()
    with Monitor(model, probe=PROBE, measures=["entropy"]) as monitor:
        pass
    assert monitor.latest["entropy"].rows.names == ("layers.0.inner_attention", "layers.1.inner_attention")
    np.testing.assert_allclose(monitor.latest["entropy"].values, oracle(model, PROBE)["entropy"], **CLOSE)


def test_attention_by_hand_without_a_function_is_told_of_the_argument():
    with pytest.raises(JomaError, match="the argument attention tells of others"):
        Monitor(made(lambda: Network(CausalSelfAttention)), probe=PROBE).__enter__()


def test_options_come_with_queries_and_keys():
    model = made(lambda: Network(CausalSelfAttention)).eval()
    windowed = lambda module, x: (*nanogpt(module, x), {"causal": True, "window": 1})
    with Monitor(model, probe=PROBE, measures=["effective_keys"], attention={CausalSelfAttention: windowed}) as monitor:
        pass
    np.testing.assert_allclose(monitor.latest["effective_keys"].values, 1.0, **CLOSE)


def test_a_class_that_derives_from_one_with_a_function_has_it_too():
    class Mine(CausalSelfAttention):
        pass

    model = made(lambda: Network(Mine)).eval()
    with torch.no_grad(), collect_plain(model, attention=ADAPTERS) as probe:
        model(PROBE)
    assert probe.layers == ["layers.0", "layers.1"]
    assert probe.calls == 2


@pytest.mark.parametrize(
    ("attention", "sentence"),
    [
        (3, "attention must be a mapping from classes of attention modules to functions"),
        ({"CausalSelfAttention": nanogpt}, "attention must be a mapping from classes"),
        ({CausalSelfAttention: 3}, "attention must be a mapping from classes"),
        ({CausalSelfAttention: lambda module, x: x}, "for CausalSelfAttention in attention must give queries and keys"),
        (
            {CausalSelfAttention: lambda module, x: (*nanogpt(module, x), {"windows": 3})},
            "what the function for CausalSelfAttention in attention gives cannot be measured: .*windows",
        ),
        (
            {CausalSelfAttention: lambda module, x: (nanogpt(module, x)[0], nanogpt(module, x)[1][..., :1])},
            "cannot be measured: q .* and k .* disagree",
        ),
    ],
)
def test_one_sentence_says_what_would_be_right(attention, sentence):
    model = made(lambda: Network(CausalSelfAttention))
    with pytest.raises(JomaError, match=sentence) as error:
        Monitor(model, probe=PROBE, attention=attention).__enter__()
    assert "\n" not in str(error.value)
    if isinstance(attention, dict):
        with pytest.raises(ProbeError, match=sentence), collect_plain(model, attention=attention):
            model(PROBE)

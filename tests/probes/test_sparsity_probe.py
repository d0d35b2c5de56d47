"""Sparsity of a running model, against float64 numbers from the attention weights that the model returns."""

import math

import pytest
import torch
from architectures import CAUSAL, TOKENS, build, inputs
from own_architectures import build as build_own
from own_architectures import tokens as own_tokens
from torch.utils._python_dispatch import TorchDispatchMode

from joma.measure.attention import logit_stats
from joma.models import Decoder, DecoderConfig
from joma.probes import (
    AttentionSparsity,
    ProbeError,
    attention_entropy,
    attention_means,
    attention_sparsity,
    collect,
    collect_plain,
)
from joma.probes._sparsity import of_logits
from joma.probes.decoder import ensemble_entropy

CLOSE = {"rtol": 1e-4, "atol": 2e-5}
KEEP = 3


def slow(w, keep=KEEP, first=None):
    """The six numbers of weights (..., queries, keys) in float64, each (..., queries); 0 is a key that is not seen."""
    w = w.double()
    seen, ranked = (w > 0).sum(-1), w.sort(descending=True).values
    count = (seen * 0.1).ceil().clamp(min=1).long()
    column = torch.arange(w.shape[-1])
    tenth = (ranked * (column < count[..., None])).sum(-1)
    few = w[..., :4] if first is None else torch.where((column >= first) & (column < first + 4), w, 0.0)
    one = w[..., 0] if first is None else torch.where(column == first, w, 0.0).sum(-1)
    above = (w > 0.01 * ranked[..., :1]).sum(-1).double()
    effective = torch.special.entr(w).sum(-1).exp()
    return tenth, ranked[..., :keep].sum(-1), one, few.sum(-1), 1 - above / seen, effective / seen


def weights_of(model, given):
    with torch.no_grad():
        return [w.double() for w in model(**given, output_attentions=True).attentions]


def must_agree(found, weights, real=None, first=None, queries=None):
    for name, mean, wanted in zip(
        AttentionSparsity._fields, found, zip(*(slow(w, first=first) for w in weights), strict=True), strict=True
    ):
        rows = [w[:, :, :queries] if queries else w for w in wanted]
        want = torch.stack([row.mean((0, 2)) if real is None else row.transpose(1, 2)[real].mean(0) for row in rows])
        torch.testing.assert_close(mean, want, msg=lambda text, name=name: f"{name}: {text}", **CLOSE)


@pytest.mark.parametrize("kind", [*CAUSAL, "bert", "modernbert"])
def test_means_are_those_of_the_weights(kind):
    model, given = build(kind, spread=6.0), inputs(kind, length=40)
    with torch.no_grad(), collect(model, sparsity=KEEP) as probe:
        model(**given)
    must_agree(probe.mean_sparsity(), weights_of(model, given))
    assert probe.mean("near_zero").min() >= 0
    assert probe.sparsity[probe.layers[0]][0].top_tenth.shape == probe.stats[probe.layers[0]][0].entropy.shape


@pytest.mark.parametrize("single_pass", [False, True])
def test_padded_queries_and_padded_keys_do_not_count(single_pass):
    model, given = build("llama"), inputs("llama", length=20)
    given["attention_mask"] = torch.ones(2, 20, dtype=torch.long)
    given["attention_mask"][0, 15:] = 0
    with torch.no_grad(), collect(model, sparsity=KEEP, single_pass=single_pass) as probe:
        model(**given)
    must_agree(probe.mean_sparsity(), weights_of(model, given), given["attention_mask"].bool())


def test_packed_documents_have_their_own_first_keys():
    model, ids = build("llama"), inputs("llama", batch=1, length=20)["input_ids"]
    position = torch.cat([torch.arange(8), torch.arange(12)])[None]
    with torch.no_grad(), collect(model, sparsity=KEEP) as probe:
        model(input_ids=ids, position_ids=position, use_cache=False)
    each = []
    for part in (ids[:, :8], ids[:, 8:]):
        with torch.no_grad(), collect(model, sparsity=KEEP) as alone:
            model(input_ids=part)
        each.append(torch.stack(list(alone.mean_sparsity())))
    torch.testing.assert_close(torch.stack(list(probe.mean_sparsity())), (8 * each[0] + 12 * each[1]) / 20, **CLOSE)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", ["bloom", "gptj", "openai-gpt", "xlnet", "mpt", "deberta", "longformer"])
def test_models_that_compute_attention_by_themselves(kind, padded):
    model, ids = build_own(kind), own_tokens()
    given = {"input_ids": ids}
    real = torch.ones_like(ids).bool()
    if padded:
        real[0, 9:] = False
        given["attention_mask"] = real.long()
    with torch.no_grad(), collect(model, sparsity=KEEP) as probe:
        model(**given)
    weights = weights_of(model, given)
    first = 4 - torch.arange(12)[:, None] if kind == "longformer" else None
    must_agree(probe.mean_sparsity(), weights, real, first)


def test_plain_modules_are_measured_too():
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    with torch.no_grad():
        layer.in_proj_weight.mul_(4)
    x, mask = torch.randn(2, 20, 8), torch.ones(20, 20).triu(1).bool()
    with torch.no_grad(), collect_plain(layer, sparsity=KEEP) as probe:
        _, w = layer(x, x, x, attn_mask=mask, average_attn_weights=False)
    must_agree(probe.mean_sparsity(), [w])


def text(length=150):
    return torch.randint(TOKENS, (length,), generator=torch.Generator().manual_seed(3))


def test_a_text_is_read_once_for_entropy_and_sparsity():
    model = build("gpt_neox")
    sparsity = attention_sparsity(model, text(), keep=KEEP, context=16, batch=4)
    must_agree(sparsity, weights_of(model, {"input_ids": text()[:144].view(9, 16)}))
    read = []
    model.base_model.register_forward_pre_hook(lambda *_: read.append(1))
    entropy, again = attention_means(model, text(), sparsity=KEEP, context=16, batch=4)
    assert len(read) == 3
    assert all(map(torch.equal, sparsity, again))
    assert torch.equal(entropy, attention_entropy(model, text(), context=16, batch=4))


@pytest.mark.parametrize("attention", ["softmax", "off-by-one", "learned-sink"])
def test_members_of_a_decoder(attention):
    config = DecoderConfig(vocabulary=TOKENS, width=16, mlp=8, layers=2, heads=2, context=20, attention=attention)
    decoder = Decoder(config, seeds=[0, 1, 2])
    with torch.no_grad():
        decoder.qkv.mul_(3)
        if attention == "learned-sink":
            decoder.sink.copy_(torch.randn(decoder.sink.shape, generator=torch.Generator().manual_seed(1)))
    windows, seen = text()[:140].view(7, 20), {}
    decoder.features(windows, look=lambda layer, name, value: seen.__setitem__((layer, name), value.detach()))
    entropy, found = attention_means(decoder, text(), sparsity=KEEP, context=20, batch=3)
    for layer in range(2):
        for got, want in zip(found, slow(seen[layer, "attention"]), strict=True):
            torch.testing.assert_close(got[:, layer], want.mean((1, 3)), **CLOSE)
    torch.testing.assert_close(entropy, ensemble_entropy(decoder, windows).detach(), **CLOSE)
    assert all(map(torch.equal, found, attention_sparsity(decoder, text(), keep=KEEP, context=20, batch=3)))


def test_uniform_attention_has_known_numbers():
    model = build("gpt2")
    with torch.no_grad():
        for layer in model.transformer.h:
            layer.attn.c_attn.weight[:, :64].zero_()
    found = attention_sparsity(model, text(40), keep=2, context=40)
    n = torch.arange(1, 41).double()
    wanted = ((n / 10).ceil() / n, (2 / n).clamp(max=1), 1 / n, (4 / n).clamp(max=1), 0 * n, 1 + 0 * n)
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want.mean().expand(2, 4), **CLOSE)


def test_no_tensor_of_queries_by_keys_is_made():
    class Kept(TorchDispatchMode):
        largest = 0

        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            made = function(*arguments, **(options or {}))
            self.largest = max(self.largest, made.numel() if isinstance(made, torch.Tensor) else 0)
            return made

    from transformers import LlamaConfig, LlamaModel

    length = 2048
    model = LlamaModel(LlamaConfig(vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                   num_attention_heads=1, max_position_embeddings=length))  # fmt: skip
    with Kept() as kept:
        attention_sparsity(model, torch.arange(length) % 9, context=length)
    assert kept.largest <= 1 << 20 < length * length / 3


def test_gradients_of_the_entropy_are_those_of_the_weights():
    model, given = build("gpt2", spread=4.0), inputs("gpt2")
    with collect(model, gradients=True) as probe:
        model(**given)
    tracked = torch.stack([probe.stats[name][0].entropy.mean() for name in probe.layers])
    weights = model(**given, output_attentions=True).attentions
    eager = torch.stack([-(w * w.clamp(min=1e-30).log()).sum(-1).mean() for w in weights])
    names = ["wte.weight", "h.0.attn.c_attn.weight", "h.0.mlp.c_fc.weight", "h.1.attn.c_attn.weight"]
    some = [model.transformer.get_parameter(name) for name in names]
    for one, other in zip(tracked, eager, strict=True):
        fast, direct = (torch.autograd.grad(x, some, retain_graph=True, allow_unused=True) for x in (one, other))
        for a, b in zip(fast, direct, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5 * float(b.abs().max()) + 1e-9)


def test_bad_input_gets_one_sentence():
    model = build("gpt2")
    with collect(model) as probe:
        model(**inputs("gpt2"))
    with pytest.raises(ValueError, match=r"near_zero was not measured: ask for it with collect\(model, sparsity=16\)"):
        probe.mean("near_zero")
    for wrong in (0, True, 1.5):
        with pytest.raises(ValueError, match="sparsity must be a number of keys, at least 1"):
            attention_sparsity(model, text(), keep=wrong)
    with pytest.raises(ProbeError, match="no gradient of their entropy"), collect(build_own("bloom"), gradients=True):
        pass
    for kind in ("sigmoid", "relu"):
        with pytest.raises(ValueError, match=f"{kind} attention weighs each key for itself"):
            attention_sparsity(Decoder(DecoderConfig(vocabulary=TOKENS, width=8, mlp=8, attention=kind), [0]), text())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")
def test_the_same_on_a_gpu():
    on_cpu = attention_sparsity(build("llama"), text(), keep=KEEP, context=50)
    on_gpu = attention_sparsity(build("llama"), text(), keep=KEEP, context=50, device="cuda")
    for a, b in zip(on_cpu, on_gpu, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    assert math.isfinite(float(on_gpu.top_tenth.mean()))


def test_a_query_that_sees_no_key_has_no_mass():
    """Its row is the lowest number everywhere, as padding makes it: no key of it is seen."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        low = torch.finfo(dtype).min
        scores = torch.tensor([[[[0.0, math.log(3.0), low, low], [low] * 4]]], dtype=dtype)
        found = of_logits(scores, logit_stats(scores), 2)
        for name, wanted in (("top_tenth", 0.75), ("top_keys", 1.0), ("first_keys", 1.0)):
            torch.testing.assert_close(getattr(found, name), torch.tensor([[[wanted, 0.0]]]), rtol=0, atol=2e-3)

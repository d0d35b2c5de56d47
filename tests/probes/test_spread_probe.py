"""The spread of a running model's logits: its variance from the weights that the model returns, its parts from q, k."""

import pytest
import torch
from architectures import CAUSAL, TOKENS, build, inputs
from own_architectures import build as build_own

from joma.measure.spread import Spread, spread
from joma.models import Decoder, DecoderConfig
from joma.probes import ProbeError, attention_spread, can_probe, collect, collect_plain, probe_text
from joma.probes.decoder import ensemble_spread

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def variance(weights, real=None):
    found = []
    for w in weights:
        logits = w.double().clamp(min=1e-300).log()
        seen = w > 0
        count = seen.sum(-1).clamp(min=1)
        mean = (logits * seen).sum(-1) / count
        row = ((logits - mean[..., None]).square() * seen).sum(-1) / count
        found.append(row.mean((0, 2)) if real is None else row.transpose(1, 2)[real].mean(0))
    return torch.stack(found)


def weights_of(model, given):
    with torch.no_grad():
        return [w.double() for w in model(**given, output_attentions=True).attentions]


def probed(model, given, **options):
    with torch.no_grad(), collect(model, spread=True, keep=False, **options) as probe:
        model(**given)
    return probe.mean_spread()


@pytest.mark.parametrize("kind", [*CAUSAL, "bert", "modernbert"])
def test_variance_is_that_of_the_weights(kind):
    model, given = build(kind, spread=4.0), inputs(kind, length=14)
    found = probed(model, given)
    torch.testing.assert_close(found.variance, variance(weights_of(model, given)), **CLOSE)
    assert found.variance.min() > 1e-3
    parts = found.shared + found.specific + found.cross
    assert torch.allclose(parts, found.variance, rtol=1e-5) == (kind != "gemma2")  # whose logits are capped
    torch.testing.assert_close(parts + found.added, found.variance)


@pytest.mark.parametrize("single_pass", [False, True])
def test_padded_queries_and_padded_keys_do_not_count(single_pass):
    model, given = build("llama", spread=4.0), inputs("llama", length=14)
    given["attention_mask"] = torch.ones(2, 14, dtype=torch.long)
    given["attention_mask"][0, 9:] = 0
    found = probed(model, given, single_pass=single_pass)
    torch.testing.assert_close(
        found.variance, variance(weights_of(model, given), given["attention_mask"].bool()), **CLOSE
    )


def test_parts_are_those_of_queries_and_keys_over_all_calls():
    """The mean query is that of all batches together, so the size of a batch changes nothing."""
    model = build("gpt2", spread=4.0).base_model
    ids = torch.randint(TOKENS, (96,), generator=torch.Generator().manual_seed(3)).view(6, 16)
    first = model.h[0]
    with torch.no_grad():
        x = first.ln_1(model.wte(ids) + model.wpe(torch.arange(16)))
        q, k = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in first.attn.c_attn(x).split(32, -1)[:2])
    want = spread(q.double(), k.double())
    for batch in (1, 4, 6):
        found = attention_spread(model, ids.flatten(), context=16, batch=batch)
        for name, got, exact in zip(Spread._fields, found, want, strict=True):
            torch.testing.assert_close(got[0], exact, msg=lambda text, name=name: f"{name}: {text}", **CLOSE)


def test_one_reading_gives_all():
    model, ids = build("gpt_neox", spread=4.0), torch.arange(150) % TOKENS
    read = []
    model.base_model.register_forward_pre_hook(lambda *_: read.append(1))
    probe = probe_text(model, ids, sparsity=3, spread=True, context=16, batch=4)
    assert len(read) == 3
    assert probe.mean("top_keys").shape == probe.mean_entropy().shape == probe.mean_spread().cross.shape == (2, 4)
    torch.testing.assert_close(probe.mean_spread().shared, attention_spread(model, ids, context=16).shared, **CLOSE)


def test_plain_modules_and_their_sinks():
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True, add_zero_attn=True).eval()
    x = torch.randn(2, 9, 8)
    with torch.no_grad(), collect_plain(layer, spread=True) as probe:
        _, w = layer(x, x, x, average_attn_weights=False)
    torch.testing.assert_close(probe.mean_spread().variance, variance([w[..., :-1]]), **CLOSE)  # a sink is no key


def test_padded_queries_of_plain_modules_do_not_count():
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x, padded = torch.randn(2, 9, 8), torch.zeros(2, 9, dtype=torch.bool)
    padded[0, 6:] = True
    with torch.no_grad(), collect_plain(layer, spread=True) as probe:
        _, w = layer(x, x, x, key_padding_mask=padded, average_attn_weights=False)
    torch.testing.assert_close(probe.mean_spread().variance, variance([w], ~padded), **CLOSE)


def test_a_model_whose_queries_are_not_seen_is_refused():
    model = build_own("gptj")
    assert "compute attention by themselves" in can_probe(model.config, spread=True)
    assert can_probe(build("llama").config, spread=True) is None
    with pytest.raises(ProbeError, match="sees no queries"), collect(model, spread=True):
        pass
    falcon = build_own("falcon")  # runs on scaled_dot_product_attention, where queries are seen
    assert can_probe(falcon.config, spread=True) is None
    given = {"input_ids": torch.arange(12)[None]}
    torch.testing.assert_close(probed(falcon, given).variance, variance(weights_of(falcon, given)), **CLOSE)


def test_what_was_not_asked_for():
    model = build("gpt2")
    with torch.no_grad(), collect(model) as probe:
        model(**inputs("gpt2"))
    with pytest.raises(ValueError, match="spread=True"):
        probe.mean_spread()
    with pytest.raises(ValueError, match="Decoder"):
        probe_text(Decoder(DecoderConfig(vocabulary=9, width=8, mlp=8), seeds=[0]), [1, 2, 3])


@pytest.mark.parametrize("norm", ["none", "post-layer", "pre-layer", "pre-rms"])
def test_members_of_a_decoder_and_why_their_logits_spread(norm):
    config = DecoderConfig(vocabulary=TOKENS, width=16, mlp=8, layers=2, heads=2, context=20, norm=norm)
    decoder = Decoder(config, seeds=[0, 1, 2])
    with torch.no_grad():
        decoder.qkv.mul_(3)
        decoder.qkv_bias.normal_(generator=torch.Generator().manual_seed(0))
    ids = torch.randint(TOKENS, (5, 20), generator=torch.Generator().manual_seed(1))
    seen = {}
    decoder.features(ids, look=lambda layer, name, value: seen.update({(layer, name): value.detach().double()}))
    found, factors = ensemble_spread(decoder, ids)
    for member in range(3):
        for layer in range(2):
            q, k, x = (seen[layer, name][member] for name in ("query", "key", "input"))
            want = spread(q, k)
            for got, exact in zip(found, want, strict=True):
                torch.testing.assert_close(got[member, layer], exact, **CLOSE)
            # tr(M C) needs no weights: E[q q'] and the covariance of keys, here token by token
            q, k, x = q.transpose(0, 1).flatten(1, 2), k.transpose(0, 1).flatten(1, 2), x.flatten(0, 1)
            each = zip(q, k, strict=True)
            product = torch.stack([(a @ torch.cov(b.T, correction=0) * a).sum(-1).mean() / 8 for a, b in each])
            got = torch.stack([getattr(factors, name)[member, layer] for name in ("growth", "alignment", "context")])
            torch.testing.assert_close(got.prod(0).double(), want.variance, **CLOSE)
            torch.testing.assert_close((got[0] * got[1]).double(), product, **CLOSE)
            share = x.mean(0).square().sum() / x.square().sum(1).mean()
            torch.testing.assert_close(factors.mean_share[member, layer].double(), share, **CLOSE)
    text = ids.flatten()
    whole = attention_spread(decoder, text, context=20, batch=2)
    for got, want in zip(whole, found, strict=True):
        torch.testing.assert_close(got, want.double(), **CLOSE)

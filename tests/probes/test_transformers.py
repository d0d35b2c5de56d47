"""Statistics collected inside transformers models, against the weights that eager attention returns."""

import itertools
import re

import pytest
import torch
from architectures import BEYOND_SDPA, CAUSAL, ENCODERS, build, inputs, sparse
from torch import nn

from joma.measure.attention import AttentionStats
from joma.probes import Probe, ProbeError, _masks, _transformers, collect
from joma.probes._masks import is_selection, selected

CLOSE = {"rtol": 1e-4, "atol": 2e-5}


def result(output):
    return output.logits if "logits" in output else output.last_hidden_state


def entropies(weights):
    return [torch.special.entr(w.double()).sum(-1) for w in weights]


@pytest.mark.parametrize("kind", [*CAUSAL, *ENCODERS])
def test_logits_are_those_of_sdpa_and_entropies_those_of_eager(kind):
    model, given = build(kind), inputs(kind)
    with torch.no_grad():
        eager = model(**given, output_attentions=True)
        with collect(model) as probe:
            measured = result(model(**given))
        assert model.config._attn_implementation == "eager"
        reference = result(eager)
        if kind not in BEYOND_SDPA:
            model.set_attn_implementation("sdpa")
            assert torch.equal(measured, result(model(**given)))
    torch.testing.assert_close(measured, reference, **CLOSE)
    assert len(probe.layers) == len(eager.attentions) == 2
    spread = []
    for name, want in zip(probe.layers, entropies(eager.attentions), strict=True):
        torch.testing.assert_close(probe.stats[name][0].entropy.double(), want, **CLOSE)
        spread.append(float(want.std()))
    assert max(spread) > 0.05  # entropies that differ, so that a mixed-up head or layer would show
    torch.testing.assert_close(
        probe.mean_entropy(), torch.stack([e.mean((0, 2)) for e in entropies(eager.attentions)]), **CLOSE
    )


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", [kind for kind in [*CAUSAL, *ENCODERS] if kind != "vit"])
def test_padded_tokens_are_neither_keys_nor_counted_queries(kind, side, monkeypatch):
    monkeypatch.setattr(_masks, "as_bias", lambda mask: pytest.fail("a usual mask was not recognised"))
    model, given = build(kind), inputs(kind)
    real = torch.ones_like(given["input_ids"], dtype=torch.bool)
    real[0, :4] = False
    real = real if side == "left" else real.flip(1)
    with torch.no_grad():
        eager = model(**given, attention_mask=real.long(), output_attentions=True)
        with collect(model) as probe:
            measured = result(model(**given, attention_mask=real.long()))
    torch.testing.assert_close(measured[real], result(eager)[real], **CLOSE)
    for row, want in enumerate(entropies(eager.attentions)):
        by_query = want.transpose(1, 2)[real]  # (real queries, heads)
        got = probe.stats[probe.layers[row]][0].entropy.double().transpose(1, 2)[real]
        torch.testing.assert_close(got, by_query, **CLOSE)
        torch.testing.assert_close(probe.mean_entropy()[row], by_query.mean(0), **CLOSE)


@pytest.mark.parametrize("single_pass", [False, True])
@pytest.mark.parametrize("kind", CAUSAL)
def test_a_later_token_changes_nothing_before_it(kind, single_pass):
    model, given = build(kind), inputs(kind)
    changed = {"input_ids": given["input_ids"].clone()}
    changed["input_ids"][:, 8] += 1
    seen = []
    for each in (given, changed):
        with torch.no_grad(), collect(model, single_pass=single_pass) as probe:
            seen.append((model(**each).logits, [probe.stats[name][0] for name in probe.layers]))
    (before, stats), (after, changed_stats) = seen
    torch.testing.assert_close(before[:, :8], after[:, :8], rtol=0, atol=1e-6)
    assert not torch.allclose(before[:, 8:], after[:, 8:])
    for a, b in zip(stats, changed_stats, strict=True):
        torch.testing.assert_close(a.entropy[..., :8], b.entropy[..., :8], rtol=0, atol=1e-5)
        torch.testing.assert_close(a.lse[..., :8], b.lse[..., :8], rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", [*CAUSAL, "bert"])
def test_one_pass_gives_what_two_give(kind):
    model, given = build(kind), inputs(kind)
    with torch.no_grad():
        with collect(model) as two:
            reference = result(model(**given))
        with collect(model, single_pass=True) as one:
            torch.testing.assert_close(result(model(**given)), reference, **CLOSE)
    for name in AttentionStats._fields:
        torch.testing.assert_close(one.mean(name), two.mean(name), **CLOSE)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("kind", ["llama", "gemma2", "mistral"])
def test_decoding_token_by_token_gives_the_same_statistics(kind, static):
    from transformers import StaticCache

    model, given = build(kind), inputs(kind)
    with torch.no_grad():
        with collect(model) as whole:
            model(**given)
        cache = StaticCache(config=model.config, max_cache_len=20) if static else None
        with collect(model) as steps:
            for part in given["input_ids"].split([5, 1, 1, 3, 2], dim=1):
                cache = model(input_ids=part, past_key_values=cache, use_cache=True).past_key_values
    for name in whole.layers:
        for field, want in zip(AttentionStats._fields, whole.stats[name][0], strict=True):
            got = torch.cat([getattr(call, field) for call in steps.stats[name]], dim=-1)
            if field == "sink_mass" and kind != "llama":  # a cache of a window has forgotten the first key
                got, want = got[..., :5], want[..., :5]
            torch.testing.assert_close(got, want, **CLOSE)


def test_generate_is_measured_and_counts_every_token():
    model = build("llama")
    with torch.no_grad(), collect(model) as probe:
        model.generate(**inputs("llama"), max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert [call.entropy.shape for call in probe.stats[probe.layers[0]]] == [(2, 4, 12), *[(2, 4, 1)] * 3]


def test_own_masks_go_through_a_bias():
    model, given = build("llama"), inputs("llama")
    mask = torch.ones(12, 12, dtype=torch.bool).tril()
    mask[9:, 2] = False
    own = {"attention_mask": torch.where(mask, 0.0, torch.finfo(torch.float32).min).expand(2, 1, 12, 12)}
    with torch.no_grad():
        eager = model(**given, **own, output_attentions=True)
        with collect(model) as probe:
            model(**given, **own)
    for name, want in zip(probe.layers, entropies(eager.attentions), strict=True):
        torch.testing.assert_close(probe.stats[name][0].entropy.double(), want, **CLOSE)


PACKED = [[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6], [0, 1, 0, 1, 2, 3, 4, 5, 6, 0, 1, 2]]
BORDERS = [[0, 5, 12], [0, 2, 9, 12]]


@pytest.mark.parametrize("single_pass", [False, True])
@pytest.mark.parametrize("kind", ["llama", "mistral", "gpt_neox"])
def test_packed_texts_are_documents_and_no_bias(kind, single_pass, monkeypatch):
    monkeypatch.setattr(_masks, "as_bias", lambda mask: pytest.fail("the documents were not recognised"))
    model, given = build(kind), inputs(kind)
    packed = {"position_ids": torch.tensor(PACKED), "use_cache": False}
    with torch.no_grad():
        eager = model(**given, **packed, output_attentions=True)
        with collect(model, single_pass=single_pass) as probe:
            logits = model(**given, **packed).logits
        torch.testing.assert_close(logits, eager.logits, **CLOSE)
        for name, want in zip(probe.layers, entropies(eager.attentions), strict=True):
            torch.testing.assert_close(probe.stats[name][0].entropy.double(), want, **CLOSE)
        for row, borders in enumerate(BORDERS):
            for start, stop in itertools.pairwise(borders):
                with collect(model, single_pass=single_pass) as alone:
                    model(given["input_ids"][row : row + 1, start:stop])
                for name in probe.layers:
                    for a, b in zip(probe.stats[name][0], alone.stats[name][0], strict=True):
                        torch.testing.assert_close(a[row : row + 1, :, start:stop], b, rtol=1e-3, atol=1e-4)


def test_documents_of_a_model_that_does_not_look_at_positions():
    """gpt-oss builds its masks without them, so that only cu_seq_lens_q can tell; with windows and sinks besides."""
    model, ids = build("gpt_oss"), inputs("gpt_oss")["input_ids"][:1]
    ends = torch.tensor(BORDERS[0], dtype=torch.int32)
    with torch.no_grad(), collect(model) as probe:
        model(ids, position_ids=torch.tensor(PACKED[:1]), cu_seq_lens_q=ends, cu_seq_lens_k=ends, use_cache=False)
    for start, stop in itertools.pairwise(BORDERS[0]):
        with torch.no_grad(), collect(model) as alone:
            model(ids[:, start:stop])
        for name in probe.layers:
            for a, b in zip(probe.stats[name][0], alone.stats[name][0], strict=True):
                torch.testing.assert_close(a[..., start:stop], b, rtol=1e-3, atol=1e-4)


def test_documents_given_as_flash_attention_wants_them():
    """Without position_ids that restart sdpa would not see them; flash attention does, and so does the probe."""
    model, ids = build("llama"), inputs("llama")["input_ids"][:1]
    ends = torch.tensor(BORDERS[0], dtype=torch.int32)
    flash = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 7, "max_length_k": 7, "use_cache": False}
    places = {"position_ids": torch.tensor(PACKED[:1])}
    with torch.no_grad():
        with collect(model) as want:
            logits = model(ids, **places, use_cache=False).logits
        with collect(model) as same:
            torch.testing.assert_close(model(ids, **places, **flash).logits, logits, **CLOSE)
    for name in want.layers:
        for a, b in zip(want.stats[name][0], same.stats[name][0], strict=True):
            torch.testing.assert_close(a, b, **CLOSE)
    # Positions that do not restart leave the documents to cu_seq_lens_q alone; the first layer's keys are then turned.
    with torch.no_grad(), collect(model) as seen:
        model(ids, **flash)
    first = seen.stats[seen.layers[0]][0]
    assert (first.effective_keys[..., 5] <= 1 + 1e-6).all()
    torch.testing.assert_close(first.self_mass[..., 5], torch.ones(1, 4))
    with pytest.raises(ProbeError, match="is given cu_seq_lens_q, which needs one row"), collect(model):
        model(ids.repeat(2, 1), **flash)


def test_the_largest_logit_is_a_maximum_and_the_mean_of_maxima_another():
    model = build("llama")
    with torch.no_grad(), collect(model) as probe:
        for seed in range(3):
            model(**inputs("llama", seed=seed))
    for row, name in enumerate(probe.layers):
        every = torch.cat([call.max_logit for call in probe.stats[name]])
        assert torch.equal(probe.largest_logit()[row], every.amax((0, 2)).double())
        torch.testing.assert_close(probe.mean("max_logit")[row], every.double().mean((0, 2)))
    assert (probe.largest_logit() > probe.mean("max_logit")).all()
    with collect(model) as unused:
        pass
    with pytest.raises(ProbeError, match="LlamaForCausalLM was not called"):
        unused.largest_logit()


def test_padded_queries_have_no_part_in_the_largest_logit():
    probe = Probe(nn.Sequential(nn.Identity()), keep=False)
    logits = torch.tensor([[[1.0, 5.0, 9.0]]])
    probe.record("0", AttentionStats(*[logits] * 6), torch.tensor([[True, True, False]]))
    assert probe.largest_logit().tolist() == [[5.0]]


def test_encoder_decoder_with_position_bias_and_cross_attention():
    model, given = build("t5", spread=2.0), inputs("t5")
    real = torch.ones_like(given["input_ids"])
    real[0, 9:] = 0
    with torch.no_grad():
        eager = model(**given, attention_mask=real, output_attentions=True)
        with collect(model) as probe:
            model(**given, attention_mask=real)
    groups = {
        r"encoder.*SelfAttention": (eager.encoder_attentions, real.bool()),
        r"decoder.*SelfAttention": (eager.decoder_attentions, torch.ones_like(real).bool()),
        r"decoder.*EncDecAttention": (eager.cross_attentions, torch.ones_like(real).bool()),
    }
    for pattern, (weights, counted) in groups.items():
        rows = [i for i, name in enumerate(probe.layers) if re.match(pattern, name)]
        for row, each in zip(rows, entropies(weights), strict=True):
            mean = each.transpose(1, 2)[counted].mean(0)
            torch.testing.assert_close(probe.mean_entropy()[row], mean, **CLOSE)


def test_dropout_touches_the_output_and_not_the_statistics():
    model, given = build("llama"), inputs("llama")
    first = "model.layers.0.self_attn"
    with collect(model) as calm:
        model(**given)
    model.train()
    model.model.layers[0].self_attn.attention_dropout = 0.5
    torch.manual_seed(0)
    with collect(model, single_pass=True) as dropped:
        logits = model(**given).logits
    assert not torch.allclose(logits, model.eval()(**given).logits)
    torch.testing.assert_close(dropped.stats[first][0].entropy, calm.stats[first][0].entropy)

    capped = build("gemma2").train()
    capped.model.layers[0].self_attn.attention_dropout = 0.5
    with pytest.raises(ProbeError, match=r"Gemma2ForCausalLM: model.layers.0.self_attn uses dropout"), collect(capped):
        capped(**given)


def test_gradients_flow_and_checkpointing_counts_once():
    model, given = build("llama").train(), inputs("llama")
    model.gradient_checkpointing_enable()
    with collect(model) as probe:
        model(**given, labels=given["input_ids"], use_cache=False).loss.backward()
    assert [len(calls) for calls in probe.stats.values()] == [1, 1]
    assert not any(call.entropy.requires_grad for calls in probe.stats.values() for call in calls)
    assert model.model.layers[0].self_attn.q_proj.weight.grad.abs().sum() > 0


def test_gradients_flow_through_the_single_pass():
    model, given = build("gemma2"), inputs("gemma2")
    with collect(model):
        model(**given, labels=given["input_ids"]).loss.backward()
    measured = model.model.layers[0].self_attn.q_proj.weight.grad.clone()
    model.zero_grad()
    model(**given, labels=given["input_ids"]).loss.backward()
    torch.testing.assert_close(measured, model.model.layers[0].self_attn.q_proj.weight.grad, rtol=1e-3, atol=1e-5)


def test_several_calls_accumulate_and_keep_false_keeps_the_means():
    model = build("gpt_neox")
    with torch.no_grad(), collect(model) as kept, collect(model, keep=False) as bare:
        for seed in range(3):
            model(**inputs("gpt_neox", seed=seed, length=5 + seed))
    assert bare.stats == {}
    assert torch.equal(bare.mean_entropy(), kept.mean_entropy())
    every = torch.cat([call.entropy.transpose(1, 2).flatten(0, 1) for call in kept.stats[kept.layers[1]]])
    torch.testing.assert_close(kept.mean_entropy()[1], every.double().mean(0))


def test_where_two_probes_watch_the_first_names_the_layer():
    model = build("gpt_neox")
    layer, x = model.gpt_neox.layers[0].attention, torch.ones(1, 4, 3, 4)
    said = r"^GPTNeoXForCausalLM: gpt_neox\.layers\.0\.attention passes 'score_mod' to its attention"
    with collect(model), collect(model.gpt_neox), pytest.raises(ProbeError, match=said):
        _transformers._attention(layer, x, x, x, None, score_mod=object())


def test_two_models_at_once_and_a_model_inside_another_module():
    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = build("gpt2", attention="sdpa")

        def forward(self, ids):
            return self.inner(input_ids=ids)

    wrapper, other = Wrapper(), build("opt", seed=1)
    given = inputs("opt")
    with torch.no_grad(), collect(wrapper) as first, collect(other) as second:
        wrapper(given["input_ids"])
        other(**given)
    assert first.layers == ["inner.transformer.h.0.attn", "inner.transformer.h.1.attn"]
    assert second.layers == ["model.decoder.layers.0.self_attn", "model.decoder.layers.1.self_attn"]
    assert (wrapper.inner.config._attn_implementation, other.config._attn_implementation) == ("sdpa", "eager")


def test_the_setting_comes_back_after_an_error():
    model = build("llama", attention="sdpa")
    with pytest.raises(RuntimeError, match="stop"), collect(model):
        raise RuntimeError("stop")
    assert model.config._attn_implementation == "sdpa"
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


@pytest.mark.parametrize(("kind", "sentence"), [
    ("mamba", "MambaForCausalLM made no attention call"),
    ("squeezebert", "SqueezeBertForMaskedLM models do not send attention through transformers' AttentionInterface"),
])  # fmt: skip
def test_models_that_bypass_the_interface_are_refused_by_name(kind, sentence):
    model = build(kind)
    before = model.config._attn_implementation
    with pytest.raises(ProbeError, match=sentence), torch.no_grad(), collect(model):
        model(**inputs(kind))
    assert model.config._attn_implementation == before


def test_what_cannot_be_measured_gets_one_sentence():
    with pytest.raises(ProbeError, match="Linear is not a transformers model"), collect(nn.Linear(2, 2)):
        pass
    model = build("llama")
    with collect(model) as probe:
        pass
    with pytest.raises(ProbeError, match="LlamaForCausalLM was not called"):
        probe.mean_entropy()
    with pytest.raises(ValueError, match="measure must be one of entropy, lse"):
        probe.mean("warmth")
    with pytest.raises(ProbeError, match="passes 'indices' to its attention that select no keys"), collect(model):
        model(**inputs("llama"), indices=torch.zeros(1))
    with pytest.raises(ProbeError, match="passes 'block_indices'"), collect(model):
        model(**inputs("llama"), block_indices=torch.zeros(1))


def test_layers_with_fewer_heads_end_in_nan():
    probe = Probe(nn.Sequential(nn.Identity(), nn.Identity()), keep=True)
    for name, heads in (("1", 3), ("0", 2)):
        ones = torch.ones(1, heads, 4)
        probe.record(name, AttentionStats(*[ones * (i + 1) for i in range(6)]), None)
    assert probe.layers == ["0", "1"]
    assert torch.equal(probe.mean("lse").isnan(), torch.tensor([[False, False, True], [False] * 3]))
    assert probe.mean("lse")[1].tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("single_pass", [False, True])
@pytest.mark.parametrize("padded", [slice(0), slice(5), slice(7, None)])
def test_keys_that_the_model_selects_itself(single_pass, padded):
    """DeepSeek V3.2 masks all keys but those that its indexer names; eager attention returns the weights."""
    if (model := sparse()) is None:
        pytest.skip("this transformers has no DeepSeek V3.2")
    given, real = inputs("llama"), torch.ones(2, 12, dtype=torch.bool)
    real[0, padded] = False
    with torch.no_grad():
        eager = model(**given, attention_mask=real.long(), output_attentions=True)
        with collect(model, single_pass=single_pass) as probe:
            logits = model(**given, attention_mask=real.long()).logits
    assert model.config._attn_implementation == "eager"
    torch.testing.assert_close(logits[real], eager.logits[real], **CLOSE)
    few = (eager.attentions[0] > 0).sum(-1)
    assert int(few[1, 0, -1]) <= 4 < 12  # so that a probe that looked at all keys would be seen
    for name, want in zip(probe.layers, entropies(eager.attentions), strict=True):
        seen = real[:, None].expand_as(want)
        torch.testing.assert_close(probe.stats[name][0].entropy.double()[seen], want[seen], **CLOSE)
        mean = probe.mean_entropy()[probe.layers.index(name)].double()
        torch.testing.assert_close(mean, want.transpose(1, 2)[real].mean(0), **CLOSE)


@pytest.mark.parametrize("added", [False, True])
def test_a_selection_hides_all_keys_but_those_it_names(added):
    """A mask of true and false, or one that is added to logits; a key that is named and hidden stays hidden."""
    seen = torch.ones(2, 1, 3, 5, dtype=torch.bool).tril()
    lowest = torch.finfo(torch.float32).min
    mask = torch.zeros(seen.shape).masked_fill(~seen, lowest) if added else seen
    indices = torch.tensor([[[0, 0], [1, 3], [2, 0]], [[0, 4], [0, 1], [1, 1]]])
    found = selected(indices, mask)
    for batch, query, key in itertools.product(range(2), range(3), range(5)):
        there = key in indices[batch, query].tolist() and key <= query
        assert bool(found[batch, 0, query, key] == (0.0 if added else True)) == there
    query = torch.zeros(2, 4, 3, 8)
    assert is_selection(indices, query, mask)
    wrong = [indices + 1, indices - 1, indices[:1], indices.float(), indices[..., :0], indices > 0, indices[:, 0], None]
    assert not any(is_selection(one, query, mask) for one in wrong)
    assert not is_selection(indices, query, mask.double())


@pytest.mark.parametrize("spread", [2.0, 12.0])
def test_a_single_pass_of_t5_is_as_near_to_float64_as_sdpa_is(spread):
    """T5 does not scale its logits. Where they are large, sdpa itself is 3e-4 of the largest state from float64."""
    model, given = build("t5", spread=spread), inputs("t5", length=24)
    double = build("t5", spread=spread).double()
    with torch.no_grad():
        exact = double(**given).last_hidden_state
        model.set_attn_implementation("sdpa")
        usual = model(**given).last_hidden_state
        with collect(model, single_pass=True) as probe:
            single = model(**given).last_hidden_state
    off, allowed = ((each - exact).abs().max() / exact.abs().max() for each in (single, usual))
    assert off < 5 * allowed + 1e-6
    assert len(probe.layers) == 6


@pytest.mark.parametrize("spread", [2.0, 12.0])
def test_entropies_of_t5_are_as_near_to_float64_as_its_float32_logits_allow(spread):
    """Its logits are not scaled, so float32 rounds them more: to 6e-4 nats, where other models have 4e-7."""
    given, off = inputs("t5", length=24), {}
    double = build("t5", spread=spread).double()
    double.set_attn_implementation("eager")
    with torch.no_grad():
        exact = [entropies(of) for of in _attentions(double(**given, output_attentions=True))]
        for kind in ("float32", "float64"):
            model = build("t5", spread=spread).to(getattr(torch, kind))
            with collect(model, single_pass=True) as probe:
                model(**given)
            found = [probe.stats[name][0].entropy.double() for name in probe.layers]
            off[kind] = max(float((one - want).abs().max()) for one, want in zip(found, _in_order(exact), strict=True))
        single = build("t5", spread=spread)
        single.set_attn_implementation("eager")
        usual = [entropies(of) for of in _attentions(single(**given, output_attentions=True))]
    allowed = max(float((one - want).abs().max()) for one, want in zip(_in_order(usual), _in_order(exact), strict=True))
    assert off["float64"] < 1e-11
    assert off["float32"] < 5 * allowed + 1e-6


def _attentions(found):
    return found.encoder_attentions, found.decoder_attentions, found.cross_attentions


def _in_order(three):
    encoder, own, across = three
    return [*encoder, *(each for pair in zip(own, across, strict=True) for each in pair)]

"""Models that compute attention by themselves, against the weights that they return, and what is refused by config."""

import math
from itertools import pairwise

import pytest
import torch
from later import some_now
from own_architectures import CONFIGS, build, config, tokens
from torch.utils._python_dispatch import TorchDispatchMode

from joma.measure.attention import AttentionStats, attention_stats, logit_stats
from joma.probes import ProbeError, _text, attention_entropy, can_probe, collect
from joma.probes._own import ATTENDING

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
PADDED = torch.ones(2, 12, dtype=torch.long)
PADDED[0, 9:] = 0


def weights_of(model, ids, **given):
    with torch.no_grad():
        found = model(input_ids=ids, output_attentions=True, **given).attentions
    return [w.double() for w in found]


def entropy(w):
    return torch.special.entr(w).sum(-1)


def test_every_model_that_is_said_to_be_seen_is_tested():
    assert {kind.split(",")[0] for kind in CONFIGS} == set(ATTENDING)


@pytest.mark.parametrize(
    ("padded", "kind"),  # every kind now, once with padding and once without
    some_now([(padded == place % 2, kind) for place, kind in enumerate(CONFIGS) for padded in (0, 1)], every=2),
)
def test_entropy_is_that_of_the_weights_and_outputs_do_not_change(kind, padded):
    model, ids = build(kind), tokens()
    given = {"attention_mask": PADDED} if padded else {}
    real = PADDED.bool() if padded else torch.ones_like(PADDED).bool()
    with torch.no_grad():
        plain = model(input_ids=ids, **given)[0]
        with collect(model) as probe:
            measured = model(input_ids=ids, **given)[0]
    if kind.startswith("falcon"):  # runs on sdpa inside the block
        torch.testing.assert_close(measured[real], plain[real], rtol=1e-3, atol=1e-4)
    else:
        assert torch.equal(measured, plain)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    weights = weights_of(model, ids, **given)
    assert len(probe.layers) == len(weights) == 2
    for row, (name, w) in enumerate(zip(probe.layers, weights, strict=True)):
        want = entropy(w).transpose(1, 2)[real]
        stats = probe.stats[name][0]
        got = stats.entropy[:, :, : w.shape[2]].double().transpose(1, 2)
        torch.testing.assert_close(got[real], want, **CLOSE)
        torch.testing.assert_close(probe.mean_entropy()[row], want.mean(0), **CLOSE)
        assert want.std() > 0.02  # queries that differ


@pytest.mark.parametrize("kind", ["gptj", "bloom", "mpt", "xlnet", "longformer"])
def test_masses_are_columns_of_the_weights(kind):
    model, ids = build(kind), tokens()
    with torch.no_grad(), collect(model) as probe:
        model(input_ids=ids)
    query = torch.arange(12)
    for name, w in zip(probe.layers, weights_of(model, ids), strict=True):
        stats = probe.stats[name][0]
        own, first = (w[..., query, query], w[..., 0]) if kind != "longformer" else _of_window(w, query)
        torch.testing.assert_close(stats.self_mass[..., :12].double(), own, **CLOSE)
        torch.testing.assert_close(stats.sink_mass[..., :12].double(), first, **CLOSE)
        torch.testing.assert_close(stats.effective_keys[..., :12].double(), entropy(w).exp(), **CLOSE)


def _of_window(w, query, one_side=4):
    column = one_side - query
    first = torch.where(column >= 0, w[..., query, column.clamp(min=0)], 0.0)
    return w[..., query, one_side], first


def test_the_logits_of_gpt_j_are_its_queries_times_its_keys():
    """lse and max_logit cannot be had from weights: against the fast path on the model's own queries and keys."""
    model, ids = build("gptj"), tokens()
    seen = []
    own = model.h[0].attn._attn
    model.h[0].attn._attn = lambda q, k, v, *rest: (seen.append((q, k)), own(q, k, v, *rest))[1]
    with torch.no_grad(), collect(model) as probe:
        model(input_ids=ids)
    ((q, k),) = seen
    for a, b in zip(probe.stats["h.0.attn"][0], attention_stats(q, k), strict=True):
        torch.testing.assert_close(a, b, **CLOSE)


def test_alibi_of_falcon_is_added_once_on_sdpa(monkeypatch):
    """transformers 5.22 adds it twice in its eager code. Half of it there is the reference."""
    from transformers.models.falcon import modeling_falcon as falcon

    model = build("falcon", attention="sdpa", alibi=True)
    with torch.no_grad(), collect(model) as probe:
        output = model(input_ids=tokens())[0]
    assert model.config._attn_implementation == "sdpa"
    slow, whole = build("falcon", alibi=True), falcon.build_alibi_tensor
    monkeypatch.setattr(falcon, "build_alibi_tensor", lambda *args, **options: whole(*args, **options) / 2)
    with torch.no_grad():
        same = torch.allclose(slow(input_ids=tokens())[0], output, atol=1e-3)
    if not same:
        monkeypatch.setattr(falcon, "build_alibi_tensor", whole)  # a version that adds it once
    for name, w in zip(probe.layers, weights_of(slow, tokens()), strict=True):
        torch.testing.assert_close(probe.stats[name][0].entropy.double(), entropy(w), rtol=1e-3, atol=1e-4)


def test_falcon_with_alibi_is_measured_as_it_runs_and_a_warning_says_of_the_other():
    model = build("falcon", alibi=True)
    with torch.no_grad():
        plain = model(input_ids=tokens())[0]
        with pytest.warns(UserWarning, match="adds it twice: this was measured, and on sdpa"), collect(model) as probe:
            measured = model(input_ids=tokens())[0]
    assert torch.equal(measured, plain)
    for name, w in zip(probe.layers, weights_of(model, tokens()), strict=True):
        torch.testing.assert_close(probe.stats[name][0].entropy.double(), entropy(w), **CLOSE)
    with pytest.raises(ProbeError, match="sees no queries"), collect(model, spread=True):
        pass


def test_a_scan_runs_falcon_as_transformers_does_unasked(tmp_path):
    from transformers import AutoModel

    from joma.scan.model.loading import loaded_model

    build("falcon", alibi=True).save_pretrained(tmp_path)
    unasked = AutoModel.from_pretrained(tmp_path).config._attn_implementation
    assert loaded_model(tmp_path, torch.device("cpu")).config._attn_implementation == unasked == "sdpa"


def test_one_layers_logits_are_reduced_a_few_rows_at_a_time(monkeypatch):
    class Kept(TorchDispatchMode):
        largest = 0

        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            made = function(*arguments, **(options or {}))
            if isinstance(made, torch.Tensor) and made.untyped_storage().data_ptr() != logits.data_ptr():
                self.largest = max(self.largest, made.numel())
            return made

    monkeypatch.setattr("joma.measure.attention._ELEMENTS", 1 << 16)
    logits = torch.randn(2, 2, 500, 500)
    with Kept() as kept:
        stats = logit_stats(logits)
    assert kept.largest <= 1 << 16 < logits.numel() / 7
    torch.testing.assert_close(stats.entropy, torch.special.entr(logits.softmax(-1)).sum(-1), **CLOSE)


def test_rows_of_masked_logits_follow_the_rule():
    lowest = torch.finfo(torch.float32).min
    logits = torch.tensor([[1.0, lowest, lowest], [-torch.inf] * 3, [lowest] * 3, [0.0, 0.0, lowest]])[None, None]
    stats = logit_stats(logits, own=[0, 1, 2, 2])
    assert stats.entropy[0, 0].tolist() == pytest.approx([0, 0, 0, math.log(2)])
    assert stats.lse[0, 0].tolist() == pytest.approx([1.0, -math.inf, -math.inf, math.log(2)])
    assert stats.sink_mass[0, 0].tolist() == [1.0, 0.0, 0.0, 0.5]
    assert stats.self_mass[0, 0].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert stats.effective_keys[0, 0].tolist() == pytest.approx([1, 0, 0, 2])


@pytest.mark.parametrize(("given", "sentence"), [
    ({"logits": torch.zeros(2, 3, 4)}, r"logits must be \(batch, heads, queries, keys\)"),
    ({"logits": torch.zeros(1, 1, 2, 0)}, "none of them 0"),
    ({"logits": torch.zeros(1, 1, 2, 3), "own": [0]}, r"own must be whole numbers of shape \(2,\)"),
    ({"logits": torch.zeros(1, 1, 2, 3), "first": [0.0, 1.0]}, "first must be whole numbers"),
])  # fmt: skip
def test_bad_logits_get_one_sentence(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        logit_stats(**given)


def test_a_text_is_read_in_as_few_windows_as_memory_allows(monkeypatch):
    model, text = build("bloom"), tokens(1, 120)[0]
    sizes = []
    model.register_forward_pre_hook(lambda _, __, given: sizes.append(len(given["input_ids"])), with_kwargs=True)
    whole = attention_entropy(model, text, context=12, batch=5)
    monkeypatch.setattr(_text, "LOGITS", 2 * 4 * 12 * 12)
    torch.testing.assert_close(attention_entropy(model, text, context=12, batch=5), whole)
    assert sizes == [5, 5] + [2] * 5
    monkeypatch.setattr(_text, "LOGITS", 1)
    torch.testing.assert_close(attention_entropy(model, text, context=12), whole)
    assert sizes[7:] == [1] * 10


def test_dropout_and_gradients_are_the_models_own():
    model = build("gpt_neo", attention_dropout=0.5).train()
    with collect(model) as probe:
        model(input_ids=tokens())[0].sum().backward()
    assert model.h[0].attn.attention.q_proj.weight.grad.abs().sum() > 0
    with collect(model.eval()) as calm:
        model(input_ids=tokens())
    first = probe.layers[0]
    torch.testing.assert_close(probe.stats[first][0].entropy, calm.stats[first][0].entropy)
    assert not probe.stats[first][0].entropy.requires_grad


@pytest.mark.parametrize("kind", ["gpt_neo", "gptj", "codegen"])
def test_decoding_with_a_cache_gives_the_same_statistics(kind):
    model, ids = build(kind), tokens()
    with torch.no_grad():
        with collect(model) as whole:
            model(input_ids=ids)
        cache = None
        with collect(model) as steps:
            for start, stop in pairwise([0, 5, 6, 12]):
                cache = model(input_ids=ids[:, start:stop], past_key_values=cache, use_cache=True).past_key_values
    for name in whole.layers:
        for field, want in zip(AttentionStats._fields, whole.stats[name][0], strict=True):
            got = torch.cat([getattr(call, field) for call in steps.stats[name]], dim=-1)
            torch.testing.assert_close(got, want, **CLOSE)


@pytest.mark.parametrize(("kind", "given", "sentence"), [
    ("longformer", {"global_attention_mask": PADDED}, "LongformerModel was given global_attention_mask, and global"),
    ("xlnet", {"target_mapping": torch.zeros(2, 1, 12)}, "XLNetModel was given target_mapping, and two streams"),
    ("xlnet", {"perm_mask": torch.zeros(2, 12, 12)}, "XLNetModel was given perm_mask"),
])  # fmt: skip
def test_what_is_not_exact_is_refused_in_one_sentence(kind, given, sentence):
    model = build(kind)
    with pytest.raises(ProbeError, match=sentence), torch.no_grad(), collect(model):
        model(input_ids=tokens(), **given)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("dim", [0, 1, 2, -2])
def test_a_softmax_over_another_axis_than_the_keys_is_refused(dim):
    model = build("gpt_neo")
    model.h[0].attn.attention.forward = lambda *_, **__: torch.softmax(torch.zeros(2, 2, 12, 12), dim)
    with pytest.raises(ProbeError, match="applies softmax in an unknown way"), collect(model):
        model(input_ids=tokens())


@pytest.mark.parametrize("kind", CONFIGS)
def test_configs_of_models_that_are_seen(kind):
    assert can_probe(config(kind)) is None


@pytest.mark.parametrize(("name", "sentence"), [
    ("LlamaConfig", None),
    ("GptOssConfig", None),
    ("Gemma3Config", None),
    ("JambaConfig", None),
    ("MambaConfig", "mamba models have no softmax to read; joma.probes.state_decay reads"),
    ("FNetConfig", "fnet models have no attention"),
    ("T5Config", "t5 models read two texts: call the model yourself inside joma.probes.collect"),
    ("ReformerConfig", "reformer models do not send attention through transformers' AttentionInterface"),
    ("BigBirdConfig", "big_bird models do not send attention"),
    ("DeepseekV32Config", None),
    ("MiniMaxM3VLTextConfig",
     "minimax_m3_vl_text models attend to blocks of keys that they select as they go: they cannot be measured"),
])  # fmt: skip
def test_configs_are_told_apart_before_anything_is_loaded(name, sentence):
    import transformers as hf

    if not hasattr(hf, name):
        pytest.skip(f"this transformers has no {name}")
    found = can_probe(getattr(hf, name)())
    assert found is None if sentence is None else found.startswith(sentence)


def test_a_config_of_nothing_gets_a_sentence():
    from transformers import PreTrainedConfig

    assert (
        can_probe(PreTrainedConfig())
        == "transformers has no model for a config of type 'PreTrainedConfig': it cannot be measured"
    )

"""Which models and which tokens: what has no cache that can be cut gets one sentence."""

from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from slow_cache import slow_losses
from tiny_models import LENGTH, TOKENS, without_cache

from joma.cache import CacheError, _attention, evicting, losses, rule
from joma.cache.models import cannot_be_cut
from joma.cache.policies import Call, h2o, h2o_oracle, snapkv, top_k
from joma.host.errors import BadInput


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("mamba", "MambaForCausalLM has no attention: there is no cache to cut"),
        ("bert", "a model that attends in both directions has no cache"),
        ("t5", "T5ForConditionalGeneration reads two texts"),
        ("gpt_neo", "GPTNeoForCausalLM does not send attention through transformers' AttentionInterface"),
        ("headless", "GPTNeoXModel has no head that predicts the next token"),
        ("sliding", "the model already forgets what is 8 tokens away, and is asked to read 40"),
        ("decoder", "Decoder is not a model of transformers"),
    ],
)
def test_a_model_without_a_cache_to_cut(kind, sentence, tokens):
    with pytest.raises(CacheError, match=sentence):
        losses(without_cache(kind), tokens, "window", 0.5)


def test_a_window_longer_than_the_text_is_no_window(tokens):
    """Where the model forgets nothing by itself, the policy alone decides: as the oracle, which knows no window."""
    model, few = without_cache("sliding").eval(), tokens[:, :8]
    wanted = slow_losses(model, few, "h2o", 4, recent=2)
    torch.testing.assert_close(losses(model, few, "h2o", 0.5), wanted, rtol=0, atol=1e-6)
    assert (wanted - losses(model, few)).abs().max() > 1e-5


def test_what_a_config_says():
    from transformers import BertConfig, MambaConfig, T5Config, ViTConfig

    assert cannot_be_cut(MambaConfig()) == "mamba models have no attention: there is no cache to cut"
    assert cannot_be_cut(T5Config()).startswith("t5 models read two texts")
    assert cannot_be_cut(ViTConfig()) == "vit models do not predict the next token: they have no cache to cut"
    assert cannot_be_cut(BertConfig()) is None  # some BERTs are decoders: only reading shows it


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"policy": "h20"}, "policy must be one of full, window, sinks, h2o, h2o-oracle, .* got 'h20'"),
        ({"keep": 0.0}, "keep is a share above 0 and at most 1, or a whole number of keys, got 0.0"),
        ({"keep": 1.5}, "keep is a share above 0 and at most 1, or a whole number of keys, got 1.5"),
        ({"keep": float("nan")}, "keep must be a share of the length or a number of keys, got nan"),
        ({"keep": 0}, "keep must be from 1 to 40 keys, the length of a sequence, got 0"),
        ({"keep": 41}, "keep must be from 1 to 40 keys, the length of a sequence, got 41"),
        ({"keep": True}, "keep must be a share of the length or a number of keys, got True"),
        ({"keep": "few"}, "keep must be a share of the length or a number of keys, got few"),
        ({"keep": None}, "keep must be a share"),
        ({"sinks": -1}, "sinks must be a whole number, at least 0, got -1"),
        ({"sinks": 2.5}, "sinks must be a whole number"),
        ({"seed": 2**70}, "seed must be"),
        ({"seed": 1.5}, "seed must be"),
        ({"recent": 1.2}, "recent is a share of the budget, from 0 to 1, got 1.2"),
        ({"recent": "half"}, "recent is a share of the budget, from 0 to 1, got half"),
        ({"recent": float("nan")}, "recent is a share"),
        ({"prompt": None}, "prompt must be a share of the length or a number of tokens above 0, got None"),
        ({"prompt": 40}, "prompt must leave tokens after it: 40 tokens of 40"),
        ({"prompt": 0}, "prompt must be a share of the length or a number of tokens above 0, got 0"),
        ({"tokens": np.zeros((2, 1), int)}, "tokens must have at least 2 per sequence"),
        ({"tokens": np.zeros((2, 3))}, "tokens must be token ids, .* got torch.float64"),
        ({"tokens": [[0, TOKENS]]}, f"tokens must be from 0 to {TOKENS - 1} for LlamaForCausalLM"),
    ],
)
def test_bad_input_gets_one_sentence(models, tokens, options, sentence):
    with pytest.raises(BadInput, match=sentence):
        losses(models["llama"], **{"tokens": tokens, "policy": "snapkv", "keep": 0.5, **options})


def test_a_table_of_attention_has_an_end_and_rotations_have_none(models):
    tokens = torch.zeros(1, 65, dtype=torch.long)
    with pytest.raises(BadInput, match="GPT2LMHeadModel reads at most 64 tokens, got 65"):
        losses(models["gpt2"], tokens)
    assert losses(models["llama"], tokens).isfinite().all()


def test_budgets_leave_room_for_the_own_key_first():
    assert rule("sinks", 1, LENGTH).sinks == 0
    assert (rule("sinks", 3, LENGTH).sinks, rule("sinks", 3, LENGTH).recent) == (2, 1)
    assert (rule("random", 5, LENGTH).sinks, rule("random", 5, LENGTH).recent) == (3, 2)
    assert (rule("h2o", 0.2, 100).budget, rule("h2o", 0.2, 100).recent) == (20, 10)  # 10 % heavy and 10 % recent
    assert rule("window", 0.28, 25).budget == 7  # not 8, though 0.28 * 25 > 7 in Python
    assert [rule("window", keep, 30).budget for keep in (0.1, 0.11, 1 - 1e-6, 1e-12)] == [3, 4, 30, 1]
    assert rule("window", np.int64(7), 30).budget == 7
    assert rule("window", 0.1, 30, sinks=2).sinks == 0


def test_a_model_in_training_mode_is_left_there(models, tokens):
    model = models["gpt2"].train()
    try:
        found = losses(model, tokens, "h2o", 0.2)
        assert model.training
    finally:
        model.eval()
    assert torch.equal(found, losses(model, tokens, "h2o", 0.2))  # without dropout


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_half_precision_chooses_in_single(models, tokens):
    """In bfloat16 many weights are equal, and which of them is kept would be chance."""
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(2, heads, 30, 8, generator=generator).bfloat16() for heads in (4, 2))
    for policy in (h2o, h2o_oracle, snapkv, top_k):
        settled = rule(policy.__name__.replace("_", "-"), 8, 30)
        half, exact = (
            policy(Call(settled, query.to(kind), key.to(kind), 0.3, torch.zeros(2, 2, 0, dtype=scores)))
            for kind, scores in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64))
        )
        assert torch.equal(half.seen, exact.seen), policy
    model = deepcopy(models["llama"]).to(torch.bfloat16)
    for policy in ("sinks", "h2o", "top-k"):
        found = losses(model, tokens, policy, 0.25)
        assert found.dtype == torch.float32
        assert found.isfinite().all()
    with torch.no_grad(), evicting(model, "h2o", 10) as cache:
        model(input_ids=tokens, past_key_values=cache)
    assert (cache.layers[0].keys.dtype, cache.layers[0].scores.dtype) == (torch.bfloat16, torch.float32)


def test_attention_that_cannot_be_counted_anew_are_refused(models, tokens, monkeypatch):
    model = models["llama"]
    monkeypatch.setattr(model.model.rotary_emb, "rope_type", "dynamic")
    with pytest.raises(CacheError, match="positions of LlamaForCausalLM cannot be counted inside the cache"):
        losses(model, tokens, "sinks", 0.5)
    assert losses(model, tokens, "window", 0.5).isfinite().all()


def test_every_config_gets_its_own_setting_back_even_after_an_error():
    text, vision, other = SimpleNamespace(use_cache=False), SimpleNamespace(use_cache="yes"), SimpleNamespace()

    def fail_inside():
        assert (text.use_cache, vision.use_cache) == (True, True)
        raise KeyError

    with pytest.raises(KeyError), _attention.setting([text, other, vision], "use_cache", True):
        fail_inside()
    assert (text.use_cache, vision.use_cache) == (False, "yes")
    assert not hasattr(other, "use_cache")

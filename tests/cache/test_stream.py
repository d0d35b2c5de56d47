"""The cache that really forgets: it says what the masks say, token by token or many at a time, and stays small."""

from copy import deepcopy
from itertools import product

import pytest
import torch
from later import some_now
from tiny_models import KINDS, LENGTH

from joma.cache import POLICIES, CacheError, evicting, losses
from joma.host.errors import BadInput

BUDGET, PROMPT = 10, 20
STREAMED = [one for one in POLICIES if one != "h2o-oracle"]


def read(model, tokens, policy, sizes, **options):
    most = 0
    with torch.no_grad(), evicting(model, policy, BUDGET, prompt=PROMPT, **options) as cache:
        logits = []
        for part in tokens.split(sizes, 1):
            logits.append(model(input_ids=part, past_key_values=cache, use_cache=True).logits)
            most = max(most, *(layer.keys.shape[2] for layer in cache.layers))
    found = torch.cat(logits, 1)
    return torch.nn.functional.cross_entropy(found[:, :-1].mT, tokens[:, 1:], reduction="none"), cache, most


@pytest.mark.parametrize(("kind", "policy"), some_now(product(KINDS, STREAMED), every=2))
def test_the_real_cache_says_what_the_masks_say(models, tokens, kind, policy):
    whole = losses(models[kind], tokens, policy, BUDGET, prompt=PROMPT, seed=3)
    ways = ([1] * LENGTH, [7] * 5 + [5], [PROMPT, *[1] * 5, 15])
    for sizes in ways if kind == "llama" else ways[1:]:
        found, cache, most = read(models[kind], tokens, policy, sizes, seed=3)
        torch.testing.assert_close(found, whole, rtol=0, atol=1e-6 if kind == "llama" else 1e-12)
        assert cache.get_seq_length() == LENGTH
        assert most == {"full": LENGTH, "top-k": LENGTH}.get(policy, BUDGET) or (policy == "snapkv" and most <= PROMPT)
        assert policy != "snapkv" or cache.layers[0].keys.shape[2] == BUDGET


def test_memory_of_what_is_evicted_is_given_back(models, tokens):
    _, cache, _ = read(models["llama"], tokens, "h2o", [1] * LENGTH)
    for layer in cache.layers:
        assert layer.keys.untyped_storage().nbytes() == layer.keys.numel() * layer.keys.element_size()


def test_positions_tell_which_tokens_are_held(models, tokens):
    assert read(models["llama"], tokens, "window", [8] * 5)[1].positions(1)[0, 0].tolist() == [*range(30, 40)]
    sinks = read(models["llama"], tokens, "sinks", [8] * 5)[1].positions()
    assert sinks[1, 1].tolist() == [0, 1, 2, 3, *range(34, 40)]
    heavy = read(models["llama"], tokens, "h2o", [8] * 5)[1].positions()
    assert heavy.shape == (2, 2, BUDGET)
    assert (heavy[..., -5:] == torch.arange(35, 40)).all()
    assert not torch.equal(heavy[:, 0], heavy[:, 1])  # each key-value head chooses for itself


def test_generate_writes_as_long_as_it_likes_with_a_small_cache(models):
    model, options = models["gpt_neox"], {"max_new_tokens": 30, "do_sample": False, "pad_token_id": 0}
    prompt = torch.tensor([[5, 6, 7, 8]])
    with evicting(model, "sinks", 8, sinks=2) as cache:
        ids = model.generate(prompt, past_key_values=cache, eos_token_id=None, **options)
    assert ids.shape == (1, 34)
    assert cache.layers[0].keys.shape[2] == 8
    with torch.no_grad(), evicting(model, "sinks", 8, sinks=2) as cache:  # the same text read at once
        logits = model(input_ids=ids, past_key_values=cache).logits
    assert torch.equal(logits[0, 3:-1].argmax(-1), ids[0, 4:])
    with evicting(model, "full", 8) as cache:
        kept = model.generate(prompt, past_key_values=cache, eos_token_id=None, **options)
    assert torch.equal(kept, model.generate(prompt, eos_token_id=None, **options))
    assert not torch.equal(kept, ids)


def test_a_model_saved_without_a_cache_reads_new_tokens_alone(models, tmp_path):
    """Else `generate` hands the whole text over again at every token, and the cache holds it many times."""
    from transformers import AutoModelForCausalLM

    saved = deepcopy(models["gpt_neox"])
    saved.config.use_cache = saved.generation_config.use_cache = False
    saved.save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    with evicting(model, "h2o", 8) as cache:
        ids = model.generate(torch.tensor([[5, 6, 7]]), past_key_values=cache, **options)
    assert cache.get_seq_length() == 14
    assert model.config.use_cache is False
    with evicting(models["gpt_neox"], "h2o", 8) as cache:
        assert torch.equal(
            models["gpt_neox"].generate(torch.tensor([[5, 6, 7]]), past_key_values=cache, **options), ids
        )


def test_beams_take_their_scores_with_them(models):
    """The text that three beams arrive at has the likelihood that it has when it is read alone."""
    options = {"max_new_tokens": 12, "do_sample": False, "num_beams": 3, "pad_token_id": 0, "eos_token_id": None}
    options |= {"return_dict_in_generate": True, "output_scores": True}
    prompt = torch.tensor([[5, 6, 7, 8, 9, 10]])
    with evicting(models["gpt2"], "h2o", 8) as cache:
        found = models["gpt2"].generate(prompt, past_key_values=cache, **options)
    with torch.no_grad(), evicting(models["gpt2"], "h2o", 8) as alone:
        logits = models["gpt2"](input_ids=found.sequences, past_key_values=alone).logits
    likely = logits.log_softmax(-1)[0, 5:-1].gather(1, found.sequences[0, 6:, None])
    torch.testing.assert_close(found.sequences_scores.item(), likely.mean().item(), rtol=0, atol=1e-5)
    assert cache.positions().shape == (3, 4, 8)


@pytest.mark.parametrize("policy", ["h2o", "snapkv", "window"])
def test_rows_that_change_places_take_all_with_them(models, tokens, policy):
    """Keys, values, positions and scores: what is read next is as if the rows had stood there from the start."""
    model = models["gpt2"]

    def read_on(change, rows):
        with torch.no_grad(), evicting(model, policy, 8, prompt=15) as cache:
            model(input_ids=tokens[:, :20], past_key_values=cache)
            change(cache)
            logits = model(input_ids=tokens[rows, 20:30], past_key_values=cache).logits
            return logits, cache.positions(1)

    with torch.no_grad(), evicting(model, policy, 8, prompt=15) as cache:
        whole = model(input_ids=tokens[:, :30], past_key_values=cache).logits[:, 20:]
        held = cache.positions(1)
    for change, rows in (
        (lambda cache: cache.reorder_cache(torch.tensor([1, 0, 1])), [1, 0, 1]),
        (lambda cache: cache.batch_select_indices(torch.tensor([1])), [1]),
        (lambda cache: cache.batch_repeat_interleave(2), [0, 0, 1, 1]),
    ):
        logits, positions = read_on(change, rows)
        torch.testing.assert_close(logits, whole[rows], rtol=0, atol=1e-12)
        assert torch.equal(positions, held[rows])


def test_snapkv_takes_the_first_call_for_its_prompt(models, tokens):
    with torch.no_grad(), evicting(models["llama"], "snapkv", BUDGET) as cache:
        models["llama"](input_ids=tokens[:, :25], past_key_values=cache)
        assert cache.positions().shape[2] == BUDGET
        assert (cache.positions()[..., -5:] == torch.arange(20, 25)).all()


@pytest.mark.parametrize(
    ("policy", "keep", "sentence"),
    [
        ("snapkv", {"keep": 8, "prompt": 0.5}, "prompt must be a number of tokens"),
        ("snapkv", {"keep": 8, "prompt": 3.0}, "prompt must be a number of tokens"),
        ("snapkv", {"keep": 8, "prompt": 0}, "prompt must be"),
        ("snapkv", {"keep": 8, "sinks": -1}, "sinks must be"),
        ("h2o-oracle", 8, "h2o-oracle knows the attention of queries yet to come"),
        ("h2o", 0.5, "keep must be a number of keys, at least 1, since the text's length is not known, got 0.5"),
        ("h2o", 0, "keep must be a number of keys, at least 1, .* got 0"),
        ("h2o", True, "keep must be a number of keys, at least 1, .* got True"),
        ("streaming", 8, "policy must be one of full, window, sinks, .* got 'streaming'"),
    ],
)
def test_what_cannot_be_streamed_gets_one_sentence(models, policy, keep, sentence):
    with (
        pytest.raises(BadInput, match=sentence),
        evicting(models["llama"], policy, **(keep if isinstance(keep, dict) else {"keep": keep})),
    ):
        pass


def test_a_cache_used_wrongly_gets_one_sentence(models, tokens):
    model = models["llama"]
    with evicting(model, "window", 8) as cache:
        with pytest.raises(CacheError, match="give its cache as past_key_values"):
            model(input_ids=tokens)
        with pytest.raises(CacheError, match="give its cache as past_key_values"):
            model(input_ids=tokens, use_cache=False)
        with pytest.raises(CacheError, match="padded batches"):
            model(input_ids=tokens, attention_mask=(tokens > 3).long(), past_key_values=cache)
        with pytest.raises(CacheError, match="cannot go back"):
            cache.crop(-1)
    with pytest.raises(CacheError, match="block that is over"):
        model(input_ids=tokens, past_key_values=cache)
    assert model.config._attn_implementation == "sdpa"
    assert repr(cache) == "EvictingCache(window, budget 8: 0 keys of 0)"


def test_a_layer_answers_once_for_the_keys_that_came():
    from joma.cache._layers import HeldLayer
    from joma.cache.policies import Choice
    from joma.cache.rules import rule

    layer = HeldLayer(rule("full", 4, 8), None, lambda: None)
    new = torch.zeros(1, 1, 2, 3)
    keys, _ = layer.update(new, new)
    ((call, values),) = layer.calls(new, keys, 1.0, 0, at_once=2)
    assert (call.q_len, call.n_kept, values.shape) == (2, 0, new.shape)
    layer.settle(Choice())
    assert layer.positions.tolist() == [[[0, 1]]]
    with pytest.raises(CacheError, match="give its cache as past_key_values"):
        next(layer.calls(new, keys, 1.0, 0, at_once=2))

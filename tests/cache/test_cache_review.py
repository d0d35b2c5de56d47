"""Caches where it is easy to go wrong: short first calls, silent tokens, blocks in blocks, other types, odd numbers."""

from itertools import product

import pytest
import torch
from later import some_now
from tiny_models import COMMON, LENGTH, fresh

from joma.cache import CacheError, evicting, losses, rule
from joma.cache._positions import rotations
from joma.cache.costs import measure
from joma.host.errors import BadInput
from joma.runs import Run

BUDGET = 10


def streamed(model, tokens, policy, sizes, **options):
    with torch.no_grad(), evicting(model, policy, BUDGET, **options) as cache:
        found = [model(input_ids=part, past_key_values=cache).logits for part in tokens.split(sizes, 1)]
    logits = torch.cat(found, 1)
    return torch.nn.functional.cross_entropy(logits[:, :-1].mT, tokens[:, 1:], reduction="none"), cache


@pytest.mark.parametrize(("first", "policy"), some_now(product([1, 3], ["h2o", "random"]), every=3))
def test_a_short_first_call_changes_nothing(models, tokens, policy, first):
    """As `generate` begins: the first call is the prompt of snapkv, and of no other policy."""
    whole = losses(models["gpt_neox"], tokens, policy, BUDGET)
    found, cache = streamed(models["gpt_neox"], tokens, policy, [first, *[1] * (LENGTH - first)])
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-12)
    assert (cache.positions()[..., -BUDGET // 2 :] == torch.arange(LENGTH - BUDGET // 2, LENGTH)).all()


def test_a_cache_that_is_reset_begins_as_it_was_made(models, tokens):
    model = models["gpt2"]
    with torch.no_grad(), evicting(model, "snapkv", BUDGET) as cache:
        model(input_ids=tokens[:, :2], past_key_values=cache)
        cache.reset()
        again = model(input_ids=tokens[:, :25], past_key_values=cache).logits
        held = cache.positions()
    with torch.no_grad(), evicting(model, "snapkv", BUDGET) as cache:
        assert torch.equal(model(input_ids=tokens[:, :25], past_key_values=cache).logits, again)
        assert torch.equal(cache.positions(), held)


def silent_zero(rope):
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    torch.manual_seed(3)
    config = LlamaConfig(**shape, **COMMON, pad_token_id=0, max_position_embeddings=64, rope_parameters=rope)
    return LlamaForCausalLM(config).double().eval()


def test_rotations_are_found_though_the_first_token_is_silent(tokens):
    model = silent_zero({"rope_type": "default", "rope_theta": 10_000.0})
    assert not model.get_input_embeddings().weight[0].any()
    assert all(turn is not None for turn in rotations(model).values())


def test_keys_that_are_all_zero_tell_nothing_of_positions(tokens):
    model = silent_zero({"rope_type": "default", "rope_theta": 10_000.0})
    with torch.no_grad():
        model.model.layers[1].self_attn.k_proj.weight.zero_()
    with pytest.raises(CacheError, match="cannot be counted inside the cache"):
        losses(model, tokens, "sinks", BUDGET)


def test_a_block_within_a_block_has_its_own_policy(models, tokens):
    model = models["llama"]
    alone, _ = streamed(model, tokens, "window", [LENGTH])
    with torch.no_grad(), evicting(model, "h2o", BUDGET) as outer:
        first = model(input_ids=tokens[:, :30], past_key_values=outer).logits
        torch.testing.assert_close(streamed(model, tokens, "window", [LENGTH])[0], alone, rtol=0, atol=0)
        torch.testing.assert_close(losses(model, tokens, "window", BUDGET), alone, rtol=0, atol=1e-6)
        last = model(input_ids=tokens[:, 30:], past_key_values=outer).logits
    found = torch.cat([first, last], 1)[:, :-1].mT
    wanted = losses(model, tokens, "h2o", BUDGET)
    torch.testing.assert_close(
        torch.nn.functional.cross_entropy(found, tokens[:, 1:], reduction="none"), wanted, rtol=0, atol=1e-6
    )


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # CPUs without bfloat16 say so once
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("policy", ["sinks", "h2o"])
def test_half_precision_says_about_the_same(tokens, dtype, policy):
    model = fresh("llama").eval()
    whole = losses(model, tokens, policy, BUDGET)
    rough = losses(model.to(dtype), tokens, policy, BUDGET)
    assert rough.dtype == torch.float32
    assert (rough.mean() - whole.mean()).abs() < 0.1 * whole.mean()
    found, cache = streamed(model, tokens, policy, [20, *[1] * 20], prompt=20)
    assert found.isfinite().all()
    assert cache.layers[0].keys.dtype == dtype
    assert cache.positions().shape == (2, 2, BUDGET)


def test_each_sequence_of_a_batch_is_read_as_if_alone(models, tokens):
    for policy in ("h2o", "snapkv", "sinks"):
        together, _ = streamed(models["gpt_neox"], tokens, policy, [15, *[1] * 25])
        for row in range(2):
            alone, _ = streamed(models["gpt_neox"], tokens[row : row + 1], policy, [15, *[1] * 25])
            torch.testing.assert_close(together[row : row + 1], alone, rtol=0, atol=1e-12)


def test_numbers_of_another_question_are_not_given_for_this_one(models, tokens, tmp_path):
    asked = (models["gpt2"], tokens, ["random", "sinks"], [0.2])
    with Run.create(tmp_path / "a.sqlite", study="cache", config={}) as run:
        first = measure(*asked, run)
        assert measure(*asked, run) == first
        for other in ({"seed": 1}, {"sinks": 2}, {"recent": 0.25}):
            with pytest.raises(BadInput, match="another text, or of other sinks, recent or seed"):
                measure(*asked, run, **other)
        with pytest.raises(BadInput, match="another text"):
            measure(models["gpt2"], tokens.flip(0), ["random"], [0.2], run)


def test_two_tokens_have_no_second_half(models, tokens, tmp_path):
    with Run.create(tmp_path / "a.sqlite", study="cache", config={}) as run:
        with pytest.raises(BadInput, match="at least 3 per sequence"):
            measure(models["gpt2"], tokens[:, :2], ["window"], [0.5], run)
        assert measure(models["gpt2"], tokens[:, :3], ["window"], [0.5], run).full > 0


def test_complex_tokens_and_empty_sequences_get_one_sentence(models, tokens):
    with pytest.raises(ValueError, match=r"tokens must be real, got torch\.complex64"):
        losses(models["gpt2"], tokens.to(torch.complex64))
    with pytest.raises(BadInput, match="tokens must be token ids"):
        losses(models["gpt2"], tokens > 3)
    with pytest.raises(BadInput, match="seq_len must be a number of tokens, at least 1, got 0"):
        rule("window", 0.5, 0)


def test_losses_that_are_nan_are_not_recorded(models, tokens, tmp_path):
    """A comparison over sequences would leave them out, and tell the others' mean."""
    with Run.create(tmp_path / "a.sqlite", study="cache", config={}) as run:
        norm = models["llama"].model.norm
        handle = norm.register_forward_hook(lambda _, __, output: output * torch.nan)
        try:
            with pytest.raises(CacheError, match="loss on the text is NaN or infinite"):
                measure(models["llama"], tokens, ["window"], [0.2], run)
        finally:
            handle.remove()
        assert measure(models["llama"], tokens.tolist(), ["window"], [0.2], run).full > 0

"""Tiny models: grouped queries, partly rotated heads, learned positions; angles by type of layer; none to cut."""

import torch

from joma.models.decoder import Decoder, DecoderConfig

TOKENS, LENGTH = 32, 40
COMMON = {"vocab_size": TOKENS, "bos_token_id": 0, "eos_token_id": 0, "initializer_range": 0.4}
KINDS = ("llama", "gpt_neox", "gpt2")


def fresh(kind):
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        GPTNeoXConfig,
        GPTNeoXForCausalLM,
        LlamaConfig,
        LlamaForCausalLM,
    )

    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    rope = {"rope_type": "default", "rope_theta": 10_000.0}
    torch.manual_seed(3)
    if kind == "llama":
        grouped = LlamaConfig(
            **shape, **COMMON, num_key_value_heads=2, max_position_embeddings=64, rope_parameters=rope
        )
        return LlamaForCausalLM(grouped)
    if kind == "gpt_neox":
        rope = {**rope, "partial_rotary_factor": 0.25}
        return GPTNeoXForCausalLM(GPTNeoXConfig(**shape, **COMMON, max_position_embeddings=64, rope_parameters=rope))
    return GPT2LMHeadModel(GPT2Config(**COMMON, n_embd=32, n_layer=2, n_head=4, n_positions=64))


LAYERED = ("gemma3", "gemma4", "gemma4-shared", "olmo3", "modernbert-decoder")
"""Models that rotate by other angles in layers of full attention than in those with a window."""


def layered(kind):
    """In float64; the window is longer than any text here, since eviction needs that."""
    import transformers as t

    shape = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 48}
    shape |= {**COMMON, "max_position_embeddings": 64, "pad_token_id": 0}
    sliding = {"rope_type": "default", "rope_theta": 10_000.0}
    full = {
        "gemma3": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        "olmo3": {"rope_type": "yarn", "rope_theta": 5e5, "factor": 8.0, "original_max_position_embeddings": 8},
        "modernbert-decoder": {"rope_type": "default", "rope_theta": 160_000.0},
    }.get(kind, {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25})
    shape |= {"rope_parameters": {"sliding_attention": sliding, "full_attention": full}}
    shape |= {"layer_types": ["sliding_attention", "full_attention"] * 2}
    torch.manual_seed(3)
    if kind == "modernbert-decoder":
        config = t.ModernBertDecoderConfig(**shape, local_attention=128, cls_token_id=1, sep_token_id=1)
        return t.ModernBertDecoderForCausalLM(config).double().eval()
    shape |= {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 64}
    if kind == "gemma3":
        return t.Gemma3ForCausalLM(t.Gemma3TextConfig(**shape)).double().eval()
    if kind == "olmo3":
        return t.Olmo3ForCausalLM(t.Olmo3Config(**shape)).double().eval()
    shape |= {"global_head_dim": 16, "vocab_size_per_layer_input": TOKENS, "hidden_size_per_layer_input": 8}
    shape |= {"num_kv_shared_layers": 2 if kind == "gemma4-shared" else 0}
    return t.Gemma4ForCausalLM(t.Gemma4TextConfig(**shape)).double().eval()


SMALL = {"vocab_size": TOKENS, "hidden_size": 16, "num_hidden_layers": 1}


def without_cache(kind):
    import transformers as t

    heads = {"num_attention_heads": 2, "intermediate_size": 16}
    if kind == "mamba":
        return t.MambaForCausalLM(t.MambaConfig(**SMALL, state_size=4))
    if kind == "bert":
        return t.BertLMHeadModel(t.BertConfig(**SMALL, **heads))
    if kind == "t5":
        shape = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
        return t.T5ForConditionalGeneration(t.T5Config(vocab_size=TOKENS, **shape))
    if kind == "gpt_neo":
        shape = {"num_layers": 1, "num_heads": 2, "hidden_size": 16, "attention_types": [[["global"], 1]]}
        return t.GPTNeoForCausalLM(t.GPTNeoConfig(vocab_size=TOKENS, **shape, bos_token_id=0, eos_token_id=0))
    if kind == "headless":
        return t.GPTNeoXModel(t.GPTNeoXConfig(**SMALL, **heads, bos_token_id=0, eos_token_id=0))
    if kind == "sliding":
        return t.MistralForCausalLM(t.MistralConfig(**SMALL, **heads, num_key_value_heads=1, sliding_window=8))
    return Decoder(DecoderConfig(vocabulary=TOKENS, width=8), [0])

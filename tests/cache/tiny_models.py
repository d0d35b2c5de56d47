"""Three tiny models, really saved and opened again: grouped queries, partly rotated heads, learned positions."""

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

"""Small random transformers models, one of each kind that attends in its own way."""

import torch

TOKENS = 97


def _text(**more):
    return {
        "vocab_size": TOKENS,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
        **more,
    }


def _grouped(**more):
    return _text(num_key_value_heads=2, head_dim=8, **more)


def _config(kind):
    import transformers as hf

    windows = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5}
    made = {
        "gpt2": lambda: hf.GPT2Config(vocab_size=TOKENS, n_embd=32, n_layer=2, n_head=4, n_positions=64),
        "gpt_neox": lambda: hf.GPTNeoXConfig(**_text()),
        "opt": lambda: hf.OPTConfig(
            vocab_size=TOKENS,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            ffn_dim=48,
            word_embed_proj_dim=32,
            max_position_embeddings=64,
        ),
        "llama": lambda: hf.LlamaConfig(**_grouped()),
        "mistral": lambda: hf.MistralConfig(**_grouped(sliding_window=5)),
        "gemma2": lambda: hf.Gemma2Config(**_grouped(attn_logit_softcapping=2.0, query_pre_attn_scalar=8, **windows)),
        "gemma3": lambda: hf.Gemma3TextConfig(**_grouped(query_pre_attn_scalar=8, **windows)),
        "gpt_oss": lambda: hf.GptOssConfig(**_grouped(num_local_experts=2, num_experts_per_tok=1, **windows)),
        "bert": lambda: hf.BertConfig(**_text()),
        "modernbert": lambda: hf.ModernBertConfig(
            **_text(layer_types=["full_attention", "sliding_attention"], local_attention=8, pad_token_id=0)
        ),
        "t5": lambda: hf.T5Config(vocab_size=TOKENS, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4),
        "vit": lambda: hf.ViTConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=48,
            image_size=16,
            patch_size=4,
        ),
        "mamba": lambda: hf.MambaConfig(vocab_size=TOKENS, hidden_size=16, num_hidden_layers=1, state_size=4),
        "squeezebert": lambda: hf.SqueezeBertConfig(**_text(embedding_size=32)),
    }
    return made[kind]()


CAUSAL = ["gpt2", "gpt_neox", "opt", "llama", "mistral", "gemma2", "gemma3", "gpt_oss"]
ENCODERS = ["bert", "modernbert", "vit"]
BEYOND_SDPA = ["gemma2", "gpt_oss"]


def build(kind, seed=0, attention="eager", spread=12.0):
    """A model in evaluation mode whose queries and keys are large enough for attention to be uneven."""
    import transformers as hf

    config = _config(kind)
    auto = {
        "squeezebert": hf.AutoModelForMaskedLM,
        "bert": hf.AutoModel,
        "modernbert": hf.AutoModel,
        "vit": hf.AutoModel,
        "t5": hf.AutoModel,
    }
    torch.manual_seed(seed)
    model = auto.get(kind, hf.AutoModelForCausalLM).from_config(config, attn_implementation=attention)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "embed" not in name:
                parameter.mul_(spread)
            if "sinks" in name:
                parameter.copy_(torch.randn(parameter.shape))
    return model.eval()


def inputs(kind, seed=0, batch=2, length=12):
    generator = torch.Generator().manual_seed(seed)
    if kind == "vit":
        return {"pixel_values": torch.randn(batch, 3, 16, 16, generator=generator)}
    ids = torch.randint(1, TOKENS, (batch, length), generator=generator)
    return {"input_ids": ids, "decoder_input_ids": ids.flip(0)} if kind == "t5" else {"input_ids": ids}


def sparse(seed=0, kept=4):
    """DeepSeek V3.2: every query attends to `kept` keys that an indexer selects. None where transformers has it not."""
    import transformers as hf

    if not hasattr(hf, "DeepseekV32Config"):
        return None
    config = hf.DeepseekV32Config(
        vocab_size=TOKENS, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        intermediate_size=48, moe_intermediate_size=16, n_routed_experts=2, num_experts_per_tok=1, n_group=1,
        topk_group=1, n_shared_experts=1, first_k_dense_replace=2, kv_lora_rank=8, q_lora_rank=8, qk_nope_head_dim=8,
        qk_rope_head_dim=8, v_head_dim=8, max_position_embeddings=64, index_topk=kept, index_head_dim=16,
        index_n_heads=2, pad_token_id=0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = hf.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "embed" not in name:
                parameter.mul_(12.0)
    return model.eval()

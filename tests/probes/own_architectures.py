"""Small random transformers models that compute attention by themselves."""

import torch

TOKENS = 97
_BERT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
_GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
_RELATIVE = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
_FALCON = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
CONFIGS = {
    "gpt_neo": (
        "GPTNeoConfig",
        {
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "intermediate_size": 48,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 5,
        },
    ),
    "gptj": ("GPTJConfig", {**_GPT, "rotary_dim": 4}),
    "bloom": ("BloomConfig", {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "falcon": ("FalconConfig", _FALCON),
    "falcon, many queries": ("FalconConfig", {**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "mpt": ("MptConfig", {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}),
    "codegen": ("CodeGenConfig", {**_GPT, "rotary_dim": 4}),
    "xlnet": ("XLNetConfig", {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}),
    "deberta": ("DebertaConfig", {**_BERT, **_RELATIVE}),
    "deberta-v2": ("DebertaV2Config", {**_BERT, **_RELATIVE, "position_buckets": 8, "share_att_key": True}),
    "mpnet": ("MPNetConfig", _BERT),
    "roformer": ("RoFormerConfig", _BERT),
    "longformer": ("LongformerConfig", {**_BERT, "attention_window": 8}),
    "gpt_neox_japanese": ("GPTNeoXJapaneseConfig", _BERT),
    "flaubert": ("FlaubertConfig", {"emb_dim": 32, "n_layers": 2, "n_heads": 4}),
    "xlm": ("XLMConfig", {"emb_dim": 32, "n_layers": 2, "n_heads": 4}),
    "luke": ("LukeConfig", {**_BERT, "entity_vocab_size": 10, "entity_emb_size": 16}),
    "megatron-bert": ("MegatronBertConfig", _BERT),
    "openai-gpt": ("OpenAIGPTConfig", _GPT),
    "rembert": ("RemBertConfig", {**_BERT, "input_embedding_size": 16}),
    "tapas": ("TapasConfig", _BERT),
    "xglm": ("XGLMConfig", {"d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 48}),
}


def config(kind, **more):
    import transformers as hf

    name, sizes = CONFIGS[kind]
    return getattr(hf, name)(vocab_size=TOKENS, **sizes, **more)


def build(kind, attention="eager", seed=0, spread=0.4, **more):
    import transformers as hf

    torch.manual_seed(seed)
    model = hf.AutoModel.from_config(config(kind, **more), attn_implementation=attention)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=spread)
    return model.eval()


def tokens(batch=2, length=12, seed=0):
    return torch.randint(3, TOKENS, (batch, length), generator=torch.Generator().manual_seed(seed))

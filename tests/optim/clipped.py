"""Small models of transformers, and what QK-clip makes of them by the rule of its source, written out head by head.

Nothing here calls joma. Largest logits come from whole matrices in float64, of queries and keys as the model hands them
to its attention; weights are scaled in loops, by hand for every architecture.
"""

import sys
from contextlib import contextmanager
from unittest.mock import patch

import torch
import torch.nn.functional as F
import transformers as hf

TOKENS, LENGTH, HEADS, WIDTH = 61, 10, 4, 8
SIZE = HEADS * WIDTH
_TEXT = {
    "vocab_size": TOKENS, "hidden_size": SIZE, "num_hidden_layers": 2, "num_attention_heads": HEADS,
    "intermediate_size": 24, "max_position_embeddings": 32, "pad_token_id": None, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
_GROUPED = {**_TEXT, "num_key_value_heads": 2, "head_dim": WIDTH}
_LATENT = {
    **_TEXT, "num_key_value_heads": HEADS, "kv_lora_rank": 6, "q_lora_rank": 5, "qk_nope_head_dim": 6, "v_head_dim": 3,
    "qk_rope_head_dim": 4, "n_routed_experts": 2, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1,
    "n_shared_experts": 1, "first_k_dense_replace": 2, "moe_intermediate_size": 8,
}  # fmt: skip
_FALCON = {**_TEXT, "alibi": False, "bias": True, "num_kv_heads": 2, "ffn_hidden_size": 24}
_GPT2 = {"vocab_size": TOKENS, "n_embd": SIZE, "n_layer": 2, "n_head": HEADS, "n_positions": 32, "bos_token_id": 0}
_DBRX = {
    "vocab_size": TOKENS, "d_model": SIZE, "n_layers": 2, "n_heads": HEADS, "max_seq_len": 32,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 1e3, "rope_theta": 1e4},
    "ffn_config": {"hidden_size": SIZE, "ffn_hidden_size": 24, "moe_num_experts": 2, "moe_top_k": 1},
}  # fmt: skip
_OPT = {"ffn_dim": 24, "word_embed_proj_dim": SIZE, "do_layer_norm_before": True}


def gpt2(attn, g):
    """Queries, keys and values beside each other as columns, in that order."""
    for h in range(HEADS):
        for first in (0, SIZE):
            at = slice(first + h * WIDTH, first + (h + 1) * WIDTH)
            attn.c_attn.weight[:, at] *= g[h] ** 0.5
            attn.c_attn.bias[at] *= g[h] ** 0.5


def neox(attn, g):
    """Rows head by head: of each its query, its key, its value."""
    for h in range(HEADS):
        at = slice(3 * h * WIDTH, (3 * h + 2) * WIDTH)
        attn.query_key_value.weight[at] *= g[h] ** 0.5
        attn.query_key_value.bias[at] *= g[h] ** 0.5


def _pair(query, key):
    def scale(attn, g):
        for h in range(HEADS):
            for name in (query, key):
                layer = getattr(attn, name)
                layer.weight[h * WIDTH : (h + 1) * WIDTH] *= g[h] ** 0.5
                layer.bias[h * WIDTH : (h + 1) * WIDTH] *= g[h] ** 0.5

    return scale


def grouped(attn, g):
    """Two queries share a key, so that the query takes all."""
    for h in range(HEADS):
        attn.q_proj.weight[h * WIDTH : (h + 1) * WIDTH] *= g[h]
        if attn.q_proj.bias is not None:
            attn.q_proj.bias[h * WIDTH : (h + 1) * WIDTH] *= g[h]


def phi3(attn, g):
    """All queries first, then two keys, then two values."""
    for h in range(HEADS):
        attn.qkv_proj.weight[h * WIDTH : (h + 1) * WIDTH] *= g[h]


def dbrx(attn, g):
    """The same under another name. What it makes is cut at 1000, which nothing here reaches."""
    for h in range(HEADS):
        attn.Wqkv.weight[h * WIDTH : (h + 1) * WIDTH] *= g[h]


def shared_gain(attn, g):
    """One gain for all heads."""
    attn.q_norm.weight *= min(g) ** 0.5
    attn.k_norm.weight *= min(g) ** 0.5


def shared_gain_from_one(attn, g):
    """Gemma's norm multiplies by 1 + weight."""
    for norm in (attn.q_norm, attn.k_norm):
        norm.weight += 1
        norm.weight *= min(g) ** 0.5
        norm.weight -= 1


def gain_of_each_head(attn, g):
    """A norm with its gain for every head; two queries share a key, so that the query takes all."""
    for h in range(HEADS):
        attn.q_layernorm.norms[h].weight *= g[h]


def wide_gain(attn, g):
    """A gain for every place of every head."""
    for h in range(HEADS):
        attn.q_norm.weight[h * WIDTH : (h + 1) * WIDTH] *= g[h] ** 0.5
        attn.k_norm.weight[h * WIDTH : (h + 1) * WIDTH] *= g[h] ** 0.5


def latent(attn, g):
    """6 places without rotation, then 4 with it, whose key is one for all heads; after 6 of a key come 3 of a value."""
    queries = attn.q_proj if attn.q_lora_rank is None else attn.q_b_proj
    for h in range(HEADS):
        queries.weight[h * 10 : h * 10 + 6] *= g[h] ** 0.5
        queries.weight[h * 10 + 6 : h * 10 + 10] *= g[h]
        attn.kv_b_proj.weight[h * 9 : h * 9 + 6] *= g[h] ** 0.5


def falcon_groups(attn, g):
    """Two groups: of each its two queries, its key, its value."""
    for group in range(2):
        for member in range(2):
            first = (4 * group + member) * WIDTH
            attn.query_key_value.weight[first : first + WIDTH] *= g[2 * group + member]
            attn.query_key_value.bias[first : first + WIDTH] *= g[2 * group + member]


def falcon_one_key(attn, g):
    """All queries, then the key and the value of all."""
    for h in range(HEADS):
        attn.query_key_value.weight[h * WIDTH : (h + 1) * WIDTH] *= g[h]
        attn.query_key_value.bias[h * WIDTH : (h + 1) * WIDTH] *= g[h]


FAMILIES = {
    "gpt2": (hf.GPT2Config, _GPT2, gpt2),
    "gpt2, eager": (hf.GPT2Config, {**_GPT2, "attn_implementation": "eager"}, gpt2),
    "gpt_neox": (hf.GPTNeoXConfig, _TEXT, neox),
    "opt": (hf.OPTConfig, _TEXT | _OPT, _pair("q_proj", "k_proj")),
    "bert": (hf.BertConfig, _TEXT | {"is_decoder": False}, _pair("query", "key")),
    "llama": (hf.LlamaConfig, _GROUPED, grouped),
    "mistral": (hf.MistralConfig, _GROUPED, grouped),
    "qwen2": (hf.Qwen2Config, _GROUPED, grouped),
    "phi3": (hf.Phi3Config, _GROUPED, phi3),
    "gemma2": (
        hf.Gemma2Config,
        {**_GROUPED, "attn_logit_softcapping": 0.5, "query_pre_attn_scalar": 5, "attn_implementation": "eager"},
        grouped,
    ),
    "gemma3": (hf.Gemma3TextConfig, {**_GROUPED, "query_pre_attn_scalar": 5}, shared_gain_from_one),
    "qwen3": (hf.Qwen3Config, _GROUPED, shared_gain),
    "olmo2": (hf.Olmo2Config, {**_TEXT, "num_key_value_heads": HEADS}, wide_gain),
    "stablelm": (hf.StableLmConfig, {**_TEXT, "num_key_value_heads": 2}, grouped),
    "stablelm, normed": (
        hf.StableLmConfig,
        {**_TEXT, "num_key_value_heads": 2, "qk_layernorm": True},
        gain_of_each_head,
    ),
    "dbrx": (hf.DbrxConfig, _DBRX, dbrx),
    "deepseek_v3": (hf.DeepseekV3Config, _LATENT, latent),
    "deepseek_v2": (hf.DeepseekV2Config, {**_LATENT, "q_lora_rank": None}, latent),
    "falcon": (
        hf.FalconConfig,
        {**_FALCON, "new_decoder_architecture": False, "multi_query": False, "num_kv_heads": HEADS},
        neox,
    ),
    "falcon, groups": (hf.FalconConfig, {**_FALCON, "new_decoder_architecture": True}, falcon_groups),
    "falcon, one key": (hf.FalconConfig, {**_FALCON, "new_decoder_architecture": False}, falcon_one_key),
}
SHARED = ("gemma3", "qwen3")
"""Whose gains all heads share."""


def build(kind, dtype=torch.float64, seed=0):
    """In training mode without dropout, with weights and biases that make attention uneven."""
    config, sizes, _ = FAMILIES[kind]
    how = sizes.get("attn_implementation", "sdpa")
    given = config(**{name: each for name, each in sizes.items() if name != "attn_implementation"})
    for name in vars(given):
        if "dropout" in name or "pdrop" in name:
            setattr(given, name, 0.0)
    auto = hf.AutoModel if kind == "bert" else hf.AutoModelForCausalLM
    torch.manual_seed(seed)
    model = auto.from_config(given, attn_implementation=how).to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(torch.randn_like(parameter) * (0.5 if "norm" not in name and "ln_" not in name else 0.3))
    return model.train()


def text(seed=0, batch=2):
    return torch.randint(1, TOKENS, (batch, LENGTH), generator=torch.Generator().manual_seed(seed))


def attentions(model):
    """The modules that attend, in the order of layers."""
    ends = ("Attention", "SelfAttention")
    inner = ("c_attn", "query_key_value", "q_proj", "query", "qkv_proj", "kv_b_proj", "Wqkv")
    return [
        each
        for each in model.modules()
        if type(each).__name__.endswith(ends) and any(name in each._modules for name in inner)
    ]


@contextmanager
def looking(model, found):
    """Inside, `found` gets queries, keys and scale of every attention, whole."""
    eager = sys.modules[type(attentions(model)[0]).__module__]
    plain = F.scaled_dot_product_attention

    def fused(q, k, *args, scale=None, **kwargs):
        found.append((q.detach(), k.detach(), scale))
        return plain(q, k, *args, scale=scale, **kwargs)

    def written_out(module, q, k, *args, scaling, **kwargs):
        found.append((q.detach(), k.detach(), scaling))
        return before(module, q, k, *args, scaling=scaling, **kwargs)

    if model.config._attn_implementation == "eager":
        before = eager.eager_attention_forward
        with patch.object(eager, "eager_attention_forward", written_out):
            yield
    else:
        with patch.object(F, "scaled_dot_product_attention", fused):
            yield


def largest(model, ids):
    """Of every layer, of every head the largest logit, as lists."""
    found = []
    with torch.no_grad(), looking(model, found):
        model(ids)
    causal = "Bert" not in type(model).__name__
    tables = []
    for q, k, scale in found:
        logits = q.double() @ k.double().repeat_interleave(q.shape[1] // k.shape[1], 1).mT
        logits = logits * (q.shape[-1] ** -0.5 if scale is None else scale)
        hidden = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
        logits = logits.masked_fill(hidden, -torch.inf) if causal else logits
        tables.append([logits[:, h].max().item() for h in range(q.shape[1])])
    return tables


def clip_slowly(model, kind, tables, threshold):
    """The rule of the source, on `model` itself."""
    with torch.no_grad():
        for attn, row in zip(attentions(model), tables, strict=True):
            FAMILIES[kind][2](attn, [min(1.0, threshold / each) if each > 0 else 1.0 for each in row])

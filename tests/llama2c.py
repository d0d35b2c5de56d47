"""Reads the llama2.c version-0 layout into a transformers Llama: a header of seven int32, then float32 tensors."""

from pathlib import Path

import numpy as np
import torch


def load_model(path: Path):
    """The model in evaluation mode. llama2.c rotates adjacent pairs, transformers two halves: rows are reordered."""
    from transformers import LlamaConfig, LlamaForCausalLM

    raw = path.read_bytes()
    dim, hidden, layers, heads, kv_heads, vocabulary, length = np.frombuffer(raw[:28], "<i4").tolist()
    width = dim // heads
    data = torch.from_numpy(np.frombuffer(raw, "<f4", offset=28).copy())
    at = 0

    def take(*shape):
        nonlocal at
        at += (size := int(np.prod(shape)))
        return data[at - size : at].view(shape)

    def halves(weight, count):
        """(layers, heads * width, dim) with the rows of every head from adjacent pairs to two halves."""
        return weight.view(layers, count, width // 2, 2, dim).transpose(2, 3).reshape(layers, count * width, dim)

    embedding = take(abs(vocabulary), dim)
    by_layer = {
        "input_layernorm": take(layers, dim),
        "self_attn.q_proj": halves(take(layers, dim, dim), heads),
        "self_attn.k_proj": halves(take(layers, kv_heads * width, dim), kv_heads),
        "self_attn.v_proj": take(layers, kv_heads * width, dim),
        "self_attn.o_proj": take(layers, dim, dim),
        "post_attention_layernorm": take(layers, dim),
        "mlp.gate_proj": take(layers, hidden, dim),
        "mlp.down_proj": take(layers, dim, hidden),
        "mlp.up_proj": take(layers, hidden, dim),
    }
    final = take(dim)
    take(2, length, width // 2)  # rotary tables
    head = embedding if vocabulary > 0 else take(abs(vocabulary), dim)
    assert at == len(data), f"{path} has {len(data) - at} numbers more than its header says"
    config = LlamaConfig(
        vocab_size=abs(vocabulary),
        hidden_size=dim,
        intermediate_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=length,
        rms_norm_eps=1e-5,
        tie_word_embeddings=vocabulary > 0,
    )
    model = LlamaForCausalLM(config)
    weights = {"model.embed_tokens.weight": embedding, "model.norm.weight": final, "lm_head.weight": head}
    for name, stacked in by_layer.items():
        weights |= {f"model.layers.{i}.{name}.weight": stacked[i] for i in range(layers)}
    model.load_state_dict(weights)
    return model.eval()


def load_pieces(path: Path, count: int = 512) -> list[bytes]:
    """The bytes of every token: after one int32, a float32 score, an int32 length and the bytes of each."""
    raw, at, pieces = path.read_bytes(), 4, []
    for _ in range(count):
        length = int.from_bytes(raw[at + 4 : at + 8], "little")
        pieces.append(raw[at + 8 : at + 8 + length])
        at += 8 + length
    return pieces

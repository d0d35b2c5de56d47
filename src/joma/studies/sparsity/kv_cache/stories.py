"""stories260K: a small Llama that others trained, found through JOMA_DATA, and the stories that it writes."""

import os
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from joma.host.errors import BadInput

NAME = "stories260K"
BEGIN = 1  # the token that begins a story


def find_stories() -> Path | None:
    """The file of the model, if JOMA_DATA names a folder that has it."""
    data = os.environ.get("JOMA_DATA")
    path = Path(data or ".") / NAME / f"{NAME}.bin"
    return path if data and path.is_file() else None


class _Header(NamedTuple):
    dim: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    words: int
    length: int


def load_stories(path: Path) -> Any:
    """The model in evaluation mode, from the llama2.c layout: a header of seven int32, then float32 tensors."""
    from transformers import LlamaConfig, LlamaForCausalLM

    raw = path.read_bytes()
    if len(raw) < 28:
        raise BadInput(f"{path} must begin with a header of 28 bytes, it has {len(raw)}")
    header = _Header(*np.frombuffer(raw[:28], "<i4").tolist())
    dim, hidden, layers, heads, kv_heads, words, length = header
    sizes = header._replace(words=abs(words))
    if not all(0 < size <= 65_536 for size in sizes) or dim % heads or heads % kv_heads or 4 * len(raw) < dim:
        raise BadInput(f"{path} has a header that describes no model: {', '.join(map(str, sizes))}")
    parts = _tensors(path, raw, header)
    for name, count in (("self_attn.q_proj", heads), ("self_attn.k_proj", kv_heads)):
        pairs = parts[name].view(layers, count, dim // heads // 2, 2, dim)
        parts[name] = pairs.transpose(2, 3).reshape(layers, -1, dim)
    del parts["rotary tables"]
    embedding, norm = parts.pop("embed_tokens"), parts.pop("norm")
    head = parts.pop("lm_head", embedding)
    state = {"model.embed_tokens.weight": embedding, "model.norm.weight": norm, "lm_head.weight": head}
    for name, each in parts.items():
        state |= {f"model.layers.{layer}.{name}.weight": each[layer] for layer in range(layers)}
    config = LlamaConfig(
        vocab_size=abs(words), hidden_size=dim, intermediate_size=hidden, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, max_position_embeddings=length, rms_norm_eps=1e-5,
        tie_word_embeddings=words > 0, bos_token_id=BEGIN, attn_implementation="eager",
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config)
    model.load_state_dict(state)
    return model.eval()


def _tensors(path: Path, raw: bytes, header: _Header) -> dict[str, Tensor]:
    dim, hidden, layers, heads, kv_heads, words, length = header
    width = dim // heads
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens": (abs(words), dim),
        "input_layernorm": (layers, dim),
        "self_attn.q_proj": (layers, dim, dim),
        "self_attn.k_proj": (layers, kv_heads * width, dim),
        "self_attn.v_proj": (layers, kv_heads * width, dim),
        "self_attn.o_proj": (layers, dim, dim),
        "post_attention_layernorm": (layers, dim),
        "mlp.gate_proj": (layers, hidden, dim),
        "mlp.down_proj": (layers, dim, hidden),
        "mlp.up_proj": (layers, hidden, dim),
        "norm": (dim,),
        "rotary tables": (2, length, width // 2),
        **({} if words > 0 else {"lm_head": (abs(words), dim)}),
    }
    counts = [prod(shape) for shape in shapes.values()]
    if len(raw) != 28 + 4 * sum(counts):
        raise BadInput(f"{path} must have {28 + 4 * sum(counts):,} bytes by its header, it has {len(raw):,}")
    data = torch.from_numpy(np.frombuffer(raw, "<f4", offset=28).copy()).split(counts)
    return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), data, strict=True)}


def written(model: Any, sequences: int, length: int, seed: int) -> Tensor:
    """(sequences, length): stories that the model draws word by word from its own distribution."""
    source = torch.Generator().manual_seed(seed)
    tokens = torch.full((sequences, 1), BEGIN)
    cache = None
    with torch.inference_mode():
        while tokens.shape[1] < length:
            found = model(tokens if cache is None else tokens[:, -1:], past_key_values=cache, use_cache=True)
            cache = found.past_key_values
            drawn = torch.multinomial(found.logits[:, -1].softmax(-1), 1, generator=source)
            tokens = torch.cat((tokens, drawn), 1)
    return tokens

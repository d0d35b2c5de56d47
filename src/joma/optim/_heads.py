"""Which numbers of which parameter make the queries and keys of a head, and what scales the logits of that head alone.

Every number gets a slot: which of the factors of its layer it is multiplied by. With g_h <= 1 the factor of head h:

    slot 0                  1: values, keys that several heads share, all else
    slots 1 .. H            g_h: queries whose keys other heads read too
    slots H+1 .. 2H         the square root of g_h: queries and keys of one head
    slot 2H+1               the square root of the smallest g_h: gains of norms that all heads share

A fused layer, biases and shards follow from that alone: a slot for each number, wherever it lies.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from joma.host.errors import BadInput
from joma.models.decoder import Decoder

PAIRS = (
    ("q_proj", "k_proj"), ("query", "key"), ("wq", "wk"), ("to_q", "to_k"), ("q_lin", "k_lin"), ("q", "k"),
    ("query_proj", "key_proj"), ("linear_q", "linear_k"),
)  # fmt: skip
"""Layers of queries and of keys, by the names that modules give them."""
NORMS = (("q_norm", "k_norm"), ("q_layernorm", "k_layernorm"), ("query_norm", "key_norm"), ("norm_q", "norm_k"))
STACKED = ("c_attn", "qkv_proj", "Wqkv", "qkv", "in_proj")
"""Layers whose outputs are those of all queries, then of all keys, then of all values."""
BY_HEAD = {"GPTNeoXAttention", "GPTNeoXJapaneseAttention", "BloomAttention", "PersimmonAttention"}
"""Classes whose query_key_value has the outputs of one head after the other: its query, its key, its value."""
OTHERWISE = {"CodeGenAttention"}
"""Classes that order one of `STACKED` in another way."""


class Piece(NamedTuple):
    """One parameter of a layer.

    - owner, attribute: where it is found at every step: parallel rooms of torch put another one in its place
    - slots: of every number, broadcastable to the parameter
    - offset: what a gain adds to the parameter before it multiplies: 1 in Gemma's norms, else 0
    """

    owner: nn.Module
    attribute: str
    slots: Tensor
    offset: int = 0


class Heads(NamedTuple):
    """Of one attention module: its name, its query heads on all processes, and the width of a head."""

    name: str
    number: int
    width: int

    def whole(self) -> Tensor:
        """Slots of queries that take the whole factor, (outputs,)."""
        return (1 + torch.arange(self.number)).repeat_interleave(self.width)

    def root(self) -> Tensor:
        """Slots of queries or keys that take the square root, (outputs,)."""
        return self.whole() + self.number

    def pair(self, keys: int) -> tuple[Tensor, Tensor]:
        """Slots of queries and of keys, where there are `keys` outputs of keys: fewer heads of those are shared."""
        if keys == self.number * self.width:
            return self.root(), self.root()
        if keys % self.width or self.number % max(1, keys // self.width):
            raise refusal(self.name, f"has {keys} outputs of keys for {self.number} heads of width {self.width}")
        return self.whole(), torch.zeros(keys, dtype=torch.long)


def refusal(name: str, why: str) -> BadInput:
    """The sentence on a module that cannot be clipped."""
    return BadInput(f"model cannot be clipped: {name} {why}", argument="model")


def pieces_of(name: str, module: nn.Module, heads: int, width: int) -> tuple[list[Piece], int]:
    """The parameters of an attention module that scale its logits, and its heads; refused where they are not known.

    - name: of the module
    - heads: query heads that were seen in a pass here, which tensor parallelism cuts
    - width: of a head
    """
    known = Heads(name, _all_heads(module, heads, width), width)
    for find in (_multihead, _latent, _normed, _separate, _crossing, _by_head, _stacked):
        if found := list(find(module, known)):
            return found, known.number
    names = ", ".join(f"{q} and {k}" for q, k in PAIRS[:3])
    raise refusal(name, f"({type(module).__name__}) has no known layers of queries and keys, as {names}")


def pieces_of_decoder(decoder: Decoder) -> list[Piece]:
    """Of all layers and members, each with heads of its own: heads are counted members first, then layers."""
    config, members = decoder.kinds[0], decoder.members
    count = members * config.layers * config.heads
    roots = (1 + count + torch.arange(count)).view(members, config.layers, config.heads)
    roots = roots.repeat_interleave(config.width // config.heads, -1)  # (members, layers, width)
    if config.qk_norm:
        return [Piece(decoder, "query_scale", roots), Piece(decoder, "key_scale", roots)]
    slots = torch.cat([roots, roots, torch.zeros_like(roots)], -1)
    return [Piece(decoder, "qkv", slots[:, :, None]), Piece(decoder, "qkv_bias", slots)]


def _all_heads(module: nn.Module, heads: int, width: int) -> int:
    """Heads on all processes: what a DTensor says of its whole."""
    for query, _ in PAIRS:
        weight = getattr(getattr(module, query, None), "weight", None)
        if isinstance(weight, Tensor) and hasattr(weight, "device_mesh"):
            return max(heads, weight.shape[0] // width)
    return heads


def _multihead(module: nn.Module, heads: Heads) -> Iterator[Piece]:
    if not isinstance(module, nn.MultiheadAttention):
        return
    whole = torch.cat([heads.root(), heads.root(), torch.zeros(heads.number * heads.width, dtype=torch.long)])
    separate = (("q_proj_weight", heads.root()), ("k_proj_weight", heads.root()))
    for attribute, slots in (("in_proj_weight", whole), *separate, ("in_proj_bias", whole), ("bias_k", heads.root())):
        parameter = getattr(module, attribute)
        if parameter is not None:
            yield Piece(module, attribute, slots[:, None] if parameter.ndim == 2 else slots)


def _latent(module: nn.Module, heads: Heads) -> Iterator[Piece]:
    """MLA of DeepSeek and Kimi: the rotary key is shared, so that its part of the query takes the whole factor."""
    keys: Any = getattr(module, "kv_b_proj", None)
    plain: Any = getattr(module, "qk_nope_head_dim", None)
    if keys is None or plain is None:
        return
    queries: Any = getattr(module, "q_b_proj", None) or module.q_proj
    rotary = torch.arange(heads.width) >= plain
    root, whole = (each.view(heads.number, -1) for each in (heads.root(), heads.whole()))
    yield from _linear(queries, torch.where(rotary, whole, root).flatten(), heads.name)
    values = _outputs(keys) // heads.number - plain
    of_keys = torch.cat([root[:, :plain], torch.zeros(heads.number, values, dtype=torch.long)], 1)
    yield from _linear(keys, of_keys.flatten(), heads.name)


def _normed(module: nn.Module, heads: Heads) -> Iterator[Piece]:
    """QK-norm: what stands before a norm has no effect on logits, so its learned gain is scaled."""
    if isinstance(getattr(module, "qk_norm", None), nn.Module):
        raise refusal(heads.name, "divides queries and keys by their norms and has no gain that could be scaled")
    for names in NORMS:
        query, key = (getattr(module, name, None) for name in names)
        if isinstance(query, nn.Module) and isinstance(key, nn.Module) and not isinstance(query, nn.Identity):
            break
    else:
        return
    by_head = [getattr(each, "norms", None) for each in (query, key)]
    if all(isinstance(each, nn.ModuleList) for each in by_head):  # StableLM: a norm for every head
        yield from _norm_per_head(by_head, heads)
        return
    gains = [getattr(each, "weight", None) for each in (query, key)]
    if not all(isinstance(each, Tensor) for each in gains):
        raise refusal(heads.name, f"has norms of queries and keys ({type(query).__name__}) without a gain to scale")
    slots = heads.pair(gains[1].numel()) if gains[0].numel() == heads.number * heads.width else None  # type: ignore[union-attr]
    if slots is None:
        if any(each.numel() != heads.width for each in gains):  # type: ignore[union-attr]
            raise refusal(heads.name, f"has gains of {gains[0].numel()} numbers for heads of width {heads.width}")  # type: ignore[union-attr]
        slots = (torch.full((heads.width,), 2 * heads.number + 1),) * 2
    for norm, mine in zip((query, key), slots, strict=True):
        for attribute in ("weight", "bias"):
            gain = getattr(norm, attribute, None)
            if isinstance(gain, Tensor):
                offset = _offset(norm) if attribute == "weight" else 0
                yield Piece(norm, attribute, mine.view(gain.shape), offset)


def _norm_per_head(by_head: list[Any], heads: Heads) -> Iterator[Piece]:
    for norms, slots in zip(by_head, heads.pair(len(by_head[1]) * heads.width), strict=True):
        for norm, mine in zip(norms, slots.view(-1, heads.width), strict=True):
            yield from (Piece(norm, name, mine) for name, _ in norm.named_parameters(recurse=False))


def _offset(norm: nn.Module) -> int:
    """1 for a norm that multiplies by 1 + weight: it lets something through where its weight is 0."""
    weight: Any = norm.weight
    parts = {name: torch.zeros(each.shape) for name, each in norm.named_parameters()}
    with torch.no_grad():
        found = torch.func.functional_call(norm, parts, (torch.arange(1.0, 1 + weight.numel()).view(weight.shape),))
    return int(bool(found.any()))


def _separate(module: nn.Module, heads: Heads) -> Iterator[Piece]:
    for names in PAIRS:
        query, key = (getattr(module, name, None) for name in names)
        if isinstance(query, nn.Module) and isinstance(key, nn.Module):
            for layer, slots in zip((query, key), heads.pair(_outputs(key)), strict=True):
                yield from _linear(layer, slots, heads.name)
            return


def _crossing(module: nn.Module, heads: Heads) -> Iterator[Piece]:
    """GPT-2 that attends to an encoder: keys and values are fused, and queries are not."""
    query, others = getattr(module, "q_attn", None), getattr(module, "c_attn", None)
    if isinstance(query, nn.Module) and isinstance(others, nn.Module):
        yield from _linear(query, heads.root(), heads.name)
        yield from _linear(others, torch.cat([heads.root(), torch.zeros_like(heads.root())]), heads.name)


def _by_head(module: nn.Module, heads: Heads) -> Iterator[Piece]:
    """Fused layers whose outputs go head by head, or group by group: of each the queries, the key, the value."""
    kind = type(module).__name__
    layer = getattr(module, "query_key_value", None)
    groups = heads.number
    if kind == "FalconAttention":
        groups = int(module.num_kv_heads)  # type: ignore[arg-type]
    elif kind == "GPTBigCodeAttention" and not module.multi_query:
        layer = module.c_attn
    elif kind not in BY_HEAD:
        return
    queries, keys = heads.pair(groups * heads.width)
    none = torch.zeros(groups, heads.width, dtype=torch.long)
    slots = torch.cat([queries.view(groups, -1), keys.view(groups, -1), none], 1)
    yield from _linear(layer, slots.flatten(), heads.name)


def _stacked(module: nn.Module, heads: Heads) -> Iterator[Piece]:
    if type(module).__name__ in OTHERWISE:
        return
    for name in STACKED:
        layer = getattr(module, name, None)
        if isinstance(layer, nn.Module):
            keys = (_outputs(layer) - heads.number * heads.width) // 2
            queries, shared = heads.pair(keys)
            yield from _linear(layer, torch.cat([queries, shared, torch.zeros(keys, dtype=torch.long)]), heads.name)
            return


def _outputs(layer: Any) -> int:
    """Of a linear layer, which transformers also writes the other way round; 0 of anything else."""
    weight = getattr(layer, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        return 0
    return int(weight.shape[1 if type(layer).__name__ == "Conv1D" else 0])


def _linear(layer: Any, slots: Tensor, name: str) -> Iterator[Piece]:
    kind = type(layer).__name__
    plain = isinstance(layer, nn.Linear) or kind == "Conv1D"
    if not plain or not layer.weight.is_floating_point():
        raise refusal(name, f"makes queries or keys by a {kind}, and only plain linear layers can be scaled")
    if _outputs(layer) != len(slots):
        raise refusal(name, f"has a layer of {_outputs(layer)} outputs where its heads need {len(slots)}")
    yield Piece(layer, "weight", slots[None] if kind == "Conv1D" else slots[:, None])
    if layer.bias is not None:
        yield Piece(layer, "bias", slots)

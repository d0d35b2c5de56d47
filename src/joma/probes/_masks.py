"""What a query sees, in the words of `attention_stats`: causal, a window, padded keys, documents, or else a bias.

Masks are recognised once, when the model builds them: a usual one need not be read again, and windows save work.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

_NOTE = "_joma_seen"  # the attribute under which a mask carries its structure through the model
_CROSS = re.compile(r"cross|encoder_attn|encdec", re.IGNORECASE)
_SLICE = 1 << 24  # mask entries compared at a time


@dataclass(frozen=True)
class Seen:
    """The first `keys` keys, under `options` of `attention_stats`; `real` (batch, queries) is False where padded."""

    keys: int
    options: dict[str, Any] = field(default_factory=dict)
    real: Tensor | None = None


def structure(
    mask: Tensor, *, q_offset: int | Tensor = 0, kv_offset: int = 0, attention_mask: Tensor | None = None,
    local_size: int | None = None, **others: Any,
) -> Tensor:  # fmt: skip
    """`mask` (batch, 1, queries, keys) with a note of what it consists of, as far as that can be confirmed.

    The arguments are those with which transformers has masks built; `others` shape the mask too (overlays for images
    or packed texts), which is why every guess is compared with the mask itself.
    """
    q_length, kv_length = mask.shape[2:]
    padding = None
    if attention_mask is not None and attention_mask.ndim == 2:
        padding = attention_mask.to(mask.device, torch.bool)[:, kv_offset : kv_offset + kv_length]
        padding = torch.nn.functional.pad(padding, (0, kv_length - padding.shape[1]))
    last = int(q_offset) + q_length - kv_offset  # a static cache has keys beyond the last query's own
    aligned = q_length <= last <= kv_length
    real = padding[:, last - q_length : last] if padding is not None and aligned else None
    note = Seen(kv_length, {}, real)
    if aligned:
        documents = _documents(mask) if padding is None and q_length == last == kv_length else None
        windows = [] if local_size is None else [(True, local_size), (False, local_size + 1)]
        for causal, window in [*windows, (True, None), (False, None)]:
            options: dict[str, Any] = {"causal": causal, "window": window}
            keys = last if causal else kv_length
            if (causal or keys == last) and _explains(options, mask, padding, keys, documents):
                cut = None if padding is None else padding[:, :keys]
                starts = None if documents is None else cu_seqlens(documents)
                note = Seen(keys, {**options, "key_padding": cut, "cu_seqlens": starts}, real)
                break
    setattr(mask, _NOTE, note)
    return mask


def seen_by(
    name: str, query: Tensor, key: Tensor, mask: Tensor | None, causal: bool, position_bias: Tensor | None
) -> Seen:
    """How the attention module `name` sees its keys, given what transformers hands to its attention function."""
    queries, keys = query.shape[2], key.shape[2]
    if mask is None:
        causal = causal and queries > 1  # one query, decoding, sees all keys
        seen = Seen(min(queries, keys) if causal else keys, {"causal": causal})
    else:
        seen = getattr(mask, _NOTE, Seen(keys))
        if "causal" not in seen.options:  # a mask of unknown make: bool, True where a key is seen, or added to logits
            seen = Seen(keys, {"causal": False, "bias": as_bias(mask[..., :keys])}, seen.real)
    if position_bias is not None:
        both = position_bias[..., : seen.keys]
        if seen.options.get("bias") is not None:
            both = both + seen.options["bias"]
        seen = Seen(seen.keys, {**seen.options, "bias": both}, seen.real)
    if _CROSS.search(name):  # the padding noted is that of the keys, and here the queries are other tokens
        seen = Seen(seen.keys, seen.options, None)
    return seen


def is_selection(indices: Any, query: Tensor, mask: Tensor) -> bool:
    """Whether `indices` (batch, queries, some) name keys under a mask, as DeepSeek's sparse attention selects them."""
    if not isinstance(indices, Tensor) or mask.dtype not in (torch.bool, query.dtype):
        return False
    sized = indices.ndim == 3 and indices.shape[:2] == (query.shape[0], query.shape[2]) and 0 not in indices.shape
    whole = not indices.is_floating_point() and indices.dtype != torch.bool
    return sized and whole and 0 <= int(indices.min()) <= int(indices.max()) < mask.shape[-1]


def selected(indices: Tensor, mask: Tensor) -> Tensor:
    """`mask` (batch, 1, queries, keys) with the keys hidden that `indices` do not name; padding stays known."""
    batch, queries = indices.shape[:2]
    named = torch.zeros(batch, queries, mask.shape[-1], dtype=torch.bool, device=mask.device)
    named = named.scatter_(-1, indices.to(mask.device, torch.int64), True)[:, None]
    found = mask & named if mask.dtype == torch.bool else mask.masked_fill(~named, torch.finfo(mask.dtype).min)
    setattr(found, _NOTE, Seen(mask.shape[-1], {}, getattr(mask, _NOTE, Seen(0)).real))
    return found


def as_bias(mask: Tensor) -> Tensor:
    """0 and -inf for a bool mask; for an additive one, -inf in place of the lowest numbers of its dtype."""
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -torch.inf)
    return mask.masked_fill(mask <= torch.finfo(mask.dtype).min / 2, -torch.inf)


def _documents(mask: Tensor) -> Tensor | None:
    """(batch, tokens): every token's document, a new one where a token does not see the one before; None: only one."""
    new = ~torch.nn.functional.pad(mask[:, 0].diagonal(-1, 1, 2).bool(), (1, 0), value=True)
    return new.long().cumsum(1) if bool(new.any()) else None


def cu_seqlens(documents: Tensor) -> Tensor:
    """(batch, most documents + 1): where the documents of every row begin, and then the length, repeated."""
    rows, length = documents.shape
    most = int(documents[:, -1].max()) + 1
    token = torch.arange(length, device=documents.device).expand(rows, length)
    with torch.inference_mode(False):  # so that layers after the first see that it was not changed
        ends = torch.full((rows, most + 1), length, device=documents.device)
    with torch.no_grad():
        return ends.scatter_reduce_(1, documents, token, "amin")


def _explains(
    options: dict[str, Any], mask: Tensor, padding: Tensor | None, keys: int, documents: Tensor | None
) -> bool:
    """Whether `options`, `padding` and `documents` give exactly `mask`, compared a few queries at a time."""
    batch, heads, queries, width = mask.shape
    if heads != 1:
        return False
    key = torch.arange(width, device=mask.device)
    inside = (key < keys)[None, None] if padding is None else (padding & (key < keys))[:, None]
    rows = max(1, _SLICE // (batch * width))
    for start in range(0, queries, rows):
        own = torch.arange(start, min(start + rows, queries), device=mask.device)[:, None] + keys - queries
        expected = torch.ones_like(own == key)
        if options["causal"]:
            expected &= key <= own
        if options["window"] is not None:
            expected &= (key - own).abs() < options["window"]
        part = mask[:, 0, start : start + rows]
        seen = expected & inside
        if documents is not None:
            seen = seen & (documents[:, start : start + rows, None] == documents[:, None])
        if not torch.equal(seen.expand_as(part), part):
            return False
    return True

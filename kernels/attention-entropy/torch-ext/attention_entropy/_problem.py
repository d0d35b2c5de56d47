"""One attention: its arguments, with their shapes checked."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor


@dataclass(frozen=True)
class Problem:
    """Arguments of `attention_entropy`; `v` is never given, and stays for the kernel, which can take it."""

    q: Tensor
    k: Tensor
    causal: bool
    scale: float
    window: int | None
    softcap: float | None
    bias: Tensor | None
    key_padding: Tensor | None
    cu_seqlens: Tensor | None
    v: Tensor | None = None

    @classmethod
    def of(
        cls,
        q: Tensor,
        k: Tensor,
        *,
        causal: bool,
        scale: float | None,
        window: int | None,
        softcap: float | None,
        bias: Tensor | None,
        key_padding: Tensor | None,
        cu_seqlens: Tensor | None,
    ) -> Problem:
        """A wrong shape gets one sentence."""
        if q.ndim != 4 or k.ndim != 4 or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
            wanted = "(batch, heads, queries, width) and (batch, kv_heads, keys, width)"
            raise ValueError(f"q and k must be {wanted}, got {tuple(q.shape)} and {tuple(k.shape)}")
        batch, heads, queries, width = q.shape
        kv_heads, keys = k.shape[1:3]
        if not (q.numel() and k.numel()):
            raise ValueError(f"q and k must not be empty, got {tuple(q.shape)} and {tuple(k.shape)}")
        if heads % kv_heads:
            raise ValueError(f"the heads of q must be a multiple of those of k, got {heads} and {kv_heads}")
        if causal and queries > keys:
            raise ValueError(f"causal attention needs a key for every query, got {queries} queries and {keys} keys")
        if window is not None and window < 1:
            raise ValueError(f"window must be at least 1, got {window}")
        if softcap is not None and not softcap > 0:
            raise ValueError(f"softcap must be above 0, got {softcap}")
        if key_padding is not None and (key_padding.shape != (batch, keys) or key_padding.dtype != torch.bool):
            raise ValueError(f"key_padding must be bool ({batch}, {keys}), got {tuple(key_padding.shape)}")
        return cls(
            q, k, causal, 1 / sqrt(width) if scale is None else scale,
            None if window is None else min(window, queries + keys), softcap,
            None if bias is None else bias.expand(batch, heads, queries, keys), key_padding,
            _ends(cu_seqlens, batch, queries, keys, q.device),
        )  # fmt: skip

    @property
    def queries(self) -> int:
        """How many queries there are."""
        return self.q.shape[2]

    @property
    def keys(self) -> int:
        """How many keys there are."""
        return self.k.shape[2]

    @property
    def offset(self) -> int:
        """Index of the key that is the first query's own."""
        return self.keys - self.queries


def _ends(given: Tensor | None, batch: int, queries: int, keys: int, device: torch.device) -> Tensor | None:
    """Where documents begin, and the length: (batch or 1, documents + 1). The kernel looks at the numbers."""
    if given is None:
        return None
    rows = given if given.ndim == 2 else given[None]
    if queries != keys:
        raise ValueError(f"cu_seqlens needs as many queries as keys, got {queries} and {keys}")
    if rows.ndim != 2 or rows.shape[0] not in (1, batch) or rows.shape[1] < 2 or rows.is_floating_point():
        raise ValueError(f"cu_seqlens must be whole numbers (documents + 1,), got {given.dtype} {tuple(given.shape)}")
    return rows.to(device)

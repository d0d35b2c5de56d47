"""Packed text: several documents in one row, none of which sees another."""

from __future__ import annotations

import torch
from torch import Tensor

from joma.host.arguments import Number, as_tensor


def documents(cu_seqlens: Number, batch: int, queries: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Of every token the first token of its document and the one after the last, each (batch or 1, keys).

    cu_seqlens: where documents begin, and at the end the length: (documents + 1,) of all rows alike, or
    (batch, documents + 1). A repeated number is an empty document, so that rows may differ in their number.
    """
    ends = as_tensor(cu_seqlens, "cu_seqlens").to(device)
    if queries != keys:
        raise ValueError(f"cu_seqlens needs as many queries as keys, got {queries} queries and {keys} keys")
    if ends.is_floating_point() or ends.ndim not in (1, 2) or ends.shape[-1] < 2:
        wanted = "whole numbers, (documents + 1,) or (batch, documents + 1)"
        raise ValueError(f"cu_seqlens must be {wanted}, got {ends.dtype} {tuple(ends.shape)}")
    ends = ends.long() if ends.ndim == 2 else ends.long()[None]
    if ends.shape[0] not in (1, batch):
        raise ValueError(f"cu_seqlens has {ends.shape[0]} rows and q has {batch}")
    wrong = (ends[:, 0] != 0) | (ends[:, -1] != keys) | (ends.diff(dim=1) < 0).any(1)
    if wrong.any():
        raise ValueError(f"cu_seqlens must rise from 0 to the number of keys, {keys}, got {_few(ends[wrong][0])}")
    token = torch.arange(keys, device=device).expand(len(ends), keys).contiguous()
    after = torch.searchsorted(ends, token, right=True)
    return ends.gather(1, after - 1), ends.gather(1, after)


def _few(row: Tensor) -> str:
    numbers = [str(number) for number in row[:6].tolist()]
    return ", ".join(numbers + ["..."] * (len(row) > 6))

"""One attention, checked, and the exact statistics of a slice of its queries."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from joma.theory.arguments import Number, as_numbers, as_tensor


@dataclass(frozen=True)
class Problem:
    """Arguments of `attention_stats` after checking; `v` is None where no output is wanted."""

    q: Tensor
    k: Tensor
    v: Tensor | None
    causal: bool
    scale: float
    window: int | None
    bias: Tensor | None
    softcap: float | None
    sinks: Tensor | None
    key_padding: Tensor | None

    @classmethod
    def of(
        cls,
        q: Number,
        k: Number,
        v: Number | None,
        causal: bool,
        scale: float | None,
        window: int | None,
        bias: Number | None,
        softcap: float | None,
        sinks: Number | None,
        key_padding: Number | None,
    ) -> Problem:
        """Check shapes and values; a wrong one gets one sentence."""
        q, k = as_numbers(q, "q"), as_numbers(k, "k")
        v = None if v is None else as_numbers(v, "v")
        bias = None if bias is None else as_numbers(bias, "bias")
        sinks = None if sinks is None else as_numbers(sinks, "sinks")
        key_padding = None if key_padding is None else as_tensor(key_padding, "key_padding")
        if q.ndim != 4 or k.ndim != 4:
            raise ValueError(
                f"q and k must be (batch, heads, length, width), got {tuple(q.shape)} and {tuple(k.shape)}"
            )
        batch, heads, queries, width = q.shape
        if k.shape[0] != batch or k.shape[3] != width:
            raise ValueError(f"q {tuple(q.shape)} and k {tuple(k.shape)} disagree on batch or width")
        if min(q.shape) < 1 or min(k.shape) < 1:
            raise ValueError(f"q and k must not be empty, got {tuple(q.shape)} and {tuple(k.shape)}")
        if heads % k.shape[1]:
            raise ValueError(f"heads must be a multiple of kv_heads, got {heads} and {k.shape[1]}")
        if v is not None and (v.ndim != 4 or v.shape[:3] != k.shape[:3]):
            raise ValueError(f"v must be (batch, kv_heads, keys, width) like k {tuple(k.shape)}, got {tuple(v.shape)}")
        keys = k.shape[2]
        if causal and queries > keys:
            raise ValueError(
                f"causal attention aligns the last query with the last key: {queries} queries, {keys} keys"
            )
        if window is not None and window < 1:
            raise ValueError(f"window must be at least 1, got {window}")
        if softcap is not None and not softcap > 0:
            raise ValueError(f"softcap must be positive, got {softcap}")
        if scale is not None and not scale == scale:
            raise ValueError("scale is NaN")
        if sinks is not None and sinks.shape != (heads,):
            raise ValueError(f"sinks must have shape ({heads},), one per head, got {tuple(sinks.shape)}")
        if key_padding is not None and (key_padding.shape != (batch, keys) or key_padding.dtype != torch.bool):
            raise ValueError(
                f"key_padding must be bool ({batch}, {keys}), got {key_padding.dtype} {tuple(key_padding.shape)}"
            )
        if bias is not None:
            try:
                bias = bias.expand(batch, heads, queries, keys)
            except RuntimeError:
                shape = (batch, heads, queries, keys)
                raise ValueError(f"bias must broadcast to {shape}, got {tuple(bias.shape)}") from None
        factor = 1 / sqrt(width) if scale is None else float(scale)
        return cls(q, k, v, causal, factor, window, bias, softcap, sinks, key_padding)

    @property
    def queries(self) -> int:
        return self.q.shape[2]

    @property
    def keys(self) -> int:
        return self.k.shape[2]

    @property
    def offset(self) -> int:
        """Index of the key that is the first query's own."""
        return self.keys - self.queries

    @property
    def differentiable(self) -> bool:
        """Whether anybody will ask for a gradient."""
        given = (self.q, self.k, self.v, self.bias, self.sinks)
        return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in given)

    def visible(self, start: int, stop: int) -> tuple[int, int]:
        """The range of keys that queries start..stop can see at all."""
        first, last = 0, self.keys
        if self.causal:
            last = min(last, stop + self.offset)
        if self.window is not None:
            first = max(0, start + self.offset - self.window + 1)
            last = min(last, stop + self.offset + (0 if self.causal else self.window - 1))
        return first, max(first, last)

    def rows(self, start: int, stop: int) -> tuple[Tensor, ...]:
        """Statistics (and, if v was given, output) of queries start..stop; only this slice of the matrix is made."""
        first, last = self.visible(start, stop)
        s = self._logits(start, stop, first, last)
        top = s.amax(-1) if last > first else s.new_full(s.shape[:-1], -torch.inf)
        empty = top == -torch.inf
        m = torch.where(empty, 0.0, top).detach()  # the shift cancels, also in the gradient
        t = s - m[..., None]
        e = t.exp()
        real = e.sum(-1)
        total = real if self.sinks is None else real + (self.sinks.to(s)[:, None] - m).exp()
        safe = torch.where(total == 0, 1.0, total)
        lse = torch.where(total == 0, -torch.inf, m + safe.log())
        p = e / safe[..., None]
        # entropy = sum p (ln total - t): ln total and -t are never negative where there is no sink
        weighted = torch.where(e > 0, t, 0.0) * p
        entropy = torch.where(empty, 0.0, p.sum(-1) * safe.log() - weighted.sum(-1))
        sink_mass = p[..., 0] if first == 0 and last > 0 else torch.zeros_like(lse)
        own = torch.arange(start, stop, device=s.device) + self.offset - first
        inside = (own >= 0) & (own < last - first)
        self_mass = torch.zeros_like(lse)
        if last > first:
            column = own.clamp(0, last - first - 1).expand(s.shape[:-1])[..., None]
            self_mass = torch.where(inside, p.gather(-1, column)[..., 0], 0.0)
        stats = (entropy, lse, top, sink_mass, self_mass, torch.where(empty, 0.0, entropy.exp()))
        if self.v is None:
            return stats
        v = self.v[:, :, first:last].to(p)
        grouped = p.unflatten(1, (v.shape[1], -1)).flatten(2, 3)
        output = (grouped @ v).unflatten(2, (-1, stop - start)).flatten(1, 2)
        return *stats, output.to(self.v.dtype)

    def _logits(self, start: int, stop: int, first: int, last: int) -> Tensor:
        """s of queries start..stop against keys first..last, in float32 or better, -inf where masked."""
        exact = torch.promote_types(self.q.dtype, torch.float32)
        q, k = self.q[:, :, start:stop].to(exact), self.k[:, :, first:last].to(exact)
        grouped = q.unflatten(1, (k.shape[1], -1)).flatten(2, 3)  # queries of all heads that share a key head
        # Contiguous first: some CPU builds multiply by a transposed view 25 times more slowly.
        products = grouped @ k.mT.contiguous()
        s: Tensor = products.unflatten(2, (-1, stop - start)).flatten(1, 2) * self.scale
        if self.softcap is not None:
            s = self.softcap * torch.tanh(s / self.softcap)
        if self.bias is not None:
            s = s + self.bias[:, :, start:stop, first:last].to(exact)
        own = (torch.arange(start, stop, device=s.device) + self.offset)[:, None]
        key = torch.arange(first, last, device=s.device)
        masked = torch.zeros(stop - start, last - first, dtype=torch.bool, device=s.device)
        if self.causal:
            masked |= key > own
        if self.window is not None:
            masked |= (own - key >= self.window) | (key - own >= self.window)
        s = s.masked_fill(masked, -torch.inf)
        if self.key_padding is not None:
            s = s.masked_fill(~self.key_padding[:, None, None, first:last], -torch.inf)
        return s

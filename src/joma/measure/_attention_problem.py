"""One attention, checked, the exact statistics of a slice of its queries, and learned sinks.

Every mask by position (causal, window, documents) leaves each query one interval of keys. So a problem keeps the two
ends of that interval per query, and nothing of the size queries x keys.

Learned sinks: one more entry in the denominator of every query's softmax.

Two conventions. A logit per head that takes mass and has no value (gpt-oss; logit 0 is "softmax plus one"). Or a
learned key that every query sees, with a value of its own. Either gives one logit z per query, and with d = z - lse of
the real keys, whose share becomes r = 1 / (1 + e^d), everything follows from the statistics without the sink:

    lse' = lse + ln(1 + e^d)    entropy' = r (entropy + ln(1 + e^d))  [+ (1 - r) ln(1 + e^-d) where the sink counts]

No term is negative, so no digits cancel.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from typing import TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor

from joma.host.arguments import Number, as_numbers, as_tensor, integer, number
from joma.measure._gram import compute_dtype


class Masks(TypedDict, total=False):
    """What decides a key's logit besides q, k and causal, as in `attention_stats`."""

    scale: float | None
    window: int | None
    bias: Number | None
    softcap: float | None
    key_padding: Number | None
    cu_seqlens: Number | None


@dataclass(frozen=True)
class Problem:
    """Arguments of `attention_stats` after checking; `v` is None where no output is wanted.

    `cu_seqlens` (batch or 1, documents + 1) is where the documents of packed text begin, and then the number of keys.
    If it came on a GPU, nobody has looked at its numbers: `document` does, and kernels give NaN where they are wrong.
    """

    q: Tensor
    k: Tensor
    v: Tensor | None
    causal: bool
    scale: float
    window: int | None
    bias: Tensor | None
    softcap: float | None
    key_padding: Tensor | None
    cu_seqlens: Tensor | None

    @classmethod
    def of(
        cls,
        q: Number,
        k: Number,
        v: Number | None,
        *,
        causal: bool = True,
        scale: float | None = None,
        window: int | None = None,
        bias: Number | None = None,
        softcap: float | None = None,
        key_padding: Number | None = None,
        cu_seqlens: Number | None = None,
        mask_stays: bool = False,
    ) -> "Problem":
        """Check shapes and values; a wrong one gets one sentence."""
        q, k = as_numbers(q, "q"), as_numbers(k, "k")
        v = None if v is None else as_numbers(v, "v")
        bias = None if bias is None else _bias(bias)
        key_padding = None if key_padding is None else as_tensor(key_padding, "key_padding")
        _check_shapes(q, k, v)
        batch, heads, queries, width = q.shape
        keys = k.shape[2]
        if causal and queries > keys:
            raise ValueError(f"causal attention aligns the last of q and the last of k: {queries} queries, {keys} keys")
        window = None if window is None else min(integer(window, "window", 1), queries + keys)
        softcap = None if softcap is None else number(softcap, "softcap", above=0.0)
        factor = 1 / sqrt(width) if scale is None else number(scale, "scale")
        if key_padding is not None and (key_padding.shape != (batch, keys) or key_padding.dtype != torch.bool):
            got = f"{key_padding.dtype} {tuple(key_padding.shape)}"
            raise ValueError(f"key_padding must be bool ({batch}, {keys}), got {got}")
        if bias is not None:
            shape = (batch, heads, queries, keys)
            try:
                bias = bias.expand(shape)
            except RuntimeError:
                raise ValueError(f"bias must broadcast to {shape}, got {tuple(bias.shape)}") from None
        ends = None if cu_seqlens is None else _ends_of_documents(cu_seqlens, batch, queries, keys, q.device)
        problem = cls(q, k, v, causal, factor, window, bias, softcap, key_padding, ends)
        return problem if mask_stays else problem.with_added_bias()

    def with_added_bias(self) -> "Problem":
        """The same with a bias that is added: 0 where a mask of True and False has True, else -inf."""
        if self.bias is None or self.bias.dtype != torch.bool:
            return self
        once = self.bias[tuple(slice(None) if step else slice(1) for step in self.bias.stride())]  # not what repeats
        added = torch.zeros(once.shape, device=once.device).masked_fill_(~once, -torch.inf)
        return replace(self, bias=added.expand(self.bias.shape))

    @property
    def queries(self) -> int:
        return self.q.shape[2]

    @property
    def keys(self) -> int:
        return self.k.shape[2]

    @property
    def offset(self) -> int:
        return self.keys - self.queries

    @cached_property
    def own(self) -> Tensor:
        """(1, queries): the key that is each query's own; not every index need be a key."""
        return torch.arange(self.queries, device=self.q.device)[None] + self.offset

    @cached_property
    def document(self) -> tuple[Tensor, Tensor] | None:
        """The first key and the key after the last of every token's document, each (batch or 1, keys)."""
        if self.cu_seqlens is None:
            return None
        ends = self.cu_seqlens.long()
        if ends.device.type == "cuda":
            _must_rise(ends, self.keys)
        token = torch.arange(self.keys, device=ends.device).expand(len(ends), self.keys).contiguous()
        after = torch.searchsorted(ends, token, right=True)
        return ends.gather(1, after - 1), ends.gather(1, after)

    @cached_property
    def first_key(self) -> Tensor:
        """(batch or 1, queries): the first key of every query's document."""
        return torch.zeros_like(self.own) if self.document is None else self.document[0]

    @cached_property
    def interval(self) -> tuple[Tensor, Tensor]:
        """(batch or 1, queries) twice: each query sees the keys from the one up to, not including, the other."""
        high = torch.full_like(self.own, self.keys) if self.document is None else self.document[1]
        return _within(self.first_key, high, self.own, self.causal, self.window)

    @cached_property
    def ends(self) -> tuple[list[int], list[int], list[int], list[int]]:
        """On the host, over the batch: least and greatest first key of every query, least and greatest end."""
        low, high = self.interval
        if len(low) == len(high) == 1:
            return (first := low[0].tolist()), first, (end := high[0].tolist()), end
        return low.amin(0).tolist(), low.amax(0).tolist(), high.amin(0).tolist(), high.amax(0).tolist()

    def visible(self, start: int, stop: int) -> tuple[int, int]:
        first, last = min(self.ends[0][start:stop]), max(self.ends[3][start:stop])
        return first, max(first, last)

    def hidden(self, start: int, stop: int, first: int, last: int) -> Tensor:
        """(batch or 1, 1, queries, keys): which of the keys first..last the queries start..stop do not see."""
        low, high = (end[:, None, start:stop, None] for end in self.interval)
        key = torch.arange(first, last, device=self.q.device)
        return (key < low) | (key >= high)

    def rows(self, start: int, stop: int) -> tuple[Tensor, ...]:
        """Statistics (and, if v was given, output) of queries start..stop; only this slice of the matrix is made."""
        first, last = self.visible(start, stop)
        s = self._logits(start, stop, first, last)
        top = s.amax(-1) if last > first else s.new_full(s.shape[:-1], -torch.inf)
        empty = top == -torch.inf
        m = torch.where(empty, 0.0, top).detach()  # the shift cancels, also in the gradient
        t = s - m[..., None]
        e = t.exp()
        total = e.sum(-1)
        safe = torch.where(empty, 1.0, total)
        lse = torch.where(empty, -torch.inf, m + safe.log())
        p = e / safe[..., None]
        # entropy = sum p (ln total - t): ln total and -t are never negative
        weighted = torch.where(e > 0, t, 0.0) * p
        entropy = torch.where(empty, 0.0, safe.log() - weighted.sum(-1))
        sink_mass = _column(p, self.first_key[:, start:stop] - first)
        self_mass = _column(p, self.own[:, start:stop] - first)
        stats = (entropy, lse, top, sink_mass, self_mass, torch.where(empty, 0.0, entropy.exp()))
        if self.v is None:
            return stats
        v = self.v[:, :, first:last].to(p)
        grouped = p.unflatten(1, (v.shape[1], -1)).flatten(2, 3)
        output = (grouped @ v).unflatten(2, (-1, stop - start)).flatten(1, 2)
        return *stats, output.to(self.v.dtype)

    def _logits(self, start: int, stop: int, first: int, last: int) -> Tensor:
        """s of queries start..stop against keys first..last, in float32 or better, -inf where masked."""
        exact = compute_dtype(self.q)
        q, k = self.q[:, :, start:stop].to(exact), self.k[:, :, first:last].to(exact)
        grouped = q.unflatten(1, (k.shape[1], -1)).flatten(2, 3)  # queries of all heads that share a key head
        # Contiguous first: some CPU builds multiply by a transposed view 25 times more slowly.
        products = grouped @ k.mT.contiguous()
        s: Tensor = products.unflatten(2, (-1, stop - start)).flatten(1, 2) * self.scale
        if self.softcap is not None:
            s = self.softcap * torch.tanh(s / self.softcap)
        if self.bias is not None:
            s = s + self.bias[:, :, start:stop, first:last].to(exact)
        s = s.masked_fill(self.hidden(start, stop, first, last), -torch.inf)
        if self.key_padding is not None:
            s = s.masked_fill(~self.key_padding[:, None, None, first:last], -torch.inf)
        return s


def interval_of(queries: int, keys: int, causal: bool, window: int | None) -> tuple[Tensor, Tensor]:
    """`Problem.interval` of texts without documents, each (1, queries): from lengths alone, on the CPU."""
    own = torch.arange(queries)[None] + keys - queries
    return _within(torch.zeros_like(own), torch.full_like(own, keys), own, causal, window)


def _within(low: Tensor, high: Tensor, own: Tensor, causal: bool, window: int | None) -> tuple[Tensor, Tensor]:
    """What is left of the interval from `low` to `high` under a causal mask and a window about the own key."""
    if causal:
        high = torch.minimum(high, own + 1)
    if window is not None:
        low = torch.maximum(low, own - window + 1)
        high = torch.minimum(high, own + window)
    return low, torch.maximum(low, high)


def _column(p: Tensor, at: Tensor) -> Tensor:
    """p (batch, heads, queries, keys) of one key per query, `at` (batch or 1, queries); 0 where there is none."""
    keys = p.shape[-1]
    if keys == 0:
        return p.sum(-1)
    inside = ((at >= 0) & (at < keys))[:, None]
    column = at.clamp(0, keys - 1)[:, None].expand(p.shape[:-1])
    return torch.where(inside, p.gather(-1, column[..., None])[..., 0], 0.0)


def _bias(given: Number) -> Tensor:
    bias = as_tensor(given, "bias")
    return bias if bias.dtype == torch.bool else as_numbers(given, "bias")


def _check_shapes(q: Tensor, k: Tensor, v: Tensor | None) -> None:
    if q.ndim != 4 or k.ndim != 4:
        raise ValueError(f"q and k must be (batch, heads, length, width), got {tuple(q.shape)} and {tuple(k.shape)}")
    if k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        raise ValueError(f"q {tuple(q.shape)} and k {tuple(k.shape)} disagree on batch or width")
    if min(q.shape) < 1 or min(k.shape) < 1:
        raise ValueError(f"q and k must not be empty, got {tuple(q.shape)} and {tuple(k.shape)}")
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"the heads of q must be a multiple of those of k, got {q.shape[1]} and {k.shape[1]}")
    if v is not None and (v.ndim != 4 or v.shape[:3] != k.shape[:3]):
        raise ValueError(f"v must be (batch, kv_heads, keys, width) like k {tuple(k.shape)}, got {tuple(v.shape)}")


def _ends_of_documents(cu_seqlens: Number, batch: int, queries: int, keys: int, device: torch.device) -> Tensor:
    """Of packed text: (batch or 1, documents + 1), where documents begin, and at the end the length.

    A repeated number is an empty document, so that rows may differ in their number.
    """
    ends = as_tensor(cu_seqlens, "cu_seqlens")
    if queries != keys:
        raise ValueError(f"cu_seqlens needs as many queries as keys, got {queries} queries and {keys} keys")
    if ends.is_floating_point() or ends.ndim not in (1, 2) or ends.shape[-1] < 2:
        wanted = "whole numbers, (documents + 1,) or (batch, documents + 1)"
        raise ValueError(f"cu_seqlens must be {wanted}, got {ends.dtype} {tuple(ends.shape)}")
    ends = ends if ends.dtype == torch.int32 else ends.long()
    ends = ends if ends.ndim == 2 else ends[None]
    if ends.shape[0] not in (1, batch):
        raise ValueError(f"cu_seqlens has {ends.shape[0]} rows and q has {batch}")
    if ends.device.type == device.type == "cuda":
        return ends.to(device)  # a look at its numbers would keep the GPU waiting
    _must_rise(ends, keys)
    if ends.device.type != "cpu" or device.type != "cuda":
        return ends.to(device)
    return ends.clone().to(device, non_blocking=True)  # CUDA has read ordinary memory when this returns: nobody waits


def _must_rise(ends: Tensor, keys: int) -> None:
    wrong = (ends[:, 0] != 0) | (ends[:, -1] != keys) | (ends.diff(dim=1) < 0).any(1)
    if wrong.any():
        row = ends[wrong][0]
        few = ", ".join([str(number) for number in row[:6].tolist()] + ["..."] * (len(row) > 6))
        raise ValueError(f"cu_seqlens must rise from 0 to the number of keys, {keys}, got {few}")


@dataclass(frozen=True)
class Sink:
    """z (batch, heads, queries) or what broadcasts to it; `value` (heads, width) or None; whether entropy counts it."""

    logit: Tensor
    value: Tensor | None
    counted: bool

    @classmethod
    def of(
        cls, problem: Problem, sinks: Number | None, key: Number | None, value: Number | None, counted: bool
    ) -> "Sink | None":
        """The sink of a problem, if it has one; a wrong argument gets one sentence."""
        if sinks is not None and key is not None:
            raise ValueError("sinks and sink_key are two kinds of learned sink: give one of them")
        if value is not None and key is None:
            raise ValueError("sink_value belongs to a sink_key, and none is given")
        if sinks is not None:
            heads, logits = problem.q.shape[1], as_numbers(sinks, "sinks")
            if logits.shape not in ((), (heads,)):
                wanted = f"one number or have shape ({heads},), one per head"
                raise ValueError(f"sinks must be {wanted}, got {tuple(logits.shape)}")
            return cls(logits.to(problem.q.device).expand(heads)[None, :, None], None, counted)
        if key is None:
            return None
        # The product of every query with its head's sink key, scaled and capped as all are.
        q, each = problem.q.to(compute_dtype(problem.q)), _per_head(problem, key, "sink_key", problem.q.shape[3])
        s = torch.einsum("bhqd,hd->bhq", q, each.to(q.dtype)) * problem.scale
        logit = s if problem.softcap is None else problem.softcap * torch.tanh(s / problem.softcap)
        width = None if problem.v is None else problem.v.shape[3]
        return cls(logit, None if value is None else _per_head(problem, value, "sink_value", width), counted)

    def applied(self, found: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The statistics (and the output, if there is one) with the sink."""
        entropy, lse, top, first, own, _, *output = found
        empty = top == -torch.inf
        z = self.logit.to(lse).expand(lse.shape)
        d = torch.where(empty, 0.0, z - torch.where(empty, 0.0, lse))
        grown, share = F.softplus(d), torch.where(empty, 0.0, torch.sigmoid(-d))
        new = share * (entropy + grown)
        if self.counted:
            new = new + torch.where(empty, 0.0, torch.sigmoid(d) * F.softplus(-d))
        # A row that sees no key at all has its sink alone: its lse, but nothing that a mean should count.
        stats = (new, torch.where(empty, z, lse + grown), top, first * share, own * share)
        mixed = [each.to(share) * share[..., None] for each in output]
        if self.value is not None:
            mixed = [each + (1 - share)[..., None] * self.value.to(share)[:, None] for each in mixed]
        ends = (each.to(old.dtype) for each, old in zip(mixed, output, strict=True))
        return *stats, torch.where(empty, 0.0, new.exp()), *ends


def _per_head(problem: Problem, given: Number, name: str, width: int | None) -> Tensor:
    """(kv_heads, width) for every head."""
    kv_heads = problem.k.shape[1]
    each = as_numbers(given, name)
    if each.shape != (kv_heads, width):
        raise ValueError(f"{name} must have shape ({kv_heads}, {width}), one per kv head, got {tuple(each.shape)}")
    return each.to(problem.q.device).repeat_interleave(problem.q.shape[1] // kv_heads, 0)

"""The whole attention matrix in float64, from the definition, and what the measures of sparsity are of it. Slow."""

import math

import torch


def matrix(q, k, *, causal=True, scale=None, window=None, bias=None, softcap=None, sinks=None, sink_key=None,
           key_padding=None, cu_seqlens=None):  # fmt: skip
    """Probabilities (batch, heads, queries, keys), and which keys each query sees, of the same shape."""
    q, k = q.double(), k.double()
    batch, heads, queries, width = q.shape
    group, keys = heads // k.shape[1], k.shape[2]
    scale = width**-0.5 if scale is None else scale
    cap = (lambda s: s) if softcap is None else (lambda s: softcap * torch.tanh(s / softcap))
    s = cap(q @ k.repeat_interleave(group, 1).mT * scale)
    if bias is not None:
        s = s + bias.double()
    seen = torch.zeros(batch, heads, queries, keys, dtype=torch.bool)
    for b in range(batch):
        for i in range(queries):
            for j in range(keys):
                seen[b, :, i, j] = sees(i + keys - queries, j, causal, window, documents(cu_seqlens, b))
    if key_padding is not None:
        seen &= key_padding[:, None, None]
    seen &= s > -math.inf
    e = s.masked_fill(~seen, -math.inf).exp()
    total = e.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + sinks.double().exp()[:, None, None]
    if sink_key is not None:
        each = sink_key.double().repeat_interleave(group, 0)
        total = total + cap(torch.einsum("bhqd,hd->bhq", q, each) * scale).exp()[..., None]
    return torch.where(seen, e / total.clamp(min=1e-300), 0.0), seen


def sees(own, key, causal, window, ends):
    if causal and key > own:
        return False
    if window is not None and abs(own - key) >= window:
        return False
    return ends is None or sum(end <= own for end in ends) == sum(end <= key for end in ends)


def documents(cu_seqlens, sample):
    if cu_seqlens is None:
        return None
    return cu_seqlens[sample] if isinstance(cu_seqlens[0], list) else cu_seqlens


def mass_above(p, threshold, relative=False):
    least = threshold * p.amax(-1, keepdim=True) if relative else threshold
    return torch.where(p > least, p, 0.0).sum(-1)


def top_mass(p, seen, keep):
    found = torch.zeros(p.shape[:-1], dtype=torch.float64)
    for at in torch.cartesian_prod(*(torch.arange(n) for n in found.shape)).tolist():
        row, at = sorted(p[tuple(at)].tolist(), reverse=True), tuple(at)
        count = keep if isinstance(keep, int) else max(1, math.ceil(round(keep * int(seen[at].sum()), 6)))
        found[at] = math.fsum(row[:count])
    return found


def sink_mass(p, first, cu_seqlens=None):
    found = torch.zeros(p.shape[:-1], dtype=torch.float64)
    for b in range(p.shape[0]):
        for i in range(p.shape[2]):
            start = max((end for end in documents(cu_seqlens, b) or [0] if end <= i), default=0)
            found[b, :, i] = p[b, :, i, start : start + first].sum(-1)
    return found


def scores(p, seen, even):
    if not even:
        return p.sum(-2)
    return (p * seen.sum(-1, keepdim=True)).sum(-2) / seen.sum(-2).clamp(min=1)

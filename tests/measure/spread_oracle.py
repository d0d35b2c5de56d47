"""The spread of logits in float64, one query and one key after another: slow, and like no other path."""

import math

import torch


def seen_keys(i, queries, keys, *, causal=True, window=None, cu_seqlens=None, padding=None, hidden=None):
    """The keys that query i sees, by the words of `attention_stats`; hidden: those that a bias of -inf hides."""
    own = i + keys - queries
    found = []
    for j in range(keys):
        good = not (causal and j > own) and not (window is not None and abs(own - j) >= window)
        if cu_seqlens is not None:
            good = good and sum(end <= own for end in cu_seqlens) == sum(end <= j for end in cu_seqlens)
        good = good and (padding is None or bool(padding[j])) and (hidden is None or not bool(hidden[j]))
        if good:
            found.append(j)
    return found


def covariance(x, y):
    a, b = math.fsum(x) / len(x), math.fsum(y) / len(y)
    return math.fsum((s - a) * (t - b) for s, t in zip(x, y, strict=True)) / len(x)


def slow_spread(
    q, k, *, causal=True, scale=None, window=None, bias=None, softcap=None, key_padding=None, cu_seqlens=None,
    query_padding=None,
):  # fmt: skip
    """variance, shared, specific, cross, added, uniform: (6, heads)."""
    q, k = q.double(), k.double()
    (batch, heads, queries, width), keys = q.shape, k.shape[2]
    group, scale = heads // k.shape[1], width**-0.5 if scale is None else scale
    bias = torch.zeros(batch, heads, queries, keys) if bias is None else bias.expand(batch, heads, queries, keys)
    ends = None if cu_seqlens is None else torch.as_tensor(cu_seqlens).expand(batch, -1).tolist()
    answer = []
    for h in range(heads):
        rows = []
        for b in range(batch):
            for i in range(queries):
                at = seen_keys(
                    i, queries, keys, causal=causal, window=window, cu_seqlens=ends and ends[b],
                    padding=None if key_padding is None else key_padding[b], hidden=bias[b, h, i] == -torch.inf,
                )  # fmt: skip
                if at and (query_padding is None or bool(query_padding[b, i])):
                    rows.append((b, i, at))
        if not rows:
            answer.append([math.nan] * 6)
            continue
        mean = torch.stack([q[b, h, i] for b, i, _ in rows]).mean(0)
        parts = []
        for b, i, at in rows:
            ks = k[b, h // group, at]
            shared = (scale * ks @ mean).tolist()
            rest = (scale * ks @ (q[b, h, i] - mean)).tolist()
            logits = (scale * ks @ q[b, h, i]).tolist()
            product = covariance(logits, logits)
            if softcap is not None:
                logits = [softcap * math.tanh(s / softcap) for s in logits]
            logits = [s + float(bias[b, h, i, j]) for s, j in zip(logits, at, strict=True)]
            whole = covariance(logits, logits)
            parts.append([
                whole, covariance(shared, shared), covariance(rest, rest), 2 * covariance(shared, rest),
                whole - product, math.log(len(at)),
            ])  # fmt: skip
        answer.append([math.fsum(column) / len(rows) for column in zip(*parts, strict=True)])
    return torch.tensor(answer, dtype=torch.float64).T

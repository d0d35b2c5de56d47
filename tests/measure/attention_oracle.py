"""Attention statistics of one query after another in float64, from the definition: slow, and like no other path."""

import math

import torch


def one_row(q, keys, own, *, scale, softcap=None, bias=None, sink=None, sink_in_entropy=False):
    """Of the keys (n, width) that one query sees: entropy, lse, max_logit, masses on the first and on its own.

    sink: (logit,) of a learned logit, or a key (width,). The last number is the sink's own probability.
    """
    logits = [_capped(float(q @ key) * scale, softcap) for key in keys]
    if bias is not None:
        logits = [s + float(b) for s, b in zip(logits, bias, strict=True)]
    every = list(logits)
    if sink is not None:
        every.append(float(sink[0]) if len(sink) == 1 else _capped(float(q @ sink) * scale, softcap))
    top = max(every)
    total = math.fsum(math.exp(s - top) for s in every)
    p = [math.exp(s - top) / total for s in every]
    counted = p if sink is None or sink_in_entropy else p[:-1]
    entropy = -math.fsum(x * math.log(x) for x in counted if x > 0)
    last = 0.0 if sink is None else p[-1]
    return entropy, top + math.log(total), max(logits), p[0], p[own], math.exp(entropy), last


def _capped(s, softcap):
    return s if softcap is None else softcap * math.tanh(s / softcap)


def slow_stats(q, k, documents, *, sink=None, sink_key=None, causal=True, window=None, **options):
    """(7, batch, heads, queries) of packed rows; `documents` (start, stop) are those of every sample alike."""
    q, k = q.double(), k.double()
    batch, heads, queries, width = q.shape
    group = heads // k.shape[1]
    options.setdefault("scale", width**-0.5)
    found = torch.full((7, batch, heads, queries), torch.nan, dtype=torch.float64)
    for start, stop in documents:
        for at in range(start, stop):
            first = start if window is None else max(start, at - window + 1)
            last = at + 1 if causal else stop if window is None else min(stop, at + window)
            for b in range(batch):
                for h in range(heads):
                    one = sink[h][None] if sink is not None else None
                    one = sink_key[h // group].double() if sink_key is not None else one
                    keys = k[b, h // group, first:last]
                    row = one_row(q[b, h, at], keys, at - first, sink=one, **options)
                    hidden = first > start  # then the window hides the document's first key
                    found[:, b, h, at] = torch.tensor([*row[:3], 0.0 if hidden else row[3], *row[4:]])
    return found

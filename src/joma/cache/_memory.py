"""How many attention weights are made at a time: memory grows with the length of a text, not with its square."""

from torch import Tensor

from joma.host.memory import free_memory

NUMBERS = 1 << 28
"""Attention weights of one layer, or logits over the vocabulary, at a time: 1 GiB in float32.

Where one sequence alone has more weights, its queries come in blocks. Its logits over the vocabulary are the model's to
make, all at once: where they cannot fit, the sequence is refused.
"""
FEW = 1 << 24
"""So many weights are made without asking how much memory is free."""
BYTES = 16
"""That a policy and attention need for one weight at the same time, in float32: logits, weights, masks."""


def queries_at_once(query: Tensor, key: Tensor) -> int:
    """How many queries (batch, heads, q_len, width) a policy may look at together, so that their weights fit.

    Fewer where little memory is free, by powers of two: the answer differs by rounding then, and comes.
    """
    per_query = len(query) * query.shape[1] * key.shape[2]
    numbers = NUMBERS
    if min(query.shape[2] * per_query, NUMBERS) > FEW:
        free = free_memory(key.device)
        while free is not None and numbers > FEW and numbers * BYTES * max(4, query.element_size()) // 4 > free:
            numbers //= 2
    return max(1, numbers // per_query)

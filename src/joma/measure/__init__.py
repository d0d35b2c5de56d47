"""What we look at, one quantity a file: tensors in, tensors out.

`attention` (entropy and masses without the matrix), `spectrum` (stable rank and friends, certified), `embedding`
(coherence), `rebound` (drop and rebound of a curve), `superposition` (what a neuron fires on).
"""

from joma.measure.attention import AttentionStats, attention_stats, attention_with_stats
from joma.measure.embedding import coherence
from joma.measure.spectrum import effective_rank, leading_singular_values, spectral_norm, stable_rank

__all__ = [
    "AttentionStats",
    "attention_stats",
    "attention_with_stats",
    "coherence",
    "effective_rank",
    "leading_singular_values",
    "spectral_norm",
    "stable_rank",
]

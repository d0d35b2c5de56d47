"""Measures, one quantity per file: functions from tensors, arrays or lists to tensors."""

from typing import TYPE_CHECKING

from joma.host.doors import opener

if TYPE_CHECKING:
    from joma.measure.alignment import best_neuron_correlation, held_out_correlation, linear_probe
    from joma.measure.attention import AttentionStats, attention_stats, attention_with_stats, logit_stats
    from joma.measure.embedding import coherence
    from joma.measure.intervals import mean_interval
    from joma.measure.spectrum import effective_rank, leading_singular_values, spectral_norm, stable_rank

__all__ = [
    "AttentionStats",
    "attention_stats",
    "attention_with_stats",
    "best_neuron_correlation",
    "coherence",
    "effective_rank",
    "held_out_correlation",
    "leading_singular_values",
    "linear_probe",
    "logit_stats",
    "mean_interval",
    "spectral_norm",
    "stable_rank",
]
__getattr__ = opener(__name__, __all__, ("alignment", "attention", "embedding", "intervals", "spectrum"))


def __dir__() -> list[str]:
    return __all__

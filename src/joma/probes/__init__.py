"""Measures attached to a running model, which computes what it always does."""

from joma.probes._plain import collect_plain
from joma.probes._record import Probe, ProbeError
from joma.probes._sparsity import AttentionSparsity
from joma.probes._states import StateDecay, state_decay
from joma.probes._support import can_probe
from joma.probes._text import attention_entropy, attention_means, attention_sparsity, attention_spread, probe_text
from joma.probes._transformers import collect

__all__ = [
    "AttentionSparsity",
    "Probe",
    "ProbeError",
    "StateDecay",
    "attention_entropy",
    "attention_means",
    "attention_sparsity",
    "attention_spread",
    "can_probe",
    "collect",
    "collect_plain",
    "probe_text",
    "state_decay",
]

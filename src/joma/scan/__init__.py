"""Measuring a series of checkpoints: readers, integrity, sweeps."""

from joma.scan.curves import Curve, Scan
from joma.scan.errors import CheckpointError, Fault, NoneUsable
from joma.scan.plan import Plan, plan
from joma.scan.sources.series import Series, open_series
from joma.scan.sweep import sweep

__all__ = [
    "CheckpointError",
    "Curve",
    "Fault",
    "NoneUsable",
    "Plan",
    "Scan",
    "Series",
    "open_series",
    "plan",
    "sweep",
]

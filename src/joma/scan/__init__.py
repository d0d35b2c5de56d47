"""Measuring a series of checkpoints: `scan` does all of it in one call.

Six packages, and imports go one way: each imports only from those before it.

1. `formats`: from bytes to tensors, in whatever format a checkpoint is stored.
2. `names`: what tensors are called, and what they are to their layer.
3. `sources`: where checkpoints are, and which step each of them is.
4. `model`: loading a model, running it on a text.
5. `result`: the curves of a scan, thresholds and tables.
6. `sweep`: what is read, measured, judged and recorded.

`scanning` stands on all of them, and `atlas` on it: many runs scanned by one list.
"""

from joma.scan.errors import CheckpointError, Fault, NoneUsable
from joma.scan.result.curves import Curve, Scan
from joma.scan.result.thresholds import violations
from joma.scan.scanning import Work, merge_shards, scan
from joma.scan.sources.places import Which, open_series
from joma.scan.sources.series import Series
from joma.scan.sweep.plan import Plan, What, plan
from joma.scan.sweep.sweeping import sweep

__all__ = [
    "CheckpointError", "Curve", "Fault", "NoneUsable", "Plan", "Scan", "Series", "What", "Which", "Work",
    "merge_shards", "open_series", "plan", "scan", "sweep", "violations",
]  # fmt: skip

"""The record of what happened: one SQLite file per run, crash-safe, resumable, exportable."""

from joma.runs.dims import Dims
from joma.runs.errors import RunError
from joma.runs.export import export
from joma.runs.merging import merge_runs
from joma.runs.store import Run
from joma.runs.values import plain_config

__all__ = ["Dims", "Run", "RunError", "export", "merge_runs", "plain_config"]

"""Where summaries go while training runs: any callable `(step, values)`. None of these needs to be installed for joma.

A sink that fails is reported once and dropped; training goes on.
"""

from joma.monitor.sinks.guard import Sink, Sinks
from joma.monitor.sinks.jsonl import JsonLines
from joma.monitor.sinks.mlflow import MLflow
from joma.monitor.sinks.tensorboard import TensorBoard
from joma.monitor.sinks.trackio import Trackio
from joma.monitor.sinks.wandb import Wandb

__all__ = ["JsonLines", "MLflow", "Sink", "Sinks", "TensorBoard", "Trackio", "Wandb"]

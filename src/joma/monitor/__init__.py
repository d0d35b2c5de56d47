"""Measures of a model while it trains, in any training loop, without a change to the training."""

from joma.monitor.alarms import Alert, EntropyFall, EntropyFloor, LargestLogit, NotFinite, RankDrop, usual_alarms
from joma.monitor.attach import Monitor
from joma.monitor.errors import MonitorError
from joma.monitor.measures import MONITORED as MEASURES
from joma.monitor.sinks import JsonLines, MLflow, TensorBoard, Trackio, Wandb
from joma.monitor.watch import TrainingStopped

__all__ = [
    "MEASURES",
    "Alert",
    "EntropyFall",
    "EntropyFloor",
    "JsonLines",
    "LargestLogit",
    "MLflow",
    "Monitor",
    "MonitorError",
    "NotFinite",
    "RankDrop",
    "TensorBoard",
    "Trackio",
    "TrainingStopped",
    "Wandb",
    "usual_alarms",
]

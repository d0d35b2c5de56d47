"""Attention and weights of a model while it trains, in anybody's loop, with the training left as it is."""

from joma.monitor.alarms import (
    Alert,
    EntropyFall,
    EntropyFloor,
    LargestLogit,
    NotFinite,
    RankDrop,
    TrainingStopped,
    usual_alarms,
)
from joma.monitor.attach import Monitor
from joma.monitor.errors import MonitorError
from joma.monitor.measures import MEASURES
from joma.monitor.sinks import JsonLines, TensorBoard

__all__ = [
    "MEASURES",
    "Alert",
    "EntropyFall",
    "EntropyFloor",
    "JsonLines",
    "LargestLogit",
    "Monitor",
    "MonitorError",
    "NotFinite",
    "RankDrop",
    "TensorBoard",
    "TrainingStopped",
    "usual_alarms",
]

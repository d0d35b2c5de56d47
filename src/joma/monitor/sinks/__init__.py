"""Where summaries go while training runs: any callable `(step, values)`. None of these needs to be installed for joma.

A sink that fails is reported once and dropped; training goes on.
"""

from joma.monitor.sinks.guard import Sink, Sinks
from joma.monitor.sinks.jsonl import JsonLines
from joma.monitor.sinks.tensorboard import TensorBoard

__all__ = ["JsonLines", "Sink", "Sinks", "TensorBoard"]

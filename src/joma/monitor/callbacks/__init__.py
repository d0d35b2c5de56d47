"""Monitors inside other people's trainers: one file per library, imported only when it is used."""

from typing import Any

from torch import nn

from joma.host.errors import BadInput
from joma.monitor.attach import Monitor
from joma.monitor.sinks.guard import report
from joma.monitor.watch import TrainingStopped


class InTrainer:
    """The part of a callback that no library decides. The first of its bases, since libraries' own have `__init__`."""

    monitor: Monitor | None = None

    def __init__(self, **options: Any) -> None:
        """options: those of `Monitor`, but for the model and `start`, which the Trainer knows."""
        for name in ("model", "start"):
            if name in options:
                raise BadInput(f"MonitorCallback takes {name} from the Trainer: leave it out", argument=name)
        self.options = options

    def _enter(self, model: nn.Module, step: int) -> None:
        """Enter, at the step that the Trainer begins with."""
        self._leave()  # a training before this one that broke off
        self.monitor = Monitor(model, start=step, **self.options).__enter__()
        if step == 0 and (recorded := self.monitor.recorded) > 0:
            self._leave()
            raise BadInput(
                f"out must be another file: it has steps up to {recorded} and this training begins anew", argument="out"
            )

    def _goes_on(self, step: int) -> bool:
        """Count one step of the optimizer. False where an alarm ends the training."""
        try:
            if self.monitor is not None:
                self.monitor.step(step)
        except TrainingStopped as stopped:
            report(f"training stops: {stopped}")
            return False
        return True

    def _leave(self, error: BaseException | None = None) -> None:
        monitor, self.monitor = self.monitor, None
        try:
            if monitor is not None:
                monitor.__exit__(None if error is None else type(error), error, None)
        except TrainingStopped as stopped:  # found in the last numbers, which came when training was over
            report(f"found after the last step: {stopped}")

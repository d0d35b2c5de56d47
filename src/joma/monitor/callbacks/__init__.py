"""Monitors inside other people's trainers: one file per library, imported only when it is used."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from joma.host.errors import BadInput
from joma.monitor.attach import Monitor
from joma.monitor.sinks.guard import report
from joma.monitor.watch import TrainingStopped
from joma.optim import QKClip


class InTrainer:
    """The part of a callback that no library decides. The first of its bases, since libraries' own have `__init__`."""

    monitor: Monitor | None = None
    clip: QKClip | None = None

    def __init__(self, *, qk_clip: float | Mapping[str, Any] | None = None, **options: Any) -> None:
        """What is monitored.

        - qk_clip: the threshold of a `joma.optim.QKClip` that acts after every step, or its options; None: none acts
        - options: those of `Monitor`, but for the model and `start`, which the Trainer knows
        """
        for name in ("model", "start"):
            if name in options:
                raise BadInput(f"MonitorCallback takes {name} from the Trainer: leave it out", argument=name)
        self.options = options
        self.qk_clip = qk_clip if qk_clip is None or isinstance(qk_clip, Mapping) else {"threshold": qk_clip}

    def _enter(self, model: nn.Module, step: int) -> None:
        self._leave()  # a training before this one that broke off
        if self.qk_clip is not None:
            self.clip = QKClip(model, **self.qk_clip)
            self.clip.steps = step
        self.monitor = Monitor(model, start=step, **self.options).__enter__()
        if step == 0 and (recorded := self.monitor.recorded) > 0:
            self._leave()
            raise BadInput(
                f"out must be another file: it has steps up to {recorded} and this training begins anew", argument="out"
            )

    def _goes_on(self, step: int, loss: Any = None) -> bool:
        """Count one step of the optimizer. False where an alarm ends the training."""
        if self.clip is not None:
            self.clip.step()
        try:
            if self.monitor is not None:
                self.monitor.step(step=step, loss=loss)
        except TrainingStopped as stopped:
            report(f"training stops: {stopped}")
            return False
        return True

    def _leave(self, error: BaseException | None = None) -> None:
        monitor, self.monitor = self.monitor, None
        if self.clip is not None:
            self.clip.remove()
            self.clip = None
        try:
            if monitor is not None:
                monitor.__exit__(None if error is None else type(error), error, None)
        except TrainingStopped as stopped:  # found in the last numbers, which came when training was over
            report(f"found after the last step: {stopped}")

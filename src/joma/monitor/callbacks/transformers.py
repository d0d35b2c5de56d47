"""A monitor inside transformers' Trainer.

    Trainer(model, arguments, ..., callbacks=[MonitorCallback(probe=batch, out="run.joma")])

The Trainer's events carry no batch. That is why the probe batch is given here.
"""

from __future__ import annotations

from typing import Any

from joma.host.errors import BadInput
from joma.host.extras import how_to_install
from joma.monitor.attach import Monitor
from joma.monitor.sinks.guard import report
from joma.monitor.watch import TrainingStopped

try:
    from transformers import TrainerCallback
except ImportError:
    raise BadInput(f"transformers is not installed: {how_to_install('hf')}") from None


class MonitorCallback(TrainerCallback):  # type: ignore[misc]
    """Enters a `Monitor` when training begins, tells it every step of the optimizer, and leaves it at the end.

    A Trainer that resumes from a checkpoint goes on in the same record. With on_alarm="stop" the Trainer ends its
    training in its own way, after the step; a model that cannot be monitored is refused before the first one.
    """

    def __init__(self, **options: Any) -> None:
        """options: those of `Monitor`, but for the model and `start`, which the Trainer knows."""
        for name in ("model", "start"):
            if name in options:
                raise BadInput(f"MonitorCallback takes {name} from the Trainer: leave it out", argument=name)
        self.options = options
        self.monitor: Monitor | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Enter, at the step that the Trainer begins with."""
        self._leave()  # a training before this one that broke off
        self.monitor = Monitor(given["model"], start=state.global_step, **self.options).__enter__()
        if state.global_step == 0 and self.monitor.recorded > 0:
            recorded = self.monitor.recorded
            self._leave()
            raise BadInput(
                f"out must be another file: it has steps up to {recorded} and this training begins anew", argument="out"
            )

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Gradients are there, clipped; when the step ends, the Trainer has cleared them."""
        if self.monitor is not None:
            self.monitor.gradients()

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Count one step of the optimizer, however many batches it took."""
        if self.monitor is None:
            return
        try:
            self.monitor.step(state.global_step)
        except TrainingStopped as stopped:
            report(f"training stops: {stopped}")
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Leave."""
        self._leave()

    def _leave(self) -> None:
        monitor, self.monitor = self.monitor, None
        if monitor is None:
            return
        try:
            monitor.__exit__(None, None, None)
        except TrainingStopped as stopped:  # found in the last numbers, which came when training was over
            report(f"found after the last step: {stopped}")

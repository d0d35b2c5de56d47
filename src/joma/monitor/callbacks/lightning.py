"""A monitor inside Lightning's Trainer: `Trainer(..., callbacks=[MonitorCallback(probe=batch, out="run.joma")])`."""

from __future__ import annotations

import os
from typing import Any

from torch import nn

from joma.host.arguments import shown
from joma.host.errors import BadInput
from joma.monitor.attach import Monitor
from joma.monitor.sinks.guard import report
from joma.monitor.watch import TrainingStopped

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback
    except ImportError:
        raise BadInput("Lightning is not installed: pip install lightning") from None


class MonitorCallback(Callback):  # type: ignore[misc]
    """Enters a `Monitor` when training begins, tells it every step of the optimizer, and leaves it at the end.

    Batches whose gradients are accumulated count as one step, and neither sanity checks nor validation count. A
    training that resumes from a checkpoint goes on in the same record. With on_alarm="stop" the Trainer ends its
    training in its own way, after the step; a model that cannot be monitored is refused before the first one.
    """

    def __init__(self, *, part: str | None = None, **options: Any) -> None:
        """What is monitored.

        - part: the name of the submodule that reads the probe batch, as "net"; None: the LightningModule's `forward`
        - options: those of `Monitor`, but for the model and `start`, which the Trainer knows
        """
        for name in ("model", "start"):
            if name in options:
                raise BadInput(f"MonitorCallback takes {name} from the Trainer: leave it out", argument=name)
        self.part, self.options = part, options
        self.monitor: Monitor | None = None
        self._resumed: dict[str, Any] = {}

    def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Enter, at the step that the Trainer begins with: checkpoints are loaded and sanity checks are over."""
        self._leave(None)  # a training before this one that broke off
        step = int(trainer.global_step)
        monitor = Monitor(self._watched(pl_module), start=step, **self.options).__enter__()
        self.monitor = monitor
        if step == 0 and monitor.recorded > 0:
            self._leave(None)
            had = f"it has steps up to {monitor.recorded} and this training begins anew"
            raise BadInput(f"out must be another file: {had}", argument="out")
        before = self._resumed.get("out")
        if before is not None and before != self._out:
            report(f"step {step}: the checkpoint was recorded in {before}, and training goes on in {self._out}")

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Count steps of the optimizer, however many batches each took."""
        if self.monitor is None or trainer.global_step <= self.monitor.step_number:
            return
        try:
            self.monitor.step(int(trainer.global_step))
        except TrainingStopped as stopped:
            report(f"training stops: {stopped}")
            trainer.should_stop = True

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Leave."""
        self._leave(None)

    def on_exception(self, trainer: Any, pl_module: nn.Module, exception: BaseException) -> None:
        """Leave, with the reason in the record."""
        self._leave(exception)

    def teardown(self, *_: Any, **__: Any) -> None:
        """Leave, if nothing else did."""
        self._leave(None)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: how far the monitor was, and where it wrote."""
        return {"step": 0 if self.monitor is None else self.monitor.step_number, "out": self._out}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Of a checkpoint. The step is the Trainer's; numbers and what alarms remember come from the record."""
        self._resumed = dict(state_dict)

    @property
    def _out(self) -> str | None:
        out = self.options.get("out")
        return None if out is None else os.fspath(out)

    def _watched(self, module: nn.Module) -> nn.Module:
        if self.part is None:
            return module
        try:
            return module.get_submodule(self.part)
        except AttributeError:
            names = ", ".join(name for name, _ in module.named_children())
            raise BadInput(
                f"part must be a submodule of {type(module).__name__}, which has {names}; got {shown(self.part)}",
                argument="part",
            ) from None

    def _leave(self, error: BaseException | None) -> None:
        monitor, self.monitor = self.monitor, None
        if monitor is None:
            return
        try:
            monitor.__exit__(None if error is None else type(error), error, None)
        except TrainingStopped as stopped:  # found in the last numbers, which came when training was over
            report(f"found after the last step: {stopped}")

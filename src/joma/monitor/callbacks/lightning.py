"""A monitor inside Lightning's Trainer: `Trainer(..., callbacks=[MonitorCallback(probe=batch, out="run.joma")])`."""

import os
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from joma.host.arguments import shown
from joma.host.errors import BadInput
from joma.monitor.callbacks import InTrainer
from joma.monitor.sinks.guard import report

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback
    except ImportError:
        raise BadInput("Lightning is not installed: pip install lightning") from None


class MonitorCallback(InTrainer, Callback):  # type: ignore[misc]
    """Enters a `Monitor` when training begins, tells it every step of the optimizer, and leaves it at the end.

    Batches whose gradients are accumulated count as one step, and neither sanity checks nor validation count. A
    training that resumes from a checkpoint goes on in the same record. With on_alarm="stop" the Trainer ends its
    training in its own way, after the step; a model that cannot be monitored is refused before the first one.
    """

    def __init__(self, *, part: str | None = None, **options: Any) -> None:
        """What is monitored.

        - part: the name of the submodule that reads the probe batch, as "net"; None: the LightningModule's `forward`
        - options: those of `Monitor`, but for the model and `start`, which the Trainer knows; and `qk_clip`, the
          threshold of a `joma.optim.QKClip`, or its options
        """
        super().__init__(**options)
        self.part = part
        self._resumed: dict[str, Any] = {}
        self._loss: Any = None  # of the batches of a step, each over their number

    def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Enter: checkpoints are loaded and sanity checks are over."""
        step = int(trainer.global_step)
        self._enter(self._watched(pl_module), step)
        before = self._resumed.get("out")
        if before is not None and before != self._out:
            report(f"step {step}: the checkpoint was recorded in {before}, and training continues in {self._out}")

    def on_train_batch_end(self, trainer: Any, pl_module: nn.Module, outputs: Any = None, *_: Any, **__: Any) -> None:
        """Count steps of the optimizer, however many batches each took."""
        step = int(trainer.global_step)
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, Tensor) and loss.numel() == 1:
            self._loss = loss.detach() if self._loss is None else self._loss + loss.detach()
        if self.monitor is not None and step > self.monitor.step_number:
            loss, self._loss = self._loss, None
            if not self._goes_on(step, loss):
                trainer.should_stop = True

    def on_exception(self, trainer: Any, pl_module: nn.Module, exception: BaseException) -> None:
        """Leave, with the reason in the record."""
        self._leave(exception)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Leave."""
        self._leave()

    teardown = on_train_end  # if nothing else did

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

"""A monitor inside transformers' Trainer.

    Trainer(model, arguments, ..., callbacks=[MonitorCallback(probe=batch, out="run.joma")])

The Trainer's events carry no batch. That is why the probe batch is given here.
"""

from typing import Any

from joma.host.errors import BadInput
from joma.host.extras import how_to_install
from joma.monitor.callbacks import InTrainer

try:
    from transformers import TrainerCallback
except ImportError:
    raise BadInput(f"transformers is not installed: {how_to_install('hf')}") from None


class MonitorCallback(InTrainer, TrainerCallback):  # type: ignore[misc]
    """Enters a `Monitor` when training begins, tells it every step of the optimizer, and leaves it at the end.

    A Trainer that resumes from a checkpoint goes on in the same record. With on_alarm="stop" the Trainer ends its
    training in its own way, after the step; a model that cannot be monitored is refused before the first one.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Enter."""
        self._enter(given["model"], state.global_step)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Gradients are there, clipped; when the step ends, the Trainer has cleared them."""
        if self.monitor is not None:
            self.monitor.gradients()

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Count one step of the optimizer, however many batches it took."""
        if not self._goes_on(state.global_step):
            control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Take the Trainer's own loss, a mean over the steps since it logged last."""
        if self.monitor is not None and (loss := (given.get("logs") or {}).get("loss")) is not None:
            self.monitor.record_loss(loss)

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Leave."""
        self._leave()

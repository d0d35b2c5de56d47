"""Weights & Biases, where it is installed."""

from typing import Any

from joma.host.errors import BadInput
from joma.host.words import short
from joma.monitor.sinks.guard import beginning, library

STEP = "joma/step"
"""What joma's curves are drawn over: W&B drops rows whose step is below that of a row that somebody else logged."""


class Wandb:
    """Logs to a run of Weights & Biases, under `joma/`; alarms go to `run.alert()`.

    The run is the one that is given, else the one that is active, else a new one, which ends with the monitor. Steps
    are those of the monitor, in `joma/step`; W&B's own count of rows goes on as if there were no monitor.
    """

    def __init__(self, run: Any = None, **init: Any) -> None:
        """run: one that `wandb.init` gave, or None. init: options of `wandb.init` for a new run, as mode="offline"."""
        self._library = library("wandb", "Weights & Biases", "wandb")
        if run is not None and init:
            raise BadInput(f"Wandb takes a run or options of a new one, got both: {', '.join(init)}", argument="sinks")
        active = run if run is not None else None if init else self._library.run
        self._mine = active is None
        with beginning("Weights & Biases"):
            self.run: Any = active if active is not None else self._library.init(**init)
            self.run.define_metric(STEP)
            self.run.define_metric("joma/*", step_metric=STEP)

    def __call__(self, step: int, values: dict[str, float]) -> None:
        """One row."""
        self.run.log({STEP: step} | {f"joma/{name}": value for name, value in values.items()})

    def alert(self, step: int, title: str, text: str) -> None:
        """What an alarm found; W&B writes an e-mail or a message where somebody asked it to."""
        # W&B takes a wait of zero for a minute, in which further alarms of this title would be lost.
        self.run.alert(title=title, text=text, level=self._library.AlertLevel.WARN, wait_duration=0.001)

    def close(self) -> None:
        """End the run, if it began here."""
        if self._mine:
            self.run.finish()

    def __repr__(self) -> str:
        return f"Wandb({short(getattr(self.run, 'id', None))})"

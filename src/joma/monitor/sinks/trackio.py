"""Trackio, where it is installed: a local database, and a dashboard over it when somebody asks for one."""

from typing import Any

from joma.host.errors import BadInput
from joma.host.words import short
from joma.monitor.sinks.guard import beginning, library


class Trackio:
    """Logs to a run of trackio; alarms go to `run.alert()`.

    Trackio writes in a thread of its own and turns its errors into warnings, so a full disk does not reach us.
    """

    def __init__(self, project: str = "joma", *, run: Any = None, **init: Any) -> None:
        """What is logged to.

        - project: of a new run
        - run: one that `trackio.init` gave; it is not ended
        - init: further options of `trackio.init`, as name and resume; numbers of the machine are left out unless asked
        """
        self._library = library("trackio", "Trackio", "trackio")
        if run is not None and init:
            raise BadInput(
                f"Trackio takes a run or options of a new one, got both: {', '.join(init)}", argument="sinks"
            )
        self._mine = run is None
        usual = {"embed": False, "auto_log_cpu": False, "auto_log_gpu": False}
        with beginning("Trackio"):
            self.run: Any = run if run is not None else self._library.init(project, **usual | init)

    def __call__(self, step: int, values: dict[str, float]) -> None:
        """One row."""
        self.run.log(values, step=step)

    def alert(self, step: int, title: str, text: str) -> None:
        """What an alarm found."""
        self.run.alert(title, text, level=self._library.AlertLevel.WARN, step=step)

    def close(self) -> None:
        """End the run, if it began here."""
        if self._mine:
            self.run.finish()

    def __repr__(self) -> str:
        return f"Trackio({short(getattr(self.run, 'project', None))})"

"""MLflow, where it is installed."""

import re
import time
from typing import Any

from joma.host.words import short
from joma.monitor.sinks.guard import beginning, library

_TOGETHER = 1000  # metrics that MLflow takes in one request
_NOT_IN_NAMES = re.compile(r"[^\w\-. :/]")


class MLflow:
    """Logs metrics to a run of MLflow. MLflow has no alarms: those stay in the log and the record.

    The run is the one whose id is given, else the one that is active, else a new one, which ends with the monitor.
    """

    def __init__(
        self, run_id: str | None = None, *, experiment: str = "joma", tracking_uri: str | None = None, name: str = ""
    ) -> None:
        """Where the numbers go.

        - run_id: of a run that goes on
        - experiment: that a new run belongs to; it is made where it is not there
        - tracking_uri: a folder, a database or a server; None: MLflow's own choice
        - name: of a new run
        """
        mlflow = library("mlflow", "MLflow", "mlflow-skinny")
        self._metric: Any = mlflow.entities.Metric
        active = mlflow.active_run() if run_id is None and tracking_uri is None else None
        with beginning("MLflow"):
            self._client: Any = mlflow.MlflowClient(tracking_uri=tracking_uri)
            self.run_id: str = run_id or (active.info.run_id if active else self._new_run(experiment, name))
        self._mine = run_id is None and active is None

    def _new_run(self, experiment: str, name: str) -> str:
        known = self._client.get_experiment_by_name(experiment)
        owner = self._client.create_experiment(experiment) if known is None else known.experiment_id
        return str(self._client.create_run(owner, run_name=name or None).info.run_id)

    def __call__(self, step: int, values: dict[str, float]) -> None:
        """One metric per number; what MLflow does not allow in a name becomes an underscore."""
        now = int(time.time() * 1000)
        metrics = [self._metric(_NOT_IN_NAMES.sub("_", name), value, now, step) for name, value in values.items()]
        for at in range(0, len(metrics), _TOGETHER):
            self._client.log_batch(self.run_id, metrics=metrics[at : at + _TOGETHER])

    def close(self) -> None:
        """End the run, if it began here."""
        if self._mine:
            self._client.set_terminated(self.run_id)

    def __repr__(self) -> str:
        return f"MLflow({short(self.run_id)})"

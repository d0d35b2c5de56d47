"""An executor from a word: "local", "ray", "ray:auto", "ray://HOST:10001"."""

from typing import Any

from joma.host.errors import BadInput
from joma.scale.local import Local
from joma.scale.ray import RayCluster
from joma.scale.task import Executor


def executor_of(on: str, *, jobs: int | None = None, threads: int = 1, silence: float = 600.0) -> Executor:
    """The executor that a word names.

    - on: "local" for processes of this machine; "ray" for the cluster of RAY_ADDRESS, else for one on this machine;
      "ray:ADDRESS" with an address as ray.init takes it, on a machine of the cluster; "ray://HOST:PORT" from elsewhere
    - jobs: tasks at a time; None: as many as fit
    - threads: of each task
    - silence: seconds without a word after which a task is given up

    >>> executor_of("ray://head:10001", jobs=8).address
    'ray://head:10001'
    >>> executor_of("ray:auto").address
    'auto'
    """
    how: dict[str, Any] = {"jobs": jobs, "threads": threads, "silence": silence}
    if jobs is not None and jobs < 1:
        raise BadInput(f"jobs must be at least 1, got {jobs}", argument="jobs")
    kind, _, address = on.partition(":")
    if on == "local":
        return Local(**how)
    if on == "ray":
        return RayCluster(**how)
    if kind == "ray" and address.strip("/"):
        return RayCluster(on if address.startswith("//") else address, **how)
    raise BadInput(f"on must be local, ray, ray:ADDRESS or ray://HOST:PORT, got {on!r}", argument="on")

"""A stand-in for Ray, in which a test says what becomes of every task: for what joma makes of it, without a cluster."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class RayError(Exception):
    pass


def _kinds() -> SimpleNamespace:
    made = {name: type(name, (RayError,), {}) for name in (
        "OutOfMemoryError", "WorkerCrashedError", "NodeDiedError", "ObjectLostError", "RayTaskError",
        "TaskCancelledError",
    )}  # fmt: skip
    return SimpleNamespace(RayError=RayError, **made)


class StandInRay:
    """What `becomes` gives for (task, attempt) is what a task gives: an answer, an error, or None while it is going."""

    def __init__(self, becomes: Callable[[str, int], Any], machines: tuple[dict[str, float], ...] = ({"CPU": 4},)):
        self.becomes, self.machines = becomes, machines
        self.exceptions, self.given, self.cancelled = _kinds(), [], []
        self.words: list[dict[str, Any]] = []
        self.most = 0
        self.going: set[int] = set()

    def remote(self, what: Any) -> Any:
        made = self.mailbox if isinstance(what, type) else self.begin
        return SimpleNamespace(options=lambda **how: SimpleNamespace(remote=lambda *orders: made(how, *orders)))

    def mailbox(self, how: dict[str, Any]) -> Any:
        self.box = how
        said = lambda: SimpleNamespace(kind="words", value=self.words.pop(0) if self.words else {})
        return SimpleNamespace(heard=SimpleNamespace(remote=said))

    def begin(self, how: dict[str, Any], order: dict[str, Any], mailbox: Any) -> Any:
        reference = _Reference(order, how)
        self.given.append(reference)
        self.going.add(id(reference))
        self.most = max(self.most, len(self.going))
        return reference

    def nodes(self) -> list[dict[str, Any]]:
        dead = {"Alive": False, "Resources": {"CPU": 99, "GPU": 99, "memory": 1e15}}
        return [dead, *({"Alive": True, "Resources": has} for has in self.machines)]

    def wait(self, references: list[Any], num_returns: int = 1, timeout: float | None = None) -> tuple[list, list]:
        assert references, "Ray refuses to wait for nothing"
        ready = [one for one in references if one.kind == "words" or self._value(one) is not None][:num_returns]
        return ready, [one for one in references if one not in ready]

    def _value(self, reference: Any) -> Any:
        if reference.force is not None:
            return self.exceptions.WorkerCrashedError() if reference.force else self.exceptions.TaskCancelledError()
        return self.becomes(reference.order["task"], reference.order["attempt"])

    def get(self, reference: Any) -> Any:
        if reference.kind == "words":
            return reference.value
        self.going.discard(id(reference))
        value = self._value(reference)
        if isinstance(value, Exception):
            raise value
        return value

    def cancel(self, reference: Any, force: bool = False) -> None:
        reference.force = force
        self.cancelled.append((reference.order["task"], force))


class _Reference:
    """To what a task will give."""

    kind = "task"

    def __init__(self, order: dict[str, Any], how: dict[str, Any]) -> None:
        self.order, self.how, self.force = order, how, None

"""All sinks of a monitor. One that raises is reported once and dropped."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from joma.host.arguments import shown
from joma.host.errors import BadInput
from joma.host.words import short

Sink = Callable[[int, dict[str, float]], Any]
LOG = logging.getLogger("joma.monitor")


def report(sentence: str) -> None:
    """One line for whoever trains: joma's logger prints warnings to standard error unless told otherwise."""
    LOG.warning("%s", sentence)


class Sinks:
    """Hands every summary to all of them.

    >>> seen = []
    >>> Sinks([lambda step, values: seen.append(step)]).send(3, {"entropy/h.0/mean": 1.0})
    >>> seen
    [3]
    """

    def __init__(self, given: Iterable[Sink] | Sink) -> None:
        """given: callables `(step, values)`, or one of them."""
        self.working = [given] if callable(given) else list(given)
        for sink in self.working:
            if not callable(sink):
                raise BadInput(f"sinks must be callables (step, values), got {shown(sink)}", argument="sinks")

    def send(self, step: int, values: dict[str, float]) -> None:
        """Each gets a dictionary of its own."""
        for sink in list(self.working):
            self._guarded(sink, partial(sink, step, dict(values)), f"at step {step}")

    def close(self) -> None:
        """Close those that can be."""
        for sink in list(self.working):
            if callable(close := getattr(sink, "close", None)):
                self._guarded(sink, close, "at the end")

    def _guarded(self, sink: Sink, call: Callable[[], Any], when: str) -> None:
        try:
            call()
        except Exception as error:
            self.working.remove(sink)
            report(
                f"sink {short(sink)} failed {when} and is dropped, training goes on: {type(error).__name__}: {error}"
            )

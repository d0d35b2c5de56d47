"""All sinks of a monitor. One that raises is reported once and dropped.

A sink that has `alert(step, title, text)` gets the alarms, too; one that has `close()` is closed at the end.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

from joma.host.arguments import shown
from joma.host.errors import BadInput
from joma.host.words import short
from joma.monitor.alarms import Alert, few_sentences

Sink = Callable[[int, dict[str, float]], Any]
LOG = logging.getLogger("joma.monitor")


def report(sentence: str) -> None:
    """One line for whoever trains: joma's logger prints warnings to standard error unless told otherwise."""
    LOG.warning("%s", sentence)


class Sinks:
    """Hands every summary to all of them."""

    def __init__(self, given: Iterable[Sink] | Sink) -> None:
        """given: callables `(step, values)`, or one of them."""
        self.working = [given] if callable(given) else list(given)
        for sink in self.working:
            if not callable(sink):
                raise BadInput(f"sinks must be callables (step, values), got {shown(sink)}", argument="sinks")

    def send(self, step: int, values: dict[str, float]) -> None:
        for sink in list(self.working):
            self._guarded(sink, partial(sink, step, dict(values)), f"at step {step}")

    def alert(self, alerts: Sequence[Alert]) -> None:
        """Those that have a place for alarms get a few sentences; `alerts` are of one step."""
        for sink in list(self.working) if alerts else ():
            if callable(say := getattr(sink, "alert", None)):
                self._guarded(sink, partial(_say_all, say, alerts), f"at step {alerts[0].step}")

    def close(self) -> None:
        for sink in list(self.working):
            if callable(close := getattr(sink, "close", None)):
                self._guarded(sink, close, "at the end")

    def _guarded(self, sink: Sink, call: Callable[[], Any], when: str) -> None:
        try:
            call()
        except Exception as error:
            self.working.remove(sink)
            report(
                f"sink {short(sink)} failed {when} and is dropped, training continues: {type(error).__name__}: {error}"
            )


def _say_all(say: Callable[[int, str, str], Any], alerts: Sequence[Alert]) -> None:
    for alert, sentence in zip(alerts, few_sentences(alerts), strict=False):
        say(alert.step, f"joma: {alert.measure}", sentence)


def library(module: str, name: str, package: str) -> Any:
    """The module, or one sentence that says how to get it.

    - module: what is imported
    - name: as people call it
    - package: what pip installs
    """
    try:
        return import_module(module)
    except ImportError:
        raise BadInput(f"{name} is not installed: pip install {package}", argument="sinks") from None


@contextmanager
def beginning(name: str) -> Iterator[None]:
    r"""Around what opens a folder, a file or a run: what goes wrong there is said in one sentence, before training."""
    try:
        yield
    except Exception as error:
        why = short(" ".join(str(error).split()), 200)
        raise BadInput(
            f"sinks has {name}, which cannot begin: {type(error).__name__}: {why}", argument="sinks"
        ) from error

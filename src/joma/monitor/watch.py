"""All alarms of a monitor together: who is asked, what is new, and what happens then."""

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np

from joma.host.arguments import shown
from joma.host.errors import BadInput, JomaError
from joma.host.named_code import one_line
from joma.host.words import short
from joma.monitor.alarms import Alarm, Alert, few_sentences, usual_alarms
from joma.monitor.measures import GROWTH, NORMS
from joma.monitor.sinks.guard import report
from joma.monitor.tables import Table, Tables


class TrainingStopped(JomaError):
    """An alarm ended the training, as `on_alarm="stop"` asks for; `alerts` has all that were found."""

    def __init__(self, alerts: Sequence[Alert]) -> None:
        """alerts: what the alarms found, at least one."""
        others = f", and {len(alerts) - 1} more" if len(alerts) > 1 else ""
        super().__init__(f"{alerts[0]}{others}")
        self.alerts = list(alerts)


OnAlarm = Literal["log", "stop"] | Callable[[Alert], Any]


class Watch:
    """All alarms of a monitor, and what happens at one. An alarm fires once and re-arms when the number recovers."""

    def __init__(self, alarms: Sequence[Alarm] | Alarm | None, on_alarm: OnAlarm, measured: Iterable[str]) -> None:
        """alarms: some or one; None for the usual ones. on_alarm: what happens. measured: measures that are taken."""
        if not callable(on_alarm) and on_alarm not in ("log", "stop"):
            raise BadInput(f"on_alarm must be 'log', 'stop' or a function, got {shown(on_alarm)}", argument="on_alarm")
        known = set(measured)
        given = usual_alarms() if alarms is None else _several(alarms)
        for alarm in given if alarms is not None else ():
            _must_be_an_alarm(alarm, known)
        self.alarms = tuple(map(deepcopy, given))  # each remembers its run
        self._broken: set[int] = set()
        self.on_alarm = on_alarm
        self._told: set[tuple[int, str, str, int | None]] = set()
        self._causes = Causes()

    def new(self, step: int, tables: Tables) -> list[Alert]:
        """What was not beyond its limit at the measuring before."""
        now: dict[tuple[int, str, str, int | None], Alert] = {}
        self._causes.see(step, tables)
        for at, alarm in enumerate(self.alarms):
            now |= {(at, each.measure, each.layer, each.head): each for each in self._look(at, alarm, step, tables)}
        found = [
            alert if alert.cause else replace(alert, cause=self._causes.of(alert))
            for key, alert in now.items()
            if key not in self._told
        ]
        # What was not measured at this step stays told.
        self._told = {key for key in self._told if key[1] not in tables} | set(now)
        return found

    def _look(self, at: int, alarm: Alarm, step: int, tables: Tables) -> list[Alert]:
        """What one alarm finds; one that raises is reported once and dropped."""
        if at in self._broken:
            return []
        try:
            return list(alarm.look(step, tables))
        except Exception as error:
            self._broken.add(at)
            report(f"alarm {short(alarm)} failed at step {step} and is dropped, training continues: {one_line(error)}")
            return []

    def act(self, alerts: Sequence[Alert]) -> None:
        """Log, call, or stop."""
        if alerts and self.on_alarm == "stop":
            raise TrainingStopped(alerts)
        for sentence in few_sentences(self._not_handed_over(alerts)):
            report(sentence)

    def _not_handed_over(self, alerts: Sequence[Alert]) -> Sequence[Alert]:
        """Call `on_alarm`, if it is a function. One that raises is reported once; from then on alarms are logged."""
        for at, alert in enumerate(alerts):
            if not callable(self.on_alarm):
                return alerts[at:]
            try:
                self.on_alarm(alert)
            except TrainingStopped:  # it says so itself
                raise
            except Exception as error:
                what = f"{short(self.on_alarm)} failed at step {alert.step}, its alarms are logged from now on"
                self.on_alarm = "log"
                report(f"on_alarm {what}, training continues: {one_line(error)}")
                return alerts[at:]
        return ()


def _several(alarms: Sequence[Alarm] | Alarm) -> tuple[Any, ...]:
    return tuple(alarms) if isinstance(alarms, Iterable) and not hasattr(alarms, "look") else (alarms,)


def _must_be_an_alarm(alarm: Any, measured: set[str]) -> None:
    if not callable(getattr(alarm, "look", None)) or not hasattr(alarm, "measure"):
        raise BadInput(
            f"alarms must be those of joma.monitor or have look and measure, got {shown(alarm)}", argument="alarms"
        )
    if alarm.measure is not None and alarm.measure not in measured:
        raise BadInput(f"alarms has {short(alarm)}, which needs {alarm.measure} among measures", argument="alarms")


_VARIANCE = "spread/variance"
_SPEAK_OF_LOGITS = ("entropy", "effective_keys", "largest_logit")
_HALF_AS_LARGE = 4.0  # in the variance: logits half as large as now
_LEAST_RISE = 1.5  # below that nothing happened that would have a cause
_MOST_OF_IT = 2 / 3  # our choice
_KEPT = 64  # measurings


class _Point(NamedTuple):
    step: int
    variance: np.ndarray
    size: np.ndarray


class Causes:
    """Remembers the spread of logits, and names why they grew: the weights did, or the inputs aligned with them.

    The spread s2 is the size of the weights times what the inputs make of it (`joma.monitor.measures`). So the change
    of ln s2 has two parts, and a cause is named where one of them is at least two thirds of the whole.

    Now is compared with the latest measuring at which logits were half as large; where there is none, with the first.
    """

    def __init__(self) -> None:
        self._past: list[_Point] = []
        self._rows: Table | None = None

    def see(self, step: int, tables: Tables) -> None:
        """One measuring, in order; there is something to remember where the spread was measured."""
        size = tables.get(GROWTH) or tables.get(NORMS)
        if (variance := tables.get(_VARIANCE)) is None or size is None:
            return
        if len(self._past) >= _KEPT:  # of older ones every second
            self._past = self._past[: _KEPT // 2 : 2] + self._past[_KEPT // 2 :]
        self._past.append(_Point(step, variance.values, size.values))
        self._rows = variance

    def of(self, alert: Alert) -> str | None:
        """What the logits of the alert's head owe their size to; None where that cannot be told."""
        if alert.measure not in _SPEAK_OF_LOGITS or self._rows is None or alert.head is None:
            return None
        if alert.layer not in self._rows.rows.names:
            return None
        at = self._rows.rows.names.index(alert.layer), alert.head
        *past, now = self._past
        smaller = [point for point in past if point.variance[at] * _HALF_AS_LARGE <= now.variance[at]]
        if not past:
            return None
        return _sentence(smaller[-1] if smaller else past[0], now, at)


def _sentence(then: _Point, now: _Point, at: tuple[int, int]) -> str | None:
    with np.errstate(divide="ignore", invalid="ignore"):
        whole, weights = now.variance[at] / then.variance[at], now.size[at] / then.size[at]
        share = np.log(weights) / np.log(whole)
    if not (np.isfinite([whole, share]).all() and whole >= _LEAST_RISE):
        return None
    since = f"the variance of its logits rose {whole:.3g} times since step {then.step}"
    if share >= _MOST_OF_IT:
        return f"the weights grew ({since}, their size {weights:.3g} times); QK-clip and QK-norm bound them"
    if share <= 1 - _MOST_OF_IT:
        return f"the inputs aligned with the weights ({since}, the weights' size {weights:.3g} times)"
    return None

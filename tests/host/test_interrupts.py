"""Signals that wait for the end of a turn, in this process, by a clock that is set and a timer that never rings."""

import os
import signal
from typing import ClassVar

import pytest

from joma.host import interrupts
from joma.host.interrupts import Terminated, signals_noted, sigterm_raised

TERM, INT = signal.SIGTERM, signal.SIGINT


class Timer:
    """Instead of threading.Timer."""

    made: ClassVar[list["Timer"]] = []

    def __init__(self, seconds, call, given):
        self.seconds, self.call, self.given, self.did, self.daemon = seconds, call, given, [], False
        Timer.made.append(self)

    def start(self):
        self.did.append("started" if self.daemon else "started, and not a daemon")

    def cancel(self):
        self.did.append("cancelled")


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    now, before = [1000.0], {number: signal.getsignal(number) for number in (INT, TERM)}
    Timer.made = []
    monkeypatch.setattr(interrupts, "monotonic", lambda: now[0])
    monkeypatch.setattr(interrupts.threading, "Timer", Timer)
    signal.signal(INT, signal.default_int_handler)
    signal.signal(TERM, signal.SIG_DFL)
    yield now
    for number, handler in before.items():
        signal.signal(number, handler)


def handlers():
    return signal.getsignal(INT), signal.getsignal(TERM)


def test_sigterm_is_raised_once_and_its_echo_is_not(clock):
    with sigterm_raised():
        with pytest.raises(Terminated):
            signal.raise_signal(TERM)
        clock[0] += interrupts.ECHO
        signal.raise_signal(TERM)  # the same once more
        clock[0] += 1.01 * interrupts.ECHO
        with pytest.raises(Terminated):
            signal.raise_signal(TERM)
    assert handlers() == (signal.default_int_handler, signal.SIG_DFL)


@pytest.mark.parametrize("number", [INT, TERM])
def test_a_handler_of_somebody_else_stays(number):
    heard = []
    signal.signal(number, own := lambda number, frame: heard.append(number))
    with sigterm_raised(), signals_noted() as noted:
        assert signal.getsignal(number) is own
        signal.raise_signal(number)
        assert (heard, noted) == ([number], {})
    assert signal.getsignal(number) is own


def test_a_first_signal_waits_for_the_end_of_the_turn_with_a_limit(clock):
    done = []

    @signals_noted()
    def turn():
        signal.raise_signal(INT)
        done.append("the turn")

    with pytest.raises(KeyboardInterrupt) as caught:
        turn()
    assert type(caught.value) is KeyboardInterrupt
    assert done == ["the turn"]
    (timer,) = Timer.made
    assert (timer.seconds, timer.call, timer.given) == (interrupts.PATIENCE, os.kill, (os.getpid(), INT))
    assert timer.did == ["started", "cancelled"]
    assert handlers() == (signal.default_int_handler, signal.SIG_DFL)


def test_a_second_signal_does_not_wait_but_the_echo_of_the_first_does(clock):
    reached = []

    def turn():
        with signals_noted() as noted:
            signal.raise_signal(TERM)
            clock[0] += 0.9 * interrupts.ECHO
            signal.raise_signal(TERM)
            reached.append(dict(noted))
            clock[0] += 1.1 * interrupts.ECHO
            signal.raise_signal(TERM)
            reached.append("never")

    with sigterm_raised():
        with pytest.raises(Terminated):
            turn()
        assert reached == [{TERM: 1000.0}]
    assert len(Timer.made) == 1


def test_where_no_signal_ends_the_process_each_has_its_own_limit(clock, monkeypatch):
    """The first process of a container does not die of SIGTERM."""
    sent = signal.raise_signal
    monkeypatch.setattr(interrupts.signal, "raise_signal", lambda number: None)

    @signals_noted()
    def turn():
        sent(INT)
        sent(TERM)

    with pytest.raises(Terminated):
        turn()
    assert [(timer.given[1], timer.did) for timer in Timer.made] == [
        (INT, ["started", "cancelled"]),
        (TERM, ["started", "cancelled"]),
    ]


def test_an_error_on_the_way_is_the_cause_and_alone_it_is_itself():
    @signals_noted()
    def turn():
        signal.raise_signal(INT)
        raise OSError("disk is full")

    with pytest.raises(KeyboardInterrupt) as caught:
        turn()
    assert str(caught.value.__cause__) == "disk is full"
    with pytest.raises(OSError, match="disk is full"), signals_noted():
        raise OSError("disk is full")
    with signals_noted() as noted:
        pass
    assert (noted, Timer.made[1:]) == ({}, [])

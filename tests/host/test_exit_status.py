"""How a command ends: at Ctrl-C, at SIGTERM, with what could not be written."""

import os
import signal
import threading

import pytest

from joma.host.exit_status import INTERRUPTED, OK, TERMINATED, answer
from joma.host.interrupts import Terminated
from joma.runs import RunError

GOES_ON = "joma: interrupted; the same command continues where this one stopped\n"


def at_sigterm() -> object:
    return signal.getsignal(signal.SIGTERM)


def test_sigterm_ends_a_command_as_ctrl_c_does(capsys):
    def command():
        signal.raise_signal(signal.SIGTERM)
        pytest.fail("it went on")

    assert answer(command) == TERMINATED == 143
    assert capsys.readouterr().err == GOES_ON
    assert at_sigterm() is signal.SIG_DFL


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda number, frame: None])
def test_sigterm_that_somebody_else_decides_on(handler):
    signal.signal(signal.SIGTERM, handler)
    try:
        assert answer(lambda: OK if at_sigterm() is handler else 99) == OK
        assert at_sigterm() is handler
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_other_threads_cannot_and_need_not_handle_it():
    ended = []
    thread = threading.Thread(target=lambda: ended.append(answer(lambda: OK if at_sigterm() is signal.SIG_DFL else 99)))
    thread.start()
    thread.join()
    assert ended == [OK]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # Python 3.12, of the fork
def test_a_forked_child_dies_of_it():
    def command():
        if child := os.fork():
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            os._exit(99)

    assert answer(command) == -signal.SIGTERM


@pytest.mark.parametrize(("kind", "status"), [(KeyboardInterrupt, INTERRUPTED), (Terminated, TERMINATED)])
def test_an_interrupt_says_what_could_not_be_written(capsys, kind, status):
    def command():
        raise kind from RunError("no checkpoint could be written")

    assert answer(command) == status
    assert capsys.readouterr().err == "joma: interrupted; no checkpoint could be written\n"


@pytest.mark.parametrize(
    "error", [MemoryError(), ImportError("libtorch.so: failed to map segment from shared object")], ids=["make", "load"]
)
def test_a_lack_of_memory_is_no_fault_of_joma(capsys, error):
    def command():
        raise error

    assert answer(command) == 1
    assert capsys.readouterr().err == "joma: there is not enough memory; what was recorded is safe\n"

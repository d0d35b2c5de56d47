"""Processes end with what started them, however it ends, and may write what they have."""

import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from local_tasks import HERE, tasks
from patience import PATIENCE, alive, until

from joma.scale import local
from joma.scale.local import side_by_side
from joma.scale.task import Task


def test_processes_end_with_events_that_nobody_has_asked_for(monkeypatch):
    """As at SIGTERM between the start of the processes and the first word that is heard of them."""
    stopped = []
    monkeypatch.setattr(local, "_stop", stopped.append)
    monkeypatch.setattr(local, "_Process", lambda *_: SimpleNamespace(give=lambda task: None, loads=set(), gpu=None))
    events = side_by_side(f"{HERE}:double", tasks("a", "b"), jobs=2)
    events.close()
    assert [len(team) for team in stopped] == [2]


def test_an_interrupt_between_two_starts_ends_those_that_were_started(monkeypatch):
    started, stopped = [], []

    class Process(SimpleNamespace):
        def give(self, task):
            if len(started) == 2:
                raise KeyboardInterrupt

    def start(*_):
        started.append(Process(gpu=None, task="one", loaded=set()))
        return started[-1]

    monkeypatch.setattr(local, "_Process", start)
    monkeypatch.setattr(local, "_stop", lambda team: stopped.extend(team))
    monkeypatch.setattr(local._Works, "chosen", lambda works, process: works.waiting.pop(0))
    with pytest.raises(KeyboardInterrupt):
        side_by_side("joma.scale.worker:echo", [Task(name, {}) for name in "abc"], jobs=3)
    assert stopped == started
    assert len(started) == 2


class Ending:
    """A process that ends so many seconds after SIGTERM, on a clock of its own."""

    def __init__(self, clock, seconds):
        self.clock, self.seconds, self.told, self.ended, self.running = clock, seconds, None, "", self

    def terminate(self):
        self.told = self.clock[0]

    def wait(self, timeout=None):
        if self.ended:
            return
        end = self.told + self.seconds
        if timeout is not None and end > self.clock[0] + timeout:
            self.clock[0] += timeout
            raise subprocess.TimeoutExpired("worker", timeout)
        self.clock[0], self.ended = max(self.clock[0], end), "by itself"

    def kill(self):
        self.ended = self.ended or ("by itself" if self.clock[0] >= self.told + self.seconds else "killed")

    def close(self):
        assert self.ended


def test_processes_have_the_patience_of_a_signal_to_write_what_they_have_and_no_more(monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(local, "monotonic", lambda: clock[0])
    team = [Ending(clock, seconds) for seconds in (local.PATIENCE, 1.0, local.PATIENCE, 1e6, 0.0)]
    local._stop(team)
    assert [one.ended for one in team] == ["by itself"] * 3 + ["killed", "by itself"]
    assert {one.told for one in team} == {1000.0}  # all at once, not one after the other
    assert clock[0] <= 1000.0 + local.PATIENCE + 10


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_its_parent_and_each_may_write_what_it_has(number, tmp_path):
    code = (
        "from joma.host.interrupts import sigterm_raised\n"
        "from joma.scale import local\n"
        "from joma.scale.local import Task, side_by_side\n"
        f"local.PATIENCE = {PATIENCE}\n"
        f"tasks = [Task(n, {{'file': {str(tmp_path)!r} + '/' + n}}) for n in 'ab']\n"
        "with sigterm_raised():\n"
        f"    list(side_by_side('{HERE}:save_at_the_end', tasks, jobs=2))\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    pids = [tmp_path / f"{name}.pid" for name in "ab"]
    until(lambda: all(path.exists() and path.read_text() for path in pids))
    parent.send_signal(number)
    until(lambda: parent.poll() is not None)
    until(lambda: not any(alive(int(path.read_text())) for path in pids))
    assert [(tmp_path / name).read_text() for name in "ab"] == ["saved", "saved"]

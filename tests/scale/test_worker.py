"""A worker: what it says of a task, when it is at work, and what it does without its parent."""

import io
import json
import sys
from types import SimpleNamespace

import pytest

from joma.scale import worker


def test_a_worker_is_at_work_only_while_it_works(monkeypatch):
    """At the end of its orders a worker at work stops, and one that has answered ends well."""
    told = []

    def listen(tasks, at_work, _):
        told.append(at_work)
        for line in ("1", "2", None):
            tasks.put(line)

    monkeypatch.setattr(worker, "_listen", listen)
    to = io.StringIO()
    worker._work(lambda arguments, progress: told[0].is_set(), to)
    assert [json.loads(line)["value"] for line in to.getvalue().splitlines()] == [True, True]
    assert not told[0].is_set()


def test_a_worker_whose_parent_went_while_it_loaded_does_nothing(monkeypatch):
    def listen(tasks, at_work, alone):
        alone.set()
        tasks.put("1")

    monkeypatch.setattr(worker, "_listen", listen)
    with pytest.raises(KeyboardInterrupt):
        worker._work(lambda *_: pytest.fail("it worked"), io.StringIO())


def test_memory_is_told_in_bytes(monkeypatch):
    import resource

    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=7 if who == 0 else 1))
    monkeypatch.setattr(sys, "platform", "linux")
    assert worker.most_memory() == 7168
    monkeypatch.setattr(sys, "platform", "darwin")  # there it is in bytes already
    assert worker.most_memory() == 7


def test_a_worker_answers_with_a_value_or_with_why_there_is_none(monkeypatch):
    monkeypatch.setattr(worker, "most_memory", lambda: 5)
    said = []

    def function(arguments, progress):
        progress(0.5, "half")
        return arguments["n"] / arguments["by"]

    def carried_out(**arguments):
        return worker.carried_out(function, arguments, lambda *words: said.append(words))

    assert carried_out(n=3, by=2) == {"value": 1.5, "memory": 5}
    assert carried_out(n=3, by=0) == {"failed": "ZeroDivisionError: division by zero"}
    assert said == [(0.5, "half")] * 2
    with pytest.raises(BrokenPipeError):
        worker.carried_out(lambda *_: (_ for _ in ()).throw(BrokenPipeError), {}, print)

"""Side by side: all tasks are done, whatever happens to one of them."""

import io
from types import SimpleNamespace

import pytest
from local_tasks import HERE, ended, tasks
from patience import not_for_ever

from joma.scale import local
from joma.scale.local import Local, side_by_side
from joma.scale.task import Done, Going, Lost, Task


def test_every_task_is_done_and_says_how_far_it_is():
    events = list(side_by_side(f"{HERE}:double", [Task(str(n), {"n": n}) for n in range(5)], jobs=2))
    assert {name: event.value for name, event in ended(events).items()} == {str(n): 2 * n for n in range(5)}
    assert any(isinstance(event, Going) and event.doing == "doubling" for event in events)
    assert all(event.memory > 1e6 for event in ended(events).values())


def test_every_process_has_the_threads_that_were_asked_for_whatever_runs_beside_it():
    for jobs, threads in ((1, 1), (2, 1), (2, 3)):
        found = ended(side_by_side(f"{HERE}:threads", tasks("a", "b"), jobs=jobs, threads=threads))
        assert [event.value for event in found.values()] == [str(threads)] * 2


def test_every_process_has_the_limits_of_the_environment(monkeypatch):
    monkeypatch.setenv("JOMA_LIMITS", "LAYERS=77")
    assert ended(side_by_side(f"{HERE}:limit", tasks("a"), jobs=1))["a"].value == 77


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("raise", "ValueError: no such thing"),
        ("die", "its process died of SIGSEGV"),
        ("kill", "often the machine is out of memory"),
        ("leave", "its process ended with status 7"),
    ],
)
def test_a_task_that_goes_wrong_costs_only_itself(how, reason):
    found = ended(side_by_side(f"{HERE}:go_wrong", tasks("a", "bad", "c", "d", how=how), jobs=2))
    assert isinstance(found["bad"], Lost)
    assert reason in found["bad"].reason
    assert all(isinstance(found[name], Done) for name in "acd")


def test_a_task_that_says_nothing_is_given_up_and_the_others_go_on(tmp_path, monkeypatch):
    """Nine seconds pass once the task hangs, and none before: a process may take any time to start."""
    hangs = tmp_path / "hangs"
    monkeypatch.setattr("joma.scale.local.monotonic", lambda: 9.0 * hangs.exists())
    works = tasks("bad", "b", "c", how="hang", file=str(hangs))
    with not_for_ever():
        found = ended(Local(jobs=1, silence=8.0).events(f"{HERE}:go_wrong", works))
    assert found["bad"].reason == "it said nothing for 8 s and was stopped"  # and it was not begun again
    assert isinstance(found["b"], Done)
    assert isinstance(found["c"], Done)


def test_a_task_that_talks_is_not_given_up_however_long_it_takes(tmp_path, monkeypatch):
    """Every word of it comes 5 s after the one before; only a silence of 8 s would be too long."""
    clock, enough = [0.0], tmp_path / "enough"
    monkeypatch.setattr(local, "monotonic", lambda: clock[0])
    works = [Task("a", {"mine": str(tmp_path / "mine"), "others": str(enough)})]
    events = []
    for event in side_by_side(f"{HERE}:meet", works, jobs=1, silence=8.0):
        events.append(event)
        clock[0] += 5.0
        if len(events) == 3:
            enough.touch()
    assert all(isinstance(event, Going) for event in events[:3])
    assert isinstance(events[-1], Done)


def test_what_a_task_prints_is_no_answer(capfd):
    found = ended(side_by_side(f"{HERE}:noisy", tasks("a"), jobs=1))
    assert found["a"].value == "quiet"
    assert "NOISE" in capfd.readouterr().err


def test_what_a_process_says_becomes_events():
    """As lines of JSON bring it, one after the other; None once there are no more."""
    going, ended = Task("a", {"x": 1}, "torch"), SimpleNamespace(wait=lambda: -9)
    process = object.__new__(local._Process)
    process.__dict__ |= {
        "task": None,
        "heard": 0.0,
        "reason": "",
        "kills": 0,
        "loads": set(),
        "running": SimpleNamespace(),
    }
    assert process.hear({"value": 1, "memory": 2}) is None  # a late word on a task that is over
    process.running = SimpleNamespace(stdin=io.StringIO())
    process.give(going)
    assert (process.task, process.loads, process.running.stdin.getvalue()) == (going, {"torch"}, '{"x": 1}\n')
    process.give(Task("b", {}))
    assert process.loads == {"torch"}
    process.task = going
    assert process.hear({"share": 0.25, "doing": "reading"}) == Going(going, 0.25, "reading")
    assert process.hear({"value": [1], "memory": 20}) == Done(going, [1], 20)
    assert process.task is None
    process.task = going
    assert process.hear({"failed": "ValueError: no"}) == Lost(going, "ValueError: no")
    for reason, said in (("", "its process died of SIGKILL: often the machine is out of memory"), ("slow", "slow")):
        process.task, process.reason, process.running = going, reason, ended
        assert process.hear(None) == Lost(going, said)
    assert process.hear(None) is None

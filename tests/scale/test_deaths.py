"""Processes that die: why, and whether their task is begun again."""

import io
import signal
from types import SimpleNamespace

from local_tasks import HERE, ended

from joma.scale import local
from joma.scale.local import Local, memory_kills
from joma.scale.task import Task


def dying(tmp_path, deaths, **how):
    return Task("dies", {"log": str(tmp_path / "log"), "deaths": deaths, **how})


def test_a_task_whose_process_dies_is_begun_again(tmp_path):
    events = list(Local(jobs=1).events(f"{HERE}:die_at_first", [dying(tmp_path, 2)]))
    assert [event.doing.partition("; ")[2] for event in events[:-1]] == ["begun again (1 of 3)", "begun again (2 of 3)"]
    assert "its process died of SIGKILL" in events[0].doing
    assert events[-1].value == 3


def test_a_task_is_lost_once_its_process_has_died_four_times(tmp_path):
    found = ended(Local(jobs=1).events(f"{HERE}:die_at_first", [dying(tmp_path, 99)]))
    assert found["dies"].reason.endswith(", 4 times")
    assert (tmp_path / "log").read_text().count("begun") == 4


def test_an_error_of_the_task_itself_is_not_tried_again(tmp_path):
    found = ended(Local(jobs=1).events(f"{HERE}:die_at_first", [dying(tmp_path, 99, how="raise")]))
    assert found["dies"].reason == "ValueError: no such thing"
    assert (tmp_path / "log").read_text().count("begun") == 1


def test_what_ran_out_of_memory_is_not_tried_again(tmp_path, monkeypatch):
    """The kernel has killed one process more for memory than when the task began."""
    monkeypatch.setattr(local, "memory_kills", lambda: int((tmp_path / "log").exists()))
    found = ended(Local(jobs=1).events(f"{HERE}:die_at_first", [dying(tmp_path, 99)]))
    assert found["dies"].reason == "its process died of SIGKILL: the machine ran out of memory"
    assert (tmp_path / "log").read_text().count("begun") == 1


def test_only_kills_since_the_task_was_given_count(monkeypatch):
    """A process has several tasks, and the kernel may have killed something during an earlier one."""
    process = object.__new__(local._Process)
    process.__dict__ |= {"loads": set(), "running": SimpleNamespace(stdin=io.StringIO(), wait=lambda: -signal.SIGKILL)}
    for kills in (3, 5):
        monkeypatch.setattr(local, "memory_kills", lambda kills=kills: kills)
        process.give(Task("a", {}))
    assert process._cause() == "its process died of SIGKILL: often the machine is out of memory"
    assert process.may_live_again


def test_a_death_by_another_signal_is_no_lack_of_memory(monkeypatch):
    """The kernel killed some other process meanwhile."""
    process = object.__new__(local._Process)
    process.__dict__ |= {"kills": 0, "may_live_again": True, "running": SimpleNamespace(wait=lambda: -signal.SIGSEGV)}
    monkeypatch.setattr(local, "memory_kills", lambda: 1)
    assert process._cause() == "its process died of SIGSEGV"
    assert process.may_live_again


def test_the_kernel_counts_the_processes_that_it_kills_for_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "_COUNTS", tmp_path / "vmstat")
    assert memory_kills() == 0
    (tmp_path / "vmstat").write_text("pgfault 5\noom_kill 17\noom_kill_other 3\n")
    assert memory_kills() == 17
    (tmp_path / "vmstat").write_text("pgfault 5\n")
    assert memory_kills() == 0

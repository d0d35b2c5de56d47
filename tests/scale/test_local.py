"""Side by side: all tasks are done, whatever happens to one of them, and nothing is left behind."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from patience import PATIENCE, not_for_ever, until

from joma.scale import deaths, local, worker
from joma.scale.deaths import cause_of, memory_kills
from joma.scale.local import Local, side_by_side
from joma.scale.task import Done, Going, Lost, Task

HERE = "scale_tasks"


@pytest.fixture(autouse=True)
def _workers_find_the_tasks(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)


def ended(events):
    return {event.task.name: event for event in events if not isinstance(event, Going)}


def tasks(*names, **arguments):
    return [Task(name, {"name": name, **arguments}) for name in names]


def test_every_task_is_done_and_says_how_far_it_is():
    events = list(side_by_side(f"{HERE}:double", [Task(str(n), {"n": n}) for n in range(5)], jobs=2))
    assert {name: event.value for name, event in ended(events).items()} == {str(n): 2 * n for n in range(5)}
    assert any(isinstance(event, Going) and event.doing == "doubling" for event in events)
    assert all(event.memory > 1e6 for event in ended(events).values())


def test_every_process_has_the_threads_that_were_asked_for_whatever_runs_beside_it():
    for jobs, threads in ((1, 1), (2, 1), (2, 3)):
        found = ended(side_by_side(f"{HERE}:threads", tasks("a", "b"), jobs=jobs, threads=threads))
        assert [event.value for event in found.values()] == [str(threads)] * 2


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
        found = ended(side_by_side(f"{HERE}:go_wrong", works, jobs=1, silence=8.0))
    assert "said nothing for 8 s" in found["bad"].reason
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


def test_what_a_task_prints_is_no_answer(capfd):
    found = ended(side_by_side(f"{HERE}:noisy", tasks("a"), jobs=1))
    assert found["a"].value == "quiet"
    assert "NOISE" in capfd.readouterr().err


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # also where it ends between opening and reading
        return False


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


def test_tasks_that_load_the_same_go_to_one_process_where_there_is_a_choice(tmp_path):
    """Both processes are busy all the time, as a task waits for its like in the other; each loads one library."""
    places = {"a": str(tmp_path / "a"), "b": str(tmp_path / "b")}
    works = [
        Task(f"{load}{n}", {"mine": f"{places[load]}{n}", "others": f"{places[other]}{n}"}, load)
        for n in range(3)
        for load, other in ("ab", "ba")
    ]
    found = ended(side_by_side(f"{HERE}:meet", works, jobs=2))
    by_load = {load: {found[f"{load}{n}"].value for n in range(3)} for load in "ab"}
    assert by_load["a"].isdisjoint(by_load["b"])
    assert len(by_load["a"]) == len(by_load["b"]) == 1
    alone = ended(side_by_side(f"{HERE}:whoami", [Task(str(n), {}, "a") for n in range(4)], jobs=2))
    assert len({event.value for event in alone.values()}) == 2


def test_a_process_takes_what_nobody_else_has_loaded_or_what_it_has_loaded_itself():
    tasks = [Task("1", {}, "a"), Task("2", {}, "b"), Task("3", {}), Task("4", {}, "a")]

    def chosen(mine, *others):
        team = [SimpleNamespace(loads=set(loads)) for loads in (mine, *others)]
        works = local._Works("f", 1, 2, list(tasks), team)
        found = works.chosen(team[0])
        assert works.waiting == [task for task in tasks if task is not found]
        return found.name

    assert chosen("") == "1"
    assert chosen("", "a") == "2"
    assert chosen("a", "a") == "1"  # both have it by now
    assert chosen("", "ab") == "3"  # a task that names nothing
    tasks[2:3] = []
    assert chosen("", "ab") == "1"  # no choice is left


def test_a_worker_passes_on_a_word_now_and_then(monkeypatch):
    now, to = [0.0], io.StringIO()
    monkeypatch.setattr(worker, "monotonic", lambda: now[0])
    words = worker._Words(to)
    for at in range(1, 8):
        now[0] = 0.75 * worker.EVERY * at
        words(at / 10, f"part {at}")
    assert [json.loads(line)["doing"] for line in to.getvalue().splitlines()] == ["part 2", "part 4", "part 6"]


def test_why_a_process_ended():
    assert cause_of(0) == "its process ended with status 0"
    assert cause_of(-signal.SIGTERM) == "its process died of SIGTERM"


def test_memory_is_told_in_bytes(monkeypatch):
    import resource

    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=7 if who == 0 else 1))
    monkeypatch.setattr(sys, "platform", "linux")
    assert worker._memory() == 7168
    monkeypatch.setattr(sys, "platform", "darwin")  # there it is in bytes already
    assert worker._memory() == 7


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


def test_a_worker_answers_with_a_value_or_with_why_there_is_none(monkeypatch):
    monkeypatch.setattr(worker, "_memory", lambda: 5)
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


def test_the_first_tasks_go_to_processes_of_their_own_by_what_they_load(monkeypatch):
    class Process:
        def __init__(self, function, threads, queue, gpu):
            self.made, self.loads, self.given, self.gpu = (function, threads), set(), [], gpu

        def give(self, task):
            self.given.append(task.name)
            self.loads |= {task.shared_load}

    monkeypatch.setattr(local, "_Process", Process)
    works = [Task("1", {}, "a"), Task("2", {}, "a"), Task("3", {}, "b"), Task("4", {}, "b")]
    team = local._Works("f", 5, 3, list(works))
    team.start()
    assert [one.given for one in team.team] == [["1"], ["3"], ["2"]]  # the third has no choice
    assert {one.made for one in team.team} == {("f", 5)}
    assert [task.name for task in team.waiting] == ["4"]
    few = local._Works("f", 5, 3, works[3:])
    few.start()
    assert ([one.given for one in few.team], few.waiting) == ([["4"]], [])


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


def test_a_task_that_was_given_up_is_not_begun_again(tmp_path, monkeypatch):
    hangs = tmp_path / "hangs"
    monkeypatch.setattr("joma.scale.local.monotonic", lambda: 9.0 * hangs.exists())
    works = tasks("bad", how="hang", file=str(hangs))
    with not_for_ever():
        found = ended(Local(jobs=1, silence=8.0).events(f"{HERE}:go_wrong", works))
    assert found["bad"].reason == "it said nothing for 8 s and was stopped"


def test_the_kernel_counts_the_processes_that_it_kills_for_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(deaths, "_COUNTS", tmp_path / "vmstat")
    assert memory_kills() == 0
    (tmp_path / "vmstat").write_text("pgfault 5\noom_kill 17\noom_kill_other 3\n")
    assert memory_kills() == 17
    (tmp_path / "vmstat").write_text("pgfault 5\n")
    assert memory_kills() == 0


def gpu_tasks(tmp_path, **needs):
    return [
        Task(mine, {"mine": str(tmp_path / mine), "others": str(tmp_path / other)}, **needs)
        for mine, other in ("ab", "ba")
    ]


def test_with_several_gpus_every_process_sees_one(tmp_path, monkeypatch):
    """As many processes as GPUs, both at work at a time, since each waits for the other."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(local, "visible_gpus", lambda: ["3", "5"])
    with not_for_ever():
        found = ended(Local().events(f"{HERE}:gpu", gpu_tasks(tmp_path, gpus=1)))
    assert sorted(event.value for event in found.values()) == ["3", "5"]


def test_what_needs_no_gpu_is_given_none_and_one_gpu_is_for_all(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "visible_gpus", lambda: ["3"])
    assert local._gpus([Task("a", {}, gpus=1)]) == []
    monkeypatch.setattr(local, "visible_gpus", lambda: pytest.fail("it was asked for GPUs"))
    assert local._gpus([Task("a", {})]) == []
    assert local._seeing(None) == {}


def test_a_new_process_gets_the_gpu_that_the_fewest_have():
    works = local._Works("f", 1, 4, [], gpus=["0", "1"])
    assert works.free_gpu() == "0"
    works.team = [SimpleNamespace(gpu=gpu) for gpu in "001"]
    assert works.free_gpu() == "1"
    works.team = [SimpleNamespace(gpu="1")]
    assert works.free_gpu() == "0"


def test_processes_are_as_many_as_cores_or_gpus_or_as_asked_for(monkeypatch):
    asked = []
    monkeypatch.setattr(local, "side_by_side", lambda function, tasks, **how: asked.append(how))
    monkeypatch.setattr(local, "cores", lambda: 7)
    for gpus, seen in ((0, "012"), (1, "012"), (1, "0"), (1, "")):
        monkeypatch.setattr(local, "visible_gpus", lambda seen=seen: list(seen))
        Local(threads=2, silence=5.0).events("f", [Task("a", {}, gpus=gpus)])
    Local(jobs=4).events("f", [Task("a", {}, gpus=1)])
    assert [how["jobs"] for how in asked] == [7, 3, 1, 1, 4]
    assert asked[0] == {"jobs": 7, "threads": 2, "silence": 5.0, "retries": 3}

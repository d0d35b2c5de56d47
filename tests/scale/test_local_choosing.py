"""Which task goes to which process: by what it has loaded, and by its GPU."""

from math import inf
from types import SimpleNamespace

import pytest
from local_tasks import HERE, ended
from patience import not_for_ever

from joma.scale import local
from joma.scale.local import Local, side_by_side
from joma.scale.task import Task


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
    assert asked[0] == {"jobs": 7, "threads": 2, "silence": 5.0, "retries": 3, "seconds": inf}

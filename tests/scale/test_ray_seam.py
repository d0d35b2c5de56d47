"""What joma makes of what Ray says, with a stand-in for Ray. tests/scale/test_ray.py asks the real one."""

import re
import socket
import sys
from types import SimpleNamespace

import pytest
from local_tasks import ended
from stand_in_ray import StandInRay

import joma
from joma.scale import ray as ours
from joma.scale.ray import Mailbox, RayCluster
from joma.scale.task import Done, Going, Lost, ScaleError, Task

WELL = {"value": "well", "memory": 5}


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(ours, "monotonic", lambda: now[0])
    monkeypatch.setattr(ours, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


def works(ray, tasks, **wish):
    found = ours._Works(ray, RayCluster(**wish), "module:name", list(tasks), most=wish.get("jobs"))
    found.begin()
    return found


def named(*names, **needs):
    return [Task(name, {"n": name}, **needs) for name in names]


def test_every_task_gives_its_value_and_each_gets_what_it_needs(clock):
    ray = StandInRay(lambda task, attempt: WELL, ({"CPU": 4, "GPU": 2, "memory": 9e9},))
    tasks = [*named("a"), *named("b", gpus=1, memory=7 * 10**9)]
    found = ended(works(ray, tasks, threads=2).events())
    assert found == {task.name: Done(task, "well", 5) for task in tasks}
    a, b = ray.given
    assert (a.how["num_cpus"], a.how["max_retries"]) == (2, 0)
    assert {"num_gpus", "memory"}.isdisjoint(a.how)
    assert (b.how["num_gpus"], b.how["memory"]) == (1, 7 * 10**9)
    assert a.how["runtime_env"]["env_vars"]["OMP_NUM_THREADS"] == "2"
    assert a.order["arguments"] == {"n": "a"}
    assert ray.box == {"num_cpus": 0, "max_restarts": -1}


def test_words_are_asked_for_once_in_a_while(clock):
    ray = StandInRay(lambda task, attempt: None)
    found = works(ray, named("a"))
    ray.words = [{"a": (0, share, "works")} for share in (0.1, 0.2, 0.3)]
    heard = [[event.share for event in found.news()] for _ in range(2)]
    clock[0] += ours.EVERY
    assert [*heard, [event.share for event in found.news()]] == [[0.1], [], [0.2]]
    ray.wait = lambda references, **how: ([], references)  # an answer that is not there is not waited for
    clock[0] += ours.EVERY
    assert list(found.news()) == []


@pytest.mark.parametrize("kind", ["WorkerCrashedError", "NodeDiedError", "ObjectLostError"])
def test_a_death_is_tried_again_three_times_and_no_more(clock, kind):
    ray = StandInRay(lambda task, attempt: ray_of[0].exceptions.__dict__[kind]() if task == "a" else WELL)
    ray_of = [ray]
    events = list(works(ray, named("a", "b")).events())
    again = [event.doing for event in events if isinstance(event, Going)]
    died = "its machine died" if kind == "NodeDiedError" else "its process died"
    assert again == [f"{died}; begun again ({n} of 3)" for n in (1, 2, 3)]
    assert ended(events)["a"] == Lost(named("a")[0], f"{died}, 4 times")
    assert isinstance(ended(events)["b"], Done)
    assert [one.order["attempt"] for one in ray.given if one.order["task"] == "a"] == [0, 1, 2, 3]


def test_a_task_rests_before_it_is_begun_again(clock):
    when = []
    ray = StandInRay(lambda task, attempt: WELL if attempt else ray_of[0].exceptions.WorkerCrashedError())
    ray_of, begin = [ray], ray.begin
    ray.begin = lambda *order: when.append(clock[0]) or begin(*order)
    assert isinstance(ended(works(ray, named("a")).events())["a"], Done)
    assert when[1] - when[0] >= ours.REST


@pytest.mark.parametrize(
    ("kind", "message", "reason"),
    [
        ("OutOfMemoryError", "", "its machine ran out of memory, and Ray ended its process"),
        ("RayTaskError", "No module named 'joma'", "RayTaskError: No module named 'joma'"),
        ("RayError", "the environment\n could not be made", "RayError: the environment could not be made"),
    ],
)
def test_what_would_come_again_is_not_tried_again(clock, kind, message, reason):
    ray = StandInRay(lambda task, attempt: ray_of[0].exceptions.__dict__[kind](message) if task == "a" else WELL)
    ray_of = [ray]
    found = ended(works(ray, named("a", "b")).events())
    assert found["a"].reason == reason
    assert isinstance(found["b"], Done)
    assert len(ray.given) == 2


def test_the_cause_of_an_error_on_the_way_is_named(clock):
    ray = StandInRay(lambda task, attempt: caused())

    def caused():
        made = ray.exceptions.RayTaskError("a long trace")
        made.cause = ScaleError("joma 1 is on this machine")
        return made

    assert ended(works(ray, named("a")).events())["a"].reason == "ScaleError: joma 1 is on this machine"


def test_an_error_of_the_function_is_an_answer_and_not_tried_again(clock):
    ray = StandInRay(lambda task, attempt: {"failed": "ValueError: no"})
    assert ended(works(ray, named("a")).events())["a"].reason == "ValueError: no"
    assert len(ray.given) == 1


def test_no_more_are_at_work_than_asked_for(clock):
    ray = StandInRay(lambda task, attempt: WELL)
    assert len(ended(works(ray, named(*"abcde"), jobs=2).events())) == 5
    assert ray.most == 2
    ray = StandInRay(lambda task, attempt: WELL)
    works(ray, named(*"abcde"))
    assert ray.most == 5


def test_what_no_machine_has_room_for_is_refused_and_the_rest_goes_on(clock):
    """All needs must be met by one machine, and by one that is alive."""
    ray = StandInRay(lambda task, attempt: WELL, ({"CPU": 4, "memory": 8e9}, {"CPU": 1, "GPU": 1, "memory": 2e9}))
    tasks = [*named("a"), *named("b", gpus=1), *named("c", gpus=1, memory=5 * 10**9), *named("d", gpus=2)]
    found = ended(works(ray, tasks, jobs=1).events())
    assert [isinstance(found[name], Done) for name in "abcd"] == [True, True, False, False]
    assert found["c"].reason == "it needs 1 core, 1 GPU and 5.0 GB of memory, and no machine of the cluster has that"
    assert "2 GPUs" in found["d"].reason
    wide = ended(works(StandInRay(lambda task, attempt: WELL), named("a"), threads=5).events())
    assert wide["a"].reason == "it needs 5 cores, and no machine of the cluster has that"


def test_words_come_from_all_tasks_and_those_of_an_earlier_attempt_count_for_nothing(clock):
    over = []
    ray = StandInRay(lambda task, attempt: WELL if over else None)
    at_work = works(ray, named("a", "b"))
    at_work.begun["b"] = 1
    ray.words = [{"a": (0, 0.25, "reading"), "b": (0, 0.5, "late"), "gone": (0, 0.5, "?")}, {"b": (1, 0.75, "now")}]
    wait = ray.wait
    ray.wait = lambda *given, **how: clock.__setitem__(0, clock[0] + ours.EVERY) or wait(*given, **how)
    a, b = named("a", "b")
    events = at_work.events()
    assert [next(events), next(events)] == [Going(a, 0.25, "reading"), Going(b, 0.75, "now")]
    over.append(True)
    assert ended(events).keys() == {"a", "b"}


def test_a_task_that_says_nothing_is_given_up_once_it_has_begun(clock):
    ray = StandInRay(lambda task, attempt: None if task in "ac" else WELL)
    at_work = works(ray, named("a", "b", "c"), silence=8.0)
    ray.words = [{"a": (0, 0.0, "begun")}]
    events = at_work.events()
    assert isinstance(next(events), Done)
    assert next(events) == Going(named("a")[0], 0.0, "begun")
    clock[0] += 9.0
    assert next(events) == Lost(named("a")[0], "it said nothing for 8 s and was stopped")
    assert ray.cancelled == [("a", True)]  # and not c, which waits for its turn


def test_a_task_that_is_begun_again_may_wait_for_its_turn(clock):
    """What its first process said does not count: the second has said nothing because it has not begun."""
    died = []
    ray = StandInRay(lambda task, attempt: ray_of[0].exceptions.WorkerCrashedError() if died and not attempt else None)
    ray_of = [ray]
    at_work = works(ray, named("a"), silence=8.0)
    ray.words = [{"a": (0, 0.0, "begun")}]
    events = at_work.events()
    assert next(events) == Going(named("a")[0], 0.0, "begun")
    died.append(True)
    assert next(events).doing == "its process died; begun again (1 of 3)"
    clock[0] += 9.0
    at_work.give()
    at_work.give_up()
    assert [one.order["attempt"] for one in ray.given] == [0, 1]
    assert not ray.cancelled


def test_of_the_environment_the_settings_of_joma_travel_and_no_secret(clock, monkeypatch):
    monkeypatch.setenv("JOMA_DATA", "/data")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    ray = StandInRay(lambda task, attempt: WELL)
    works(ray, named("a"))
    travelled = ray.given[0].how["runtime_env"]["env_vars"]
    assert travelled["JOMA_DATA"] == "/data"
    assert "hush" not in travelled.values()
    assert "PATH" not in travelled


@pytest.mark.parametrize(("asked", "used"), [("auto", "auto"), (None, "head")])
def test_an_address_that_is_given_wins_over_that_of_the_environment(monkeypatch, asked, used):
    ray, addresses = StandInRay(lambda task, attempt: WELL), []
    ray.is_initialized, ray.shutdown = lambda: False, lambda: None
    ray.init = lambda address, **how: addresses.append(address)
    monkeypatch.setenv("RAY_ADDRESS", "head")
    monkeypatch.setattr(ours, "loaded", lambda: ray)
    list(RayCluster(asked).events("module:name", named("a")))
    assert addresses == [used]


def test_what_is_at_work_may_write_a_checkpoint_before_it_ends(clock):
    ray = StandInRay(lambda task, attempt: None)
    at_work = works(ray, named("a", "b"))
    waited = []
    ray.wait = lambda references, **how: waited.append((len(references), how)) or ([], references)
    at_work.stop()
    assert ray.cancelled == [("a", False), ("b", False)]
    assert waited == [(2, {"num_returns": 2, "timeout": ours.PATIENCE})]


def test_without_ray_one_sentence_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ScaleError, match=r"^ray is not installed: pip install -e '\.\[ray\]'"):
        RayCluster().events("module:name", named("a"))


def test_an_order_is_carried_out_with_words_and_refused_by_another_joma():
    said = []
    box = SimpleNamespace(say=SimpleNamespace(remote=lambda *words: said.append(words)))
    order = {"function": "joma.scale.worker:echo", "task": "a", "attempt": 2, "arguments": {"n": 1}}
    answer = ours.carry_out(order | {"version": joma.__version__}, box)
    assert answer["value"] == {"n": 1}
    assert said == [("a", 2, 0.0, "begun")]
    assert ours.carry_out(order | {"version": joma.__version__}, None)["value"] == {"n": 1}  # nobody listens
    with pytest.raises(ScaleError, match=rf"^the machine {re.escape(socket.gethostname())} of the .* joma 0\.0; both "):
        ours.carry_out(order | {"version": "0.0"}, box)


def test_a_mailbox_keeps_the_last_word_of_each():
    box = Mailbox()
    for words in (("a", 0, 0.1, "first"), ("b", 1, 0.2, "other"), ("a", 0, 0.3, "second")):
        box.say(*words)
    assert box.heard() == {"a": (0, 0.3, "second"), "b": (1, 0.2, "other")}
    assert box.heard() == {}


def test_sockets_lie_where_their_path_is_not_too_long(monkeypatch):
    monkeypatch.setattr(ours, "gettempdir", lambda: "/dev/shm")
    assert ours._short_folder() == "/dev/shm"
    monkeypatch.setattr(ours, "gettempdir", lambda: "/var/folders/" + "x" * 40)
    assert ours._short_folder() == "/tmp"


def test_a_cluster_of_our_own_finds_this_joma(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", ":/more::")
    monkeypatch.setattr(joma, "__file__", str(tmp_path / "src" / "joma" / "__init__.py"))
    assert ours._finding_joma() == {"PYTHONPATH": f"{tmp_path / 'src'}:/more"}  # no empty entry: the working directory
    monkeypatch.setattr(joma, "__file__", str(tmp_path / "site-packages" / "joma" / "__init__.py"))
    assert ours._finding_joma() == {}


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
def test_where_nothing_listens_there_is_no_cluster_and_nobody_waits_for_it(form, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = form.format(server.getsockname()[1])
        ours._must_listen(address)
    stand_in = SimpleNamespace(is_initialized=lambda: False, init=lambda **how: pytest.fail("Ray was asked"))
    monkeypatch.setattr(ours, "loaded", lambda: stand_in)
    with pytest.raises(ScaleError, match=f"^no Ray cluster at {address}: nothing answers at 127.0.0.1, port "):
        RayCluster(address).events("module:name", named("a"))
    for other in ("auto", "local", "head", "ray://head"):
        ours._must_listen(other)


@pytest.mark.parametrize(("address", "there", "most"), [(None, False, None), ("auto", False, 2), (None, True, 2)])
def test_a_cluster_of_others_gets_no_more_than_asked_for_and_one_of_our_own_gets_all(monkeypatch, address, there, most):
    """One of our own has just so many cores, and is ended; one that was there already is left."""
    ray = StandInRay(lambda task, attempt: WELL)
    done = []
    ray.is_initialized = lambda: there
    ray.init, ray.shutdown = lambda **how: done.append(how), lambda: done.append("ended")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ours, "loaded", lambda: ray)
    assert len(ended(RayCluster(address, jobs=2, threads=3).events("module:name", named(*"abcd")))) == 4
    assert ray.most == (most or 4)
    if there:
        assert done == []
        return
    how, end = done
    assert end == "ended"
    assert how["address"] == (address or "local")
    assert how["log_to_driver"] is False
    if not address:
        assert (how["num_cpus"], how["include_dashboard"]) == (6, False)

"""What a live page is told of runs that it knows: put together, the news are what there is."""

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from view.making import heads

from joma.runs import Run
from joma.runs.following import ALARMS, MONITOR
from joma.view.entries import MOST_ALARMS
from joma.view.feed import Feed
from joma.view.news import news_of


def heard(known, news):
    found = {**known, **{run["id"]: run for run in news["runs"]}}
    for change in news["changes"]:
        run = found[change["id"]]
        series = [{**one, **change["series"].get(one["name"], {})} for one in run["series"]]
        alarms = run["alarms"][change["alarms"]["gone"] :] + change["alarms"]["more"]
        found[change["id"]] = {**run, **change["now"], "series": series, "alarms": alarms}
    return found


def look(feed):
    return {run["id"]: run for run in json.loads(json.dumps(feed.index()))["runs"]}


def entry(alarms=(), *, series=(("loss", 3),), identity="1", **more):
    listed = [{"name": name, "dims": [], "steps": n, "first": 0, "last": n, "cursor": n} for name, n in series]
    return {"id": "a", "identity": identity, "state": "x", "series": listed, "alarms": list(alarms), **more}


ENTRIES = st.builds(
    lambda first, count, steps, state, identity, names: entry(
        range(first, first + count), series=[(name, steps) for name in names], state=state, identity=identity
    ),
    st.integers(0, 6), st.integers(0, 6), st.integers(1, 4), st.sampled_from(["x", "y"]), st.sampled_from(["1", "2"]),
    st.sampled_from([("loss",), ("loss", "rank"), ()]),
)  # fmt: skip
FAULTS = st.just({"id": "a", "name": "a", "fault": "it is damaged"})


@settings(deadline=None)
@given(st.lists(ENTRIES | FAULTS, min_size=2, max_size=5))
def test_news_put_together_are_what_there_is(course):
    told, page = {}, {}
    for each in course:
        page = heard(page, json.loads(json.dumps(news_of(told, {"a": each}))))
        told = {"a": each}
        assert page == told


def test_a_step_is_told_in_a_few_numbers(tmp_path):
    layers = [f"layer {at} of a model with long names" for at in range(50)]
    with Run.create(tmp_path / "a.joma", study="demo", config={"words": "word " * 500}) as run:
        run.append("rank", 0, np.zeros(50), dims={"layer": layers})
        feed = Feed([tmp_path])
        told = {one["id"]: one for one in feed.index()["runs"]}
        run.append("rank", 1, np.ones(50))
        now = {one["id"]: one for one in feed.index()["runs"]}
        news = json.dumps(news_of(told, now))
        assert len(news) < 300 < len(json.dumps(now)) / 10
        assert news_of(now, now) == {"runs": [], "changes": []}


def test_alarms_are_read_and_told_once(tmp_path, monkeypatch):
    from joma.view import feed as reading

    asked = []
    plain = reading.alarms_after
    monkeypatch.setattr(reading, "alarms_after", lambda run, row: asked.append(row) or plain(run, row))

    def ring(run, step, count=1):
        found = [{"says": f"step {step}: {at}", "measure": "entropy", "layer": "a", "head": at} for at in range(count)]
        run.append(ALARMS, step, np.frombuffer(json.dumps(found).encode(), np.uint8))

    with Run.create(tmp_path / "a.joma", study=MONITOR, config={}) as run:
        run.append("entropy", 0, 1.0)
        ring(run, 0, MOST_ALARMS - 1)
        feed = Feed([tmp_path])
        page = heard({}, news_of({}, first := look(feed)))
        assert first["a.joma"]["alarm_count"] == MOST_ALARMS - 1
        run.append("entropy", 1, 1.0)
        assert look(feed)["a.joma"]["alarms"] == first["a.joma"]["alarms"]
        assert asked == [0]  # nothing new rang, nothing was read
        ring(run, 2, 3)
        then = look(feed)
        (change,) = news_of(first, then)["changes"]
        assert change["alarms"]["gone"] == 2  # a page is told of the last ones
        assert change["now"]["alarm_count"] == MOST_ALARMS + 2  # and of how many there are
        assert len(then["a.joma"]["alarms"]) == MOST_ALARMS
        assert [one["says"] for one in change["alarms"]["more"]] == ["step 2: 0", "step 2: 1", "step 2: 2"]
        assert heard(page, news_of(first, then)) == then
        assert len(asked) == 2
        assert asked[1] > 0


def test_alarms_of_another_run_under_the_name_are_its_own(tmp_path):
    def rings(path, *says):
        with Run.create(path, study=MONITOR, config={}) as run:
            for step, one in enumerate(says):
                run.append("entropy", step, 1.0)
                run.append(ALARMS, step, np.frombuffer(json.dumps([{"says": one}]).encode(), np.uint8))

    rings(tmp_path / "a.joma", "old 0", "old 1", "old 2")
    feed = Feed([tmp_path])
    assert [one["says"] for one in look(feed)["a.joma"]["alarms"]] == ["old 0", "old 1", "old 2"]
    with (tmp_path / "a.joma").open("rb"):  # so that the next file cannot get its place on the disk
        Run.delete(tmp_path / "a.joma")
        rings(tmp_path / "a.joma", "new 0")
    assert [(one["step"], one["says"]) for one in look(feed)["a.joma"]["alarms"]] == [(0, "new 0")]
    assert look(feed)["a.joma"]["alarm_count"] == 1


def test_another_run_under_the_name_is_told_whole(tmp_path):
    heads(tmp_path / "a.joma", 3)
    feed = Feed([tmp_path])
    first = look(feed)
    with (tmp_path / "a.joma").open("rb"):
        Run.delete(tmp_path / "a.joma")
        heads(tmp_path / "a.joma", 3)
    assert [one["id"] for one in news_of(first, look(feed))["runs"]] == ["a.joma"]

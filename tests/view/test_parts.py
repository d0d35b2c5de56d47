"""What the module makes of answers, names, colours and addresses, against Python's own: no page is needed."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from javascript import Call
from view.making import heads

from joma.runs import Run
from joma.view.feed import Feed
from joma.view.module import static
from joma.view.packing import packed
from joma.view.page import write_page

NAN = float("nan")
READ = """(text, dims) => {
  const [head, buffers] = unpacked(Uint8Array.from(atob(text), (one) => one.charCodeAt(0)).buffer);
  return readArray(head, buffers, dims);
}"""
ANSWERED = """(data, question, dims) => {
  const { buffers = [], ...head } = answerOf(data, question);
  return head.fault ?? readArray(head, buffers.map((text) => Uint8Array.from(atob(text), (one) => one.charCodeAt(0))), dims);
}"""  # noqa: E501


def dim(name: str, size: int, labels: list[str] | None = None) -> dict[str, Any]:
    return {"name": name, "size": size, "labels": labels}


# Hosts


@settings(max_examples=25, deadline=None)
@given(steps=st.integers(0, 4), shape=st.sampled_from([(), (3,), (2, 3)]), wide=st.booleans(), seed=st.integers(0, 99),
       words=st.text(max_size=9))  # fmt: skip
def test_an_answer_comes_over_the_wire_as_it_was_packed(
    module_js: Call, steps: int, shape: tuple[int, ...], wide: bool, seed: int, words: str
) -> None:
    values = np.random.default_rng(seed).normal(size=(steps, *shape)).astype(np.float32).astype(float)
    values = np.where(values > 1, 1e300 if wide else np.nan, values)
    answer = packed(10 * np.arange(steps), values, of=7, cursor=5, thinned=steps > 2, means=["head"], words=words)
    dims = [dim(name, 2) for name in ("layer", "head", "key")]
    found = module_js(READ, base64.b64encode(answer.as_bytes()).decode(), dims)
    assert found["steps"] == [10 * at for at in range(steps)]
    np.testing.assert_array_equal(np.array(found["values"], float), values.reshape(-1))
    assert [one["name"] for one in found["dims"]] == ["layer", "key"]
    told = {name: found[name] for name in ("of", "cursor", "thinned", "lost", "means")}
    lost = 0 if wide else int(np.isnan(values).sum())
    assert told == {"of": 7, "cursor": 5, "thinned": steps > 2, "lost": lost, "means": ["head"]}


def test_a_page_answers_from_the_data_inside(module_js: Call, tmp_path: Path) -> None:
    heads(tmp_path / "short.joma", 6)
    with Run.create(tmp_path / "long.joma", study="demo", config={}) as run:
        for step in range(3000):
            run.append("x", step, float(step))
    write_page(Feed([tmp_path]), tmp_path / "page.html", megabytes=0.02)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    match = re.search(r'id="joma-data">(.*?)</script>', text, re.DOTALL)
    assert match is not None
    data = json.loads(match[1])

    def answer(**question: Any) -> Any:
        return module_js(ANSWERED, data, question, [])

    with Run.open(tmp_path / "short.joma") as run:
        found = answer(ask="series", run="short.joma", series="entropy")
        np.testing.assert_allclose(found["values"], run.array("entropy").reshape(-1), rtol=1e-6)
    thinned = answer(ask="series", run="long.joma", series="x")
    whole = answer(ask="series", run="long.joma", series="x", whole=True)
    assert thinned["thinned"]
    assert thinned["of"] == whole["of"] == 3000
    assert whole["steps"] == whole["values"] != thinned["steps"]
    assert answer(ask="series", run="long.joma", series="x", means=["head"]) == whole
    assert answer(ask="series", run="long.joma", series="x", means=[]) == thinned
    assert answer(ask="series", run="long.joma", series="y") == "y of long.joma is not in this page"
    assert answer(ask="after") == "a page with its data inside does not grow"
    for ask in ("titles", "claims"):
        assert module_js("answerOf", data, {"ask": ask}) == {ask: data[ask]}
    data["figures"] = {name: {"figures": [f"of {name}"]} for name in ("a", "b")}
    for name, wanted in (("b", ["of b"]), ("a", ["of a"]), ("long.joma", [])):
        assert module_js("answerOf", data, {"ask": "figures", "run": name}) == {"figures": wanted}


def test_a_question_is_a_query(module_js: Call) -> None:
    question = {"id": 3, "ask": "series", "run": "a & é", "whole": True, "means": ["head", "layer"], "cursor": 0}
    question["high"] = 2.5
    query = module_js("(question) => String(queryOf({ ...question, low: undefined }))", question)
    wanted = [("run", "a & é"), ("whole", "1"), ("means", "head"), ("means", "layer"), ("cursor", "0"), ("high", "2.5")]
    assert parse_qsl(query) == wanted


def test_news_come_in_their_order_and_of_unknown_runs_nothing(module_js: Call) -> None:
    runs = [{"id": name, "series": [], "alarms": []} for name in "abc"]
    change = {"now": {"state": "left"}, "series": {}, "alarms": {"gone": 0, "more": [1]}}
    news = {
        "order": ["c", "d", "z", "a"],
        "runs": [{"id": "d"}],
        "changes": [{"id": "a", **change}, {"id": "y", **change}],
    }
    found = module_js("withNews", runs, news)
    assert found == [runs[2], {"id": "d"}, {**runs[0], "state": "left", "alarms": [1]}]


HOST = """async (answers) => {
  const asked = [], calls = new Map(), index = { runs: [{ id: "a", series: [
    { name: "entropy/layer_0", dims: [], steps: 3, first: 0, last: 20, cursor: 3 }, { name: "long", dims: [], steps: 2001, cursor: 1 }] },
    { id: "b", fault: "it is damaged" }] };
  let told = 0;
  const bytes = (numbers) => Float64Array.from(numbers).buffer;
  const send = (question) => {
    asked.push(question);
    const { steps, ...head } = answers[asked.length - 1];
    queueMicrotask(() => calls.get("msg:custom")({ id: question.id, kind: "f8", ...head }, steps ? [bytes(steps), bytes(steps.map((one) => one / 10))] : []));
  };
  const source = new Source({ get: () => index, on: (what, call) => calls.set(what, call), off: (what) => calls.delete(what), send });
  source.listeners.add(() => told++);
  const rest = () => new Promise((done) => setTimeout(done));
  const fault = async (...given) => source.series(...given).catch((error) => error.message);
  await rest();
  const titles = ["entropy", "entropy/layer_0", "own_measure/x"].map((name) => source.title(name));
  const faults = [await fault("b", "x"), await fault("a", "x"), await fault("a", "long")];
  const first = await source.series("a", "entropy/layer_0"), before = told;
  index.runs[0].series[0] = { ...index.runs[0].series[0], steps: 5, cursor: 5 };
  const second = await source.series("a", "entropy/layer_0");
  await source.series("a", "entropy/layer_0"); // while rows are under way nothing is asked for twice
  await rest();
  const after = told;
  const pushed = (cursor, after, step, run = "a") => calls.get("msg:custom")({ pushed: true, run, series: "entropy/layer_0", means: [], cursor, after, kind: "f8", lost: 0 }, [bytes([step]), bytes([step / 10])]);
  pushed(7, 6, 60); pushed(6, 5, 50, "b"); pushed(6, 5, 50); pushed(6, 5, 50);
  const long = ["entropy/layer_0", "long", "none"].map((name) => source.long("a", name));
  const part = await source.part("a", "entropy/layer_0", { whole: true }, 5, 15);
  source.close();
  return { titles, faults, asked, same: first === second, held: first, tells: [before, after, told], long, part: part.steps, open: [...calls.keys()] };
}"""  # noqa: E501


def test_a_series_is_asked_for_once_and_then_its_new_rows(module_js: Call) -> None:
    found = module_js(HOST, [
        {"titles": {"entropy": "Entropy, nats"}},
        {"fault": "it is too large"},
        {"steps": [0, 10, 20], "cursor": 3, "of": 3, "lost": 1},
        {"steps": [30, 40], "cursor": 5, "lost": 2},
        {"steps": [5, 15], "cursor": 0},
    ])  # fmt: skip
    assert found["titles"] == ["Entropy, nats", "Entropy, nats: layer 0", "own measure/x"]
    assert found["faults"] == ["it is damaged", "there is no x in a", "it is too large"]
    asked = [{name: one for name, one in question.items() if name != "id"} for question in found["asked"]]
    series = {"run": "a", "series": "entropy/layer_0"}
    assert asked == [
        {"ask": "titles"}, {"ask": "series", "run": "a", "series": "long"}, {"ask": "series", **series},
        {"ask": "after", **series, "cursor": 3, "means": []},
        {"ask": "series", **series, "whole": True, "low": 5, "high": 15},
    ]  # fmt: skip
    assert len({question["id"] for question in found["asked"]}) == len(asked)
    held = found["held"]
    assert found["same"]
    assert held["steps"] == [0, 10, 20, 30, 40, 50]  # what leaves a gap, or is of another run, is left
    assert held["values"] == [0, 1, 2, 3, 4, 5]
    assert (held["of"], held["cursor"], held["lost"]) == (6, 6, 3)
    assert found["tells"] == [1, 2, 3]
    assert found["long"] == [False, True, False]
    assert found["part"] == [5, 15]
    assert found["open"] == []


# What is seen, in words


def test_what_is_seen_is_kept_as_words(module_js: Call) -> None:
    found = module_js("""() => {
      const seen = new Seen(false, () => {});
      seen.put({ run: ["a", "b"], logx: true, low: 0, high: null, series: "x", none: "", off: false });
      const words = ["logx", "low", "high"].map((name) => seen.get(name));
      const first = [seen.all("run"), ...words, seen.get("high", "all"), String(seen.words)];
      seen.put({ run: [], series: null, low: 2.5 });
      return [...first, String(seen.words)];
    }""")
    words = "run=a&run=b&logx=1&low=0&series=x"
    assert found == [["a", "b"], "1", "0", "", "all", words, "logx=1&low=2.5"]


def test_names_and_what_is_shown_unless_asked_otherwise(module_js: Call) -> None:
    assert module_js("placeName", dim("layer", 2, ["first", "second"]), 1) == "second"
    assert module_js("placeName", dim("head", 2), 1) == "head 1"
    assert module_js("placeName", dim("dim_2", 2), 0) == "axis 2 = 0"
    dims = [dim("member", 3), dim("layer", 8), dim("head", 4), dim("key", 9), dim("query", 8), dim("one", 1)]
    modes = {"member": "interval", "layer": "each", "head": "mean", "key": "mean", "query": "each", "one": "0"}
    assert module_js("usualModes", dims, "step") == modes  # 8 times 9 curves are too many, 8 times 8 are not
    del modes["layer"]
    assert module_js("usualModes", dims, "layer") == {**modes, "key": "each", "query": "mean"}
    assert module_js("usualModes", [dim("seed", 1), dim("network", 2)], "step") == {"seed": "0", "network": "interval"}


def test_what_adds_up_of_a_run(module_js: Call) -> None:
    def series(name: str, *dims: Any, steps: int = 2) -> dict[str, Any]:
        return {"name": name, "dims": list(dims), "steps": steps}

    quantity = dim("quantity", 3, ["change", "attention", "mlp"])
    run = {"series": [
        *(series(f"spread/{part}") for part in ("shared", "specific", "cross", "variance")),
        series("other/shared"), series("allocation", quantity, steps=1),
        series("rank", dim("layer", 2, ["a", "b"]), dim("dim_1", 24)), series("many", dim("head", 25)),
        series("once", dim("head", 2), steps=1), series("one", dim("head", 1)),
    ]}  # fmt: skip
    found = {one["key"]: one for one in module_js("familiesOf", run)}
    assert list(found) == ["spread", "allocation", "rank|layer", "rank|dim_1"]
    assert found["spread"]["whole"] == "spread/variance"
    assert [one["series"] for one in found["spread"]["parts"]] == ["spread/shared", "spread/specific", "spread/cross"]
    assert found["allocation"]["parts"] == [
        {"series": "allocation", "label": label, "place": place} for place, label in ((1, "attention"), (2, "mlp"))
    ]
    assert found["allocation"]["dim"] == "quantity"
    assert found["rank|layer"]["parts"][1] == {"series": "rank", "label": "b", "place": 1}
    assert found["rank|dim_1"]["title"] == "rank, along axis 1"
    assert len(found["rank|dim_1"]["parts"]) == 24
    assert module_js("familiesOf", {}) == []


# Colours


def channels(colour: str) -> np.ndarray:
    return np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)])


def stops_of(name: str) -> list[str]:
    match = re.search(rf"\b{name}\b[:=\s]+\[([^\]]+)\]", static("colours.js"))
    assert match is not None
    return re.findall(r"#[0-9a-f]{6}", match[1])


def on_a_way(stops: list[str], share: float) -> np.ndarray:
    places = np.linspace(0, 1, len(stops))
    return np.array([np.interp(share, places, column) for column in np.array([channels(one) for one in stops]).T])


@pytest.mark.parametrize("count", [0, 1, 6, 7, 12])
def test_colours_of_curves(module_js: Call, count: int) -> None:
    found = module_js("coloursFor", count)
    few, depth = stops_of("FEW_COLOURS"), stops_of("DEPTH")
    assert len(found) == len(set(found)) == count
    if count <= len(few):
        assert found == few[:count]
    else:
        for colour, share in zip(found, np.linspace(0, 1, count), strict=True):
            np.testing.assert_allclose(channels(colour), on_a_way(depth, share), atol=0.51)


@pytest.mark.parametrize(
    ("low", "high", "stops", "shares"),
    [
        (2.0, 10.0, "low", {2.0: 0, 4.0: 0.25, 10.0: 1, 0.0: 0, 99.0: 1}),
        (-2.0, 8.0, "both", {-8.0: 0, -2.0: 0.375, 0.0: 0.5, 8.0: 1}),
        (-8.0, 2.0, "both", {-8.0: 0, 0.0: 0.5, 2.0: 0.625}),
        (-8.0, -4.0, "low", {-8.0: 0, -6.0: 0.5, -4.0: 1}),
        (3.0, 3.0, "low", {3.0: 0.5}),
    ],
)
def test_colours_of_numbers(module_js: Call, low: float, high: float, stops: str, shares: dict[float, float]) -> None:
    heat = "(range, dark, values) => values.map(heat(range, dark))"
    found = module_js(heat, [low, high], False, [*shares, NAN])
    assert found[-1] == "transparent"
    for colour, share in zip(found, shares.values(), strict=False):
        steps = 255 / max(1, len(stops_of(stops)) - 1)
        np.testing.assert_allclose(channels(colour), on_a_way(stops_of(stops), share), atol=0.6 + 128 / steps)
    assert module_js(heat, [low, high], True, [high]) != found[:1]


# Data for the axes


def curve(x: list[float], y: list[float], **more: Any) -> dict[str, Any]:
    return {"label": "", "x": x, "y": y, **more}


def test_data_for_a_chart(module_js: Call) -> None:
    spec = {"curves": [curve([0, 1, 2], [1, NAN, -1], low=[0, 1, -2], high=[2, 3, 0])], "logX": False, "logY": False}
    found = module_js("aligned", spec)
    assert found == [[0, 1, 2], [1, None, -1], [0, 1, -2], [2, 3, 0]]
    assert module_js("aligned", {**spec, "logY": True})[1:] == [[1, None, None], [None, 1, None], [2, 3, None]]
    assert module_js("aligned", {**spec, "logX": True}) == [[1, 2], [None, -1], [1, -2], [3, 0]]
    two = {**spec, "curves": [curve([0, 2], [1, 2]), curve([3, 2, 1], [30, 20, 10])]}
    missing = "(spec) => aligned(spec).map((column) => column.map((one) => one === undefined ? 'none' : one))"
    assert module_js(missing, two) == [[0, 1, 2, 3], [1, "none", 2, "none"], ["none", 10, 20, 30]]
    alike = {**spec, "curves": [curve([1, 2], [1, 2]), curve([1, 2], [3, 4])]}
    assert module_js("aligned", alike) == [[1, 2], [1, 2], [3, 4]]
    assert module_js("aligned", {**spec, "curves": []}) == [[]]


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [({}, 0), ({"logX": True}, 1), ({"logY": True}, 2), ({"logX": True, "logY": True}, 2),
     ({"logY": True, "low": 1}, 1), ({"logY": True, "high": 1}, 1), ({"logY": True, "low": 2, "high": 2}, 1)],
)  # fmt: skip
def test_points_that_a_log_axis_cannot_show(module_js: Call, asked: dict[str, Any], wanted: int) -> None:
    curves = [curve([0, 1, 2, 3], [0, NAN, -1, 5]), curve([0, 1], [0, 0], hidden=True)]
    assert module_js("notOnLog", {"curves": curves, "logX": False, "logY": False, **asked}) == wanted


def test_many_points_are_drawn_thin(module_js: Call) -> None:
    for count, wanted in ((2000, False), (2001, True)):
        spec = {"curves": [curve(list(range(count)), []), curve(list(range(2000)), [])]}
        assert module_js("isDense", spec) is wanted

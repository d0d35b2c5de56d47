"""The module's own numbers against Python's: t quantiles, means and intervals, curves out of arrays, new rows."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joma.measure.intervals import mean_interval, t_quantile

HELPERS = """
function added(array, more) { withRows(array, more); return array; }
function grown(array, more, modes) {
  growingCurves(array, modes);
  withRows(array, more);
  return [growingCurves(array, modes), curvesOf(array, modes)];
}
function roomy(rows) {
  const array = { steps: [0], values: Float32Array.of(0), dims: [] }, rooms = new Set();
  for (let step = 1; step < rows; step++) {
    withRows(array, { steps: [step], values: Float32Array.of(step), dims: [] });
    rooms.add(array.values.buffer);
  }
  return [[...array.values], rooms.size, array.values.constructor.name];
}
function ranged(values, more, late) {
  const dims = [{ name: "head", size: values.length, labels: null }];
  const array = { steps: [10], values: Float64Array.from(values), dims }, seen = [rangeSoFar(array)];
  for (const step of [20, 30, late]) {
    withRows(array, { steps: [step], values: Float64Array.from(more.map((value) => value * step)), dims });
    seen.push(rangeSoFar(array));
  }
  return [seen, rangeOf(array.values)];
}
"""


@pytest.fixture(scope="module")
def js(module_js: Any) -> Any:
    module_js("eval", HELPERS)
    return module_js


def same(found: Any, wanted: Any, tolerance: float = 1e-9) -> None:
    np.testing.assert_allclose(np.array(found, float), np.asarray(wanted, float), rtol=tolerance, atol=1e-12)


@pytest.mark.parametrize("level", [0.95, 0.99])
def test_t_quantiles(js: Any, level: float) -> None:
    for freedom in (1, 2, 3, 4, 5, 9, 10, 49, 383, 1000):
        assert js("tQuantile", level, freedom) == pytest.approx(t_quantile(level, freedom), rel=1e-7)


@pytest.mark.parametrize("count", [2, 4, 5, 12])
def test_intervals_are_those_of_joma(js: Any, count: int) -> None:
    values = np.random.default_rng(count).normal(3, 2, count)
    wanted = mean_interval(values, level=0.99 if count <= 4 else 0.95)
    found = js("meanInterval", [*values.tolist(), float("nan")])
    assert found["mean"] == pytest.approx(float(wanted.mean))
    assert found["half"] == pytest.approx(float(wanted.half_width), rel=1e-7)
    assert found["count"] == count


def test_smoothing_forgets_where_it_began_and_keeps_gaps(js: Any) -> None:
    same(js("smoothed", [5.0] * 4, 0.9), [5.0] * 4)
    found = js("smoothed", [1.0, float("nan"), 2.0], 0.5)
    same(found, [1.0, np.nan, (0.25 * 1 + 0.5 * 2) / 0.75])
    same(js("smoothed", [1.0, 7.0], 0), [1.0, 7.0])


NAN = float("nan")
MODES = st.sampled_from(["each", "mean", "interval", "1"])


@settings(max_examples=40, deadline=None)
@given(modes=st.tuples(MODES, MODES, MODES), x=st.sampled_from(["step", "layer", "head"]), seed=st.integers(0, 99))
def test_curves_against_numpy(js: Any, modes: tuple[str, str, str], x: str, seed: int) -> None:
    shape, names = (5, 3, 2, 4), ("step", "member", "layer", "head")
    values = np.random.default_rng(seed).normal(size=shape)
    dims = [{"name": n, "size": s, "labels": None} for n, s in zip(names[1:], shape[1:], strict=True)]
    chosen = dict(zip(names[1:], modes, strict=True))
    if x != "step":
        chosen["step"] = "4"
    found = js(
        "curvesOf", {"steps": [0, 10, 20, 30, 40], "values": values.reshape(-1).tolist(), "dims": dims}, chosen, x
    )
    array, left = values, list(names)
    for way in ("1", "4", "mean"):
        for name in [n for n in left if n != x and chosen.get(n) == way]:
            axis = left.index(name)
            array = array.mean(axis) if way == "mean" else array.take(int(way), axis)
            left.remove(name)
    over = [n for n in left if n != x and chosen[n] == "interval"]
    each = [n for n in left if n != x and chosen[n] == "each"]
    array = array.transpose([left.index(n) for n in (*over, *each, x)])
    array = array.reshape(int(np.prod([shape[names.index(n)] for n in over])), -1, shape[names.index(x)])
    assert len(found) == array.shape[1]
    for at, curve in enumerate(found):
        same(curve["y"], array[:, at].mean(0))
        if over:
            half = mean_interval(array[:, at], level=0.99 if len(array) <= 4 else 0.95).half_width
            same(np.array(curve["high"], float) - np.array(curve["y"], float), half, 1e-6)
            same(np.array(curve["y"], float) - np.array(curve["low"], float), half, 1e-6)
        else:
            assert "low" not in curve


def test_runs_together_meet_at_their_steps(js: Any) -> None:
    one = {"label": "a", "x": [5, 10, 20], "y": [1.0, 2.0, 3.0]}
    two = {"label": "a", "x": [10, 20, 30], "y": [4.0, 5.0, 6.0]}
    (found,) = js("overRuns", [[one], [two]])
    assert found["x"] == [5, 10, 20, 30]
    same(found["y"], [1.0, 3.0, 4.0, 6.0])
    half = float(mean_interval(np.array([2.0, 4.0]), level=0.99).half_width)
    same(np.array(found["high"], float)[1:3], [3 + half, 4 + half], 1e-7)


@pytest.mark.parametrize("steps", [[20, 30], [5, 25], [10, 20]])
def test_new_rows_find_their_place(js: Any, steps: list[int]) -> None:
    dims = [{"name": "head", "size": 2, "labels": None}]
    before = {"steps": [0, 10], "values": [0.0, 0.5, 10.0, 10.5], "dims": dims}
    more = {"steps": steps, "values": [value for step in steps for value in (step, step + 0.5)], "dims": dims}
    found = js("added", before, more)
    wanted = sorted({0, 10, *steps})
    assert found["steps"] == wanted
    assert found["values"] == [value for step in wanted for value in (step, step + 0.5)]


def test_parts_are_stacked_by_their_sign(js: Any) -> None:
    parts = [{"label": name, "x": [0], "y": [y]} for name, y in (("a", 2.0), ("b", -1.0), ("c", 3.0), ("d", -4.0))]
    found = [(area["low"], area["high"]) for area in js("stacked", parts)]
    assert found == [([0], [2.0]), ([-1.0], [0]), ([2.0], [5.0]), ([-5.0], [-1.0])]


def test_nothing_is_stacked_on_an_unknown_part(js: Any) -> None:
    rows = {"a": [2.0, 2.0, NAN], "b": [3.0, NAN, 1.0], "c": [-1.0, -1.0, -1.0], "d": [4.0, 4.0, 4.0]}
    found = js("stacked", [{"label": name, "x": [0, 1, 2], "y": y} for name, y in rows.items()])
    same([area["low"] for area in found], [[0, 0, NAN], [2, NAN, NAN], [-1, NAN, NAN], [5, NAN, NAN]])
    same([area["high"] for area in found], [[2, 2, NAN], [5, NAN, NAN], [0, NAN, NAN], [9, NAN, NAN]])
    same([area["y"] for area in found], list(rows.values()))  # what is read off and saved stays


def test_a_table_of_what_is_seen(js: Any) -> None:
    nan = float("nan")
    curves = [
        {"label": "=cmd()", "x": [0, 1, 2], "y": [1.0, nan, 3.0]},
        {"label": 'a, "b"', "x": [1, 2], "y": [5.0, 6.0], "low": [4.0, 5.0], "high": [6.0, 7.0]},
        {"label": "hidden", "x": [0], "y": [9.0], "hidden": True},
    ]
    found = js("toCsv", {"curves": curves, "x": "step", "y": "y", "low": 1, "high": 2})
    header, *rows = found.splitlines()
    assert header == 'step,\'=cmd(),"a, ""b""","a, ""b"" low","a, ""b"" high"'
    assert rows == ["1,,5,4,6", "2,3,6,5,7"]


def test_numbers_in_words(js: Any) -> None:
    words = {0: "0", 1234567: "1,234,567", -2.5: "−2.5", 1e-9: "1.00e−9", 0.123456: "0.1235", 2.5e8: "2.50e8"}
    words |= {9_999_999: "9,999,999", 10**7: "1.00e7", 999_999.4: "1000000", 1_000_000.5: "1.00e6", 0.001: "0.001"}
    words |= {0.0009996: "1.00e−3", -3: "−3", float("inf"): "∞", float("-inf"): "−∞", NAN: "–"}
    for value, wanted in words.items():
        assert js("inDigits", value) == wanted
    assert js("inTicks", [0, 0.0005, 0.001]) == ["0.0000", "0.0005", "0.0010"]
    assert js("ticksOf", 0, 10, 5) == [0, 2, 4, 6, 8, 10]
    assert js("ticksOf", 1, 1000, 5, True) == [1, 10, 100, 1000]
    assert js("ticksOf", 3, 5000, 5, True) == [10, 100, 1000]  # none lies outside
    assert js("ticksOf", 1, 10, 5, True) == [1, 2, 5, 10]
    assert js("ticksOf", 1.5, 70, 5, True) == [2, 5, 10, 20, 50]
    assert js("ticksOf", 3.1, 3.3, 5, True) == [3.1, 3.15, 3.2, 3.25, 3.3]
    assert js("ticksOf", 1.4, 8.4, 6, True) == [2, 4, 6, 8]  # 2 and 5 alone would say little
    assert js("ticksOf", 8, 18, 5, True) == [8, 10, 12, 14, 16, 18]
    assert js("ticksOf", 2e-7, 3e4, 5, True) == [1e-6, 1e-3, 1, 1e3]  # each a thousandfold
    times = {-3: "0 s", 119: "119 s", 120: "2 min", 7199: "120 min", 7200: "2 h", 172_799: "48 h", 259_200: "3 days"}
    assert {seconds: js("inTime", seconds) for seconds in times} == times
    assert [js("counted", count, "run") for count in (0, 1, 1234)] == ["0 runs", "1 run", "1,234 runs"]


TICKS = {  # of both kinds of axes, in words
    (1e-6, 1e-5, 1e-4, 1e-3, 0.01): ["1e−6", "1e−5", "1e−4", "0.001", "0.01"],
    (1e5, 1e6, 1e7): ["100,000", "1,000,000", "1e7"],
    (0.5, 1, 2, 5): ["0.5", "1", "2", "5"],
    (0, 5e6, 1e7, 1.5e7): ["0", "5e6", "1.0e7", "1.5e7"],
    (3.005e7, 3.01e7, 3.015e7): ["3.005e7", "3.010e7", "3.015e7"],
    (-2e-7, 0, 2e-7): ["−2e−7", "0", "2e−7"],
    (1_000_000, 1_500_000): ["1,000,000", "1,500,000"],
    (0.9300001, 0.9300002): ["0.9300001", "0.9300002"],
    (7,): ["7"],
}


def test_ticks_in_words_are_told_apart(js: Any) -> None:
    assert {ticks: js("inTicks", ticks) for ticks in TICKS} == TICKS


def in_number(words: str) -> float:
    return float(words.replace("−", "-").replace(",", ""))


@settings(max_examples=150, deadline=None)
@given(low=st.floats(-12, 12), decades=st.floats(5e-6, 30), count=st.integers(5, 12))
def test_a_log_axis_lies_near_its_numbers_and_has_names(js: Any, low: float, decades: float, count: int) -> None:
    numbers = 10.0**low, 10.0 ** (low + decades)
    begin, end = js("limitsOf", *numbers, True)
    before, behind = np.log10([numbers[0] / begin, end / numbers[1]])
    assert [before, behind] == pytest.approx([decades / 20] * 2, rel=1e-3, abs=1e-12)
    ticks = js("ticksOf", begin, end, count, True)
    assert 2 <= len(ticks) <= count + 2
    assert (np.diff(ticks) > 0).all()
    assert begin * (1 - 1e-8) <= ticks[0]
    assert ticks[-1] <= end * (1 + 1e-8)
    if decades > 1:  # round numbers, of which no two lie far apart
        assert all(f"{tick:.5e}"[:7] in ("1.00000", "2.00000", "5.00000") for tick in ticks if decades > 1.4)
        assert np.diff(np.log10(np.array([begin, *ticks, end], float))).max() < 0.6 * (decades + 1)
    words = js("inTicks", ticks)
    assert [in_number(one) for one in words] == pytest.approx(ticks, rel=1e-8)
    assert len(set(words)) == len(words)


def test_a_number_alone_lies_in_the_middle_of_an_axis(js: Any) -> None:
    for value in (4.0, 1e-9, 3e7):
        same(js("limitsOf", value, value * (1 + 1e-7), True), [value / 2, 2 * value], 1e-6)
        same(js("limitsOf", -value, -value, False), [-1.1 * value, -0.9 * value])
    same(js("limitsOf", 0, 0, False), [-1, 1])
    same(js("limitsOf", 10, 30, False), [9, 31])
    same(js("limitsOf", 1, 1 + 2e-16, False), [0.9, 1.1])  # between these there is no place for ticks
    tiny, huge = js("limitsOf", 5e-324, 1.7e308, True)
    assert 0 < tiny < huge < float("inf")


def test_what_is_seen_along_x(js: Any) -> None:
    xs = [1, 5, 9]
    wanted = {
        (None, None, False): [1, 9], (2, 7, False): [2, 7], (0, 7, False): [0, 7], (-3, 20, False): [-3, 20],
        (0, 7, True): [1, 7], (-3, 0, True): [1, 9], (2, 20, True): [2, 20], (5, 5, False): [5, 6],
        (6, 2, True): [6, 7],
    }  # fmt: skip
    for (low, high, log), range_ in wanted.items():
        asked = {name: one for name, one in (("low", low), ("high", high)) if one is not None}
        assert js("seenRange", {**asked, "logX": log}, xs) == range_, (low, high, log)
    begin, end = js("seenRange", {"logX": True}, [])
    assert 0 < begin < end


def test_a_sum_with_an_unknown_part_is_unknown(js: Any) -> None:
    nan = float("nan")
    parts = [
        {"label": "a", "x": [0, 10, 20, 40], "y": [1.0, nan, 3.0, 5.0]},
        {"label": "b", "x": [10, 0, 20, 30], "y": [20.0, 10.0, 30.0, 40.0]},  # in any order
    ]
    found = js("alongside", parts)
    assert [one["label"] for one in found] == ["a", "b"]
    assert [one["x"] for one in found] == [[0, 10, 20, 30, 40]] * 2
    same(found[0]["y"], [1, nan, 3, nan, 5])
    same(found[1]["y"], [10, 20, 30, 40, nan])
    same(js("sumOf", found), [11, nan, 33, nan, nan])
    assert js("sumOf", []) == []


def test_a_mean_of_fewer_numbers_than_at_other_steps_is_unknown_to_a_sum(js: Any) -> None:
    """A layer that never has a number is no part of the mean; one that lacks it at a step makes it unknown there."""
    nan = float("nan")
    values = [[1.0, 3.0, nan], [nan, 4.0, nan], [5.0, 7.0, nan], [nan, nan, nan]]
    dims = [{"name": "layer", "size": 3, "labels": None}]
    array = {"steps": [0, 1, 2, 3], "values": [one for row in values for one in row], "dims": dims}
    for mode, wanted in (("mean", [2, nan, 6, nan]), ("0", [1, nan, 5, nan]), ("2", [nan] * 4)):
        (curve,) = js("curvesOf", array, {"layer": mode})
        same(js("whereAllKnown", curve, js("knownShare", array, {"layer": mode}))["y"], wanted)


@pytest.mark.parametrize("mode", ["mean", "interval", "each"])
@pytest.mark.parametrize("steps", [[20, 30], [5, 25]])
def test_curves_that_grow_are_those_made_at_once(js: Any, steps: list[int], mode: str) -> None:
    dims = [{"name": "head", "size": 2, "labels": None}]
    before = {"steps": [0, 10], "values": [0.0, 0.5, 10.0, 17.0], "dims": dims}
    more = {"steps": steps, "values": [value for step in steps for value in (step, step * 1.5)], "dims": dims}
    growing, at_once = js("grown", before, more, {"head": mode})
    assert growing == at_once
    assert growing[0]["x"] == sorted([0, 10, *steps])


def test_rows_are_added_without_copying_all(js: Any) -> None:
    values, rooms, kind = js("roomy", 400)
    assert values == list(range(400))
    assert rooms < 20  # a copy at each row would be 399
    assert kind == "Float32Array"


@pytest.mark.parametrize("late", [40, 15])
def test_the_range_of_what_grows_is_that_of_all(js: Any, late: int) -> None:
    nan = float("nan")
    seen, wanted = js("ranged", [-100.0, nan, 5.0], [0.1, 1.0, -0.5], late)
    assert seen[0] == [-100, 5]
    assert seen[1] == [-100, 20]
    assert js("ranged", [3.0, nan, 500.0], [0.1, 1.0, -0.5], late)[0][2] == [-15, 500]
    assert seen[-1] == wanted


def read_off(svg: str, log_x: bool, log_y: bool) -> list[tuple[str, list[np.ndarray]]]:
    """The curves of a picture as its axes tell them: colour, and (points, 2) of each stretch."""
    texts = re.findall(r'<text x="([-\d.]+)" y="([-\d.]+)" text-anchor="(end|middle)">([^<]*)</text>', svg)
    scales = []
    for at, anchor, log in ((0, "middle", log_x), (1, "end", log_y)):
        ticks = [(float(one[at]), one[3]) for one in texts if one[2] == anchor and re.fullmatch(r"[−\d.,e]+", one[3])]
        numbers = np.array([float(words.replace("−", "-").replace(",", "")) for _, words in ticks])
        places = np.array([place for place, _ in ticks]) - (4 if at else 0)  # the foot of a letter
        assert len(numbers) > 1
        slope, shift = np.polyfit(places, np.log10(numbers) if log else numbers, 1)
        assert slope < 0 if at else slope > 0  # the larger, the higher, and the further to the right
        scales.append((slope, shift, log))
    found = []
    for path, colour in re.findall(r'<path d="([^"]*)" fill="none" stroke="([^"]+)" stroke-width="1.6"', svg):
        stretches = []
        for part in path.split("M")[1:]:
            places = np.array([list(map(float, one.split())) for one in part.split("L")])
            numbers = [slope * column + shift for column, (slope, shift, _) in zip(places.T, scales, strict=True)]
            stretches.append(np.stack([10**n if log else n for n, (_, _, log) in zip(numbers, scales, strict=True)], 1))
        found.append((colour, stretches))
    return found


@pytest.mark.parametrize("log_y", [False, True])
@pytest.mark.parametrize("log_x", [False, True])
def test_a_picture_shows_the_numbers_by_its_axes(js: Any, log_x: bool, log_y: bool) -> None:
    nan, x = float("nan"), np.arange(0.0, 2001, 50)
    y = np.stack([1 + x, 4000 * np.exp(-x / 300) + 2, -x])
    y[1, 20] = nan
    colours = ["#010203", "#040506", "#070809"]
    curves = [
        {"label": f"curve <{at}>", "x": x.tolist(), "y": y[at].tolist(), "colour": colour, "hidden": at == 2}
        for at, colour in enumerate(colours)
    ]
    curves[0] |= {"low": (0.5 * y[0]).tolist(), "high": np.where(x == 1000, nan, 2 * y[0]).tolist()}
    page = dict.fromkeys(("ink", "muted", "paper", "rule"), "#000000")
    spec = {"curves": curves, "x": "step", "y": "a & b", "logX": log_x, "logY": log_y, "low": 100, "high": 1700}
    svg = js("toSvg", spec, page)
    (first, (rising,)), (second, falling) = read_off(svg, log_x, log_y)
    assert (first, second) == ("#010203", "#040506")
    seen = (x >= 100) & (x <= 1700)
    np.testing.assert_allclose(rising, np.stack([x, y[0]], 1)[seen], rtol=0.01, atol=8)
    left, right = re.findall(r'<path d="M(\d+) [\d.]+H(\d+)"', svg)[0]
    edges = re.search(rf'<path d="M{left}\.0 [^"]*L{right}\.0 [^"L]*" fill="none" stroke="#010203"', svg)
    assert edges  # what is seen fills the picture
    assert [len(part) for part in falling] == [18, 14]  # a gap is a gap
    there = seen & (x != 1000)
    np.testing.assert_allclose(np.concatenate(falling), np.stack([x, y[1]], 1)[there], rtol=0.01, atol=8)
    bands = re.findall(r'<path d="M([^"]*)Z" fill="(#[0-9]+)" fill-opacity="0.15"', svg)
    assert [(len(band.split("L")), colour) for band, colour in bands] == [(36, first), (28, first)]
    line, words = r'"M([\d.]+) ([\d.]+)h22" stroke="([^"]+)" stroke-width="3"/>', r'x="([\d.]+)" y="([\d.]+)">([^<]*)<'
    keys = re.findall(f"{line}<text {words}", svg)
    assert [(one[2], one[5]) for one in keys] == [("#010203", "curve &#60;0&#62;"), ("#040506", "curve &#60;1&#62;")]
    for x0, line, _, x1, foot, _ in keys:
        assert float(x1) == float(x0) + 28  # words behind their line, which is at half the height of a letter
        assert float(foot) == float(line) + 4
    assert ">a &#38; b</text>" in svg


PAGE = dict.fromkeys(("ink", "muted", "paper", "rule"), "#000000")


def test_lines_of_a_picture_stand_at_their_steps_with_names(js: Any) -> None:
    x = list(range(0, 101, 10))
    curve = {"label": "one", "x": x, "y": [float(one) for one in x], "colour": "#010203"}
    marks = [
        {"tone": "fails", "says": "alarms <5>", "at": [20, 50, 50, 90]},
        {"tone": "not-run", "says": "left", "at": [0, 70]},
        {"tone": "holds", "says": "elsewhere", "at": [110]},
    ]  # fmt: skip
    page = {**PAGE, "fails": "#aa0000", "not-run": "#00bb00", "holds": "#0000cc"}
    spec = {"curves": [curve], "x": "step", "y": "y", "logX": False, "logY": False, "marks": marks}
    for asked, red, green in (
        ({}, [20, 50, 90], [0, 70]),
        ({"low": 30, "high": 95}, [50, 90], [70]),
        ({"high": 15}, [], [0]),
    ):
        svg = js("toSvg", {**spec, **asked}, page)
        begin, end = asked.get("low", 0), asked.get("high", 100)
        keys = []
        for colour, steps, says in (("#aa0000", red, "alarms &#60;5&#62;"), ("#00bb00", green, "left")):
            found = re.findall(rf'<path d="((?:M[\d.]+ 14V368)+)" stroke="{colour}"/>', svg)
            places = [float(one) for path in found for one in re.findall(r"M([\d.]+) ", path)]
            same(places, [74 + (step - begin) / (end - begin) * (742 - 74) for step in steps], 1e-3)
            keys += [(colour, says)] if steps else []
        assert re.findall(r'v13" stroke="([^"]+)"/><text [^>]*>([^<]*)</text>', svg) == keys  # of what is seen
        assert "#0000cc" not in svg
        behind = [svg.index(f'"{colour}"') for colour, _ in keys]
        assert behind == sorted(behind)
        assert all(svg.rindex("#000000", 0, at) < at < svg.index("#010203") for at in behind)  # grid, lines, curves
        height = float(re.search(r'viewBox="0 0 760 ([\d.]+)"', svg)[1])
        texts = [float(one) for one in re.findall(r'<text x="[\d.]+" y="([\d.]+)"', svg)]
        assert height - 30 < max(texts) < height - 4


def test_a_number_between_gaps_is_a_dot(js: Any) -> None:
    nan = float("nan")
    y = [1.0, nan, 2.0, 3.0, nan, nan, 4.0, nan, 5.0]
    curve = {"label": "a", "x": list(range(9)), "y": y, "colour": "#010203"}
    spec = {"curves": [curve], "x": "step", "y": "y", "logX": False, "logY": False}

    def dots(**given: Any) -> list[float]:
        svg = js("toSvg", {**spec, **given}, PAGE)
        return [float(one) for one in re.findall(r'<circle cx="([\d.]+)" cy="[\d.]+" r="2.5" fill="#010203"/>', svg)]

    same(dots(), [74 + at / 8 * 668 for at in (0, 6, 8)], 1e-3)
    same(dots(low=3, high=7), [74 + (at - 3) / 4 * 668 for at in (3, 6)], 1e-3)  # what is seen of 2 and 3 is one
    assert dots(curves=[{**curve, "low": y, "high": y}], areas=True) == []
    same(dots(curves=[{**curve, "x": [5], "y": [1.0]}]), [74])


def test_hiding_a_curve_moves_no_axis_of_steps(js: Any) -> None:
    curves = [
        {"label": "a", "x": [10, 20], "y": [1.0, 2.0], "colour": "#010203"},
        {"label": "b", "x": [0, 40], "y": [1.0, 2.0], "colour": "#040506", "hidden": True},
    ]
    svg = js("toSvg", {"curves": curves, "x": "step", "y": "y", "logX": False, "logY": False}, PAGE)
    assert re.search(r'd="M241.0 [\d.]+L408.0 [\d.]+" fill="none" stroke="#010203"', svg)  # as on the screen
    assert "#040506" not in svg


def test_a_picture_of_many_curves_says_how_many_it_does_not_name(js: Any) -> None:
    curves = [
        {"label": f"curve {at} {'x' * 60}", "x": [1, 2], "y": [1.0, 2.0], "colour": "#010203"} for at in range(30)
    ]
    svg = js("toSvg", {"curves": curves, "x": "step", "y": "y", "logX": False, "logY": False}, PAGE)
    named = re.findall(r'<text x="[\d.]+" y="[\d.]+">([^<]*)</text>', svg)
    assert len(named) == 25
    assert named[-1] == "and 6 more"
    assert named[3] == f"curve 3 {'x' * 39}…"
    svg = js("toSvg", {"curves": curves[:24], "x": "step", "y": "y", "logX": False, "logY": False}, PAGE)
    assert "more" not in svg


@pytest.mark.parametrize("log", [False, True])
def test_a_picture_of_one_number_or_none_has_an_axis(js: Any, log: bool) -> None:
    for y in ([4.0, 4.0], [float("nan")] * 2):
        curve = {"label": "", "x": [1, 2], "y": y, "colour": "#010203"}
        svg = js("toSvg", {"curves": [curve], "x": "step", "y": "y", "logX": log, "logY": log}, PAGE)
        assert "NaN" not in svg
        assert "Infinity" not in svg
        assert len(re.findall(r'text-anchor="end">', svg)) >= 2
        assert len(re.findall(r'y="386" text-anchor="middle">', svg)) >= 2
        if y[0] == 4:
            assert re.search(r'd="M74.0 191.0L742.0 191.0"', svg) or log  # in the middle
    empty = {"curves": [{"label": "", "x": [0], "y": [1.0], "colour": "#010203"}], "x": "step", "y": "y"}
    assert "NaN" not in js("toSvg", {**empty, "logX": True, "logY": True}, PAGE)

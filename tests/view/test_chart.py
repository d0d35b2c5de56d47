"""What a chart says and when it draws only what is new: its methods alone, with stand-ins for what uPlot gives them."""

from __future__ import annotations

from typing import Any

import pytest
from javascript import Call

READ = """(curves, data, top) => {
  const self = { spec: { x: "step", curves }, says: {} };
  Chart.prototype.read.call(self, { cursor: { idx: 0, top }, data, valToPos: (value) => value });
  return self.says.textContent;
}"""
GROW = """(spoil) => {
  const made = (count) => ({ same: "this", x: "step", curves: [{ x: [...Array(count).keys()], y: Array(count).fill(1) }] });
  const plot = { cursor: { left: -1 }, data: [[0, 1], [1, 1]], scales: { x: { max: 9 }, y: { min: 0, max: 2 } }, setData() {} };
  const self = { plot, spec: made(2), tail() {} }, old = self.spec, next = made(4);
  new Function("self", "old", "next", spoil)(self, old, next);
  return [Chart.prototype.grow.call(self, next), plot.data];
}"""  # noqa: E501
TICKS = """(side, from, to) => {
  const self = { colour: () => "", spec: {}, zoomed() {} }, plot = { width: 900, height: 400 };
  const found = Chart.prototype.options.call(self, { curves: [], logX: true, logY: true, x: "step" }, plot.width);
  return found.axes[side].splits(plot, side, from, to);
}"""


def test_the_nearest_curve_is_read_with_its_own_interval(module_js: Call) -> None:
    curves: list[dict[str, Any]] = [{"label": name, "low": [0], "high": [0]} for name in "abc"]
    curves[1] = {"label": "b"}
    data = [[10.0], [2.0], [1.0], [3.0], [20.0], [40.0], [35.0], [45.0]]
    read = [module_js(READ, curves, data, top) for top in (0, 21, 44)]
    assert read == ["step 10 · a: 2 [1, 3]", "step 10 · b: 20", "step 10 · c: 40 [35, 45]"]


def test_a_chart_that_grew_is_given_the_new_points_alone(module_js: Call) -> None:
    assert module_js(GROW, "") == [True, [[0, 1, 2, 3], [1, 1, 1, 1]]]


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param("self.plot = self.spec = null", id="nothing is drawn"),
        pytest.param("next.curves = []", id="no curve is left"),
        pytest.param("delete old.same; delete next.same", id="nobody says that it shows the same"),
        pytest.param("next.same = 'other'", id="it shows something else"),
        pytest.param("next.areas = true", id="areas lie on each other"),
        pytest.param("next.logX = true", id="a log axis may have no place"),
        pytest.param(
            "const x = [...Array(5000).keys()]; next.curves = [{ x, y: x.map(() => 1) }]; self.plot.scales.x.max = 1e4",
            id="lines become thin",
        ),
        pytest.param("self.plot.cursor.left = 3", id="somebody reads"),
        pytest.param("next.curves[0].low = next.curves[0].y", id="an interval is filled"),
        pytest.param("next.curves[0].x[1] = 1.5", id="other steps stand there"),
        pytest.param("self.plot.scales.x.max = 2", id="a step lies outside"),
        pytest.param("next.curves[0].y[3] = 5", id="a number lies outside"),
    ],
)
def test_else_it_is_drawn_anew(module_js: Call, spoil: str) -> None:
    assert module_js(GROW, spoil) == [False, [[0, 1], [1, 1]]]


def test_log_axes_have_a_name_for_so_many_pixels(module_js: Call) -> None:
    for side, count in ((0, 10), (1, 8)):
        assert module_js(TICKS, side, 3.1, 3.3) == module_js("ticksOf", 3.1, 3.3, count, True)

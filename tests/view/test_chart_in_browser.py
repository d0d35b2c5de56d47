"""A chart that grows: only tails are drawn, and what is seen is what drawing everything anew would show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from joma.view.module import UPLOT, static, style

pytestmark = pytest.mark.browser
PARTS = (UPLOT, "numbers.js", "elements.js", "colours.js", "picture.js", "chart.js")
SCRIPT = """
const chart = new Chart(document.body, (low, high) => { window.zoomed = [low, high]; });
document.body.append(chart.element);
const spec = (count, given = {}) => {
  const x = [...Array(count).keys()].map((at) => 10 * at);
  const curve = (at) => ({
    label: `c${at}`, x, y: x.map((one) => Math.sin(one / 90 + at)), colour: FEW_COLOURS[at],
    hidden: given.hidden === at,
  });
  const usual = { x: "step", y: "wave", logX: false, logY: false, live: true, same: "one" };
  return { ...usual, curves: [0, 1, 2].map(curve), ...given };
};
let drawn = 0;
const counted_draw = (one) => { drawn = 0; chart.draw(one); return drawn; };
const watch = () => chart.plot.hooks.drawAxes.push(() => { drawn++; });
const pixels = () => {
  const canvas = chart.plot.ctx.canvas;
  return canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
};
const differing = (a, b) => {
  let count = 0;
  for (let i = 0; i < a.length; i += 4) if ([0, 1, 2, 3].some((k) => Math.abs(a[i + k] - b[i + k]) > 60)) count++;
  return count;
};
"""


@pytest.fixture(scope="module")
def page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    path: Path = tmp_path_factory.mktemp("chart") / "page.html"
    parts = "\n".join(map(static, PARTS))
    shape = "<meta charset=utf-8><body class='joma-view' style='width: 900px'>"
    path.write_text(f"{shape}<style>{style()}</style><script>{parts}\n{SCRIPT}</script>", encoding="utf-8")
    page = browser.new_page(viewport={"width": 1000, "height": 700})
    page.goto(path.as_uri())
    yield page
    page.close()


def fresh(page: Any, code: str) -> Any:
    """What `code` gives after 200 points were drawn."""
    before = "chart.draw(spec(3, { same: 'other' })); chart.draw(spec(200)); watch();"
    return page.evaluate(f"() => {{ {before} {code} }}")


def test_a_tail_is_drawn_alone_and_looks_as_if_all_were_drawn(page: Any) -> None:
    code = """const before = pixels(); const times = counted_draw(spec(205)); const tail = pixels();
      chart.settle(); const whole = pixels();
      const lengths = chart.plot.data.map((column) => column.length);
      return [times, differing(before, tail), differing(tail, whole), lengths];"""
    times, moved, wrong, lengths = fresh(page, code)
    assert times == 0  # nothing of what stood there was drawn again
    assert moved > 20  # the tails are there
    assert wrong < moved / 4  # and where uPlot draws them; joints are smoothed otherwise
    assert lengths == [205] * 4


def test_one_step_is_a_line_from_the_last_one(page: Any) -> None:
    code = """const before = pixels(); const times = counted_draw(spec(201)); const tail = pixels();
      chart.settle(); return [times, differing(before, tail), differing(tail, pixels())];"""
    times, moved, wrong = fresh(page, code)
    assert times == 0
    assert moved >= 6  # of each of three curves
    assert wrong < moved


def test_hidden_curves_and_gaps_have_no_tail(page: Any) -> None:
    code = """chart.draw(spec(200, { hidden: 1, same: 'two' })); const before = pixels();
      const next = spec(205, { hidden: 1, same: 'two' }); next.curves[0].y[202] = NaN; next.curves[2].y.fill(NaN, 200);
      const times = counted_draw(next); const tail = pixels(); chart.settle();
      return [times, differing(tail, pixels()), differing(before, tail), chart.plot.data[1][202]];"""
    times, wrong, moved, gap = fresh(page, code)
    assert times == 0
    assert gap is None
    assert wrong < moved


def test_all_is_drawn_where_a_tail_does_not_do(page: Any) -> None:
    """Out of the range of either axis, another view, steps that came between, a band, somebody who reads."""
    code = """const found = {}; const up = spec(205); up.curves[0].y[203] = 9;
      const many = spec(260), between = spec(205, { same: 'three' }), band = spec(205);
      band.curves[0].low = band.curves[0].y; band.curves[0].high = band.curves[0].y;
      for (const [name, one] of Object.entries({ up, many, between })) {
        chart.draw(spec(3, { same: 'other' })); chart.draw(spec(200)); found[name] = counted_draw(one) > 0; }
      chart.draw(spec(200)); chart.plot.setCursor({ left: 50, top: 50 }); found.read = counted_draw(spec(205)) > 0;
      chart.plot.setCursor({ left: -10, top: -10 });
      chart.draw(spec(3, { same: 'other' })); chart.draw(spec(200)); const plot = chart.plot; chart.draw(band);
      found.band = chart.plot !== plot; return found;"""
    assert fresh(page, code) == dict.fromkeys(("up", "many", "between", "read", "band"), True)


def test_there_is_room_for_what_comes_while_a_run_is_written(page: Any) -> None:
    code = """const live = chart.plot.scales.x.max; chart.draw(spec(205)); const then = chart.plot.scales.x.max;
      chart.draw(spec(205, { live: false, same: 'four' })); return [live, then, chart.plot.scales.x.max];"""
    live, then, over = fresh(page, code)
    assert 1990 < live <= 1990 * 1.1
    assert then == live  # the axis stands still
    assert over == 2040


def test_a_range_that_was_asked_for_stays(page: Any) -> None:
    code = """chart.draw(spec(200, { low: 100, high: 500, same: 'five' }));
      const times = counted_draw(spec(205, { low: 100, high: 500, same: 'five' }));
      const { min, max } = chart.plot.scales.x; return [times, min, max, chart.plot.data[0].length];"""
    assert fresh(page, code) == [0, 100, 500, 205]

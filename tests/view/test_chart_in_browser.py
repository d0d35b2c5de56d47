"""A chart that grows: only tails are drawn, and what is seen is what drawing everything anew would show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from joma.view.module import UPLOT, static, style

PARTS = (UPLOT, "numbers.js", "axes.js", "elements.js", "colours.js", "picture.js", "chart.js", "panels.js")
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
const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done))); // uPlot draws later
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
    nobody_reads = "chart.plot?.setCursor({ left: -10, top: -10 });"  # whatever the test before did
    before = f"{nobody_reads} chart.draw(spec(3, {{ same: 'other' }})); chart.draw(spec(200)); {nobody_reads} watch();"
    return page.evaluate(f"async () => {{ {before} {code} }}")


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


def test_data_for_the_axes(page: Any) -> None:
    """A log axis leaves out what it cannot show and shifts nothing; curves with other steps meet at theirs."""
    code = """const curve = (x, y, more = {}) => ({ label: '', x, y, colour: '#000000', ...more });
      const plain = (some) => some.map((column) => column.map((one) => (one === undefined ? 'none' : one)));
      const same = [curve([0, 1, 2], [5, 0, -7]), curve([0, 1, 2], [6, NaN, 8])];
      const other = [curve([0, 10], [1, 2], { low: [0, 1], high: [2, 3] }), curve([2, 10], [3, 4])];
      const all = (curves, logX, logY) => plain(aligned({ curves, logX, logY }));
      return [all(same, false, false), all(same, true, false), all(same, false, true), all(other, false, false),
        all(other, true, false)];"""
    assert fresh(page, code) == [
        [[0, 1, 2], [5, 0, -7], [6, None, 8]],
        [[1, 2], [0, -7], [None, 8]],
        [[0, 1, 2], [5, None, None], [6, None, 8]],
        [[0, 2, 10], [1, "none", 2], [0, "none", 1], [2, "none", 3], ["none", 3, 4]],
        [[2, 10], ["none", 2], ["none", 1], ["none", 3], [3, 4]],
    ]


def test_axes_keys_and_clicks(page: Any) -> None:
    code = """const found = { labels: chart.plot.axes.map((axis) => axis.label) }, says = () => chart.says.textContent;
      const key = (name) => chart.key(new KeyboardEvent('keydown', { key: name }));
      window.zoomed = null; chart.plot.over.dispatchEvent(new MouseEvent('dblclick')); found.all = window.zoomed;
      chart.draw(spec(200, { low: 500, high: 1500, live: false, same: 'seven' })); key('+'); found.near = window.zoomed;
      key('-'); found.far = window.zoomed;
      chart.draw(spec(200, { live: false, same: 'six' })); chart.plot.setCursor({ left: 0, top: 100 });
      for (const name of ['Home', 'PageDown', 'ArrowRight', 'PageDown', 'PageUp', 'ArrowLeft', 'End']) {
        key(name); found[name] = says().split(' ')[1]; }
      return found;"""
    assert fresh(page, code) == {
        "labels": ["step", "wave"], "all": [None, None], "near": [750, 1250], "far": [0, 1990], "Home": "0",
        "PageDown": "410", "ArrowRight": "210", "PageUp": "210", "ArrowLeft": "200", "End": "1,990",
    }  # fmt: skip


def test_a_band_fills_from_low_to_high(page: Any) -> None:
    code = """const one = spec(200, { live: false, same: undefined }), flat = (value) => Array(200).fill(value);
      one.curves = [{ ...one.curves[0], y: flat(5), low: flat(2), high: flat(9), colour: '#ff0000' }];
      chart.draw(one); await frame();
      const canvas = chart.plot.ctx.canvas, data = pixels(), x = Math.round(chart.plot.valToPos(1000, 'x', true)) + 7;
      const filled = (value) => { const y = Math.round(chart.plot.valToPos(value, 'y', true));
        const at = 4 * (y * canvas.width + x); return data[at] - data[at + 1] > 20 && data[at + 3] > 20; };
      return [1.5, 2.5, 4.5, 5.5, 8.5, 9.5].map(filled);"""
    assert fresh(page, code) == [False, True, True, True, True, False]


def test_a_tail_has_the_colour_of_its_curve(page: Any) -> None:
    code = """await frame(); const before = pixels(), width = chart.plot.ctx.canvas.width;
      chart.draw(spec(205)); const after = pixels();
      const place = (y) => chart.plot.valToPos(y, 'y', true), found = [];
      const rows = chart.plot.data.slice(1).map((column) => column.slice(199).map(place));
      for (let at = 0; at < after.length; at += 4) {
        if (differing(before.slice(at, at + 4), after.slice(at, at + 4))) found.push([at / 4 / width, ...after.slice(at, at + 3)]); }
      return [rows, FEW_COLOURS.slice(0, 3).map(channels), found];"""  # noqa: E501
    rows, colours, found = fresh(page, code)
    for tail, colour in zip(rows, colours, strict=True):
        drawn = [at for at, *pixel in found if max(abs(a - b) for a, b in zip(pixel, colour, strict=True)) < 40]
        assert drawn
        assert all(min(tail) - 4 < at < max(tail) + 4 for at in drawn)


def test_a_panel_has_its_axes_bands_and_dashes(page: Any) -> None:
    line = {"x": [1, 10], "y": [2, 3], "low": [1, 2], "high": [4, 5], "colour": "#123456"}
    panels = [
        {"scale": scale, "y": "loss", "x": "step", "about": scale, "log_x": at == 0, "log_y": at == 1,
         "lines": [{**line, "label": kind, "dashes": kind} for kind in ("solid", "dashed", "dotted")]}
        for at, scale in enumerate(("here", "there"))
    ]  # fmt: skip
    code = """async (panels) => {
      let saved; URL.createObjectURL = (blob) => { saved = blob; return 'data:,'; };
      HTMLAnchorElement.prototype.click = () => {}; URL.revokeObjectURL = () => {};
      showPanels('title', panels, 'light');
      const dialog = document.querySelector('dialog'), found = [];
      const save = async (kind) => { [...dialog.querySelectorAll('.savers button')].find((one) => one.textContent === kind).click(); return saved.text(); };
      for (const at of ['0', '1']) {
        const select = dialog.querySelector('select'); select.value = at; select.dispatchEvent(new Event('change'));
        found.push([[...dialog.querySelectorAll('.tick input')].map((one) => one.checked), await save('CSV'), await save('SVG')]);
      }
      dialog.close(); return found; }"""  # noqa: E501
    (here, rows, svg), (there, _, _) = page.evaluate(code, panels)
    assert (here, there) == ([True, False], [False, True])
    header, first, _ = rows.splitlines()
    assert header.split(",")[1:4] == ["solid", "solid low", "solid high"]
    assert first.split(",")[:4] == ["1", "2", "1", "4"]
    assert [one.split('"')[0] for one in svg.split('stroke-dasharray="')[1:]] == ["7 4", "2 4"]


LOG = """const given = (y, more) => ({ ...spec(y.length, { live: false, same: undefined, logY: true, ...more }),
    curves: [{ label: '', x: y.map((_, at) => 100 * (at + 1)), y, colour: '#000000' }] });
  const show = async (y, more = {}) => {
    chart.draw(given(y, more)); await frame(); const { x, y: up } = chart.plot.scales;
    return { x: [x.min, x.max], y: [up.min, up.max], names: chart.plot.axes.map((axis) => axis._values) }; };"""


def test_a_log_axis_shows_its_numbers_and_not_the_decade_around_them(page: Any) -> None:
    code = f"""{LOG} return [await show([3.1, 3.2, 3.3]), await show([1, 4, 9.5]), await show([0.02, 300, 7]),
      await show([4, 4]), await show([NaN, -1])];"""
    narrow, decade, wide, one, none = fresh(page, code)
    assert narrow["y"] == pytest.approx([3.1 / (3.3 / 3.1) ** 0.05, 3.3 * (3.3 / 3.1) ** 0.05])
    assert set(narrow["names"][1]) >= {"3.10", "3.20", "3.30"}
    assert decade["y"] == pytest.approx([1 / 9.5**0.05, 9.5 * 9.5**0.05])
    assert len(decade["names"][1]) >= 4
    assert set(wide["names"][1]) >= {"0.1", "1", "10", "100"}
    assert "" not in wide["names"][1]
    assert one["y"] == pytest.approx([2, 8])
    assert "4" in one["names"][1]
    assert len(narrow["names"][0]) > 3  # the other axis is as ever
    assert (none["x"], none["y"]) == ([100, 200], [None, None])


def test_a_zoom_into_a_log_axis_is_what_was_asked_for(page: Any) -> None:
    code = f"""{LOG} const y = [...Array(20).keys()].map((at) => at + 1), more = {{ logX: true, logY: false }};
      return [await show(y, more), await show(y, {{ ...more, low: 1100, high: 1900 }}),
        await show(y, {{ ...more, low: 0, high: 700 }}), await show(y, {{ ...more, low: 350, high: 5000 }})];"""
    whole, zoomed, from_zero, beyond = fresh(page, code)
    assert whole["x"] == [100, 2000]
    assert whole["names"][0] == ["100", "200", "500", "1,000", "2,000"]
    assert zoomed["x"] == [1100, 1900]
    assert zoomed["names"][0] == [f"1,{at}00" for at in range(1, 10)]
    assert from_zero["x"] == [100, 700]
    assert beyond["x"] == [350, 5000]
    assert all(len(names) >= 2 for each in (whole, zoomed, from_zero, beyond) for names in each["names"])


def test_a_narrow_log_axis_has_fewer_names(page: Any) -> None:
    code = f"""{LOG} const y = [...Array(20).keys()].map((at) => at + 1), more = {{ logX: true }};
      document.body.style.width = '330px'; chart.resize();
      const found = await show(y, {{ ...more, low: 1100, high: 1900 }});
      document.body.style.width = '900px'; chart.resize(); return found;"""
    names = fresh(page, code)["names"][0]
    assert names == ["1,200", "1,400", "1,600", "1,800"]


@pytest.mark.parametrize("width", [330, 900])
def test_long_numbers_leave_the_title_of_their_axis_free(page: Any, width: int) -> None:
    code = f"""{LOG} document.body.style.width = '{width}px'; chart.resize();
      const far = (words) => Math.max(...words.map((one) => chart.plot.ctx.measureText(one).width)) / devicePixelRatio;
      const found = [];
      for (const y of [[1, 2], [0.93, 0.93002], [-1e-7, 123456.75]]) {{
        const {{ names }} = await show(y, {{ logY: y[0] > 0 }}); chart.plot.ctx.font = '12px system-ui, sans-serif';
        found.push([far(names[1]), chart.plot.axes[1]._size]); }}
      document.body.style.width = '900px'; chart.resize(); return found;"""
    for words, room in fresh(page, code):
        assert words + 4 + 5 <= room <= max(words + 30, 64)  # the tick and the gap


def test_a_number_between_gaps_is_a_dot_and_what_is_no_point_is_no_gap(page: Any) -> None:
    code = """const gaps = (column) => lonely(column.map((one) => (one === 'none' ? undefined : one)));
      const y = [1, NaN, 2, 2, NaN, 1.5, NaN, 1, 1], one = spec(9, { live: false, same: undefined });
      one.curves = [{ ...one.curves[0], y: y.map(() => 1.2) }, { ...one.curves[0], y, colour: '#ff0000' }];
      chart.draw(one); await frame();
      const canvas = chart.plot.ctx.canvas, data = pixels(), place = (x, y) => {
        const [left, top] = [chart.plot.valToPos(x, 'x', true), chart.plot.valToPos(y, 'y', true) + 2].map(Math.round);
        const at = 4 * (top * canvas.width + left); return data[at] - data[at + 1] > 80; };
      return [gaps([1, 'none', 2, null, 3]), gaps([null, 1, 'none', null]), gaps([]), gaps([null, 4, 5, null, 6, null]),
        gaps(['none', 7]), [[50, 1.5], [20, 2], [30, 2]].map(([x, y]) => place(x, y))];"""
    assert fresh(page, code) == [[4], [1], [], [4], [1], [True, False, False]]

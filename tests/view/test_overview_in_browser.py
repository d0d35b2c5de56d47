"""What the first screen of a run shows, and two series above each other on one time axis."""

from __future__ import annotations

import numpy as np
import pytest
from javascript import Call
from view.stand_in import StandIn, near

NAN = float("nan")


def test_a_small_curve_keeps_spikes_and_gaps(module_js: Call) -> None:
    size = {"width": 10, "height": 100}
    path = lambda x, y: module_js("smallPath", x, y, [0, 100], [0, 10], size)
    assert path([0, 50, 100], [0, 10, 5]) == "M0 100.0L5 0.0L10 50.0"
    assert path([0, 1, 2, 3, 100], [5, 0, 10, 5, 5]) == "M0 100.0L0 0.0L10 50.0"  # of one pixel both extremes
    assert path([0, 1, 2, 3, 100], [5, 10, 0, 5, 5]) == "M0 0.0L0 100.0L10 50.0"
    assert path([0, 50, 80, 100], [5, NAN, 5, 5]) == "M0 50.0M8 50.0L10 50.0"
    assert path([0, 1, 100], [NAN, 5, 5]) == "M0 50.0L10 50.0"  # a pixel with a number is no gap
    assert path([0, 100], [NAN, NAN]) == ""


def test_losses_come_first_and_series_of_one_step_are_left_out(module_js: Call) -> None:
    names = ["entropy", "lossless", "places", "train_loss", "probe/loss", "loss"]
    series = [{"name": name, "steps": 1 + (name != "places"), "dims": []} for name in names]
    found = [one["name"] for one in module_js("cardsOf", {"series": series})]
    assert found == ["train_loss", "probe/loss", "loss", "entropy", "lossless"]
    assert module_js("cardsOf", {"fault": "gone"}) == []


@pytest.mark.parametrize(("layers", "means"), [(24, ["head"]), (25, ["layer", "head"])])
def test_a_card_has_a_curve_per_layer_while_there_are_few(module_js: Call, layers: int, means: list[str]) -> None:
    dims = [{"name": "layer", "size": layers, "labels": None}, {"name": "head", "size": 2, "labels": None}]
    assert module_js("meansOf", dims) == means


@pytest.fixture
def values(host: StandIn) -> np.ndarray:
    alarms = [{"step": step, "measure": "entropy", "says": "low"} for step in (20, 20, 30)]
    run = host.run("a", alarms=[*alarms, {"step": 10, "measure": "norm", "says": "large"}])
    entropy = np.random.default_rng(0).normal(size=(6, 2, 3))
    host.series(run, "entropy", range(0, 60, 10), entropy, {"layer": ["x", "y"], "head": None})
    host.series(run, "places", [0], np.ones((1, 2)), {"head": None})
    host.series(run, "loss", range(10, 90, 20), [4.0, NAN, 2.0, 1.5])
    host.tell()
    return entropy


def test_the_first_screen_of_a_run_is_all_of_its_series(host: StandIn, values: np.ndarray) -> None:
    host.show("")
    assert host.text("nav [aria-current]") == "Overview"
    assert host.texts(".card b") == ["loss", "entropy"]
    assert host.texts(".card .now") == ["1.5", f"{values[-1].mean(1).mean():.4g}".replace("-", "−")]
    assert host.texts(".card .ends")[:2] == ["1.5 to 4", "step 70"]
    assert host.texts(".card .verdict") == ["3 alarms"]
    count = "kind => [...document.querySelectorAll('.card')].map((one) => one.querySelectorAll(kind).length)"
    assert host.page.evaluate(count, "path.course") == [1, 2]
    assert host.page.evaluate(count, "path.alarm") == [0, 2]
    where = """() => [...document.querySelectorAll("path.alarm")]
      .map((one) => Number(one.getAttribute("d").match(/M([^ ]*)/)[1]))"""
    near(host.page.evaluate(where), [280 * 20 / 50, 280 * 30 / 50])
    assert "1 series of one step: see Curves." in host.text(".note")
    host.write(host.runs[0], "loss", [90], [0.25])
    host.tell()
    assert host.texts(".card .now")[0] == "0.25"
    host.page.click(".card[data-series=entropy]")
    host.settled()
    assert host.hash() == [("screen", "curves"), ("run", "a"), ("series", "entropy")]
    host.show("screen=runs")
    host.page.get_by_role("button", name="a", exact=True).click()
    host.settled()
    assert host.hash()[0] == ("screen", "overview")


def test_two_series_stand_above_each_other_on_one_axis(host: StandIn, values: np.ndarray) -> None:
    host.show("screen=curves&run=a&series=entropy")
    assert host.page.locator(".chart").count() == 1
    host.choose("And below", "loss")
    assert ("and", "loss") in host.hash()
    assert host.page.locator(".chart").count() == 2
    header, *rows = host.saved("CSV").splitlines()
    assert header.startswith("step,x")
    last = host.page.locator(".second .savers button", has_text="CSV")
    host.page.evaluate("() => { window.saved = null; }")
    last.click()
    host.settled()
    below = host.page.evaluate("() => window.saved.text()").splitlines()
    assert below == ["step,loss", "10,4", "30,", "50,2", "70,1.5"]
    assert len(rows) == 6
    axes = """() => [...document.querySelectorAll(".chart")]
      .map((one) => one.querySelector(".u-over").getBoundingClientRect())"""
    first, second = host.page.evaluate(f"() => ({axes})().map((one) => [one.left, one.width])")
    assert first == second  # the same place across
    svg = "kind => [...document.querySelectorAll('.savers button')].filter((one) => one.textContent === kind).length"
    assert host.page.evaluate(svg, "SVG") == 2
    over = host.page.locator(".chart .u-over").first
    over.hover(position={"x": second[1] * 50 / 70, "y": 20})  # of steps 0 to 70
    over.hover(position={"x": second[1] * 50 / 70, "y": 22})
    host.settled()
    assert [words.split(" · ")[0] for words in host.texts(".reading")] == ["step 50", "step 50"]
    host.show("screen=curves&run=a&series=entropy&and=loss&x=head")  # along heads there is no time
    assert host.page.locator(".chart").count() == 1
    host.show("screen=curves&run=a&series=loss&and=loss")
    assert host.page.locator(".chart").count() == 1

"""The curves that cards draw: kept copies agree with their records and with the numbers that the cards tell."""

from __future__ import annotations

import json
import re
from math import erf
from pathlib import Path

import numpy as np
import pytest

from joma.report.claims import panels
from joma.report.claims.headlines import HEADLINES, SHOWN_FOR_THEOREMS
from joma.report.claims.kept import kept
from joma.report.claims.panel_readers import READERS, panel_of
from joma.report.claims.panels import Line, Panel, kept_panels, line_of, panel_html, panels_html
from joma.runs import Run

RECORDS = Path(__file__).parents[2] / "results"
COPIED = [claim for claim in READERS if claim != SHOWN_FOR_THEOREMS]


def named(claim: str, label: str) -> Line:
    return next(line for line in kept_panels()[claim].lines if line.label == label)


@pytest.mark.parametrize("claim", COPIED)
def test_a_kept_panel_is_what_its_record_gives(claim: str) -> None:
    """Else `python results/keep.py` was not given after a record changed."""
    study = claim.partition("/")[0]
    with Run.open(RECORDS / study / f"{study}.sqlite") as run:
        assert panel_of(claim, run) == kept_panels()[claim]


def test_a_panel_is_written_as_it_is_read() -> None:
    line = {"label": "one", "colour": "#026ed0", "dashes": "dotted", "x": [0.0, 1.0], "y": [2.0, 3.0]}
    written = {
        "y": "entropy",
        "x": "step",
        "about": "5 seeds",
        "lines": [line | {"low": [1.0, 2.0], "high": [3.0, 4.0]}],
    }
    written |= {"log_x": True, "log_y": False}
    assert Panel.from_json(written).as_json() == written


def test_every_headline_has_its_panel() -> None:
    assert set(kept_panels()) == {*(headline.claim for headline in HEADLINES[1:]), SHOWN_FOR_THEOREMS}


def test_kept_curves_show_what_the_sentences_tell() -> None:
    """The numbers of kept.json, read off the ends and valleys of the curves."""
    fell = named("fig6/fig6-one-layer", "one layer").y
    assert fell[-1] - min(fell) == pytest.approx(kept()["fig6/fig6-one-layer"]["effect"], abs=0.01)
    assert fell[0] > fell[-1] > min(fell)
    held = {line.label: line.y[-1] - min(line.y) for line in kept_panels()["dilution/logits-shrink"].lines}
    assert held["one layer"] > 0.2 > abs(held["logits held"])
    latents = kept()["table1/lowest-latents-align"]
    best = named("table1/lowest-latents-align", "best neuron of each latent").y
    assert (best[-1], best[0]) == pytest.approx((latents["effect"], latents["control_effect"]), abs=1e-3)
    linear = named("nonlinearity/linear-mlp-stays-sparse", "linear MLP").y
    assert linear[-1] - min(linear) == pytest.approx(
        -kept()["nonlinearity/linear-mlp-stays-sparse"]["effect"], abs=0.05
    )
    ends = [line.y[-1] for line in kept_panels()["galore-table/full-rank-is-best"].lines]
    assert ends[0] < ends[1]


def test_the_panel_of_the_theorems_tells_the_largest_difference_between_six_tokens(tmp_path: Path) -> None:
    """By a loop: of the seven tokens the one with the smallest delta is left out, the others are compared with the
    one whose delta is largest."""
    draw = np.random.default_rng(5)
    share, v = np.array([0.0, 0.5, 0.75, 1.0]), draw.uniform(0.2, 1.5, (2, 4, 7))
    delta = np.array([[0.3, -0.9, 0.1, 0.5, -0.6, 0.4, 0.7], [1.0] * 7])
    with Run.create(tmp_path / "a.sqlite", study="thm2", config={}) as run:
        for name, value in {"share": share, "zero/v": v, "delta": delta}.items():
            run.keep(name, lambda value=value: value)
        panel = panel_of(SHOWN_FOR_THEOREMS, run)
    assert panel is not None
    for line, scale in zip(panel.lines, (2.0, 2.0**0.5), strict=True):
        largest = []
        for at in (1, 2, 3):
            value = [erf(v[0, at, token] / scale) / delta[0, token] for token in range(7)]
            largest.append(max(abs(value[token] / value[1] - 1) for token in (0, 3, 4, 5, 6)))
        assert line.x == (0.5, 0.75, 1.0)
        assert line.y == pytest.approx(largest, rel=1e-3)  # kept to four digits


def test_a_claim_without_a_reader_has_no_panel(tmp_path: Path) -> None:
    with Run.create(tmp_path / "a.sqlite", study="near", config={}) as run:
        assert panel_of("near/eq6", run) is None


def test_a_drawn_curve_stands_where_its_numbers_say() -> None:
    line = line_of("a <line>", "#026ed0", [0, 10, 20, 40], [[2.0, 1.0, 1.0, 2.0], [4.0, 1.0, 1.0, 2.0]])
    html = panel_html(Panel("y & z", "x", "2 seeds", (line, line)), "Paper scale")
    (left, first), (_, valley), *_ = way(html)
    assert left == 58.0  # the left end of the axis
    assert first < valley == 180.0  # the mean, 3, above 1, the lowest value: the axis
    assert (line.low, line.high) == ((2.0, 1.0, 1.0, 2.0), (4.0, 1.0, 1.0, 2.0))
    assert "a &lt;line&gt;" in html
    assert "Paper scale: 2 seeds." in html
    assert ">y &amp; z</text>" in html


def way(html: str) -> list[tuple[float, float]]:
    path = html.partition('class="curve" d="')[2].partition('"')[0]
    numbers = [float(one) for one in re.findall(r"-?(?:\d+\.?\d*|\.\d+)", path)]
    places = np.array(numbers).reshape(-1, 2).cumsum(0)
    return [(float(x), float(y)) for x, y in places]


@pytest.mark.parametrize(("log_x", "log_y"), [(True, False), (False, True), (True, True), (False, False)])
def test_each_axis_is_logarithmic_where_it_says_so(log_x: bool, log_y: bool) -> None:
    line = Line("a", "#026ed0", (1.0, 10.0, 10_000.0), (1.0, 1000.0, 10_000.0))
    html = panel_html(Panel("y", "x", "one run", (line,), log_x=log_x, log_y=log_y), "This run")
    left, middle, right = way(html)
    shares = (middle[0] - left[0]) / (right[0] - left[0]), (middle[1] - left[1]) / (right[1] - left[1])
    assert shares == pytest.approx((0.25 if log_x else 9 / 9999, 0.75 if log_y else 999 / 9999), abs=0.002)
    assert right[1] < left[1]  # up is more


def test_thinning_keeps_the_ends_and_the_extremes() -> None:
    steps = np.arange(5000.0)
    values = np.sin(steps / 900)
    values[1234], values[4321] = -3.0, 5.0
    line = line_of("a", "#026ed0", steps, values)
    assert len(line.y) < 70
    assert (min(line.y), max(line.y)) == (-3.0, 5.0)
    assert (line.x[0], line.x[-1]) == (0.0, 4999.0)


def test_words_stand_beside_their_ticks_and_below_the_middle_of_the_axis() -> None:
    line = Line("a", "#026ed0", (0.0, 10.0), (0.0, 10.0))
    html = panel_html(Panel("height", "width", "one run", (line,)), "This run")
    words = {(anchor, said): (float(x), float(y)) for x, y, anchor, said in re.findall(
        r'<text x="([\d.]+)" y="([\d.]+)" style="text-anchor:(\w+)">([^<]*)<', html)}  # fmt: skip
    expected = {("middle", "width"): (223.0, 221.0)}  # the middle of 58 and 388
    for at in range(6):  # 0, 2, ... 10, on axes from 58 to 388 and from 180 up to 28
        expected["middle", str(2 * at)] = (58 + 66.0 * at, 198.0)
        expected["end", str(2 * at)] = (50.0, pytest.approx(180 - 30.4 * at + 5, abs=0.06))
    assert words == expected


def test_ticks_are_round_numbers_that_say_where_they_stand() -> None:
    for low, high, names in (
        (0, 10, "0 2 4 6 8 10"),
        (0.13, 0.58, "0.2 0.3 0.4 0.5"),
        (-0.3, 0.5, "−0.2 0.0 0.2 0.4"),
        (-3, 4, "−2 0 2 4"),
        (0, 9999, "0 2,000 4,000 6,000 8,000"),
        (1000, 12_000, "2.5k 5k 7.5k 10k"),
        (5, 5, "5"),
        (0, 0, "0.0"),
    ):
        ticks = panels._steps(low, high)
        assert " ".join(name for _, name in ticks) == names
        value = [float(name.replace("−", "-").replace(",", "").replace("k", "e3")) for _, name in ticks]
        assert value == pytest.approx([tick for tick, _ in ticks], abs=1e-12)


def test_ticks_of_a_logarithmic_axis_are_some_of_its_powers_or_doublings() -> None:
    for low, high, ticks in (
        (1, 1e5, {1e5: "10⁵", 1e3: "10³", 1e1: "10¹"}),
        (1, 1e3, {1e3: "10³", 1e2: "10²", 1e1: "10¹", 1: "1"}),
        (1e-4, 30, {1e1: "10¹", 1e-1: "10⁻¹", 1e-3: "10⁻³"}),
        (50, 9e6, {1e6: "10⁶", 1e5: "10⁵", 1e4: "10⁴", 1e3: "10³", 1e2: "10²"}),
        (2, 100, {2: "2", 8: "8", 32: "32"}),
        (1, 100, {1: "1", 4: "4", 16: "16", 64: "64"}),
        (600, 4800, {600: "600", 1200: "1,200", 2400: "2,400", 4800: "4,800"}),
        (0.3, 2.4, {0.3: "0.3", 0.6: "0.6", 1.2: "1.2", 2.4: "2.4"}),
        (0.003, 0.02, {0.003: "0.003", 0.006: "0.006", 0.012: "0.012"}),
        (3, 3, {3: "3"}),
    ):
        found = panels._powers(low, high)
        assert [at for at, _ in found] == pytest.approx(list(ticks))
        assert [name for _, name in found] == list(ticks.values())


def test_a_panel_all_in_all() -> None:
    """By hand: 0.25 to 2.5 on 180 to 28, so that 1 stands at 180 - 152 / 3; three decades on 58 to 388."""
    relu = Line("ReLU", "#123456", (1.0, 10.0, 1000.0), (0.5, 2.0, 1.0), (0.25, 1.5, 1.0), (1.0, 2.5, 1.25))
    control = Line("control", "#654321", (1.0, 100.0), (1.0, 1.5), dashes="dashed")
    html = panel_html(Panel("nats <x>", "step", "2 seeds", (relu, control), log_x=True), "This run")
    assert html == (
        '<div class="panel">'
        '<svg role="img" aria-label="nats &lt;x&gt; by step. ReLU rises from 0.5 to 2 at step 10, then falls'
        ' to 1. Control rises from 1 to 1.5." viewBox="0 0 400 226" font-size="15.5">'
        '<path d="M58 28V180H388" style="fill:none;stroke:currentColor;stroke-width:1"/>'
        '<path d="M388.0 180v4" style="stroke:currentColor"/>'
        '<text x="386.1" y="198.0" style="text-anchor:middle">10³</text>'
        '<path d="M278.0 180v4" style="stroke:currentColor"/>'
        '<text x="278.0" y="198.0" style="text-anchor:middle">10²</text>'
        '<path d="M168.0 180v4" style="stroke:currentColor"/>'
        '<text x="168.0" y="198.0" style="text-anchor:middle">10¹</text>'
        '<path d="M58.0 180v4" style="stroke:currentColor"/><text x="58.0" y="198.0" style="text-anchor:middle">1'
        '</text><path d="M58 163.1h-4" style="stroke:currentColor"/>'
        '<text x="50.0" y="168.1" style="text-anchor:end">0.5</text>'
        '<path d="M58 129.3h-4" style="stroke:currentColor"/><text x="50.0" y="134.3" style="text-anchor:end">1.0'
        '</text><path d="M58 95.6h-4" style="stroke:currentColor"/>'
        '<text x="50.0" y="100.6" style="text-anchor:end">1.5</text>'
        '<path d="M58 61.8h-4" style="stroke:currentColor"/><text x="50.0" y="66.8" style="text-anchor:end">2.0'
        '</text><path d="M58 28.0h-4" style="stroke:currentColor"/>'
        '<text x="50.0" y="33.0" style="text-anchor:end">2.5</text>'
        '<path d="M58 129.3l110-101.3 220 84.4 0 16.9-220-33.7-110 84.4z"'
        ' style="fill:#123456;fill-opacity:0.2;stroke:none"/>'
        '<path class="curve" d="M58 163.1l110-101.3 220 67.5" style="fill:none;stroke:#123456;stroke-width:2.4"/>'
        '<path class="curve" d="M58 129.3l220-33.7"'
        ' style="fill:none;stroke:#654321;stroke-width:2.4;stroke-dasharray:7 4"/>'
        '<text x="2" y="14">nats &lt;x&gt;</text><text x="223.0" y="221.0" style="text-anchor:middle">step</text>'
        '</svg><p class="keys"><span class="key"><i style="border-top-style:solid;color:#123456"></i>ReLU</span> '
        '<span class="key"><i style="border-top-style:dashed;color:#654321"></i>control</span> </p>'
        '<p class="of">This run: 2 seeds.</p></div>'
    )


def test_of_networks_that_all_diverged_there_is_no_curve() -> None:
    with pytest.raises(ValueError, match="no curve of 'ReLU' is finite"):
        line_of("ReLU", "#026ed0", [0, 1], [[1.0, np.nan], [np.inf, 1.0]])


def test_panels_side_by_side_carry_their_numbers_and_no_markup() -> None:
    line = line_of("</script><b>", "#010203", [0, 10, 20], [[2.0, 1.0, 1.5], [2.5, 1.0, 1.5]])
    panel = Panel("a title that is too long for one line of a narrow panel", "step", "2 seeds", (line,))
    alone, both = panels_html({"This run": panel}), panels_html({"Paper scale": panel, "This run": panel})
    assert 'viewBox="0 0 400 ' in alone
    assert both.count('viewBox="0 0 290 ') == 2
    assert both.count("</script>") == 1
    for text in re.findall(r'<text x="2" y="\d+">([^<]*)</text>', both):
        assert len(text) * 8.7 <= 290
    numbers = json.loads(both.partition('class="numbers">')[2].partition("</script>")[0])
    assert [one["scale"] for one in numbers] == ["Paper scale", "This run"]
    (shown,) = numbers[0]["lines"]
    assert shown["colour"] == "ink"  # that of the text around it, in light and in dark
    assert [shown[name] for name in ("x", "y", "low", "high")] == [
        [0, 10, 20], [2.25, 1, 1.5], [2, 1, 1.5], [2.5, 1, 1.5]
    ]  # fmt: skip

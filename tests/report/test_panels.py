"""The curves that cards draw: kept copies agree with their records and with the numbers that the cards tell."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from joma.claims.execute import execute
from joma.report.claims.kept import kept
from joma.report.claims.panel_readers import READERS, panel_of
from joma.report.claims.panels import Line, Panel, kept_panels, line_of, panel_html
from joma.report.claims.questions import QUESTIONS, SHOWN_FOR_THEOREMS
from joma.runs import Run
from joma.studies import load

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


def test_every_question_has_its_panel() -> None:
    assert set(kept_panels()) == {*(question.claim for question in QUESTIONS), SHOWN_FOR_THEOREMS}


def test_kept_curves_show_what_the_sentences_tell() -> None:
    """The numbers of kept.json, read off the ends and valleys of the curves."""
    fell = named("fig6/fig6-one-layer", "one layer").y
    assert fell[-1] - min(fell) == pytest.approx(kept()["fig6/fig6-one-layer"]["effect"], abs=0.01)
    assert fell[0] > fell[-1] > min(fell)
    own = kept()["rebound-cause/own-qk-higher-layers"]
    assert named("rebound-cause/own-qk-higher-layers", "own queries and keys").y[-1] == pytest.approx(
        own["effect"], abs=1e-3
    )
    below = named("rebound-cause/own-qk-higher-layers", "all weights below it").y[-1]
    assert below == pytest.approx(own["control_effect"], abs=1e-3)
    latents = kept()["table1/lowest-latents-align"]
    best = named("table1/lowest-latents-align", "best neuron of each latent").y
    assert (best[-1], best[0]) == pytest.approx((latents["effect"], latents["control_effect"]), abs=1e-3)
    needs = kept()["nonlinearity/rebound-needs-nonlinearity"]
    for label, told in (("ReLU", needs["effect"]), ("linear MLP", needs["control_effect"])):
        curve = named("nonlinearity/rebound-needs-nonlinearity", label).y
        assert curve[-1] - min(curve) == pytest.approx(told, abs=0.05)
    skills = {line.label: np.mean(line.y) for line in kept_panels()["forecast/theorem-1-foretells"].lines}
    assert skills["earlier runs (other seeds)"] > 50 > 5 > skills["Theorem 1, as printed"]


def test_the_panel_of_the_theorems_from_a_fresh_run(tmp_path: Path) -> None:
    """Its record is not kept: the quick run has other sizes and the same printed and corrected forms."""
    study = load("thm2")
    result = execute(study, study.quick, tmp_path, pictures=False)
    assert result.run is not None
    with Run.open(result.run) as run:
        fresh = panel_of(SHOWN_FOR_THEOREMS, run)
    assert fresh is not None
    for panel in (fresh, kept_panels()[SHOWN_FOR_THEOREMS]):
        printed, corrected = panel.lines
        assert max(printed.y) > 0.1
        assert max(corrected.y) < 1e-10


def test_a_claim_without_a_reader_has_no_panel(tmp_path: Path) -> None:
    with Run.create(tmp_path / "a.sqlite", study="near", config={}) as run:
        assert panel_of("near/eq6", run) is None


def test_a_drawn_curve_stands_where_its_numbers_say() -> None:
    line = line_of("a <line>", "#026ed0", [0, 10, 20, 40], [[2.0, 1.0, 1.0, 2.0], [4.0, 1.0, 1.0, 2.0]])
    html = panel_html(Panel("y & z", "x", "2 seeds", (line, line)), "Paper scale")
    start, *moves = re.findall(r"-?[\d.]+", html.partition('class="curve" d="')[2].partition('"')[0])
    points = [float(number) for number in (start, *moves)]
    assert points[0] == 58.0  # the left end of the axis
    heights = {"first": points[1], "valley": points[1] + points[3]}
    assert heights["first"] < heights["valley"] == 180.0  # the mean, 3, above 1, the lowest value: the axis
    assert (line.low, line.high) == ((2.0, 1.0, 1.0, 2.0), (4.0, 1.0, 1.0, 2.0))
    assert "a &lt;line&gt;" in html
    assert "Paper scale: 2 seeds." in html
    assert ">y &amp; z</text>" in html


def way(html: str) -> list[tuple[float, float]]:
    """Where the first curve goes: M, then l, h and v, each relative."""
    here, found = (0.0, 0.0), []
    for name, numbers in re.findall(r"([Mlhv])([^Mlhv]*)", html.partition('class="curve" d="')[2].partition('"')[0]):
        values = [float(one) for one in re.findall(r"-?(?:\d+\.?\d*|\.\d+)", numbers)]
        steps = zip(values[::2], values[1::2], strict=True) if name in "Ml" else ((one, one) for one in values)
        for x, y in steps:
            here = (here[0] + x * (name != "v"), here[1] + y * (name != "h")) if name != "M" else (x, y)
            found.append(here)
    return found


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

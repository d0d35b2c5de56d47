"""Figures of kept runs can be read: nothing leaves a panel unmarked; colours, markers, legends mean one thing."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex

from joma.cache.costs import Cost, Costs
from joma.cache.drawing import draw as draw_costs
from joma.cache.rules import POLICIES, rule
from joma.figures.beyond import MARK, mark_beyond
from joma.figures.labels import label_lines
from joma.figures.style import BLUE, CONTROL, GREEN, ORANGE, PURPLE, RED, depth_colours, house_style, panels
from joma.runs import Run
from joma.studies import load

RECORDS = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder, known = tmp_path_factory.mktemp("records"), {}

    def draw(study):
        if study not in known:
            copy = shutil.copy(RECORDS / study / f"{study}.sqlite", folder)
            with Run.open(Path(copy)) as run, house_style():
                known[study] = {drawing.name: drawing for drawing in load(study).draw(run)}
        return known[study]

    return draw


def lines_of(axis):
    return {line.get_label(): line for line in axis.get_lines() if not line.get_label().startswith("_")}


def unmarked(axis):
    """Points of lines and bands outside the panel's height that no arrow at the edge marks."""
    low, high = sorted(axis.get_ylim())
    marked = {(round(float(x), 6)) for line in axis.get_lines() if line.get_gid() == MARK for x in line.get_xdata()}
    points = [line.get_xydata() for line in axis.get_lines() if line.get_transform() == axis.transData]
    points += [path.vertices for group in axis.collections for path in group.get_paths()]
    return [
        (x, y)
        for x, y in np.concatenate(points)
        if np.isfinite(y) and not low <= y <= high and round(float(x), 6) not in marked
    ]


@pytest.mark.parametrize(
    ("study", "name"),
    [
        pytest.param("depth-width", "loss-against-depth", marks=pytest.mark.long),
        pytest.param("depth-width", "loss-over-steps", marks=pytest.mark.long),
        ("forecast", "forecast-skill"),
        ("forecast", "forecast-paths"),
        ("kv-cache", "cost-by-share"),
    ],
)
def test_nothing_leaves_a_panel_unmarked(drawn, study, name):
    for axis in drawn(study)[name].figure.axes:
        assert not unmarked(axis), axis.get_title("left")


def test_the_forecasts_of_a_figure_share_one_axis_and_none_is_cut_from_below(drawn):
    drawing = drawn("forecast")["forecast-skill"]
    assert len({axis.get_ylim() for axis in drawing.figure.axes}) == 1
    lowest = min(float(np.min(line.get_ydata())) for axis in drawing.figure.axes for line in axis.get_lines())
    assert lowest < -10  # drawn where it is
    assert "bottom edge" not in drawing.caption


def all_costs():
    """What `joma cache` would draw of every policy, named in an order of its own."""
    names = [name for name in reversed(POLICIES) if name != "full"]
    each = {name: [Cost(rule(name, k, 64), k / 64, 3.2, 0.8 / k, 0.01, 3.2) for k in (4, 8)] for name in names}
    return Costs(64, 2, 3.0, 3.1, each)


def test_policies_look_the_same_in_the_study_and_in_the_command(drawn):
    with house_style():
        command = draw_costs(all_costs()).axes[0]
    axes = drawn("kv-cache")["cost-by-share"].figure.axes
    for axis in axes:
        theirs, ours = lines_of(command), lines_of(axis)
        assert list(theirs) == list(ours) == [name for name in POLICIES if name != "full"]
        for name, line in ours.items():
            assert to_hex(theirs[name].get_color()) == to_hex(line.get_color()), name
            assert theirs[name].get_linestyle() == line.get_linestyle(), name
        assert axis.xaxis_inverted()
        assert command.xaxis_inverted()


def test_no_two_policies_look_alike():
    with house_style():
        lines = lines_of(draw_costs(all_costs()).axes[0]).values()
    assert len({(to_hex(line.get_color()), line.get_linestyle()) for line in lines}) == len(lines)


def test_a_policy_keeps_the_colour_that_it_has_in_the_pictures_of_the_docs():
    """Those are drawn once, and read beside a figure that `joma cache` draws today."""
    with house_style():
        lines = lines_of(draw_costs(all_costs()).axes[0])
    assert {name: to_hex(line.get_color()) for name, line in lines.items()} == {
        "window": to_hex(RED),
        "sinks": to_hex(ORANGE),
        "h2o": to_hex(BLUE),
        "h2o-oracle": to_hex(BLUE),
        "snapkv": to_hex(GREEN),
        "random": to_hex(CONTROL),
        "top-k": to_hex(PURPLE),
    }


def test_the_networks_of_the_cache_study_share_one_scale_and_the_other_says_that_it_has_its_own(drawn):
    *steps, stories = drawn("kv-cache")["cost-by-share"].figure.axes
    assert len({axis.get_ylim() for axis in steps}) == 1
    assert stories.get_ylim() != steps[0].get_ylim()
    assert "own scale" in stories.get_title("left")


def rate_of(label):
    return float(label.removeprefix("rate "))


def test_rates_are_in_order_in_figure_8_and_look_like_no_layer(drawn):
    drawing = drawn("fig8")["learning-rate-sweep"]
    last = drawing.figure.axes[-1]
    legend = last.get_legend()
    rates = [rate_of(text.get_text()) for text in legend.get_texts()]
    assert rates == sorted(rates, reverse=True)
    assert len(rates) == 7
    layers = {to_hex(line.get_color()) for axis in drawing.figure.axes[:-1] for line in axis.get_lines()}
    assert layers == set(depth_colours(5))
    squares = [squares for squares in last.collections if squares.get_label().startswith("rate")]
    assert len(squares) == 7
    assert not layers & {to_hex(rate.get_edgecolor()[0]) for rate in squares}
    assert 0 < sum(len(rate.get_facecolor()) == 0 for rate in squares) < 7  # hollow ones have no colour inside
    assert "hollow" in legend.get_title().get_text()
    assert "hollow" in drawing.caption


def test_every_rate_of_depth_and_width_has_a_colour_of_its_own_and_stands_in_order(drawn):
    drawing = drawn("depth-width")["loss-against-depth"]
    for axis in drawing.figure.axes[:-1]:
        lines = {label: line for label, line in lines_of(axis).items() if label.startswith(("rate", "best"))}
        assert len({to_hex(line.get_color()) for line in lines.values()}) == len(lines)
        labels = [text.get_text() for text in axis.get_legend().get_texts() if text.get_text().startswith("rate")]
        rates = [rate_of(label) for label in labels]
        assert rates == sorted(rates)


def test_arrows_say_the_values_that_lie_beyond(drawn):
    drawing = drawn("depth-width")["loss-against-depth"]
    written = []
    for axis in drawing.figure.axes[:-1]:
        beyond = [y for line in lines_of(axis).values() for y in line.get_ydata() if y > axis.get_ylim()[1]]
        assert [text.get_text() for text in axis.texts] == [f"{y:.3g}" for y in beyond]
        written += beyond
    assert written  # a rate that is too high for trees
    assert "arrow" in drawing.caption


def test_numbers_beside_arrows_stand_inside_the_panel_one_below_the_other():
    with house_style():
        figure, (axis,) = panels()
        for top, low in ((7.0, -3.0), (8.0, -4.0)):
            axis.plot([0, 1, 2], [top, 0.5, low])
        axis.set_ylim(0, 1)
        axis.set_xlim(-1, 3)
        mark_beyond(axis)
        figure.canvas.draw()
    panel, places = axis.get_window_extent(), {text.get_text(): text.get_window_extent() for text in axis.texts}
    assert set(places) == {"7", "8", "−3", "−4"}
    middle = {name: (box.y0 + box.y1) / 2 for name, box in places.items()}
    assert panel.y1 > middle["7"] > middle["8"] > panel.y0 + panel.height / 2
    assert panel.y0 < middle["−3"] < middle["−4"] < panel.y0 + panel.height / 2
    ends = [line.get_ydata().item() for line in axis.get_lines() if line.get_gid() == MARK]
    assert sorted(ends) == [0, 0, 1, 1]


def test_hollow_circles_are_named(drawn):
    drawing = drawn("galore-lowrank")["energy-and-subspace"]
    hollow = [line for axis in drawing.figure.axes for line in axis.get_lines() if line.get_markerfacecolor() == "none"]
    assert hollow
    assert {line.get_label() for line in hollow} == {"longer\nbefore"}
    assert "hollow" in drawing.caption


def test_the_test_of_unmarked_points_can_fail():
    with house_style():
        _, (axis,) = panels()
        axis.plot([0, 1], [0.5, 3.0], label="up")
        axis.fill_between([0, 1], [0.0, 0.0], [1.0, 1.0])
        axis.set_ylim(0, 2)
        label_lines(axis)
    assert unmarked(axis) == [(1.0, 3.0)]


@pytest.mark.parametrize(
    ("study", "name"), [("reversal-decoder", "reversal-cures"), ("chain-of-thought-decoder", "chain-ways")]
)
def test_no_interval_of_a_share_is_drawn_below_0_or_above_1(drawn, study, name):
    drawing = drawn(study)[name]
    for axis in drawing.figure.axes:
        ends = np.concatenate([path.vertices[:, 0] for group in axis.collections for path in group.get_paths()])
        assert ends.min() >= 0
        assert ends.max() <= 1
    assert "cut at 0 and 100 %" in drawing.caption

"""Labels at the ends of lines: they never overlap, lie inside the figure and belong to their line."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.legend import Legend

from joma.claims.contract import Drawing
from joma.figures._end_labels import EndLabels, spread
from joma.figures.labels import end_label, label_lines
from joma.figures.style import INK, RED, house_style, panels


def labelled(ends, *, yscale="linear", columns=2, rows=1, **how):
    with house_style():
        figure, axes = panels(columns, rows)
        for axis in axes:
            for i, end in enumerate(ends):
                axis.plot([0, 1, 2], [1.0, 1.0, end], label=f"line {i}")
            axis.set(xlabel="step", ylabel="value", title="Title", yscale=yscale)
            labels = label_lines(axis, **how)
        figure.draw_without_rendering()
    return figure, labels


def boxes(labels):
    return [text.get_window_extent() for text in labels.texts]


def overlap(one, other):
    return min(one.x1, other.x1) > max(one.x0, other.x0) and min(one.y1, other.y1) > max(one.y0, other.y0)


def none_overlap(labels):
    found = boxes(labels)
    return not any(overlap(one, other) for i, one in enumerate(found) for other in found[:i])


@pytest.mark.parametrize("yscale", ["linear", "log"])
@pytest.mark.parametrize("count", [1, 9, *(pytest.param(count, marks=pytest.mark.long) for count in (2, 5))])
def test_labels_never_overlap_and_stay_inside_the_figure(count, yscale):
    ends = 10.0 ** np.random.default_rng(count).uniform(-2, 2, count)
    figure, labels = labelled(ends, yscale=yscale)
    assert isinstance(labels, EndLabels)
    assert none_overlap(labels)
    for box in boxes(labels):
        assert box.x0 > labels.axes.bbox.x1
        assert box.x1 <= figure.bbox.x1 + 1
        assert figure.bbox.y0 <= box.y0
        assert box.y1 <= figure.bbox.y1


def test_the_test_of_overlaps_can_fail():
    _, labels = labelled([1.0, 1.0])
    labels.texts[0].set_position(labels.texts[1].get_position())
    assert not none_overlap(labels)


def test_labels_come_in_the_order_of_the_ends():
    _, labels = labelled([3.0, 1.0, 2.0, 1.001])
    height = [box.y0 for box in boxes(labels)]
    assert np.argsort(height).tolist() == [1, 3, 2, 0]


def test_a_label_with_room_stands_at_the_end_of_its_line():
    _, labels = labelled([1.0, 5.0])
    for line, text in zip(labels.lines, labels.texts, strict=True):
        end = labels.axes.transData.transform(line.get_xydata()[-1])[1]
        assert text.get_position()[1] == pytest.approx(end, abs=6)


def test_on_an_axis_that_runs_backwards_the_end_is_the_right_one():
    with house_style():
        figure, (axis,) = panels()
        axis.plot([1, 0.1, 0.01], [1, 2, 3], label="up")
        axis.plot([1, 0.1, 0.01], [3, 2, 1], label="down")
        axis.set(xscale="log", xlim=(1, 0.01))
        labels = label_lines(axis)
        figure.draw_without_rendering()
    up, down = (text.get_position()[1] for text in labels.texts)
    assert up > down


def test_more_lines_than_fit_get_a_legend_inside_the_figure():
    figure, legend = labelled(np.linspace(1, 2, 24))
    assert isinstance(legend, Legend)
    box = legend.get_window_extent()
    assert figure.bbox.x0 <= box.x0
    assert box.x1 <= figure.bbox.x1 + 1
    assert figure.bbox.y0 <= box.y0
    assert box.y1 <= figure.bbox.y1


def test_text_has_the_colour_of_the_page_and_its_leader_that_of_the_line():
    with house_style():
        _, (axis,) = panels()
        axis.plot([0, 1], [0, 1], "--", color=RED, label="a line")
        labels = label_lines(axis)
    assert labels.texts[0].get_color() == INK
    assert labels.leaders[0].get_color() == RED
    assert labels.leaders[0].get_linestyle() == "--"


def test_a_leader_is_as_thick_as_its_line_and_never_too_thin_to_be_seen():
    with house_style():
        _, (axis,) = panels()
        for width in (0.4, 3.0):
            axis.plot([0, 1], [0, width], lw=width, label=f"{width}")
        labels = label_lines(axis)
    assert [leader.get_linewidth() for leader in labels.leaders] == [1.2, 3.0]


def test_lines_without_numbers_and_notes_are_labelled_at_the_bottom():
    with house_style():
        figure, (axis,) = panels()
        axis.plot([0, 1], [0, 1], label="up")
        axis.plot([0, 1], [np.nan, np.nan], label="lost")
        end_label(axis, "dashed: control", ls="--")
        labels = label_lines(axis, note="ten seeds")
        figure.draw_without_rendering()
    height = {text.get_text(): text.get_position()[1] for text in labels.texts}
    assert sorted(height, key=lambda each: -height[each]) == ["up", "lost", "dashed: control", "ten seeds"]
    assert none_overlap(labels)


def test_without_labels_nothing_is_written():
    with house_style():
        _, (axis,) = panels()
        axis.plot([0, 1], [0, 1])
        assert label_lines(axis) is None


@given(st.lists(st.tuples(st.floats(-5, 15), st.floats(0.1, 3)), min_size=1, max_size=8))
def test_spread_boxes_do_not_overlap_and_stay_inside_where_they_can(pairs):
    wanted, sizes = zip(*pairs, strict=True)
    centres = spread(wanted, sizes, 0.0, 10.0)
    placed = sorted((centre - size / 2, centre + size / 2) for centre, size in zip(centres, sizes, strict=True))
    assert all(below[1] <= above[0] + 1e-9 for below, above in itertools.pairwise(placed))
    if sum(sizes) <= 10:
        assert placed[0][0] >= -1e-9
        assert placed[-1][1] <= 10 + 1e-9


def test_boxes_that_have_room_are_not_moved():
    assert spread([2.0, 8.0, 5.0], [1.0, 1.0, 1.0], 0.0, 10.0) == [2.0, 8.0, 5.0]


def test_boxes_that_collide_stand_where_they_want_to_be_on_average():
    """By hand: boxes of 1 and 3 that both want 5 would begin at 4.5 and, above the first, at 2.5: 3.5 on average."""
    assert spread([5.0, 5.0], [1.0, 3.0], 0.0, 20.0) == [4.0, 6.0]
    # They begin at 4.5, 6.3 - 1.5 - 1 = 3.8 and 7.6 - 1 - 4 = 2.6 if each alone chose; (4.5 + 3.8 + 2.6) / 3 = 3.6333
    assert spread([7.6, 5.0, 6.3], [2.0, 1.0, 3.0], 0.0, 20.0) == pytest.approx([8.6333, 4.1333, 6.1333], abs=1e-4)
    assert spread([19.0, 18.5, 2.0], [1.0, 3.0, 1.0], 0.0, 20.0) == [19.5, 17.5, 2.0]
    assert spread([0.1, 0.2, 9.0], [1.0, 3.0, 1.0], 0.0, 20.0) == [0.5, 2.5, 9.0]


def drawn(name_first=lambda figure, first: None, **how):
    with house_style():
        figure, axes = panels(2)
        for axis in axes:
            axis.plot([0, 1], [3, 2], label="trained")
        name_first(figure, axes[0])
        twice = Drawing("entropy", "", Drawing("entropy", "", figure, **how).figure, **how)
    found = [[artist for artist in axis.artists if isinstance(artist, EndLabels)] for axis in twice.figure.axes]
    return [[text.get_text() for labels in of for text in labels.texts] for of in found]


def test_a_study_s_figure_names_its_lines_once_in_every_panel():
    assert drawn() == [["trained"], ["trained"]]


@pytest.mark.parametrize("named", [lambda _, first: first.legend(), lambda figure, _: figure.legend(["trained"])])
def test_a_study_s_figure_with_a_legend_gets_no_labels(named):
    assert drawn(named) == [[], []]


def test_where_a_study_names_some_lines_itself_it_names_all():
    assert drawn(lambda _, first: label_lines(first)) == [["trained"], []]


def test_a_study_may_want_no_labels():
    assert drawn(labels=False) == [[], []]

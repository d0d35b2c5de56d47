"""The alternative text of a figure says what is drawn, with the numbers that were drawn."""

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from joma.figures.describe import FEW, MOST, describe
from joma.figures.labels import end_label, label_lines
from joma.figures.style import BLUE, RED, house_style, panels


@pytest.fixture
def axis():
    with house_style():
        _, (axis,) = panels()
        axis.set(title="Layer 1", xlabel="training step", ylabel="entropy (nats)")
        yield axis


def seen(axis):
    return describe(axis.figure)


def test_lines_are_named_and_followed(axis):
    axis.plot([0, 100, 200], [3.0, 1.0, 2.0], label="trained")
    axis.plot([0, 100, 200], [3.0, 3.0, 3.0], label="untrained")
    label_lines(axis)
    assert seen(axis) == (
        "One panel. Layer 1, entropy (nats) by training step: “trained” falls from 3 to 1 nats at step 100, then rises "
        "to 2 nats; “untrained” stays at 3 nats."
    )


def test_a_line_without_a_label_is_named_by_the_legend_of_its_colour(axis):
    from matplotlib.lines import Line2D

    axis.plot([0, 1], [1.0, 2.0], color=BLUE)
    axis.plot([0, 1], [5.0, 4.0], color=RED)
    handles = [Line2D([], [], color=BLUE, label="text"), Line2D([], [], color=RED, label="noise")]
    axis.figure.legend(handles=handles)
    assert "“text” rises from 1 to 2 nats; “noise” falls from 5 to 4 nats" in seen(axis)


def test_dashes_tell_two_lines_of_one_colour_from_each_other(axis):
    axis.plot([0, 1], [1.0, 2.0], color=BLUE, ls="-")
    axis.plot([0, 1], [5.0, 4.0], color=BLUE, ls="--")
    from matplotlib.lines import Line2D

    styles = {"first": "-", "second": "--"}
    axis.figure.legend(handles=[Line2D([], [], color=BLUE, ls=ls, label=name) for name, ls in styles.items()])
    assert "“first” rises from 1 to 2 nats; “second” falls from 5 to 4 nats" in seen(axis)


def test_levels_are_told_from_lines(axis):
    axis.plot([0, 1], [1.0, 2.0], label="trained")
    axis.axhline(0.5, label="chance")
    axis.axvline(3, label="valley")
    end_label(axis, "dashed: frozen")  # a sample, which is not drawn
    assert "“chance” is a line at 0.5 nats; “valley” is a line at step 3." in seen(axis)
    assert "frozen" not in seen(axis)


def test_lines_of_one_name_are_described_together(axis):
    for end in (1.0, 2.0, 4.0):
        axis.plot([0, 1], [5.0, end], color=BLUE, label="one seed")
    assert "3 lines “one seed” begin at 5 nats and end between 1 and 4 nats" in seen(axis)


def test_a_falling_axis_is_read_from_left_to_right(axis):
    axis.plot([3, 2, 1], [1.0, 2.0, 4.0], label="swept")
    assert "“swept” falls from 4 to 1 nats" in seen(axis)


def test_points_without_order_have_a_range(axis):
    axis.plot([3, 1, 2], [1.0, 2.0, 4.0], "o", label="dots")
    axis.plot([3, 1, 2], [1.0, 2.0, 4.0], "-", label="loop")
    assert "“dots” is 3 points between 1 and 4 nats; “loop” goes from 3, 1 nats to 2, 4 nats" in seen(axis)


def test_bars_are_named_by_their_ticks(axis):
    axis.bar([0, 1], [0.25, 0.5], label="hold")
    axis.bar([0.4, 1.4], [0.75, np.nan], label="fail")
    axis.set_xticks([0.2, 1.2], ["first", "second\nlayer"])
    assert "“hold”: first 0.25 nats, second layer 0.5 nats; “fail”: first 0.75 nats." in seen(axis)


def test_lying_bars_are_measured_across(axis):
    axis.barh([0, 1], [0.25, 0.5])
    axis.errorbar([0.25, 0.5], [0, 1], xerr=0.1, fmt="none", capsize=2)
    axis.set(xlabel="loss (nats)", ylabel="")
    axis.set_yticks([0, 1], ["GaLore", "LoRA"])
    assert seen(axis).endswith("loss (nats): GaLore 0.25 nats, LoRA 0.5 nats.")


def test_a_panel_without_words_shares_those_of_its_neighbour():
    with house_style():
        figure, (left, right) = panels(2)
        for axis, words in ((left, ["GaLore", "LoRA"]), (right, ["", ""])):
            axis.barh([0, 1], [0.25, 0.5])
            axis.set_yticks([0, 1], words)
    assert describe(figure).count("GaLore 0.25, LoRA 0.5") == 2


def test_dots_with_errors_are_read_at_their_names(axis):
    for place, value in enumerate((0.2, 0.4)):
        axis.plot([value - 0.1, value + 0.1], [place, place], color=BLUE, label="relu")
        axis.plot([value], [place], "o", color=BLUE, label="relu")
    axis.set(xlabel="share", ylabel="")
    axis.set_yticks([0, 1], ["largest", "random"])
    assert "“relu” is 0.2 at largest and 0.4 at random." in seen(axis)


def test_many_dots_are_told_by_their_ends(axis):
    many = np.arange(FEW + 2)
    axis.plot(many[::-1] / 10, many, "o", color=BLUE, label="best node")
    axis.plot([0.1, 0.3], [2, 2], color=BLUE)  # what joins two dots is no line of its own
    axis.set(xlabel="correlation", ylabel="")
    axis.set_yticks(many, [f"label {i}" for i in many])
    assert "“best node” is 10 points from 0 at label 9 to 0.9 at label 0." in seen(axis)


def test_lines_are_named_by_the_labels_of_another_panel():
    with house_style():
        figure, (left, right) = panels(2)
        for axis, label in ((left, "_"), (right, "block")):
            axis.plot([0, 1], [1.0, 2.0], color=BLUE, label=label)
            axis.plot([0, 1], [0.0, 0.5], color=BLUE, ls=":")
    assert describe(figure).count("“block” rises from 1 to 2") == 2
    assert "0.5" not in describe(figure)  # dots without a name are not taken for it


def test_maps_say_where_they_are_least_and_most(axis):
    axis.imshow(np.array([[1.0, 2.0, 3.0], [4.0, 9.0, 0.5]]))
    axis.set_yticks([0, 1], ["upper", "lower"])
    assert "a map of 2 rows and 3 columns, from 0.5 (lower, column 3) to 9 (lower, column 2)" in seen(axis)


def test_clouds_and_tables_and_areas(axis):
    axis.scatter([1, 2, 3], [4.0, 5.0, 7.0], label="seeds")
    assert "“seeds”, 3 points between 1 and 3 across and between 4 and 7 nats up" in seen(axis)
    axis.collections[0].remove()
    axis.fill_between([0, 1], [0.0, 0.0], [1.0, 2.0])
    assert "areas between 0 and 2 nats" in seen(axis)
    axis.table([["GaLore", "1.2"], ["LoRA", "1.4"]])
    assert "GaLore, 1.2; LoRA, 1.4" in seen(axis)


def test_long_panels_are_cut_and_say_so(axis):
    for i in range(MOST + 3):
        axis.plot([0, 1], [i, i + 1.0], label=f"line {i}")
    assert f"“line {MOST - 1}”" in seen(axis)
    assert seen(axis).endswith("3 more of this kind.")
    assert f"“line {MOST}”" not in seen(axis)


def test_a_log_axis_judges_movement_in_powers(axis):
    axis.plot([0, 1], [1e-12, 1e-13], label="drift")
    axis.set(yscale="log")
    assert "“drift” falls from 1e-12 to 1e-13" in seen(axis)


def test_categories_are_listed_only_while_they_are_few(axis):
    many = range(FEW + 1)
    axis.plot(many, [float(i) for i in many], label="all")
    axis.set_xticks(list(many), [f"task {i}" for i in many])
    assert "“all” rises from 0 to 8 nats" in seen(axis)


def test_as_many_categories_as_may_be_named_are_named(axis):
    axis.plot(range(FEW), [float(i) for i in range(FEW)], label="all")
    axis.set_xticks(list(range(FEW)), [f"task {i}" for i in range(FEW)])
    assert "“all” is 0 nats at task 0, 1 nats at task 1" in seen(axis)


def test_as_many_lines_as_may_be_described_leave_no_rest(axis):
    for i in range(MOST):
        axis.plot([0, 1], [i, i + 1.0], label=f"line {i}")
    assert f"“line {MOST - 1}” rises" in seen(axis)
    assert "more of this kind" not in seen(axis)


def test_cells_of_a_map_without_a_number_are_neither_least_nor_most(axis):
    axis.imshow(np.array([[np.nan, 2.0], [4.0, 9.0]]))
    assert "from 2 (row 1, column 2) to 9 (row 2, column 2)" in seen(axis)


def test_colour_bars_and_empty_panels_are_no_panels():
    with house_style():
        figure, (left, right, _) = panels(3)
        figure.colorbar(left.imshow(np.eye(2)), ax=left)
        right.plot([0, 1], [0.0, 1.0], label="line")
    assert describe(figure).startswith("Two panels.")


def test_marks_of_several_colours_go_by_the_first(axis):
    from matplotlib.lines import Line2D

    axis.scatter([0, 1, 2], [1.0, 2.0, 4.0], color=[BLUE, RED, RED])
    handles = [Line2D([], [], color=BLUE, label="text"), Line2D([], [], color=RED, label="noise")]
    axis.legend(handles=handles)
    assert "“text”" in seen(axis)
    assert "noise" not in seen(axis)

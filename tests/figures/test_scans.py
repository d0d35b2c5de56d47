"""Figures of scans: every layer can be told from the others, and a heat map shows what curves do not."""

import numpy as np
import pytest

from joma.figures._end_labels import EndLabels
from joma.figures.scans import Panel, by_layer, changes_over_steps, compared, curves_by_layer
from joma.figures.style import house_style


def panel(layers, **more):
    values = np.outer([1.0, 2.0, 4.0], np.arange(1.0, layers + 1))
    return Panel("stable rank", [0, 10, 20], [f"layer {at}" for at in range(layers)], values, **more)


def named(axis):
    (labels,) = [artist for artist in axis.artists if isinstance(artist, EndLabels)]
    return [text.get_text() for text in labels.texts]


@pytest.mark.parametrize("layers", [1, 2, 3, 6, 8])
def test_every_layer_of_a_few_is_named(layers):
    with house_style():
        (axis,) = curves_by_layer([panel(layers)]).axes
    assert named(axis) == [f"layer {at}" for at in range(layers)]


@pytest.mark.parametrize("layers", [9, 24, 80])
def test_of_many_layers_some_between_the_first_and_the_last_are_named(layers):
    with house_style():
        (axis,) = curves_by_layer([panel(layers)]).axes
    found = [int(name.removeprefix("layer ")) for name in named(axis)]
    assert (found[0], found[-1], len(found)) == (0, layers - 1, 5)
    assert found == sorted(found)


def test_changes_have_one_scale_for_both_ways_with_zero_in_its_middle():
    with house_style():
        axis, bar = changes_over_steps([panel(3)]).axes
    (image,) = axis.get_images()
    assert image.get_clim() == (-12.0, 12.0)
    assert image.get_array().tolist() == [[1.0, 2.0, 4.0], [2.0, 4.0, 8.0], [3.0, 6.0, 12.0]]  # a row per layer
    assert image.origin == "lower"
    assert bar.get_ylabel() == "change since step 0"


def test_a_panel_of_no_change_can_be_drawn():
    still = Panel("stable rank", [0, 10], ["layer 0", "layer 1"], np.array([[0.0, np.nan], [0.0, np.nan]]))
    with house_style():
        axis, _ = changes_over_steps([still]).axes
    assert axis.get_images()[0].get_clim() == (-1.0, 1.0)


def test_a_level_to_compare_with_is_drawn_and_named():
    with house_style():
        (axis,) = curves_by_layer([panel(2, reference=("uniform", 3.5))]).axes
        lines = [("a", ["0", "1"], np.array([1.0, 2.0]))]
        one, other = by_layer([("entropy", lines), ("rank", lines)], {"entropy": ("uniform", 3.5)}).axes
    for drawn in (axis, one):
        (level,) = [line for line in drawn.get_lines() if line.get_label() == "uniform"]
        assert set(level.get_ydata()) == {3.5}
    assert "uniform" not in [line.get_label() for line in other.get_lines()]


def test_of_two_models_the_mean_over_the_layers_that_were_measured_is_drawn():
    one = Panel("rank", [0, 10, 20], ["layer 0", "layer 1"], np.array([[1.0, 3.0], [np.nan, 5.0], [np.nan, np.nan]]))
    other = Panel("rank", [0, 10], ["layer 0"], np.array([[7.0], [8.0]]))
    with house_style():
        (axis,) = compared([(one, other)], ("a", "b")).axes
    drawn = {line.get_label(): line for line in axis.get_lines() if line.get_linewidth() == 2.2}
    np.testing.assert_array_equal(drawn["a"].get_ydata(), [2.0, 5.0, np.nan])
    assert list(drawn["b"].get_ydata()) == [7.0, 8.0]
    thin = [line for line in axis.get_lines() if line.get_linewidth() == 0.7]
    np.testing.assert_array_equal([line.get_ydata() for line in thin], one.values.T)

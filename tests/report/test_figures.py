"""How much room a figure gets on the page."""

import pytest

from joma.claims.execute import Picture
from joma.report.figures import figure


@pytest.mark.parametrize(("width", "wide"), [(400, False), (480, False), (650, True)])
def test_a_wide_figure_has_a_row_of_its_own(width, wide):
    drawn = figure(Picture("a", "What is seen.", f'<svg viewBox="0 0 {width} 200"></svg>'), "a")
    assert ('class="wide"' in drawn) is wide


def test_a_picture_without_a_size_is_not_wide():
    assert "wide" not in figure(Picture("a", "What is seen.", "<svg></svg>"), "a")

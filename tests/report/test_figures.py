"""How much room a figure gets on the page."""

import pytest

from joma.claims.execute import Picture
from joma.report.figures import figure, is_readable


@pytest.mark.parametrize(("width", "wide"), [(400, False), (480, False), (650, True)])
def test_a_wide_figure_has_a_row_of_its_own(width, wide):
    drawn = figure(Picture("a", "What is seen.", f'<svg viewBox="0 0 {width} 200"></svg>'), "a")
    assert ('class="wide"' in drawn) is wide


def test_a_picture_without_a_size_is_not_wide():
    assert "wide" not in figure(Picture("a", "What is seen.", "<svg></svg>"), "a")


def test_letters_are_read_on_a_card_where_the_smallest_have_twelve_pixels():
    """A card is 420 px wide: in a figure of 350 points, letters of 10 are 12 px high there."""
    for width, sizes, readable in (
        (350, (10, 14), True),
        (351, (10, 14), False),
        (350, (14, 9.9), False),
        (700, (20,), True),
        (701, (20,), False),
        (35, (1,), True),
        (420, (), True),
        (421, (), False),
    ):
        letters = "".join(f'<text style="font-size: {size}px">a</text>' for size in sizes)
        drawn = Picture("a", "What is seen.", f'<svg viewBox="0 0 {width} 200">{letters}</svg>')
        assert is_readable(drawn) is readable, (width, sizes)
    assert not is_readable(Picture("a", "What is seen.", "<svg></svg>"))

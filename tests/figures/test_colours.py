"""Lines can be seen on the report's light and dark page, and a scale of colours keeps its order."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

import joma.report
from joma.figures.style import SERIES, contrast, depth_colours, luminance, rate_colours

CSS = (Path(joma.report.__file__).parent / "template" / "style.css").read_text(encoding="utf-8")
PAGES = [c for name in ("paper", "panel") for c in re.findall(rf"--{name}: light-dark\((.*?), (.*?)\)", CSS)[0]]


def test_the_report_has_the_pages_that_the_colours_were_chosen_for():
    assert PAGES == ["#fffefb", "#15171a", "#f6f4ee", "#1e2125"]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("colour", SERIES)
def test_every_line_can_be_seen_on_every_page(colour, page):
    assert contrast(colour, page) >= 3


@pytest.mark.parametrize("ramp", [depth_colours, rate_colours])
@pytest.mark.parametrize("count", range(1, 25))
def test_every_place_of_a_ramp_can_be_seen_on_every_page(ramp, count):
    colours = ramp(count)
    assert len(colours) == count == len(set(colours))
    assert min(contrast(colour, page) for colour in colours for page in PAGES) >= 3


@pytest.mark.parametrize("ramp", [depth_colours, rate_colours])
@pytest.mark.parametrize("count", range(2, 25))
def test_ramps_are_in_order(ramp, count):
    shades = [luminance(colour) for colour in ramp(count)]
    assert all(dark < light for dark, light in pairwise(shades))


def test_contrast_is_that_of_web_pages():
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    assert contrast("#ffffff", "#777777") == contrast("#777777", "#ffffff")


# How protanopes, deuteranopes and tritanopes see amounts of red, green and blue light (rows: what they see).
BLIND = {
    "protan": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "deutan": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "tritan": ((1.256, -0.077, -0.179), (-0.078, 0.931, 0.148), (0.005, 0.691, 0.304)),
}


def seen(colour, eyes, kinds=BLIND):
    shades = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    light = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shades]
    return [max(sum(a * b for a, b in zip(row, light, strict=True)), 0.0) ** (1 / 2.4) for row in kinds[eyes]]


def apart(one, other, eyes):
    return max(abs(a - b) for a, b in zip(seen(one, eyes), seen(other, eyes), strict=True))


@pytest.mark.parametrize("eyes", BLIND)
@pytest.mark.parametrize("colours", [SERIES, depth_colours(4), rate_colours(4)], ids=["series", "depths", "rates"])
def test_colours_stay_apart_for_the_colour_blind(colours, eyes):
    closest = min(apart(one, other, eyes) for i, one in enumerate(colours) for other in colours[:i])
    assert closest > 0.08


@pytest.mark.parametrize("count", [3, 4, 7])
def test_no_rate_looks_like_a_layer(count):
    eyes = {"all": ((1, 0, 0), (0, 1, 0), (0, 0, 1))}
    layers = depth_colours(5)
    closest = min(
        max(abs(a - b) for a, b in zip(seen(rate, "all", eyes), seen(layer, "all", eyes), strict=True))
        for rate in rate_colours(count)
        for layer in layers
    )
    assert closest > 0.2

"""Every figure of every study has an alternative text that says what is seen.

Studies with a kept record are drawn from it here, and laid out in long tests. Of the small runs of all studies
test_every_study.py asks the same.
"""

from dataclasses import replace

import pytest
from every_study import is_laid_out_and_drawn, says_what_is_seen
from kept_records import RECORDS

from joma.claims.contract import Drawing
from joma.figures.style import house_style, panels
from joma.runs import Run
from joma.studies import load, names

pytest.importorskip("matplotlib")

KEPT = {path.stem: path for path in RECORDS.glob("*/*.sqlite")}
LARGE = ("rebound-cause", "rebound-onset", "layer-lottery", "forecast", "depth-width", "galore-lowrank", "fig8", "fig6",
         "reversal-decoder", "hblt-alignment", "optimizer-or-rate")  # fmt: skip
"""Records that take half a second or more."""
DRAWN = sorted(KEPT.keys() & names())
SEEN = [pytest.param(name, marks=pytest.mark.long) if name in LARGE else name for name in DRAWN]


@pytest.fixture(scope="module")
def drawings(request):
    """The figures of a kept record, drawn once for both tests."""
    from matplotlib import rc_context

    # Else matplotlib looks for room above every panel, for long.
    with Run.open(KEPT[request.param]) as run, run.remembering(), house_style(), rc_context({"axes.titley": 1.0}):
        yield load(request.param).draw(run)


@pytest.mark.parametrize("drawings", SEEN, indirect=True)
def test_every_figure_says_what_is_seen(drawings):
    assert drawings
    for drawing in drawings:
        says_what_is_seen(drawing)


@pytest.mark.long
@pytest.mark.parametrize("drawings", DRAWN, indirect=True)
def test_every_figure_finds_room(drawings):
    """Laid out and drawn: a warning of matplotlib, or a formula that it cannot set, is an error here."""
    for drawing in drawings:
        is_laid_out_and_drawn(drawing.figure)


@pytest.fixture
def good():
    with house_style():
        figure, _ = panels()
    seen = "One panel. The entropy falls from 4.9 to 1.6 nats at step 3,000."
    return Drawing("entropy", "Entropy falls.", figure, seen)


def test_a_good_drawing_passes(good):
    says_what_is_seen(good)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda good: replace(good, alt=""),
        lambda good: replace(good, alt=good.caption),
        lambda good: replace(good, caption=good.alt),
        lambda good: replace(good, alt=good.alt[:30]),
        lambda good: replace(good, alt="One panel. The entropy falls from its start and comes back a little."),
        lambda good: replace(good, alt=good.alt.replace("1.6", "nan")),
        lambda good: replace(good, caption=""),
    ],
)
def test_a_poor_one_does_not(good, spoil):
    with pytest.raises(AssertionError):
        says_what_is_seen(spoil(good))

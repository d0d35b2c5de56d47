"""Every figure of every study has an alternative text that says what is seen.

Studies with a kept record are drawn from it here, and laid out in long tests. Of the small runs of all studies
test_every_study.py asks the same.
"""

import pytest
from every_study import is_laid_out_and_drawn, says_what_is_seen
from kept_records import RECORDS

from joma.figures.style import house_style
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
    for drawing in drawings:
        is_laid_out_and_drawn(drawing.figure)

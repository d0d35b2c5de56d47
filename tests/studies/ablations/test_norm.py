"""Kinds of normalisation, and none."""

import numpy as np
import pytest
from small_ablations import STUDIES, changed, must_show, patterns

from joma.claims.execute import draw, judge
from joma.studies.ablations import norm


@pytest.mark.parametrize(
    ("claim", "variant"), [(norm.NONE, "none"), (norm.BEFORE, "LayerNorm_before"), (norm.RMS, "RMSNorm_after")]
)
def test_every_kind_shows_the_pattern_or_not(small_run, claim, variant):
    must_show(small_run("norm"), claim, variant)


@pytest.mark.long
def test_a_variant_that_diverges_is_said_to(small_run):
    def diverges(count):
        def change(name, step, value):
            value = patterns()(name, step, value)
            if not name.startswith("none/") or step == 0:
                return value
            value = value.copy()
            if name == "none/diverged_at":
                value[:count] = 3
            elif value.dtype.kind == "f" and value.ndim:
                value[:count] = np.nan
            return value

        return change

    for count in (1, 3):
        run = changed(small_run("norm"), diverges(count))
        first, *others = judge(STUDIES["norm"], run)
        assert first.verdict == "not run"  # of three seeds none can be spared
        assert first.reason == f"{count} of 3 runs of none diverged"
        assert "--rate 0.00" in first.command
        assert all(finding.verdict == "holds" for finding in others)
        assert len(draw(STUDIES["norm"], run)) == 2

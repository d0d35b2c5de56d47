"""Kinds of normalisation, and none."""

import pytest
from small_ablations import must_show

from joma.studies.ablations import norm


@pytest.mark.parametrize(
    ("claim", "variant"), [(norm.NONE, "none"), (norm.BEFORE, "LayerNorm_before"), (norm.RMS, "RMSNorm_after")]
)
def test_every_kind_shows_the_pattern_or_not(small_run, claim, variant):
    must_show(small_run("norm"), claim, variant)

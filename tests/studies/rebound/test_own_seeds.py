"""At paper scale, studies whose claims were written after other runs had been seen have seeds of their own."""

import pytest

from joma.studies import load

OWN = [load(name) for name in ("dilution", "rebound-cause", "spread")]
ALL = [*OWN, *map(load, ("forecast", "layer-lottery", "optimizer-or-rate", "rebound-onset"))]


def seeds(study):
    return set(range(study.paper.seed, study.paper.seed + study.paper.seeds))


@pytest.mark.parametrize("study", OWN, ids=lambda study: study.name)
def test_no_other_study_of_the_rebound_has_its_seeds(study):
    for other in ALL:
        assert other is study or not seeds(study) & seeds(other), other.name
    assert min(seeds(study)) > 8, "sketches and first versions had seeds 0 to 8"

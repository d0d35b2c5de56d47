"""The table of measures says what the code does: its columns are those that are computed, its numbers those in use."""

import pytest
import torch

from joma.measure.registry import MEASURES, WeightMeasure
from joma.probes import AttentionSparsity
from joma.probes._sparsity import LITTLE

WEIGHTS = [name for name, measure in MEASURES.items() if isinstance(measure, WeightMeasure)]


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_measure_of_weights_gives_a_number_for_every_column(name):
    measure = MEASURES[name]
    w = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    numbers = measure.pick(measure.compute(w, torch.Generator().manual_seed(0)))
    assert len(numbers) == len(measure.columns)
    if measure.stacked:
        assert measure.pick(measure.stacked(w[None])[0]) == pytest.approx(numbers, rel=2e-3)


def test_the_spectrum_of_a_known_matrix():
    w = torch.diag(torch.tensor([3.0, 4.0]))
    found = {name: MEASURES[name].pick(MEASURES[name].compute(w, torch.Generator())) for name in WEIGHTS[:2]}
    assert found["stable_rank"] == pytest.approx([25 / 16])
    assert found["spectral_norm"] == pytest.approx([4.0])


def test_statistics_of_sparsity_are_those_of_the_probe():
    assert set(MEASURES["sparsity"].curves.values()) == set(AttentionSparsity._fields)
    assert MEASURES["sparsity"].thresholds[0].value == LITTLE


@pytest.mark.parametrize("name", MEASURES)
def test_every_measure_says_what_it_is(name):
    measure = MEASURES[name]
    assert measure.name == name
    assert measure.title
    assert measure.meaning.endswith(".")
    assert set(measure.column_titles) <= set(measure.columns)
    assert set(measure.statistics) <= set(measure.columns)
    assert all(one.says and one.source for one in measure.thresholds)
    assert isinstance(measure, WeightMeasure) == (measure.needs == "weights")

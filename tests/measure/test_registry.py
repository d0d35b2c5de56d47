"""The table of measures says what the code does: its columns are those that are computed, its numbers those in use."""

import pytest
import torch

from joma.measure.registry import MEASURES, WeightMeasure, full_spectra
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


def test_columns_of_coherence_are_in_their_order():
    # Rows 0 and 1 are at 60 degrees, row 2 is orthogonal to both: cosines of 1/2, 0 and 0.
    vectors = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.75**0.5, 0.0], [0.0, 0.0, 1.0]])
    measure = MEASURES["coherence"]
    found = dict(zip(measure.columns, measure.pick(measure.compute(vectors, torch.Generator())), strict=True))
    assert list(found) == ["mean", "q0.5", "q0.9", "q0.99", "random mean"]
    assert found["mean"] == pytest.approx(1 / 6, abs=1e-6)
    assert found["q0.5"] == pytest.approx(0, abs=1e-6)
    assert found["random mean"] == pytest.approx(0.5, abs=1e-6)  # of two directions in space


def test_a_matrix_of_zeros_has_rank_zero_in_a_full_spectrum_too():
    rank, norm, alpha = full_spectra(torch.zeros(1, 3, 3))[0]
    assert (rank, norm) == (0.0, 0.0)
    assert isinstance(alpha, ValueError)


def test_the_full_spectrum_of_a_known_matrix():
    rank, norm, _ = full_spectra(torch.diag(torch.tensor([3.0, 4.0]))[None])[0]
    assert (rank, norm) == pytest.approx((25 / 16, 4.0))


def test_each_curve_of_sparsity_shows_the_statistic_of_its_name():
    shown = MEASURES["sparsity"].curves
    assert (shown["sparsity/top_16"], shown["sparsity/first_4"]) == ("top_keys", "first_keys")


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
    of_weights = measure.needs in ("matrices", "embeddings") and "scan" in measure.taken_by
    assert isinstance(measure, WeightMeasure) == of_weights

"""Power-law exponents of a series of checkpoints, in one pass with stable ranks and norms."""

import sys

import pytest
import torch
from safetensors.torch import save_file

from joma.measure import registry
from joma.measure.power_law import power_law as fitted
from joma.runs import Run
from joma.scan import open_series, plan, sweep
from joma.scan.sweep import reading

SWEEP = sys.modules[sweep.__module__]


def weights(step, side=24):
    generator = torch.Generator().manual_seed(step)
    decay = torch.arange(1, side + 1)[:, None] ** -0.4
    return {
        f"h.{layer}.mlp.c_fc.weight": torch.randn(side, side + 8, generator=generator) * decay for layer in (0, 1, 2)
    }


@pytest.fixture
def scanned(tmp_path):
    def scan(tensors, *measures, **options):
        save_file(tensors, tmp_path / "step7.safetensors")
        settled = plan(open_series(str(tmp_path), downloads=tmp_path), measures=measures)
        Run.delete(tmp_path / "scan.sqlite")
        with Run.create(tmp_path / "scan.sqlite", study="scan", config=settled.config()) as run:
            return sweep(settled, run, **options)

    return scan


def wanted(tensors):
    spectra = [torch.linalg.svdvals(w.double()) for w in tensors.values()]
    return {
        "stable_rank/mlp": [float((s / s[0]).square().sum()) for s in spectra],
        "spectral_norm/mlp": [float(s[0]) for s in spectra],
        "alpha/mlp": [float(fitted(s.square()).alpha) for s in spectra],
    }


@pytest.mark.parametrize("side", [24, 300])
def test_one_pass_gives_all_three(scanned, side, monkeypatch):
    """Large matrices go side by side, small ones in a stack; no matrix is decomposed twice."""
    monkeypatch.setattr(SWEEP, "cores", lambda: 2)
    calls, find = [], registry.unit_squares
    monkeypatch.setattr(registry, "unit_squares", lambda w: (calls.append(len(w)), find(w))[1])
    monkeypatch.setattr(registry, "spectrum", None)
    tensors = weights(7, side)
    found = scanned(tensors, "stable_rank", "spectral_norm", "alpha")
    for name, numbers in wanted(tensors).items():
        assert found.curves[name].by_row[0].tolist() == pytest.approx(numbers, rel=1e-9)
    assert found.curves["alpha/mlp"].columns == ("exponent", "low", "high", "gaussian", "gaussian low", "gaussian high")
    for alpha, low, high, gaussian, least, most in found.curves["alpha/mlp"].values[0]:
        assert low <= alpha <= high
        assert least <= gaussian <= most
    assert calls == ([3] if side == 24 else [1, 1, 1])


def test_without_alpha_no_whole_spectrum_is_found(scanned, monkeypatch):
    monkeypatch.setattr(registry, "unit_squares", None)
    tensors = weights(7, 300)
    found = scanned(tensors, "stable_rank")
    assert found.curves["stable_rank/mlp"].values[0].tolist() == pytest.approx(
        wanted(tensors)["stable_rank/mlp"], rel=1e-3
    )


@pytest.mark.parametrize(
    ("cores", "jobs", "lanes"), [(2, 1, [2, 1]), (3, 1, [3]), (1, 1, [1, 1, 1]), (2, 2, [1, 1, 1])]
)
def test_large_matrices_are_measured_side_by_side(scanned, monkeypatch, cores, jobs, lanes):
    """With one job only: several jobs have a thread each already. The threads of torch are as before."""
    seen, results = [], reading._results
    monkeypatch.setattr(SWEEP, "cores", lambda: cores)
    monkeypatch.setattr(
        reading, "_results", lambda m, names, *more: (seen.append(len(names)), results(m, names, *more))[1]
    )
    before = torch.get_num_threads()
    tensors = weights(7, 300)
    found = scanned(tensors, "alpha", jobs=jobs)
    assert seen == lanes
    assert torch.get_num_threads() == before
    assert found.curves["alpha/mlp"].by_row[0].tolist() == pytest.approx(wanted(tensors)["alpha/mlp"], rel=1e-9)


@pytest.mark.long
def test_matrices_side_by_side_stay_within_memory(scanned, monkeypatch):
    seen, results = [], reading._results
    monkeypatch.setattr(SWEEP, "cores", lambda: 3)
    monkeypatch.setattr(reading, "LANES_TOGETHER", 2 * 300 * 308)
    monkeypatch.setattr(
        reading, "_results", lambda m, names, *more: (seen.append(len(names)), results(m, names, *more))[1]
    )
    scanned(weights(7, 300), "alpha")
    assert seen == [2, 1]


@pytest.mark.parametrize("side", [24, 300])
def test_stable_ranks_stay_where_a_matrix_has_no_alpha(scanned, side):
    tensors = weights(7, side) | {"h.1.mlp.c_fc.weight": torch.zeros(side, side + 8)}
    found = scanned(tensors, "stable_rank", "alpha")
    (fault,) = found.faults
    assert (fault.measure, fault.tensor) == ("alpha/mlp", "h.1.mlp.c_fc.weight")
    assert "at least 20 singular values other than zero, got one with 0" in str(fault)
    assert found.curves["stable_rank/mlp"].values[0, 1] == 0
    assert "alpha/mlp" not in found.curves or not found.curves["alpha/mlp"].values.size

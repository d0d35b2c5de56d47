"""The numbers of scans as a table: every number in its place, and nothing that a spreadsheet would work out."""

import csv

import numpy as np
import pytest

from joma.scan.names.architecture import Row
from joma.scan.result.curves import Curve, Scan
from joma.scan.result.tidy import rows_of_table, write_table

HEADS = Curve("entropy", None, (Row(0, None, "layer 0"),), ("0", "3"), np.array([[[0.5, np.nan]], [[1.5, 2.5]]]))
MANY = Curve(
    "coherence", "embedding", (Row(None, None, "wte"),), ("mean", "q0.5"), np.array([[[1.0, 2.0]], [[3.0, 4.0]]])
)
MOE = Curve("alpha", "mlp_experts", (Row(4, 1, "x"), Row(4, 2, "y")), ("alpha",), np.array([[7.0, 8.0], [9.0, 6.0]]))


def scan_of(*curves, source="a"):
    return Scan(source, [100, 200], [], {curve.name: curve for curve in curves}, {100: 3})


def table(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_every_number_has_its_place_and_no_number_no_row(tmp_path):
    assert table(write_table([scan_of(HEADS, MANY)], "csv", tmp_path / "a.csv")) == [
        ["step", "epoch", "measure", "group", "layer", "head", "value"],
        ["100", "3", "entropy", "", "0", "0", "0.5"],
        ["200", "", "entropy", "", "0", "0", "1.5"],
        ["200", "", "entropy", "", "0", "3", "2.5"],
        ["100", "3", "coherence_mean", "embedding", "", "", "1.0"],
        ["100", "3", "coherence_q0.5", "embedding", "", "", "2.0"],
        ["200", "", "coherence_mean", "embedding", "", "", "3.0"],
        ["200", "", "coherence_q0.5", "embedding", "", "", "4.0"],
    ]


def test_experts_and_several_sources_have_columns_where_there_are_any(tmp_path):
    both = [scan_of(MOE, source="=1+1"), scan_of(HEADS, source="-x"), scan_of(source="@y")]
    found = table(write_table(both, "csv", tmp_path / "a.csv"))
    assert found[0] == ["source", "step", "epoch", "measure", "group", "layer", "expert", "head", "value"]
    assert found[2] == ["'=1+1", "100", "3", "alpha", "mlp_experts", "4", "2", "", "8.0"]
    assert found[5] == ["'-x", "100", "3", "entropy", "", "0", "", "0", "0.5"]  # a quote: it is no formula
    for name in ("+x", "@x"):
        assert table(write_table([scan_of(MOE, source=name)] * 2, "csv", tmp_path / "b.csv"))[1][0] == f"'{name}"


def test_parquet_has_the_same_rows(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    both = [scan_of(MOE, HEADS), scan_of(MANY, source="b")]
    assert parquet.read_table(write_table(both, "parquet", tmp_path / "a")).to_pylist() == list(rows_of_table(both))


def test_steps_are_epochs_only_where_all_of_them_are():
    for epochs, axis in (({100: 100, 200: 200}, "epoch"), ({100: 100}, "step"), ({100: 100, 200: 3}, "step")):
        assert Scan("a", [100, 200], [], {}, epochs).axis == axis
    assert Scan("a", [], [], {}, {1: 1}).axis == "step"

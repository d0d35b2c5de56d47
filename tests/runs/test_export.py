"""What other tools get from a run."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from joma.runs import Run, RunError, export

MATRIX = np.array([[0.1, -0.0], [np.inf, 1e-40]], dtype=np.float32)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Run.create(tmp_path / "a.joma", study="demo", config={"lr": 0.1}, seed=3) as run:
        run.append("loss", 5, 0.25)
        run.append("loss", 2, 1 / 3)
        run.record(0, {"layer0/matrix": MATRIX, "flags": [True, False], "empty": np.zeros((0, 2))})
        yield run


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_csv_is_a_long_table_whose_numbers_come_back(run: Run) -> None:
    out = export(run, "csv")
    assert out == run.path.with_suffix(".csv")
    found = rows(out)
    assert list(found[0]) == ["series", "step", "dim_0", "dim_1", "value"]
    assert [list(r.values()) for r in found[:2]] == [
        ["loss", "2", "", "", "0.3333333333333333"],
        ["loss", "5", "", "", "0.25"],
    ]
    matrix = [r for r in found if r["series"] == "layer0/matrix"]
    assert [(r["dim_0"], r["dim_1"]) for r in matrix] == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")]
    assert [(r["dim_0"], r["dim_1"]) for r in found if r["series"] == "flags"] == [("0", ""), ("1", "")]
    assert np.array([r["value"] for r in matrix]).astype(np.float32).tobytes() == MATRIX.tobytes()
    assert len(found) == 2 + 4 + 2


def test_no_spreadsheet_takes_a_name_for_a_formula(tmp_path: Path) -> None:
    words = ["=1+1", "+1", "-x", "@sum", "a=b"]
    with Run.create(tmp_path / "b.joma", study="demo", config={}) as run:
        for step, word in enumerate(words):
            run.append(word, step, [-2.5], dims={"matrix": [word]})
        found = rows(export(run, "csv"))
    kept = ["'=1+1", "'+1", "'-x", "'@sum", "a=b"]
    assert [(row["series"], row["matrix"], row["value"]) for row in found] == [(word, word, "-2.5") for word in kept]


def test_every_dimension_has_a_column_of_its_name(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    with Run.create(tmp_path / "b.joma", study="demo", config={}) as run:
        run.append("entropy", 0, [[0.5, 1.5]], dims=("layer", "head"))
        run.append("rank", 3, [2.0, 4.0], dims={"matrix": ["up", "down"]})
        run.append("loss", 3, [[1.0], [2.0]], dims={"rate": [0.1, 0.3], "layer": None})
        found = rows(export(run, "csv"))
        table = parquet.read_table(export(run, "parquet"))
    assert [list(r.values()) for r in found] == [
        ["entropy", "0", "0", "0", "", "", "0.5"],
        ["entropy", "0", "0", "1", "", "", "1.5"],
        ["rank", "3", "", "", "up", "", "2.0"],
        ["rank", "3", "", "", "down", "", "4.0"],
        ["loss", "3", "0", "", "", "0.1", "1.0"],
        ["loss", "3", "0", "", "", "0.3", "2.0"],
    ]
    assert list(found[0]) == ["series", "step", "layer", "head", "matrix", "rate", "value"]
    assert [str(table.schema.field(dim).type) for dim in ("layer", "matrix", "rate")] == ["int64", "string", "double"]
    assert table["rate"].to_pylist() == [None] * 4 + [0.1, 0.3]


def test_csv_keeps_large_integers_and_ragged_series(tmp_path: Path) -> None:
    with Run.create(tmp_path / "b.joma", study="demo", config={}) as run:
        run.append("big", 0, 2**62 + 1)
        run.append("ragged", 0, [1])
        run.append("ragged", 1, [1, 2])
        assert [r["value"] for r in rows(export(run, "csv"))] == [str(2**62 + 1), "1", "1", "2"]
        with pytest.raises(RunError, match="different shapes"):
            export(run, "npz")


def test_parquet_keeps_large_integers_exactly(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    signed, unsigned = [-(2**63), -5, 2**53 - 1, 2**53 + 1], np.array([2**64 - 1], dtype=np.uint64)
    with Run.create(tmp_path / "b.joma", study="demo", config={}) as run:
        run.append("checksum", 0, signed)
        run.append("checksum", 1, unsigned)
        run.append("loss", 0, 0.1)
        table = parquet.read_table(export(run, "parquet"))
    assert [None if n is None else int(n) for n in table["integer"].to_pylist()] == [*signed, 2**64 - 1, None]
    assert table["value"].to_pylist() == [None, -5.0, 2.0**53 - 1, None, None, 0.1]  # to the last digit


def test_parquet_holds_the_same_rows_and_what_the_run_knows(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(sys.modules["joma.runs.export"], "_ROWS_AT_ONCE", 3)  # several row groups
    table = parquet.read_table(export(run, "parquet"))
    expected = rows(export(run, "csv"))
    assert table.column_names == ["series", "step", "dim_0", "dim_1", "value", "integer"]
    assert table["series"].to_pylist() == [r["series"] for r in expected]
    for column in ("step", "dim_0", "dim_1"):
        assert table[column].to_pylist() == [int(r[column]) if r[column] else None for r in expected]
    matrix = np.array(table["value"].to_pylist()[2:6])
    assert matrix.tobytes() == MATRIX.astype(np.float64).tobytes()
    assert table["value"].to_pylist()[6:] == [1.0, 0.0]
    meta = json.loads(table.schema.metadata[b"joma"])
    assert (meta["study"], meta["config"], meta["seed"], meta["status"]) == ("demo", {"lr": 0.1}, 3, "running")


def test_npz_holds_arrays_and_steps_and_needs_no_pickle(run: Run) -> None:
    with np.load(export(run, "npz"), allow_pickle=False) as loaded:
        assert sorted(loaded.files) == sorted(
            ["__meta__"] + [name + end for name in run.names() for end in ("", "@steps")]
        )
        for name in run.names():
            assert loaded[name].dtype == run.array(name).dtype
            assert loaded[name].tobytes() == run.array(name).tobytes()
            assert np.array_equal(loaded[f"{name}@steps"], run.steps(name))
        assert json.loads(str(loaded["__meta__"]))["versions"] == run.versions


def test_npz_survives_awkward_names(tmp_path: Path) -> None:
    with Run.create(tmp_path / "b.joma", study="demo", config={}) as run:
        for i, name in enumerate(["file", "allow_pickle", "self", "..x", "Δ v"]):
            run.append(name, 0, 1j * i)
        with np.load(export(run, "npz")) as loaded:
            assert [loaded[name].tolist() for name in run.names()] == [[1j * i] for i in range(5)]


@pytest.mark.parametrize("names", [("x", "x@steps"), ("x@steps", "x"), ("__meta__",)])
def test_npz_refuses_names_that_collide(tmp_path: Path, names: tuple[str, ...]) -> None:
    with Run.create(tmp_path / "b.joma", study="demo", config={}) as run:
        for name in names:
            run.append(name, 0, 1)
        with pytest.raises(RunError, match="needs a name that npz uses otherwise"):
            export(run, "npz")


@pytest.mark.parametrize("to", ["csv", "parquet"])
def test_complex_numbers_do_not_fit_into_a_row(run: Run, to: str) -> None:
    run.append("phase", 0, 1j)
    with pytest.raises(RunError, match=f"'phase' is complex, and a row of {to} holds one real number; export to npz"):
        export(run, to)


@pytest.mark.parametrize("to", ["csv", "parquet", "npz"])
def test_a_failed_export_leaves_what_was_there(run: Run, to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out = export(run, to)
    before, files = out.read_bytes(), sorted(out.parent.iterdir())

    def break_off(*_: object) -> Any:
        raise RunError("broken off")

    monkeypatch.setattr(Run, "at", break_off)
    monkeypatch.setattr(Run, "array", break_off)
    with pytest.raises(RunError, match="broken off"):
        export(run, to)
    assert out.read_bytes() == before
    assert sorted(out.parent.iterdir()) == files


@pytest.mark.parametrize("to", ["csv", "parquet", "npz"])
def test_the_same_run_gives_the_same_bytes(run: Run, to: str, tmp_path: Path) -> None:
    first = export(run, to, tmp_path / "first").read_bytes()
    assert export(run.path, to, tmp_path / "second").read_bytes() == first


@pytest.mark.parametrize("to", ["csv", "parquet", "npz"])
def test_a_run_without_series(tmp_path: Path, to: str) -> None:
    with Run.create(tmp_path / "b.joma", study="demo", config={}) as run:
        assert export(run, to).stat().st_size > 0


def test_bad_requests_get_one_sentence(run: Run, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="to must be one of parquet, csv, npz, got 'xls'"):
        export(run, "xls")
    with pytest.raises(RunError, match="is the run itself"):
        export(run, "csv", run.path)
    with pytest.raises(RunError, match="cannot be written: "):
        export(run, "csv", run.path / "x.csv")
    with pytest.raises(RunError, match="does not exist"):
        export(tmp_path / "missing.joma", "csv")


def test_without_pyarrow_the_way_to_get_it_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(RunError, match=r"needs pyarrow: pip install -e '\.\[export\]'"):
        export(run, "parquet")

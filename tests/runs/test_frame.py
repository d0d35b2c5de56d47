"""Runs as tables of pandas, and the names of their dimensions."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kept_records import RECORDS

from joma.runs import Run, RunError


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Run.create(tmp_path / "a.joma", study="demo", config={}) as run:
        yield run


def test_a_series_becomes_rows_with_its_dimensions(run: Run) -> None:
    pytest.importorskip("pandas")
    values = {step: np.arange(6.0).reshape(2, 3) + step for step in (20, 10)}
    for step, value in values.items():
        run.append("entropy", step, value, dims=("layer", "head"))
    frame = run.frame("entropy")
    assert list(frame.columns) == ["step", "layer", "head", "value"]
    assert frame["step"].tolist() == [10] * 6 + [20] * 6
    for row in frame.itertuples():
        assert row.value == values[row.step][row.layer, row.head]
    assert frame.pivot_table(index="step", columns=["layer", "head"], values="value").shape == (2, 6)


def test_without_names_dimensions_are_counted(run: Run) -> None:
    pytest.importorskip("pandas")
    run.append("v", 0, np.zeros((1, 2), np.float32))
    run.append("loss", 7, 3)
    assert list(run.frame("v").columns) == ["step", "dim_0", "dim_1", "value"]
    assert run.frame("v")["value"].dtype == np.float32
    assert run.frame("loss").to_dict("list") == {"step": [7], "value": [3]}
    assert run.dims("loss") == {}


def test_all_series_fit_into_one_table(run: Run) -> None:
    pandas = pytest.importorskip("pandas")
    run.append("flag", 0, True)
    run.append("entropy", 1, [[0.5, 1.5]], dims=("layer", "head"))
    run.append("rank", 2, [2, 4], dims={"matrix": ["up", "down"]})
    run.append("nothing", 3, np.zeros((0, 2)))
    frame = run.frame()
    assert list(frame.columns) == ["series", "step", "layer", "head", "matrix", "dim_0", "dim_1", "value"]
    assert frame["series"].tolist() == ["flag", "entropy", "entropy", "rank", "rank"]
    assert frame["value"].tolist() == [1.0, 0.5, 1.5, 2.0, 4.0]
    assert frame["value"].dtype == np.float64  # of them all, the flag included
    assert frame["head"].isna().tolist() == [True, False, False, True, True]
    assert frame["head"].dropna().tolist() == [0, 1]
    assert frame["matrix"].dropna().tolist() == ["up", "down"]
    assert frame["layer"].dtype == pandas.Int64Dtype()


def test_a_run_without_series_is_an_empty_table(run: Run) -> None:
    pytest.importorskip("pandas")
    assert run.frame().empty


def test_steps_of_different_shapes_share_a_table(run: Run) -> None:
    pytest.importorskip("pandas")
    run.append("ragged", 0, 5.0)
    run.append("ragged", 1, [6.0, 7.0])
    frame = run.frame("ragged")
    assert frame["value"].tolist() == [5.0, 6.0, 7.0]
    assert frame["dim_0"].tolist() == [None, 0, 1]


def test_names_last(run: Run, tmp_path: Path) -> None:
    run.describe("entropy", ("layer", "head"))
    run.append("entropy", 0, [[1.0]])
    run.keep("rates", lambda: [0.1, 0.2], dims=["rate"])
    run.describe("rates", ("rate",))  # the same again is nothing new
    run.close()
    with Run.open(run.path, write=True) as again:
        with pytest.raises(RunError, match=r"'entropy' has \(layer, head\), got an array of shape \(3,\)"):
            again.append("entropy", 1, [1.0, 2.0, 3.0])
        assert again.last_step("entropy") == 0
    with Run.open(run.path) as read:
        assert read.dims("entropy") == {"layer": None, "head": None}
        assert read.dims("rates") == {"rate": None}


@pytest.mark.parametrize(
    ("dims", "sentence"),
    [
        ("layer", "must be names such as"),
        (3, "must be names such as"),
        (("layer", "layer"), "must have different names"),
        (("step", "head"), "got 'step'; series, step, value, integer are taken"),
        (("the head", "x"), "needs a name like 'layer' or 'head', got 'the head'"),
        (("layer",), r"has \(layer\), got an array of shape \(1, 2\)"),
        ((), r"has no dimensions, got an array of shape \(1, 2\)"),
        ({"layer": None, "head": ["a"]}, r"has 1 labels? along head, got an array \(1, 2\)"),
        ({"layer": None, "head": ["a", "b", "c"]}, r"has 3 labels along head, got an array \(1, 2\)"),
        ({"layer": None, "head": "ab"}, "must be a list of words or numbers"),
        ({"layer": None, "head": [None, None]}, "must be a list of words or numbers"),
    ],
)
def test_names_that_do_not_fit_are_refused_and_nothing_is_recorded(run: Run, dims: Any, sentence: str) -> None:
    with pytest.raises(RunError, match=sentence):
        run.append("x", 0, [[1.0, 2.0]], dims=dims)
    assert run.names() == []
    run.append("x", 0, [[1.0, 2.0]])
    with pytest.raises(RunError, match=sentence):
        run.describe("x", dims)
    assert run.dims("x") == {"dim_0": None, "dim_1": None}


def test_a_description_is_final(run: Run) -> None:
    run.append("x", 0, [1.0], dims=["layer"])
    with pytest.raises(RunError, match=r"is described already, with the dimensions \['layer'\]"):
        run.append("x", 1, [1.0], dims=["head"])
    with pytest.raises(RunError, match="is described already"):
        run.describe("x", ["head"])
    assert run.steps("x").tolist() == [0]


def test_a_damaged_description_is_refused(run: Run) -> None:
    run.append("x", 0, [1.0], dims=["layer"])
    run.close()
    with sqlite3.connect(run.path) as connection:
        connection.execute("UPDATE meta SET value = '[[\"head\", null]]' WHERE key = 'dims/x'")
    connection.close()
    with Run.open(run.path) as read, pytest.raises(RunError, match="is damaged: its dims/x cannot be read"):
        read.dims("x")


def test_a_series_that_is_not_there_says_what_is(run: Run) -> None:
    pytest.importorskip("pandas")
    run.append("loss", 0, 1.0)
    for ask in (run.frame, run.dims):
        with pytest.raises(RunError, match="has no series 'lost'; it has loss"):
            ask("lost")


def test_without_pandas_the_way_to_get_it_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.append("loss", 0, 1.0)
    monkeypatch.setitem(sys.modules, "pandas", None)
    for name in ("loss", None):
        with pytest.raises(RunError, match="needs pandas: pip install pandas"):
            run.frame(name)


@pytest.mark.parametrize("record", sorted(RECORDS.glob("*/*.sqlite")), ids=lambda path: path.stem)
def test_a_kept_record_opens_as_before(record: Path) -> None:
    with Run.open(record) as run:
        for name in run.names()[:3]:
            dims, array = run.dims(name), run.at(name, int(run.steps(name)[0]))
            assert len(dims) == array.ndim
            # records made before dimensions could have names
            assert list(dims) == [f"dim_{i}" for i in range(array.ndim)] or f"dims/{name}" in _described(record)


def _described(record: Path) -> set[str]:
    with closing(sqlite3.connect(record)) as file:
        return {key for (key,) in file.execute("SELECT key FROM meta")}

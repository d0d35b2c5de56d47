"""Run files made to hurt: one clear sentence each, at once, and whatever is lost is noticed."""

from __future__ import annotations

import json
import random
import sqlite3
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from joma.runs import Run, RunError
from joma.runs.export import export
from joma.runs.values import checksum_of

STEPS = 60


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.sqlite"
    with Run.create(path, study="demo", config={"lr": 0.1}) as run:
        for step in range(STEPS):
            run.append("x", step, np.full(30, step))
        run.append("y", 0, 1.0)
        run.finish()
    return path


def spoil(path: Path, *statements: str, values: tuple[object, ...] = ()) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement, values)
    connection.close()


def tell(path: Path, key: str, text: str) -> None:
    spoil(path, "REPLACE INTO meta VALUES (?, ?, ?)", values=(key, text, checksum_of(key, text)))


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i"


@pytest.mark.parametrize(
    ("statements", "sentence"),
    [
        (("DROP TABLE series", f"CREATE VIEW series AS {ENDLESS} AS id, 'a' AS name FROM n"), "its view 'series'"),
        (
            (
                "DROP TABLE meta",
                "CREATE VIEW meta AS SELECT 'study' AS key, zeroblob(900000000) AS value, 0 AS checksum",
            ),
            "its view 'meta'",
        ),
        (("CREATE TRIGGER t BEFORE INSERT ON entries BEGIN DELETE FROM meta; END",), "its trigger 't'"),
        (("CREATE VIRTUAL TABLE other USING fts5(a)",), "its table 'other'"),
        (("ALTER TABLE meta ADD COLUMN other TEXT",), "its table 'meta'"),
        (("CREATE INDEX i ON entries (step)",), "its index 'i'"),
    ],
    ids=["endless", "gigabytes", "trigger", "virtual", "column", "index"],
)
@pytest.mark.parametrize("write", [False, True])
def test_a_schema_that_is_not_ours_is_refused(
    path: Path, statements: tuple[str, ...], sentence: str, write: bool
) -> None:
    spoil(path, *statements)
    with pytest.raises(RunError, match=f"is not a joma run: joma did not make {sentence}"):
        Run.open(path, write=write)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("config", "[" * 100_000 + "]" * 100_000),
        ("config", "[" * 200 + "]" * 200),
        ("config", '{"a":' * 101 + "1" + "}" * 101),
        ("config", "[1, 2]"),
        ("config", "null"),
        ("config", "{"),
        ("created", "12"),
        ("versions", '["torch"]'),
        ("machine", '"fast"'),
        ("version", "1.5"),
        ("version", "true"),
        ("seed", '"0"'),
        ("study", "7"),
    ],
)
def test_what_a_run_says_of_itself_must_be_of_its_kind(path: Path, key: str, text: str) -> None:
    tell(path, key, text)
    with pytest.raises(RunError, match=f"is damaged: its {key} cannot be read"):
        Run.open(path)


def test_a_config_of_ordinary_depth_is_read(path: Path) -> None:
    tell(path, "config", '{"a":' * 90 + "1" + "}" * 90)
    with Run.open(path) as run:
        assert "a" in run.config


def test_no_escape_sequence_comes_out_of_a_name(path: Path) -> None:
    spoil(path, "UPDATE series SET name = ? WHERE name = 'y'", values=("\x1b[2Jy",))
    with Run.open(path) as run, pytest.raises(RunError, match="has lost its name"):
        run.names()
    tell(path, "study", json.dumps("\x1b[2J"))
    with pytest.raises(RunError, match="printable"):
        Run.open(path)


READ: dict[str, Callable[[Run], object]] = {
    "array": lambda run: run.array("x"),
    "steps": lambda run: run.steps("x"),
    "value": lambda run: run.value("x"),
}


@pytest.mark.parametrize("read", READ)
def test_a_lost_step_is_noticed(path: Path, read: str) -> None:
    spoil(path, "DELETE FROM entries WHERE step = 7")
    with Run.open(path) as run, pytest.raises(RunError, match=f"'x' has {STEPS - 1} of {STEPS} steps"):
        READ[read](run)


def test_a_lost_series_is_noticed(path: Path) -> None:
    spoil(path, "DELETE FROM entries WHERE series = 2", "DELETE FROM series WHERE id = 2")
    with Run.open(path) as run, pytest.raises(RunError, match="series 'y' is lost"):
        run.names()


def test_a_run_of_an_earlier_version_has_no_count(path: Path) -> None:
    spoil(path, "DELETE FROM meta WHERE key = 'sealed'")
    with Run.open(path) as run:
        assert len(run.array("x")) == STEPS
        assert run.names() == ["x", "y"]


def test_no_damage_changes_what_is_read(path: Path) -> None:
    """A flipped bit, or other bytes, mostly in front, where headers and tables sit: either it is refused, or every
    number is the one recorded.
    """
    content, chance = path.read_bytes(), random.Random(1)
    noticed = 0
    for turn in range(450):
        spoiled = bytearray(content)
        at = chance.randrange(len(content))
        spoiled[at] ^= 1 << chance.randrange(8)
        if turn >= 300:
            at, size = chance.choice([at, chance.randrange(12_288)]), chance.choice([1, 8, 500])
            spoiled[at : at + size] = chance.randbytes(len(spoiled[at : at + size]))
        path.write_bytes(spoiled)
        try:
            with Run.open(path) as run:
                assert run.names() == ["x", "y"]
                assert np.array_equal(run.array("x"), np.repeat(np.arange(STEPS), 30).reshape(STEPS, 30))
                assert run.array("y").tolist() == [1.0]
        except RunError:
            noticed += 1
    assert noticed > 150  # the file is mostly numbers


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "a/../../b"])
def test_an_archive_stays_in_its_folder(tmp_path: Path, name: str) -> None:
    with Run.create(tmp_path / "b.sqlite", study="demo", config={}) as run:
        run.append(name, 0, 1.0)
        with pytest.raises(RunError, match="would leave the folder"):
            export(run, "npz")
        assert not list(tmp_path.glob("*.npz*"))


def test_a_name_with_dots_of_its_own_is_fine(tmp_path: Path) -> None:
    with Run.create(tmp_path / "b.sqlite", study="demo", config={}) as run:
        run.append("layer/..a", 0, 1.0)
        assert "layer/..a.npy" in zipfile.ZipFile(export(run, "npz")).namelist()


@pytest.mark.parametrize("steps", [[0, 2, 2, 4], [0, 2, 1, 4], [0, 2, 4, 4], [3, 3], [0, 1.0], [0, None]])
def test_steps_that_are_there_twice_or_out_of_order_are_damage(tmp_path: Path, steps: list[int], monkeypatch) -> None:
    """As an index with a turned bit gives them: the rows are honest, and so is their number."""
    with Run.create(tmp_path / "a.sqlite", study="demo", config={}) as run:
        for step in (0, 2, 4, 6):
            run.append("x", step, float(step))
        run.finish()
    with Run.open(tmp_path / "a.sqlite") as run:
        rows = run._rows
        monkeypatch.setattr(run, "_must_be_all", lambda name, count: None)
        monkeypatch.setattr(
            run,
            "_rows",
            lambda query, *words: [(one,) for one in steps] if "SELECT step " in query else rows(query, *words),
        )
        with pytest.raises(RunError, match="is damaged: the steps of 'x'"):
            run.steps("x")


INDEX = "SELECT rootpage FROM sqlite_schema WHERE name = 'sqlite_autoindex_entries_1'"


def test_a_bit_in_the_index_of_steps_loses_no_step_unnoticed(tmp_path: Path) -> None:
    """SQLite finds rows by an index, and one bit of it can lead to one step twice and to another never."""
    path, spoilt = tmp_path / "a.sqlite", tmp_path / "b.sqlite"
    with Run.create(path, study="demo", config={}) as run:
        for step in range(12):
            run.append("x", 2 * step, float(step))
        run.finish()
    content, honest, refused = path.read_bytes(), list(range(0, 24, 2)), []
    with closing(sqlite3.connect(path)) as connection:
        root, size = (connection.execute(query).fetchone()[0] for query in (INDEX, "PRAGMA page_size"))
    flips = [(at, 1 << bit) for at in range((root - 1) * size, root * size) if content[at] for bit in range(4)]
    for at, bit in flips:
        spoilt.write_bytes(content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :])
        try:
            with Run.open(spoilt) as run:
                assert run.array("x").tolist() == list(range(12))
                assert run.steps("x").tolist() == honest
        except RunError as error:
            refused.append(str(error))
    assert any("the steps of 'x' do not increase" in said for said in refused)

"""Runs put together: every row as it was, in the order that was asked for."""

import numpy as np
import pytest

from joma.runs import Run, RunError, merge_runs
from joma.runs.session import meta_row


def make(path, steps, *, config=None, seed=0, **meta):
    with Run.create(path, study="demo", config=config or {"lr": 0.1}, seed=seed) as run:
        for step in steps:
            run.record(step, {"rank": np.array([step, 0.1], dtype=np.float32), "flag": step % 2 == 0},
                       dims={"rank": {"matrix": ("up", "down")}})  # fmt: skip
        if meta:
            with run._transaction() as connection:
                connection.executemany("REPLACE INTO meta VALUES (?, ?, ?)", [meta_row(*one) for one in meta.items()])
    return path


def merged(folder, *parts, steps, name="merged"):
    runs = [Run.open(part) for part in parts]
    try:
        return merge_runs(folder / name, runs, steps)
    finally:
        for run in runs:
            run.close()


def test_rows_keep_type_dimensions_and_bits(tmp_path):
    one, two = make(tmp_path / "1", (0, 2)), make(tmp_path / "2", (1, 3))
    with merged(tmp_path, one, two, steps=[(0, 0), (1, 1), (0, 2), (1, 3)]) as run:
        assert run.names() == ["rank", "flag"]
        assert run.steps("rank").tolist() == [0, 1, 2, 3]
        assert run.array("rank").dtype == np.float32
        assert run.array("rank").tobytes() == np.array([[n, 0.1] for n in range(4)], dtype=np.float32).tobytes()
        assert run.dims("rank") == {"matrix": ("up", "down")}
        assert run.array("flag").tolist() == [True, False, True, False]
        assert (run.study, run.config, run.seed) == ("demo", {"lr": 0.1}, 0)


def test_only_steps_that_were_asked_for_are_taken(tmp_path):
    one = make(tmp_path / "1", (0, 2, 4))
    with merged(tmp_path, one, steps=[(0, 4), (0, 0), (0, 7)]) as run:
        assert run.steps("rank").tolist() == [0, 4]


def test_it_is_as_old_as_the_oldest_part_and_names_every_machine(tmp_path):
    here = {"platform": "Linux", "cpu": "a", "cores": 2, "gpu": None}
    versions = {"joma": "1", "torch": "2"}
    one = make(tmp_path / "1", (0,), created="2026-05-02T00:00:00+00:00", machine=here, versions=versions)
    two = make(
        tmp_path / "2", (1,), created="2026-05-01T00:00:00+00:00", machine={**here, "cpu": "b"}, versions=versions
    )
    merged(tmp_path, one, two, steps=[(0, 0), (1, 1)]).close()
    with Run.open(tmp_path / "merged") as run:
        assert run.created == "2026-05-01T00:00:00+00:00"
        assert run.machine == {**here, "cpu": "a and b"}
        assert run.versions == versions
        assert run.status == "running"


@pytest.mark.parametrize(("what", "other"), [("config", {"config": {"lr": 0.2}}), ("seed", {"seed": 1})])
def test_parts_of_different_runs_are_refused(tmp_path, what, other):
    one, two = make(tmp_path / "1", (0,)), make(tmp_path / "2", (1,), **other)
    with pytest.raises(RunError, match=f"are parts of different runs: their {what} differs"):
        merged(tmp_path, one, two, steps=[(0, 0), (1, 1)])
    assert not (tmp_path / "merged").exists()


def test_a_step_of_two_parts_is_refused(tmp_path):
    one, two = make(tmp_path / "1", (0,)), make(tmp_path / "2", (0,))
    with pytest.raises(RunError, match="is recorded already"):
        merged(tmp_path, one, two, steps=[(0, 0), (1, 0)])


def test_a_run_that_is_there_is_refused(tmp_path):
    one = make(tmp_path / "1", (0,))
    with pytest.raises(RunError, match="exists already"):
        merged(tmp_path, one, steps=[(0, 0)], name="1")

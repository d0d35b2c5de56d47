"""What a run promises to whoever writes and reads it."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from joma.runs import Run, RunError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.joma"


def create(path: Path, **config: object) -> Run:
    return Run.create(path, study="demo", config=config, version=3, seed=7)


def test_what_was_asked_for_comes_back(path: Path) -> None:
    with create(path, widths=(1, 2), where=Path("x/y"), deep={"lr": 0.1, "on": True, "none": None}) as run:
        told = (run.study, run.config, run.version, run.seed, run.versions, run.machine, run.created, run.status)
    assert told[1] == {"widths": [1, 2], "where": "x/y", "deep": {"lr": 0.1, "on": True, "none": None}}
    with Run.open(path) as run:
        again = (run.study, run.config, run.version, run.seed, run.versions, run.machine, run.created, run.status)
    assert again == told
    assert again[2:4] == (3, 7)


def test_status_and_reason(path: Path) -> None:
    run = create(path)
    assert (run.status, run.reason) == ("running", None)
    run.fail("out of patience")
    with Run.open(path) as reader:
        assert (reader.status, reader.reason) == ("failed", "out of patience")
    with Run.open(path, write=True) as resumed:
        assert (resumed.status, resumed.reason) == ("running", None)
        resumed.finish()
    with Run.open(path) as reader:
        assert reader.status == "finished"


def test_a_finished_run_is_readable_and_final(path: Path) -> None:
    with create(path) as run:
        run.append("x", 0, 1.0)
        run.finish()
        assert run.value("x") == 1.0
        with pytest.raises(RunError, match="finished, nothing can be added"):
            run.append("x", 1, 2.0)
    with pytest.raises(RunError, match="finished, nothing can be added"):
        Run.open(path, write=True)
    assert [file.name for file in path.parent.iterdir()] == ["a.joma"]
    assert path.read_bytes()[18:20] == b"\x01\x01"  # SQLite's mark for "no WAL": readable in a read-only folder


def test_an_exception_marks_the_run_failed_and_an_interrupt_does_not(path: Path) -> None:
    def leave_with(error: BaseException, run: Run) -> None:
        with pytest.raises(type(error)), run:
            raise error

    leave_with(ZeroDivisionError("by nothing"), create(path))
    with Run.open(path) as reader:
        assert (reader.status, reader.reason) == ("failed", "ZeroDivisionError: by nothing")
    leave_with(KeyboardInterrupt(), Run.open(path, write=True))
    leave_with(ZeroDivisionError(), Run.open(path))  # a reader changes nothing
    with Run.open(path) as reader:
        assert (reader.status, reader.reason) == ("running", None)


def test_series_are_ordered_by_step_and_named_in_order_of_appearance(path: Path) -> None:
    with create(path) as run:
        for step in (5, 0, 3):
            run.record(step, {"z/loss": step * 1.5, "a": np.full((2, 2), step)})
        assert run.names() == ["z/loss", "a"]
        assert run.steps("a").tolist() == [0, 3, 5]
        assert run.steps("a").dtype == np.int64
        assert run.array("z/loss").tolist() == [0.0, 4.5, 7.5]
        assert run.array("a").shape == (3, 2, 2)
        assert run.at("a", 3).tolist() == [[3, 3], [3, 3]]
        assert (run.last_step("a"), run.last_step("nothing")) == (5, None)
        assert "a" in run
        assert "nothing" not in run
        assert 3 not in run


def test_a_step_is_final(path: Path) -> None:
    with create(path) as run:
        run.append("x", 1, 1.0)
        with pytest.raises(RunError, match=r"step 1 of 'x' is recorded already in .*a.joma"):
            run.append("x", 1, 2.0)
        assert run.array("x").tolist() == [1.0]


def test_record_is_all_or_nothing(path: Path) -> None:
    with create(path) as run:
        run.append("x", 1, 1.0)
        with pytest.raises(RunError, match="recorded already"):
            run.record(1, {"new": 1, "x": 2.0})
        with pytest.raises(RunError, match="'words'"):
            run.record(2, {"new": 1, "words": "no number"})
        assert run.names() == ["x"]
        run.record(1, {"new": 4})
        assert run.value("new") == 4


def test_keep_computes_once(path: Path) -> None:
    calls = []

    def compute() -> list[float]:
        calls.append(1)
        return [1.0, 2.0]

    with create(path) as run:
        first = run.keep("x", compute)
    with Run.open(path, write=True) as run:
        again = run.keep("x", compute)
        run.finish()
        run.keep("x", compute)  # reading what is there needs no right to write
        with pytest.raises(RunError, match="nothing can be added"):
            run.keep("y", compute)
    assert len(calls) == 1
    assert first.dtype == again.dtype == np.float64
    assert first.tolist() == again.tolist() == [1.0, 2.0]


def test_keep_that_fails_records_nothing(path: Path) -> None:
    with create(path) as run:
        with pytest.raises(ZeroDivisionError):
            run.keep("x", lambda: 1 / 0)
        assert "x" not in run


def test_arrays_belong_to_the_reader(path: Path) -> None:
    with create(path) as run:
        run.keep("x", lambda: np.zeros(3))[:] = 1
        run.array("x")[:] = 1
        assert run.value("x").tolist() == [0, 0, 0]


def test_ragged_series_are_read_step_by_step(path: Path) -> None:
    with create(path) as run:
        run.append("x", 0, [1, 2])
        run.append("x", 1, [1, 2, 3])
        with pytest.raises(RunError, match=r"different shapes \(\(2,\), \(3,\)\); read them with at"):
            run.array("x")
        with pytest.raises(RunError, match="has 2 steps, not one"):
            run.value("x")
        for step, shown in ((2, r"\(2,\), \(3,\), \(4,\)"), (3, r"\(2,\), \(3,\), \(4,\), \.\.\.")):
            run.append("x", step, np.zeros(step + 2))
            with pytest.raises(RunError, match=rf"different shapes \({shown}\); read"):
                run.array("x")
        assert run.at("x", 1).tolist() == [1, 2, 3]


def test_mixed_dtypes_are_promoted(path: Path) -> None:
    with create(path) as run:
        run.append("x", 0, 1)
        run.append("x", 1, 0.5)
        assert run.array("x").tolist() == [1.0, 0.5]


@pytest.mark.parametrize("read", ["array", "steps", "value"])
def test_an_unknown_series_names_those_that_exist(path: Path, read: str) -> None:
    with create(path) as run:
        with pytest.raises(RunError, match="no series 'loss'; it has nothing yet"):
            getattr(run, read)("loss")
        run.append("lost", 0, 1)
        with pytest.raises(RunError, match="no series 'loss'; it has lost"):
            getattr(run, read)("loss")


def test_an_unknown_step_names_the_last(path: Path) -> None:
    with create(path) as run:
        run.append("x", 4, 1)
        with pytest.raises(RunError, match="no step 5; it has 1, the last is 4"):
            run.at("x", 5)


@pytest.mark.parametrize("name", ["", "a\nb", "\0", "\ud800", 3, None])
def test_bad_names(path: Path, name: object) -> None:
    with create(path) as run, pytest.raises(RunError, match="printable, non-empty name"):
        run.append(name, 0, 1.0)


@pytest.mark.parametrize("step", [-1, 1.0, True, "1", None, 2**63])
def test_bad_steps(path: Path, step: object) -> None:
    with create(path) as run, pytest.raises(RunError, match="step must"):
        run.append("x", step, 1.0)


def test_numpy_steps_are_steps(path: Path) -> None:
    with create(path) as run:
        run.append("x", np.int32(2), 1.0)
        assert run.last_step("x") == 2


@pytest.mark.parametrize(
    "arguments",
    [{"study": ""}, {"version": 1.5}, {"seed": "0"}, {"config": [1]}, {"config": {"x": object()}}],
    ids=["study", "version", "seed", "no mapping", "no JSON"],
)
def test_a_refused_creation_leaves_nothing(path: Path, arguments: dict[str, object]) -> None:
    with pytest.raises(RunError):
        Run.create(path, **({"study": "demo", "config": {}} | arguments))
    assert list(path.parent.iterdir()) == []


def test_a_closed_run_says_so(path: Path) -> None:
    run = create(path)
    run.close()
    run.close()
    with pytest.raises(RunError, match=r"was closed; open it again with Run\.open"):
        run.append("x", 0, 1.0)
    assert "demo" in repr(run)


def test_a_reader_cannot_write(path: Path) -> None:
    create(path).close()
    with Run.open(path) as reader:
        for attempt in (lambda: reader.append("x", 0, 1), reader.finish, lambda: reader.fail("no")):
            with pytest.raises(RunError, match="open to read only"):
                attempt()
        assert reader.status == "running"


def test_threads_share_a_run(path: Path) -> None:
    def write(series: int) -> None:
        for step in range(40):
            run.append(f"series{series}", step, step * series)

    with create(path) as run:
        threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for series in range(4):
            assert run.array(f"series{series}").tolist() == [step * series for step in range(40)]

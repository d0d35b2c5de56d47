"""What is read twice while a run remembers is read from the file once, and is right all the same."""

from dataclasses import replace

import numpy as np
import pytest

from joma.claims.execute import draw, judge
from joma.runs import Run, RunError
from joma.runs.session import _SMALL, Session


@pytest.fixture
def run(tmp_path):
    with Run.create(tmp_path / "a.sqlite", study="demo", config={}) as run:
        run.keep("one", lambda: np.arange(3.0))
        for step in (0, 5):
            run.record(step, {"loss": float(step), "large": np.zeros(_SMALL // 16 + 1)})
        yield run


@pytest.fixture
def asked(monkeypatch):
    queries, rows = [], Session._rows
    monkeypatch.setattr(Session, "_rows", lambda *given: queries.append(given[1:]) or rows(*given))
    return queries


def read(run):
    return [
        run.value("one").tolist(),
        run.array("loss").tolist(),
        run.steps("loss").tolist(),
        run.array("one").tolist(),
    ]


def test_it_is_read_once_inside_and_anew_outside(run, asked):
    right = [[0.0, 1.0, 2.0], [0.0, 5.0], [0, 5], [[0.0, 1.0, 2.0]]]
    assert read(run) == right
    once = len(asked)
    with run.remembering():
        asked.clear()
        assert read(run) == read(run) == read(run) == right
        assert len(asked) == once
    asked.clear()
    assert read(run) == read(run) == right
    assert len(asked) == 2 * once


def test_what_one_caller_changes_the_next_does_not_see(run):
    with run.remembering():
        for found in (run.value("one"), run.array("loss"), run.steps("loss")):
            found[...] = 7
        for found in (run.value("one"), run.array("loss"), run.steps("loss")):
            found[...] = 8
        assert read(run) == [[0.0, 1.0, 2.0], [0.0, 5.0], [0, 5], [[0.0, 1.0, 2.0]]]


def test_what_the_run_writes_is_seen_at_once(run):
    with run.remembering():
        read(run)
        run.append("loss", 9, 9.0)
        assert run.array("loss").tolist() == [0.0, 5.0, 9.0]
        assert run.steps("loss").tolist() == [0, 5, 9]


def test_what_another_writes_is_seen_after_the_block(run):
    with Run.open(run.path) as reader:
        with reader.remembering():
            read(reader)
            run.append("loss", 9, 9.0)
            assert reader.array("loss").tolist() == [0.0, 5.0]
        assert reader.array("loss").tolist() == [0.0, 5.0, 9.0]


def test_blocks_that_overlap_end_with_the_last(run, asked):
    """As those of two threads: neither ends inside the other."""
    first, second = run.remembering(), run.remembering()
    first.__enter__()
    second.__enter__()
    read(run)
    first.__exit__(None, None, None)
    asked.clear()
    read(run)
    assert asked == []
    second.__exit__(None, None, None)
    read(run)
    assert asked


def test_large_arrays_take_no_memory(run, asked):
    with run.remembering():
        for _ in range(2):
            asked.clear()
            assert run.array("large").nbytes > _SMALL
            assert len(asked) == 1


def test_what_is_missing_is_refused_every_time(run):
    with run.remembering():
        for _ in range(2):
            with pytest.raises(RunError, match="no series 'gone'"):
                run.array("gone")
            with pytest.raises(RunError, match="has 2 steps, not one"):
                run.value("loss")


def test_judges_and_figures_read_a_series_once(toy, tmp_path, asked):
    study, _ = toy
    with Run.create(tmp_path / "run.sqlite", study=study.name, config={}) as run:
        study.run(study.quick, run, lambda share, doing: None)
        (claim, by), drawn = *study.claims.items(), study.draw

        def queries(times):
            again = replace(
                study, claims={claim: lambda run: [by(run) for _ in range(times)][-1]},
                draw=lambda run: [drawn(run) for _ in range(times)][-1],
            )  # fmt: skip
            asked.clear()
            judge(again, run)
            draw(again, run)
            return len(asked)

        assert queries(5) == queries(1)

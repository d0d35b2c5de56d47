"""The record has every number, goes on where it ended, and is whole after a kill."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from networks import PROBE, made, train

from joma.cli.watched import Folder
from joma.host.errors import JomaError
from joma.monitor import EntropyFall, LargestLogit, Monitor, RankDrop
from joma.runs import Run

MEASURES = {"entropy": 2, "norm": 3, "update_ratio": 3}


def monitored(out, model=None, **options):
    return Monitor(made() if model is None else model, **{"probe": PROBE, "measures": MEASURES, "out": out} | options)


def steps_of(out):
    with Run.open(out) as run:
        return {name: run.steps(name).tolist() for name in run.names()}


def test_every_number_is_there_by_layer_and_head(tmp_path):
    out, model = tmp_path / "folder" / "run.joma", made()
    monitor = monitored(out, model)
    train(model, monitor)
    assert steps_of(out) == {"entropy": [0, 2, 4, 6], "norm": [0, 3, 6], "update_ratio": [3, 6]}
    with Run.open(out) as run:
        assert (run.study, run.status) == ("monitor", "running")
        assert run.dims("entropy") == {"layer": ("h.0.attn", "h.1.attn"), "head": None}
        assert list(run.dims("norm")) == ["matrix"]
        assert np.array_equal(run.at("entropy", 6), monitor.latest["entropy"].values)
        assert run.array("entropy").shape == (4, 2, 2)


def test_entering_again_goes_on_in_the_same_record(tmp_path):
    out = tmp_path / "run.joma"
    with monitored(out) as first:
        for _ in range(5):
            first.step()
    with monitored(out) as second:
        assert (second.recorded, second.step_number) == (5, 5)
        for _ in range(4):
            second.step()
    found = steps_of(out)
    assert found["entropy"] == [0, 2, 4, 6, 8]
    assert found["norm"] == [0, 3, 6, 9]


def test_steps_that_are_trained_again_are_not_measured_again(tmp_path, log):
    """Training was killed at step 6 and goes on from a checkpoint of step 3."""
    out = tmp_path / "run.joma"
    with monitored(out) as monitor:
        for _ in range(6):
            monitor.step()
    with monitored(out, start=3) as monitor:
        for step in range(4, 9):
            monitor.step(step)
    assert steps_of(out)["entropy"] == [0, 2, 4, 6, 8]
    assert log == [f"{out} has steps up to 6 already: they are not measured again"]


@pytest.mark.parametrize(
    ("options", "what"),
    [({"probe": 0 * PROBE}, "another probe batch"), ({"include": "h.0.*"}, "other layers or matrices")],
)
def test_what_cannot_be_compared_needs_another_file(tmp_path, options, what):
    out = tmp_path / "run.joma"
    with monitored(out):
        pass
    with pytest.raises(JomaError, match=f"out must be another file: .* was recorded with {what}"):
        (refused := monitored(out, **options)).__enter__()
    with Run.open(out, write=True):  # nobody holds it any more, though the monitor is still there
        del refused


def test_the_record_of_something_else_is_left_alone(tmp_path):
    Run.create(tmp_path / "a.joma", study="fig6", config={}).close()
    with pytest.raises(JomaError, match=r"must be a new file or the record of a monitor, .* is of fig6"):
        monitored(tmp_path / "a.joma").__enter__()


def test_alarms_remember_what_the_record_has(tmp_path):
    out, alarms = tmp_path / "run.joma", [EntropyFall(first=2), RankDrop()]
    options = {"measures": ["entropy", "stable_rank"], "every": 1, "alarms": alarms}
    with monitored(out, **options) as first:
        for _ in range(3):
            first.step()
    with monitored(out, **options) as second:
        fall, drop = second._watch.alarms
        assert fall._seen == 4
        assert np.array_equal(drop._start, Run.open(out).at("stable_rank", 0))


def test_an_error_in_the_loop_is_kept_with_the_record(tmp_path):
    def broken():
        with monitored(tmp_path / "run.joma") as monitor:
            monitor.step()
            raise RuntimeError("the data ended")

    with pytest.raises(RuntimeError, match="the data ended"):
        broken()
    with Run.open(tmp_path / "run.joma") as run:
        assert (run.status, run.reason) == ("failed", "RuntimeError: the data ended")
    with monitored(tmp_path / "run.joma") as monitor:
        assert monitor.step_number == 1


def test_a_full_disk_is_told_once_and_training_goes_on(tmp_path, monkeypatch, log):
    out, seen = tmp_path / "run.joma", []
    sink = lambda step, values: seen.append(step)
    with monitored(out, measures=["norm"], every=1, sinks=sink) as monitor:
        monkeypatch.setattr(monitor._delivery._record.run, "_transaction", full)
        for _ in range(3):
            monitor.step()
    assert len(log) == 1
    assert "the record failed at step 1 and is given up, training continues" in log[0]
    assert "the disk is full" in log[0]
    assert seen == [0, 1, 2, 3]
    assert steps_of(out) == {"norm": [0]}


def full():
    import sqlite3

    from joma.runs.errors import sqlite_errors_explained

    with sqlite_errors_explained(Path("run.joma")):
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error


KILLED = """
import os, signal
from networks import PROBE, made
from joma.monitor import JsonLines, Monitor
with Monitor(made(), probe=PROBE, every=1, measures=["norm"], out="run.joma", sinks=JsonLines("run.jsonl")) as monitor:
    for step in range(100):
        monitor.step()
        if step == 4:
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_a_whole_record(tmp_path):
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, env=os.environ | {"PYTHONPATH": paths})
    assert done.returncode == -signal.SIGKILL
    folder = Folder(tmp_path / "run.joma")  # what `joma watch` reads
    (seen,) = folder.look()
    assert (seen.state, seen.entry["last"], seen.series["norm"].step) == ("not being written", 5, 5)
    assert steps_of(tmp_path / "run.joma") == {"norm": [0, 1, 2, 3, 4, 5]}
    with monitored(tmp_path / "run.joma", measures=["norm"], every=1) as monitor:
        monitor.step()
        assert [step for run in folder.look() for step, _ in run.new] == [6]  # and reads on
    assert steps_of(tmp_path / "run.joma")["norm"][-1] == 6
    assert len((tmp_path / "run.jsonl").read_text().splitlines()) == 6


def test_alarms_are_in_the_record_once(tmp_path, log):
    out, limit = tmp_path / "run.joma", [LargestLogit(1e-6)]
    with monitored(out, measures=["largest_logit"], every=1, alarms=limit) as first:
        first.step()
    assert first.alerts
    with monitored(out, measures=["largest_logit"], every=1, alarms=limit) as again:
        again.step()
    assert again.alerts == []
    with Run.open(out) as run:
        assert run.steps("alarms").tolist() == [0]
        told = json.loads(run.value("alarms").tobytes())
    assert [(each["measure"], each["layer"], each["head"], each["says"]) for each in told] == [
        (each.measure, each.layer, each.head, str(each)) for each in first.alerts
    ]

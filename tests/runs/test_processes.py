"""Runs under real processes: killed writers, readers beside a writer, two writers, forks."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from patience import PATIENCE

from joma.runs import Run, RunError

ROUNDS = int(os.environ.get("JOMA_KILL_ROUNDS", "6"))

WRITER = """
import sys
import numpy as np
from joma.runs import Run, file

path, journal, stint = sys.argv[1], sys.argv[2], int(sys.argv[3])
if journal == "rollback":
    file.on_network_drive = lambda path: True
print("ready", flush=True)
run = Run.open(path, write=True)
last = run.last_step("x")
step = 0 if last is None else last + 1
while True:
    content = np.random.default_rng(step).standard_normal((24, 16, 8)).astype(np.float32)
    run.record(step, {"x": content, "square": step * step})
    print(step, flush=True)
    step += 1
    if step % stint == 0:
        run.close()
        run = Run.open(path, write=True)
"""


def start_writer(path: Path, journal: str = "wal", stint: int = 10**9) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), journal, str(stint)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"
    return writer


def kill(process: subprocess.Popen[str]) -> list[str]:
    process.send_signal(signal.SIGKILL)
    lines = process.stdout.read() if process.stdout else ""
    process.wait()
    if process.stdout:
        process.stdout.close()
    return lines[: lines.rfind("\n") + 1].split()  # a line cut by the kill was not acknowledged


@pytest.mark.parametrize(
    ("journal", "rounds"),
    [
        ("wal", max(ROUNDS // 2, 1)),
        ("rollback", 1),
        *(pytest.param(kind, ROUNDS, marks=pytest.mark.long) for kind in ("wal", "rollback")),
    ],
)
def test_a_kill_loses_nothing_that_was_acknowledged(tmp_path: Path, journal: str, rounds: int) -> None:
    path, dice, acknowledged = tmp_path / "a.joma", random.Random(1), -1
    Run.create(path, study="demo", config={}).close()
    for _ in range(rounds):
        writer = start_writer(path, journal, stint=20)  # kills also meet the log moving into the file
        seen = [writer.stdout.readline() for _ in range(dice.randrange(60))] if writer.stdout else []
        time.sleep(dice.uniform(0.0, 0.05))  # steps, not time, set the pace: machines differ
        acknowledged = max([acknowledged, *map(int, seen), *map(int, kill(writer))])
        with Run.open(path) as run:
            recorded = -1 if (last := run.last_step("x")) is None else last
            # The step in flight may be there or not; both series of a step are, or neither.
            assert acknowledged <= recorded <= acknowledged + 1
            if recorded >= 0:
                assert run.steps("x").tolist() == run.steps("square").tolist() == list(range(recorded + 1))
        acknowledged = recorded
    assert acknowledged > 0
    with Run.open(path, write=True) as run:
        for step, content in enumerate(run.array("x")):
            expected = np.random.default_rng(step).standard_normal((24, 16, 8)).astype(np.float32)
            assert np.array_equal(content, expected)
        assert run.array("square").tolist() == [step**2 for step in range(acknowledged + 1)]
        run.finish()
    assert list(tmp_path.iterdir()) == [path]


def test_another_process_reads_while_one_writes_and_a_second_writer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.joma"
    Run.create(path, study="demo", config={}).close()
    writer = start_writer(path)
    assert writer.stdout is not None
    try:
        for _ in range(20):
            acknowledged = writer.stdout.readline()
        with Run.open(path) as reader:
            assert reader.status == "running"
            seen = reader.last_step("x")
            assert seen is not None
            assert seen >= int(acknowledged)
            while int(acknowledged) <= seen:
                acknowledged = writer.stdout.readline()
            assert reader.last_step("x") >= int(acknowledged)  # the same reader sees what is committed later
        with pytest.raises(RunError, match=rf"being written already \(by process {writer.pid}\); wait for it, or read"):
            Run.open(path, write=True)
        with pytest.raises(RunError, match="being written already"):
            Run.create(path, study="demo", config={})
    finally:
        kill(writer)
    Run.open(path, write=True).close()


def test_two_writers_in_one_process(tmp_path: Path) -> None:
    path = tmp_path / "a.joma"
    with Run.create(path, study="demo", config={}) as run:
        with pytest.raises(RunError, match=f"by process {os.getpid()}"):
            Run.open(path, write=True)
        link = tmp_path / "link.joma"
        link.symlink_to(path)
        with pytest.raises(RunError, match="being written already"):
            Run.open(link, write=True)
        run.append("x", 0, 1.0)


def test_a_run_dropped_without_close_is_not_locked(tmp_path: Path) -> None:
    path = tmp_path / "a.joma"
    Run.create(path, study="demo", config={}).append("x", 0, 1.0)
    with Run.open(path, write=True) as run:
        assert run.value("x") == 1.0


FORKING = """
import os, sys, time
from joma.runs import Run, RunError

run = Run.create(sys.argv[1], study="demo", config={})
child = os.fork()
if child == 0:
    try:
        run.append("x", 0, 1.0)
    except RunError as error:
        print(error, flush=True)
    run.close()
    print("child", flush=True)
    sys.stdin.read()  # outlives its parent
    sys.exit()
time.sleep(3600)
"""


def test_a_forked_child_neither_writes_nor_keeps_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "a.joma"
    command = [sys.executable, "-c", FORKING, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert "was opened by another process, before a fork; open it again here" in parent.stdout.readline()
        assert parent.stdout.readline() == "child\n"
        with pytest.raises(RunError, match="being written already"):
            Run.open(path, write=True)
        parent.kill()
        parent.wait()
        with Run.open(path, write=True) as run:  # the orphan still lives
            run.append("x", 0, 2.0)


def test_in_another_process_nothing_is_read_or_written_and_the_file_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Run.create(tmp_path / "a.joma", study="demo", config={}) as run:
        run.append("x", 3, 1.5)
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: -7)
            for use in (run.names, lambda: run.array("x"), lambda: run.append("x", 4, 2.5)):
                with pytest.raises(RunError, match="was opened by another process, before a fork; open it again here"):
                    use()
            run.close()  # the parent's connection is not the child's to close
        run.append("x", 4, 2.5)
        assert run.array("x").tolist() == [1.5, 2.5]


RACING = """
import sys
from joma.runs import Run, RunError

for step in range(15):
    while True:
        try:
            with Run.open(sys.argv[1], write=True) as run:
                run.append(sys.argv[2], step, step)
            break
        except RunError as error:
            assert "being written already" in str(error), error
"""


def test_writers_that_take_turns_never_meet(tmp_path: Path) -> None:
    """The lock file is deleted by whoever releases it; here two processes fight for it all the time."""
    path = tmp_path / "a.joma"
    Run.create(path, study="demo", config={}).close()
    racers = [subprocess.Popen([sys.executable, "-c", RACING, str(path), name]) for name in ("a", "b")]
    assert [racer.wait(timeout=PATIENCE) for racer in racers] == [0, 0]
    with Run.open(path) as run:
        assert run.array("a").tolist() == run.array("b").tolist() == list(range(15))
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_run_in_the_place_of_a_killed_one_has_nothing_of_it(tmp_path: Path) -> None:
    """Whoever removes the file by hand leaves the writer's log beside it, which SQLite would replay into the next."""
    path = tmp_path / "a.sqlite"
    Run.create(path, study="old", config={}).close()
    writer = start_writer(path)
    assert writer.stdout is not None
    assert writer.stdout.readline()  # it has written a step
    kill(writer)
    assert (tmp_path / "a.sqlite-wal").exists()
    path.unlink()
    with Run.create(path, study="new", config={}) as run:
        assert run.names() == []


def test_a_run_that_is_being_written_cannot_be_deleted(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    Run.create(path, study="x", config={}).close()
    writer = start_writer(path)
    assert writer.stdout is not None
    assert writer.stdout.readline()  # it has written a step
    with pytest.raises(RunError, match="is being written already"):
        Run.delete(path)
    kill(writer)
    with Run.open(path) as run:
        assert run.last_step("x") is not None
    (tmp_path / "a.sqlite-part.checkpoint").touch()
    for ending in ("-wal", "-shm", "-journal"):  # SQLite would play them into the next run of this name
        (tmp_path / f"a.sqlite{ending}").write_bytes(b"left over")
    (tmp_path / "b.sqlite").touch()
    Run.delete(path)
    assert [left.name for left in tmp_path.iterdir()] == ["b.sqlite"]
    Run.delete(path)  # there is none
    Run.delete(tmp_path / "nowhere" / "a.sqlite")

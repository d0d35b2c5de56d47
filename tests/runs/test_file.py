"""Files that are no runs, damaged runs, and folders in which little is allowed."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from patience import PATIENCE

from joma.runs import Run, RunError, file

VALUES = np.random.default_rng(0).standard_normal((30, 40, 8))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.joma"


def finished(path: Path) -> bytes:
    with Run.create(path, study="demo", config={"lr": 0.1}) as run:
        for step, value in enumerate(VALUES):
            run.append("x", step, value)
        run.finish()
    return path.read_bytes()


def changed(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


FOREIGN = "CREATE TABLE t (a)"
MARKED = (FOREIGN, "DROP TABLE t", f"PRAGMA application_id = {file.APPLICATION_ID}", "PRAGMA user_version = 1")


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda path: None, "does not exist; "),
        (Path.mkdir, "is a folder or a device, not a run; a run is a plain file"),
        (Path.touch, r"is empty or cut off \(0 bytes\), not a run; delete it and run again"),
        (lambda path: path.write_text("hello " * 500), "is not a joma run"),
        (lambda path: changed(path, FOREIGN), "is an SQLite file, but not a joma run"),
        (
            lambda path: finished(path) and changed(path, "PRAGMA user_version = 9"),
            r"was written by a newer joma \(format 9; this reads up to 1\); upgrade it",
        ),
        (lambda path: changed(path, *MARKED), "is damaged: it has the mark of a joma run, but no such table"),
        (
            lambda path: finished(path) and changed(path, "DELETE FROM meta WHERE key = 'config'"),
            "is damaged: its config cannot be read",
        ),
        (lambda path: path.write_bytes(finished(path)[:50]), r"is empty or cut off \(50 bytes\), not a run"),
        (lambda path: path.write_bytes(finished(path)[:20_480]), "is damaged or cut off"),
        (lambda path: path.write_bytes(finished(path)[:-100]), "is damaged or cut off"),
    ],
    ids=["missing", "folder", "empty", "text", "foreign", "newer", "tables", "config", "header", "pages", "tail"],
)
def test_what_is_no_run_gets_one_sentence(
    path: Path, make: Callable[[Path], object], sentence: str, write: bool
) -> None:
    make(path)
    before = sorted(path.parent.iterdir())
    with pytest.raises(RunError, match=f"^{path} {sentence}") as caught:
        Run.open(path, write=write)
    assert "\n" not in str(caught.value)
    assert sorted(path.parent.iterdir()) == before  # no lock, no log is left beside it


def test_a_folder_that_is_a_file_or_has_too_long_a_name(path: Path) -> None:
    path.touch()
    for bad in (path / "b.joma", path.parent / ("x" * 300)):
        with pytest.raises(RunError, match=r"cannot be|does not exist"):
            Run.open(bad)
        with pytest.raises(RunError, match="cannot be"):
            Run.create(bad, study="demo", config={})


def test_a_path_that_sqlite_cannot_open_is_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "x" / ("y" * 200)
    longest = folder / ("z" * (480 - len(os.fsencode(folder)) - 1))
    with pytest.raises(RunError, match=r"has a path of 481 bytes, and a run's has at most 480$"):
        Run.create(f"{longest}z", study="demo", config={})
    assert not (tmp_path / "x").exists()
    with Run.create(longest, study="demo", config={}) as run:
        run.append("x", 0, 1.0)
    with Run.open(longest) as run:
        assert run.at("x", 0) == 1.0


def test_create_makes_folders_and_refuses_what_exists(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a run?#%20 100%.joma"
    finished(path)
    with pytest.raises(RunError, match=r"exists already; open it with Run\.open or choose another name"):
        Run.create(path, study="demo", config={})
    with Run.open(path) as run:
        assert np.array_equal(run.array("x"), VALUES)
    assert list(path.parent.iterdir()) == [path]


def test_a_full_disk_loses_nothing_and_resumes(path: Path) -> None:
    run = Run.create(path, study="demo", config={})
    assert run._connection is not None
    run._connection.execute("PRAGMA max_page_count = 20")  # SQLite then answers as on a full disk
    with pytest.raises(RunError, match=r"disk is full; everything recorded so far is safe, .* resumes"):  # noqa: PT012
        for step, value in enumerate(VALUES):
            run.record(step, {"x": value, "done": step})
    recorded = run.array("done")
    run.close()
    assert 0 < len(recorded) < 30
    with Run.open(path, write=True) as run:
        assert np.array_equal(run.array("x"), VALUES[: len(recorded)])
        for step in range(len(recorded), 30):
            run.append("x", step, VALUES[step])
        assert np.array_equal(run.array("x"), VALUES)


def test_an_array_too_large_for_a_row_is_refused(path: Path) -> None:
    with Run.create(path, study="demo", config={}) as run:
        assert run._connection is not None
        run._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 5000)
        with pytest.raises(RunError, match=r"'x' has 8,000 bytes, 4,000 fit; record it in parts"):
            run.append("x", 0, np.zeros(1000))


def journal_mode(run: Run) -> str:
    assert run._connection is not None
    return str(run._connection.execute("PRAGMA journal_mode").fetchone()[0])


def test_wal_only_where_it_is_safe(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Run.create(path, study="demo", config={}) as run:
        assert journal_mode(run) == "wal"
    monkeypatch.setattr(file, "on_network_drive", lambda path: True)
    with Run.open(path, write=True) as run, Run.open(path) as reader:
        assert journal_mode(run) == "delete"
        run.append("x", 0, 1.0)
        assert reader.array("x").tolist() == [1.0]
        assert not path.with_name("a.joma-wal").exists()


def test_network_drives_are_recognised(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/vda / ext4 rw 0 0\nserver:/export /net nfs4 rw 0 0\n/dev/vdb /net/local ext4 rw 0 0\n"
        "//host/share /my\\040drive cifs rw 0 0\nodd\n"
    )
    for place, expected in [
        ("/home/a.joma", False),
        ("/net/a.joma", True),
        ("/network/a.joma", False),
        ("/net/local/a.joma", False),
        ("/my drive/a.joma", True),
    ]:
        assert file.on_network_drive(Path(place), mounts) is expected, place
    assert file.on_network_drive(tmp_path, tmp_path / "no such file") is False


def test_finishing_leaves_one_file_also_under_a_reader(path: Path) -> None:
    run = Run.create(path, study="demo", config={})
    run.append("x", 0, 1.0)
    with Run.open(path) as reader:
        assert reader.value("x") == 1.0
        run.finish()
        assert reader.status == "finished"
    run.close()
    assert list(path.parent.iterdir()) == [path]


OPEN_AS_NOBODY = """
import fcntl, os, sys  # all of it now: the libraries may be closed to others
import urllib.parse  # which pathlib loads late from Python 3.13 on
from joma.runs import Run, RunError
path, write = sys.argv[1], sys.argv[2] == "write"
if os.geteuid() == 0:
    os.setgid(65534); os.setuid(65534)  # nothing is read-only to root
try:
    with Run.open(path, write=write) as run:
        print(run.status, run.array("x").sum())
except RunError as error:
    print(error)
"""


def opened_in_a_read_only_folder(path: Path, mode: str = "read") -> str:
    """What is said when a copy of the run, with its log if it has one, is opened by a user who may not write there."""
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to other users
        folder = Path(name)
        for file_of_run in path.parent.glob(f"{path.name}*"):
            if not file_of_run.name.endswith(("-shm", ".lock")):
                shutil.copy(file_of_run, folder)
        folder.chmod(0o555)
        command = [sys.executable, "-c", OPEN_AS_NOBODY, str(folder / path.name), mode]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        folder.chmod(0o755)
    return said


def test_a_finished_run_is_readable_in_a_read_only_folder(path: Path) -> None:
    finished(path)
    assert opened_in_a_read_only_folder(path) == f"finished {VALUES.sum()}"


def test_a_run_in_wal_mode_is_readable_in_a_read_only_folder(path: Path) -> None:
    finished(path)
    changed(path, "PRAGMA journal_mode = WAL")
    assert list(path.parent.iterdir()) == [path]
    assert opened_in_a_read_only_folder(path) == f"finished {VALUES.sum()}"


def killed_amid_a_commit(path: Path) -> None:
    with Run.create(path, study="demo", config={}) as run:
        run.append("x", 0, 1.0)
    killed = subprocess.run([sys.executable, "-c", DIE_AMID_A_COMMIT, str(path)], check=False)
    assert killed.returncode == -9
    assert path.with_name(f"{path.name}-journal").stat().st_size > 0


DIE_AMID_A_COMMIT = """
import os, signal, sqlite3, sys

connection = sqlite3.connect(sys.argv[1], isolation_level=None)
assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
connection.execute("PRAGMA cache_size = 1")  # so that pages go to the file before the commit
connection.execute("BEGIN")
row = connection.execute("SELECT series, dtype, shape, checksum, data FROM entries").fetchone()
for step in range(1, 2000):
    connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)", (row[0], step, *row[1:]))
for other in range(2000):  # and these push the pages of the entries out
    connection.execute("INSERT INTO series (name) VALUES (?)", (f"another {other}",))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_reader_does_not_see_half_a_commit(path: Path) -> None:
    killed_amid_a_commit(path)
    with Run.open(path) as run:
        assert run.steps("x").tolist() == [0]
    with Run.open(path, write=True) as run:
        assert run.steps("x").tolist() == [0]
    assert list(path.parent.iterdir()) == [path]


def test_half_a_commit_in_a_read_only_folder_is_refused(path: Path) -> None:
    killed_amid_a_commit(path)
    said = opened_in_a_read_only_folder(path)
    assert "was interrupted and its folder is read-only; copy it with a.joma-journal" in said


def test_an_interrupted_run_in_a_read_only_folder_hides_nothing(path: Path) -> None:
    with Run.create(path, study="demo", config={}) as run:
        run.append("x", 0, 1.0)
        said = opened_in_a_read_only_folder(path)
    assert "was interrupted and its folder is read-only; copy it with a.joma-wal" in said


def test_writing_where_it_is_forbidden_is_one_sentence(path: Path) -> None:
    Run.create(path, study="demo", config={}).close()
    said = opened_in_a_read_only_folder(path, "write")
    assert "a.joma cannot be written: a.joma.lock beside it cannot be made" in said
    assert "\n" not in said


WAITS = """
import sys
from time import sleep
from joma.cli.main import main
from joma.runs import file

def nap(seconds):
    print("waits", flush=True)
    sleep(seconds)

file.sleep = nap
file.Connection.patience = 1e9  # only the signal ends it
sys.exit(main(["export", sys.argv[1], "--to", "csv"]))
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_command_that_waits_for_a_lock_can_be_interrupted(tmp_path, number, status):
    path = tmp_path / "a.sqlite"
    with Run.create(path, study="demo", config={}) as run:
        run.append("loss", 0, 1.0)
        run.finish()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        waiting = subprocess.Popen(
            [sys.executable, "-c", WAITS, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            assert waiting.stdout.readline() == "waits\n"
            waiting.send_signal(number)
            said = waiting.communicate(timeout=PATIENCE)[1]
        finally:
            waiting.kill()
            waiting.wait()
    assert waiting.returncode == status
    assert said.count("\n") == 1
    assert said.startswith("joma: interrupted")


def test_a_lock_that_is_given_back_is_waited_for(tmp_path, monkeypatch):
    path = tmp_path / "a.sqlite"
    with Run.create(path, study="demo", config={}) as run:
        run.append("loss", 0, 1.0)
        run.finish()
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN EXCLUSIVE")
        ends = threading.Timer(0.3, other.execute, ["ROLLBACK"])
        ends.start()
        with Run.open(path) as run:
            assert run.array("loss").tolist() == [1.0]
        ends.join()
        monkeypatch.setattr(file.Connection, "patience", 0.2)
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(RunError, match="stayed locked by another program"):
            Run.open(path)


def test_where_no_memory_can_be_shared_the_rollback_journal_serves(tmp_path):
    """A folder in its place keeps SQLite from making the file whose memory is shared."""
    path = tmp_path / "a.sqlite"
    (tmp_path / "a.sqlite-shm").mkdir()
    with Run.create(tmp_path / "b.sqlite", study="demo", config={}) as run:
        run.append("loss", 0, 1.0)
    (tmp_path / "b.sqlite").rename(path)
    with Run.open(path, write=True) as run:
        assert run._connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        run.append("loss", 1, 2.0)
        with Run.open(path) as reader:
            assert reader.array("loss").tolist() == [1.0, 2.0]
        run.finish()
    with Run.open(path) as run:
        assert run.array("loss").tolist() == [1.0, 2.0]


def test_a_file_in_wal_mode_is_read_and_resumed_where_no_memory_can_be_shared(tmp_path):
    path = tmp_path / "a.sqlite"
    with Run.create(path, study="demo", config={}) as run:
        run.append("loss", 0, 1.0)
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA journal_mode = WAL").fetchone()
    (tmp_path / "a.sqlite-shm").mkdir()
    with Run.open(path) as run:
        assert run.array("loss").tolist() == [1.0]
    with Run.open(path, write=True) as run:
        run.append("loss", 1, 2.0)
    with Run.open(path) as run:
        assert run.array("loss").tolist() == [1.0, 2.0]

"""`joma watch` shows what a record holds, while another process writes it, and changes nothing there."""

import json
import os
import pty
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager, suppress

import numpy as np
import pytest

from joma.cli import watch
from joma.cli.main import main
from joma.cli.watched import MOST_NEW, POINTS, Folder
from joma.runs import Run, RunError, following
from joma.runs.following import runs_in

UNSEEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]")
WRITER = """
import sys
import numpy as np
from joma.runs import Run

run = Run.create(sys.argv[1], study="monitor", config={})
print("made", flush=True)
for line in sys.stdin:
    if line.strip() == "finish":
        run.finish()
    else:
        step = int(line)
        run.record(step, {"entropy": np.array([[1.0, 2.0], [3.0, step]]), "norm": float(step)})
    print("done", flush=True)
"""


@contextmanager
def writing(path):
    """Another process that writes a run: what is sent to it is recorded when `send` returns."""
    program = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "made\n"

        def send(word):
            process.stdin.write(f"{word}\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n"

        try:
            yield send, process
        finally:
            process.kill()


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def recorded(path, series):
    with closing(sqlite3.connect(path)) as file:
        rows = file.execute(
            "SELECT step, dtype, data FROM entries JOIN series ON id = series WHERE name = ? ORDER BY step", (series,)
        ).fetchall()
    return [(step, np.frombuffer(data, dtype)) for step, dtype, data in rows]


def made(path, steps=5, **series):
    random = np.random.default_rng(0)
    with Run.create(path, study="monitor", config={}) as run:
        for step in range(0, 10 * steps, 10):
            run.record(step, {"entropy": random.random((2, 3)), "loss": 1 / (1 + step), **series})
    return path


def look(folder):
    (run,) = folder.look()
    return run


def once(path, capsys, *more):
    capsys.readouterr()
    status = main(["watch", str(path), "--once", *more])
    return status, capsys.readouterr().out


def test_the_numbers_are_those_of_the_record(tmp_path, capsys):
    path = made(tmp_path / "a.joma", steps=100)
    status, out = once(tmp_path, capsys, "--json")
    assert status == 0
    (found,) = json.loads(out)["runs"]
    assert (found["study"], found["step"], found["state"], found["alarms"]) == ("monitor", 990, "not being written", [])
    for name in ("entropy", "loss"):
        rows = dict(recorded(path, name))
        values, shown = rows[990], found["series"][name]
        assert (shown["step"], shown["steps"], shown["count"], shown["finite"]) == (990, 100, values.size, values.size)
        assert (shown["min"], shown["max"]) == (values.min(), values.max())
        assert shown["mean"] == pytest.approx(values.mean(), rel=1e-12)
        assert len(shown["history"]) == POINTS
        assert [step for step, _ in shown["history"]] == sorted({step for step, _ in shown["history"]})
        assert (shown["history"][0][0], shown["history"][-1][0]) == (0, 990)
        for step, mean in shown["history"]:
            assert mean == pytest.approx(rows[step].mean(), rel=1e-12)


def test_the_table_has_a_row_per_series(tmp_path, capsys):
    path = made(tmp_path / "a.joma")
    status, out = once(path, capsys)
    assert status == 0
    assert out.startswith("a.joma: monitor, not being written, step 40")
    (row,) = [line for line in out.splitlines() if line.startswith("entropy")]
    values = recorded(path, "entropy")[-1][1]
    assert row.split()[:5] == [
        "entropy",
        "40",
        *(f"{each:.4g}" for each in (values.min(), values.mean(), values.max())),
    ]
    assert len(row.split()[5]) == 5
    assert not UNSEEN.search(out)


def test_numbers_that_are_none_are_counted_and_left_out(tmp_path, capsys):
    made(tmp_path / "a.joma", logit=np.array([1.0, np.nan, np.inf, 3.0]), lost=np.nan)
    _, out = once(tmp_path, capsys, "--json")
    series = json.loads(out, parse_constant=pytest.fail)["runs"][0]["series"]
    assert [series["logit"][key] for key in ("count", "finite", "min", "mean", "max")] == [4, 2, 1.0, 2.0, 3.0]
    assert [series["lost"][key] for key in ("count", "finite", "min", "mean", "max")] == [1, 0, None, None, None]
    table = once(tmp_path, capsys)[1]
    assert "2 of 4" in table
    assert re.search(r"^lost +\d+ +- +- +- +1 of 1", table, re.M)


def test_what_another_process_writes_is_seen_and_nothing_changes(tmp_path):
    path = tmp_path / "a.joma"
    with writing(path) as (send, _):
        folder = Folder(path)
        assert look(folder).entry["last"] is None
        for step in (3, 5, 8):
            send(step)
            before = contents(tmp_path)
            run = look(folder)
            assert contents(tmp_path) == before
            assert (run.entry["last"], run.state) == (step, "being written")
            assert [at for at, _ in run.new] == [step]
            assert (run.series["entropy"].numbers.max, run.series["norm"].numbers.mean) == (max(step, 3), step)
            assert look(folder).new == []
        send(9)
        send(10)
        assert [at for at, _ in look(folder).new] == [9, 10]
        send("finish")
        assert look(folder).state == "finished"
        assert sorted(contents(tmp_path)) == ["a.joma"]


def test_a_run_whose_writer_was_killed_is_read_and_left_as_it_is(tmp_path, capsys):
    with writing(tmp_path / "a.joma") as (send, process):
        send(4)
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = contents(tmp_path)
    assert "a.joma-wal" in before
    status, out = once(tmp_path, capsys, "--json")
    assert (status, json.loads(out)["runs"][0]["step"]) == (0, 4)
    assert json.loads(out)["runs"][0]["state"] == "not being written"
    assert contents(tmp_path) == before


def test_a_file_in_wal_mode_gets_no_helper_files(tmp_path, capsys):
    """A copy without what stands beside it, and a stranger's database."""
    made(tmp_path / "a.joma")
    for name in ("a.joma", "other.db"):
        with closing(sqlite3.connect(tmp_path / name)) as file:
            file.execute("PRAGMA journal_mode = WAL")
            if name == "other.db":
                file.execute("CREATE TABLE t (x)")
    before = contents(tmp_path)
    assert sorted(before) == ["a.joma", "other.db"]
    status, out = once(tmp_path, capsys, "--json")
    assert (status, len(json.loads(out)["runs"])) == (0, 1)
    assert contents(tmp_path) == before


def test_a_pipe_gets_one_line_per_new_step(tmp_path, capsys, monkeypatch):
    path = tmp_path / "a.joma"
    with writing(path) as (send, _):
        send(1)
        words = iter(["2", "3", "finish"])
        monkeypatch.setattr(watch, "sleep", lambda seconds: send(next(words)))
        assert main(["watch", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "a.joma: monitor, being written",
        "a.joma: step 1: entropy 1.75 (1 to 3), norm 1",
        "a.joma: step 2: entropy 2 (1 to 3), norm 2",
        "a.joma: step 3: entropy 2.25 (1 to 3), norm 3",
        "a.joma: monitor, finished",
    ]


def test_a_link_out_of_a_folder_is_named_and_not_followed(tmp_path):
    made(tmp_path / "outside.joma")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "link.joma").symlink_to(tmp_path / "outside.joma")
    assert "leads out of" in look(Folder(tmp_path / "runs")).fault
    assert not look(Folder(tmp_path / "runs" / "link.joma")).fault  # it was named itself


def test_a_folder_is_followed_until_ctrl_c(tmp_path, capsys, monkeypatch):
    made(tmp_path / "old.joma")
    os.utime(tmp_path / "old.joma", (1, 1))
    with writing(tmp_path / "runs" / "new.sqlite") as (send, _):
        send(1)
        waits = iter(range(2))

        def wait(seconds):
            assert seconds == 2
            if next(waits):
                raise KeyboardInterrupt
            send(6)

        monkeypatch.setattr(watch, "sleep", wait)
        assert main(["watch", str(tmp_path)]) == 130
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        "new.sqlite: monitor, being written",
        "new.sqlite: step 1: entropy 1.75 (1 to 3), norm 1",
        "old.joma: monitor, not being written",
        "new.sqlite: step 6: entropy 3 (1 to 6), norm 6",
    ]
    assert said.err == "joma: interrupted; only watching ends, the runs continue\n"


def test_the_rate_is_of_the_steps_since_the_first_look_and_of_when_files_were_written(tmp_path):
    """A run that begins at step 1,000: what came before it was not taken while anybody looked."""
    path = tmp_path / "run.joma"
    Run.create(path, study="demo", config={}).close()
    folder = Folder(path)
    for second, steps in ((100, (1000, 1010)), (105, (1020,)), (110, (1050,))):
        with Run.open(path, write=True) as run:
            for step in steps:
                run.append("loss", step, 1.0)
        os.utime(path, (second, second))
        seen = look(folder)
    assert (seen.rate, seen.entry["written"]) == (4.0, 110)


def test_of_many_new_steps_the_last_are_told(tmp_path):
    path = tmp_path / "run.joma"
    with Run.create(path, study="demo", config={}) as run:
        run.append("loss", 0, 1.0)
        folder = Folder(path)
        look(folder)
        for step in range(1, MOST_NEW + 31):
            run.append("loss", step, 1.0)
        new = [step for step, _ in look(folder).new]
    assert new == list(range(31, MOST_NEW + 31))


def test_another_run_of_the_same_name_begins_anew(tmp_path):
    path = made(tmp_path / "a.joma")
    folder = Folder(path)
    assert look(folder).entry["last"] == 40
    Run.delete(path)
    with Run.create(path, study="other", config={}) as run:
        run.append("loss", 10, 7.0)
    run = look(folder)
    assert (run.entry["study"], run.entry["last"], [step for step, _ in run.new]) == ("other", 10, [10])
    assert run.series["loss"].numbers.mean == 7.0


def test_alarms_of_a_monitor_are_shown(tmp_path, capsys):
    torch = pytest.importorskip("torch")
    from joma.monitor import LargestLogit, Monitor

    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    path = tmp_path / "a.joma"
    with Monitor(layer, probe=torch.ones(2, 10, 32), every=1, alarms=[LargestLogit(100)], out=path) as monitor:
        layer.self_attn.in_proj_weight.data.fill_(1.0)
        monitor.step()
        monitor.step()
    assert len(monitor.alerts) == 4
    _, out = once(path, capsys, "--json")
    (found,) = json.loads(out)["runs"]
    assert found["alarms"] == [{"step": 1, "says": str(alert)} for alert in monitor.alerts]
    assert set(found["series"]).isdisjoint({"alarms", "steps_taken"})
    shown = once(path, capsys)[1]
    assert [line for line in shown.splitlines() if line.startswith("alarm")] == [
        f"alarm: {alert}" for alert in monitor.alerts
    ]


def test_a_series_that_cannot_be_read_is_named_and_the_others_are_shown(tmp_path, capsys):
    """Steps of different shapes make no curve."""
    path = made(tmp_path / "a.joma")
    with Run.open(path, write=True) as run:
        for step in (0, 10):
            run.append("ragged", step, np.zeros(step + 1))
    status, out = once(path, capsys, "--json")
    (found,) = json.loads(out)["runs"]
    assert (status, sorted(found["series"]), len(found["unread"])) == (3, ["entropy", "loss"], 1)
    assert "'ragged'" in found["unread"][0]
    status, out = once(path, capsys)
    assert (status, out.splitlines()[-1]) == (3, found["unread"][0])


def test_the_last_steps_of_a_run_that_ends_between_two_looks_are_told(tmp_path, capsys, monkeypatch):
    made(tmp_path / "old.joma")
    with writing(tmp_path / "new.joma") as (send, _):
        send(1)
        words = iter([["2", "finish"], []])

        def wait(_):
            if not (sent := next(words)):
                raise KeyboardInterrupt
            for word in sent:
                send(word)

        monkeypatch.setattr(watch, "sleep", wait)
        assert main(["watch", str(tmp_path)]) == 130
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("new")]
    assert lines[2:] == ["new.joma: monitor, finished", "new.joma: step 2: entropy 2 (1 to 3), norm 2"]


def test_the_run_written_last_comes_first_and_a_damaged_one_stops_nothing(tmp_path, capsys):
    for at, name in enumerate(("a.joma", "b.joma", "c.joma", "d.joma")):
        made(tmp_path / name)
        os.utime(tmp_path / name, (at, at))
    bytes_of_b = (tmp_path / "b.joma").read_bytes()
    (tmp_path / "b.joma").write_bytes(bytes_of_b[:4096] + b"\xff" * 5000 + bytes_of_b[9096:])
    (tmp_path / "e.sqlite").write_bytes(b"no run" * 1000)
    (tmp_path / "notes.txt").write_text("x" * 1000)
    os.utime(tmp_path / "b.joma", (9, 9))
    os.utime(tmp_path / "e.sqlite", (8, 8))
    before = contents(tmp_path)
    assert [path.name for path in runs_in(tmp_path)] == ["b.joma", "e.sqlite", "d.joma", "c.joma", "a.joma"]
    status, out = once(tmp_path, capsys, "--json")
    assert status == 3
    runs = json.loads(out)["runs"]
    assert ["fault" in run for run in runs] == [True, True, False, False, False]
    assert str(tmp_path / "b.joma") in runs[0]["fault"]
    status, out = once(tmp_path, capsys)
    assert (status, out.splitlines()[0]) == (3, "5 runs")
    assert out.count("cannot be read: ") == 2
    assert "\nd.joma\n" in out
    assert contents(tmp_path) == before


def test_refusals_are_one_sentence(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("x" * 1000)
    with closing(sqlite3.connect(tmp_path / "other.db")) as file:
        file.execute("CREATE TABLE t (x)")
    before = contents(tmp_path)
    for arguments, sentence in (
        ([tmp_path / "empty"], f"{tmp_path / 'empty'} holds no run; "),
        ([tmp_path / "text.txt"], f"{tmp_path / 'text.txt'} is not a joma run: "),
        ([tmp_path / "other.db"], f"{tmp_path / 'other.db'} is an SQLite file, but not a joma run"),
    ):
        assert main(["watch", *map(str, arguments)]) == 2
        said = capsys.readouterr()
        assert said.err.startswith(f"joma: {sentence}")
        assert (said.err.count("\n"), said.out) == (1, "")
    assert contents(tmp_path) == before


def test_names_do_nothing_to_a_terminal(tmp_path, capsys, monkeypatch):
    path = tmp_path / "run\x1b[2J\r\nall well.joma"
    with Run.create(path, study="[red]a[/red]", config={}) as run:
        run.append("[bold]loss[/bold]", 0, 1.0)
        run.fail("it \x1b]0;owned\x07 broke")
    for arguments in (["--once"], ["--once", "--json"], []):
        assert main(["watch", str(tmp_path if arguments else path), *arguments]) == 0
        out = capsys.readouterr().out
        assert not UNSEEN.search(out)
        assert "\nall well" not in out
        assert "\\u001b]0;owned" in out
        assert "[red]a[/red]" in out
        assert "[bold]loss[/bold]" in out


def test_a_terminal_gets_a_table_that_is_drawn_again(tmp_path):
    """Of a run that is over: then it ends by itself."""
    path = made(tmp_path / "a.joma")
    with Run.open(path, write=True) as run:
        run.finish()
    ours, its = pty.openpty()
    program = [sys.executable, "-m", "joma", "watch", str(path)]
    done = subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=its, env={**os.environ, "TERM": "xterm"})
    os.close(its)
    shown = b""
    with suppress(OSError):  # Linux tells the end of a terminal by an error
        while more := os.read(ours, 4096):
            shown += more
    os.close(ours)
    assert done.wait() == 0
    assert b"history of the mean" in shown
    assert b"\x1b[" in shown


def test_a_writer_that_comes_and_goes_is_no_fault(tmp_path, monkeypatch):
    """At the moment when a file beside a run is taken away it cannot be opened: the next try can."""
    path = tmp_path / "a.joma"
    with writing(path) as (send, _):
        send(1)
        opened, real = [], following.file.open_untouched

        def fails_twice(place, **named):
            opened.append(place)
            if len(opened) < 3:
                raise RunError(f"{place} cannot be opened")
            return real(place, **named)

        monkeypatch.setattr(following.file, "open_untouched", fails_twice)
        assert look(Folder(path)).entry["last"] == 1
    opened.clear()
    with pytest.raises(RunError, match="cannot be opened"):  # nobody writes it: it stays as it is
        Folder(path).look()
    assert len(opened) == 1

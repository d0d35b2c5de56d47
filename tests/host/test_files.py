"""Files that are whole or not there, and places refused before any work."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from joma.host.errors import BadInput, FileError, JomaError, as_bad_input
from joma.host.file_kinds import JSON, OWN
from joma.host.files import atomically, named_file, refuse_files, usable_file, usable_folder, write_json, write_text


def test_what_fails_half_way_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old", OWN)

    def half_way():
        with atomically(path, OWN) as unfinished:
            unfinished.write_text("ne")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        half_way()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_came_to_be_there_during_the_work_stays(tmp_path):
    path = tmp_path / "a.json"

    def write():
        with atomically(path, JSON) as unfinished:
            write_json(unfinished, {"schema": "joma-scan"})
            path.write_text("mine")

    with pytest.raises(FileError, match="is there already, and is not JSON that joma wrote"):
        write()
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("a.json", "mine")]


def test_two_writers_do_not_mix(tmp_path):
    path = tmp_path / "a.txt"
    with atomically(path, OWN) as first, atomically(path, OWN) as second:
        assert first != second
        first.write_text("first")
        second.write_text("second")
    assert path.read_text() == "first"  # the outer block ends last
    assert list(tmp_path.iterdir()) == [path]


KILLED = """
import os, signal, sys
from pathlib import Path
from joma.host.files import atomically
from joma.host.file_kinds import OWN
with atomically(Path(sys.argv[1]), OWN) as unfinished:
    unfinished.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old", OWN)
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "old"


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path):
    with pytest.raises(FileError, match=r"nowhere/a.json cannot be written: No such file or directory"):
        write_json(tmp_path / "nowhere" / "a.json", {})


def test_outputs_are_refused_before_work(tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(BadInput, match="out must be a folder"):
        usable_folder(file)
    with pytest.raises(BadInput, match="is a folder"):
        usable_file(tmp_path, JSON)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput, match="is a pipe"):
        usable_file(tmp_path / "pipe", JSON)
    with pytest.raises(BadInput, match="there is no folder"):
        usable_file(tmp_path / "none" / "a.json", JSON)
    usable_file(tmp_path / "new.json", JSON)
    assert not (tmp_path / "new.json").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "pipe"]


def test_a_link_that_a_user_names_stays_and_its_file_is_written(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link.json").symlink_to("there/a.json")
    usable_file(tmp_path / "link.json", JSON)
    write_json(named_file(tmp_path / "link.json"), {"a": 1})
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "there" / "a.json").read_text() == '{\n "a": 1\n}\n'
    (tmp_path / "away.json").symlink_to(tmp_path / "nowhere" / "a.json")
    with pytest.raises(BadInput, match="there is no folder"):
        usable_file(tmp_path / "away.json", JSON)
    (tmp_path / "loop.json").symlink_to(tmp_path / "loop.json")
    with pytest.raises(BadInput, match="is a loop of links"):
        usable_file(tmp_path / "loop.json", JSON)


def test_what_a_user_asked_for_is_bad_input_and_a_bug_is_not():
    with pytest.raises(BadInput, match="tokens"), as_bad_input():
        raise ValueError("tokens must be at least 1")
    with pytest.raises(TypeError), as_bad_input():
        raise TypeError("a bug")


@pytest.mark.parametrize("name", ["runs.RunError", "scan.CheckpointError", "data.errors.CorpusError"])
def test_every_layer_has_its_error_and_all_are_joma_errors(name):
    from importlib import import_module

    module, _, kind = name.rpartition(".")
    assert issubclass(getattr(import_module(f"joma.{module}"), kind), JomaError)


def test_what_a_killed_writer_left_goes_with_the_next_one(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    names = [f".a.csv.{gone.pid}-0.new", f".a.csv.{gone.pid}-1.new", f".a.csv.{os.getpid()}-99.new", ".a.csv.mine.new"]
    for name in names:
        (tmp_path / name).write_text("half")
        os.utime(tmp_path / name, (0, 0))
    os.utime(tmp_path / names[1])  # of a machine that shares the folder, for all anyone knows
    with atomically(tmp_path / "a.csv", OWN) as unfinished:
        unfinished.write_text("all")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names[1:], "a.csv"])


def test_a_short_name_within_a_deep_folder_is_deep(tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 200) / ("e" * 200)
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    with pytest.raises(BadInput, match="and runs below it need one of at most 380: out"):
        refuse_files(Path("out"))


def test_what_names_its_argument_or_its_file_keeps_it_when_it_was_asked_for():
    with pytest.raises(BadInput, match="a text") as caught, as_bad_input():
        raise BadInput("entropy needs a text", argument="text")
    assert caught.value.argument == "text"
    with pytest.raises(FileError, match="full"), as_bad_input():
        raise FileError("the disk is full")


def test_half_a_character_can_be_read_back(tmp_path):
    write_text(tmp_path / "a.json", '{"name": "caf\udce9"}', OWN)
    assert (tmp_path / "a.json").read_bytes() == b'{"name": "caf\\udce9"}'

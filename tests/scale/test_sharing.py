"""A folder that two machines share is known by a mark in it; one that they do not share is refused."""

import shutil
import socket

import pytest

from joma.scale import sharing
from joma.scale.sharing import marked, must_be_shared
from joma.scale.task import ScaleError


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(sharing, "_PATIENCE", 0.0)


def test_who_sees_the_mark_may_work_and_nothing_is_left(out, at_once):
    with marked(out) as mark:
        must_be_shared(out, mark)
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("there", [False, True])
def test_a_folder_that_is_missing_or_another_one_is_refused_in_one_sentence(tmp_path, out, at_once, there):
    other = tmp_path / "other"
    if there:
        other.mkdir()
    with marked(out) as mark, pytest.raises(ScaleError) as error:
        must_be_shared(other, mark)
    where = f"on {socket.gethostname()} {other} is missing, or another folder"
    assert str(error.value) == f"out must be a folder that all machines of the cluster share, and {where}"
    assert other.exists() == there


def test_a_copy_of_an_earlier_time_is_another_folder(tmp_path, out, at_once):
    with marked(out):
        shutil.copytree(out, tmp_path / "copy")
    with marked(out) as mark, pytest.raises(ScaleError):
        must_be_shared(tmp_path / "copy", mark)


def test_a_mark_that_comes_late_is_waited_for(tmp_path, monkeypatch):
    clock = [0.0]

    def sleep(seconds):
        clock[0] += seconds
        if clock[0] > 0.9 * sharing._PATIENCE:
            (tmp_path / "mark").touch()

    monkeypatch.setattr(sharing, "monotonic", lambda: clock[0])
    monkeypatch.setattr(sharing, "sleep", sleep)
    must_be_shared(tmp_path, "mark")
    with pytest.raises(ScaleError):
        must_be_shared(tmp_path, "another")


def test_the_mark_goes_also_where_the_work_is_interrupted(out):
    with pytest.raises(KeyboardInterrupt), marked(out):
        raise KeyboardInterrupt
    assert list(out.iterdir()) == []


def test_a_mark_that_somebody_took_away_is_no_error(out):
    with marked(out) as mark:
        (out / mark).unlink()
    assert list(out.iterdir()) == []

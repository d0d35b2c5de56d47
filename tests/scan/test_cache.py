"""The download cache stays within its budget and never removes what is in use."""

import os
import threading

import pytest

from joma.scan.cache import DiskCache
from joma.scan.errors import CheckpointError


def put(path, size, age):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"0" * size)
    os.utime(path, (age, age))


def test_the_least_recently_used_goes_first(tmp_path):
    cache = DiskCache(tmp_path, 100)
    put(tmp_path / "a" / "old", 40, age=1)
    put(tmp_path / "b" / "new", 40, age=2)
    with cache.hold(tmp_path / "c", 50, "c"):
        assert not (tmp_path / "a" / "old").exists()
        assert (tmp_path / "b" / "new").exists()


def test_what_is_held_stays(tmp_path):
    cache = DiskCache(tmp_path, 100)
    with cache.hold(tmp_path / "a", 60, "a"):
        put(tmp_path / "a" / "deep" / "file", 60, age=1)
        with cache.hold(tmp_path / "a", 60, "a"), cache.hold(tmp_path / "b", 40, "b"):
            assert (tmp_path / "a" / "deep" / "file").exists()


def test_too_large_is_one_sentence(tmp_path):
    with pytest.raises(CheckpointError, match="--budget"), DiskCache(tmp_path, 100).hold(tmp_path / "a", 101, "a"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_others_wait_until_there_is_room(tmp_path):
    cache = DiskCache(tmp_path, 100)
    entered = threading.Event()

    def second():
        with cache.hold(tmp_path / "b", 80, "b"):
            entered.set()

    with cache.hold(tmp_path / "a", 80, "a"):
        thread = threading.Thread(target=second)
        thread.start()
        assert not entered.wait(0.1)
    thread.join(5)
    assert entered.is_set()

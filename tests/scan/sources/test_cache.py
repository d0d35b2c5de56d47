"""The download cache stays within its budget, never removes what is in use, and never what it did not make."""

import json
import multiprocessing
import os
import shutil
import threading
from types import SimpleNamespace

import pytest
from patience import PATIENCE

from joma.scan.errors import CheckpointError
from joma.scan.sources.downloads import FOLDER, DiskCache
from joma.scan.sources.remote import RemoteCheckpoint


def get(cache, name, size, age=None):
    path = cache.file(name, size, lambda stream: stream.write(bytes(size - stream.tell())), lambda _: True)
    if age is not None:
        os.utime(record_of(cache, name), (age, age))
    return path


def record_of(cache, name):
    return cache.folder / "records" / f"{name}.json"


def squeeze(cache):
    with cache.hold("squeeze/all", cache.budget, "all"):
        pass


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


@pytest.mark.parametrize("used", [False, True])
def test_the_least_recently_used_goes_first(tmp_path, used):
    cache = DiskCache(tmp_path, 100)
    old, new = get(cache, "a/1/old", 40, age=1), get(cache, "b/1/new", 40, age=2)
    if used:
        get(cache, "a/1/old", 40)
    with cache.hold("c/1", 50, "c"):
        assert (old.exists(), new.exists()) == (used, not used)


def test_what_is_held_counts_once_and_at_its_promise(tmp_path):
    cache = DiskCache(tmp_path, 100)
    other = get(cache, "z/1/other", 30, age=1)
    with cache.hold("a/1", 60, "a"):
        get(cache, "a/1/file", 50)
        with cache.hold("b/1", 10, "b"):  # 60 + 30 + 10: nothing has to go
            assert other.exists()
        with cache.hold("a/1", 20, "a"), cache.hold("b/1", 10, "b"):  # two users of one checkpoint share its files
            assert other.exists()
        with cache.hold("b/1", 11, "b"):  # one byte too many, though not all that was promised is there yet
            assert not other.exists()


def test_what_another_process_holds_stays(tmp_path):
    """Another cache of the same folder sees what another process would: locks are per open file."""
    one, other = DiskCache(tmp_path, 100), DiskCache(tmp_path, 100)
    with one.hold("a/1", 60, "a"):
        file = get(one, "a/1/file", 60)
        squeeze(other)
        assert file.exists()
    squeeze(other)
    assert not file.exists()


def test_too_large_is_one_sentence(tmp_path):
    with pytest.raises(CheckpointError, match="raise the budget"), DiskCache(tmp_path, 100).hold("a/1", 101, "a"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_others_wait_until_there_is_room(tmp_path):
    cache = DiskCache(tmp_path, 100)
    entered = threading.Event()

    def second():
        with cache.hold("b/1", 80, "b"):
            entered.set()

    with cache.hold("a/1", 80, "a"):
        thread = threading.Thread(target=second)
        thread.start()
        assert not entered.wait(0.1)
    thread.join(PATIENCE)
    assert entered.is_set()


def test_foreign_files_stay_and_do_not_count(tmp_path):
    cache = DiskCache(tmp_path, 100)
    ours = get(cache, "a/1/ours", 60, age=1)
    foreign = [
        tmp_path / "thesis.tex",
        tmp_path / "downloads" / "holiday.jpg",
        cache.folder / "notes.txt",
        cache.folder / "files" / "notes.txt",
        ours.with_name("beside"),
        cache.folder / "parts" / "a" / "1" / "part",
        cache.folder / "records" / "a" / "1" / "list.json",
        cache.folder / "locks" / "mine",
    ]
    for path in foreign:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 500)
        os.utime(path, (0, 0))
    with cache.hold("b/1", 40, "b"):
        assert ours.exists()  # 60 + 40 bytes fit: the 4,000 of others do not count
    squeeze(cache)
    assert not ours.exists()
    assert [path.read_bytes() for path in foreign] == [b"x" * 500] * len(foreign)


@pytest.mark.parametrize("how", ["longer", "shorter", "same size", "folder", "link"])
def test_a_file_that_changed_is_no_longer_ours(tmp_path, how):
    cache = DiskCache(tmp_path, 100)
    ours = get(cache, "a/1/file", 60)
    other = tmp_path / "other"
    other.write_bytes(bytes(60))
    shutil.copystat(ours, other)  # so that only the link tells it from ours
    match how:
        case "longer" | "shorter":
            ours.write_bytes(b"x" * (61 if how == "longer" else 59))
            shutil.copystat(other, ours)  # so that only the size tells it from ours
        case "same size":
            ours.write_bytes(b"x" * 60)
            os.utime(ours, (1, 1))
        case "folder":
            ours.unlink()
            ours.mkdir()
        case "link":
            ours.unlink()
            ours.symlink_to(other)
    squeeze(cache)
    assert os.path.lexists(ours)
    assert other.exists()


@pytest.mark.parametrize("level", ["files", "files/a", "files/a/1", "records", "records/a"])
def test_nothing_behind_a_symbolic_link_is_removed(tmp_path, level):
    cache = DiskCache(tmp_path, 100)
    get(cache, "a/1/file", 60)
    link, elsewhere = cache.folder / level, tmp_path / "elsewhere"
    link.rename(elsewhere)
    link.symlink_to(elsewhere)
    before = contents(tmp_path)
    squeeze(cache)
    assert before.items() <= contents(tmp_path).items()


def test_nothing_is_downloaded_through_a_symbolic_link(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / FOLDER).symlink_to(elsewhere)
    cache = DiskCache(tmp_path, 100)
    with pytest.raises(CheckpointError, match="symbolic link"), cache.hold("a/1", 10, "a"):
        pass
    with pytest.raises(CheckpointError, match="symbolic link"):
        get(cache, "a/1/file", 10)
    assert list(elsewhere.iterdir()) == []


HOSTILE = [
    b"",
    b"{",
    b"\xff\xfe",
    b"[" * 100_000,
    b"null",
    b'{"size": -1, "modified": 0}',
    b'{"size": "60", "modified": 0}',
    b'{"size": 1e400, "modified": null}',
    b'{"size": 60}',
    b'{"path": "/etc/passwd", "size": 60, "modified": null}',
    b'{"path": "../../../thesis.tex", "size": 60, "modified": null}',
]


@pytest.mark.parametrize("record", HOSTILE)
def test_damaged_and_hostile_records_remove_nothing(tmp_path, record):
    cache = DiskCache(tmp_path, 100)
    get(cache, "a/1/file", 60)
    (tmp_path / "thesis.tex").write_bytes(bytes(60))
    record_of(cache, "a/1/file").write_bytes(record)
    before = contents(tmp_path / FOLDER / "files")
    squeeze(cache)
    assert contents(tmp_path / FOLDER / "files") == before
    assert (tmp_path / "thesis.tex").exists()
    assert get(cache, "a/1/file", 60).read_bytes() == bytes(60)  # it has the right content, so it is used


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_record_that_is_no_plain_file_is_not_read(tmp_path, kind):
    cache = DiskCache(tmp_path, 100)
    ours = get(cache, "a/1/file", 60)
    record = record_of(cache, "a/1/file")
    record.rename(tmp_path / "record")
    if kind == "link":
        record.symlink_to(tmp_path / "record")
    else:
        os.mkfifo(record)
    squeeze(cache)
    assert ours.exists()


def test_a_damaged_record_is_kept_and_a_new_one_made(tmp_path):
    cache = DiskCache(tmp_path, 100)
    ours = get(cache, "a/1/file", 60)
    record_of(cache, "a/1/file").write_bytes(b"{")
    ours.unlink()
    get(cache, "a/1/file", 60)
    assert b"{" in contents(cache.folder / "records").values()
    squeeze(cache)
    assert not ours.exists()


def test_the_record_is_there_before_the_first_byte_and_the_rest_of_a_broken_download_is_used(tmp_path):
    cache = DiskCache(tmp_path, 100)

    def break_off(stream):
        assert json.loads(record_of(cache, "a/1/file").read_text()) == {"size": 60, "modified": None}
        stream.write(b"x" * 20)
        raise KeyboardInterrupt

    def go_on(stream):
        assert stream.tell() == 20
        stream.write(b"x" * 40)

    with pytest.raises(KeyboardInterrupt):
        cache.file("a/1/file", 60, break_off, lambda _: True)
    assert cache.file("a/1/file", 60, go_on, lambda _: True).read_bytes() == b"x" * 60


def test_what_a_broken_download_left_counts_and_is_removed(tmp_path):
    cache = DiskCache(tmp_path, 100)
    with pytest.raises(CheckpointError, match="cannot be written: No space left"):
        cache.file("a/1/file", 60, _full_disk, lambda _: True)
    (part,) = contents(cache.folder / "parts")
    assert part.stat().st_size == 20
    with cache.hold("b/1", 80, "b"):
        assert part.exists()
    with cache.hold("b/1", 81, "b"):
        assert not part.exists()


@pytest.mark.parametrize("finished", [False, True])
def test_an_unfinished_file_that_does_not_agree_with_its_record_is_not_ours(tmp_path, finished):
    cache = DiskCache(tmp_path, 100)
    with pytest.raises(CheckpointError):
        cache.file("a/1/file", 60, _full_disk, lambda _: True)
    (part,) = contents(cache.folder / "parts")
    if finished:
        get(cache, "a/1/file", 60)
    part.write_bytes(b"x" * (20 if finished else 61))
    squeeze(cache)
    assert part.exists()


def _full_disk(stream):
    stream.write(b"x" * 20)
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("where", ["files", "parts"])
def test_a_foreign_file_in_the_way_is_not_replaced(tmp_path, where):
    cache = DiskCache(tmp_path, 100)
    path = cache.folder / where / "a" / "1" / "file"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"mine")
    with pytest.raises(CheckpointError, match="joma did not make it; move it elsewhere"):
        cache.file("a/1/file", 60, lambda stream: stream.write(bytes(60)), lambda _: False)
    squeeze(cache)
    assert path.read_bytes() == b"mine"


def test_a_wrong_download_is_deleted(tmp_path):
    cache = DiskCache(tmp_path, 100)
    with pytest.raises(CheckpointError, match="hash that the hub lists; it was deleted"):
        cache.file("a/1/file", 60, lambda stream: stream.write(bytes(60)), lambda _: False)
    assert contents(cache.folder / "files") | contents(cache.folder / "parts") == {}


def _fetch_many(folder, worker, start):
    cache = DiskCache(folder, 10_000)
    start.wait()
    for number in range(20):
        get(cache, f"a/1/{worker}-{number}", 10)
        get(cache, f"a/1/shared-{number}", 10)


# Python 3.12 warns of a fork beside threads. The children touch files alone, none of what torch's threads may hold.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_processes_at_once_lose_no_record(tmp_path):
    context = multiprocessing.get_context("fork")
    start = context.Event()
    workers = [context.Process(target=_fetch_many, args=(tmp_path, worker, start)) for worker in range(4)]
    for worker in workers:
        worker.start()
    start.set()
    for worker in workers:
        worker.join(PATIENCE)
    assert [worker.exitcode for worker in workers] == [0] * 4
    cache = DiskCache(tmp_path, 1000)
    assert len(contents(cache.folder / "files")) == 100
    squeeze(cache)
    assert contents(cache.folder / "files") == {}
    assert contents(cache.folder / "records") == {}


class TwoShards(RemoteCheckpoint):
    """A checkpoint elsewhere that must be downloaded whole, in two files of 60 bytes."""

    name = where = cached_as = "two"

    def __init__(self, cache: DiskCache) -> None:
        self.cache = cache

    def listed(self):
        return {f"pytorch_model-0000{at}-of-00002.bin": SimpleNamespace(size=60) for at in (1, 2)}

    def ranges(self, file):
        raise AssertionError("there is no room for it")

    right = ranges


def test_all_files_of_a_checkpoint_must_fit_the_budget_together(tmp_path):
    with pytest.raises(CheckpointError, match=r"two must be downloaded whole .* raise the budget"):
        TwoShards(DiskCache(tmp_path, 100)).open()

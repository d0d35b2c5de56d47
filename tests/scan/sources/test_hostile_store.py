"""Stores and web servers that go on for ever: what is read of them is bounded, and so is the time that it takes."""

import json
import subprocess
from functools import partial
from itertools import count
from types import SimpleNamespace

import hostile_store
import pytest
from hostile_store import ENTRY, hostile_server, page
from object_server import environment
from patience import not_for_ever

from joma.host import limits, store_listing, stores
from joma.scan import CheckpointError, open_series
from joma.scan.sources.objects import Bucket

MEGABYTES = 2**20
RUN = stores.read_address("s3://bucket/run")


@pytest.fixture
def hostile(monkeypatch):
    """Starts a store that answers in a way of its own, as the store of the environment."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def start(answer):
            address, asked = stack.enter_context(hostile_server(answer))
            for name, value in environment(address).items():
                monkeypatch.setenv(name, value)
            return asked

        yield start


@pytest.mark.parametrize(("answer", "limit", "why"), [
    ("pages_without_end", {"STORE_LISTING_BYTES": 4 * MEGABYTES}, "lists more than 4,194,304 bytes of memory"),
    ("body_without_end", {"STORE_LISTING_BYTES": 4 * MEGABYTES}, "lists more than 4,194,304 bytes of memory"),
    ("refusal_without_end", {"STORE_LISTING_BYTES": 4 * MEGABYTES}, "lists more than 4,194,304 bytes of memory"),
    ("empty_pages_without_end", {"STORE_SECONDS": 0.5}, r"could not be listed: that took more than 0\.5 s"),
    ("same_page_without_end", {"STORE_SECONDS": 0.5}, r"could not be listed: that took more than 0\.5 s"),
    ("broken_words", {}, "could not be read: the connection broke|could not be read: the server answered"),
])  # fmt: skip
def test_a_listing_without_end_is_a_sentence(hostile, monkeypatch, tmp_path, answer, limit, why):
    asked = hostile(getattr(hostile_store, answer))
    for name, value in limit.items():
        monkeypatch.setattr(limits, name, value)
    with not_for_ever(), pytest.raises(CheckpointError, match=why):
        open_series(str(RUN), downloads=tmp_path)
    assert asked.requests > 0
    assert asked.sent < 2**31  # more than that, the process that reads would not get


def test_a_lister_that_was_ended_asks_again_and_its_process_ends_with_it(hostile, monkeypatch):
    """One bad folder costs no other one."""
    started = []
    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *all, **named: started.append(real(*all, **named)) or started[-1])

    def answer(handler, number):
        if "bad" in handler.path:
            return hostile_store.body_without_end(handler, number)
        return handler.whole(200, page(ENTRY.format(7), None))

    hostile(answer)
    monkeypatch.setattr(limits, "STORE_LISTING_BYTES", 16 * MEGABYTES)
    bucket = Bucket(RUN)
    assert [*bucket.listing(RUN)[0]] == [*bucket.listing(RUN)[0]] == ["step7.safetensors"]
    assert len(started) == 1  # for both
    with not_for_ever(), pytest.raises(CheckpointError, match="name a folder in it"):
        bucket.listing(RUN / "bad")
    assert started[0].returncode is not None
    assert [*bucket.listing(RUN)[0]] == ["step7.safetensors"]
    del bucket
    assert [each.returncode is not None for each in started] == [True, True]


def test_an_answer_that_is_longer_than_its_range_is_not_read_to_its_end(hostile):
    """The length of a body is what the server says, whatever range was asked for."""
    size = 1000
    about = {"ETag": '"a"', "Last_Modified": "Tue, 17 Nov 2026 20:00:00 GMT"}

    def answer(handler, number):
        if handler.command == "HEAD":
            return handler.whole(200, bytes(size), **about)
        about_range = {"Content_Range": f"bytes 0-9/{size}", "Content_Length": str(2**40)}
        return handler.without_end(206, bytes(2**16), **about, **about_range)

    asked = hostile(answer)
    bucket, place = Bucket(RUN), RUN / "step7.safetensors"
    source = bucket.ranges(place, bucket.find(place))
    with not_for_ever(), pytest.raises(CheckpointError, match="and was asked for 10 from byte 0 on"):
        source.read_into(0, memoryview(bytearray(10)))
    assert asked.sent < 200 * MEGABYTES


def test_an_index_whose_files_are_not_there_is_given_up_at_the_first(site, web, tmp_path):
    shards = [f"model-{at:05d}-of-02000.safetensors" for at in range(1, 2001)]
    site.files["/m/model.safetensors.index.json"] = json.dumps({"weight_map": dict(zip(shards, shards, strict=True))})
    site.files = {path: content.encode() for path, content in site.files.items()}
    with pytest.raises(CheckpointError, match=f"{shards[0]} is missing in {web}/m, and the index names it"):
        open_series(f"{web}/m/model.safetensors.index.json", downloads=tmp_path)
    assert [each.path for each in site.traffic.asked].count(f"/m/{shards[0]}") == 1
    assert not any(f"/m/{shard}" == each.path for each in site.traffic.asked for shard in shards[1:])


def test_an_index_that_names_too_many_files_is_refused_before_any_is_asked_for(site, web, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "WEB_FILES", 3)
    index = {"weight_map": {str(at): f"m-{at}.safetensors" for at in range(4)}}
    site.files["/m/model.safetensors.index.json"] = json.dumps(index).encode()
    with pytest.raises(CheckpointError, match=r"index\.json names more than 3 files"):
        open_series(f"{web}/m/model.safetensors.index.json", downloads=tmp_path)
    assert not any("m-" in each.path for each in site.traffic.asked)


def test_an_index_has_one_deadline_for_all_files(site, web, tmp_path, monkeypatch):
    """Here a file takes all the time that there is, and each of them a second."""
    names = [f"m-{at}.safetensors" for at in range(4)]
    site.files = {f"/m/{name}": bytes(10) for name in names}
    site.files["/m/model.safetensors.index.json"] = json.dumps(
        {"weight_map": dict(zip(names, names, strict=True))}
    ).encode()
    clock = SimpleNamespace(monotonic=partial(next, count(0.0, limits.STORE_SECONDS)))
    monkeypatch.setattr("joma.scan.sources.store.time", clock)
    with pytest.raises(CheckpointError, match=r"index\.json names 4 files, and finding them takes too long"):
        open_series(f"{web}/m/model.safetensors.index.json", downloads=tmp_path)
    assert not any("m-3" in each.path for each in site.traffic.asked)


def test_headers_that_drip_are_given_up(monkeypatch, tmp_path):
    """A byte now and then keeps a socket from timing out."""
    import time

    def drip(handler, number):
        handler.wfile.write(b"HTTP/1.1 206 Partial Content\r\n")
        while True:
            handler.wfile.write(b"X-A: a\r\n" if number % 2 else b"a")
            handler.wfile.flush()
            time.sleep(0.05)

    with hostile_server(drip) as (address, asked):
        monkeypatch.setattr(limits, "STORE_SECONDS", 0.5)
        with not_for_ever(), pytest.raises(CheckpointError, match=r"a request took more than 0\.5 s"):
            open_series(f"{address}/m.safetensors", downloads=tmp_path)
        assert asked.requests == 1


@pytest.mark.parametrize("answer", [{"refused": "no"}, {"refused": "s3://bucket/run does not exist"}])
def test_a_refusal_travels_as_it_is(answer):
    with pytest.raises(stores.StoreError, match=answer["refused"]):
        store_listing.entries_in(answer)

"""Objects and files that are replaced while they are read, or between two scans: named, and never mixed."""

import threading

import pytest
import torch
from checkpoint_series import scan
from safetensors.torch import save
from stored_weights import UP, bytes_from, weights

from joma.host import stores
from joma.scan import CheckpointError, open_series
from joma.scan.sources.objects import Bucket, Listed


def test_an_object_that_is_replaced_between_two_ranges_is_named(s3, traffic, tmp_path):
    state = weights(0, layers=2, side=64)
    address = s3("run/step5.safetensors", save(state))
    before, other = save(state), save({name: -value for name, value in state.items()})
    assert len(before) == len(other)
    with open_series(address, downloads=tmp_path).places[0].open() as checkpoint:
        assert torch.equal(checkpoint.read(UP.format(0)), state[UP.format(0)])
        s3("run/step5.safetensors", other)
        with pytest.raises(CheckpointError, match=r"s3://bucket/run/step5\.safetensors was replaced while it was read"):
            checkpoint.read(UP.format(1))


def test_a_scan_of_an_object_that_is_replaced_leaves_the_step_out(s3, traffic, tmp_path):
    for step in (0, 10, 20, 30):
        s3(f"run/step{step}.safetensors", save(weights(step, layers=2, side=64)))
    swapped = threading.Lock()

    def replace(number):  # between the header and the tensors of the last one
        mine = [each for each in traffic.reads() if "step30" in each.path]
        if len(mine) == 3 and swapped.acquire(blocking=False):
            s3("run/step30.safetensors", save(weights(99, layers=2, side=64)))

    traffic.before = replace
    status, found = scan("s3://bucket/run", out=tmp_path)
    assert (status, found["steps"]) == (3, [0, 10, 20])
    assert "was replaced while it was read" in found["left_out"][0]["what"]


def test_an_object_that_is_replaced_between_two_scans_is_not_mixed(s3, tmp_path):
    for step in (0, 10):
        s3(f"run/step{step}.safetensors", save(weights(step, layers=2, side=64)))
    assert scan("s3://bucket/run", out=tmp_path)[0] == 0
    s3("run/step10.safetensors", save(weights(11, layers=2, side=64)))
    status, found = scan("s3://bucket/run", out=tmp_path)
    assert (status, found["steps"]) == (3, [0])
    assert "changed since it was measured" in found["left_out"][0]["what"]


@pytest.mark.parametrize("heeds", [True, False])
def test_a_file_that_is_replaced_is_noticed_by_its_tag_whether_or_not_the_server_heeds_it(site, web, tmp_path, heeds):
    state = weights(1, layers=2, side=64)
    site.files["/m.safetensors"], site.heeds = save(state), heeds
    place = open_series(f"{web}/m.safetensors", downloads=tmp_path).places[0]
    with place.open() as checkpoint:
        site.files["/m.safetensors"] = save({name: -value for name, value in state.items()})
        with pytest.raises(CheckpointError, match="was replaced while it was read"):
            checkpoint.read(UP.format(1))


def test_a_weak_tag_is_no_condition_and_still_tells(site, web, tmp_path):
    state = weights(1, layers=2, side=64)
    site.files["/m.safetensors"], site.weak = save(state), True
    with open_series(f"{web}/m.safetensors", downloads=tmp_path).places[0].open() as checkpoint:
        assert torch.equal(checkpoint.read(UP.format(0)), state[UP.format(0)])
        assert not any(each.match for each in site.traffic.asked)
        site.files["/m.safetensors"] = save({name: -value for name, value in state.items()})
        with pytest.raises(CheckpointError, match="was replaced while it was read"):
            checkpoint.read(UP.format(1))


def test_a_file_without_a_tag_that_changes_its_size_is_noticed(site, web, tmp_path):
    site.files["/m.safetensors"], site.tags = save(weights(1, layers=2, side=64)), False
    place = open_series(f"{web}/m.safetensors", downloads=tmp_path).places[0]
    with place.open() as checkpoint:
        site.files["/m.safetensors"] += b"x"
        with pytest.raises(CheckpointError, match="was replaced while it was read"):
            checkpoint.read(UP.format(1))


def test_a_file_without_a_tag_that_is_newer_is_noticed(site, web, tmp_path):
    state = weights(1, layers=2, side=64)
    site.files["/m.safetensors"], site.tags, site.dated = save(state), False, "Tue, 17 Nov 2026 20:00:00 GMT"
    place = open_series(f"{web}/m.safetensors", downloads=tmp_path).places[0]
    with place.open() as checkpoint:
        assert torch.equal(checkpoint.read(UP.format(0)), state[UP.format(0)])
        site.dated = "Tue, 17 Nov 2026 20:00:01 GMT"
        with pytest.raises(CheckpointError, match="was replaced while it was read"):
            checkpoint.read(UP.format(1))


def test_an_object_is_compared_with_what_was_listed_of_it(s3):
    s3("a", b"0123456789")
    place = stores.read_address("s3://bucket/a")
    bucket = Bucket(place)
    listed = bucket.find(place)
    assert bytes_from(bucket.ranges(place, listed), 2, 5) == b"234"
    for wrong in (Listed(9, listed.etag, listed.modified), Listed(10, '"other"', listed.modified)):
        with pytest.raises(CheckpointError, match="was replaced"):
            bytes_from(bucket.ranges(place, wrong), 2, 5)
    weak = Listed(10, f"W/{listed.etag}", listed.modified)
    assert bytes_from(bucket.ranges(place, weak), 2, 5) == b"234"
    unknown = bucket.ranges(place, Listed(10, None, None))
    assert bytes_from(unknown, 2, 5) == b"234"
    s3("a", b"9876543210")
    with pytest.raises(CheckpointError, match="was replaced"):
        bytes_from(unknown, 2, 5)

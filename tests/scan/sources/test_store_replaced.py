"""Objects and files that are replaced while they are read, or between two scans: named, and never mixed."""

import json
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
import torch
from checkpoint_series import scan
from safetensors.torch import save
from stored_weights import UP, bytes_from, weights

from joma.host import stores
from joma.runs import Run
from joma.scan import CheckpointError, open_series
from joma.scan.sources.objects import Bucket, Listed, StoreBytes
from joma.scan.sweep.record import stored_scan


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


def test_an_object_that_is_replaced_between_two_scans_is_not_mixed(s3, tmp_path):
    for step in (0, 10):
        s3(f"run/step{step}.safetensors", save(weights(step, layers=2, side=64)))
    assert scan("s3://bucket/run", out=tmp_path)[0] == 0
    s3("run/step10.safetensors", save(weights(11, layers=2, side=64)))
    status, found = scan("s3://bucket/run", out=tmp_path)
    assert (status, found["steps"]) == (0, [0, 10])
    assert any("step10.safetensors has changed since it was measured" in note for note in found["notes"])
    s3("new/step10.safetensors", save(weights(11, layers=2, side=64)))
    alone = scan("s3://bucket/new", out=tmp_path)[1]
    for name, curve in found["curves"].items():
        assert curve["values"][1] == alone["curves"][name]["values"][0]


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


EARLY, LATE = "Tue, 17 Nov 2026 20:00:00 GMT", "Tue, 17 Nov 2026 20:00:01 GMT"


@pytest.mark.parametrize("dated", [EARLY, None])
def test_a_file_without_a_tag_that_is_replaced_between_two_scans(site, web, tmp_path, dated):
    """By its date it is noticed. Without one nobody can tell, and the record says so."""
    site.files["/step1.safetensors"], site.tags, site.dated = save(weights(1, layers=2, side=64)), False, dated
    status, first = scan(f"{web}/step1.safetensors", out=tmp_path)
    assert status == 0
    site.files["/step1.safetensors"], site.dated = save(weights(2, layers=2, side=64)), dated and LATE
    status, found = scan(f"{web}/step1.safetensors", out=tmp_path)
    unnoticed = [note for note in first["notes"] if "cannot be noticed" in note]
    if dated:
        assert (status, unnoticed) == (0, [])
        assert any("changed since it was measured" in note for note in found["notes"])
        assert found["curves"] != first["curves"]
    else:
        assert (status, found["curves"], found["notes"]) == (0, first["curves"], first["notes"])
        assert unnoticed == [
            "changes that keep the size of step1.safetensors cannot be noticed: the server tells neither an entity tag "
            "(ETag) nor a date (Last-Modified)"
        ]
        (run,) = (tmp_path / "runs").glob("*.sqlite")
        with Run.open(run) as stored:
            assert unnoticed[0] in stored_scan(stored).notes


def test_of_several_files_that_cannot_be_known_again_all_are_named_once(site, web, tmp_path):
    state = weights(1, layers=1, side=8)
    shards = {f"model-{at}.safetensors": {name: tensor} for at, (name, tensor) in enumerate(state.items())}
    site.files = {f"/step1/{file}": save(content) for file, content in shards.items()}
    places = {name: file for file, content in shards.items() for name in content}
    site.files["/step1/model.safetensors.index.json"] = json.dumps({"weight_map": places}).encode()
    site.tags = False
    address = f"{web}/step1/model.safetensors.index.json"
    (note,) = open_series(address, downloads=tmp_path).notes
    assert "that keep the size of model.safetensors.index.json, model-0.safetensors, model-1.safetensors" in note
    site.dated = EARLY
    assert not open_series(address, downloads=tmp_path).notes
    site.dated, site.tags = None, True
    assert not open_series(address, downloads=tmp_path).notes


@pytest.mark.parametrize("dated", ["yesterday", "Thu, 01 Jan 1970 00:00:00 GMT", ""])
def test_a_date_that_says_nothing_is_no_date(dated):
    assert not Listed(10, None, dated).can_be_known_again
    assert Listed(10, '"a"', dated).can_be_known_again
    assert Listed(10, None, EARLY).can_be_known_again


class Answers:
    """A library whose answers tell what they are told to tell."""

    def __init__(self, *told):
        self.told, self.exceptions = list(told), pytest.importorskip("obstore").exceptions

    def get(self, store, path, options):
        meta = {"size": 10, "e_tag": None, "version": None, "last_modified": None, **self.told.pop(0)}
        return SimpleNamespace(range=options["range"], meta=meta, stream=lambda: [b"234"])


def read(listed, *told):
    source = StoreBytes(stores.read_address("s3://bucket/a"), listed, Answers(*told), None, "a")
    for _ in told:
        assert bytes_from(source, 2, 5) == b"234"


NOON = datetime(2026, 11, 17, 12, 0, 0, 0, UTC)
NEVER = datetime(1970, 1, 1, tzinfo=UTC)
"""What obstore has for an answer without a date."""


@pytest.mark.parametrize(("listed", "told"), [
    (Listed(10, None, NOON), [{"last_modified": NOON.replace(second=1)}]),  # since it was listed
    (Listed(10, None, NOON), [{"last_modified": NOON.replace(second=1), "e_tag": '"a"', "version": "1"}]),
    (Listed(10, None, NOON), [{"last_modified": NOON}, {"last_modified": NOON.replace(second=1)}]),
    (Listed(10, '"a"', NOON), [{"last_modified": NOON.replace(second=1)}]),  # an answer without its tag
    (Listed(10, '"a"', NOON), [{"last_modified": NOON}, {"e_tag": '"b"', "last_modified": NOON}]),  # tagged again
    (Listed(10, None, None), [{"version": "1"}, {"version": "2"}]),
    (Listed(10, None, None), [{"version": "1", "last_modified": NOON}, {"version": "2", "last_modified": NOON}]),
    (Listed(10, None, NOON), [{"e_tag": '"a"', "last_modified": NOON}, {"e_tag": '"b"', "last_modified": NOON}]),
    (Listed(10, None, NOON), [{"size": 11}]),
])  # fmt: skip
def test_another_object_is_noticed_by_the_best_that_both_tell(listed, told):
    with pytest.raises(CheckpointError, match="was replaced while it was read"):
        read(listed, *told)


@pytest.mark.parametrize(("listed", "told"), [
    (Listed(10, None, NOON.replace(microsecond=7000)), [{"last_modified": NOON}]),  # lists tell fractions
    (Listed(10, None, NOON), [{"last_modified": NEVER}]),
    (Listed(10, None, "Tue, 17 Nov 2026 12:00:00 GMT"), [{"last_modified": NOON}]),
    (Listed(10, None, "Tue, 17 Nov 2026 12:00:00 -0000"), [{"last_modified": NOON}]),
    (Listed(10, '"a"', NOON), [{"e_tag": 'W/"a"', "last_modified": NOON.replace(second=1)}]),  # touched only
    (Listed(10, None, None), [{"version": "1"}, {"version": "1"}]),
])  # fmt: skip
def test_the_same_object_is_not_taken_for_another(listed, told):
    read(listed, *told)

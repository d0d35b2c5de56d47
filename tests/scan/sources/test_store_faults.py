"""Stores and servers that are busy, break off, drip, or send other bytes than they were asked for."""

import pytest
import torch
from checkpoint_series import scan
from patience import PATIENCE, not_for_ever
from safetensors.torch import save
from stored_weights import DOWN, UP, bytes_from, uploaded, weights

from joma.host import limits, stores
from joma.scan import CheckpointError, open_series
from joma.scan.sources.objects import Listed, StoreBytes


@pytest.mark.parametrize("fault", ["busy", "cuts"])
def test_a_store_that_is_busy_or_breaks_off_is_asked_again(s3, traffic, series, tmp_path, scanned, fault):
    address = uploaded(s3, series, "run")
    setattr(traffic, fault, 5)
    status, found = scan(address, out=tmp_path)
    assert getattr(traffic, fault) == 0
    assert (status, found["curves"]) == (0, scanned["curves"])


def test_a_store_that_stays_busy_is_a_fault_of_the_step(s3, traffic, series, tmp_path):
    address = uploaded(s3, series, "run")
    found = open_series(address, downloads=tmp_path)
    traffic.busy = 10**9
    with pytest.raises(CheckpointError, match=r"could not be read: the server answered with status 503") as caught:
        found.places[0].open()
    assert len(traffic.reads()) == stores.TRIES
    assert "s3://bucket/run/step0/" in str(caught.value)


def test_a_busy_web_server_is_asked_again_and_not_for_ever(site, web, tmp_path):
    site.files["/m.safetensors"] = save(weights(1, layers=1, side=8))
    site.traffic.busy = 3
    assert open_series(f"{web}/m.safetensors", downloads=tmp_path).steps == [0]
    site.refused["/m.safetensors"] = 503
    site.traffic.asked.clear()
    with pytest.raises(CheckpointError, match=rf"status 503 \({stores.TRIES} tries\)"):
        open_series(f"{web}/m.safetensors", downloads=tmp_path)
    assert len(site.traffic.asked) == stores.TRIES


@pytest.mark.parametrize("tags", [True, False])
def test_a_body_that_is_cut_goes_on_with_and_without_a_tag(site, web, tmp_path, tags):
    state = weights(1, layers=2, side=64)
    site.files["/m.safetensors"], site.tags = save(state), tags
    place = open_series(f"{web}/m.safetensors", downloads=tmp_path).places[0]
    site.traffic.cuts = 3
    with place.open() as checkpoint:
        assert torch.equal(checkpoint.read(DOWN.format(1)), state[DOWN.format(1)])
    assert site.traffic.cuts == 0


def test_an_answer_that_is_too_short_is_no_answer(site, web, tmp_path):
    site.files["/m.safetensors"] = save(weights(1, layers=2, side=64))
    place = open_series(f"{web}/m.safetensors", downloads=tmp_path).places[0]
    with place.open() as checkpoint:
        site.shorter = 4
        with pytest.raises(CheckpointError, match=r"the server sent other bytes|sent .* bytes where"):
            checkpoint.read(UP.format(1))


def test_bytes_that_drip_are_given_up(site, web, tmp_path, monkeypatch):
    site.files["/m.safetensors"] = save(weights(1, layers=2, side=64))
    place = open_series(f"{web}/m.safetensors", downloads=tmp_path).places[0]  # which may take any time
    monkeypatch.setattr(limits, "STORE_SECONDS", 0.3)
    monkeypatch.setattr(stores, "TRIES", 2)
    site.traffic.drips = True
    with not_for_ever(), pytest.raises(CheckpointError, match=r"could not be read: a request took more than 0\.3 s"):
        place.open()
    assert site.traffic.dripping.wait(PATIENCE)
    assert site.traffic.hung_up.wait(PATIENCE)


@pytest.mark.parametrize(("given", "content"), [((2, 5), b"23"), ((3, 6), b"345"), ((2, 5), b"2345")])
def test_bytes_that_were_not_asked_for_are_refused_whatever_the_library_lets_through(given, content):
    class Result:
        range, meta = given, {"e_tag": '"a"', "size": 10, "last_modified": None}

        def stream(self):
            return [content]

    class Library:
        exceptions = pytest.importorskip("obstore").exceptions

        def get(self, store, path, options):
            return Result()

    source = StoreBytes(stores.read_address("s3://bucket/a"), Listed(10, '"a"', None), Library(), None, "a")
    said = f"sent {len(content)} bytes from byte {given[0]} on, and was asked for 3 from byte 2 on$"
    with pytest.raises(CheckpointError, match=said):
        bytes_from(source, 2, 5)

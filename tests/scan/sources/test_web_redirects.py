"""Where a web address leads: asked once, asked again when it has expired, and never into a private network."""

import json
import re

import pytest
import torch
from checkpoint_series import scan
from safetensors.torch import save
from stored_weights import BOTH, DOWN, LAYERS, UP, weights

from joma.host import redirects, stores
from joma.scan import CheckpointError, open_series
from joma.scan.sources import objects


def test_where_an_address_leads_is_asked_once(site, web, tmp_path):
    state = weights(1)
    site.files["/far/m.safetensors"] = save(state)
    site.redirects = {"/m.safetensors": f"{web}/far/m.safetensors?signature=hush"}
    found = scan(f"{web}/m.safetensors", *BOTH, out=tmp_path)[1]
    assert len(found["curves"]) == 2
    paths = [each.path for each in site.traffic.asked]
    assert paths.count("/m.safetensors") == 1
    assert paths.count("/far/m.safetensors?signature=hush") == 1 + 1 + LAYERS  # the header once
    assert "hush" not in json.dumps(found)


def test_an_address_that_has_expired_is_asked_for_again(site, web, tmp_path):
    state = weights(1, layers=2, side=64)
    site.files |= {"/old.safetensors": save(state), "/new.safetensors": save(state)}
    site.redirects = {"/m.safetensors": "/old.safetensors?signature=1"}
    with open_series(f"{web}/m.safetensors", downloads=tmp_path).places[0].open() as checkpoint:
        site.redirects = {"/m.safetensors": "/new.safetensors?signature=2"}
        site.refused["/old.safetensors"] = 403
        assert torch.equal(checkpoint.read(UP.format(1)), state[UP.format(1)])
        assert torch.equal(checkpoint.read(UP.format(0)), state[UP.format(0)])
        paths = [each.path for each in site.traffic.asked]
        assert paths.count("/m.safetensors") == 2
        site.files["/new.safetensors"] = save({name: -value for name, value in state.items()})
        site.refused["/new.safetensors"] = 403
        site.redirects = {"/m.safetensors": "/newest.safetensors"}
        site.files["/newest.safetensors"] = site.files["/new.safetensors"]
        with pytest.raises(CheckpointError, match="was replaced while it was read"):
            checkpoint.read(DOWN.format(0))


def test_of_several_threads_one_asks_where_an_expired_address_leads(monkeypatch):
    asked = []

    def found(place):
        asked.append(str(place))
        return redirects.WebFile("https://far.example.org/new", 10, '"a"', None)

    monkeypatch.setattr(objects, "find_file", found)
    listed = objects.WebListed(10, '"a"', None, "https://far.example.org/old")
    source = objects.WebBytes(stores.read_address("https://example.org/a"), listed, pytest.importorskip("obstore"))
    expired = source._store
    source._find_again(expired)
    renewed = source._store
    assert renewed is not expired
    source._find_again(expired)  # of a thread whose request had begun before
    assert source._store is renewed
    assert asked == ["https://example.org/a"]


def test_redirects_come_to_an_end(site, web, tmp_path):
    site.redirects = {"/m.safetensors": "/m.safetensors"}
    with pytest.raises(CheckpointError, match=f"redirected more than {redirects.MOST} times"):
        open_series(f"{web}/m.safetensors", downloads=tmp_path)
    assert len(site.traffic.asked) == redirects.MOST + 1


@pytest.mark.parametrize(("target", "why"), [
    ("http://example.org/m", "is redirected to example.org: http:// is neither secret nor safe"),
    ("ftp://example.org/m", "no web address"),
    ("file:///etc/passwd", "no web address"),
    ("https://user:hush@example.org/m", "no web address"),
    ("https://[::1/m", "no web address"),
    ("https:///m", "no web address"),
])  # fmt: skip
def test_a_redirect_leads_to_https_alone(site, web, tmp_path, target, why):
    site.redirects = {"/m.safetensors": target}
    with pytest.raises(CheckpointError, match=re.escape(why)) as caught:
        open_series(f"{web}/m.safetensors", downloads=tmp_path)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "target", ["https://127.0.0.1/m", "https://localhost/m", "https://10.0.0.1/", "//169.254.169.254/"]
)
def test_a_stranger_does_not_lead_into_a_private_network(monkeypatch, target):
    asked = []

    def first_byte(url, place):
        asked.append(url)
        return 302, {"Location": target}

    monkeypatch.setattr(redirects, "_first_byte", first_byte)
    with pytest.raises(stores.StoreError, match="into this machine or a private network"):
        redirects.find_file(stores.read_address("https://example.org/m.safetensors"))
    assert asked == ["https://example.org/m.safetensors"]

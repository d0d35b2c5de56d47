"""Files of a web server: one file, an index and its shards, and what is refused."""

import pytest
from checkpoint_series import make_series, scan
from safetensors.torch import save_file
from stored_weights import BOTH, LAYERS, weights

from joma.scan import CheckpointError, open_series


def test_a_file_on_the_web_and_the_requests_it_takes(site, web, tmp_path):
    state = weights(4)
    save_file(state, tmp_path / "step4.safetensors")
    site.files["/m/step4.safetensors"] = (tmp_path / "step4.safetensors").read_bytes()
    local = scan(tmp_path / "step4.safetensors", *BOTH, out=tmp_path / "local")[1]
    status, found = scan(f"{web}/m/step4.safetensors", *BOTH, out=tmp_path / "far")
    assert (status, found["steps"], found["curves"]) == (0, [4], local["curves"])
    paths = [each.path for each in site.traffic.asked]
    assert paths.count("/m/config.json") == 1
    # What it is; the header, once for the plan and the measuring; one stretch per layer.
    assert paths.count("/m/step4.safetensors") == 1 + 1 + LAYERS


def test_an_index_on_the_web_and_its_shards(site, web, neox, tmp_path):
    folder = make_series(neox, tmp_path / "series", (1,), max_shard_size="60KB") / "step1"
    site.files = {f"/m/{path.name}": path.read_bytes() for path in folder.iterdir()}
    assert sum(name.endswith(".safetensors") for name in site.files) > 1
    local = scan(folder, out=tmp_path / "local")[1]
    found = scan(f"{web}/m/model.safetensors.index.json", out=tmp_path / "far")[1]
    assert found["curves"] == local["curves"]
    missing = next(name for name in site.files if name.endswith(".safetensors"))
    del site.files[missing]
    with pytest.raises(CheckpointError, match=f"{missing.removeprefix('/m/')} is missing"):
        open_series(f"{web}/m/model.safetensors.index.json", downloads=tmp_path).places[0].open()


def test_a_web_server_lists_nothing(web, tmp_path):
    with pytest.raises(CheckpointError, match="a web server lists nothing"):
        open_series(f"{web}/m", downloads=tmp_path)


def test_a_server_that_ignores_ranges_is_refused_before_it_sends_all(site, web, tmp_path):
    site.files["/m.safetensors"], site.whole = bytes(10**7), True
    with pytest.raises(CheckpointError, match="the server ignores ranges and would send all of it"):
        open_series(f"{web}/m.safetensors", downloads=tmp_path)
    site.whole = False
    found = open_series(f"{web}/m.safetensors", downloads=tmp_path)
    site.whole = True  # from now on: a proxy in between
    with pytest.raises(CheckpointError, match="ignores ranges"):
        found.places[0].open()


@pytest.mark.parametrize(
    ("status", "why"),
    [(403, "may not be read: it is not public"), (404, "does not exist"), (416, "is empty"), (418, "status 418")],
)
def test_what_a_web_server_refuses(site, web, tmp_path, status, why):
    site.refused["/m.safetensors"] = status
    with pytest.raises(CheckpointError, match=why):
        open_series(f"{web}/m.safetensors", downloads=tmp_path)

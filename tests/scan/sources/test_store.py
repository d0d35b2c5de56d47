"""Checkpoints in object stores and on the web, through obstore, against moto's S3 server and a server of ranges."""

import json
import re
import shutil
import sqlite3
import sys
import threading

import pytest
import torch
from checkpoint_series import make_series, scan
from object_server import KEY, SECRET, Site, Traffic, environment, put, s3_server, web_server
from patience import PATIENCE, not_for_ever
from safetensors.torch import save, save_file

from joma.host import limits, redirects, stores
from joma.scan import CheckpointError, open_series
from joma.scan.formats import ranges
from joma.scan.sources import objects
from joma.scan.sources.objects import Bucket, Listed, StoreBytes, Web

SIDE, LAYERS = 512, 6
UP, DOWN = "h.{}.mlp.c_fc.weight", "h.{}.mlp.c_proj.weight"
BOTH = ("--groups", "mlp,down", "--pattern", r"down=h\.\d+\.mlp\.c_proj\.weight")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", "AWS_ALLOW_HTTP", "JOMA_ALLOW_HTTP", "AWS_SKIP_SIGNATURE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(stores, "PAUSE", 0.001)
    monkeypatch.setattr(stores, "LONGEST_PAUSE", 0.002)
    monkeypatch.setattr(limits, "STORE_SECONDS", float(PATIENCE))


@pytest.fixture
def traffic():
    return Traffic()


@pytest.fixture
def s3(traffic, monkeypatch):
    """Stores an object by its key, and gives the address of the bucket."""
    with s3_server(traffic) as address:
        for name, value in environment(address).items():
            monkeypatch.setenv(name, value)

        def store(key, content):
            put(address, key, content)
            return f"s3://bucket/{key}"

        yield store


@pytest.fixture
def site():
    return Site()


@pytest.fixture
def web(site):
    with web_server(site) as address:
        yield address


def weights(seed, layers=LAYERS, side=SIDE):
    """Matrices of an MLP with much between them, and a little."""
    drawn = torch.Generator().manual_seed(seed)
    state = {}
    for layer in range(layers):
        state[f"h.{layer}.attn.c_attn.weight"] = torch.randn(side, side, generator=drawn)
        state[UP.format(layer)] = torch.randn(side, side, generator=drawn)
        state[f"h.{layer}.mlp.c_gate.bias"] = torch.randn(64, generator=drawn)
        state[DOWN.format(layer)] = torch.randn(side, side, generator=drawn)
    return state


def uploaded(store, folder, prefix):
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            store(f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes())
    return f"s3://bucket/{prefix}"


def header_of(content):
    return 8 + int.from_bytes(content[:8], "little")


def bytes_from(source, start, stop):
    buffer = bytearray(stop - start)
    source.read_into(start, memoryview(buffer))
    return bytes(buffer)


# A series in a bucket, and what it costs.


def test_a_series_in_a_bucket_gives_the_numbers_of_its_folder(s3, series, tmp_path, scanned):
    address = uploaded(s3, series, "runs/tiny")
    status, found = scan(address, out=tmp_path / "out")
    assert (status, found["steps"], found["curves"]) == (0, [0, 1, 2, 10, 100], scanned["curves"])
    assert found["source"] == address
    assert not (tmp_path / "out" / "joma-downloads").exists()


def test_a_scan_reads_what_it_needs_in_few_requests(s3, traffic, tmp_path):
    steps, contents = (0, 10, 20), []
    for step in steps:
        contents.append(save(weights(step)))
        s3(f"run/step{step}.safetensors", contents[-1])
    status, found = scan("s3://bucket/run", *BOTH, "--keep-suspicious", out=tmp_path)
    assert (status, found["steps"]) == (0, list(steps))
    matrices = 2 * LAYERS * SIDE * SIDE * 4
    needed = sum(matrices + header_of(content) for content in contents)
    assert needed <= traffic.sent + 8  # nothing was read from elsewhere
    assert traffic.sent <= 1.02 * needed
    # Of each file the header, and one stretch per layer: its two matrices, with the bias that lies between them.
    stretches = len(steps) * (1 + LAYERS)
    assert len(traffic.asked) <= 1.2 * stretches
    assert {each.method for each in traffic.asked} == {"GET"}
    assert sum(each.range is None for each in traffic.asked) == 1  # the list
    assert all(each.match and each.match.strip('"') for each in traffic.reads())  # only of the object that was listed


def test_what_a_range_is_of_does_not_change_the_numbers(s3, tmp_path):
    state = weights(3)
    save_file(state, tmp_path / "step7.safetensors")
    address = s3("run/step7.safetensors", save(state))
    local = scan(tmp_path / "step7.safetensors", out=tmp_path / "local")[1]
    found = scan(address, out=tmp_path / "far")[1]
    assert (found["curves"], found["steps"]) == (local["curves"], [7])


def test_resuming_asks_for_nothing_but_lists_and_headers(s3, series, traffic, tmp_path):
    address = uploaded(s3, series, "run")
    assert scan(address, out=tmp_path)[0] == 0
    first = traffic.sent
    traffic.asked.clear()
    assert scan(address, out=tmp_path)[0] == 0
    assert traffic.sent < first


def test_a_folder_is_listed_page_by_page_and_no_deeper(s3, traffic, tmp_path, monkeypatch):
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "10")  # S3 itself lists a thousand at a time
    for step in range(24):
        s3(f"many/step{step}.safetensors", b"")
    s3("many/step24/deep/optimizer.pt", b"")
    found = open_series("s3://bucket/many", downloads=tmp_path)
    assert found.steps == list(range(25))
    lists = [each.path for each in traffic.asked]
    assert len(lists) == 3
    assert all("list-type=2" in path and "delimiter=%2F" in path for path in lists)
    assert all("prefix=many%2F" in path and "deep" not in path for path in lists)


def test_a_list_without_end_is_not_believed(s3, monkeypatch, tmp_path):
    monkeypatch.setattr(limits, "STORE_OBJECTS", 3)
    for step in range(4):
        s3(f"run/step{step}.safetensors", b"")
    with pytest.raises(CheckpointError, match="s3://bucket/run lists more than 3 entries"):
        open_series("s3://bucket/run", downloads=tmp_path)


def test_one_checkpoint_one_file_and_a_final_model_beside_the_steps(s3, series, tmp_path):
    uploaded(s3, series / "step10", "run/checkpoint-10")
    one = open_series("s3://bucket/run/checkpoint-10", downloads=tmp_path)
    assert [(place.name, place.step) for place in one.places] == [("checkpoint-10", 10)]
    uploaded(s3, series / "step10", "run")  # as trainers do: the last model above its checkpoints
    several = open_series("s3://bucket/run/", downloads=tmp_path)
    assert [(place.name, place.step) for place in several.places] == [("checkpoint-10", 10)]
    assert several.source == "s3://bucket/run"
    uploaded(s3, series / "step10", "final")
    final = open_series("s3://bucket/final", downloads=tmp_path)
    assert [place.step for place in final.places] == [0]
    assert final.notes == ("the step of final is not known: it stands at 0",)
    s3("final/trainer_state.json", b'{"global_step": 77}')
    assert open_series("s3://bucket/final", downloads=tmp_path).steps == [77]


@pytest.mark.parametrize(
    ("key", "address", "why"),
    [
        ("a/b/notes.txt", "s3://bucket/a", r"s3://bucket/a holds no checkpoint: .*; it holds b: name one, as in s3://bucket/a/b$"),
        ("a/notes.txt", "s3://bucket/a", "holds no checkpoint"),
        ("a/notes.txt", "s3://bucket/nothing", "s3://bucket/nothing does not exist, or is empty"),
        ("a/notes.txt", "s3://nobucket/a", "s3://nobucket/a does not exist"),
        ("a/x.safetensors", "s3://bucket/a/y.safetensors", "s3://bucket/a/y.safetensors does not exist"),
        ("a/mp_rank_00_model_states.pt", "s3://bucket/a", "checkpoint in parts"),
    ],
)  # fmt: skip
def test_what_cannot_be_scanned_is_refused_in_a_sentence(s3, tmp_path, key, address, why):
    s3(key, b"x" * 200)
    with pytest.raises(CheckpointError, match=why):
        open_series(address, downloads=tmp_path).places[0].open()


def test_a_model_is_downloaded_to_run_and_kept_within_the_budget(s3, series, tmp_path):
    address = uploaded(s3, series, "run")
    place = open_series(address, downloads=tmp_path).places[1]
    with place.folder() as folder:
        there = {path.name: path.read_bytes() for path in folder.iterdir()}
    wanted = {path.name: path.read_bytes() for path in (series / "step1").iterdir()}
    assert there == wanted
    small = open_series(address, downloads=tmp_path, budget=100).places[1]
    with pytest.raises(CheckpointError, match="raise the budget"), small.folder():
        pass


def test_a_torch_file_is_downloaded_whole(s3, tmp_path, monkeypatch):
    monkeypatch.setattr(ranges, "PIECE", 10_000)
    torch.save(weights(0, layers=2, side=64), tmp_path / "step3.pt")
    address = s3("run/step3.pt", (tmp_path / "step3.pt").read_bytes())
    local = scan(tmp_path / "step3.pt", out=tmp_path / "local")[1]
    assert scan(address, out=tmp_path / "far")[1]["curves"] == local["curves"]
    (kept,) = (tmp_path / "far" / "joma-downloads" / "files").rglob("step3.pt")
    assert kept.read_bytes() == (tmp_path / "step3.pt").read_bytes()


# Faults.


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


# The web.


def test_a_file_on_the_web_and_the_requests_it_takes(site, web, tmp_path):
    state = weights(4)
    save_file(state, tmp_path / "step4.safetensors")
    site.files["/m/step4.safetensors"] = (tmp_path / "step4.safetensors").read_bytes()
    local = scan(tmp_path / "step4.safetensors", *BOTH, out=tmp_path / "local")[1]
    status, found = scan(f"{web}/m/step4.safetensors", *BOTH, out=tmp_path / "far")
    assert (status, found["steps"], found["curves"]) == (0, [4], local["curves"])
    paths = [each.path for each in site.traffic.asked]
    assert paths.count("/m/config.json") == 1
    # What it is; the header, to plan and to measure; one stretch per layer.
    assert paths.count("/m/step4.safetensors") == 1 + 2 + LAYERS


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


@pytest.mark.parametrize("tags", [True, False])
def test_a_body_that_is_cut_goes_on_with_and_without_a_tag(site, web, tmp_path, tags):
    state = weights(1, layers=2, side=64)
    site.files["/m.safetensors"], site.tags = save(state), tags
    place = open_series(f"{web}/m.safetensors", downloads=tmp_path).places[0]
    site.traffic.cuts = 3
    with place.open() as checkpoint:
        assert torch.equal(checkpoint.read(DOWN.format(1)), state[DOWN.format(1)])
    assert site.traffic.cuts == 0


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


@pytest.mark.parametrize(
    ("scheme", "endpoint", "more"),
    [
        ("gs", "GOOGLE_BASE_URL", {"GOOGLE_SKIP_SIGNATURE": "true"}),
        ("az", "AZURE_STORAGE_ENDPOINT", {"AZURE_SKIP_SIGNATURE": "true", "AZURE_STORAGE_ACCOUNT_NAME": "me"}),
    ],
)
def test_the_stores_of_google_and_azure_are_read_by_the_same_ranges(
    site, web, tmp_path, monkeypatch, scheme, endpoint, more
):
    """Against a server that answers as theirs do, without their signatures and lists."""
    state = weights(1, layers=2, side=64)
    site.files["/bucket/run/step9.safetensors"], site.dated = save(state), "Tue, 17 Nov 2026 20:00:00 GMT"
    for name, value in {endpoint: web, **more}.items():
        monkeypatch.setenv(name, value)
    series = open_series(f"{scheme}://bucket/run/step9.safetensors", downloads=tmp_path)
    assert (series.source, series.steps) == (f"{scheme}://bucket/run/step9.safetensors", [9])
    with series.places[0].open() as checkpoint:
        assert torch.equal(checkpoint.read(UP.format(1)), state[UP.format(1)])
        site.files["/bucket/run/step9.safetensors"] = save({name: -value for name, value in state.items()})
        with pytest.raises(CheckpointError, match="was replaced while it was read"):
            checkpoint.read(UP.format(0))


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


# Redirects.


def test_where_an_address_leads_is_asked_once(site, web, tmp_path):
    state = weights(1)
    site.files["/far/m.safetensors"] = save(state)
    site.redirects = {"/m.safetensors": f"{web}/far/m.safetensors?signature=hush"}
    found = scan(f"{web}/m.safetensors", *BOTH, out=tmp_path)[1]
    assert len(found["curves"]) == 2
    paths = [each.path for each in site.traffic.asked]
    assert paths.count("/m.safetensors") == 1
    assert paths.count("/far/m.safetensors?signature=hush") == 1 + 2 + LAYERS
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


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("http://example.org/m", "is redirected to example.org: http:// is neither secret nor safe"),
        ("ftp://example.org/m", "no web address"),
        ("file:///etc/passwd", "no web address"),
        ("https://user:hush@example.org/m", "no web address"),
        ("https://[::1/m", "no web address"),
    ],
)
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


def test_a_busy_web_server_is_asked_again_and_not_for_ever(site, web, tmp_path):
    site.files["/m.safetensors"] = save(weights(1, layers=1, side=8))
    site.traffic.busy = 3
    assert open_series(f"{web}/m.safetensors", downloads=tmp_path).steps == [0]
    site.refused["/m.safetensors"] = 503
    site.traffic.asked.clear()
    with pytest.raises(CheckpointError, match=rf"status 503 \({stores.TRIES} tries\)"):
        open_series(f"{web}/m.safetensors", downloads=tmp_path)
    assert len(site.traffic.asked) == stores.TRIES


@pytest.mark.parametrize(
    ("status", "why"),
    [(403, "may not be read: it is not public"), (404, "does not exist"), (416, "is empty"), (418, "status 418")],
)
def test_what_a_web_server_refuses(site, web, tmp_path, status, why):
    site.refused["/m.safetensors"] = status
    with pytest.raises(CheckpointError, match=why):
        open_series(f"{web}/m.safetensors", downloads=tmp_path)


# Several at a time.


@pytest.mark.parametrize("readers", [1, 8])
def test_as_many_ranges_are_under_way_as_there_are_readers(site, web, monkeypatch, readers):
    """Each waits until as many are there as there should be, so that no clock decides."""
    monkeypatch.setattr(ranges, "PIECE", 1000)
    site.files["/m"] = bytes(range(256)) * 63  # 16 pieces and a little
    place = stores.read_address(f"{web}/m")
    store = Web(place)
    source = store.ranges(place, store.find(place))
    source.readers = readers
    together = threading.Barrier(readers)
    site.traffic.gate = lambda: together.wait(PATIENCE)
    source.expect([[(0, 16_000)]])
    assert bytes_from(source, 0, 16_000) == site.files["/m"][:16_000]
    source.close()
    assert site.traffic.most == readers
    assert len(site.traffic.reads()) == 1 + 16


# Secrets, and what is not installed.


def test_no_secret_is_recorded_shown_or_said(s3, traffic, series, tmp_path, capsys, monkeypatch):
    from joma.cli.main import main

    address = uploaded(s3, series, "run")
    out = tmp_path / "out"
    out.mkdir()
    assert main(["scan", address, "--out", str(out), "--json", str(out / "curves.json")]) == 0
    traffic.busy = 10**9
    main(["scan", address, "--out", str(tmp_path / "other"), "--no-page"])
    said = "".join(capsys.readouterr())
    assert "status 503" in said
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert address.encode() in written
    for secret in (KEY, SECRET):
        assert secret not in said
        assert secret.encode() not in written
    (run,) = (out / "runs").glob("*.sqlite")
    with sqlite3.connect(run) as connection:
        rows = "".join(map(str, connection.iterdump()))
    connection.close()
    assert SECRET not in rows


def test_an_address_with_a_secret_is_never_repeated(tmp_path, capsys):
    from joma.cli.main import main

    for address in ("s3://key:hush@bucket/run", "https://host/m.safetensors?token=hush"):
        assert main(["scan", address, "--out", str(tmp_path)]) == 2
        said = "".join(capsys.readouterr())
        assert "put credentials into the environment" in said
        assert "hush" not in said
    assert not list(tmp_path.rglob("*"))


def test_without_credentials_it_is_said_which_there_could_be(s3, monkeypatch, tmp_path):
    import obstore

    def denied(*_, **__):
        raise obstore.exceptions.PermissionDeniedError(f"403 <AWSAccessKeyId>{KEY}</AWSAccessKeyId>")

    monkeypatch.setattr(obstore, "list_with_delimiter", denied)
    with pytest.raises(CheckpointError, match="may not be read: it needs AWS_ACCESS_KEY_ID and") as caught:
        open_series("s3://bucket/run", downloads=tmp_path)
    assert KEY not in str(caught.value)


def test_without_the_extra_it_is_named_in_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    for address in ("s3://bucket/run", "https://host/m.safetensors"):
        with pytest.raises(CheckpointError, match=r"needs obstore: pip install -e '\.\[cloud\]'"):
            open_series(address, downloads=tmp_path)


def test_a_folder_is_scanned_without_the_extra(monkeypatch, pristine, scanned, tmp_path):
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    assert scan(pristine, out=tmp_path)[1]["curves"] == scanned["curves"]


def test_axes_of_names_are_for_folders_here(tmp_path):
    with pytest.raises(ValueError, match="axis tokens is for folders on this machine"):
        open_series("s3://bucket/run", downloads=tmp_path, axis="tokens")


def test_a_file_in_the_way_of_a_download_is_never_taken_for_it(s3, series, tmp_path):
    address = uploaded(s3, series, "run")
    place = open_series(address, downloads=tmp_path).places[0]
    with place.folder() as folder:
        pass
    config = folder / "config.json"
    shutil.rmtree(folder.parents[2] / "records")
    config.write_bytes(config.read_bytes()[::-1])  # as long, and nobody's
    again = open_series(address, downloads=tmp_path).places[0]
    with pytest.raises(CheckpointError, match="joma did not make it"), again.folder():
        pass


@pytest.mark.parametrize(("given", "content"), [((2, 5), b"23"), ((3, 6), b"345"), ((2, 5), b"2345")])
def test_bytes_that_were_not_asked_for_are_refused_whatever_the_library_lets_through(given, content):
    class Result:
        range, meta = given, {"e_tag": '"a"', "size": 10, "last_modified": None}

        def bytes(self):
            return content

    class Library:
        exceptions = pytest.importorskip("obstore").exceptions

        def get(self, store, path, options):
            return Result()

    source = StoreBytes(stores.read_address("s3://bucket/a"), Listed(10, '"a"', None), Library(), None, "a")
    said = f"sent {len(content)} bytes from byte {given[0]} on, and was asked for 3 from byte 2 on$"
    with pytest.raises(CheckpointError, match=said):
        bytes_from(source, 2, 5)


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

"""Checkpoints in object stores, against moto's S3 server: what is found there, and what reading it costs."""

import shutil
import threading

import pytest
import torch
from checkpoint_series import scan
from patience import PATIENCE
from safetensors.torch import save
from stored_weights import BOTH, LAYERS, SIDE, UP, bytes_from, header_of, uploaded, weights

from joma.host import limits, stores
from joma.scan import CheckpointError, open_series
from joma.scan.formats import ranges
from joma.scan.sources.objects import Web


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


def test_resuming_asks_for_nothing_but_lists_and_headers(s3, series, traffic, tmp_path):
    address = uploaded(s3, series, "run")
    assert scan(address, out=tmp_path)[0] == 0
    first = traffic.sent
    traffic.asked.clear()
    assert scan(address, out=tmp_path)[0] == 0
    assert traffic.sent < first


def test_what_is_not_read_may_come_later(s3, tmp_path):
    for step in (0, 10):
        s3(f"run/step{step}/model.safetensors", save(weights(step, layers=2, side=64)))
    assert scan("s3://bucket/run", out=tmp_path)[0] == 0
    for name in ("README.md", "optimizer.pt"):
        s3(f"run/step10/{name}", b"notes")
    status, found = scan("s3://bucket/run", out=tmp_path)
    assert (status, found["steps"]) == (0, [0, 10])


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


@pytest.mark.parametrize("what", ["step{}.safetensors", "step{}/model.safetensors"])
def test_a_list_without_end_is_not_believed(s3, monkeypatch, tmp_path, what):
    monkeypatch.setattr(limits, "STORE_OBJECTS", 3)
    for step in range(4):
        s3(f"run/{what.format(step)}", b"")
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


@pytest.mark.parametrize(("scheme", "endpoint", "more"), [
    ("gs", "GOOGLE_BASE_URL", {"GOOGLE_SKIP_SIGNATURE": "true"}),
    ("az", "AZURE_STORAGE_ENDPOINT", {"AZURE_SKIP_SIGNATURE": "true", "AZURE_STORAGE_ACCOUNT_NAME": "me"}),
])  # fmt: skip
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

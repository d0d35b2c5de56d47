"""The hub, through its real client, against a server that behaves as the hub does, and misbehaves."""

import io
import json
from urllib.parse import urlsplit

import pytest
import torch
from checkpoint_series import LAYERS, LOWER, make_series, scan
from hub_server import Handler, Repository, serving
from safetensors.torch import load

from joma.host import hub as hub_client
from joma.scan import CheckpointError, open_series

NAME = "someone/tiny-neox"


@pytest.fixture
def repository(series):
    revisions = {
        folder.name: {path.name: path.read_bytes() for path in folder.iterdir()} for folder in sorted(series.iterdir())
    }
    revisions["main"] = revisions["step100"]
    return Repository(NAME, revisions)


@pytest.fixture
def served(repository, monkeypatch, tmp_path):
    monkeypatch.setattr(hub_client, "PAUSE", 0.01)
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    with serving(repository) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        yield repository


def as_torch_file(repository, revision):
    stream = io.BytesIO()
    torch.save(load(repository.revisions[revision].pop("model.safetensors")), stream)
    repository.revisions[revision] = {**repository.revisions[revision], "pytorch_model.bin": stream.getvalue()}


def test_step_revisions_are_read_by_ranges(served, series, tmp_path):
    status, found = scan(NAME, "--groups", "mlp", out=tmp_path / "out")
    assert status == 0
    assert found["steps"] == [0, 1, 2, 10, 100]
    local = scan(series, "--groups", "mlp", out=tmp_path / "local")[1]
    assert found["curves"] == local["curves"]
    needed = sum(4 * 32 * 128 for _ in range(LAYERS)) * 5
    whole = sum(len(files["model.safetensors"]) for name, files in served.revisions.items() if name != "main")
    assert needed < served.served < whole  # the headers and configs are the rest
    assert all(kept for method, path, kept in served.requests if "/store/" in path)
    assert not (tmp_path / "out" / "joma-downloads").exists()


def test_a_dropped_connection_goes_on_where_it_stopped(served, tmp_path):
    served.drops = {(f"step{step}", "model.safetensors"): 3 for step in (0, 10)}
    served.busy = 1
    assert scan(NAME, out=tmp_path / "out")[0] == 0
    assert set(served.drops.values()) == {0}


def test_a_file_that_is_listed_and_not_there(served, tmp_path):
    served.lost = {("step2", "model.safetensors")}
    status, found = scan(NAME, out=tmp_path / "out")
    assert status == 3
    assert [fault["step"] for fault in found["left_out"]] == [2]
    assert "the hub does not have it" in found["left_out"][0]["what"]


def test_torch_files_are_downloaded_verified_and_kept_within_the_budget(served, series, tmp_path):
    for revision in ("step1", "step2", "step10"):
        as_torch_file(served, revision)
    size = len(served.revisions["step1"]["pytorch_model.bin"])
    local = scan(series, out=tmp_path / "local")[1]
    served.drops = {("step2", "pytorch_model.bin"): 1}
    status, found = scan(NAME, "--budget", 2.5 * size / 1e9, out=tmp_path / "out")
    assert status == 0
    assert found["curves"] == local["curves"]
    kept = list((tmp_path / "out" / "joma-downloads").rglob("pytorch_model.bin"))
    assert len(kept) == 2
    status, found = scan(NAME, "--budget", 0.5 * size / 1e9, "--fresh", out=tmp_path / "out")
    assert status == 3
    assert {fault["step"] for fault in found["left_out"]} == {1, 2, 10}
    assert "raise the budget" in found["left_out"][0]["what"]


def test_a_wrong_hash_is_reported_and_the_file_not_kept(served, tmp_path):
    as_torch_file(served, "step2")
    served.wrong = {("step2", "pytorch_model.bin"), ("step1", "config.json")}
    status, found = scan(NAME, out=tmp_path / "out")
    assert status == 3
    faults = {fault["step"]: fault for fault in found["left_out"]}
    assert set(faults) == {1, 2}
    assert all("hash that the hub lists" in fault["what"] for fault in faults.values())
    assert faults[2]["file"] == "pytorch_model.bin"
    assert not list((tmp_path / "out" / "joma-downloads").rglob("pytorch_model.bin"))


def test_shards_and_a_missing_one(served, neox, series, tmp_path):
    folder = make_series(neox, tmp_path / "sharded", (0, 1, 2, 10, 100), max_shard_size="40KB")
    served.revisions = {
        step.name: {path.name: path.read_bytes() for path in step.iterdir()} for step in folder.iterdir()
    }
    index = json.loads(served.revisions["step10"]["model.safetensors.index.json"])
    del served.revisions["step10"][index["weight_map"][LOWER.format(1)]]
    status, found = scan(NAME, "--jobs", 2, out=tmp_path / "out")
    assert status == 3
    assert found["steps"] == [0, 1, 2, 100]
    assert found["left_out"][0]["file"] == index["weight_map"][LOWER.format(1)]
    local = scan(series, "--steps", "0,1,2,100", out=tmp_path / "local")[1]
    assert found["curves"] == local["curves"]


def test_a_server_that_ignores_ranges_is_not_believed(served, tmp_path, capsys):
    served.whole = True
    assert scan(NAME, out=tmp_path / "out")[0] == 1
    assert "asked for bytes" in capsys.readouterr().out


def test_models_that_are_not_there(served, tmp_path, monkeypatch):
    with pytest.raises(CheckpointError, match="nor a model on the hub"):
        open_series("someone/else", downloads=tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(hub_client, "TRIES", 2)
    with pytest.raises(CheckpointError, match="cannot be reached"):
        open_series(NAME, downloads=tmp_path)


def test_where_the_hub_leads_to_is_asked_once_for_a_file(served, tmp_path):
    assert scan(NAME, out=tmp_path)[0] == 0
    resolved = [path for _, path, _ in served.requests if "/resolve/" in path and path.endswith("model.safetensors")]
    stored = [path for _, path, _ in served.requests if "/store/" in path]
    # Three of five are opened to plan and to measure; each time the hub is asked once, whatever is read.
    assert len(resolved) == 5 + 3
    assert len(stored) > len(resolved)


def test_where_the_hub_led_to_is_asked_for_again_when_it_holds_no_longer(served, tmp_path, monkeypatch):
    """Such addresses are signed, for an hour or so."""
    resolve, content, valid = Handler.resolve, Handler.content, ["1"]

    def signed(self, hub, revision, name):
        answer, sent = self.answer, valid[0]
        self.answer = lambda status, value, headers: answer(
            status, value, headers | {"Location": f"{headers['Location']}?signature={sent}"}
        )
        try:
            return resolve(self, hub, revision, name)
        finally:
            del self.answer

    def checked(self, hub, revision, name, headers=None):
        if urlsplit(self.path).query != f"signature={valid[0]}":
            return self.answer(403, {"error": "expired"})
        return content(self, hub, revision, name, headers)

    monkeypatch.setattr(Handler, "resolve", signed)
    monkeypatch.setattr(Handler, "content", checked)
    whole = served.revisions["step1"]["model.safetensors"]
    place = open_series(NAME, downloads=tmp_path).places[1]
    place.listed()
    source = place.ranges("model.safetensors")

    def read(start, stop):
        buffer = bytearray(stop - start)
        served.requests.clear()
        source.read_into(start, memoryview(buffer))
        assert buffer == whole[start:stop]
        return [path.split("/")[1] for _, path, _ in served.requests]

    assert read(0, 100) == ["someone", "store"]
    assert read(100, 200) == ["store"]
    valid[0] = "2"
    assert read(200, 300) == ["store", "someone", "store"]
    assert read(300, 400) == ["store"]
    for turn in range(3, 7):  # it holds for one range alone: then it is not remembered any more
        valid[0] = str(turn)
        asked = read(400, 500)
    assert asked == ["someone", "store"]


def test_the_token_does_not_go_where_the_hub_led_to(served, tmp_path, monkeypatch):
    seen, content = [], Handler.content

    def noted(self, hub, revision, name, headers=None):
        seen.append((urlsplit(self.path).path, self.headers.get("Authorization")))
        return content(self, hub, revision, name, headers)

    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr(Handler, "content", noted)
    assert scan(NAME, out=tmp_path)[0] == 0
    stored = [token for path, token in seen if "/store/" in path]
    assert stored
    assert set(stored) == {None}
    assert "Bearer hf_secret" in {token for path, token in seen if "/resolve/" in path}

"""WikiText from the hub, through its real client, against a server that behaves as the hub does, and misbehaves."""

import io
import sys

import pyarrow
import pyarrow.parquet
import pytest
from hub_server import Repository, serving

from joma.data.text import CorpusError, download_wikitext, find_corpus, wikitext
from joma.host import hub as hub_client

TRAIN = [f" the {word} sat on {number} \n" for number, word in enumerate(["cat", "dog"] * 200)]
COMMIT = "b08601e04326c79dfdd32d625aee71d232d685c3"
SECOND = "train-00001-of-00002.parquet"
SECOND_PATH = f"wikitext-103-v1/{SECOND}"


def rows(lines):
    stream = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"text": lines}), stream)
    return stream.getvalue()


@pytest.fixture
def hub(tmp_path, monkeypatch):
    files = {
        "train-00000-of-00002.parquet": rows(TRAIN[:150]),
        SECOND: rows(TRAIN[150:]),
        "validation-00000-of-00001.parquet": rows([" the cow \n"]),
        "test-00000-of-00001.parquet": rows([" the cat \n"]),
    }
    content = {f"wikitext-103-v1/{name}": data for name, data in files.items()}
    content |= {"README.md": b"# WikiText", "wikitext-103-v1/notes.parquet": b"no split"}
    repository = Repository("Salesforce/wikitext", {COMMIT: content}, kind="datasets")
    monkeypatch.setattr(hub_client, "PAUSE", 0.01)
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("JOMA_DATA", raising=False)
    with serving(repository) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        yield repository


def place(name):
    return COMMIT, f"wikitext-103-v1/{name}"


def test_it_is_downloaded_verified_and_found(hub, tmp_path):
    heard = []
    folder = download_wikitext("wikitext-103", progress=lambda fraction, doing: heard.append(fraction))
    assert folder == tmp_path / "cache" / "wikitext-103"
    assert {path.name for path in folder.iterdir()} == {
        "test-00000-of-00001.parquet",
        "train-00000-of-00002.parquet",
        SECOND,
        "validation-00000-of-00001.parquet",
    }
    corpus = find_corpus(name="wikitext-103")
    assert len(corpus.tokens["train"]) == 5 * len(TRAIN)
    assert corpus.vocabulary[:4] == ("<unk>", "on", "sat", "the")
    assert heard == sorted(heard)
    assert heard[-1] == 1
    asked = len(hub.requests)
    assert download_wikitext("wikitext-103") == folder
    assert len(hub.requests) == asked


def test_a_connection_that_breaks_is_tried_again(hub, tmp_path):
    hub.drops = {place(SECOND): 2}
    hub.busy = 2  # the first asks whether the hub is there at all
    download_wikitext("wikitext-103", tmp_path / "here")
    stored = [path for method, path, _ in hub.requests if method == "GET" and path.startswith("/store/")]
    assert sum(path.endswith(SECOND) for path in stored) == 3
    assert (tmp_path / "here" / SECOND).read_bytes() == hub.revisions[COMMIT][SECOND_PATH]


def test_a_second_call_fetches_the_files_that_the_first_had_not_finished(hub, tmp_path):
    hub.silent = {place(SECOND)}
    with pytest.raises(CorpusError, match=r"could not be downloaded: Consistency check failed.*; try again"):
        download_wikitext("wikitext-103", tmp_path)
    with pytest.raises(CorpusError, match="no train-00001-of-00002"):
        wikitext(tmp_path)
    hub.silent = set()
    before = len(hub.requests)
    download_wikitext("wikitext-103", tmp_path)
    stored = [path for method, path, _ in hub.requests[before:] if "/store/" in path]
    assert any(path.endswith(SECOND) for path in stored)
    assert not any("train-00000" in path for path in stored)
    assert (tmp_path / SECOND).read_bytes() == hub.revisions[COMMIT][SECOND_PATH]
    assert {path.suffix for path in tmp_path.iterdir() if path.name[0] != "h"} == {".parquet"}


def test_a_wrong_hash_is_not_kept(hub, tmp_path):
    hub.wrong = {place(SECOND)}
    with pytest.raises(CorpusError, match="without the hash that the hub lists; it was deleted"):
        download_wikitext("wikitext-103", tmp_path)
    assert not list(tmp_path.rglob(SECOND))


def test_a_hub_that_does_not_answer(hub, tmp_path, monkeypatch):
    hub.name = "somebody/else"
    with pytest.raises(CorpusError, match="the hub answered with status 404"):
        download_wikitext("wikitext-103", tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(CorpusError, match="the hub cannot be reached") as error:
        download_wikitext("wikitext-103", tmp_path)
    assert str(error.value).endswith(f"or put train.txt, valid.txt and test.txt into {tmp_path}")
    assert "\n" not in str(error.value)


def test_offline_mode(hub, tmp_path, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CorpusError, match="offline mode"):
        download_wikitext("wikitext-103", tmp_path)


@pytest.mark.parametrize(("module", "extra"), [("pyarrow", "export"), ("huggingface_hub", "hf")])
def test_what_is_not_installed(hub, tmp_path, monkeypatch, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(CorpusError, match=rf"needs {module}: pip install -e '\.\[{extra}\]'"):
        download_wikitext("wikitext-103", tmp_path)
    assert not hub.requests


def test_what_the_hub_lacks(hub, tmp_path):
    with pytest.raises(CorpusError, match="name must be 'wikitext-2' or 'wikitext-103', got 'wikitext'"):
        download_wikitext("wikitext", tmp_path)
    commit = COMMIT
    hub.revisions[commit] = {"wikitext-103-v1/README.md": b"no files"}
    with pytest.raises(CorpusError, match="lists no parquet files in wikitext-103-v1"):
        download_wikitext("wikitext-103", tmp_path)


FILE = "wikitext-2-v1/train-00000-of-00001.parquet"


@pytest.mark.parametrize(
    "page",
    [
        {"error": "no"},
        None,
        [1, 2],
        [{"path": FILE}],
        [{"path": FILE, "size": "8", "lfs": {"oid": "a" * 64}}],
        [{"path": FILE, "size": 8, "lfs": None}],
        [{"path": FILE, "size": 8, "lfs": {"oid": "../../x"}}],
        [{"path": 3}],
    ],
)
def test_a_hub_that_lies(hub, tmp_path, monkeypatch, page):
    monkeypatch.setattr(hub_client, "listing", lambda url, headers: iter([page]))
    with pytest.raises(CorpusError, match="no listing of Salesforce/wikitext"):
        download_wikitext("wikitext-2", tmp_path / "target")
    assert not (tmp_path / "target").exists()

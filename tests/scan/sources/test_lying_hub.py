"""A hub that lies: whatever it answers, a scan ends, and in one sentence."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from patience import not_for_ever

from joma.host import hub as hub_client
from joma.host import limits
from joma.scan import CheckpointError, open_series
from joma.scan.sources import hub, remote
from joma.scan.sources.hub import HubBytes

NAME = "someone/model"
COMMIT = "a" * 40
TREE = f"/api/models/{NAME}/tree/{COMMIT}"
Answer = Callable[[BaseHTTPRequestHandler], None]


def plain(value: Any, status: int = 200, **headers: str) -> Answer:
    """JSON, with headers whose names have - for _."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()

    def answer(to: BaseHTTPRequestHandler) -> None:
        to.send_response(status)
        for name, text in headers.items():
            to.send_header(name.replace("_", "-"), text)
        to.send_header("Content-Length", str(len(body)))
        to.end_headers()
        to.wfile.write(body)

    return answer


def endless(piece: bytes, pause: float = 0.0) -> Answer:
    def answer(to: BaseHTTPRequestHandler) -> None:
        to.send_response(200)
        to.end_headers()
        try:
            while True:
                to.wfile.write(piece)
                time.sleep(pause)
        except OSError:  # the other side has had enough
            to.close_connection = True

    return answer


def refs(*branches: Any) -> Answer:
    return plain({"branches": list(branches), "tags": [], "converts": []})


def branch(name: Any = "main", commit: Any = COMMIT) -> dict[str, Any]:
    return {"name": name, "ref": f"refs/heads/{name}", "targetCommit": commit}


def file(**changes: Any) -> dict[str, Any]:
    return {"type": "file", "path": "config.json", "size": 2, "oid": "b" * 40} | changes


@contextmanager
def lying(answers: dict[str, Answer]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *arguments: Any) -> None:
            pass

        def do_GET(self) -> None:
            answers.get(self.path.partition("?")[0], plain({"error": "nothing"}, 404))(self)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hub_client, "PAUSE", 0.01)
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))


def said(answers: dict[str, Answer], monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    with lying(answers) as address, not_for_ever():
        monkeypatch.setenv("HF_ENDPOINT", address)
        with pytest.raises(CheckpointError) as caught:
            [place.weights() for place in open_series(NAME, downloads=folder).places]
    sentence = str(caught.value)
    assert sentence.isprintable()
    return sentence


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (plain([branch()]), "no listing"),
        (plain(None), "no listing"),
        (plain({"branches": None}), "no listing"),
        (plain({"branches": [{"name": "main"}]}), "no listing"),
        (plain(b"{"), "no JSON"),
        (plain(b"[" * 200_000), "no JSON"),
        (refs(branch(commit=None)), "without a commit"),
        (refs(branch(commit=7)), "without a commit"),
        (refs(branch(name="x/../step1")), "no names"),
        (refs(branch(name="\x1b[2Jstep1")), "no names"),
        (refs(*(branch(name=f"step{n}") for n in range(60_000))), "more than 50,000 revisions"),
        (plain({"error": "broken"}, 500), "status 500"),
        (plain(b"", 302, Location=f"/api/models/{NAME}/refs"), "cannot be reached"),
        (endless(b"[" * 2**20), "more than 67,108,864 bytes"),
    ],
    ids=[
        "list", "null", "no branches", "no commit", "cut", "deep", "commit null", "commit a number", "a way out",
        "escape", "many", "broken", "in a circle", "endless",
    ],
)  # fmt: skip
def test_lists_of_revisions(answer: Answer, sentence: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert sentence in said({f"/api/models/{NAME}/refs": answer}, monkeypatch, tmp_path)


@pytest.mark.parametrize(("answer", "sentence"), [
    (plain([file(size="2")]), "without a size or a hash"),
    (plain([file(size=None)]), "without a size or a hash"),
    (plain([file(size=2.5)]), "without a size or a hash"),
    (plain([file(size=-1)]), "without a size or a hash"),
    (plain([{"type": "file", "path": "config.json"}]), "no listing"),
    (plain([file(lfs={"oid": "short"})]), "without a size or a hash"),
    (plain([file(lfs="yes")]), "no listing"),
    (plain({"files": []}), "no listing"),
    (plain([3]), "no listing"),
    (plain([file(path="../../x.safetensors")]), "weights"),
    (plain([], Link='<http://127.0.0.2/more>; rel="next"'), "which is not followed"),
])  # fmt: skip
def test_lists_of_files(answer: Answer, sentence: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers = {f"/api/models/{NAME}/refs": refs(branch()), TREE: answer}
    assert sentence in said(answers, monkeypatch, tmp_path)


def test_a_link_elsewhere_never_gets_the_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    asked: list[str | None] = []

    def elsewhere(to: BaseHTTPRequestHandler) -> None:
        asked.append(to.headers.get("Authorization"))
        plain([])(to)

    with lying({"/more": elsewhere}) as other:
        link = plain([file()], Link=f'<{other}/more>; rel="next"')
        answers = {f"/api/models/{NAME}/refs": refs(branch()), TREE: link}
        assert "which is not followed" in said(answers, monkeypatch, tmp_path)
    assert asked == []


def test_pages_without_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(limits, "LISTING_PAGES", 20)
    pages = iter(range(10**6))

    def more(to: BaseHTTPRequestHandler) -> None:
        place = f"http://{to.headers['Host']}{TREE}?cursor={next(pages)}"
        plain([file()], Link=f'<{place}>; rel="next"')(to)

    answers = {f"/api/models/{NAME}/refs": refs(branch()), TREE: more}
    assert "more than 20 pages" in said(answers, monkeypatch, tmp_path)


def test_bytes_that_drip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(limits, "LISTING_SECONDS", 0.5)
    answers = {f"/api/models/{NAME}/refs": endless(b" ", pause=0.05)}
    assert "took more than 0.5 s" in said(answers, monkeypatch, tmp_path)


def test_more_bytes_than_were_asked_for() -> None:
    """From the middle of a file: how many are wanted is not where they end."""
    for sent in (10, 11, 15):
        buffer = bytearray(10)
        answer = plain(bytes(range(sent)), 206, Content_Range="bytes 10-19/40")
        with lying({"/file": answer}) as address, not_for_ever():
            source = HubBytes("file", f"{address}/file", 40, {})
            if sent == 10:
                source.read_into(10, memoryview(buffer))
                assert bytes(buffer) == bytes(range(10))
                continue
            with pytest.raises(CheckpointError, match="the hub sent more bytes than asked for"):
                source.read_into(10, memoryview(buffer))


def test_a_list_that_comes_in_many_pieces_is_one() -> None:
    listed = list(range(60_000))  # 350 kB, more than is received at once
    with lying({"/list": plain(listed)}) as address, not_for_ever():
        assert list(hub_client.listing(f"{address}/list", {})) == [listed]


def test_small_files_are_read_up_to_a_limit_and_with_the_hash_that_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    content = b'{"model_type": "llama"}'
    monkeypatch.setattr(remote, "SMALL", len(content))
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    class Ranges:
        def read_into(self, start: int, buffer: memoryview) -> None:
            buffer[:] = content[start : start + len(buffer)]

    def read(size: int, sha256: str | None, blob: str) -> bytes:
        revision = hub.HubRevision(SimpleNamespace(cache=None), "step7", COMMIT, 7)  # type: ignore[arg-type]
        revision.__dict__["files"] = {"config.json": hub.Listed("config.json", size, sha256, blob)}
        monkeypatch.setattr(hub.HubRevision, "ranges", lambda self, file: Ranges())
        return revision.read_small("config.json")

    size = len(content)
    assert read(size, None, blob) == content
    assert read(size, hashlib.sha256(content).hexdigest(), "not asked") == content
    for wrong in ((None, "0" * 40), ("0" * 64, blob)):
        with pytest.raises(CheckpointError, match=r"^step7/config\.json does not have the hash that the hub lists$"):
            read(size, *wrong)
    with pytest.raises(CheckpointError, match=rf"^step7/config\.json has {size + 1} bytes, too many for JSON$"):
        read(size + 1, None, blob)

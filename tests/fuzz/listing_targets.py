"""What is fuzzed of what stores and web servers answer: pages of listings, and indexes of checkpoints in parts."""

from __future__ import annotations

import atexit
import json
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from hostile_store import ENTRY, Hostile, hostile_server, page
from mutations import spoiled, spoiled_json
from object_server import environment
from target import Target

from joma.host import limits, store_listing, stores
from joma.scan.errors import CheckpointError
from joma.scan.sources import objects, store
from joma.scan.sources.downloads import DiskCache

_WORDS = (
    b"<Contents>", b"<Size>-1</Size>", b"<Size>99999999999999999999999</Size>", b"<IsTruncated>true",
    b"<CommonPrefixes><Prefix>run/step1/</Prefix></CommonPrefixes>", b"<Key>run/../../x</Key>", b"<Key>/</Key>",
    b"<Key>run//a.safetensors</Key>", b"<Key>run/.hidden</Key>", b"<Key></Key>", b"&lt;&#0;&#x10FFFF;&a;",
    b"<!DOCTYPE a [<!ENTITY a 'aaaa'>]>", b"<![CDATA[", b"<LastModified>x</LastModified>", b"<ETag></ETag>",
    b"<Key>run/" + b"a" * 5000 + b"</Key>", b"<NextContinuationToken></NextContinuationToken>", b"<a>" * 5000,
)  # fmt: skip

_VALUES = (
    b"-1", b"0", b"99999999999999999999999", b"", b"nan", b"2026-13-45T99:99:99Z", b"1970-01-01T00:00:00Z", b"run/",
    b"run/../../x", b"run//a.pt", b"run/step5.pt", b"run/step5/", b"other/step5.pt", b"run/%2e%2e/x", b"run/\xff.pt",
    b"run/" + "é漢\u202e".encode() + b".pt", b"run/" + b"a" * 5000, b"&#27;[2J", b"run/step99999999999999999999.pt",
    b"true", b"run/model.safetensors", b"run/config.json", b"run/model-00001-of-00009.safetensors", b"W/",
)  # fmt: skip
_ENTRIES = (
    ENTRY.format("7"), ENTRY.format("7").replace("<Size>10</Size>", ""), ENTRY.format("7/x"), ENTRY.format("&#10;"),
    ENTRY.format("0"), "<CommonPrefixes><Prefix>run/step1/</Prefix></CommonPrefixes>",
    ENTRY.format(7).replace('<ETag>"a"</ETag>', ""), "<CommonPrefixes><Prefix></Prefix></CommonPrefixes>",
    ENTRY.format(7).replace("step7.safetensors", "trainer_state.json"), ENTRY.format(10**30),
)  # fmt: skip


@cache
def _server() -> tuple[str, Hostile]:
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(hostile_server(lambda handler, number: None))


@contextmanager
def _answering(content: bytes, path: str) -> Iterator[str]:
    """A server whose first page, or whose file of that name, is the content; nothing follows it."""
    address, hostile = _server()
    hostile.requests = 0

    def answer(handler: Any, number: int) -> None:
        if path:
            return _file(handler, content if handler.path == path else b"{}" if "0000" in handler.path else None)
        return handler.whole(200, page("", None) if "continuation-token=" in handler.path else content)

    hostile.answer = answer
    settings = environment(address)
    with mock.patch.dict(os.environ, settings), mock.patch.multiple(stores, TRIES=1, PAUSE=0.001, LONGEST_PAUSE=0.001):
        yield address


def _file(handler: Any, content: bytes | None) -> None:
    if content is None:
        return handler.whole(404, b"")
    asked = handler.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
    start, stop = int(asked[0]), min(int(asked[2] or len(content)) + 1, len(content))
    if start >= len(content):
        return handler.whole(416, b"")
    part = {"Content_Range": f"bytes {start}-{stop - 1}/{len(content)}", "ETag": '"a"'}
    return handler.whole(206, content[start:stop], **part)


def _spoiled_page(content: bytes, random: Random, pool: list[bytes]) -> bytes:
    """Bytes, or elements that nobody expects."""
    if random.random() < 0.4:
        return spoiled(content, random, pool)
    for _ in range(random.choice((1, 1, 2, 3))):
        kind = random.randrange(3)
        if kind == 0:  # another entry
            entry = random.choice(_ENTRIES).encode()
            content = content.replace(b"<Contents>", entry + b"<Contents>", 1)
        elif kind == 1:  # another value of an element
            values = list(re.finditer(rb">([^<>]*)</", content))
            if values and (one := random.choice(values)):
                content = content[: one.start(1)] + random.choice(_VALUES) + content[one.end(1) :]
        else:
            places = [0, *(at + 1 for at, byte in enumerate(content) if byte == ord(">"))]
            at, stop = sorted(random.choices(places, k=2))
            content = content[:at] + random.choice(_WORDS) + content[random.choice((at, stop)) :]
    return content


class _InThisProcess:
    """Lists as the process does that `Lister` starts: what it would print is what is read."""

    def list(self, place: Any) -> Any:
        return store_listing.entries_in(json.loads(json.dumps(store_listing.answer_for(place))))


def _read_page(content: bytes, folder: Path) -> None:
    with _answering(content, ""), mock.patch.object(objects, "Lister", _InThisProcess):
        for one in store.open_store("s3://bucket/run", DiskCache(folder, 10**6)).places:
            one.identity(), one.name


def _page_seeds(_: Path) -> list[bytes]:
    folders = "".join(f"<CommonPrefixes><Prefix>run/step{at}/</Prefix></CommonPrefixes>" for at in range(3))
    return [page("".join(map(ENTRY.format, range(4))), None), page(ENTRY.format(1) + folders, "more"), page("", None)]


def _read_index(content: bytes, folder: Path) -> None:
    name = "/m/model.safetensors.index.json"
    with _answering(content, name) as address, mock.patch.object(limits, "STORE_SECONDS", 600.0):
        for one in store.open_store(address + name, DiskCache(folder, 10**6)).places:
            one.weights()


def _index_seeds(_: Path) -> list[bytes]:
    files = {f"h.{at}.w": f"model-0000{at}-of-00002.safetensors" for at in (1, 2)}
    return [json.dumps({"metadata": {"total_size": 9}, "weight_map": each}).encode() for each in (files, {})]


LISTINGS: dict[str, Target] = {
    "listing": Target(_page_seeds, _spoiled_page, _read_page, (CheckpointError,)),
    "web-index": Target(_index_seeds, spoiled_json, _read_index, (CheckpointError,)),
}

"""An object store that wants to harm whoever reads it, on this machine: listings and answers without end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ENTRY = (
    "<Contents><Key>run/step{}.safetensors</Key><LastModified>2026-11-17T20:00:00.000Z</LastModified>"
    '<ETag>"a"</ETag><Size>10</Size></Contents>'
)


def page(entries: str, token: object | None) -> bytes:
    """A page of a listing. token: of the next one; None: it is the last."""
    more = "false</IsTruncated>" if token is None else f"true</IsTruncated><NextContinuationToken>{token}"
    more += "" if token is None else "</NextContinuationToken>"
    return f"<ListBucketResult><Name>bucket</Name><IsTruncated>{more}{entries}</ListBucketResult>".encode()


@dataclass
class Hostile:
    """How a store answers, and what it was asked. answer: of a handler and the number of the request."""

    answer: Callable[[Any, int], None]
    requests: int = 0
    sent: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


def pages_without_end(handler: Any, number: int) -> None:
    entries = "".join(ENTRY.format(f"{number}-{at}-{'x' * 900}") for at in range(1000))  # keys as long as may be
    handler.whole(200, page(entries, number))


def empty_pages_without_end(handler: Any, number: int) -> None:
    handler.whole(200, page("", number))


def same_page_without_end(handler: Any, number: int) -> None:
    handler.whole(200, page(ENTRY.format(0), "again"))


def body_without_end(handler: Any, number: int) -> None:
    handler.without_end(200, b"<ListBucketResult><Name>" + b"a" * 2**16)


def refusal_without_end(handler: Any, number: int) -> None:
    handler.without_end(403, b"<Error>" + b"a" * 2**16)


def broken_words(handler: Any, number: int) -> None:
    handler.whole(200, b"<ListBucketResult><Contents><Key>a</Key><Size>-1</Size></Contents></ListBucketResult>")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        hostile = self.server.hostile
        with hostile.lock:
            number, hostile.requests = hostile.requests, hostile.requests + 1
        try:
            hostile.answer(self, number)
        except OSError:  # the other side has had enough
            self.close_connection = True

    do_HEAD = do_GET

    def whole(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def without_end(self, status: int, piece: bytes, **headers: str) -> None:
        """The same piece again and again, until the other side hangs up."""
        self.send_response(status)
        chunked = "Content_Length" not in headers
        for name, value in (headers | ({"Transfer-Encoding": "chunked"} if chunked else {})).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        chunk = b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece
        while True:
            self.wfile.write(chunk)
            self.server.hostile.sent += len(piece)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    hostile: Hostile


@contextmanager
def hostile_server(answer: Callable[[Any, int], None]) -> Iterator[tuple[str, Hostile]]:
    """The address of such a store, and what it was asked."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.hostile = Hostile(answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", server.hostile
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

"""Stores that really answer: moto's S3 server, and a web server that knows ranges; both count, and fail on demand."""

from __future__ import annotations

import hashlib
import logging
import re
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

KEY, SECRET = "AKIAHUSHHUSHHUSHHUSH", "hush-this-is-the-secret-of-the-store"
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass
class Asked:
    """One request, and how many bytes of content were sent for it."""

    method: str
    path: str
    range: str | None
    match: str | None = None
    sent: int = 0


@dataclass
class Traffic:
    """What a server was asked, and what it does wrong. Faults concern reads of content alone."""

    asked: list[Asked] = field(default_factory=list)
    busy: int = 0
    """So many reads are answered with 503."""
    cuts: int = 0
    """So many answers of more than 100 bytes are cut in half."""
    drips: bool = False
    """An answer begins and never ends, a byte at a time, until the other side hangs up."""
    dripping: threading.Event = field(default_factory=threading.Event)
    hung_up: threading.Event = field(default_factory=threading.Event)
    before: Callable[[int], None] = lambda number: None
    """Called before a read is answered, with how many there were before it."""
    latency: float = 0.0
    gate: Callable[[], None] = lambda: None
    """What a read waits for; how many wait at a time is counted."""
    at_a_time: int = 0
    most: int = 0
    """Reads that were under way at a time, at most."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def reads(self) -> list[Asked]:
        """Requests for content."""
        return [each for each in self.asked if each.range is not None]

    @property
    def sent(self) -> int:
        """Bytes of content."""
        return sum(each.sent for each in self.asked)

    def note(self, method: str, path: str, asked_range: str | None, match: str | None) -> Asked:
        with self.lock:
            self.asked.append(one := Asked(method, path, asked_range, match))
            number = len(self.reads())
        if asked_range is not None:
            self.before(number - 1)
        return one

    def takes(self, what: str) -> bool:
        """Whether this answer has one of the faults that are counted."""
        with self.lock:
            left = getattr(self, what)
            setattr(self, what, max(left - 1, 0))
            return bool(left > 0)

    @contextmanager
    def under_way(self) -> Iterator[Callable[[], None]]:
        """Gives what ends it earlier: before the last byte, since who has that may ask again before we know."""
        with self.lock:
            self.at_a_time += 1
            self.most = max(self.most, self.at_a_time)
        counts = [True]

        def end() -> None:
            with self.lock:
                self.at_a_time -= counts[0]
                counts[0] = False

        try:
            time.sleep(self.latency)
            self.gate()
            yield end
        finally:
            end()


class _Middleware:
    """Around moto: counts, and fails."""

    def __init__(self, app: Any, traffic: Traffic) -> None:
        self.app, self.traffic = app, traffic

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        if environ.get("HTTP_X_UNCOUNTED"):
            return self.app(environ, start_response)
        path = environ["PATH_INFO"] + (f"?{environ['QUERY_STRING']}" if environ.get("QUERY_STRING") else "")
        one = self.traffic.note(
            environ["REQUEST_METHOD"], path, environ.get("HTTP_RANGE"), environ.get("HTTP_IF_MATCH")
        )
        if one.range is not None and self.traffic.takes("busy"):
            start_response("503 Slow Down", [("Content-Length", "0")])
            return [b""]
        with self.traffic.under_way():
            body = b"".join(self.app(environ, start_response))
        if one.range is not None and len(body) > 100 and self.traffic.takes("cuts"):
            return self._cut(body, one)
        one.sent = len(body) if one.range is not None else 0
        return [body]

    def _cut(self, body: bytes, one: Asked) -> Iterator[bytes]:
        one.sent = len(body) // 2
        yield body[: len(body) // 2]
        raise ConnectionError("cut")


@contextmanager
def s3_server(traffic: Traffic) -> Iterator[str]:
    """The address of moto's S3 server, with an empty bucket `bucket`."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    assert server._server is not None
    server._server.app = _Middleware(server._server.app, traffic)
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    try:
        _uncounted(f"{address}/moto-api/reset", "POST")  # its buckets belong to the process
        _uncounted(f"{address}/bucket", "PUT")
        yield address
    finally:
        server.stop()
        server._server.server_close()


def _uncounted(url: str, method: str) -> None:
    request = urllib.request.Request(url, data=b"", method=method, headers={"X-Uncounted": "1"})
    with urllib.request.urlopen(request) as response:
        response.read()


def put(address: str, key: str, content: bytes) -> None:
    """Store an object in the bucket, without counting."""
    import obstore
    from obstore.store import S3Store

    options: Any = {"allow_http": True, "default_headers": {"x-uncounted": "1"}}
    store = S3Store(
        "bucket",
        endpoint=address,
        access_key_id=KEY,
        secret_access_key=SECRET,
        region="us-east-1",
        client_options=options,
    )
    obstore.put(store, key, content, use_multipart=False)


def environment(address: str) -> dict[str, str]:
    """What a user of that store has in the environment."""
    credentials = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    return {**credentials, "AWS_ENDPOINT_URL": address, "AWS_REGION": "us-east-1"}


@dataclass
class Site:
    """Files of a web server by path, and how it answers."""

    files: dict[str, bytes] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    redirects: dict[str, str] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    """Paths that are answered with a status of their own."""
    whole: bool = False
    """Ranges are ignored."""
    tags: bool = True
    """Answers have an entity tag, and If-Match is heeded."""
    weak: bool = False
    """Tags are weak: they match no condition."""
    heeds: bool = True
    """If-Match is heeded."""
    dated: str | None = None
    """When files were last changed, if answers say so."""
    shorter: int = 0
    """Answers to ranges leave out so many bytes, and say so."""

    def tag(self, path: str) -> str:
        return f'{"W/" * self.weak}"{hashlib.md5(self.files[path]).hexdigest()}"'


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        site, path = self.server.site, unquote(urlsplit(self.path).path)
        one = site.traffic.note(self.command, self.path, self.headers.get("Range"), self.headers.get("If-Match"))
        if path in site.redirects:
            return self.answer(302, {"Location": site.redirects[path]})
        if path in site.refused:
            return self.answer(site.refused[path])
        if path not in site.files:
            return self.answer(404)
        if site.traffic.takes("busy"):
            return self.answer(503)
        with site.traffic.under_way() as self.end:
            return self.content(site, path, one)

    def content(self, site: Site, path: str, one: Asked) -> None:
        content, headers = site.files[path], {}
        if site.tags:
            headers["ETag"] = site.tag(path)
            if site.heeds and self.headers.get("If-Match") not in (None, *([] if site.weak else [site.tag(path)])):
                return self.answer(412)
        asked = _RANGE.fullmatch(one.range or "")
        if asked and not site.whole:
            start, stop = int(asked[1]), min(int(asked[2] or len(content) - 1) + 1, len(content))
            stop -= min(site.shorter, stop - start - 1)
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
            return self.send(206, headers, content[start:stop], one)
        return self.send(200, headers, content, one)

    def send(self, status: int, headers: dict[str, str], body: bytes, one: Asked) -> None:
        traffic = self.server.site.traffic
        self.begin(status, headers, len(body))
        try:
            if self.command == "HEAD":
                return
            if traffic.drips and len(body) > 100:
                self.drip(body, traffic)
            elif len(body) > 100 and traffic.takes("cuts"):
                one.sent = len(body) // 2
                self.wfile.write(body[: len(body) // 2])
                self.hang_up()
            else:
                one.sent = len(body)
                self.wfile.write(body[:-1])
                self.end()
                self.wfile.write(body[-1:])
        except OSError:  # the other side has had enough
            traffic.hung_up.set()
            self.close_connection = True

    def drip(self, body: bytes, traffic: Traffic) -> None:
        """A byte now and then, and never the last one."""
        for at in range(len(body) - 1):
            self.wfile.write(body[at : at + 1])
            traffic.dripping.set()
            time.sleep(0.02)
        while True:
            time.sleep(0.02)
            if self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b"":
                raise ConnectionError

    def hang_up(self) -> None:
        self.wfile.flush()
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def answer(self, status: int, headers: dict[str, str] | None = None) -> None:
        self.begin(status, headers or {}, 0)

    def begin(self, status: int, headers: dict[str, str], length: int) -> None:
        self.send_response(status)
        if self.server.site.dated:
            self.send_header("Last-Modified", self.server.site.dated)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    site: Site


@contextmanager
def web_server(site: Site) -> Iterator[str]:
    """The address of a server with the files of `site`."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.site = site
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

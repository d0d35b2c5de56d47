"""Where a web address leads, asked once: its redirects, followed by rules, and what the file there is.

No credentials are sent. A redirect is followed to https:// only, a few times at most, and never from elsewhere into
this machine or a private network, where a stranger's address could reach what the user alone can.
"""

import ipaddress
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Self
from urllib.parse import urljoin, urlsplit

from joma.host import limits, stores
from joma.host.stores import Address, StoreError, is_loopback, must_be_safe

MOST = 5  # redirects
_LEADS_ON = (301, 302, 303, 307, 308)
_BUSY = (408, 425, 429, 500, 502, 503, 504)
_RANGE = re.compile(r"bytes 0-0/(\d{1,18})")


@dataclass(frozen=True)
class WebFile:
    """A file on a web server. url: where it lies, which may hold a signature and is never shown."""

    url: str
    size: int
    etag: str | None
    modified: str | None

    def __repr__(self) -> str:
        return f"WebFile(size={self.size})"


def find_file(place: Address) -> WebFile:
    """The file at a web address, by a request for its first byte; StoreError where it cannot be read in part."""
    url = str(place)
    for _ in range(MOST + 1):
        status, headers = _first_byte(url, place)
        if status in _LEADS_ON:
            url = _next(url, headers.get("Location") or "", place)
            continue
        if status == 206 and (found := _RANGE.fullmatch(headers.get("Content-Range") or "")):
            return WebFile(url, int(found[1]), headers.get("ETag"), headers.get("Last-Modified"))
        raise StoreError(f"{place} {_refusal(status)}")
    raise StoreError(f"{place} is redirected more than {MOST} times")


def _refusal(status: int) -> str:
    if status in (404, 410):
        return "does not exist"
    if status in (401, 403):
        return f"may not be read: {stores.NOT_PUBLIC}"
    if status == 416:
        return "is empty"
    if status in (200, 206):
        return "cannot be read in part: the server ignores ranges and would send all of it"
    return f"could not be read: the server answered with status {status}"


def _next(url: str, location: str, place: Address) -> str:
    try:
        target = urljoin(url, location)
        parts = urlsplit(target)
        host = parts.hostname or ""
    except ValueError:
        host = ""
    if not host or parts.scheme not in ("https", "http") or "@" in parts.netloc:
        raise StoreError(f"{place} is redirected to something that is no web address")
    here = is_inside(urlsplit(str(place)).hostname or "")
    if is_inside(host) and not here:
        raise StoreError(f"{place} is redirected into this machine or a private network, which is not followed")
    must_be_safe(target, f"{place} is redirected to {host[:80]}", asked="JOMA_ALLOW_HTTP")
    return target


def is_inside(host: str) -> bool:
    """Whether a host, by its name alone, is this machine or in a private network.

    >>> [is_inside(host) for host in ("localhost", "10.1.2.3", "169.254.169.254", "example.org", "8.8.8.8")]
    [True, True, True, False, False]
    """
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        return is_loopback(host)


class _NotFollowed(urllib.request.HTTPRedirectHandler):
    """Redirects are answers like others: what they say is looked at by `_next` alone."""

    def http_error_302(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> None:
        return None

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


class _Deadline(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """Hangs up when the time is over: the timeout of a socket begins anew with every byte."""

    def __init__(self) -> None:
        super().__init__()
        self.over = False
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(limits.STORE_SECONDS, self._hang_up)

    def http_open(self, req: Any) -> Any:
        return self.do_open(self._watched(HTTPConnection), req)

    def https_open(self, req: Any) -> Any:
        return self.do_open(self._watched(HTTPSConnection), req)

    def _watched(self, kind: type[HTTPConnection]) -> type[HTTPConnection]:
        sockets = self._sockets

        class Watched(kind):  # type: ignore[misc, valid-type]
            def connect(self) -> None:
                super().connect()
                sockets.append(self.sock)

        return Watched

    def _hang_up(self) -> None:
        self.over = True
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()


def _first_byte(url: str, place: Address) -> tuple[int, Any]:
    """Status and headers of the answer to a request for the first byte; again where the server is busy."""
    request = urllib.request.Request(
        url, headers={"Range": "bytes=0-0", "Accept-Encoding": "identity", "User-Agent": "joma"}
    )
    status = 0
    for tries in range(stores.TRIES):
        try:
            with _Deadline() as deadline:
                opener = urllib.request.build_opener(_NotFollowed, deadline)
                with opener.open(request, timeout=limits.STORE_SECONDS) as response:
                    if not deadline.over:  # else some headers may be missing
                        return response.status, response.headers
        except urllib.error.HTTPError as error:
            error.close()
            if error.code not in _BUSY:
                return error.code, error.headers
            status = error.code
        except (OSError, ValueError, HTTPException):  # a connection that breaks, an answer that is none
            status = 0
        if deadline.over:
            raise StoreError(f"{place} could not be read: a request took more than {limits.STORE_SECONDS:g} s")
        if tries + 1 < stores.TRIES:
            time.sleep(min(stores.PAUSE * 2**tries, stores.LONGEST_PAUSE))
    why = f"the server answered with status {status}" if status else "the server cannot be reached"
    raise StoreError(f"{place} could not be read: {why} ({stores.TRIES} tries)")

"""What every reader of the Hugging Face hub needs: its own client, and bytes that go on where a connection broke.

Texts and checkpoints are read through it, so it stands below both. Token, endpoint (HF_ENDPOINT) and answers to "busy"
are the client's affair; what it lacks is patience with a connection that breaks half way.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager as Context
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from joma.host import limits
from joma.host.errors import JomaError

TRIES = 5  # in a row without a single byte
PAUSE = 1.0  # seconds before the second try; doubled before each further one


def client() -> Any:
    """The client's HTTP helpers, public but not declared as exports."""
    return import_module("huggingface_hub.utils")


def transport_errors() -> tuple[type[Exception], ...]:
    """What the client's own HTTP library raises when a connection fails; which library depends on its version."""
    library = import_module(type(client().get_session()).__module__.partition(".")[0])
    return (library.RequestError,)  # a redirect without end among them


def byte_range(url: str, headers: Mapping[str, str], start: int, stop: int | None = None) -> Context[Any]:
    """The response to a request for the bytes from `start` up to `stop`, or to the end."""
    last = "" if stop is None else stop - 1
    # Compressed ranges would be ranges of something else.
    asked = {**headers, "accept-encoding": "identity", "range": f"bytes={start}-{last}"}
    # Broken connections are for `read_all`, which knows how much has come.
    response: Context[Any] = client().http_stream_backoff(
        "GET", url, headers=asked, timeout=30, base_wait_time=PAUSE, retry_on_exceptions=()
    )
    return response


class StrangeAnswer(JomaError, ValueError):
    """The hub answered what no hub answers."""


def listing(url: str, headers: Mapping[str, str]) -> Iterator[Any]:
    """What the hub lists at `url`, page by page, each as parsed JSON.

    Pages follow one another on one host only: a link elsewhere would be followed with the user's token. How long they
    may be, how many and how slow, is in `joma.host.limits`.
    """
    place, seen = urlsplit(url)[:2], set[str]()
    while url not in seen:
        if len(seen) == limits.LISTING_PAGES:
            raise StrangeAnswer(f"the hub lists more than {limits.LISTING_PAGES:,} pages")
        seen.add(url)
        with client().http_stream_backoff("GET", url, headers=headers, timeout=30, base_wait_time=PAUSE) as response:
            client().hf_raise_for_status(response)
            content, links, until = bytearray(), response.links, time.monotonic() + limits.LISTING_SECONDS
            for chunk in response.iter_bytes():
                content += chunk
                if len(content) > limits.LISTING_BYTES:
                    raise StrangeAnswer(f"the hub lists more than {limits.LISTING_BYTES:,} bytes on one page")
                if time.monotonic() > until:
                    raise StrangeAnswer(f"the hub took more than {limits.LISTING_SECONDS:g} s for one page")
        try:
            yield json.loads(content)
        except (ValueError, RecursionError):
            raise StrangeAnswer("the hub answered something that is no JSON") from None
        url = str(links.get("next", {}).get("url", url))
        if urlsplit(url)[:2] != place:
            raise StrangeAnswer(f"the hub leads from {place[1]} to {urlsplit(url)[1][:80]!a}, which is not followed")


def read_all(size: int, have: Callable[[], int], read_on: Callable[[], None]) -> None:
    """Read on until there are `size` bytes, whatever breaks in between."""
    tries = 0
    while (before := have()) < size:
        broken: Exception = ConnectionError("the hub sent nothing")
        try:
            read_on()
        except transport_errors() as error:
            broken = error
        tries = tries + 1 if have() <= before else 0
        if tries == TRIES:
            raise broken
        if have() < size:
            time.sleep(PAUSE * 2**tries)

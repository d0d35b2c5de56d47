"""What every reader of the Hugging Face hub needs: its own client, and bytes that go on where a connection broke.

Texts and checkpoints are read through it, so it stands below both. Token, endpoint (HF_ENDPOINT) and answers to "busy"
are the client's affair; what it lacks is patience with a connection that breaks half way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager as Context
from importlib import import_module
from typing import Any

TRIES = 5  # in a row without a single byte
PAUSE = 1.0  # seconds before the second try; doubled before each further one


def client() -> Any:
    """The client's HTTP helpers, public but not declared as exports."""
    return import_module("huggingface_hub.utils")


def transport_errors() -> tuple[type[Exception], ...]:
    """What the client's own HTTP library raises when a connection fails; which library depends on its version."""
    library = import_module(type(client().get_session()).__module__.partition(".")[0])
    return (library.TransportError,)


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


def read_all(size: int, have: Callable[[], int], read_on: Callable[[], None]) -> None:
    """Read on until there are `size` bytes, whatever breaks in between.

    have: how many there are; read_on: reads from there, possibly not to the end. After TRIES times in a row without a
    byte the last transport error is raised, or a ConnectionError where there was none.
    """
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

"""A live server for a test."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from patience import until

from joma.view.feed import Feed


@contextmanager
def serving(feed: Feed, every: float = 0.1) -> Iterator[tuple[str, Any]]:
    """A live server in a thread of its own; gives its address."""
    uvicorn = pytest.importorskip("uvicorn")
    pytest.importorskip("starlette")
    from joma.view.server import HOST, application, settings

    bound = socket.socket()
    bound.bind((HOST, 0))
    port = bound.getsockname()[1]
    app = application(feed, token="secret", port=port, every=every)
    server = uvicorn.Server(settings(app))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    until(lambda: server.started)
    try:
        yield f"http://{HOST}:{port}/secret/", server
    finally:
        server.should_exit = True
        thread.join()

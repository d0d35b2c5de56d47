"""The live host: a server on this machine that shows runs while they are written. It only reads.

Who may ask: programs of this machine that know the token in the address. A page of another site that sends a browser
here has another Origin, or names this machine by another Host (DNS rebinding): both are refused, and so is whoever does
not know the token. The page may load nothing from anywhere else.
"""

import asyncio
import json
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from joma.host.errors import BadInput, JomaError
from joma.view.feed import Feed, Unknown
from joma.view.module import module, static, style
from joma.view.news import news_of

HOST = "127.0.0.1"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin", "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}  # fmt: skip
_ALIVE = 15.0  # seconds after which a silent stream says that it is there


class Guard:
    """Lets through what comes from the page itself; adds the headers that keep others out."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        """app: what is guarded. hosts: what the server may be called, as 127.0.0.1:8000."""
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            return
        given = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        why = self._refusal(scope["method"], given)
        answer: ASGIApp = self.app if why is None else PlainTextResponse(why, status_code=403)

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
            await send(message)

        await answer(scope, receive, with_headers)

    def _refusal(self, method: str, given: list[tuple[str, str]]) -> str | None:
        named = {name: [value for key, value in given if key == name] for name, _ in given}
        if named.get("host", []) not in [[host] for host in self.hosts]:
            return "this server answers to its own address alone"
        for origin in named.get("origin", []):
            if origin not in {f"http://{host}" for host in self.hosts}:
                return "this server answers to its own page alone"
        if not set(named.get("sec-fetch-site", [])) <= {"same-origin", "none"}:
            return "this server answers to its own page alone"
        return None if method in ("GET", "HEAD") else "this server only reads"


def application(feed: Feed, *, token: str, port: int, every: float) -> Starlette:
    """The server as an ASGI application.

    feed: what it shows. token: the first part of every path. port: that it is reached at. every: seconds between looks.
    """
    inside = [
        Route("/", _text(static("live.html"), "text/html")),
        Route("/module.js", _text(module("live_host.js"), "text/javascript")),
        Route("/style.css", _text(style(), "text/css")),
        Route("/events", _events(feed, every)),
        *(Route(f"/{ask}", _asked(feed, ask)) for ask in ("series", "after", "claims", "figures", "titles")),
    ]
    hosts = frozenset({f"{HOST}:{port}", f"localhost:{port}"})
    return Starlette(routes=[Mount(f"/{token}", routes=inside)], middleware=[Middleware(Guard, hosts=hosts)])


def _text(text: str, kind: str) -> Callable[[Request], Any]:
    async def answer(_: Request) -> Response:
        return Response(text, media_type=f"{kind}; charset=utf-8")

    return answer


def _asked(feed: Feed, ask: str) -> Callable[[Request], Any]:
    """An answer to a question. What is not there, cannot be read or makes no sense is one sentence."""

    async def answer(request: Request) -> Response:
        words = request.query_params
        try:
            found = await run_in_threadpool(feed.answer, ask, words, words.getlist("means"))
        except Unknown as error:
            return JSONResponse({"fault": str(error)}, status_code=404)
        except (JomaError, OSError) as error:
            return JSONResponse({"fault": str(error)})
        except (KeyError, ValueError, OverflowError):
            return JSONResponse({"fault": "this is not a question that the page asks"}, status_code=400)
        if isinstance(found, dict):
            return JSONResponse(found)
        return Response(found.as_bytes(), media_type="application/octet-stream")

    return answer


def _events(feed: Feed, every: float) -> Callable[[Request], Any]:
    """Server-sent events: first all runs, then what changed of them. Rows are asked for behind a cursor."""

    async def stream(request: Request) -> AsyncIterator[str]:
        told: dict[str, Any] = {}
        order: list[str] | None = None
        silent = 0.0
        while not await request.is_disconnected():
            runs = (await run_in_threadpool(feed.index))["runs"]
            now = {run["id"]: run for run in runs}
            silent += every
            if list(now) != order or any(told.get(id) is not run for id, run in now.items()):
                news, told, order, silent = news_of(told, now), now, list(now), 0.0
                yield f"event: runs\ndata: {json.dumps({'order': order, **news})}\n\n"
            elif silent > _ALIVE:
                silent = 0.0
                yield ": still here\n\n"
            await asyncio.sleep(every)

    async def answer(request: Request) -> Response:
        return StreamingResponse(stream(request), media_type="text/event-stream")

    return answer


def serve(feed: Feed, *, port: int = 0, every: float = 1.0, ready: Callable[[str], None] = print) -> None:
    """Answer until Ctrl-C.

    feed: what is shown. port: 0 for any that is free. every: seconds between two looks at the files. ready: gets the
    address, when it can be opened.
    """
    import uvicorn

    bound = _bound(port)
    at, token = bound.getsockname()[1], secrets.token_urlsafe(24)
    app = application(feed, token=token, port=at, every=every)
    # Streams never end by themselves: whoever leaves does not wait for them.
    server = uvicorn.Server(settings(app))
    ready(f"http://{HOST}:{at}/{token}/")
    server.run(sockets=[bound])


def settings(app: ASGIApp) -> Any:
    """How uvicorn serves it. It knows no websockets: a request for one is answered as any other."""
    import uvicorn

    how: dict[str, Any] = {"log_level": "critical", "access_log": False, "lifespan": "off", "ws": "none"}
    return uvicorn.Config(app, timeout_graceful_shutdown=1, **how)


def _bound(port: int) -> socket.socket:
    """A socket that listens: who is told its address at once is let wait, and not turned away."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((HOST, port))
        bound.listen()
    except (OSError, OverflowError) as error:
        bound.close()
        why = getattr(error, "strerror", None) or str(error)
        raise BadInput(f"port {port} cannot be used: {why}; 0 takes any that is free", argument="port") from error
    return bound

"""The live pages as an ASGI application: pages, streams of events, buttons, and figures for Prometheus."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs

import anyio.to_thread
import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline import __version__
from paceline.core.errors import ConfigurationError
from paceline.dashboard.access import Access
from paceline.dashboard.broadcast import Broadcast
from paceline.dashboard.run_feed import RunFeed
from paceline.dashboard.shelf import Shelf, ShelfFeed
from paceline.experiment.steering import steer
from paceline.policies import POLICIES
from paceline.recording.prometheus import CONTENT_TYPE, prometheus_text
from paceline.report.followed_page import run_page, runs_page
from paceline.runtimes.serving import control

KEPT = 4  # runs that nobody watches any more: who comes back soon need not wait until they are read again
HEADERS = {
    b"cache-control": b"no-store",
    b"referrer-policy": b"no-referrer",  # the token is in the address
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"cross-origin-resource-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
}
# A page says itself what it may do (its meta element), but for this; nothing else may do anything.
OF_PAGES = b"frame-ancestors 'none'; base-uri 'none'; form-action 'none'; object-src 'none'"
OF_ALL_ELSE = b"default-src 'none'; frame-ancestors 'none'; sandbox"


EVENTS = "text/event-stream"


class Dashboard:
    """What the routes share."""

    def __init__(self, shelf: Shelf, access: Access, *, price: float | None = None, steers: bool = True) -> None:
        """`steers`: whoever sees runs may also scale, switch, stop them."""
        self._shelf, self._access = shelf, access
        self._price, self._steers = price, steers
        self._all = Broadcast(ShelfFeed(shelf, access.token))
        self.followed: dict[Path, Broadcast] = {}  # the latest that was asked for comes last

    def end(self) -> None:
        """Of all streams, which never would by themselves."""
        for broadcast in (self._all, *self.followed.values()):
            broadcast.end()

    def app(self) -> ASGIApp:
        routes = [
            Route("/", self._list),
            Route("/events/", self._list_events),
            Route("/runs/{name:path}", self._run),
            Route("/events/{name:path}", self._run_events),
            Route("/steer/{name:path}", self._steer, methods=["POST"]),
            Route("/metrics", self._metrics),
        ]
        return Guard(Starlette(routes=routes), self._access)

    async def _list(self, asked: Request) -> Response:
        return HTMLResponse(runs_page(__version__))

    async def _list_events(self, asked: Request) -> Response:
        return _stream(asked, self._all)

    async def _run(self, asked: Request) -> Response:
        run = await self._found(asked)
        if run is None:
            return _unknown(asked)
        return HTMLResponse(run_page(asked.path_params["name"], __version__, [*POLICIES]))

    async def _run_events(self, asked: Request) -> Response:
        run = await self._found(asked)
        if run is None:
            return _unknown(asked)
        return _stream(asked, self._followed(run))

    def _followed(self, run: Path) -> Broadcast:
        found = self.followed.pop(run, None) or Broadcast(RunFeed(run, self._price, steers=self._steers))
        idle = [other for other, broadcast in self.followed.items() if not broadcast.is_watched]
        for other in idle[: len(idle) - KEPT] if len(idle) > KEPT else []:
            del self.followed[other]
        self.followed[run] = found
        return found

    async def _metrics(self, asked: Request) -> Response:
        try:
            statuses = await anyio.to_thread.run_sync(self._shelf.statuses)
        except ConfigurationError as problem:
            return PlainTextResponse(f"{problem}\n", 503)
        return Response(prometheus_text(statuses), headers={"content-type": CONTENT_TYPE})

    async def _steer(self, asked: Request) -> Response:
        if not self._steers:
            return PlainTextResponse("this page only shows runs: it was started with --read-only", 403)
        run = await self._found(asked)
        if run is None:
            return _unknown(asked)
        if asked.headers.get("content-type") != "application/json":
            return PlainTextResponse("a request is JSON", 415)
        body = b""
        try:
            async for piece in asked.stream():
                body += piece
                if len(body) > control.LONGEST:
                    return PlainTextResponse(f"a request has at most {control.LONGEST} bytes", 413)
        except ClientDisconnect:
            return PlainTextResponse("that was not the whole request", 400)
        try:
            wanted = msgspec.json.decode(body, type=control.Request)
            said = await anyio.to_thread.run_sync(steer, run, wanted)
        except (msgspec.DecodeError, UnicodeDecodeError) as problem:
            return PlainTextResponse(f"not a request: {problem}", 400)
        except ConfigurationError as problem:
            return PlainTextResponse(str(problem).removeprefix(f"{run}: "), 409)
        return PlainTextResponse("; ".join(said))

    async def _found(self, asked: Request) -> Path | None:
        try:
            return await anyio.to_thread.run_sync(self._shelf.find, asked.path_params["name"])
        except ConfigurationError:  # the directory was taken away
            return None


def _stream(asked: Request, broadcast: Broadcast) -> Response:
    if asked.method == "HEAD":
        return Response(media_type=EVENTS)
    return StreamingResponse(broadcast.watch(), media_type=EVENTS)


def _unknown(asked: Request) -> Response:
    return PlainTextResponse(f"there is no run {asked.path_params['name']!r} here", 404)


class Guard:
    """Nothing goes past it that may not see or change anything, and nothing leaves without the headers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # there is nothing for web sockets here
            await send({"type": "websocket.close"})
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                is_page = dict(message["headers"]).get(b"content-type", b"").startswith(b"text/html")
                allowed = b"content-security-policy", OF_PAGES if is_page else OF_ALL_ELSE
                message["headers"] = [*message["headers"], *HEADERS.items(), allowed]
            await send(message)

        headers: dict[str, str] = {}
        for raw, said in scope["headers"]:
            name, value = raw.decode("latin-1"), said.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value  # two hosts are none
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [None])[0]
        refusal = self._access.refusal(scope["method"], headers, given)
        if refusal is not None:
            await PlainTextResponse(f"{refusal.reason}\n", refusal.status)(scope, receive, guarded)
        else:
            await self._app(scope, receive, guarded)

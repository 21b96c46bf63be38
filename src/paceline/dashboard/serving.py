"""Serves the live pages until somebody ends it. The address is taken before anything is said of it."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path
from typing import NamedTuple

import uvicorn

from paceline.core.errors import ConfigurationError
from paceline.dashboard.access import Access
from paceline.dashboard.app import Dashboard
from paceline.dashboard.shelf import Shelf
from paceline.dashboard.token import token_for
from paceline.experiment.run_list import find_runs
from paceline.experiment.run_status import is_run
from paceline.report.followed_page import address_of, name_of

PATIENCE = 1  # seconds for what goes on when the server is to end


class _Server(uvicorn.Server):
    def __init__(self, settings: uvicorn.Config, dashboard: Dashboard) -> None:
        super().__init__(settings)
        self._dashboard = dashboard

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._dashboard.end()
        await super().shutdown(sockets)


class Watched(NamedTuple):
    """What is served, and where."""

    server: uvicorn.Server
    taken: socket.socket
    address: str  # of the page, with the token
    kept_in: Path  # with the token

    def serve(self) -> None:
        try:
            self.server.run(sockets=[self.taken])
        finally:
            self.taken.close()


def watched(directory: Path, host: str, port: int, *, price: float | None, steers: bool) -> Watched:
    """The pages of one run, or of all below a directory. ConfigurationError: none, or nowhere to show them."""
    directory = directory.resolve()  # where it is now: `.` has no name
    alone = is_run(directory)
    below = directory.parent if alone else directory
    shelf = Shelf(below, directory if alone else None)
    if not alone:
        _see_that_it_is_one(directory)
    token = token_for(directory)
    taken = _take(host, port)
    names = {"localhost", host.lower(), socket.gethostname().lower()}
    dashboard = Dashboard(shelf, Access(token, names), price=price, steers=steers)
    settings = uvicorn.Config(
        dashboard.app(),
        log_level="error",
        access_log=False,
        lifespan="off",
        http="h11",
        ws="none",
        proxy_headers=False,
        timeout_graceful_shutdown=PATIENCE,
        server_header=False,
    )
    path = address_of(name_of(directory, below), token) if alone else f"/?token={token}"
    return Watched(_Server(settings, dashboard), taken, f"http://{_called(*taken.getsockname()[:2])}{path}", directory)


def _see_that_it_is_one(directory: Path) -> None:
    """A directory with runs below it, or one where there may be some later."""
    if directory.exists() and not directory.is_dir():
        raise ConfigurationError(f"{directory}: is a file; give the directory of a run, or one with runs below it")
    find_runs(directory)


def _called(host: str, port: int) -> str:
    """All addresses at once are none that somebody else could open."""
    if ipaddress.ip_address(host.partition("%")[0]).is_unspecified:
        host = socket.gethostname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _take(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError):
        raise ConfigurationError(f"--host {host}: is no address of this machine") from None
    taken = socket.socket(family, kind, protocol)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # those of a page that was just closed may linger
    try:
        taken.bind(address)
        taken.listen()
    except (OSError, OverflowError) as problem:
        taken.close()
        said = problem.strerror if isinstance(problem, OSError) else str(problem)
        raise ConfigurationError(
            f"{host}:{port}: {said}; is another `paceline watch` there? choose another with --port, or --port 0 for any"
        ) from None
    return taken

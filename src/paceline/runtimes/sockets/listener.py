"""The door of a run: takes callers in, one handshake each, without ever waiting for one of them.

It listens on the node's own address and on an abstract unix socket. A caller that is slow, says too much or the wrong
thing is shown out without a word, and no crowd of strangers keeps those out that know the secret.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

from paceline.core.errors import ConfigurationError
from paceline.runtimes.serving.loop import Loop
from paceline.runtimes.sockets.connecting import SILENT_WORKER, Address, this_machine, tune
from paceline.runtimes.sockets.handshake import CODE, Caller, HostSide, RefusedError

PATIENCE = 5.0  # seconds that a caller has for the handshake
MOST = 256  # strangers at a time; the oldest goes first


class Visitor(NamedTuple):
    """A caller that was let in."""

    caller: Caller
    connection: socket.socket
    memory: int  # the descriptor of what it shares; -1: nothing

    def close(self) -> None:
        self.connection.close()
        if self.memory >= 0:
            os.close(self.memory)


class _Stranger:
    def __init__(self, connection: socket.socket, side: HostSide, since: float) -> None:
        self.connection, self.side, self.since = connection, side, since
        self.memory = -1


class Listener:
    def __init__(
        self,
        host: str,
        secret: bytes,
        wanted: Callable[[Caller], bool],
        let_in: Callable[[Visitor], None],
        *,
        ports: range | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`host`: the node's own address. `ports`: one of these, else any that is free."""
        self._secret, self._wanted, self._let_in, self._clock = secret, wanted, let_in, clock
        self._seen: set[bytes] = set()
        self._strangers: dict[int, _Stranger] = {}  # by descriptor, the oldest first
        self._loop: Loop | None = None
        self._tcp = _bound(host, ports)
        self._unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        name = f"paceline-{secrets.token_hex(16)}"
        self._unix.bind("\0" + name)
        self._unix.listen(MOST)
        for door in (self._tcp, self._unix):
            door.setblocking(False)
        self.address = Address(host, self._tcp.getsockname()[1], name, this_machine())

    def attach(self, loop: Loop) -> None:
        self._loop = loop
        loop.watch(self._tcp, lambda: self._open(self._tcp))
        loop.watch(self._unix, lambda: self._open(self._unix))

    def look(self) -> None:
        """Show those out that take too long."""
        end = self._clock() - PATIENCE
        for stranger in [stranger for stranger in self._strangers.values() if stranger.since < end]:
            self._show_out(stranger)

    def close(self) -> None:
        for stranger in list(self._strangers.values()):
            self._show_out(stranger)
        for door in (self._tcp, self._unix):
            door.close()

    def _open(self, door: socket.socket) -> None:
        assert self._loop is not None
        try:
            connection, _ = door.accept()
        except OSError:  # it has gone again, or there is no room for one more now
            return
        connection.setblocking(False)
        side = HostSide(self._secret, secrets.token_bytes(CODE), self._seen, self._wanted)
        stranger = self._strangers[connection.fileno()] = _Stranger(connection, side, self._clock())
        self._loop.watch(connection, lambda: self._hear(stranger))
        if len(self._strangers) > MOST:
            self._show_out(next(iter(self._strangers.values())))

    def _hear(self, stranger: _Stranger) -> None:
        try:
            self._take_word(stranger)
        except BlockingIOError:
            return
        except (RefusedError, OSError):
            self._show_out(stranger)
            return
        if stranger.side.done:
            self._forget(stranger)
            assert stranger.side.caller is not None
            if stranger.connection.family == socket.AF_INET:
                tune(stranger.connection, SILENT_WORKER)
            self._let_in(Visitor(stranger.side.caller, stranger.connection, stranger.memory))

    def _take_word(self, stranger: _Stranger) -> None:
        connection, side = stranger.connection, stranger.side
        if connection.family == socket.AF_UNIX:
            heard, descriptors, _, _ = socket.recv_fds(connection, side.missing, 1)
            for descriptor in descriptors:
                if stranger.memory >= 0 or side.caller is None:
                    os.close(descriptor)
                else:
                    stranger.memory = descriptor
        else:
            heard = connection.recv(side.missing)
        if not heard:
            raise RefusedError("it went away")
        answer = side.feed(heard)
        if answer:
            connection.send(answer)  # a few bytes, the first that are sent: there is room for them

    def _forget(self, stranger: _Stranger) -> None:
        assert self._loop is not None
        del self._strangers[stranger.connection.fileno()]
        self._loop.forget(stranger.connection)

    def _show_out(self, stranger: _Stranger) -> None:
        with contextlib.suppress(ValueError):  # the loop is closed already
            self._forget(stranger)
        stranger.connection.close()
        if stranger.memory >= 0:
            os.close(stranger.memory)


def _bound(host: str, ports: range | None) -> socket.socket:
    problem: OSError | None = None
    for port in ports or (0,):
        door = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            door.bind((host, port))
            door.listen(MOST)  # of two that have bound the same port only one may
            return door
        except OSError as found:
            door.close()
            problem = found
    assert problem is not None
    where = f"{host}, ports {ports[0]} to {ports[-1]}" if ports else host
    raise ConfigurationError(f"no port could be opened on {where}: {problem.strerror}") from None

"""How a process reaches a server: by a unix socket if both are on one host, else by TCP, and by the handshake."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from pathlib import Path

import msgspec

from paceline.runtimes.sockets.handshake import CODE, Caller, CallerSide, RefusedError

PATIENCE = 60.0  # seconds until a server that does not answer is given up: it may be busy
# Seconds after which the kernel calls a connection broken whose bytes nobody takes. That a worker takes none says that
# its host is gone; a server may stand still for a while, in a callback of the user's or stopped by hand.
SILENT_WORKER, SILENT_SERVER = 10, 300


class Address(msgspec.Struct, frozen=True):
    """Where a server listens."""

    host: str
    port: int
    unix: str  # the name of an abstract socket
    machine: str  # which the unix socket can be reached on

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def this_machine() -> str:
    """The same for all processes that can share memory and reach each other's unix sockets."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/net')}"
    return ""


def is_shared(address: Address, transport: str) -> bool:
    """Whether memory is shared with whoever listens there; `transport`: "auto", or "tcp" where it must not be."""
    return transport == "auto" and bool(address.machine) and address.machine == this_machine()


def connect(address: Address, caller: Caller, secret: bytes, *, shares: int = -1) -> socket.socket:
    """A connection that is let in. `shares`: the descriptor of memory to share, over a unix socket; -1: by TCP.

    RefusedError: the server does not want us, or does not know the secret; OSError: it is not there.
    """
    shared = shares >= 0
    connection = socket.socket(socket.AF_UNIX if shared else socket.AF_INET, socket.SOCK_STREAM)
    try:
        connection.settimeout(PATIENCE)
        connection.connect("\0" + address.unix if shared else (address.host, address.port))
        _shake_hands(connection, CallerSide(secret, caller, secrets.token_bytes(CODE)), shares)
        connection.settimeout(None)
        if not shared:
            tune(connection, SILENT_SERVER)
    except BaseException:
        connection.close()
        raise
    return connection


def _shake_hands(connection: socket.socket, side: CallerSide, shares: int) -> None:
    end = time.monotonic() + PATIENCE
    connection.sendall(side.hello)
    while not side.done:
        connection.settimeout(max(0.01, end - time.monotonic()))
        try:
            heard = connection.recv(side.missing)
        except TimeoutError:
            raise RefusedError(f"no answer within {PATIENCE:g} seconds") from None
        if not heard:
            raise RefusedError("the server closed the connection")
        answer = side.feed(heard)
        if answer and shares >= 0:
            socket.send_fds(connection, [answer], [shares])
        elif answer:
            connection.sendall(answer)


def tune(connection: socket.socket, silent_for: int) -> None:
    """No waiting for more to send, and no waiting for ever for a host that is gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1_000 * silent_for)

"""Waiting for sockets, with as many of them open as the system allows: select takes descriptors below 1,024 only."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Collection

BUSY = struct.Struct("<168xQ")  # of Linux's tcp_info: microseconds in which something was on its way


def ready(
    reading: Collection[int], writing: Collection[int] = (), seconds: float | None = None
) -> tuple[list[int], list[int]]:
    """Those that can be read and those that can be written, or are broken. No descriptor is in both."""
    poll = select.poll()
    for descriptor in reading:
        poll.register(descriptor, select.POLLIN)
    for descriptor in writing:
        poll.register(descriptor, select.POLLOUT)
    found = [descriptor for descriptor, _ in poll.poll(None if seconds is None else 1_000 * seconds)]
    return [one for one in found if one in reading], [one for one in found if one in writing]


def seconds_busy(connection: socket.socket) -> float | None:
    """For how long bytes were on their way, not taken yet by the other side; None: the system does not count that."""
    try:
        told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BUSY.size)
    except (AttributeError, OSError):
        return None
    return BUSY.unpack(told)[0] / 1e6 if len(told) == BUSY.size else None

"""Waiting for sockets, with as many of them open as the system allows: select takes descriptors below 1,024 only."""

from __future__ import annotations

import select
from collections.abc import Collection


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

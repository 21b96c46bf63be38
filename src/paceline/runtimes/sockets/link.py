"""A worker's end of a connection to a server that may be on another host."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from paceline.runtimes.serving.channel import ClosedError
from paceline.runtimes.serving.link import ChannelLink
from paceline.runtimes.serving.memory import create
from paceline.runtimes.serving.messages import ToServer, ToWorker
from paceline.runtimes.sockets.channel import SegmentChannel, places_in
from paceline.runtimes.sockets.connecting import Address, connect, is_shared
from paceline.runtimes.sockets.handshake import Caller
from paceline.training.layout import Layout, Segment

WORKER = b"w"
SIGN_OF_LIFE = 1.0  # seconds between two


class SocketLink(ChannelLink):
    def __init__(self, channel: SegmentChannel[ToWorker, ToServer], segment: int) -> None:
        super().__init__(channel, segment)
        self._socket = channel

    def enter(self, layout: Layout) -> Segment:
        segment = super().enter(layout)
        self._socket.use(places_in(segment))
        return segment


@contextmanager
def linked(address: Address, index: int, secret: bytes, transport: str) -> Iterator[SocketLink]:
    """A link to the server that listens there, as the worker with this index."""
    segment = create()
    shared = is_shared(address, transport)
    channel: SegmentChannel[ToWorker, ToServer] = SegmentChannel(ToWorker, segment, patient=True)
    channel.connect(connect(address, Caller(WORKER, index), secret, shares=segment if shared else -1), shared=shared)
    over = threading.Event()
    threading.Thread(target=_show_life, args=(channel, over), daemon=True, name="paceline signs of life").start()
    try:
        yield SocketLink(channel, segment)
    finally:
        over.set()
        channel.close()
        os.close(segment)


def _show_life(channel: SegmentChannel[ToWorker, ToServer], over: threading.Event) -> None:
    """A worker that computes for long is still there; one whose host stands still is not."""
    while not over.wait(SIGN_OF_LIFE):
        try:
            channel.show_life()
        except (ClosedError, OSError, ValueError):
            return

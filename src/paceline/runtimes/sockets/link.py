"""A worker's end of a connection to a server that may be on another host."""

from __future__ import annotations

import threading

from paceline.runtimes.serving.channel import ClosedError
from paceline.runtimes.serving.link import ChannelLink
from paceline.runtimes.serving.messages import ToServer, ToWorker
from paceline.runtimes.sockets.channel import SegmentChannel, places_in
from paceline.training.layout import Layout, Segment

WORKER = b"w"
SIGN_OF_LIFE = 1.0  # seconds between two


class SocketLink(ChannelLink):
    def __init__(self, channel: SegmentChannel[ToWorker, ToServer], segment: int) -> None:
        super().__init__(channel, segment)
        self._socket = channel
        self._over = threading.Event()
        threading.Thread(target=self._show_life, daemon=True, name="paceline signs of life").start()

    def enter(self, layout: Layout) -> Segment:
        segment = super().enter(layout)
        self._socket.use(places_in(segment))
        return segment

    def _show_life(self) -> None:
        """A worker that computes for long is still there; one whose host stands still is not."""
        while not self._over.wait(SIGN_OF_LIFE):
            try:
                self._socket.show_life()
            except (ClosedError, OSError, ValueError):
                return

    def close(self) -> None:
        self._over.set()
        self._socket.close()

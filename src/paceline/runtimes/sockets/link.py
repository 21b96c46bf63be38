"""A worker's end of a connection to a server that may be on another host."""

from __future__ import annotations

import threading
from typing import Any

from torch import Tensor

from paceline.runtimes.serving.channel import ClosedError
from paceline.runtimes.serving.link import ChannelLink
from paceline.runtimes.serving.messages import ToServer, ToWorker
from paceline.runtimes.sockets.channel import SocketChannel
from paceline.runtimes.sockets.courier import Courier, Way
from paceline.runtimes.sockets.gradient_codec import GradientCodec
from paceline.runtimes.sockets.places import places_in
from paceline.runtimes.sockets.segment_channel import SegmentChannel
from paceline.training.compression import Compression
from paceline.training.layout import Layout, Segment
from paceline.training.optimizers import OptimizerSpec

WORKER = b"w"
SIGN_OF_LIFE = 1.0  # seconds between two


class SocketLink(ChannelLink):
    def __init__(
        self,
        channel: SegmentChannel[ToWorker, ToServer],
        segment: int,
        compression: Compression | None = None,
        seed: str = "",
    ) -> None:
        """`compression`: of gradients that leave this host; `seed`: of what is random in it."""
        super().__init__(channel, segment)
        self._compression, self._seed = compression, seed
        self._socket = channel
        self._mapped: Segment | None = None
        self._courier: Courier | None = None
        self._over = threading.Event()
        threading.Thread(target=self._show_life, daemon=True, name="paceline signs of life").start()

    def enter(self, layout: Layout) -> Segment:
        segment = self._mapped = super().enter(layout)
        self._socket.use(places_in(segment))
        self._prepare_codecs(segment)
        return segment

    def begin(self, spec: OptimizerSpec) -> None:
        super().begin(spec)
        if self._compression is None and (ways := self._ways()):
            assert self._mapped is not None
            self.ahead = self._courier = Courier(ways, self._mapped)

    def _ways(self) -> list[Way]:
        """Those that gradients travel."""
        assert self._mapped is not None
        return [] if self._socket.shares_memory else [Way(self._socket, 0, self._mapped.layout.parameter_count)]

    def _prepare_codecs(self, segment: Segment) -> None:
        self._encode_for(self._socket, segment.gradient)

    def _encode_for(self, channel: SocketChannel[Any, Any], gradient: Tensor, part: int = 0) -> None:
        if self._compression is not None:
            channel.encode_gradients(GradientCodec(self._compression, gradient, f"{self._seed}/{part}"))

    def _show_life(self) -> None:
        """A worker that computes for long is still there; one whose host stands still is not."""
        while not self._over.wait(SIGN_OF_LIFE):
            try:
                self._socket.show_life()
            except (ClosedError, OSError, ValueError):
                return

    def close(self) -> None:
        self._over.set()
        if self._courier is not None:
            self._courier.close()
        self._socket.close()

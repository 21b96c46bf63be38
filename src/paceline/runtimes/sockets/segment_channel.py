"""Between a worker and the server of the run: which parts of its segment go with which message."""

from __future__ import annotations

import time
from typing import Any

from paceline.runtimes.serving.channel import Carried, In, Out
from paceline.runtimes.serving.memory import map_segment
from paceline.runtimes.serving.messages import Enter, Go, Leased, Push, Restart, StateReady
from paceline.runtimes.sockets.channel import SocketChannel
from paceline.runtimes.sockets.gradient_codec import GradientCodec
from paceline.runtimes.sockets.places import GRADIENT, OTHERS, PARAMETERS, places_in
from paceline.training.compression import Compression


class SegmentChannel(SocketChannel[In, Out]):
    """The segment is the worker's, or the server's copy of it.

    `segment`: the descriptor of its memory, here. `sharded`: parameters and gradients go to others. `compression`: of
    gradients that come in.
    """

    def __init__(
        self,
        incoming: Any,
        segment: int,
        *,
        patient: bool,
        sharded: bool = False,
        compression: Compression | None = None,
    ) -> None:
        tensors = 0 if sharded else PARAMETERS | GRADIENT
        parts: dict[type, int] = {
            Push: OTHERS | GRADIENT & tensors,
            Enter: OTHERS | PARAMETERS & tensors,
            Restart: OTHERS,
            Go: PARAMETERS & tensors,
            Leased: PARAMETERS & tensors,
        }
        super().__init__(incoming, patient=patient, parts=parts, parcels={Enter: "state", StateReady: "path"})
        self._descriptor = segment
        self._others_are_new = False
        self._compression = None if sharded else compression
        self._gradient_began = self._gradient_took = 0.0

    def carried(self) -> Carried | None:
        """Of a gradient that came in stretches only what came last counts: the others came while it was computed."""
        busy = None if self._shared else self.busy()
        return None if busy is None else Carried(busy, self._gradient_took)

    def _parts_of(self, message: Any) -> int:
        parts = super()._parts_of(message)
        if isinstance(message, Leased) and not message.parameters:
            return 0
        if isinstance(message, Go) and self._others_are_new:  # its first
            self._others_are_new = False
            return parts | OTHERS
        return parts

    def _places_for(self, parts: int, size: int) -> list[memoryview]:
        if isinstance(self._message, Enter) and not self._places:
            segment = map_segment(self._descriptor, self._message.layout)
            self.use(places_in(segment))
            self._others_are_new = True
            if self._compression is not None and not self._shared:
                self.encode_gradients(GradientCodec(self._compression, segment.gradient))
        if isinstance(self._message, Push):
            self._gradient_began = time.perf_counter()
        return super()._places_for(parts, size)

    def _conclude(self) -> None:
        if isinstance(self._message, Push):
            self._gradient_took = time.perf_counter() - self._gradient_began
        super()._conclude()

"""A worker's end where the parameters are spread over shards: one connection to the server, and one to each of them.

Gradients go out to all of them at once, and parameters come in from all, straight into the segment. Where a shard is on
the same host it sees the segment, and only words are exchanged.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from paceline.core.errors import PacelineError
from paceline.runtimes.serving.channel import ClosedError
from paceline.runtimes.serving.link import Stopped
from paceline.runtimes.serving.memory import create
from paceline.runtimes.serving.messages import HandOver, ToServer, ToWorker
from paceline.runtimes.sockets import shard_messages as said
from paceline.runtimes.sockets.channel import SocketChannel
from paceline.runtimes.sockets.connecting import Address, connect, is_shared
from paceline.runtimes.sockets.courier import Way
from paceline.runtimes.sockets.gradient_codec import NONE, compression_of
from paceline.runtimes.sockets.handshake import Caller
from paceline.runtimes.sockets.link import WORKER, SocketLink
from paceline.runtimes.sockets.places import GRADIENT, PARAMETERS, places_in
from paceline.runtimes.sockets.segment_channel import SegmentChannel
from paceline.runtimes.sockets.waiting import ready
from paceline.training.compression import Compression
from paceline.training.layout import Segment
from paceline.training.optimizers import OptimizerSpec
from paceline.training.sharding import Part, parts_of

PARTS: dict[type, int] = {said.Model: PARAMETERS, said.Here: GRADIENT, said.Parameters: PARAMETERS}


class MixedVersionsError(PacelineError):
    """Two shards sent parameters of two versions: this must not happen, whatever fails."""


class ShardedLink(SocketLink):
    def __init__(
        self,
        channel: SegmentChannel[ToWorker, ToServer],
        segment: int,
        shards: Sequence[Address],
        *,
        index: int,
        secret: bytes,
        transport: str,
        compression: Compression | None = None,
    ) -> None:
        super().__init__(channel, segment, compression, f"{index}")
        self._addresses, self._index, self._secret, self._transport = shards, index, secret, transport
        self._descriptor = segment
        self._parts: Sequence[Part] = ()
        self._shards: list[SocketChannel[said.Parameters, said.WorkerToShard]] = []

    def _prepare_codecs(self, segment: Segment) -> None:
        """When the parts are known."""

    def begin(self, spec: OptimizerSpec) -> None:
        assert self._mapped is not None
        self._parts = parts_of(self._mapped.layout, spec, len(self._addresses))
        for part, address in zip(self._parts, self._addresses, strict=False):
            shared = is_shared(address, self._transport)
            shard: SocketChannel[Any, Any] = SocketChannel(said.Parameters, patient=False, parts=PARTS)
            shares = self._descriptor if shared else -1
            shard.connect(connect(address, Caller(WORKER, self._index), self._secret, shares=shares), shared=shared)
            shard.use(places_in(self._mapped, part.begin, part.end))
            if not shared:
                self._encode_for(shard, part.of(self._mapped.gradient), part.first)
            self._shards.append(shard)
        super().begin(spec)

    def _ways(self) -> list[Way]:
        return [
            Way(shard, part.begin, part.end)
            for shard, part in zip(self._shards, self._parts, strict=False)
            if not shard.shares_memory
        ]

    def _receive(self) -> ToWorker:
        while isinstance(message := super()._receive(), HandOver):
            self._send_to_all(said.Model())
        return message

    def _hand_in(self, number: int) -> None:
        self._send_to_all(said.Here(number), but_those_that_share=True)

    def _send_to_all(self, message: said.WorkerToShard, *, but_those_that_share: bool = False) -> None:
        """To all at once: while one of them is slow, others may take what they can."""
        told = [shard for shard in self._shards if not (but_those_that_share and shard.shares_memory)]
        try:
            for shard in told:
                shard.send(message)
            while waiting := {shard.writing: shard for shard in told if shard.has_unsent}:
                for descriptor in ready((), waiting)[1]:
                    waiting[descriptor].flush()
        except ClosedError:
            raise Stopped from None

    def _fetch(self) -> None:
        missing = {shard.fileno(): shard for shard in self._shards}
        versions = set()
        while missing:
            for descriptor in ready(missing)[0]:
                shard = missing[descriptor]
                try:
                    messages = shard.received()
                except ClosedError:
                    raise Stopped from None
                for message in messages:
                    versions.add(message.version)
                    del missing[descriptor]
        if len(versions) > 1:
            raise MixedVersionsError(f"parameters of versions {sorted(versions)} came together")

    def close(self) -> None:
        for shard in self._shards:
            shard.close()
        super().close()


@contextmanager
def linked(
    server: Address,
    shards: Sequence[Address],
    index: int,
    secret: bytes,
    transport: str = "auto",
    compression: str = NONE,
) -> Iterator[SocketLink]:
    """A link to the server that listens there, as the worker with this index. `shards`: none, if it has the
    parameters."""
    segment, shared = create(), is_shared(server, transport)
    channel: SegmentChannel[ToWorker, ToServer] = SegmentChannel(ToWorker, segment, patient=True, sharded=bool(shards))
    channel.connect(connect(server, Caller(WORKER, index), secret, shares=segment if shared else -1), shared=shared)
    chosen = compression_of(compression)
    link = (
        ShardedLink(channel, segment, shards, index=index, secret=secret, transport=transport, compression=chosen)
        if shards
        else SocketLink(channel, segment, None if shared else chosen, f"{index}")
    )
    try:
        yield link
    finally:
        link.close()
        os.close(segment)

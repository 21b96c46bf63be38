"""Messages over a socket, and the tensors that belong to them.

The other side of a pipe sees the same segment; the other side of a TCP connection has one of its own, and what a
message is about travels with it: the parts of the segment that it says are new, byte for byte, from memory to memory.

    frame   what follows (1 byte), length of the message (4), length of the tensors (8); the message; the tensors

A frame without a message is a sign of life. A parcel (the state of an optimizer) is a frame that comes before the
message that names it; so are stretches of a gradient that go ahead (stretches.py). Nothing is read here of a process
that has not shown that it knows the run's secret.
"""

from __future__ import annotations

import math
import mmap
import os
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from paceline.core.errors import ConfigurationError
from paceline.runtimes.serving.channel import Channel, ClosedError, In, Out
from paceline.runtimes.serving.memory import create, path_of
from paceline.runtimes.serving.messages import Push
from paceline.runtimes.sockets.gradient_codec import GradientCodec
from paceline.runtimes.sockets.places import GRADIENT
from paceline.runtimes.sockets.stretches import Arriving, Leaving
from paceline.runtimes.sockets.waiting import ready, seconds_busy
from paceline.training.compression import PayloadError

PARCEL, STRETCH, AHEAD = 8, 16, 32  # instead of parts of a segment; AHEAD: the gradient came in stretches
HEADER = struct.Struct("<BIQ")
AT_ONCE = 1 << 14  # bytes: of messages; what belongs to tensors of these is copied once more
LONGEST = 1 << 28  # bytes of a message
PIECES = 64  # buffers in one call of sendmsg
BREACHES = ValueError, msgspec.MsgspecError, PayloadError


class SocketChannel(Channel[In, Out]):
    """One end of a connection, or of one that is still to come.

    By the type of a message: `parts` of a segment that go with it, and in `parcels` its field with a parcel's path.
    """

    def __init__(
        self,
        incoming: Any,
        *,
        patient: bool,
        parts: Mapping[type, int] | None = None,
        parcels: Mapping[type, str] | None = None,
    ) -> None:
        super().__init__(-1, -1, incoming)
        self._decode_message = self._decode
        self._decode = lambda message: message
        self._parts, self._parcels = parts or {}, parcels or {}
        self._places: Mapping[int, memoryview] = {}  # of the segment, by part
        self._codec: GradientCodec | None = None  # None: gradients travel as they are
        self._encoded = -1  # bytes of the gradient that comes in, encoded
        self._leaving: Leaving | None = None  # None: gradients travel with their message
        self._lent: Sequence[memoryview] | None = None  # where the next one lies; None: in the segment
        self._arriving: Arriving | None = None  # once some did not
        self._shared = False
        self._patient = patient
        self._connection: socket.socket | None = None
        self._lock = threading.RLock()  # signs of life come from a thread of their own
        self._out: deque[memoryview] = deque()
        self._in = bytearray()
        self._targets: deque[memoryview] = deque()  # where the rest of the present frame goes
        self._message: Any = None  # the present frame's, whose tensors are still to come
        self._parcel = -1
        self.heard_at = 0.0  # by time.monotonic
        self.on_close: Callable[[], None] = lambda: None

    def connect(self, connection: socket.socket, *, shared: bool) -> None:
        """`shared`: both sides see the same segment, so that no part of it travels."""
        connection.setblocking(False)
        self._connection, self._shared = connection, shared
        self._reading, self.writing = connection.fileno(), os.dup(connection.fileno())
        self.heard_at = time.monotonic()
        if self._out:
            self._flush_as_far_as_possible()

    @property
    def shares_memory(self) -> bool:
        return self._shared

    @property
    def connected(self) -> bool:
        return self._connection is not None

    def use(self, places: Mapping[int, memoryview]) -> None:
        """The parts of the segment, here."""
        self._places = places

    def encode_gradients(self, codec: GradientCodec) -> None:
        """Both sides must say so, before the first gradient."""
        self._codec = codec

    def send_ahead(self, leaving: Leaving) -> None:
        """Stretches of gradients go ahead of their messages, as far as `leaving` has them."""
        self._leaving = leaving

    # -- sending --

    def send(self, message: Out) -> None:
        with self._lock:
            field = self._parcels.get(type(message))
            if field is not None and getattr(message, field) is not None:
                message = self._post_parcel(message, field)
            parts = 0 if self._shared else self._parts_of(message)
            if parts & GRADIENT and self._leaving is not None and self._leaving.counts:
                self._leaving.add_the_rest()
                self._queue_stretches()
                parts = parts & ~GRADIENT | AHEAD
            if not (parts or self._out) and self._sent_at_once(message):
                return
            tensors = self._views(parts)
            if parts & GRADIENT and self._lent is not None:
                tensors = [*self._lent, *self._views(parts & ~GRADIENT)]
                self._lent = None
            elif parts & GRADIENT and self._codec is not None:
                number = message.number  # type: ignore[attr-defined]
                tensors = [*self._codec.encode(number), *self._views(parts & ~GRADIENT)]
            self._queue(self._encoded_message(message), parts, tensors)
            self.flush()

    def _sent_at_once(self, message: Out) -> bool:
        """Most messages are short and nothing is before them: they need no queue. False: take the long way."""
        if self._connection is None:
            return False
        frame = self.framed(message)
        if len(frame) > AT_ONCE:
            return False
        try:
            sent = self._connection.send(frame)
        except OSError:
            return False
        if sent < len(frame):
            self._out.append(memoryview(frame)[sent:])
            self.flush()
        return True

    def framed(self, message: Out) -> bytes:
        encoded = self._encoded_message(message)
        return HEADER.pack(0, len(encoded), 0) + encoded

    def _encoded_message(self, message: Out) -> bytes:
        encoded = self._encode(message)
        if len(encoded) > LONGEST:
            raise ConfigurationError(
                f"a message of {len(encoded) >> 20:,} MiB is too long: what worker.keep keeps is to be small"
            )
        return encoded

    def post(self, frame: bytes) -> None:
        with self._lock:
            self._out.append(memoryview(frame))
            if len(self._out) >= PIECES:  # as much as one call takes; the other side may begin with it
                self.flush()

    def show_life(self) -> None:
        with self._lock:
            if not self._out:
                self._queue(b"", 0, ())
                self.flush()

    def flush_stretches(self) -> None:
        """Send what may go ahead, as far as the wire takes it now."""
        with self._lock:
            self._queue_stretches()
            self._flush_as_far_as_possible()

    def lend_gradient(self, pieces: Sequence[memoryview]) -> None:
        """The next gradient lies there, one piece after another; they stay as they are until it is sent."""
        self._lent = pieces

    def drop_gradient(self) -> None:
        """What was sent of the present one, or is lent, counts for nothing."""
        self._lent = None
        if self._leaving is not None and self._leaving.holds_any:
            with self._lock:
                self._leaving.drop()

    def _queue_stretches(self) -> None:
        if self._leaving is not None:
            for place, numbers in self._leaving.taken():
                self._queue(place, STRETCH, [numbers])

    def busy(self) -> float | None:
        """For how many seconds there has been something on its way so far, as the system counts; None: it does not."""
        return None if self._connection is None else seconds_busy(self._connection)

    def _post_parcel(self, message: Any, field: str) -> Any:
        """What a path on this host leads to goes ahead of the message, which names no path then."""
        with open(getattr(message, field), "rb") as file:
            self._queue(b"", PARCEL, [memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))])
        return msgspec.structs.replace(message, **{field: ""})

    def _parts_of(self, message: Any) -> int:
        return self._parts.get(type(message), 0)

    def _views(self, parts: int) -> list[memoryview]:
        return [view for part, view in self._places.items() if part & parts and len(view)] if parts else []

    def _queue(self, message: bytes, parts: int, tensors: Sequence[memoryview]) -> None:
        header = HEADER.pack(parts, len(message), sum(map(len, tensors)))
        self._out.append(memoryview(header + message))
        self._out.extend(tensors)

    @property
    def has_unsent(self) -> bool:
        return bool(self._out) and self.connected

    def flush(self) -> None:
        with self._lock:
            self._flush_as_far_as_possible()
            while self._patient and self._out and self.connected:
                ready((), [self.writing])
                self._flush_as_far_as_possible()

    def _flush_as_far_as_possible(self) -> None:
        if self._connection is None:
            return
        try:
            while self._out:
                self._drop(self._connection.sendmsg([self._out[at] for at in range(min(PIECES, len(self._out)))]))
        except BlockingIOError:
            return
        except OSError:
            self._out.clear()
            raise ClosedError from None

    def _drop(self, sent: int) -> None:
        """So many bytes are gone."""
        while sent:
            first = self._out[0]
            if sent < len(first):
                self._out[0] = first[sent:]
                return
            sent -= len(first)
            self._out.popleft()

    # -- receiving --

    def received(self) -> list[In]:
        self._read()
        messages = list(self._waiting)
        self._waiting.clear()
        return messages  # type: ignore[return-value]

    def _read(self) -> bool:
        """Whether a whole message is here."""
        if self._waiting:
            return True
        if self._connection is None:
            return False
        try:
            while not self._waiting:
                self._read_some(self._connection)
        except BlockingIOError:
            return False
        except (OSError, *BREACHES):  # of one that breaks the rules no more is read
            self._lose()
        return True

    def _read_some(self, connection: socket.socket) -> None:
        if self._targets:
            target = self._targets[0]
            count = connection.recv_into(target)
            self._note(count)
            self._fill(count)
        else:
            piece = connection.recv(AT_ONCE)
            self._note(len(piece))
            if not self._in and self._is_whole(piece):
                return
            self._in += piece
        while not self._targets and self._next_frame():
            pass

    def _is_whole(self, piece: bytes) -> bool:
        """Whether this is one message, without anything that belongs to it, and is dealt with: most are."""
        if len(piece) <= HEADER.size:
            return False
        parts, length, size = HEADER.unpack_from(piece)
        if parts or size or len(piece) != HEADER.size + length:
            return False
        self._message = self._decode_message(piece[HEADER.size :])
        self._places_for(0, 0)
        self._conclude()
        return True

    def _note(self, count: int) -> None:
        if not count:
            self._lose()
        self.heard_at = time.monotonic()

    def _lose(self) -> None:
        self.on_close()
        raise ClosedError

    def _next_frame(self) -> bool:
        """Whether the beginning of a frame was here, and is dealt with."""
        if len(self._in) < HEADER.size:
            return False
        parts, length, size = HEADER.unpack_from(self._in)
        if length > LONGEST:
            raise ValueError(f"a message of {length} bytes")
        begin = HEADER.size + length
        if len(self._in) < begin:
            return False
        said = bytes(self._in[HEADER.size : begin])
        del self._in[:begin]
        if parts == STRETCH:
            self._targets.append(self._place_for_stretch(said, size))
        else:
            self._message = self._decode_message(said) if length else None
            self._targets.extend(self._places_for(parts, size))
        while self._targets and self._in:  # what came along
            came = min(len(self._in), len(self._targets[0]))
            self._targets[0][:came] = self._in[:came]
            del self._in[:came]
            self._fill(came)
        if not size:
            self._conclude()
        return True

    def _place_for_stretch(self, said: bytes, size: int) -> memoryview:
        if self._codec is not None or GRADIENT not in self._places:
            raise ValueError("no gradient goes ahead here")
        if self._arriving is None:
            self._arriving = Arriving(self._places[GRADIENT])
        return self._arriving.place_for(said, size)

    def _places_for(self, parts: int, size: int) -> list[memoryview]:
        if parts & AHEAD and self._arriving is None:
            raise ValueError("a gradient of which nothing is here")
        if self._arriving is not None and parts & (AHEAD | GRADIENT):
            self._arriving.take(all_of_it=bool(parts & AHEAD))
        if parts == PARCEL:
            self._drop_parcel()
            self._parcel = create()
            os.ftruncate(self._parcel, size)
            return [memoryview(mmap.mmap(self._parcel, size))]
        if parts & GRADIENT and self._codec is not None:
            others = self._views(parts & ~GRADIENT)
            self._encoded = size - sum(map(len, others))
            return [place for place in (self._codec.place_for(self._encoded), *others) if len(place)]
        places = self._views(parts)
        if sum(map(len, places)) != size:
            raise ValueError(f"{size} bytes for parts of {sum(map(len, places))}")
        return places

    def _fill(self, count: int) -> None:
        target = self._targets[0]
        if count < len(target):
            self._targets[0] = target[count:]
            return
        self._targets.popleft()
        if not self._targets:
            self._conclude()

    def _conclude(self) -> None:
        """All of a frame is here."""
        message, self._message = self._message, None
        if self._encoded >= 0 and self._codec is not None:
            norm = self._codec.decode(self._encoded)
            self._encoded = -1
            if isinstance(message, Push):
                message = msgspec.structs.replace(message, squared_norm=norm if math.isfinite(norm) else None)
        field = self._parcels.get(type(message))
        if field is not None and getattr(message, field) is not None:
            message = msgspec.structs.replace(message, **{field: path_of(self._parcel)})
        if message is not None:
            self._waiting.append(message)

    def _drop_parcel(self) -> None:
        if self._parcel >= 0:
            os.close(self._parcel)
            self._parcel = -1

    def close(self) -> None:
        with self._lock:
            self._drop_parcel()
            if self._connection is not None:
                os.close(self.writing)
                self._connection.close()
            self._connection = None
            self._reading = self.writing = -1
            self._targets.clear()
            self._places = {}
            self._leaving = self._arriving = None

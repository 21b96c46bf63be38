"""Writes what ui.perfetto.dev opens: tracks, and the slices, instants and counters on them.

The format is Perfetto's own, a row of TracePacket messages (perfetto_trace.proto).
Names and texts are written once and then called by their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from paceline.recording.protobuf import double, fixed64, integer, message, text

Value: TypeAlias = int | float | str
MOST_NUMBERED = 50_000  # texts; later ones are written out, so that memory stays small

# Fields of TracePacket, and what it says about numbered texts.
PACKET, TIMESTAMP, SEQUENCE, TRACK_EVENT, NUMBERED, FLAGS, DESCRIPTOR = 1, 8, 10, 11, 12, 13, 60
NONE_YET, NEEDED = 1, 2
# Of TrackDescriptor.
UUID, TRACK_NAME, PARENT, COUNTER_TRACK, ORDER, RANK = 1, 2, 5, 8, 11, 12
BY_RANK = 3
# Of TrackEvent, and its kinds.
ARGUMENT, KIND, NAME, TRACK, NUMBER, FLOW, LAST_FLOW = 4, 9, 10, 11, 44, 47, 48
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
# Of InternedData and its entries, and of DebugAnnotation.
EVENT_NAMES, ARGUMENT_NAMES, TEXTS = 2, 3, 29
ENTRY_NUMBER, ENTRY_TEXT = 1, 2
ARGUMENT_NAME, AS_INTEGER, AS_DOUBLE, AS_TEXT, AS_NUMBERED = 1, 4, 5, 6, 17

ROOT = 1  # the id of the track that holds all others


class Packets:
    def __init__(self, title: str, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._numbers: dict[tuple[int, str], int] = {}
        self._new = b""  # numbered texts that come with the next packet
        root = integer(UUID, ROOT) + text(TRACK_NAME, title) + integer(ORDER, BY_RANK)
        self._packet(0.0, message(DESCRIPTOR, root), NONE_YET)

    # -- tracks --

    def track(self, track: int, name: str, rank: int) -> None:
        described = integer(UUID, track) + text(TRACK_NAME, name) + integer(PARENT, ROOT) + integer(RANK, rank)
        self._packet(0.0, message(DESCRIPTOR, described))

    def counter_track(self, track: int, name: str, rank: int) -> None:
        described = integer(UUID, track) + text(TRACK_NAME, name) + integer(PARENT, ROOT) + integer(RANK, rank)
        self._packet(0.0, message(DESCRIPTOR, described + message(COUNTER_TRACK, b"")))

    # -- what is on them --

    def begin(self, track: int, now: float, name: str, arguments: Mapping[str, Value], flow: int | None = None) -> None:
        """A slice; `flow`: of an arrow that leads from here to wherever it ends."""
        event = integer(KIND, BEGIN) + self._named(name) + self._arguments(arguments)
        self._event(track, now, event if flow is None else event + fixed64(FLOW, flow))

    def end(self, track: int, now: float, arguments: Mapping[str, Value]) -> None:
        self._event(track, now, integer(KIND, END) + self._arguments(arguments))

    def instant(
        self, track: int, now: float, name: str, arguments: Mapping[str, Value], ends: Iterable[int] = ()
    ) -> None:
        """`ends`: the flows whose arrows lead here."""
        event = integer(KIND, INSTANT) + self._named(name) + self._arguments(arguments)
        self._event(track, now, event + b"".join(fixed64(LAST_FLOW, flow) for flow in ends))

    def count(self, track: int, now: float, value: float) -> None:
        self._event(track, now, integer(KIND, COUNTER) + double(NUMBER, value))

    # -- packets --

    def _event(self, track: int, now: float, event: bytes) -> None:
        self._packet(now, message(TRACK_EVENT, integer(TRACK, track) + event))

    def _packet(self, now: float, content: bytes, flags: int = NEEDED) -> None:
        numbered, self._new = (message(NUMBERED, self._new) if self._new else b""), b""
        when = integer(TIMESTAMP, max(0, round(now * 1e9)))  # nanoseconds
        self._write(message(PACKET, when + integer(SEQUENCE, 1) + integer(FLAGS, flags) + numbered + content))

    def _named(self, name: str) -> bytes:
        return integer(NAME, self._number(EVENT_NAMES, name))

    def _arguments(self, arguments: Mapping[str, Value]) -> bytes:
        return b"".join(
            message(ARGUMENT, integer(ARGUMENT_NAME, self._number(ARGUMENT_NAMES, name)) + self._value(value))
            for name, value in arguments.items()
        )

    def _value(self, value: Value) -> bytes:
        if isinstance(value, int):
            return integer(AS_INTEGER, value)
        if isinstance(value, float):
            return double(AS_DOUBLE, value)
        if (TEXTS, value) not in self._numbers and len(self._numbers) >= MOST_NUMBERED:
            return text(AS_TEXT, value)
        return integer(AS_NUMBERED, self._number(TEXTS, value))

    def _number(self, kind: int, name: str) -> int:
        known = self._numbers.get((kind, name))
        if known is None:
            known = self._numbers[kind, name] = len(self._numbers) + 1
            self._new += message(kind, integer(ENTRY_NUMBER, known) + text(ENTRY_TEXT, name))
        return known

"""Writes the files that TensorBoard reads: records with checksums, each an Event message with some scalars.

Without the tensorboard package: so they can be written wherever somebody wants to read them elsewhere, and no thread of
another library is at work in the server of a run. The format is that of TFRecord, and of event.proto and summary.proto.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path

from paceline.recording.lines import open_private
from paceline.recording.protobuf import double, integer, message, single, text

WALL_TIME, STEP, FILE_VERSION, SUMMARY, SESSION = 1, 2, 3, 5, 7  # fields of Event
VALUE, TAG, NUMBER, STATUS = 1, 1, 2, 1  # of what it holds
VERSION = "brain.Event:2"
START = 1
FILES = "events.out.tfevents"  # what TensorBoard looks for


def _table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


TABLE = _table()


def checksum(content: bytes) -> int:
    """CRC-32C, as TFRecord masks it."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def record(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return length + struct.pack("<I", checksum(length)) + content + struct.pack("<I", checksum(content))


class EventFile:
    """A new one in this directory; every write is on its way to disk when it returns."""

    def __init__(self, directory: Path, now: float, begins_at: int | None = None) -> None:
        """`now`: seconds since 1970. `begins_at`: what older files there have from this step on is void."""
        stem = f"{FILES}.{int(now):010d}.{socket.gethostname()}.{os.getpid()}"
        number = 0
        while (path := directory / f"{stem}.{number}").exists():
            number += 1
        self.path = path
        self._file = open_private(path, buffering=0)
        self._write(now, text(FILE_VERSION, VERSION))
        if begins_at is not None:
            self._write(now, integer(STEP, begins_at) + message(SESSION, integer(STATUS, START)))

    def write(self, now: float, step: int, figures: Mapping[str, float]) -> None:
        values = (message(VALUE, text(TAG, name) + single(NUMBER, value)) for name, value in figures.items())
        self._write(now, integer(STEP, step) + message(SUMMARY, b"".join(values)))

    def _write(self, now: float, event: bytes) -> None:
        self._file.write(record(double(WALL_TIME, now) + event))

    def close(self) -> None:
        self._file.close()

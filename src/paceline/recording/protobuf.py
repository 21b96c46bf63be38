"""Writes the wire format of protocol buffers, as far as Perfetto's and TensorBoard's files need it.

A message is bytes, and its fields are put together with +. Whoever calls says the number of a field, which stands in a
.proto file of the format.
"""

from __future__ import annotations

import struct

VARINT, EIGHT_BYTES, LENGTH, FOUR_BYTES = 0, 1, 2, 5  # what the protocol calls wire types
_fixed64, _double, _float = struct.Struct("<Q").pack, struct.Struct("<d").pack, struct.Struct("<f").pack
LARGEST_FLOAT = 3.4028234663852886e38


def varint(number: int) -> bytes:
    """Seven bits per byte, the least first; negative numbers as 64 bits."""
    if 0 <= number < 0x80:
        return bytes((number,))
    number &= (1 << 64) - 1
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def integer(field: int, value: int) -> bytes:
    """int32, int64, uint32, uint64, bool, and enums."""
    return varint(field << 3 | VARINT) + varint(value)


def fixed64(field: int, value: int) -> bytes:
    return varint(field << 3 | EIGHT_BYTES) + _fixed64(value)


def double(field: int, value: float) -> bytes:
    return varint(field << 3 | EIGHT_BYTES) + _double(value)


def single(field: int, value: float) -> bytes:
    """A float of 32 bits; what is too large for it becomes the largest that there is."""
    return varint(field << 3 | FOUR_BYTES) + _float(
        max(-LARGEST_FLOAT, min(LARGEST_FLOAT, value)) if abs(value) < float("inf") else value
    )


def message(field: int, content: bytes) -> bytes:
    return varint(field << 3 | LENGTH) + varint(len(content)) + content


def text(field: int, value: str) -> bytes:
    return message(field, value.encode("utf-8", "replace"))

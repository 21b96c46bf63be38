"""Files of lines that only their user may read, and that may be compressed: then they end in .gz.

A compressed file is a row of gzip members, and each flush can be read by itself. So a file whose writer was killed is
whole up to its last flush, and one that is cut where a member ended is a whole file.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

GZIP = 31  # what zlib calls its format, with the largest window
AT_ONCE = 1 << 16
SEEN_AGAIN = 256  # bytes: the latest line, or most of it
COMPRESSED = ".gz"


def open_private(path: Path, *, append: bool = False, buffering: int = -1) -> BinaryIO:
    """A file to write, which nobody else may read; what there is, is kept or forgotten."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | (os.O_APPEND if append else os.O_TRUNC), 0o600)
    return os.fdopen(descriptor, "ab" if append else "wb", buffering)


def write_privately(path: Path, content: bytes) -> None:
    """All of it or nothing: who reads meanwhile, or after a crash, has what was there before."""
    if path.exists() and not path.is_file():  # such as /dev/stdout
        with open_private(path) as file:
            file.write(content)
        return
    path = path.resolve()  # a link stays one
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    try:
        with open_private(unfinished) as file:
            file.write(content)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


class LinesWriter:
    """Appends to a file, or writes a new one."""

    def __init__(self, path: Path, *, append: bool = False) -> None:
        self._file = open_private(path, append=append)
        self._compressor = _compressor() if path.suffix == COMPRESSED else None

    def write(self, line: bytes) -> None:
        self._file.write(line if self._compressor is None else self._compressor.compress(line))

    def flush(self) -> None:
        if self._compressor is not None:
            self._file.write(self._compressor.flush(zlib.Z_SYNC_FLUSH))
        self._file.flush()

    def end_member(self) -> int:
        """How many bytes there are; the file may be cut there."""
        if self._compressor is not None:
            self._file.write(self._compressor.flush(zlib.Z_FINISH))
            self._compressor = _compressor()
        self._file.flush()
        return self._file.tell()

    def begin_again(self) -> None:
        """Forget what was written."""
        self._file.seek(0)
        self._file.truncate()
        if self._compressor is not None:
            self._compressor = _compressor()

    def close(self) -> None:
        if self._compressor is not None:
            self._file.write(self._compressor.flush(zlib.Z_FINISH))
            self._compressor = None
        self._file.close()


def _compressor() -> zlib._Compress:
    return zlib.compressobj(6, zlib.DEFLATED, GZIP)


def lines_of(path: Path) -> Iterator[bytes]:
    """Every line with its end; the last one may have none, if its writer was killed."""
    with path.open("rb") as file:
        if path.suffix != COMPRESSED:
            yield from file
            return
        inflater, rest = _Inflater(), b""
        for piece in iter(lambda: file.read(AT_ONCE), b""):
            *whole, rest = (rest + inflater.take(piece)).split(b"\n")
            for line in whole:
                yield line + b"\n"
        if rest:
            yield rest


class _Inflater:
    """Takes a row of gzip members in any pieces."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(GZIP)

    def take(self, piece: bytes) -> bytes:
        """What can be read of it: after the last flush of a writer that was killed there is a torn end."""
        found = b""
        while piece:
            try:
                found += self._member.decompress(piece)
            except zlib.error:
                return found
            piece = self._member.unused_data
            if self._member.eof:
                self._member = zlib.decompressobj(GZIP)
        return found


class GrowingLines:
    """The whole lines of a file that somebody may be appending to, from near its end on."""

    def __init__(self, path: Path, most: int) -> None:
        """`most`: so many bytes of lines, at most, of what is there when it is first read."""
        self._path, self._most = path, most
        self._read = 0  # bytes of the file
        self._last = b""  # of those: what the file must still have there
        self._rest = b""  # of a line whose end has not come yet
        self._inflater = _Inflater() if path.suffix == COMPRESSED else None
        self._began = False
        self.from_the_start = True

    @property
    def was_cut(self) -> bool:
        """Whether what was read is no longer there: a run that is resumed begins before its end, and may have come
        further since."""
        try:
            with self._path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._read:
                    return True
                file.seek(self._read - len(self._last))
                return file.read(len(self._last)) != self._last
        except FileNotFoundError:
            return self._read > 0

    def new(self, at_once: int | None = None) -> list[bytes]:
        """The lines that came since the last time. `at_once`: bytes of the file, at most; the rest comes next time."""
        with self._path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if not self._began and self._inflater is None and size > self._most:
                self._read = size - self._most
                self.from_the_start = False
            file.seek(self._read)
            content, left = bytearray(self._rest), sys.maxsize if at_once is None else at_once
            while piece := file.read(min(AT_ONCE, left)):
                left -= len(piece)
                self._last = (self._last + piece)[-SEEN_AGAIN:]
                content += piece if self._inflater is None else self._inflater.take(piece)
                if not self._began and len(content) > 2 * self._most:  # what is compressed is read from its start on
                    del content[: -self._most]
                    self.from_the_start = False
            self._read = file.tell()
        *lines, self._rest = bytes(content).split(b"\n")
        if not self._began and not self.from_the_start:
            del lines[:1]  # its beginning is missing
        self._began = True
        return lines

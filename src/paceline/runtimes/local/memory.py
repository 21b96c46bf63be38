"""Memory that processes share and no name keeps alive: it is gone when the last of them is, however it ends.

Segments carry parameters and gradients. A parcel carries what a new process needs to begin: any object that can be
pickled, whose tensors lie beside the pickle as they are, so that a data set is in memory once for the whole group.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
from typing import Any

import torch
from torch import Tensor

from paceline.core.errors import ConfigurationError
from paceline.training.layout import ALIGNMENT, Layout, Segment, dtype_of

SMALL = 256  # bytes: a tensor this small may as well be in the pickle


def create() -> int:
    """A file descriptor of memory without a size yet."""
    return os.memfd_create("paceline", os.MFD_CLOEXEC)


def map_segment(descriptor: int, layout: Layout) -> Segment:
    size = max(1, layout.segment_bytes)
    if os.fstat(descriptor).st_size < size:
        os.ftruncate(descriptor, size)
    return Segment(layout, torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8))


def pack(content: Any) -> int:
    """A file descriptor of a parcel with this object: the length of its pickle, the pickle, and its tensors."""
    descriptor = create()
    file = io.BytesIO()
    pickler = _Packer(file, descriptor)
    try:
        pickler.dump(content)
    except Exception as problem:  # pickling runs code of the user's classes, which may raise anything
        os.close(descriptor)
        raise ConfigurationError(
            f"this cannot be sent to a new process: {problem}; functions and classes must stand at the top level of a"
            " module or script, not in another function"
        ) from None
    pickled = file.getvalue()
    _write(descriptor, memoryview(len(pickled).to_bytes(8, "little")), 0)
    _write(descriptor, memoryview(pickled), pickler.end)
    _write(descriptor, memoryview(pickler.end.to_bytes(8, "little")), 8)
    return descriptor


def unpack(descriptor: int) -> Any:
    """The object in a parcel. Its tensors are shared until somebody writes to them, and then are private."""
    memory = mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    length, begin = (int.from_bytes(memory[at : at + 8], "little") for at in (0, 8))
    return _Unpacker(io.BytesIO(memory[begin : begin + length]), memory).load()


def path_of(descriptor: int) -> str:
    """Where another process of the same user finds what this one holds, as long as it does."""
    return f"/proc/{os.getpid()}/fd/{descriptor}"


def unpack_from(path: str) -> Any:
    """The object in a parcel that another process holds."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return unpack(descriptor)
    finally:
        os.close(descriptor)


class _Packer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, descriptor: int) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._descriptor = descriptor
        self._places: dict[int, tuple[int, str, tuple[int, ...]]] = {}
        self._kept: list[Tensor] = []  # an id is only good while its tensor lives
        self.end = ALIGNMENT

    def persistent_id(self, content: Any) -> Any:
        if type(content) is not Tensor or content.device.type != "cpu" or content.layout != torch.strided:
            return None
        if content.requires_grad or content.is_quantized or content.nbytes < SMALL:
            return None
        if id(content) not in self._places:
            self._kept.append(content)
            self._places[id(content)] = (self.end, str(content.dtype).removeprefix("torch."), tuple(content.shape))
            plain = content.resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)
            _write(self._descriptor, memoryview(plain.numpy().data), self.end)
            self.end += -(-content.nbytes // ALIGNMENT) * ALIGNMENT
        return self._places[id(content)]


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, memory: mmap.mmap) -> None:
        super().__init__(file)
        self._bytes = torch.frombuffer(memory, dtype=torch.uint8)
        self._tensors: dict[int, Tensor] = {}

    def persistent_load(self, place: Any) -> Tensor:
        begin, name, shape = place
        if begin not in self._tensors:
            dtype = dtype_of(name)
            size = torch.Size(shape).numel() * dtype.itemsize
            self._tensors[begin] = self._bytes[begin : begin + size].view(dtype).view(shape)
        return self._tensors[begin]


def _write(descriptor: int, content: memoryview, offset: int) -> None:
    while content:
        written = os.pwrite(descriptor, content, offset)
        content, offset = content[written:], offset + written

"""Memory that processes share and no name keeps alive: it is gone when the last of them is, however it ends.

Segments carry parameters and gradients. A parcel carries what a new process needs to begin: any object that can be
pickled, whose tensors lie beside the pickle as they are, so that a data set is in memory once for the whole group. What
the new process can import is in the pickle by its name; lambdas, closures and all that a notebook defines, by value.
"""

from __future__ import annotations

import inspect
import io
import mmap
import os
import pickle
import sys
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import cloudpickle
import torch
from torch import Tensor

from paceline.core.errors import ConfigurationError
from paceline.training.layout import ALIGNMENT, Layout, Segment, dtype_of

SMALL = 256  # bytes: a tensor this small may as well be in the pickle


def create() -> int:
    """A file descriptor of memory without a size yet."""
    return os.memfd_create("paceline", os.MFD_CLOEXEC)


def filled(content: bytes) -> int:
    """A file descriptor of memory with these bytes."""
    descriptor = create()
    _write(descriptor, memoryview(content), 0)
    return descriptor


def map_segment(descriptor: int, layout: Layout) -> Segment:
    size = max(1, layout.segment_bytes)
    if os.fstat(descriptor).st_size < size:
        os.ftruncate(descriptor, size)
    return Segment(layout, torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8))


def pack(content: Any, *, imports_main: bool = True) -> int:
    """A file descriptor of a parcel with this object: the length of its pickle, the pickle, and its tensors.

    `imports_main`: whoever unpacks it has imported the main module.
    """
    descriptor = create()
    file = io.BytesIO()
    pickler = _Packer(file, descriptor, imports_main)
    try:
        pickler.dump(content)
    except Exception as problem:  # pickling runs code of the user's classes, which may raise anything
        os.close(descriptor)
        raise ConfigurationError(
            f"this cannot be sent to a new process: {problem}{_where(content, imports_main)}; make it inside the"
            " function, so that each process has its own"
        ) from None
    content_bytes = file.getvalue()
    _write(descriptor, memoryview(len(content_bytes).to_bytes(8, "little")), 0)
    _write(descriptor, memoryview(content_bytes), pickler.end)
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


class ByValue(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles by value what nobody can import: but what stands in a main module that is imported, by its name."""

    def __init__(self, file: io.BytesIO, imports_main: bool) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._imports_main = imports_main

    def reducer_override(self, content: Any) -> Any:
        if self._imports_main and _is_in_main(content):
            return NotImplemented
        return super().reducer_override(content)


def pickled(content: Any, *, imports_main: bool = True) -> bytes:
    """Without tensors beside it: for small things."""
    file = io.BytesIO()
    ByValue(file, imports_main).dump(content)
    return file.getvalue()


def _is_in_main(content: Any) -> bool:
    if getattr(content, "__module__", None) != "__main__" or not isinstance(content, type | FunctionType):
        return False
    found: Any = sys.modules["__main__"]
    for name in content.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is content


def _where(content: Any, imports_main: bool) -> str:
    """Which function refers to what cannot be pickled, and by which name, where that is found out."""
    for function in content if isinstance(content, tuple | list) else ():
        for name, value in _names_in(function):
            try:
                pickled(value, imports_main=imports_main)
            except Exception:
                return f" (it is {name!r}, to which {getattr(function, '__name__', 'it')!r} refers)"
    return ""


def _names_in(function: Any) -> Iterator[tuple[str, Any]]:
    if inspect.isfunction(function):
        names = inspect.getclosurevars(function)
        yield from {**names.globals, **names.nonlocals}.items()


class _Packer(ByValue):
    def __init__(self, file: io.BytesIO, descriptor: int, imports_main: bool) -> None:
        super().__init__(file, imports_main)
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

"""Memory that two processes share and no name keeps alive: it is gone when the last of them is, however it ends."""

from __future__ import annotations

import mmap
import os

import torch

from paceline.training.layout import Layout, Segment


def create() -> int:
    """A file descriptor of memory without a size yet; both sides learn it from the layout."""
    return os.memfd_create("paceline", os.MFD_CLOEXEC)


def map_segment(descriptor: int, layout: Layout) -> Segment:
    size = max(1, layout.segment_bytes)
    if os.fstat(descriptor).st_size < size:
        os.ftruncate(descriptor, size)
    return Segment(layout, torch.frombuffer(mmap.mmap(descriptor, size), dtype=layout.torch_dtype))

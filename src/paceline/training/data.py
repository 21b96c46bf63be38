"""Samples as batches: the order of an epoch, fetching, moving, counting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate


def order_of(samples: int, seed: int, epoch: int, part: int = 0, parts: int = 1) -> Tensor:
    """The samples of an epoch in their order; every process computes the same."""
    if parts == 1:
        return torch.randperm(samples, generator=_generator(seed, epoch))
    own = torch.randperm(samples, generator=_generator(seed, 0))[part::parts]
    return own[torch.randperm(len(own), generator=_generator(seed, epoch, 1 + part))]


def _generator(*numbers: int) -> torch.Generator:
    mixed = 0
    for number in numbers:
        mixed = (mixed * 1_000_003 + number) % 2**63
    return torch.Generator().manual_seed(mixed)


def fetch(dataset: Any, indices: Tensor) -> Any:
    """These samples as one batch. A tuple of tensors is indexed at once, anything else sample by sample."""
    if type(dataset) is TensorDataset:
        return tuple(tensor[indices] for tensor in dataset.tensors)
    if hasattr(dataset, "__getitems__"):
        return default_collate(dataset.__getitems__(indices.tolist()))
    return default_collate([dataset[index] for index in indices.tolist()])


def moved(batch: Any, device: torch.device) -> Any:
    """The same batch on a device, whatever it is made of."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: moved(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(part, device) for part in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(moved(part, device) for part in batch)
    return batch


def samples_of(batch: Any) -> int:
    """How many samples a batch of the user's own has: the length of its first tensor; 1 if there is none."""
    first = next(_tensors_of(batch), None)
    return len(first) if first is not None and first.dim() else 1


def _tensors_of(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, dict | list | tuple):
        for part in batch.values() if isinstance(batch, dict) else batch:
            yield from _tensors_of(part)

"""Samples as batches: the order of an epoch, fetching, moving, counting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

from paceline.training.randomness import mixed


def order_of(samples: int, seed: int, epoch: int, part: int = 0, parts: int = 1) -> Tensor:
    """The samples of an epoch in their order; every process computes the same."""
    if parts == 1:
        return torch.randperm(samples, generator=_generator(seed, epoch))
    own = torch.randperm(samples, generator=_generator(seed, 0))[part::parts]
    return own[torch.randperm(len(own), generator=_generator(seed, epoch, 1 + part))]


def _generator(*numbers: int) -> torch.Generator:
    return torch.Generator().manual_seed(mixed(*numbers))


def fetch(dataset: Any, indices: Sequence[Any] | Tensor, collate_fn: Callable[[Any], Any] | None = None) -> Any:
    """These samples as one batch. A tuple of tensors is indexed at once, anything else sample by sample."""
    if is_indexed_at_once(dataset, collate_fn):
        return tuple(tensor[indices] for tensor in dataset.tensors)
    wanted = indices.tolist() if isinstance(indices, Tensor) else indices
    several = getattr(dataset, "__getitems__", None)
    samples = several(wanted) if several else [dataset[index] for index in wanted]
    return (collate_fn or default_collate)(samples)


def is_indexed_at_once(dataset: Any, collate_fn: Callable[[Any], Any] | None) -> bool:
    """Nothing of the user's runs when its samples are fetched."""
    return type(dataset) is TensorDataset and collate_fn is None


def moved(batch: Any, device: torch.device) -> Any:
    """The same batch on a device, whatever it is made of."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if callable(getattr(batch, "to", None)):  # a packed sequence, a tokenizer's batch, a graph
        return batch.to(device)
    if isinstance(batch, Mapping):
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
    elif isinstance(batch, Mapping | list | tuple):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _tensors_of(part)

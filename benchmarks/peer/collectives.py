"""torch.distributed on gloo: a bare all_reduce, and DistributedDataParallel around a model with nothing to compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from local_cycles import Flat
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from peer.measuring import Row, Settings, case, iterate, rows_of


def measure(settings: Settings) -> Iterator[Row]:
    cases = [(name, size) for size in settings.sizes for name in KINDS]
    yield from rows_of(partial(_spawn, settings), cases, settings.workers)


def _spawn(settings: Settings, into: str) -> None:
    torch.multiprocessing.spawn(_rank, (settings, into), nprocs=settings.workers)


def _rank(rank: int, settings: Settings, into: str) -> None:
    torch.set_num_threads(1)
    rendezvous = f"file://{into}/rendezvous"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=settings.workers)
    for size in settings.sizes:
        for name, kind in KINDS.items():
            iterate(kind(size), rank, size, settings, case(into, name, size), waits=True)
            dist.barrier()
    dist.destroy_process_group()


def all_reduce(size: int) -> Callable[[], object]:
    values = torch.zeros(size)
    return lambda: dist.all_reduce(values)


class _Ready(torch.autograd.Function):
    """A loss whose gradients are there already."""

    @staticmethod
    def forward(ctx: Any, gradients: list[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, loss: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        # A new tensor on the same memory: a gradient that someone else holds would be copied once more.
        return None, *(gradient.detach() for gradient in ctx.gradients)


class _Free(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.flat = Flat(size)
        self.gradients = [torch.ones_like(parameter) for parameter in self.flat.parameters()]

    def forward(self) -> Tensor:
        return _Ready.apply(self.gradients, *self.flat.parameters())


def ddp(size: int, update: bool, exchange: bool) -> Callable[[], object]:
    net = DistributedDataParallel(_Free(size))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step() -> None:
        optimizer.zero_grad()
        net().backward()
        if update:
            optimizer.step()

    def alone() -> None:
        with net.no_sync():
            step()

    return step if exchange else alone


KINDS: dict[str, Callable[[int], Callable[[], object]]] = {
    "gloo all_reduce": all_reduce,
    "DDP, backward": partial(ddp, update=False, exchange=True),
    "DDP, backward without exchange": partial(ddp, update=False, exchange=False),
    "DDP, backward and SGD step": partial(ddp, update=True, exchange=True),
}

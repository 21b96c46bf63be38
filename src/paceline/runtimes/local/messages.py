"""What crosses the pipe between a worker's process and the server: small, and never a tensor."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from paceline.training.data import Unit
from paceline.training.layout import Layout


class Enter(msgspec.Struct, frozen=True, tag=True):
    """A worker's model is in its segment, and it waits to begin."""

    layout: Layout
    optimizer: bytes  # a pickled OptimizerSpec, from a process of the same user


class Lease(msgspec.Struct, frozen=True, tag=True):
    samples: int
    batch_size: int


class Push(msgspec.Struct, frozen=True, tag=True):
    samples: int
    units: int
    loss: float | None


class Restart(msgspec.Struct, frozen=True, tag=True):
    """The worker dropped its gradient because it was interrupted."""

    units: int


class Finished(msgspec.Struct, frozen=True, tag=True):
    pass


class Failed(msgspec.Struct, frozen=True, tag=True):
    problem: str  # a traceback, or one sentence


ToServer: TypeAlias = Enter | Lease | Push | Restart | Finished | Failed


class Go(msgspec.Struct, frozen=True, tag=True):
    """New parameters are in the segment."""


class Work(msgspec.Struct, frozen=True, tag=True):
    unit: Unit | None  # None: there is nothing left to do


class Interrupt(msgspec.Struct, frozen=True, tag=True):
    pass


class Stop(msgspec.Struct, frozen=True, tag=True):
    pass


ToWorker: TypeAlias = Go | Work | Interrupt | Stop

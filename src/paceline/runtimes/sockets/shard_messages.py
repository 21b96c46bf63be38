"""What crosses between the server that decides, the shards that hold parameters, and the workers."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from paceline.core.messages import DataOpened, Gradient, Statistics, UpdateRule
from paceline.lifecycle.messages import MakeUpdate
from paceline.training.choices import UpdateOptions
from paceline.training.layout import Layout

# -- from the server to a shard: it obeys in this order, so that all shards send the same version --


class Begin(msgspec.Struct, frozen=True, tag=True):
    """Hold this part of a model. What comes next waits until a worker has handed it over, or it comes by Restore."""

    layout: Layout
    optimizer: bytes  # a pickled OptimizerSpec
    options: UpdateOptions
    part: int
    parts: int  # asked for
    statistics: bool
    first: int  # the seat that hands its parameters over; -1: they come by Restore


class Restore(msgspec.Struct, frozen=True, tag=True):
    parcel: str  # its stretch of the parameters, the state of its store, and gradients without a fate


class HandIn(msgspec.Struct, frozen=True, tag=True):
    """The gradient of this seat counts. It is all here."""

    seat: int
    absent: tuple[int, ...] = ()


class Update(msgspec.Struct, frozen=True, tag=True):
    command: MakeUpdate


class SetAside(msgspec.Struct, frozen=True, tag=True):
    gradient: Gradient
    seat: int
    version: int


class Discard(msgspec.Struct, frozen=True, tag=True):
    gradient: Gradient
    seat: int


class HandOut(msgspec.Struct, frozen=True, tag=True):
    """Send this seat the present parameters."""

    seat: int


class Forget(msgspec.Struct, frozen=True, tag=True):
    """The process of this seat has ended."""

    seat: int


class Open(msgspec.Struct, frozen=True, tag=True):
    opened: DataOpened


class Feed(msgspec.Struct, frozen=True, tag=True):
    """An evaluation found this, and the schedule goes by it."""

    value: float


class Show(msgspec.Struct, frozen=True, tag=True):
    """Send the parameters to the server; with `all`, whatever a checkpoint holds of them."""

    all: bool = False
    pending: tuple[tuple[Gradient, int], ...] = ()  # gradients without a fate, each with the seat where it was pushed


ToShard: TypeAlias = Begin | Restore | HandIn | Update | SetAside | Discard | HandOut | Forget | Open | Feed | Show


# -- from a shard to the server --


class Connected(msgspec.Struct, frozen=True, tag=True):
    """The worker of this seat is here."""

    seat: int
    shared: bool  # its gradients lie where this shard sees them: nothing has to be said when one is there


class Begun(msgspec.Struct, frozen=True, tag=True):
    """It holds its part, and this is how it makes updates."""

    rule: UpdateRule


class Have(msgspec.Struct, frozen=True, tag=True):
    """All of this gradient is here."""

    seat: int
    number: int  # of the push


class Made(msgspec.Struct, frozen=True, tag=True):
    """The update is made, and this is what its gradients were like here."""

    version: int
    statistics: Statistics | None


class Shown(msgspec.Struct, frozen=True, tag=True):
    parcel: str
    version: int


class Alive(msgspec.Struct, frozen=True, tag=True):
    """A sign of life."""


class Problem(msgspec.Struct, frozen=True, tag=True):
    """It cannot go on."""

    said: str
    wrong_input: bool = False


FromShard: TypeAlias = Connected | Begun | Have | Made | Shown | Alive | Problem


# -- between a worker and a shard --


class Model(msgspec.Struct, frozen=True, tag=True):
    """The parameters that the group begins with come along."""


class Here(msgspec.Struct, frozen=True, tag=True):
    """The gradient of this push comes along."""

    number: int


class Parameters(msgspec.Struct, frozen=True, tag=True):
    """New parameters come along, or lie in the segment."""

    version: int


WorkerToShard: TypeAlias = Model | Here
PARCELS: dict[type, str] = {Restore: "parcel", Shown: "parcel"}

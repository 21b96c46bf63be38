"""What crosses the pipes between the server and its processes: small, and never a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from paceline.core.messages import Unit
from paceline.lifecycle.messages import Place
from paceline.lifecycle.work import Work
from paceline.training.layout import Layout


class Running(msgspec.Struct, frozen=True, tag=True):
    """The process has imported all that it needs, and calls the user's function."""


class Enter(msgspec.Struct, frozen=True, tag=True):
    """A worker's model is in its segment, and it waits to begin."""

    layout: Layout
    optimizer: bytes  # a pickled OptimizerSpec, from a process of the same user
    state: str | None = None  # the path of a parcel with what its optimizer begins with


class Request(msgspec.Struct, frozen=True, tag=True):
    """The worker asks for a unit of work, and waits for it."""

    work: Work


class Push(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    number: int  # of this push among all of its process, from 1: a second delivery has the same
    samples: int
    units: int
    loss: float | None
    squared_norm: float | None  # of the gradient; None: too large for a number
    absent: tuple[int, ...] = ()  # parameters that have no gradient, by their numbers
    seconds: float | None = None  # since its worker went on; None: nobody measured


class Skip(msgspec.Struct, frozen=True, tag=True):
    """A gradient was not finite; its samples are dropped, and the worker goes on."""

    samples: int
    units: int


class Restart(msgspec.Struct, frozen=True, tag=True):
    """The worker dropped its gradient because it was interrupted."""

    samples: int
    units: int


class Kept(msgspec.Struct, frozen=True, tag=True):
    """What only the worker knows, as of the push that follows; see paceline.training.worker_state."""

    state: bytes


class StateWanted(msgspec.Struct, frozen=True, tag=True):
    """The worker asks for the optimizer's state, and waits for it."""

    wanted: bool = True  # False: it has it, and the parcel can go


class Log(msgspec.Struct, frozen=True, tag=True):
    """Figures of the loop's own."""

    figures: Mapping[str, float | None]  # None: not finite, for which JSON has no number


class Finished(msgspec.Struct, frozen=True, tag=True):
    unused: int = 0  # batches that it took, if it never called step


class Failed(msgspec.Struct, frozen=True, tag=True):
    problem: str  # a traceback, or one sentence
    wrong_input: bool = False  # it is about what the user gave, not about how the run went
    ends_the_run: bool = True  # not an error of the user's own in one worker, which the others may survive


ToServer: TypeAlias = Running | Enter | Request | Push | Skip | Restart | Kept | Log | StateWanted | Finished | Failed


class Go(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """New parameters are in the segment. More units come along, where the worker asked for such before."""

    unit: Unit | None = None
    keep: bool = False  # the next push shall come with what only the worker knows
    ahead: tuple[Unit, ...] = ()  # further ones
    place: Place | None = None  # where it has changed
    enough: bool = False  # of batches of its own: its loop is to end
    rates: tuple[float, ...] = ()  # learning rates of the parameter groups, where they are others than before


class Leased(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    unit: Unit | None  # None: there is nothing left to do
    parameters: bool = False  # new ones are in the segment: other workers have gone on meanwhile
    ahead: tuple[Unit, ...] = ()  # further ones, for later
    place: Place | None = None  # where it has changed
    rates: tuple[float, ...] = ()


class StateReady(msgspec.Struct, frozen=True, tag=True):
    path: str  # of a parcel with the optimizer's state


class Interrupt(msgspec.Struct, frozen=True, tag=True):
    pass


class HandOver(msgspec.Struct, frozen=True, tag=True):
    """Give the shards your parameters: the group begins with them."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    pass


ToWorker: TypeAlias = Go | Leased | StateReady | Interrupt | HandOver | Stop


class Evaluate(msgspec.Struct, frozen=True, tag=True):
    """A state of the model is in the evaluator's segment, and stays there until the answer."""

    layout: Layout


class Evaluated(msgspec.Struct, frozen=True, tag=True):
    figures: Mapping[str, float | None]  # None: not finite, for which JSON has no number


FromEvaluator: TypeAlias = Evaluated | Failed

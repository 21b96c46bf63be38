"""A user's loop that runs in a thread of this process, and only as far as it is told: to its next push, or skip.

Many such loops take the places of a run's processes. Only one moves at a time, and each has random numbers of its own,
as a process has, so that each does what its process did, or would do.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paceline.core.errors import PacelineError
from paceline.core.messages import Unit
from paceline.lifecycle.messages import Place
from paceline.lifecycle.work import Work
from paceline.training.layout import Layout, Segment
from paceline.training.optimizers import OptimizerSpec
from paceline.training.stops import BEGIN, END, PUSH, REQUEST, SKIP, Stop
from paceline.training.worker import CPU, Worker, seed_everything
from paceline.training.worker_state import random_state, set_random_state, unpacked


class Stopped(BaseException):
    """The loop is not needed any more. Not an Exception, so that it does not swallow it."""


class DepartedError(PacelineError):
    """A loop did something else than in the recorded run."""


class Pushed(NamedTuple):
    samples: int
    units: int


class RehearsedLoop:
    """The place of one process. It is its worker's link as well."""

    def __init__(
        self,
        index: int,
        train: Callable[[Worker], None],
        units: deque[Unit],
        *,
        seed: int,
        epochs: int | None,
        not_finite: str,
        kept: bytes | None = None,
        keeps: bool = False,
        asks: bool = False,
    ) -> None:
        """`units`: what it is given when it asks, in order. `kept`: what its worker knew when the run was resumed;
        `keeps`: whether that will be asked for. `asks`: where there is no unit it stops and asks for one; otherwise
        there are no more."""
        self.index = index
        self.segment: Segment | None = None
        self.spec: OptimizerSpec | None = None
        self.enough = False  # of batches of its own; a recorded loop is stopped where it came to its end
        self.rates: tuple[float, ...] = ()
        self.state_of: Callable[[], dict[str, Any]] = dict  # what it gets when it asks for the optimizer's state
        self.absent: tuple[int, ...] = ()  # parameters that the gradient it pushed does not have
        self.pushed = Pushed(0, 0)
        self.squared_norm: float | None = None  # of what it pushed
        self.problem: BaseException | None = None  # that it ended with
        self.kept: bytes | None = None  # what its worker knew at its latest push
        self.others: dict[str, Tensor] = {}  # and its buffers, if that is asked for
        self.place = Place()
        self.prefetches = False
        self.ahead = None  # its gradients do not travel
        self.unpushed: deque[Unit] = deque()  # units that it took and has handed in nothing of
        self._units = units
        self._keeps = keeps
        self._asks = asks
        self._seed = seed
        self._random: dict[str, Any] | None = None
        self._stop = Stop("")  # where it stands
        self._stopped = False
        self._move, self._stands = threading.Semaphore(0), threading.Semaphore(0)
        known = None if kept is None else unpacked(kept)
        self._worker = Worker(index, self, seed=seed, epochs=epochs, not_finite=not_finite, kept=known)
        self._thread = threading.Thread(target=self._run, args=(train,), name=f"loop {index}", daemon=True)

    def give(self, unit: Unit) -> None:
        """For the next time that it asks."""
        self._units.append(unit)

    def go_on(self) -> Stop:
        """Let it go on to its next stop. If that is its end, `problem` says what it raised."""
        if self._random is None:
            seed_everything(self._seed)
            self._thread.start()
        else:
            set_random_state(self._random, CPU)
        self._move.release()
        self._stands.acquire()
        self._random = random_state(CPU)
        return self._stop

    def run_to(self, wanted: str) -> None:
        """Let it go on to its next stop, which must be this one."""
        at = self.go_on().at
        if self.problem is not None:
            raise DepartedError(f"process {self.index} raised {self.problem!r}, and should have {wanted}")
        if at != wanted:
            raise DepartedError(f"process {self.index} {at}, and should have {wanted}")

    def shares_a_model_with(self, other: RehearsedLoop) -> bool:
        """Whether both have handed over the same tensors: a process would have its own."""
        mine, theirs = self._worker._replica, other._worker._replica
        if mine is None or theirs is None:
            return False
        return not {*map(id, mine.parameters.values())}.isdisjoint(map(id, theirs.parameters.values()))

    def stop(self) -> None:
        if self._thread.is_alive():
            self._stopped = True
            self._move.release()
            self._thread.join()

    # -- in its thread --

    def _run(self, train: Callable[[Worker], None]) -> None:
        self._move.acquire()
        try:
            train(self._worker)
        except Stopped:
            return
        except BaseException as problem:
            self.problem = problem
        self._stop = Stop(END)
        self._stands.release()

    def _stand(self, stop: Stop) -> None:
        if self._stopped:
            raise Stopped  # it caught that once, and goes on
        self._stop = stop
        self._stands.release()
        self._move.acquire()
        if self._stopped:
            raise Stopped

    # -- the link --

    def enter(self, layout: Layout) -> Segment:
        self.segment = Segment(layout, torch.zeros(max(1, layout.segment_bytes), dtype=torch.uint8))
        return self.segment

    def begin(self, spec: OptimizerSpec) -> None:
        self.spec = spec
        self._stand(Stop(BEGIN))

    def lease(self, work: Work) -> tuple[Unit | None, bool]:
        if self._asks and not self._units:
            self._stand(Stop(REQUEST, work=work))
        if not self._units:
            return None, True
        self.unpushed.append(self._units.popleft())
        return self.unpushed[-1], True

    def take(self) -> Unit | None:
        """Units are used one by one: a loop that is begun again has those that it had not used."""
        return None

    @property
    def keeps(self) -> bool:
        return self._keeps

    def keep(self, state: bytes) -> None:
        self.kept = state

    def push(
        self, samples: int, units: int, loss: float | None, squared_norm: float, absent: tuple[int, ...] = ()
    ) -> None:
        assert self.segment is not None
        self.absent = absent
        self._hand_in(units)
        self.pushed = Pushed(samples, units)
        self.squared_norm = finite(squared_norm)
        if self._keeps:
            self.others = {name: tensor.clone() for name, tensor in self.segment.others.items()}
        self._stand(Stop(PUSH, samples, units, finite(loss)))

    def log(self, figures: dict[str, float]) -> None:
        """It was told while the run went on."""

    def _hand_in(self, units: int) -> None:
        for _ in range(units):
            self.unpushed.popleft()

    def skip(self, samples: int, units: int) -> None:
        self._hand_in(units)
        self._stand(Stop(SKIP, samples, units))

    def optimizer_state(self) -> dict[str, Any]:
        return self.state_of()

    def pause(self, seconds: float) -> None:
        """In a rehearsal nobody is slow."""


def finite(number: float | None) -> float | None:
    """As it would cross to a server: JSON has no number for what is not finite."""
    return number if number is not None and math.isfinite(number) else None

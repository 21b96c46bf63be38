"""What a user's loop talks to: the worker and its batches."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.utils.data import IterableDataset

from paceline.core.errors import ConfigurationError
from paceline.core.messages import Unit
from paceline.lifecycle.work import Work
from paceline.training.choices import SHARDINGS, STALE
from paceline.training.data import fetch, moved, order_of, samples_of
from paceline.training.layout import Layout, Segment, layout_of
from paceline.training.optimizers import OptimizerSpec, spec_of
from paceline.training.remote_optimizer import GradientError, RemoteOptimizer
from paceline.training.replica import Replica
from paceline.training.worker_state import packed, random_state, set_random_state

CPU = torch.device("cpu")

# (iteration, when it began, seconds it took) -> seconds it shall take
PaceFunction = Callable[[int, float, float], float]


class Link(Protocol):
    """A worker's way to the server. Every method returns when the worker may go on."""

    def enter(self, layout: Layout) -> Segment:
        """Map the segment, for the model to move in."""

    def begin(self, spec: OptimizerSpec) -> None:
        """Ask to become a member; afterwards the segment holds the server's parameters."""

    def lease(self, work: Work) -> tuple[Unit | None, bool]:
        """The next unit, if there is one, and whether new parameters came with it: the worker may have waited long."""

    def push(
        self, samples: int, units: int, loss: float | None, squared_norm: float, absent: tuple[int, ...] = ()
    ) -> None:
        """Hand in the gradient in the segment, wait as the policy says, and come back with new parameters.

        `absent`: the numbers of the parameters that it is not about.
        """

    @property
    def rates(self) -> Sequence[float]:
        """Learning rates of the parameter groups, as they came with parameters; none: nobody told them."""

    @property
    def enough(self) -> bool:
        """Whether a worker with batches of its own has done what it had to."""

    def optimizer_state(self) -> dict[str, Any]:
        """The optimizer's state_dict, as it is on the server now."""

    @property
    def keeps(self) -> bool:
        """Whether the next push shall come with the worker's state."""

    def keep(self, state: bytes) -> None:
        """Hand over the worker's state, just before a push."""

    def skip(self, samples: int, units: int) -> None:
        """These samples yield no gradient: count them as dropped."""

    def pause(self, seconds: float) -> None:
        """Do nothing for so long, or until the server interrupts."""


def seed_everything(seed: int) -> None:
    """Python's, NumPy's and torch's own random numbers: a loop may use any of them."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


class Worker:
    """One member of the group, as the `train` function of a user sees it."""

    def __init__(
        self,
        index: int,
        link: Link,
        *,
        seed: int,
        epochs: int | None = 1,
        device: torch.device = CPU,
        not_finite: str = "stop",
        pace: PaceFunction | None = None,
        kept: dict[str, Any] | None = None,
    ) -> None:
        """`epochs`: None, if other limits end the run. `kept`: what this worker knew in a run that is resumed."""
        self.index = index
        self.seed = seed
        self.epochs = epochs
        self.epoch = 0  # of the latest batch, from 0
        self.device = device
        self._link = link
        self._not_finite = not_finite
        self._pace = pace
        self._replica: Replica | None = None  # once it has a model
        self._samples = 0  # of the batches since the last step
        self._batches = 0  # since the last step
        self._units = 0
        self._batch = 1  # samples of the latest batch
        self._iteration = 0
        self._dropped = False  # whether a batch ever was
        self._own_at: dict[str, Any] | None = None  # its place in batches of its own
        self._kept = kept
        self._things: dict[str, Any] = {}
        self._began = self._released = time.monotonic()

    def optimizer(
        self,
        model: nn.Module,
        kind: type[torch.optim.Optimizer],
        *,
        groups: Sequence[dict[str, Any]] | None = None,
        scheduler: Callable[..., Any] | None = None,
        scheduler_every: int | str | None = None,
        stale: str | None = None,
        state: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> RemoteOptimizer:
        """Hand the model over to the server, which keeps its parameters and this optimizer.

        The model moves to `worker.device`. `groups`: parameter groups as torch takes them, if not all parameters are
        treated alike. `scheduler`: makes a schedule of an optimizer, as `functools.partial(StepLR, step_size=10)` does;
        the server steps it, `scheduler_every` "epoch" of the whole group, "round", or so many samples. A `total_steps`
        or `T_max` that is not given is filled in. `stale`: as in `launch`, and before what is said there. `state`: a
        state_dict to begin with, of which the moments are taken; rates and other options are those given here.
        """
        if not isinstance(model, nn.Module):
            raise ConfigurationError(
                f"worker.optimizer takes the model itself, not a {type(model).__name__}: worker.optimizer(model,"
                " torch.optim.SGD, lr=0.1); parameter groups are its groups="
            )
        if self._replica is not None:
            raise ConfigurationError("worker.optimizer was called twice; a run has one model and one optimizer")
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        model.to(self.device)
        layout = layout_of(model)
        if stale is not None and stale not in STALE:
            raise ConfigurationError(f"unknown stale {stale!r}; there are: {', '.join(STALE)}")
        spec = spec_of(layout, names, kind, groups, arguments)
        replica = self._replica = Replica(model, self._link.enter(layout))
        self._link.begin(spec._replace(scheduler=scheduler, scheduler_every=scheduler_every, stale=stale, state=state))
        replica.take()
        replica.take_others()
        if self.index > 0:
            # All began with the same numbers, to make the same model. From here on dropout and the like shall differ.
            seed_everything((self.seed * 1_000_003 + self.index) % 2**63)
        if self._kept is not None:
            set_random_state(self._kept["random"], self.device)
            self._iteration = self._kept["iteration"]
        self._began = self._released = time.monotonic()
        return RemoteOptimizer(self, replica, spec)

    def batches(self, data: Any, batch_size: int | None = None, *, sharding: str = "dynamic") -> Iterator[Any]:
        """Batches on `worker.device`, until the run's epochs are over, or another limit of it is reached.

        A data set (it has a length and can be indexed) is shared by the group, each sample once per epoch: dynamic
        sharding gives fast workers more of it, static gives each worker an equal part. Anything else that can be
        iterated, such as a DataLoader, is this worker's own, and is walked through once per epoch.
        """
        indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__")
        if indexed and not isinstance(data, IterableDataset):  # which inherits a __getitem__ that only raises
            if batch_size is None:
                raise ConfigurationError("worker.batches of a data set needs a batch_size")
            if sharding not in SHARDINGS:
                raise ConfigurationError(f"unknown sharding {sharding!r}; there are: {', '.join(SHARDINGS)}")
            return self._leased(data, Work(len(data), batch_size, sharding))
        if batch_size is not None or sharding != "dynamic":
            raise ConfigurationError(
                f"worker.batches of a {type(data).__name__} takes its batches as they come, without batch_size and"
                " sharding: only what has a length and can be indexed can be cut into batches"
            )
        return self._own(data)

    def _leased(self, dataset: Any, work: Work) -> Iterator[Any]:
        at: tuple[int, int] | None = None
        while True:
            unit, renewed = self._link.lease(work)
            if unit is None:
                return
            if renewed and self._replica is not None:
                self._replica.take()
                self._released = time.monotonic()
            self._refuse_endless(work.samples)
            if at != (unit.epoch, unit.part):
                at = (unit.epoch, unit.part)
                order = order_of(len(dataset), self.seed, unit.epoch, unit.part, unit.parts)
            self.epoch = unit.epoch
            self._units += 1
            self._count(unit.samples)
            yield moved(fetch(dataset, order[unit.begin : unit.end]), self.device)

    def _count(self, samples: int) -> None:
        self._batches += 1
        self._samples += samples
        self._batch = samples

    def _refuse_endless(self, samples: int) -> None:
        """Batches of a whole epoch, and more, are no gradient that somebody accumulates."""
        if self._samples > samples:
            raise ConfigurationError(
                f"worker {self.index} took {self._batches:,} batches, more than the data set has, without calling"
                " optimizer.step(): call it after backward(), on the optimizer that worker.optimizer returned"
            )

    @property
    def unused(self) -> int:
        """Batches that it took, if it never called step."""
        return 0 if self._iteration or self._dropped else self._batches

    @property
    def rates(self) -> Sequence[float]:
        return self._link.rates

    def optimizer_state(self) -> dict[str, Any]:
        return self._link.optimizer_state()

    def keep(self, name: str, thing: Any) -> None:
        """Make this part of every checkpoint, and give it back what it was if the run was resumed.

        `thing` has `state_dict` and `load_state_dict`, as modules, metrics and schedules have.
        """
        if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
            raise ConfigurationError(
                f"worker.keep({name!r}): a {type(thing).__name__} has no state_dict and load_state_dict"
            )
        if name in self._things:
            raise ConfigurationError(f"worker.keep({name!r}): there is such a thing already; give it another name")
        self._things[name] = thing
        if self._kept is not None and name in self._kept["things"]:
            thing.load_state_dict(self._kept["things"][name])

    def _state(self) -> bytes:
        return packed(
            {
                "random": random_state(self.device),
                "iteration": self._iteration + 1,
                "own": self._own_at,
                "things": {name: thing.state_dict() for name, thing in self._things.items()},
            }
        )

    def _own(self, batches: Iterable[Any]) -> Iterator[Any]:
        """A run that was resumed walks to where it was: the order of an epoch hangs on the random numbers before it."""
        kept = None if self._kept is None else self._kept["own"]
        first = 0 if kept is None else kept["epoch"]
        for epoch in itertools.count(first) if self.epochs is None else range(first, self.epochs):
            passed, now = 0, None
            if kept is not None:
                passed, now = kept["batches"], random_state(self.device)
                set_random_state(kept["random"], self.device)
                kept = None
            at = self._own_at = {"epoch": epoch, "batches": 0, "random": random_state(self.device)}
            for batch in batches:
                at["batches"] += 1
                if at["batches"] <= passed:
                    continue
                if now is not None:
                    set_random_state(now, self.device)
                    now = None
                if self._link.enough:
                    return
                self.epoch = epoch
                self._count(samples_of(batch))
                yield moved(batch, self.device)
            if now is not None:
                set_random_state(now, self.device)
            if not at["batches"]:
                return  # a generator is used up after its first epoch

    def push(self, loss: float | None, samples: int | None, squared_norm: float, absent: tuple[int, ...] = ()) -> None:
        """Hand in what the segment holds, as late as this worker's emulated speed demands."""
        if self._pace is not None:
            now = time.monotonic()
            took = now - self._released
            wanted = self._pace(self._iteration, self._released - self._began, took)
            if wanted > took:
                self._link.pause(wanted - took)
        counted, units = self._settle()
        if self._link.keeps:
            self._link.keep(self._state())
        self._link.push(counted if samples is None else samples, units, loss, squared_norm, absent)
        self._iteration += 1
        self._released = time.monotonic()

    def skip(self) -> None:
        self._dropped = True
        self._link.skip(*self._settle())

    def _settle(self) -> tuple[int, int]:
        samples, units = self._samples or self._batch, self._units
        self._samples = self._units = self._batches = 0
        return samples, units

    def refuse(self, name: str | None) -> None:
        """A gradient is not finite: as the user chose, end the run or go on without it."""
        if self._not_finite == "stop":
            raise GradientError(
                f"worker {self.index}: the gradient of {name!r} is not finite (NaN or infinite); a smaller learning"
                " rate or clipping may help, and not_finite='skip' (--not-finite skip) goes on without them"
            )
        self.skip()

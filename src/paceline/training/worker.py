"""What a user's loop talks to: the worker and its batches."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from paceline.core.errors import ConfigurationError
from paceline.lifecycle.messages import Place
from paceline.training.batches import LeasedBatches, Options, OwnBatches, batches_of
from paceline.training.choices import STALE
from paceline.training.data import moved, samples_of
from paceline.training.layout import layout_of
from paceline.training.link import Link
from paceline.training.loading import loaded
from paceline.training.optimizers import spec_of
from paceline.training.own_figures import OwnFigures
from paceline.training.prepared import prepared
from paceline.training.remote_optimizer import GradientError, RemoteOptimizer
from paceline.training.replica import Replica
from paceline.training.worker_state import packed, random_state, set_random_state

CPU = torch.device("cpu")

# (iteration, when it began, seconds it took) -> seconds it shall take
PaceFunction = Callable[[int, float, float], float]


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
        self._over = False  # whether there are no more batches
        self._units = 0
        self._batch = 1  # samples of the latest batch
        self._iteration = 0
        self._dropped = False  # whether a batch ever was
        self._own_at: dict[str, Any] | None = None  # its place in batches of its own
        self.holds = 0  # batches that were taken, and that the loop has not seen yet
        self._kept = kept
        self._things: dict[str, Any] = {}
        self._figures: OwnFigures | None = None  # once the loop logs some
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
        way = self._link.ahead
        return RemoteOptimizer(self, replica, spec, way)

    def prepare(self, *things: Any, scheduler_every: str | int | None = None, stale: str | None = None) -> Any:
        """Take over a model, its optimizer, and the loader and the scheduler of a plain loop, which then goes on as is.

        Returns what takes their place, in the same order. The optimizer and the scheduler are made again on the server:
        in the loop `optimizer.step()` pushes, and `scheduler.step()` does nothing. `scheduler_every`: "batch",
        "step" (of the optimizer, in a loop that accumulates) or "epoch", as the loop steps it, or a number of samples.
        A step per batch is one for as many samples, whoever trained them, so a schedule over all batches of all epochs
        fits any number of workers. The loader ends with every epoch.
        """
        return prepared(self, things, scheduler_every, stale)

    def batches(
        self,
        data: Any,
        batch_size: int | None = None,
        *,
        collate_fn: Callable[[Any], Any] | None = None,
        num_workers: int = 0,
        prefetch: int | None = None,
        pin_memory: bool = False,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        shuffle: bool | None = None,
        drop_last: bool = False,
        sharding: str | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
    ) -> Iterator[Any]:
        """Batches on `worker.device`, until the run's epochs are over, or another limit of it is reached.

        A data set (it has a length and can be indexed) is shared by the group, each sample once per epoch, in an order
        of its own each time (`shuffle=False`: as it is; `sampler`, `batch_sampler`: as they say). Sharding "dynamic",
        the default, gives fast workers more of it, "static" each worker an equal part. `num_workers` loader processes
        load `prefetch` batches ahead, two each if nothing is said.

        A DataLoader of such a data set is taken apart, and shared in the same way; `sharding="own"`, or a
        DistributedSampler in it, makes it this worker's own. Anything else that can be iterated is the worker's own,
        too, and is walked through once per epoch; of an IterableDataset sharding "static" gives it every n-th item.
        """
        options = Options(
            batch_size,
            collate_fn,
            num_workers,
            prefetch,
            pin_memory,
            sampler,
            batch_sampler,
            shuffle,
            drop_last,
            sharding,
            worker_init_fn,
            multiprocessing_context,
        )
        found = batches_of(data, options, self.seed)
        return self._to_the_end(self._leased(found) if isinstance(found, LeasedBatches) else self._own(found))

    def _to_the_end(self, batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        self._over = True

    def each_epoch(self) -> Iterator[int]:
        """0, 1, ...: for a loop of epochs around a loader that `prepare` returned, whatever limits the run."""
        for epoch in itertools.count():
            if self._over:
                return
            yield epoch

    def _leased(self, batches: LeasedBatches) -> Iterator[Any]:
        pinned = batches.loading.pin_memory and self.device.type == "cuda"
        source, loading = batches
        for batch, samples, epoch in loaded(
            self._link, source, loading, pinned=pinned, used=lambda: self._units, renewed=self._renew
        ):
            self._refuse_endless(source.work.epoch_samples)
            self.epoch = epoch
            self._units += 1
            self._count(samples)
            yield moved(batch, self.device)

    def _renew(self) -> None:
        """New parameters came with work."""
        if self._replica is not None:
            self._replica.take()
            self._released = time.monotonic()

    @property
    def rank(self) -> int:
        """Its number among the workers of the group as it is now, from 0."""
        return self._place("rank").rank

    @property
    def workers(self) -> int:
        """How many workers the group has now."""
        return self._place("workers").workers

    def _place(self, what: str) -> Place:
        if self._replica is None:
            raise ConfigurationError(f"worker.{what} is known once worker.optimizer was called: call that first")
        return self._link.place

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

    def log(self, figures: Mapping[str, Any]) -> None:
        """Report figures of your own: {"gradient norm": 1.3}. Numbers, or tensors of one element.

        About once a second the mean of each over what this worker logged since then goes, with a push, to
        metrics.jsonl, to the callbacks and to the live table.
        """
        if self._figures is None:
            self._figures = OwnFigures(self.index, time.monotonic())
        self._figures.add(figures)

    def send_log(self) -> None:
        """What was logged and is still here."""
        if self._figures is not None and self._figures.any:
            self._link.log(self._figures.means(time.monotonic()))

    def _state(self) -> bytes:
        return packed(
            {
                "random": random_state(self.device),
                "iteration": self._iteration + 1,
                "own": self._own_at and {**self._own_at, "batches": self._own_at["batches"] - self.holds},
                "things": {name: thing.state_dict() for name, thing in self._things.items()},
            }
        )

    def _own(self, batches: OwnBatches) -> Iterator[Any]:
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
            for batch in batches.walk(self._link.place):
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
        if self._figures is not None and self._figures.due(time.monotonic()):
            self.send_log()
        if self._link.keeps:
            self._link.keep(self._state())
        self._link.push(counted if samples is None else samples, units, loss, squared_norm, absent)
        self._iteration += 1
        self._released = time.monotonic()

    def skip(self) -> None:
        self._dropped = True
        self._link.skip(*self._settle())

    def in_hand(self) -> tuple[int, ...]:
        """What the batches since the last step amount to: samples, units, batches."""
        return self._samples, self._units, self._batches

    def take_in_hand(self, counts: tuple[int, ...]) -> None:
        """Count these for the next step, and no others."""
        self._samples, self._units, self._batches = counts

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

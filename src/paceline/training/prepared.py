"""What a plain loop has already, taken over as it stands: an optimizer, its schedule, a loader.

`worker.prepare` leaves the loop its shape. The optimizer and the schedule that the loop made are taken apart and made
again on the server; the loader still ends with every epoch.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn, Protocol

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from paceline.core.errors import ConfigurationError
from paceline.training.remote_optimizer import RemoteOptimizer

EVERY = ("batch", "step", "epoch")
LOOKED_AT, WRONG = 4, 2  # calls of scheduler.step(), and how many of them at other times than was said are too many


class Things(NamedTuple):
    """What was given to `worker.prepare`, by what it is."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loader: Any = None
    scheduler: LRScheduler | None = None


def sorted_out(things: tuple[Any, ...]) -> Things:
    """Which of them is what: as with Accelerate, they may come in any order."""
    found: dict[str, Any] = {}
    for thing in things:
        name = _kind_of(thing)
        if name in found:
            more = "; give only the loader that is trained from" if name == "loader" else ""
            raise ConfigurationError(f"worker.prepare got more than one {name}{more}")
        found[name] = thing
    for name in ("model", "optimizer"):
        if name not in found:
            raise ConfigurationError(
                f"worker.prepare got no {name}; it takes a model, its optimizer, and a loader and a scheduler if any"
            )
    scheduler = found.get("scheduler")
    if scheduler is not None and scheduler.optimizer is not found["optimizer"]:
        raise ConfigurationError("worker.prepare: the scheduler is not one of the optimizer that came with it")
    return Things(**found)


def _kind_of(thing: Any) -> str:
    if isinstance(thing, nn.Module):
        return "model"
    if isinstance(thing, torch.optim.Optimizer):
        return "optimizer"
    if isinstance(thing, LRScheduler):
        return "scheduler"
    if hasattr(thing, "__iter__") and not isinstance(thing, torch.Tensor):
        return "loader"
    raise ConfigurationError(
        f"worker.prepare got a {type(thing).__name__}; it takes a model, its optimizer, a loader and a scheduler"
    )


def groups_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Its parameter groups with everything that was set in them, a schedule's first rate as well."""
    if any(float(known.get("step", 1)) > 0 for known in optimizer.state.values()):  # Adagrad's is there from the start
        raise ConfigurationError(
            f"worker.prepare: this {type(optimizer).__name__} has made steps already, and what it learned from them"
            " would be lost; give it as it is when it was made"
        )
    return [dict(group) for group in optimizer.param_groups]


def every_of(every: str | int | None, loader: Any, scheduler: LRScheduler | None) -> int | str | None:
    """`scheduler_every` of `worker.optimizer`: a batch is so many samples, whoever trains it; None: an epoch."""
    if scheduler is None:
        return None
    if not isinstance(every, int) and every not in EVERY:
        said = "did not say" if every is None else f"said {every!r} for"
        raise ConfigurationError(
            f"worker.prepare: you {said} how often the scheduler steps: scheduler_every='batch' where the loop calls"
            " scheduler.step() after every batch, 'step' where it does so after every optimizer.step(), 'epoch' where"
            " it does so after every epoch, or a number of samples"
        )
    if isinstance(every, int):
        return every
    if every == "step":
        return every
    if every == "epoch":
        return None
    size = getattr(loader, "batch_size", None)
    if size is None:
        raise ConfigurationError(
            "worker.prepare: scheduler_every='batch' needs a loader with a batch_size; give a number of samples instead"
        )
    return int(size)


def prepared(worker: Counts, things: tuple[Any, ...], scheduler_every: str | int | None, stale: str | None) -> Any:
    """What takes the place of these, in the same order."""
    given = sorted_out(things)
    kind = type(given.optimizer)
    optimizer = worker.optimizer(
        given.model,
        kind,
        groups=groups_of(given.optimizer),
        scheduler=None if given.scheduler is None else Transplant(given.scheduler),
        scheduler_every=every_of(scheduler_every, given.loader, given.scheduler),
        stale=stale,
        **_required(kind, given.optimizer.defaults),
    )
    places: dict[int, Any] = {id(given.model): given.model, id(given.optimizer): optimizer}
    _refuse_steps_of(given.optimizer, "optimizer")
    loader = None
    if given.loader is not None:
        loader = optimizer.loader = places[id(given.loader)] = EpochLoader(worker, given.loader, optimizer)
    if given.scheduler is not None:
        _refuse_steps_of(given.scheduler, "scheduler")
        said = scheduler_every if isinstance(scheduler_every, str) else ""
        places[id(given.scheduler)] = RemoteScheduler(optimizer, said, loader)
    return tuple(places[id(thing)] for thing in things)


def _refuse_steps_of(thing: Any, name: str) -> None:
    """What was handed over would do nothing, and nobody would notice."""

    def step(*_: Any, **__: Any) -> NoReturn:
        raise ConfigurationError(
            f"this {name} was given to worker.prepare: call step() of the one that it returned, as in"
            " model, optimizer, loader = worker.prepare(model, optimizer, loader)"
        )

    thing.step = step


def _required(kind: type[torch.optim.Optimizer], defaults: dict[str, Any]) -> dict[str, Any]:
    """Arguments without which the class cannot be made, though all of its groups have values of their own."""
    needed = inspect.signature(kind).parameters.values()
    return {one.name: defaults[one.name] for one in needed if one.default is one.empty and one.name in defaults}


class Transplant:
    """A schedule that a loop made for its own optimizer: makes the same for the one on the server."""

    def __init__(self, scheduler: LRScheduler) -> None:
        self._scheduler = _with_optimizer(scheduler, None)

    def __call__(self, optimizer: torch.optim.Optimizer) -> LRScheduler:
        rates = [group["lr"] for group in optimizer.param_groups]
        LambdaLR(optimizer, _constant)  # torch marks an optimizer that has a schedule, and warns where the mark is not
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        return _with_optimizer(self._scheduler, optimizer)


def _constant(step: int) -> float:
    return 1.0


def _with_optimizer(scheduler: LRScheduler, optimizer: torch.optim.Optimizer | None) -> LRScheduler:
    """A copy of it, and of the schedules that it is made of, with another optimizer."""
    other: Any = copy.copy(scheduler)
    other.optimizer = optimizer
    if hasattr(other, "_schedulers"):  # SequentialLR, ChainedScheduler
        other._schedulers = [_with_optimizer(part, optimizer) for part in other._schedulers]
    return other  # type: ignore[no-any-return]


class RemoteScheduler:
    """Looks like a torch schedule. The server steps it, by the samples of the whole group. What is done here is to see
    whether the loop steps it as often as was said, because nothing else would tell."""

    def __init__(self, optimizer: RemoteOptimizer, every: str = "", loader: EpochLoader | None = None) -> None:
        self.optimizer = optimizer
        self._every = every
        self._loader = loader
        self._calls = self._wrong = 0
        self._before = {"batch": 0, "step": 0, "epoch": 0}

    def step(self, epoch: int | None = None) -> None:
        skips = self.optimizer.was_scaled  # with a GradScaler loops leave steps out
        if self._calls == LOOKED_AT or self._loader is None or not self._every or skips:
            return
        now = {"batch": self._loader.batches, "step": self.optimizer.steps, "epoch": self._loader.epochs}
        since = {unit: count - self._before[unit] for unit, count in now.items()}
        self._before = now
        self._calls += 1
        self._wrong += since[self._every] != 1
        if self._wrong == WRONG:
            fits = next((unit for unit in EVERY if since[unit] == 1), "a number of samples")
            raise ConfigurationError(
                f"worker.prepare: you said scheduler_every={self._every!r}, and between two calls of scheduler.step()"
                f" the loop takes {since['batch']} batches and makes {since['step']} steps of the optimizer: say"
                f" scheduler_every={fits!r}"
            )

    def get_last_lr(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]


class Counts(Protocol):
    """The worker, as what it prepared sees it."""

    epoch: int  # of the batch in hand, from 0
    epochs: int | None  # of the run
    holds: int  # batches that were taken, and that the loop has not seen yet

    def optimizer(self, model: nn.Module, kind: type[torch.optim.Optimizer], **arguments: Any) -> RemoteOptimizer:
        """Hand the model over to the server."""

    def batches(self, data: Any) -> Iterator[Any]:
        """All batches until the end of the run."""

    def in_hand(self) -> tuple[int, ...]:
        """What the batches since the last step amount to: samples, units."""

    def take_in_hand(self, counts: tuple[int, ...]) -> None:
        """Count these for the next step, and no others."""

    def skip(self) -> None:
        """The batches since the last step yield no gradient."""


class EpochLoader:
    """A loader whose batches are shared by the group, and which ends with every epoch, as the loop expects it.

    Its length is that of the whole epoch. How much of it this worker gets is seen as it goes, so a loop cannot know
    which batch is its last: what it accumulated without a step is pushed at the end of the epoch. All else is the
    loader's.
    """

    def __init__(self, worker: Counts, loader: Any, optimizer: RemoteOptimizer) -> None:
        self._worker = worker
        self._loader = loader
        self._optimizer = optimizer
        self._batches = worker.batches(loader)
        self.epochs = 0  # begun
        self.batches = 0  # that the loop took
        self._held: tuple[Any, int, tuple[int, ...]] | None = None  # the first batch of a later epoch
        self._last: nn.Parameter = optimizer.param_groups[-1]["params"][-1]  # its gradient stands for all of them
        self._pushed: tuple[Any, int] = (None, 0)  # this gradient, and its version, at the last step

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loader"], name)

    def __iter__(self) -> Iterator[Any]:
        epoch = self.epochs
        self.epochs += 1
        if self._worker.epochs is not None and epoch == self._worker.epochs:
            warnings.warn(
                f"the loop begins epoch {epoch + 1}, and the run has {epoch}: give launch(epochs=...), or --epochs, as"
                " many as the loop has, or let the loop go by worker.each_epoch()",
                stacklevel=2,
            )
        steps, taken = self._optimizer.steps, self.batches
        while (batch := self._next(epoch)) is not None:
            self.batches += 1
            yield batch[0]
        if self.batches > taken + 1 and self._optimizer.steps == steps == 0:
            warnings.warn(
                f"the loop took {self.batches - taken} batches of an epoch and never called step() of the optimizer"
                " that worker.prepare returned: they make one gradient",
                stacklevel=2,
            )
        if any(self._worker.in_hand()) and self._has_gradient():
            if self._optimizer.was_scaled:
                self._worker.skip()  # dropped, and counted so: its scale is the GradScaler's affair
            else:
                self._optimizer.step()
                self._optimizer.steps -= 1  # it was not the loop's own
            self._optimizer.zero_grad()

    def _has_gradient(self) -> bool:
        """Whether there was a backward pass since the last step, after which gradients may be left as they were."""
        gradient, (pushed, version) = self._last.grad, self._pushed
        return gradient is not None and (gradient is not pushed or gradient._version != version)

    def _next(self, epoch: int) -> tuple[Any] | None:
        """The next batch, unless it is of a later epoch: a step before it must not count its samples."""
        worker = self._worker
        earlier = worker.in_hand()
        if not any(earlier):
            gradient = self._last.grad
            self._pushed = gradient, 0 if gradient is None else gradient._version
        if self._held is None:
            before = worker.epoch
            try:
                batch = next(self._batches)
            except StopIteration:
                return None
            own = tuple(now - then for now, then in zip(worker.in_hand(), earlier, strict=True))
            self._held = batch, worker.epoch, own
            worker.epoch = before
            worker.take_in_hand(earlier)
        batch, of_epoch, own = self._held
        worker.holds = int(of_epoch > epoch)
        if worker.holds:
            return None
        self._held = None
        worker.epoch = of_epoch
        worker.take_in_hand(tuple(then + its for then, its in zip(earlier, own, strict=True)))
        return (batch,)

"""When the learning rate changes: the schedule of the optimizer that lives on the server.

It counts what the whole group does, so that a schedule means the same under every policy: epochs, rounds, or samples. A
schedule that is to end with the run need not be told when that is: `total_steps`, or `T_max`, that was not given is
filled in once it is known how much work there is.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.optim import lr_scheduler

from paceline.core.errors import ConfigurationError
from paceline.core.messages import DataOpened

EPOCH, ROUND, STEP = "epoch", "round", "step"
ROUNDING = 1e-6  # of a round: shares of one do not add up exactly
PLATEAU_FIGURES = {"min": ("loss",), "max": ("accuracy", "metric")}


class Figure(NamedTuple):
    name: str
    value: float


class Schedule:
    def __init__(self, make: Callable[..., Any], every: int | str | None, optimizer: torch.optim.Optimizer) -> None:
        """`make`: the user's, makes a scheduler of an optimizer. `every`: "epoch", "round", "step", or samples. A step
        is as many samples as a push of the first update has: of so many batches as the loop gathers."""
        self._make = make
        self._every = EPOCH if every is None else every
        self._check()
        self._optimizer = optimizer
        self._asks_for = _asks_for(make)
        self._scheduler: Any = None
        self._steps = 0
        self._total: int | None = None  # after so many steps it stays as it is
        self._rounds = 0.0
        self._step: int | None = None  # samples of a step, once they are known
        if self._asks_for is None:
            self._begin({})

    def _check(self) -> None:
        every = self._every
        if isinstance(every, str):
            if every not in (EPOCH, ROUND, STEP):
                raise ConfigurationError(f"scheduler_every is {every!r}; it may be 'epoch', 'round', 'step' or samples")
        elif not isinstance(every, int) or every < 1:
            raise ConfigurationError(f"scheduler_every is {every}; it must be at least 1 sample, 'epoch' or 'round'")

    def _begin(self, total: dict[str, int]) -> None:
        try:
            self._scheduler = self._make(self._optimizer, **total)
        except (TypeError, ValueError) as problem:
            raise ConfigurationError(f"the scheduler cannot be made: {problem}") from None

    # -- what happens --

    @property
    def waits(self) -> bool:
        """Whether it needs to know how much work there is."""
        return self._scheduler is None

    def open(self, opened: DataOpened) -> None:
        """Now that is known."""
        if self._asks_for is None or not self.waits:
            return
        total = self._steps_of(opened)
        if total is None:
            raise ConfigurationError(
                f"the scheduler's {self._asks_for} cannot be filled in, because nobody knows how much work there will"
                " be, or how many batches a step has: limit the run by epochs, steps or samples, or give it"
            )
        self._total = total
        self._begin({self._asks_for: total})

    def _steps_of(self, opened: DataOpened) -> int | None:
        if self._every == ROUND:
            return opened.rounds
        if opened.total is None or self._every == STEP:
            return None
        every = opened.epoch_samples if self._every == EPOCH else self._every
        assert isinstance(every, int)
        return max(1, math.ceil(opened.total / every))

    @property
    def wants_figures(self) -> bool:
        """Whether it waits for what evaluations find."""
        return isinstance(self._scheduler, lr_scheduler.ReduceLROnPlateau)

    def figure_of(self, figures: Mapping[str, float]) -> Figure | None:
        """What it goes by: the loss, or for mode="max" the accuracy; if that is not there, the first figure."""
        names = [*(name for name in PLATEAU_FIGURES[self._scheduler.mode] if name in figures), *figures]
        return Figure(names[0], figures[names[0]]) if names else None

    def feed(self, value: float) -> None:
        self._scheduler.step(value)

    def advance(self, before: int, samples: int, share: float, epoch_samples: int | None, push: int = 1) -> None:
        """So many samples were seen after those before, which were this share of a round. `push`: samples of the
        largest gradient among them."""
        self._step = self._step or push
        if self.waits:
            raise ConfigurationError(
                f"the scheduler's {self._asks_for} is filled in with worker.batches(dataset, ...); with batches of"
                " your own give it"
            )
        if self.wants_figures:
            return
        for _ in range(self._due(before, samples, share, epoch_samples)):
            if self._steps == self._total:
                return
            self._steps += 1
            try:
                self._scheduler.step()
            except ValueError as problem:
                raise ConfigurationError(f"the scheduler cannot go on: {problem}") from None

    def _due(self, before: int, samples: int, share: float, epoch_samples: int | None) -> int:
        if self._every == ROUND:
            rounds = self._rounds + share
            done = math.floor(rounds + ROUNDING) - math.floor(self._rounds + ROUNDING)
            self._rounds = rounds
            return done
        every = epoch_samples if self._every == EPOCH else self._step if self._every == STEP else self._every
        if every is None:
            raise ConfigurationError(
                "a scheduler counts epochs of worker.batches(dataset, ...); with batches of your own give"
                " scheduler_every, in samples, or 'round'"
            )
        assert isinstance(every, int)
        return (before + samples) // every - before // every

    # -- checkpoints --

    def state(self) -> dict[str, Any]:
        scheduler = None if self.waits else self._scheduler.state_dict()
        counts = {"steps": self._steps, "total": self._total, "rounds": self._rounds, "step": self._step}
        return {"scheduler": scheduler, **counts}

    def resume(self, state: dict[str, Any]) -> None:
        self._steps, self._total, self._rounds = state["steps"], state["total"], state["rounds"]
        self._step = state.get("step")
        if state["scheduler"] is None:
            return
        if self._asks_for is not None and self.waits:
            self._begin({self._asks_for: state["total"]})
        self._scheduler.load_state_dict(state["scheduler"])


def _asks_for(make: Callable[..., Any]) -> str | None:
    """The argument that says how many steps there are, if it has one that was not given."""
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):
        return None
    total = parameters.get("total_steps")
    if total is not None and total.default in (None, inspect.Parameter.empty):
        by_epochs = [parameters[name].default for name in ("epochs", "steps_per_epoch") if name in parameters]
        if not by_epochs or None in by_epochs:
            return "total_steps"
    t_max = parameters.get("T_max")
    return "T_max" if t_max is not None and t_max.default is inspect.Parameter.empty else None

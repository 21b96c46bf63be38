"""Real gradients for simulated workers that run a user's own loop, each in a thread with a model of its own.

A loop computes as soon as it is given parameters, and then stands until its gradient is due in virtual time. What it
pushes goes the same way as in a real run: lifecycle, aggregation, parameter store.
"""

from __future__ import annotations

import inspect
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from paceline.core.errors import ConfigurationError, PacelineError
from paceline.core.messages import DataOpened, Gradient, Unit, UpdateApplied
from paceline.lifecycle.messages import MakeUpdate, Place
from paceline.lifecycle.validation import PortView
from paceline.training.aggregation import Aggregation
from paceline.training.choices import AS_USUAL, UpdateOptions
from paceline.training.layout import Segment, average, averaged_into, difference
from paceline.training.memory_use import refuse_if_too_large, resident_bytes
from paceline.training.optimizers import OptimizerSpec
from paceline.training.parameters import ParameterStore
from paceline.training.rehearsed_loop import RehearsedLoop
from paceline.training.schedule import ROUND, Schedule
from paceline.training.stops import BEGIN, PUSH, Stop
from paceline.training.worker import Worker

Train = Callable[[Worker], None]
ROUNDS_TRIED = 100  # of a schedule that is made only to see whether it follows the optimizer's rate


class LoopFailedError(PacelineError):
    """The user's loop raised; the message is its traceback."""


class LoopLearner:
    """What a simulator of loops asks for gradients and updates. Workers are named by their seats."""

    def __init__(
        self,
        train: Callable[[], Train],
        workers: int,
        *,
        epochs: int | None,
        seed: int,
        updates: UpdateOptions = AS_USUAL,
        statistics: bool = False,
        not_finite: str = "stop",
        factor: float = 1.0,
    ) -> None:
        """`train`: gives the user's function, as a new process would find it. `factor`: on its learning rates."""
        self.trained: Callable[[], Sequence[int]] = list  # the seats whose buffers are the group's
        self.epoch_samples: int | None = None  # where the loops share a data set
        self.losses: list[float] = []  # of pushes, since somebody took them
        self._train = train
        self._workers = workers
        self._options: dict[str, Any] = {"seed": seed, "epochs": epochs, "not_finite": not_finite}
        self._updates = updates
        self._statistics = statistics
        self._factor = factor
        self._loops: dict[int, RehearsedLoop] = {}
        self._others: dict[int, dict[str, Tensor]] = {}  # of loops at work: their buffers as they were before it
        self._left: dict[int, Mapping[str, Tensor]] = {}  # of workers that failed
        self._aggregation: Aggregation | None = None  # once the group has begun

    @property
    def store(self) -> ParameterStore:
        return self._aggregating.store

    @property
    def _aggregating(self) -> Aggregation:
        assert self._aggregation is not None
        return self._aggregation

    def close(self) -> None:
        for loop in self._loops.values():
            loop.stop()

    # -- what happens to workers --

    def start(self, seat: int) -> None:
        """Run its loop until its model is here; if the group has begun, it gets the group's buffers."""
        before = resident_bytes()
        loop = RehearsedLoop(seat, self._train(), deque(), asks=True, **self._options)
        self._loops[seat] = loop
        stop = self._run(loop)
        if stop.at != BEGIN:
            raise ConfigurationError(
                f"worker {seat} {stop.at} before it had a model: `train` must call worker.optimizer(model, ...) first"
            )
        self._refuse_shared(loop)
        if len(self._loops) > 1:  # with the first, modules were imported that all of them use
            refuse_if_too_large(resident_bytes() - before, self._workers - len(self._loops), self._workers)
        if self._aggregation is not None:
            self._compare(seat, self.store.layout, "the others'")
            averaged_into(self._segment(seat), self._replicas())

    def begin(self, seats: Sequence[int]) -> None:
        """Every model is here: the group begins with the parameters of the first."""
        first = self._segment(seats[0])
        for seat in seats[1:]:
            self._compare(seat, first.layout, f"that of worker {seats[0]}")
        spec = self._loops[seats[0]].spec
        assert spec is not None
        store = ParameterStore(first.layout, first.parameters, scaled(spec, self._factor), self._updates)
        self._aggregation = Aggregation(store, statistics=self._statistics)

    def open(self, opened: DataOpened) -> None:
        """It is known how much work there is; that may be told again."""
        if self.store.epoch_samples is None:
            self.store.open(opened)
            self.epoch_samples = opened.epoch_samples
            for loop in self._loops.values():
                loop.rates = self.store.rates

    def pull(self, seat: int, place: Place, *, enough: bool = False) -> None:
        """The worker, which stands, takes the newest parameters; its next work begins. `enough`: it is to bring no more
        batches of its own."""
        loop = self._loops[seat]
        loop.place, loop.rates, loop.state_of = place, self.store.rates, self.store.optimizer_state
        loop.enough = enough
        self._segment(seat).parameters.copy_(self.store.flat)
        self.note_buffers(seat)

    def note_buffers(self, seat: int) -> None:
        """What its loop does to them from now on counts when its gradient is due: it computes ahead of its time."""
        segment = self._segment(seat)
        self._others[seat] = {name: tensor.clone() for name, tensor in segment.others.items() if _moves(name, segment)}

    def go_on(self, seat: int, units: Sequence[Unit]) -> Stop:
        """Let its loop run to its next stop, with these units of work."""
        loop = self._loops[seat]
        for unit in units:
            loop.give(unit)
        return self._run(loop)

    def push(self, seat: int, stop: Stop) -> None:
        """The gradient at which its loop stands is due."""
        assert stop.at == PUSH
        self._others.pop(seat, None)
        loop, segment = self._loops[seat], self._segment(seat)
        self._aggregating.hand_in(seat, segment.gradient, loop.squared_norm, segment.parameters, loop.absent)
        if stop.loss is not None:
            self.losses.append(stop.loss)

    def leave(self, seat: int) -> None:
        """The worker failed, or was sent away. Its buffers are kept, for the case that nobody else is left."""
        loop = self._loops.pop(seat, None)
        if loop is None:
            return
        loop.stop()
        if loop.segment is not None:
            self._left[seat] = loop.segment.others | self._others.pop(seat, {})

    def _run(self, loop: RehearsedLoop) -> Stop:
        stop = loop.go_on()
        problem = loop.problem
        if isinstance(problem, PacelineError | KeyboardInterrupt):
            raise problem
        if problem is not None:
            said = "".join(traceback.format_exception(type(problem), problem, problem.__traceback__))
            raise LoopFailedError(f"worker {loop.index} raised:\n{said.rstrip()}")
        return stop

    def _segment(self, seat: int) -> Segment:
        segment = self._loops[seat].segment
        assert segment is not None
        return segment

    def _compare(self, seat: int, layout: Any, whose: str) -> None:
        found = self._segment(seat).layout
        if found != layout:
            raise ConfigurationError(f"the model of worker {seat} differs from {whose}: {difference(layout, found)}")

    def _refuse_shared(self, loop: RehearsedLoop) -> None:
        for other in self._loops.values():
            if other is not loop and loop.shares_a_model_with(other):
                raise ConfigurationError(
                    f"workers {other.index} and {loop.index} train the same model object, and in a real run each"
                    " process would have its own: make the model inside train(worker)"
                )

    # -- commands --

    def make_update(self, command: MakeUpdate) -> UpdateApplied:
        return self._aggregating.make_update(command)

    def set_aside(self, gradient: Gradient, seat: int, version: int) -> None:
        self._aggregating.set_aside(gradient, seat, version)

    def discard(self, gradient: Gradient, seat: int) -> None:
        self._aggregating.discard(gradient, seat)

    def view(self) -> PortView:
        return PortView() if self._aggregation is None else self._aggregation.view()

    # -- the model --

    def state(self) -> dict[str, Tensor]:
        """What state_dict() of the model would be: the store's parameters, and the average of the workers' buffers."""
        layout = self.store.layout
        tensors = {name: tensor.clone() for name, tensor in self.store.parameters.items()}
        tensors |= average(self._replicas(), layout.averaged)
        return {key: tensors[name] for key, name in layout.keys}

    def _replicas(self) -> list[Mapping[str, Tensor]]:
        """The buffers of the group as it is now; if nobody is left, of all that there were."""
        held: dict[int, Mapping[str, Tensor]] = {
            seat: loop.segment.others | self._others.get(seat, {})
            for seat, loop in self._loops.items()
            if loop.segment is not None
        }
        held |= self._left
        trained = [held[seat] for seat in self.trained() if seat in held]
        return trained or list(held.values())


def _moves(name: str, segment: Segment) -> bool:
    """Buffers; the rest of what is not trained are frozen parameters, of floating point, and stand still."""
    return name in segment.layout.averaged or not segment.others[name].is_floating_point()


def scaled(spec: OptimizerSpec, factor: float) -> OptimizerSpec:
    """The same optimizer with this factor on all of its learning rates; ConfigurationError if a schedule sets them."""
    if factor == 1.0:
        return spec
    default = inspect.signature(spec.kind).parameters.get("lr")
    arguments = dict(spec.arguments)
    if default is not None and default.default is not inspect.Parameter.empty:
        arguments.setdefault("lr", default.default)
    if "lr" in arguments:
        arguments["lr"] = arguments["lr"] * factor
    groups = [(names, {**own, "lr": own["lr"] * factor} if "lr" in own else own) for names, own in spec.groups]
    found = spec._replace(arguments=arguments, groups=groups)
    before, after = _first_rates(spec), _first_rates(found)
    if any(abs(new - factor * old) > 1e-9 * abs(new) for old, new in zip(before, after, strict=True)):
        raise ConfigurationError(
            "the schedule sets the learning rate itself, whatever the optimizer's is (as OneCycleLR does by its"
            " max_lr): a factor on the rate (--tune-lr) would change nothing"
        )
    return found


def _first_rates(spec: OptimizerSpec) -> list[float]:
    """The learning rates that a run begins with, and those after a step of its schedule."""
    groups = [{"params": [nn.Parameter(torch.zeros(1))], **own} for _, own in spec.groups]
    optimizer = spec.kind(groups, **spec.arguments)
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    if spec.scheduler is None:
        return rates
    schedule = Schedule(spec.scheduler, ROUND, optimizer)
    if schedule.waits:
        schedule.open(DataOpened(ROUNDS_TRIED, 1, ROUNDS_TRIED, ROUNDS_TRIED))
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    optimizer.step()  # without a gradient it does nothing, and the schedule does not complain that it came first
    if not schedule.wants_figures:
        schedule.advance(0, 1, 1.0, None)
    return rates + [float(group["lr"]) for group in optimizer.param_groups]

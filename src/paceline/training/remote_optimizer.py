"""What a user's loop takes for an optimizer: the real one lives on the server."""

from __future__ import annotations

import inspect
import weakref
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor

from paceline.core.errors import ConfigurationError, PacelineError
from paceline.training.early import WayAhead
from paceline.training.optimizers import OptimizerSpec
from paceline.training.replica import Replica


class GradientError(PacelineError):
    """A gradient is missing or not finite; the message names the worker and the parameter."""


class Pusher(Protocol):
    """The worker, as its optimizer sees it."""

    index: int

    @property
    def rates(self) -> Sequence[float]:
        """Learning rates of the parameter groups, as the server told them; none: it has not."""

    def push(self, loss: float | None, samples: int | None, squared_norm: float, absent: tuple[int, ...] = ()) -> None:
        """Hand in what the segment holds, and come back with new parameters in it."""

    def in_hand(self) -> tuple[int, ...]:
        """What the batches since the last step amount to; all zero: there were none."""

    def skip(self) -> None:
        """The batches since the last step yield no gradient."""

    def refuse(self, name: str | None) -> None:
        """A gradient is not finite: as the user chose, end the run or go on without it."""

    def optimizer_state(self) -> dict[str, Any]:
        """Ask the server for it."""


class TakenFrom(Protocol):
    """A loader that knows how many batches were taken from it."""

    batches: int


class ShownGroup(dict[str, Any]):
    """A parameter group that can be read. What a loop wrote here could not reach the server."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise ConfigurationError(
            "the optimizer lives on the server, so its param_groups can only be read here: for a learning rate that"
            " changes give the schedule to it, as in worker.optimizer(..., scheduler=partial(StepLR, step_size=10),"
            " scheduler_every='epoch' or 'round')"
        )

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = setdefault = pop = popitem = clear = _refuse

    def show(self, rate: float) -> None:
        dict.__setitem__(self, "lr", rate)


class RemoteOptimizer(torch.optim.Optimizer):
    """Looks like a torch optimizer. `step` pushes the gradient, waits as the policy says, and pulls new parameters."""

    _step_supports_amp_scaling = True  # a GradScaler then leaves unscaling, and skipping, to `step`

    def __init__(self, worker: Pusher, replica: Replica, spec: OptimizerSpec, way: WayAhead | None = None) -> None:
        """Without torch's own: what it prepares is for an optimizer that steps here. `way`: of gradients that travel;
        they may go ahead of their push, or be sent from where they are."""
        self._worker = worker
        self._replica = replica
        self._way = way
        self._early = None if way is None else replica.early(way)
        self.steps = 0  # that were asked for
        self.loader: TakenFrom | None = None  # that was prepared along with it
        self.was_scaled = False  # whether a GradScaler has stepped: only it knows the scale of gradients
        self._pushed: tuple[weakref.ref[Tensor], weakref.ref[Tensor], int] | None = None  # what the last step handed in
        shown = {
            name: parameter.default
            for name, parameter in inspect.signature(spec.kind).parameters.items()
            if parameter.default is not inspect.Parameter.empty
        } | spec.arguments
        self.defaults = shown
        self.state: defaultdict[Tensor, Any] = defaultdict(dict)  # it is on the server: see state_dict
        self._groups = tuple(
            ShownGroup({**shown, **own, "params": [replica.parameters[name] for name in names]})
            for names, own in spec.groups
        )
        self._shown: Sequence[float] = ()
        self.zero_grad()

    @property
    def param_groups(self) -> tuple[dict[str, Any], ...]:  # type: ignore[override]
        """They can be read: the learning rates are those in force on the server."""
        rates = self._worker.rates
        if rates is not self._shown:
            self._shown = rates
            for group, rate in zip(self._groups, rates, strict=False):
                group.show(rate)
        return self._groups

    def __repr__(self) -> str:
        return f"RemoteOptimizer({self.param_groups})"

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self._replica.parameters.values():
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    def step(  # type: ignore[override]
        self, loss: Tensor | float | None = None, *, samples: int | None = None
    ) -> None:
        """Push the gradient. `samples`: how many it is made of, if they did not come from `worker.batches`."""
        replica = self._replica
        absent = replica.absent()
        self._check(loss, samples, absent)
        self.steps += 1
        scale, overflow = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        self.was_scaled = self.was_scaled or scale is not None
        there = () if self._early is None else self._early.settle(scaled=scale is not None)
        if overflow is not None and overflow.item():
            self._worker.skip()  # the scale of a GradScaler was too large: it will lower it
            return
        norm = None
        if self._way is not None and scale is None and not (absent or there):
            norm = replica.lend(self._way)
        if norm is None:
            norm = replica.hand_in(absent, there)
        if norm is None:
            self._worker.refuse(replica.not_finite())
            return
        if scale is not None:
            replica.segment.gradient.div_(scale.cpu())
            norm /= float(scale) ** 2
        self._note_pushed()
        self._worker.push(float(loss.detach()) if isinstance(loss, Tensor) else loss, samples, norm, absent)
        replica.take()

    def _check(self, loss: Tensor | float | None, samples: int | None, absent: tuple[int, ...]) -> None:
        who = f"worker {self._worker.index}"
        if callable(loss) and not isinstance(loss, Tensor):
            raise ConfigurationError(
                f"{who}: step() takes the loss, not a function that computes it (a closure): call loss.backward(), then"
                " optimizer.step(loss)"
            )
        if len(absent) == len(self._replica.parameters):
            raise GradientError(f"{who}: no parameter has a gradient; call backward() before step()")
        if samples is not None and samples < 1:
            raise ConfigurationError(f"{who}: step(samples={samples}); it must be at least 1")
        if self.loader is not None and not self.loader.batches:
            raise ConfigurationError(
                f"{who}: the loop takes its batches from elsewhere than from the loader that worker.prepare returned,"
                " so that every worker would train on all of them: take them from that one, or give prepare no loader"
            )
        if self._pushed is not None and not any(self._worker.in_hand()) and self._is_as_pushed():
            raise GradientError(
                f"{who}: step() was called twice without a backward() in between, so its gradient would count twice;"
                " call zero_grad(), backward() and step() once per batch"
            )

    def _note_pushed(self) -> None:
        """Which gradients there are, weakly, and how often they had been written."""
        held = [parameter.grad for parameter in self._replica.parameters.values() if parameter.grad is not None]
        self._pushed = weakref.ref(held[0]), weakref.ref(held[-1]), _writes(held)

    def _is_as_pushed(self) -> bool:
        """Whether nothing was computed since the last step: a backward pass makes new gradients, or adds to them."""
        assert self._pushed is not None
        first, last, writes = self._pushed
        if first() is None:
            return False
        held = [parameter.grad for parameter in self._replica.parameters.values() if parameter.grad is not None]
        return first() is held[0] and last() is held[-1] and writes == _writes(held)

    # -- what torch's own can do --

    def state_dict(self) -> dict[str, Any]:
        """What it would be if the optimizer were here: the server is asked for it."""
        return self._worker.optimizer_state()

    def load_state_dict(self, state_dict: Any) -> NoReturn:
        raise ConfigurationError(
            "the optimizer lives on the server, and has begun: give it a state when it is made, as in"
            " worker.optimizer(model, torch.optim.AdamW, state=state_dict, lr=...)"
        )

    def add_param_group(self, param_group: Any) -> NoReturn:
        raise ConfigurationError("the optimizer lives on the server: give all groups when it is made, as groups=[...]")


def _writes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor._version for tensor in tensors)

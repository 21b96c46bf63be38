"""What a user's loop takes for an optimizer: the real one lives on the server."""

from __future__ import annotations

import inspect
from types import MappingProxyType
from typing import Protocol

from torch import Tensor

from paceline.core.errors import ConfigurationError, PacelineError
from paceline.training.optimizers import OptimizerSpec
from paceline.training.replica import Replica


class GradientError(PacelineError):
    """A gradient is missing or not finite; the message names the worker and the parameter."""


class Pusher(Protocol):
    """The worker, as its optimizer sees it."""

    index: int

    def push(self, loss: float | None, samples: int | None, squared_norm: float) -> None:
        """Hand in what the segment holds, and come back with new parameters in it."""

    def skip(self) -> None:
        """The batches since the last step yield no gradient."""

    def refuse(self, name: str | None) -> None:
        """A gradient is not finite: as the user chose, end the run or go on without it."""


class RemoteOptimizer:
    """Looks like a torch optimizer. `step` pushes the gradient, waits as the policy says, and pulls new parameters."""

    _step_supports_amp_scaling = True  # a GradScaler then leaves unscaling, and skipping, to `step`

    def __init__(self, worker: Pusher, replica: Replica, spec: OptimizerSpec) -> None:
        self._worker = worker
        self._replica = replica
        # Read-only: what a loop would write here could not reach the server.
        shown = {
            name: parameter.default
            for name, parameter in inspect.signature(spec.kind).parameters.items()
            if parameter.default is not inspect.Parameter.empty
        } | spec.arguments
        self.param_groups = tuple(
            MappingProxyType({**shown, **own, "params": [replica.parameters[name] for name in names]})
            for names, own in spec.groups
        )
        self.zero_grad()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self._replica.parameters.values():
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    def step(self, loss: Tensor | float | None = None, *, samples: int | None = None) -> None:
        """Push the gradient. `samples`: how many it is made of, if they did not come from `worker.batches`."""
        replica = self._replica
        missing = replica.without_gradient()
        if missing is not None:
            raise GradientError(
                f"worker {self._worker.index}: parameter {missing!r} has no gradient; call backward() before step(),"
                " and freeze what is not trained with requires_grad_(False)"
            )
        if samples is not None and samples < 1:
            raise ConfigurationError(f"worker {self._worker.index}: step(samples={samples}); it must be at least 1")
        scale, overflow = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        if overflow is not None and overflow.item():
            self._worker.skip()  # the scale of a GradScaler was too large: it will lower it
            return
        norm = replica.hand_in()
        if norm is None:
            self._worker.refuse(replica.not_finite())
            return
        if scale is not None:
            replica.segment.gradient.div_(scale.cpu())
            norm /= float(scale) ** 2
        self._worker.push(float(loss.detach()) if isinstance(loss, Tensor) else loss, samples, norm)
        replica.take()

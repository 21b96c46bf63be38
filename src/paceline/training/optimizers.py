"""The optimizer that lives on the server: how it is described, and how it is made of that description."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from paceline.core.errors import ConfigurationError
from paceline.training.layout import Layout

# They treat every number for itself, so a whole group of parameters may be one flat tensor: a step then costs the same
# however many layers the model has. In the types below the result is the same to the last bit, with `foreach` as well;
# the kernels of `fused`, and those of shorter types, round differently where a tensor ends.
EXACT = (torch.float32, torch.float64)
ELEMENTWISE = (
    *(torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam),
    *(torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.Rprop, torch.optim.ASGD),
)


class OptimizerSpec(NamedTuple):
    """How to make the optimizer: its class, its arguments, and groups of names with arguments of their own."""

    kind: type[torch.optim.Optimizer]
    arguments: dict[str, Any]
    groups: list[tuple[list[str], dict[str, Any]]]
    scheduler: Callable[[torch.optim.Optimizer], Any] | None = None
    scheduler_every: int | None = None  # samples between two of its steps; None: an epoch
    stale: str | None = None  # what to do about stale gradients; None: as the run says


class Piece(NamedTuple):
    """A stretch of the flat parameters that the optimizer sees as one tensor."""

    group: int
    begin: int
    size: int
    shape: tuple[int, ...]


def pieces_of(layout: Layout, spec: OptimizerSpec) -> list[Piece]:
    """One piece per parameter; neighbours of one group are one piece where the optimizer cannot tell the difference."""
    group_of = {name: number for number, (names, _) in enumerate(spec.groups) for name in names}
    fused = any(options.get("fused") for options in (spec.arguments, *(own for _, own in spec.groups)))
    merges = spec.kind in ELEMENTWISE and layout.dtype in EXACT and not fused
    pieces: list[Piece] = []
    begin = 0
    for entry in layout.parameters:
        group = group_of.get(entry.name)
        if group is not None:
            last = pieces[-1] if pieces else None
            if merges and last is not None and last.group == group and last.begin + last.size == begin:
                pieces[-1] = Piece(group, last.begin, last.size + entry.size, (last.size + entry.size,))
            else:
                pieces.append(Piece(group, begin, entry.size, (entry.size,) if merges else entry.shape))
        begin += entry.size
    return pieces


def make_optimizer(
    spec: OptimizerSpec, pieces: Sequence[Piece], tensors: Sequence[nn.Parameter]
) -> torch.optim.Optimizer:
    groups: list[dict[str, Any]] = [{"params": [], **options} for _, options in spec.groups]
    for piece, tensor in zip(pieces, tensors, strict=True):
        groups[piece.group]["params"].append(tensor)
    _leave_the_compiler_out()
    try:
        optimizer = spec.kind(groups, **spec.arguments)
    except (TypeError, ValueError) as problem:
        raise ConfigurationError(f"{spec.kind.__name__} cannot be made: {problem}") from None
    if any("lr" not in group for group in optimizer.param_groups):
        raise ConfigurationError(f"{spec.kind.__name__} has no learning rate: its groups need an 'lr'")
    return optimizer


def bare_step(optimizer: torch.optim.Optimizer) -> Callable[[], Any]:
    """Its step without torch's wrapping (a label for the profiler, hooks), which takes longer than the step of a small
    model does. Where something may lean on the wrapping it stays."""
    kind, own = type(optimizer), vars(optimizer).get("step")
    counted = hasattr(own, "_wrapped_by_lr_sched")  # a scheduler only wants to know whether there was a step
    if kind not in ELEMENTWISE or (own is not None and not counted) or optimizer.defaults.get("differentiable"):
        warm_up()
        return optimizer.step
    bare = inspect.unwrap(kind.step)

    def step() -> None:
        optimizer._opt_called = True  # type: ignore[attr-defined]
        with torch.no_grad():
            bare(optimizer)

    return step


def make_scheduler(spec: OptimizerSpec, optimizer: torch.optim.Optimizer) -> Any:
    if spec.scheduler is None:
        return None
    if spec.scheduler_every is not None and spec.scheduler_every < 1:
        raise ConfigurationError(f"scheduler_every is {spec.scheduler_every}; it must be at least 1 sample")
    try:
        scheduler = spec.scheduler(optimizer)
    except (TypeError, ValueError) as problem:
        raise ConfigurationError(f"the scheduler cannot be made: {problem}") from None
    if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
        raise ConfigurationError("ReduceLROnPlateau needs a figure at every step; take a schedule that counts steps")
    return scheduler


def spec_of(
    layout: Layout,
    names: Mapping[int, str],
    kind: type[torch.optim.Optimizer],
    groups: Sequence[Mapping[str, Any]] | None,
    arguments: Mapping[str, Any],
) -> OptimizerSpec:
    """The description that crosses to the server. `names`: of the model's parameters, by their id()."""
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
        raise ConfigurationError(
            f"{kind!r} is no optimizer class: give the class and its arguments, as in"
            " worker.optimizer(model, torch.optim.SGD, lr=0.1); the object is made on the server"
        )
    closure = inspect.signature(kind.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ConfigurationError(f"{kind.__name__} computes gradients itself (it needs a closure): it cannot be remote")
    grouped: list[tuple[list[str], dict[str, Any]]] = []
    if groups is None:
        grouped.append(([entry.name for entry in layout.parameters], {}))
    seen: set[str] = set()
    for number, group in enumerate(groups or ()):
        if not isinstance(group, Mapping) or "params" not in group:
            raise ConfigurationError(f"parameter group {number} has no 'params'")
        given = [group["params"]] if isinstance(group["params"], Tensor) else list(group["params"])
        for parameter in given:
            if id(parameter) not in names:
                raise ConfigurationError(f"parameter group {number} has a parameter that is not the model's")
            if names[id(parameter)] in seen:
                raise ConfigurationError(f"parameter {names[id(parameter)]!r} is there twice in the parameter groups")
            seen.add(names[id(parameter)])
        own = {key: value for key, value in group.items() if key != "params"}
        grouped.append(([names[id(parameter)] for parameter in given if parameter.requires_grad], own))
    return OptimizerSpec(kind, dict(arguments), grouped)


def _leave_the_compiler_out() -> None:
    """torch asks its compiler to keep away from these methods, and loads it to say so: two seconds' worth of modules,
    and nobody compiles here. Where torch does it another way, it loads them."""
    if "torch._dynamo" in sys.modules:
        return
    for name in ("add_param_group", "load_state_dict", "state_dict", "zero_grad"):
        plain = getattr(getattr(torch.optim.Optimizer, name), "__wrapped__", None)
        if plain is not None:
            setattr(plain, "__dynamo_disable", plain)


def warm_up() -> None:
    """Load what torch's own steps need: two seconds' worth of modules."""
    importlib.import_module("torch._dynamo")

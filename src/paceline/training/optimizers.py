"""The optimizer that lives on the server: how it is described, and how it is made of that description."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

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
LOOKED_AT = 64  # numbers of a tensor, when two descriptions are compared


class OptimizerSpec(NamedTuple):
    """How to make the optimizer: its class, its arguments, and groups of names with arguments of their own."""

    kind: type[torch.optim.Optimizer]
    arguments: dict[str, Any]
    groups: list[tuple[list[str], dict[str, Any]]]
    scheduler: Callable[..., Any] | None = None
    scheduler_every: int | str | None = None  # when it steps: "epoch", "round", or samples; None: each epoch
    stale: str | None = None  # what to do about stale gradients; None: as the run says
    state: Any = None  # a state_dict to begin with


def make_optimizer(spec: OptimizerSpec, members: Iterable[tuple[int, nn.Parameter]]) -> torch.optim.Optimizer:
    """`members`: of the parameter groups, each with the number of its group."""
    groups: list[dict[str, Any]] = [{"params": [], **options} for _, options in spec.groups]
    for group, tensor in members:
        groups[group]["params"].append(tensor)
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


def spec_of(
    layout: Layout,
    names: Mapping[int, str],
    kind: type[torch.optim.Optimizer],
    groups: Sequence[Mapping[str, Any]] | None,
    arguments: Mapping[str, Any],
) -> OptimizerSpec:
    """The description that crosses to the server. `names`: of the model's parameters, by their id()."""
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
        given = f"a {type(kind).__name__} object" if isinstance(kind, torch.optim.Optimizer) else f"{kind!r:.80}"
        raise ConfigurationError(
            f"{given} is no optimizer class: give the class and its arguments, as in"
            " worker.optimizer(model, torch.optim.SGD, lr=0.1); the object is made on the server"
        )
    if kind is torch.optim.SparseAdam:
        raise ConfigurationError("SparseAdam needs sparse gradients, which are made dense on their way: take Adam")
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


def spec_difference(expected: OptimizerSpec, found: OptimizerSpec) -> str:
    """In words, the first thing in which two descriptions differ; empty: they are alike."""
    if expected.kind.__qualname__ != found.kind.__qualname__:
        return f"it is {found.kind.__name__}, not {expected.kind.__name__}"
    for name in dict.fromkeys((*expected.arguments, *found.arguments)):
        one, other = (spec.arguments.get(name, "not given") for spec in (found, expected))
        if _words(one) != _words(other):
            return f"its {name} is {_words(one)}, not {_words(other)}"
    if _words(expected.groups) != _words(found.groups):
        return "its parameter groups are others"
    for name in ("scheduler", "scheduler_every", "stale"):
        one, other = (_words(getattr(spec, name)) for spec in (found, expected))
        if one != other:
            return f"its {name} is {one}, not {other}"
    return ""


def _words(value: Any) -> str:
    """The same for what is alike, in whatever process it was made."""
    match value:
        case partial():
            return f"partial({_words(value.func)}, {_words(value.args)}, {_words(value.keywords)})"
        case list() | tuple():
            return f"({', '.join(map(_words, value))})"
        case Mapping():
            return f"{{{', '.join(f'{name}: {_words(part)}' for name, part in value.items())}}}"
        case Tensor():
            return repr(value.tolist()) if value.numel() < LOOKED_AT else f"a tensor of {tuple(value.shape)}"
        case None | bool() | int() | float() | str():
            return repr(value)
        case _:
            return str(getattr(value, "__qualname__", type(value).__qualname__))


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

"""Refuses what cannot be an argument of `launch`, in one sentence, before anything starts.

Whether values fit together is checked where they are used; here it is only what kind of thing each of them is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any

from paceline.core.errors import ConfigurationError
from paceline.experiment.group import Group
from paceline.policies import Policy
from paceline.recording.observer import Observer
from paceline.runtimes.ray_cluster.options import RayCluster

LARGEST_SEED = 2**63


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_path(value: Any) -> bool:
    return isinstance(value, str | PathLike)


def _is_size(value: Any) -> bool:
    pair = isinstance(value, tuple) and len(value) == 2 and all(map(_is_number, value))
    return pair or _is_number(value) or _is_text(value)


def _are_slowdowns(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        _is_number(worker) and isinstance(factor, int | float) for worker, factor in value.items()
    )


def _are_observers(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(observer, Observer) for observer in value)


KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "workers": (_is_size, "a number or a range, as in 4, '2..4' or (2, 4)"),
    "policy": (
        lambda value: isinstance(value, str | Policy),
        "a string, as in 'ssp:staleness=3', or an object of a class that derives from paceline.policies.Policy",
    ),
    "seed": (
        lambda value: _is_number(value) and -LARGEST_SEED <= value < LARGEST_SEED,
        "a whole number of at most 63 bits",
    ),
    "slowdown": (_are_slowdowns, "numbers of workers with factors, as in {3: 4.0}"),
    "speed": (_is_text, "a string, as in 'lognormal:seconds=0.02'"),
    "device": (_is_text, "a string, as in 'cpu', 'cuda:1' or 'auto'"),
    "restart": (_is_number, "a number of deaths, or 0"),
    "patience": (_is_text, "a string, as in '20s', '10s..5m' or 'off'"),
    "cluster": (lambda value: isinstance(value, RayCluster), "a paceline.RayCluster"),
    "live": (lambda value: isinstance(value, bool), "True, False, or None"),
    "evaluate_every": (_is_number, "a number of samples"),
    "run_dir": (_is_path, "a path"),
    "checkpoint_every": (_is_text, "a string, as in '30s', '10000 samples' or '500 updates', or None"),
    "keep": (lambda value: _is_number(value) and value >= 1, "at least 1"),
    "compress_trace": (lambda value: isinstance(value, bool), "True or False"),
    "report": (lambda value: isinstance(value, bool), "True or False"),
    "resume": (_is_path, "the directory of a run, or 'auto'"),
    "group": (lambda value: isinstance(value, Group), "a paceline.experiment.group.Group"),
    "tensorboard": (lambda value: isinstance(value, bool), "True, False, or None: where TensorBoard is installed"),
    "observers": (_are_observers, "a list of paceline.recording.observer.Observer objects"),
}
OPTIONAL = (
    *("live", "slowdown", "speed", "evaluate_every", "run_dir", "checkpoint_every", "resume", "cluster", "group"),
    "tensorboard",
)


def check_given(given: Mapping[str, Any]) -> None:
    """`given`: the arguments of `launch` by their names. ConfigurationError names the first that is impossible."""
    check_function("train", given["train"], "worker")
    if given["evaluate"] is not None:
        check_function("evaluate", given["evaluate"], "state")
    if given["on_metrics"] is not None:
        check_function("on_metrics", given["on_metrics"], "figures, step")
    for name, (fits, expected) in KINDS.items():
        value = given[name]
        if not (fits(value) or (value is None and name in OPTIONAL)):
            raise ConfigurationError(f"{name} is {value!r:.80}; it must be {expected}")


def check_function(name: str, function: Any, takes: str) -> None:
    """It is called with these."""
    if not callable(function):
        raise ConfigurationError(f"{name} is {function!r:.80}; it must be a function {name}({takes})")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some of C do not tell what they take
    try:
        signature.bind(*takes.split(", "))
    except TypeError as problem:
        called = getattr(function, "__name__", name)
        raise ConfigurationError(
            f"{name}: {called}({', '.join(signature.parameters)}) cannot be called as {called}({takes}): {problem}"
        ) from None

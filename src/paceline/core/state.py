"""What a thing must remember from one event to the next, as a value that JSON can hold, and back again.

The thing is a dataclass, and declares what it remembers with `kept(...)`. A kept value is plain (numbers, strings,
lists, dictionaries, structs of these), or an object with two methods of its own: `state()` gives such a value, and
`resume(state)` puts it into a fresh object.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from typing import Any

import msgspec


def kept(default: Any = dataclasses.MISSING, *, factory: Any = dataclasses.MISSING) -> Any:
    """A dataclass field that is part of the state. Without a default, `__post_init__` sets it."""
    return dataclasses.field(init=False, default=default, default_factory=factory, metadata={"kept": True})


def state_of(thing: Any) -> dict[str, Any]:
    """The kept fields of a dataclass, by name."""
    values = {name: getattr(thing, name) for name in _kept_fields(thing)}
    return {
        name: value.state() if hasattr(value, "resume") else msgspec.to_builtins(value, str_keys=True)
        for name, value in values.items()
    }


def resume(thing: Any, state: dict[str, Any]) -> None:
    """Give a fresh dataclass the kept fields of another, whether or not they have been JSON meanwhile."""
    kind: Any = type(thing)
    for name in _kept_fields(thing):
        value = getattr(thing, name)
        if hasattr(value, "resume"):
            value.resume(state[name])
        else:
            setattr(thing, name, msgspec.convert(state[name], _type_hints(kind)[name], str_keys=True))


def undeclared(thing: Any) -> list[str]:
    """What a dataclass holds beside its fields: a state would not contain it."""
    return sorted(vars(thing).keys() - {field.name for field in dataclasses.fields(thing)})


def _kept_fields(thing: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(thing) if "kept" in field.metadata]


@functools.cache
def _type_hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)

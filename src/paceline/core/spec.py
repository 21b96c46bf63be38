"""Builds a named thing from one string, `name:key=value,key=value`, and says what would have worked when it cannot.

The things are dataclasses whose init fields are declared with `parameter(...)`; their type, range, choices, default
and meaning are read from there, so help texts and error messages cannot go out of date.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Protocol, TypeVar

from paceline.core.errors import ConfigurationError


class Buildable(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


T = TypeVar("T", bound=Buildable)


def parameter(
    default: Any,
    meaning: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """A dataclass field that can be set from a string. `least` and `most` are inclusive, `above` is not."""
    metadata = {"meaning": meaning, "least": least, "above": above, "most": most, "choices": choices}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """One settable field of a buildable class, as people read it."""

    name: str
    type: type
    optional: bool
    default: Any
    meaning: str
    least: float | None
    above: float | None
    most: float | None
    choices: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} ({self.kind}, default {self.default_text})"

    @property
    def default_text(self) -> str:
        return show(self.default)

    @property
    def kind(self) -> str:
        """Type and range in words."""
        if self.choices:
            return "|".join(self.choices)
        if self.type is bool:
            return "true|false"
        words = ["int" if self.type is int else "float"]
        if self.least is not None:
            words.append(f">= {self.least:g}")
        if self.above is not None:
            words.append(f"> {self.above:g}")
        if self.most is not None:
            words.append(f"<= {self.most:g}")
        if self.optional:
            words.append("or none")
        return " ".join(words)

    def parse(self, text: str) -> Any:
        """The value that this text stands for; ValueError if it stands for none."""
        if self.choices:
            if text not in self.choices:
                raise ValueError
            return text
        if self.optional and text == "none":
            return None
        if self.type is bool:
            return {"true": True, "false": False}[text.lower()]
        value = self.type(text)
        if not self._in_range(value):
            raise ValueError
        return value

    def allows(self, value: object) -> bool:
        """Whether the field may hold this value. An int will do where a float is wanted, but a bool is no number."""
        if value is None:
            return self.optional
        if self.choices:
            return isinstance(value, str) and value in self.choices
        if self.type is bool or isinstance(value, bool):
            return self.type is bool and isinstance(value, bool)
        return isinstance(value, (int, self.type)) and self._in_range(value)

    def _in_range(self, value: Any) -> bool:
        try:
            finite = math.isfinite(value)
        except OverflowError:  # an int beyond every float
            return False
        return (
            finite
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
        )

    def impossible(self, given: str) -> str:
        """The sentence for a value that this parameter cannot have."""
        return f"{given} is not possible; {self.name} is {self.kind}, default {self.default_text} ({self.meaning})"


def show(value: Any) -> str:
    """A value as one would type it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return str(value)


@functools.cache
def parameters(built: type[Buildable]) -> tuple[Parameter, ...]:
    """The settable fields of a class, in the order of their declaration."""
    hints = typing.get_type_hints(built)
    found = []
    for field in dataclasses.fields(built):
        if not field.init:
            continue
        hint = hints[field.name]
        optional = isinstance(hint, types.UnionType)
        found.append(
            Parameter(
                name=field.name,
                type=typing.get_args(hint)[0] if optional else hint,
                optional=optional,
                default=field.default,
                **field.metadata,
            )
        )
    return tuple(found)


def build(text: str, known: Mapping[str, type[T]], what: str) -> T:
    """The thing that `text` names, with its parameters set; ConfigurationError says what exists otherwise."""
    name, _, rest = text.partition(":")
    built = known.get(name)
    if built is None:
        raise ConfigurationError(f"unknown {what} {name!r}{_nearest(name, known)}; there are: {', '.join(known)}")
    settable = {expected.name: expected for expected in parameters(built)}
    values: dict[str, Any] = {}
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        if key not in settable:
            listing = "; ".join(map(str, settable.values())) or "none"
            raise ConfigurationError(
                f"{what} {name!r} has no parameter {key!r}{_nearest(key, settable)}; its parameters: {listing}"
            )
        if key in values:
            raise ConfigurationError(f"{what} {name!r}: parameter {key!r} is given twice")
        try:
            values[key] = settable[key].parse(value)
        except (ValueError, KeyError):
            given = f"{key}={value}" if equals else f"{key} without a value"
            raise ConfigurationError(f"{what} {name!r}: {settable[key].impossible(given)}") from None
    return built(**values)


def check(thing: Buildable, name: str, what: str) -> None:
    """See that a thing built from Python has parameters that a string could have given it; else ConfigurationError."""
    for expected in parameters(type(thing)):
        value = getattr(thing, expected.name)
        if not expected.allows(value):
            text = show(value) if value is None or isinstance(value, int | float | expected.type) else repr(value)
            raise ConfigurationError(f"{what} {name!r}: {expected.impossible(f'{expected.name}={text}')}")


def describe(thing: Buildable, name: str) -> str:
    """The string that builds this thing again: the name and every parameter that differs from its default."""
    changed = [
        f"{settable.name}={show(getattr(thing, settable.name))}"
        for settable in parameters(type(thing))
        if getattr(thing, settable.name) != settable.default
    ]
    return f"{name}:{','.join(changed)}" if changed else name


def _nearest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""

"""How often something is done: "30s", "5m", "10000 samples", "500 updates"."""

from __future__ import annotations

import re

import msgspec

from paceline.core.errors import ConfigurationError

SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Interval(msgspec.Struct, frozen=True):
    """One of these is given."""

    seconds: float | None = None
    samples: int | None = None
    updates: int | None = None

    def over(self, seconds: float, samples: int, updates: int) -> bool:
        """Whether so much since the last time is enough."""
        if self.seconds is not None:
            return seconds >= self.seconds
        if self.samples is not None:
            return samples >= self.samples
        return self.updates is not None and updates >= self.updates


def interval_of(text: str, what: str) -> Interval:
    """ConfigurationError, which names what it is the interval of, if it makes no sense."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|h|samples?|updates?)\s*", text)
    if found is None:
        raise ConfigurationError(
            f"{what} {text!r}: must be a time, samples or updates, as in 30s, 5m, '10000 samples' or '500 updates'"
        )
    number, unit = float(found[1]), found[2]
    if number <= 0 or (unit not in SECONDS and number != int(number)):
        raise ConfigurationError(f"{what} {text!r}: must be above 0, and a whole number of samples or updates")
    if unit in SECONDS:
        return Interval(seconds=number * SECONDS[unit])
    return Interval(samples=int(number)) if unit.startswith("sample") else Interval(updates=int(number))

"""How often something is done: "30s", "5m", "10000 samples", "500 updates"; and how long is waited: "5s..10m"."""

from __future__ import annotations

import re

import msgspec

from paceline.core.errors import ConfigurationError
from paceline.lifecycle.silence import Patience

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


def patience_of(text: str, what: str) -> Patience | None:
    """Of "5s": at least, "5s..10m": at least and at most, "..10m", or "off"."""
    if text.strip() == "off":
        return None
    time = r"(?:(\d+(?:\.\d+)?)\s*(s|m|h))"
    found = re.fullmatch(rf"\s*{time}?\s*(?:\.\.\s*{time})?\s*", text)
    if found is None or not text.strip():
        raise ConfigurationError(f"{what} {text!r}: must be a time, a range of times or off, as in 5s, 5s..10m, ..10m")
    usual = Patience()
    most = None if found[3] is None else float(found[3]) * SECONDS[found[4]]
    least = min(usual.least, most or usual.least) if found[1] is None else float(found[1]) * SECONDS[found[2]]
    if least <= 0 or (most is not None and most < least):
        raise ConfigurationError(f"{what} {text!r}: must begin above 0, and not end before that")
    return Patience(least, most)

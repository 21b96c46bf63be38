"""What a user's loop logs: gathered in the worker, and told as means about once a second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.core.errors import ConfigurationError

EVERY = 1.0  # seconds


class OwnFigures:
    def __init__(self, worker: int, now: float) -> None:
        self._worker = worker
        self._told_at = now
        self._means: dict[str, tuple[float, int]] = {}  # by name: since the last time, and of how many

    def add(self, figures: Mapping[str, Any]) -> None:
        if not isinstance(figures, Mapping):
            raise ConfigurationError(
                f"worker {self._worker}: worker.log({figures!r:.60}): must be a dict of numbers, as in"
                ' worker.log({"gradient norm": 1.3})'
            )
        for name, value in figures.items():
            mean, number = self._means.get(str(name), (0.0, 0))
            self._means[str(name)] = (mean + (self._number(name, value) - mean) / (number + 1), number + 1)

    def _number(self, name: str, value: Any) -> float:
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError):  # the last is torch's, of a tensor with several elements
            raise ConfigurationError(
                f"worker {self._worker}: worker.log of {name!r}: {value!r:.60} is not a number, nor a tensor of one"
            ) from None

    @property
    def any(self) -> bool:
        return bool(self._means)

    def due(self, now: float) -> bool:
        return self.any and now >= self._told_at + EVERY

    def means(self, now: float) -> dict[str, float]:
        """Of each figure since the last time; they begin anew."""
        means, self._means, self._told_at = self._means, {}, now
        return {name: mean for name, (mean, _) in means.items()}

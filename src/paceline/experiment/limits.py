"""When a run has done enough: what a user says, and what the work of a group is limited by."""

from __future__ import annotations

import math
from typing import NamedTuple

from paceline.core.errors import ConfigurationError
from paceline.lifecycle.work import Limit


class Limits(NamedTuple):
    """None: this does not limit a run."""

    epochs: int | None
    steps: int | None
    samples: int | None
    budget: float | None  # seconds

    def of_work(self, workers: int) -> Limit:
        """Of a group that begins with so many workers. A step is a full round: one batch of each."""
        return Limit(None if self.steps is None else self.steps * workers, self.samples)


def limits_of(epochs: int | None, steps: int | None, samples: int | None, budget: float | None) -> Limits:
    """One epoch, if nothing is said. ConfigurationError if a limit is impossible."""
    for what, value in (("epochs", epochs), ("steps", steps), ("samples", samples)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise ConfigurationError(f"{what} is {value!r}; it must be a whole number")
        if value is not None and value < 1:
            raise ConfigurationError(f"{what} is {value}; it must be at least 1")
    if budget is not None and (not isinstance(budget, int | float) or not 0 < budget < math.inf):
        raise ConfigurationError(f"budget is {budget!r}; it must be a number of seconds above 0")
    if epochs is None and steps is None and samples is None and budget is None:
        epochs = 1
    return Limits(epochs, steps, samples, budget)

"""How a run is watched while it goes on: one class to derive from, whatever one wants to see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.messages import PolicyChanged, Record, UpdateRule

if TYPE_CHECKING:  # the writer of that file is an observer itself
    from paceline.recording.progress_log import Evaluation, Failure, Logged, Measurement


class Observer:
    """Derive from it, and override what you want to see. All methods are called from the loop of the run: be quick."""

    tells = False  # whether it shows people what happens: then nobody else says the same

    def starting(self, line: str) -> None:
        """The processes of a run take more than a moment to start, and this is what they are at."""

    def begun(self, rule: UpdateRule) -> None:
        """A run that trains begins, and this is how its updates are made."""

    def goes_on_with(self, changed: PolicyChanged) -> None:
        """A run that is resumed goes on with the policy that it had changed to before."""

    def observe(self, record: Record) -> None:
        """One event with the commands that follow from it, before they are carried out."""

    def measured(self, measurement: Measurement) -> None:
        """How far a real run is, a few times a second, and also when nothing happens."""

    def evaluated(self, evaluation: Evaluation) -> None:
        """What an evaluation found."""

    def logged(self, logged: Logged) -> None:
        """Figures of a loop's own."""

    def worker_failed(self, failure: Failure) -> None:
        """A worker died."""

    def checkpointed(self, path: Path) -> None:
        """A checkpoint was written, whole, to this directory."""


def observe_methods(observers: Sequence[Observer]) -> tuple[Callable[[Record], None], ...]:
    """The `observe` of every observer that has one of its own: a call that does nothing costs time at every event."""
    return tuple(observer.observe for observer in observers if type(observer).observe is not Observer.observe)

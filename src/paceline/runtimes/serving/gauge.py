"""How far a run is: put together for the observers, a few times a second."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paceline.core.messages import PolicyChanged, UpdateRule
from paceline.lifecycle.lifecycle import Lifecycle
from paceline.recording.observer import Observer
from paceline.recording.progress_log import Evaluation, Failure, Logged, Measurement
from paceline.runtimes.serving.holding import Store

TICK = 0.25  # seconds between two measurements
SMOOTHING = 0.05  # weight of the latest loss in the running mean


class Gauge:
    def __init__(self, observers: Sequence[Observer], epochs: int | None) -> None:
        self._observers = observers
        self._epochs = epochs
        self._loss: float | None = None
        self._next = 0.0

    def starting(self, line: str) -> None:
        for observer in self._observers:
            observer.starting(line)

    def begin(self, rule: UpdateRule, changed: PolicyChanged | None) -> None:
        for observer in self._observers:
            observer.begun(rule)
            if changed is not None:
                observer.goes_on_with(changed)

    def note_loss(self, loss: float | None) -> None:
        if loss is not None:
            self._loss = loss if self._loss is None else self._loss + SMOOTHING * (loss - self._loss)

    def measure_if_due(self, store: Store, lifecycle: Lifecycle, now: float) -> None:
        if now >= self._next:
            self._next = now + TICK
            self.measure(store, lifecycle, now)

    def measure(self, store: Store, lifecycle: Lifecycle, now: float) -> None:
        ledger, changed = lifecycle.samples.ledger, lifecycle.coordinator.changed
        measurement = Measurement(
            seconds=now,
            samples=store.samples,
            epoch=None if ledger is None else (ledger.applied + ledger.dropped) / ledger.samples,
            epochs=self._epochs,
            updates=store.version,
            workers=len(lifecycle.members),
            learning_rate=store.learning_rate,
            loss=self._loss,
            digest=store.digest,
            policy="" if changed is None else changed.policy,
            chosen_by="" if changed is None else changed.by,
        )
        for observer in self._observers:
            observer.measured(measurement)

    def tell(self, evaluation: Evaluation) -> None:
        for observer in self._observers:
            observer.evaluated(evaluation)

    def tell_logged(self, logged: Logged) -> None:
        for observer in self._observers:
            observer.logged(logged)

    def tell_failure(self, failure: Failure) -> None:
        for observer in self._observers:
            observer.worker_failed(failure)

    def tell_checkpoint(self, path: Path) -> None:
        for observer in self._observers:
            observer.checkpointed(path)

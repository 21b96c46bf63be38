"""Checkpoints of a local run: when, of what, and into which directory.

Training is held up for one copy of what is kept; a thread writes it. What only the workers know (random numbers, their
place in batches of their own, buffers) is theirs to tell, and consistent only when they push. So when a checkpoint is
due, every worker is asked to send it along with its next push, and once all have, the copy is made.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from safetensors import safe_open
from torch import Tensor

from paceline.core.errors import PacelineError
from paceline.lifecycle.lifecycle import Lifecycle
from paceline.lifecycle.resumption import state_of
from paceline.recording.progress_log import Evaluation
from paceline.runtimes.intervals import Interval
from paceline.runtimes.serving.port import ProcessPort
from paceline.training.checkpoint import Facts, Snapshot, checkpoints_in, save_state, snapshot_of, write_checkpoint

BEST, WORTH = "best.safetensors", "worth"
PATIENCE = 30.0  # seconds that a checkpoint waits for workers to tell what they know
LAST_WORDS = 5.0  # and one of a run that somebody ends

Written = TypeVar("Written")


class CheckpointFailedError(PacelineError):
    """A checkpoint could not be written; the message says why, and which one is the last good one."""


class Figure(NamedTuple):
    name: str
    value: float

    @property
    def worth(self) -> float:
        """The more, the better."""
        return -self.value if self.name == "loss" else self.value


def figure_of(figures: Mapping[str, float]) -> Figure | None:
    """By which states are compared: the accuracy, else the loss, else whatever came first."""
    known = [name for name in ("accuracy", "loss", *figures) if name in figures and math.isfinite(figures[name])]
    return Figure(known[0], figures[known[0]]) if known else None


def _worth_of(path: Path) -> float | None:
    """Of the best state of a run that is resumed."""
    if not path.exists():
        return None
    with safe_open(path, "pt") as file:
        return float((file.metadata() or {}).get(WORTH, "-inf"))


class CheckpointOptions(NamedTuple):
    directory: Path
    every: Interval
    keep: int  # so many of the newest
    facts: Callable[[], dict[str, Any]]  # those that the server does not know


class Checkpoints:
    def __init__(
        self, options: CheckpointOptions, lifecycle: Lifecycle, port: ProcessPort, tell: Callable[[Path], None]
    ) -> None:
        """`tell`: called with every checkpoint that is written."""
        self._directory, self._every, self._keep, self._facts = options
        self._lifecycle = lifecycle
        self._port = port
        self._tell = tell
        self._writer = ThreadPoolExecutor(1, "paceline checkpoints")
        self._writing: Future[Path] | None = None
        self._last = (0.0, 0, 0)  # seconds, samples, updates
        self._saving: list[Future[None]] = []  # the best state
        self._best: float | None = None
        self._asked_at: float | None = None  # since when workers are asked what they know
        self._before_its_time = False

    def evaluated(self, evaluation: Evaluation, state: Callable[[], dict[str, Tensor]]) -> None:
        """Keep the state that was evaluated if it is the best so far. `state`: gives a copy of it."""
        figure = figure_of(evaluation.figures)
        if figure is None or (self._best is not None and figure.worth <= self._best):
            return
        self._best = figure.worth
        facts = {"samples": str(evaluation.samples), "updates": str(evaluation.version), figure.name: str(figure.value)}
        self._saving.append(
            self._writer.submit(save_state, state(), self._directory / BEST, {**facts, WORTH: repr(figure.worth)})
        )

    def resumed_at(self, seconds: float, samples: int, updates: int) -> None:
        self._last = seconds, samples, updates
        self._best = _worth_of(self._directory / BEST)

    def look(self, now: float) -> None:
        """Between two events: begin one if it is due, and finish it if all is known."""
        self._report()
        store = self._port.store
        seconds, samples, updates = self._last
        if self._asked_at is None:
            due = self._every.over(now - seconds, store.samples - samples, store.version - updates)
            if due and store.version > updates and self._writing is None:
                self._asked_at = now
                self._port.ask_what_they_know()
        elif self._all_have_told() or now > self._asked_at + PATIENCE:
            self._begin(now)

    def ask_for_last_words(self, now: float) -> None:
        """The run is about to be ended before its time."""
        self._asked_at, self._before_its_time = now, True
        self._port.ask_what_they_know()

    def has_last_words(self, now: float) -> bool:
        assert self._asked_at is not None
        return self._all_have_told() or now > self._asked_at + LAST_WORDS

    def _all_have_told(self) -> bool:
        told = self._port.told
        return all(seat.index in told for seat in self._lifecycle.members.values())

    def _begin(self, now: float) -> None:
        snapshot = self._snapshot(now)
        self._asked_at = None
        self._port.enough()
        self._last = now, snapshot.facts.samples, snapshot.facts.updates
        self._writing = self._writer.submit(self._write, snapshot)

    def _snapshot(self, now: float) -> Snapshot:
        store = self._port.store
        facts = Facts(
            seconds=now,
            samples=store.samples,
            updates=store.version,
            lifecycle=state_of(self._lifecycle),
            **self._facts(),
        )
        return snapshot_of(facts, self._port.model_state(), self._port.kept())

    def _write(self, snapshot: Snapshot) -> Path:
        written = write_checkpoint(self._directory, snapshot)
        for old in checkpoints_in(self._directory)[: -self._keep]:
            shutil.rmtree(old, ignore_errors=True)
        return written

    def _report(self) -> None:
        """Say so if the last one could not be written."""
        if self._writing is not None and self._writing.done():
            writing, self._writing = self._writing, None
            self._tell(self._check(writing))
        while self._saving and self._saving[0].done():
            self._check(self._saving.pop(0))

    def _check(self, writing: Future[Written]) -> Written:
        try:
            return writing.result()
        except OSError as problem:
            good = checkpoints_in(self._directory)
            last = f"the last good one is {good[-1]}" if good else "there is none before it"
            raise CheckpointFailedError(
                f"a checkpoint could not be written: {problem.strerror or problem}; {last}"
            ) from None

    def close(self, ended_at: float | None) -> None:
        """Write how the run ended, unless it failed, and wait until all is written."""
        try:
            if self._writing is not None:
                writing, self._writing = self._writing, None
                self._tell(self._check(writing))
            for saving in self._saving:
                self._check(saving)
            if ended_at is not None and self._port.aggregation is not None and self._worth_keeping():
                self._tell(self._check(self._writer.submit(self._write, self._snapshot(ended_at))))
        finally:
            self._writer.shutdown()

    def _worth_keeping(self) -> bool:
        """Not where an earlier checkpoint knows more than this one would: what only workers know."""
        if self._before_its_time and not self._all_have_told():
            return not checkpoints_in(self._directory)
        return self._port.store.version > 0

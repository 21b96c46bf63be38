"""Puts together what a page says about a run, from its trace and its metrics: at its end, or while they grow."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from paceline.core.messages import PolicyChanged, Record, UpdateRule
from paceline.experiment.advice import ITERATIONS_FOR_ADVICE, advice_on
from paceline.experiment.balance import begun_ledger
from paceline.experiment.configuration import CONFIGURATION, Configuration
from paceline.experiment.repeating import steps
from paceline.experiment.report_curves import best_figures, choice_curves, curves_of
from paceline.experiment.run_status import began
from paceline.recording.bill import Billing
from paceline.recording.course import Course
from paceline.recording.iteration_times import IterationTimes, in_parts
from paceline.recording.ledger import Ledger
from paceline.recording.metrics import RunMetrics
from paceline.recording.newest_answer import NewestAnswer
from paceline.recording.observer import Observer
from paceline.recording.progress_log import Failure, Line
from paceline.recording.status import FINISHED, KILLED, STOPPED, as_text
from paceline.recording.trace import Header, Trace, trace_in
from paceline.report.contents import Advice, Contents

HAS_DONE_ALL = {FINISHED: True, STOPPED: False, KILLED: False}


class Facts(NamedTuple):
    """What is known of a run without looking at what happened."""

    run: Path
    told: Configuration | None
    state: str
    header: Header
    price: float | None = None  # of a worker for an hour


def simulated_in(directory: Path) -> dict[str, Any]:
    """The configuration of a simulation; empty: it is none."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        found = msgspec.json.decode((directory / CONFIGURATION).read_bytes())
        return found if isinstance(found, dict) and "simulation" in found else {}
    return {}


class Seen(Observer):
    """All that look at a trace, in one pass. Ask for the contents of a page at any time."""

    def __init__(self, directory: Path | None, trace: Trace | None) -> None:
        """`directory`: of the run, if there is more of it than a trace."""
        self.policy = "" if trace is None else trace.header.policy
        self.metrics, self.billing, self.course = RunMetrics(), Billing(self.policy), Course()
        whole = directory is not None and trace is not None
        self.ledger, self._again = begun_ledger(directory, trace) if whole else (Ledger(), 0)  # type: ignore[arg-type]
        self._in_a_run = whole
        self.lines: list[Line] = []  # of the metrics
        self._rule: UpdateRule | None = None  # of updates, since another policy took over
        self.times, self.newest_answer = IterationTimes(), NewestAnswer()
        self.end = 0.0

    def observe(self, record: Record) -> None:
        """LookupError if it does not follow from those before it."""
        if record.now < self.end:
            raise LookupError
        for observer in (self.metrics, self.billing, self.course, self.ledger, self.times, self.newest_answer):
            observer.observe(record)
        if isinstance(record.event, PolicyChanged) and record.event.updates is not None:
            self._rule = record.event.updates
        self.end = record.now

    def advice(self, end: float) -> Callable[[], Advice | None]:
        """Call what it gives, also in another thread: that takes seconds."""
        workers, seconds = in_parts(self.times.workers(), end, ITERATIONS_FOR_ADVICE)
        run = self.metrics.summary(self.policy, end)
        return partial(advice_on, self.policy, workers, seconds, end, self.times.costs, run if run.changes else None)

    def curves(self) -> dict[str, Any]:
        return {**curves_of(self.lines), "choices": choice_curves(self.course.choices)}

    def contents(
        self, end: float, facts: Facts, course: dict[str, Any], advice: Advice | None, notes: list[str]
    ) -> Contents:
        """As if the run ended then."""
        run, told = facts.run, facts.told
        directory = run if run.is_dir() else run.parent
        balance = self.ledger.balance(self._again)
        rule = self._rule or facts.header.updates
        corrected = rule is not None and rule.correction != "none"
        return Contents(
            name=as_text(directory.resolve().name if run.is_dir() or trace_in(directory) == run else run.name),
            path=as_text(run),
            state=facts.state,
            began=time.strftime("%Y-%m-%d %H:%M", time.localtime(began(directory))),
            trained="" if told is None else told.origin.name if told.origin is not None else told.train,
            optimizer="" if rule is None else f"{rule.optimizer}{', stale gradients corrected' if corrected else ''}",
            summary=self.metrics.summary(facts.header.policy, end),
            bill=self.billing.bill(end),
            samples=balance.applied,
            curves=self.curves(),
            course=course,
            balance=balance if self._in_a_run else None,
            advice=advice,
            told=self.newest_answer.told,
            failures=[line for line in self.lines if isinstance(line, Failure)],
            settings=[*_settings("", simulated_in(run) if told is None else msgspec.to_builtins(told))],
            steps=[(what, as_text(how)) for what, how in steps(run, told, over=HAS_DONE_ALL.get(facts.state, True))],
            notes=[as_text(note) for note in notes],
            best=best_figures(self.lines),
            price=facts.price,
        )


def _settings(above: str, told: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Each with its name, as a path through the configuration."""
    for name, value in told.items():
        if isinstance(value, dict):
            yield from _settings(f"{above}{name}.", value)
        elif value is not None:
            yield f"{above}{name}", value if isinstance(value, str) else msgspec.json.encode(value).decode()

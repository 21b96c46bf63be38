"""Puts together what a report says, from run directories alone: finished, going on, killed, or only a trace."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from paceline import __version__
from paceline.core.errors import ConfigurationError
from paceline.core.messages import Record
from paceline.experiment.balance import begun_ledger
from paceline.experiment.configuration import CONFIGURATION, Configuration, read_configuration
from paceline.experiment.repeating import steps
from paceline.experiment.report_curves import best_figures, choice_curves, curves_of
from paceline.experiment.run_list import glance
from paceline.experiment.run_status import began, is_run
from paceline.experiment.simulation import policy_for
from paceline.experiment.whatif import recommendation, recorded_workers, simulated_again
from paceline.policies import POLICIES
from paceline.policies import policy as build_policy
from paceline.policies.auto import Auto
from paceline.recording.bill import Billing
from paceline.recording.course import Course
from paceline.recording.ledger import Balance, Ledger
from paceline.recording.lines import write_privately
from paceline.recording.metrics import RunMetrics, Summary
from paceline.recording.observer import Observer
from paceline.recording.progress_log import Failure, Line, read_line
from paceline.recording.status import FINISHED, GOING_ON, KILLED, STOPPED, UNREADABLE
from paceline.recording.trace import Trace, UnreadableTraceError, trace_in
from paceline.report.contents import Advice, Contents
from paceline.report.page import page_of

REPORT = "report.html"
RECORDS_FOR_ADVICE = 8_000  # of the beginning of a trace: simulating all policies with them takes about a second
WORTH_A_WORD = 20_000_000  # bytes of a trace: about two seconds
AT_THE_END = {FINISHED: True, STOPPED: False, KILLED: False}


def write_report(runs: Sequence[Contents], path: Path) -> None:
    try:
        write_privately(path, page_of(runs, __version__).encode())
    except OSError as problem:
        raise ConfigurationError(f"{path}: cannot be written: {problem.strerror}") from None


def report_at_the_end(directory: Path) -> None:
    """Of a run that has just ended. Whatever goes wrong with it is told, and does no harm to the run."""
    try:
        if trace_in(directory).stat().st_size > WORTH_A_WORD:
            print(f"paceline: making {directory / REPORT}; Ctrl-C leaves it out", file=sys.stderr, flush=True)
        write_report([read_run(directory)], directory / REPORT)
    except KeyboardInterrupt:  # of an impatient user: the run itself has ended, and its result must not be lost
        print(f"paceline: left out; `paceline report {directory}` makes it", file=sys.stderr, flush=True)
    except Exception as problem:  # the run is done, and nothing that is looked at afterwards may undo that
        said = str(problem) if isinstance(problem, ConfigurationError) else f"{type(problem).__name__}: {problem}"
        print(f"paceline: no report was made: {said}; try `paceline report {directory}`", file=sys.stderr, flush=True)


def read_run(run: Path, price: float | None = None) -> Contents:
    """ConfigurationError if this is no run; whatever can be read of one that is damaged, with a note."""
    directory = run if run.is_dir() else None
    if directory is not None and not is_run(directory):
        below = sorted((path for path in directory.iterdir() if path.is_dir() and is_run(path)), key=began)
        hint = f"; there are runs below, the newest is {below[-1]}" if below else ""
        raise ConfigurationError(f"{directory}: is not a run directory{hint}")
    path = run if directory is None else trace_in(directory)
    notes: list[str] = []
    told = None if directory is None else _configuration(directory, notes)
    trace = _opened(path, directory is not None, notes)
    if trace is None:
        return _without_records(run, told, notes, price)
    return _whole(run, directory, told, trace, notes, price)


def _opened(path: Path, in_a_run: bool, notes: list[str]) -> Trace | None:
    """None: the run has not written anything yet."""
    try:
        if in_a_run and (not path.exists() or path.stat().st_size == 0):
            notes.append("This run has not begun: there is nothing in its trace.")
            return None
        return Trace(path, allow_cut_off=True)
    except IsADirectoryError:
        raise ConfigurationError(f"{path}: is a directory, and should be a trace") from None


def _configuration(directory: Path, notes: list[str]) -> Configuration | None:
    if not (directory / CONFIGURATION).exists():
        return None
    try:
        return read_configuration(directory)
    except ConfigurationError as problem:
        if not _simulated(directory):
            notes.append(f"{problem}.")
        return None


def _simulated(directory: Path) -> dict[str, Any]:
    """The configuration of a simulation; empty: it is none."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        found = msgspec.json.decode((directory / CONFIGURATION).read_bytes())
        return found if isinstance(found, dict) and "simulation" in found else {}
    return {}


def _without_records(run: Path, told: Configuration | None, notes: list[str], price: float | None) -> Contents:
    policy = "" if told is None else told.policy
    return Contents(
        **_facts(run, told),
        state=glance(run).state,
        optimizer="",
        summary=RunMetrics().summary(policy, 0.0),
        bill=Billing(policy).bill(0.0),
        samples=0,
        curves={},
        course=Course().data(0.0),
        balance=None,
        advice=None,
        failures=[],
        notes=notes,
        price=price,
        steps=[],
    )


class _Seen:
    """All that look at a trace, in one pass."""

    def __init__(self, directory: Path | None, trace: Trace) -> None:
        self._trace = trace
        self.metrics, self.billing, self.course = RunMetrics(), Billing(trace.header.policy), Course()
        self.ledger, self.again = (Ledger(), 0) if directory is None else begun_ledger(directory, trace)
        self.end = 0.0

    def walk(self, notes: list[str], most: int | None = None) -> int | None:
        """As far as the trace can be read; returns the number of the record that cannot be understood, if there is one.
        `most`: so many records."""
        observers: tuple[Observer, ...] = (self.metrics, self.billing, self.course, self.ledger)
        number = 0
        try:
            for record in islice(self._trace, most):
                if record.now < self.end:
                    raise LookupError
                for observer in observers:
                    observer.observe(record)
                self.end = record.now
                number += 1
        except UnreadableTraceError as problem:
            notes.append(f"{problem}. What is before that is shown.")
        except LookupError:  # it speaks of a worker or a gradient that nobody has heard of
            line = f"{self._trace.path}, line {number + 2}"
            notes.append(f"{line}: does not follow from what is before it, which is shown.")
            return number
        return None


def _whole(
    run: Path, directory: Path | None, told: Configuration | None, trace: Trace, notes: list[str], price: float | None
) -> Contents:
    policy = trace.header.policy
    seen = _Seen(directory, trace)
    broken = seen.walk(notes)
    if broken is not None:  # some have seen half of that record
        seen = _Seen(directory, trace)
        seen.walk([], broken)
    end = seen.end
    state = "" if directory is None else glance(directory).state
    state = "" if state == UNREADABLE else state
    end = max(end, trace.end or 0.0)
    notes += _notes(state, trace, end)
    lines = [] if directory is None else _lines(directory / "metrics.jsonl", notes)
    summary, balance = seen.metrics.summary(policy, end), seen.ledger.balance(seen.again)
    return Contents(
        **_facts(run, told),
        state=state,
        optimizer=_optimizer(trace),
        summary=summary,
        bill=seen.billing.bill(end),
        samples=balance.applied,
        curves={**curves_of(lines), "choices": choice_curves(seen.course.choices)},
        course=seen.course.close(end).data(end),
        balance=None if directory is None else balance,
        advice=_advice(trace, summary),
        failures=[line for line in lines if isinstance(line, Failure)],
        notes=notes,
        best=best_figures(lines),
        price=price,
        steps=[*steps(run, told, over=AT_THE_END.get(state, True))],
    )


def _facts(run: Path, told: Configuration | None) -> dict[str, Any]:
    """What is known without looking at what happened."""
    directory = run if run.is_dir() else run.parent
    name = directory.resolve().name if run.is_dir() or trace_in(directory) == run else run.name
    return {
        "name": name,
        "path": str(run),
        "began": time.strftime("%Y-%m-%d %H:%M", time.localtime(began(directory))),
        "trained": "" if told is None else told.origin.name if told.origin is not None else told.train,
        "settings": list(_settings("", _simulated(directory) if told is None else msgspec.to_builtins(told))),
    }


def _settings(above: str, told: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Each with its name, as a path through the configuration."""
    for name, value in told.items():
        if isinstance(value, dict):
            yield from _settings(f"{above}{name}.", value)
        elif value is not None:
            yield f"{above}{name}", value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _notes(state: str, trace: Trace, end: float) -> Iterator[str]:
    if state in GOING_ON:
        yield f"This run goes on: this is how it was {end:.1f} s after it began."
    elif state == KILLED:
        yield "This run was killed: what was written until then is shown."
    elif trace.cut_off:
        yield "The trace is cut off: its closing line is missing. What is there is shown."
    if state == STOPPED:
        yield "This run was ended before its work was done."


def _optimizer(trace: Trace) -> str:
    rule = trace.header.updates
    if rule is None:
        return ""
    return rule.optimizer if rule.correction == "none" else f"{rule.optimizer}, stale gradients corrected"


def _lines(path: Path, notes: list[str]) -> list[Line]:
    if not path.exists():
        return []
    found: list[Line] = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        try:
            if line.endswith(b"\n"):
                found.append(read_line(line))
        except (msgspec.DecodeError, UnicodeDecodeError) as problem:
            notes.append(f"{path}, line {number} is damaged ({problem}); what is before it is shown.")
            break
    return found


def _advice(trace: Trace, summary: Summary) -> Advice | None:
    """From the beginning of the run, so that a long one is not simulated eight times over."""
    with contextlib.suppress(UnreadableTraceError):
        records: list[Record] = []
        with contextlib.suppress(UnreadableTraceError):  # damaged further on, which was noted
            records.extend(islice(trace, RECORDS_FOR_ADVICE))
        workers = recorded_workers(records)
        seconds = summary.seconds if len(records) < RECORDS_FOR_ADVICE else records[-1].now
        if len(workers) < 2 or seconds <= 0:
            return None
        recorded = _recorded(trace.header.policy)
        if recorded is None:
            return None
        summaries = simulated_again(workers, seconds, list(_policies(recorded, len(workers))))
        return Advice(summaries, recommendation(summaries, recorded), seconds)
    return None


def _recorded(policy: str) -> str | None:
    try:
        return str(build_policy(policy))
    except ConfigurationError:  # one that only its author has
        return None


def _policies(recorded: str, workers: int) -> Iterator[str]:
    """The recorded one first, and all others that can work with so many workers, as they are without a word. One that
    chooses among the others is no answer to the question which of them is best."""
    yield recorded
    for name in POLICIES:
        if name == Auto.name:
            continue
        with contextlib.suppress(ConfigurationError):
            chosen = str(policy_for(name, workers))
            if chosen != recorded:
                yield name


def figures_of(run: Contents, story: Sequence[str]) -> dict[str, Any]:
    """What `paceline report --json` prints of a run."""
    bill: dict[str, Any] = msgspec.to_builtins(run.bill)
    bill |= {"lost": run.bill.lost, "lost_share": run.bill.lost_share}
    if run.price is not None:
        bill |= {"price": run.price, "cost": run.cost(run.bill.worker_seconds), "lost_cost": run.cost(run.bill.lost)}
        for item in bill["items"]:
            item["cost"] = run.cost(item["seconds"])
    balance: Balance | None = run.balance
    return {
        "run": run.path,
        "state": run.state,
        "story": list(story),
        "summary": run.summary,
        "samples": run.samples,
        "bill": bill,
        "ledger": balance,
        "whatif": None if run.advice is None else run.advice.summaries,
        "failures": run.failures,
        "notes": run.notes,
    }

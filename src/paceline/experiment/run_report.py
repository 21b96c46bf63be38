"""Puts together what a report says, from run directories alone: finished, going on, killed, or only a trace."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from paceline import __version__
from paceline.core.errors import ConfigurationError
from paceline.experiment.configuration import CONFIGURATION, Configuration, read_configuration
from paceline.experiment.run_list import glance
from paceline.experiment.run_seen import Facts, Seen, simulated_in
from paceline.experiment.run_status import began, is_run
from paceline.recording.ledger import Balance
from paceline.recording.lines import write_privately
from paceline.recording.progress_log import Line, read_line
from paceline.recording.status import GOING_ON, KILLED, STOPPED, UNREADABLE
from paceline.recording.trace import FORMAT, Header, Trace, UnreadableTraceError, trace_in
from paceline.report.contents import Contents
from paceline.report.page import page_of

REPORT = "report.html"
WORTH_A_WORD = 20_000_000  # bytes of a trace: about two seconds


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
        if not simulated_in(directory):
            notes.append(f"{problem}.")
        return None


def _without_records(run: Path, told: Configuration | None, notes: list[str], price: float | None) -> Contents:
    header, seen = Header(FORMAT, "" if told is None else told.policy), Seen(None, None)
    facts = Facts(run, told, glance(run).state, header, price)
    return msgspec.structs.replace(seen.contents(0.0, facts, seen.course.data(0.0), None, notes), steps=[])


def _walk(seen: Seen, trace: Trace, notes: list[str], most: int | None = None) -> int | None:
    """As far as the trace can be read; returns the number of the record that cannot be understood, if there is one.
    `most`: so many records."""
    number = 0
    try:
        for record in islice(trace, most):
            seen.observe(record)
            number += 1
    except UnreadableTraceError as problem:
        notes.append(f"{problem}. What is before that is shown.")
    except (LookupError, ArithmeticError, ValueError, MemoryError):
        # It speaks of a worker or a gradient that nobody has heard of, or has numbers that cannot be.
        line = f"{trace.path}, line {number + 2}"
        notes.append(f"{line}: does not follow from what is before it, which is shown.")
        return number
    return None


def _whole(
    run: Path, directory: Path | None, told: Configuration | None, trace: Trace, notes: list[str], price: float | None
) -> Contents:
    seen = Seen(directory, trace)
    broken = _walk(seen, trace, notes)
    if broken is not None:  # some have seen half of that record
        seen = Seen(directory, trace)
        _walk(seen, trace, [], broken)
    state = "" if directory is None else glance(directory).state
    state = "" if state == UNREADABLE else state
    end = max(seen.end, trace.end or 0.0)
    notes += _notes(state, trace, end)
    lines = [] if directory is None else _lines(directory / "metrics.jsonl", notes)
    seen.lines += [line for line in lines if line.seconds <= end] if trace.cut_off and state not in GOING_ON else lines
    facts = Facts(run, told, state, trace.header, price)
    return seen.contents(end, facts, seen.course.data(end), seen.advice(end)(), notes)


def _notes(state: str, trace: Trace, end: float) -> Iterator[str]:
    if state in GOING_ON:
        yield f"This run goes on: this is how it was {end:.1f} s after it began."
    elif state == KILLED:
        yield "This run was killed: what was written until then is shown."
    elif trace.cut_off:
        yield "The trace is cut off: its closing line is missing. What is there is shown."
    if state == STOPPED:
        yield f"This run was ended before its work was done{f': {trace.why}' if trace.why else ''}."


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

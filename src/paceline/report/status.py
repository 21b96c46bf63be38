"""How a run, and the runs of a directory, look on a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from paceline.recording.status import (
    FINISHED,
    GOING_ON,
    KILLED,
    RUNNING,
    STARTING,
    STOPPED,
    UNREADABLE,
    WAITS,
    RunStatus,
)
from paceline.report.live import MOST_ROWS, figure, progress_line, worker_table

STYLES = {STARTING: "cyan", RUNNING: "green", FINISHED: "", STOPPED: "yellow", KILLED: "red", UNREADABLE: "red"}
WIDE, NARROW = 120, 100  # columns
FAILURES = 5  # that are told one by one


def status_view(status: RunStatus, width: int, *, wrap: bool = True) -> RenderableType:
    """`wrap`: reasons are shown whole. In a view that is drawn again and again each worker has one line."""
    parts: list[RenderableType] = [
        Text.assemble((status.run, "bold"), "  ", (status.state, STYLES[status.state])),
        Text(", ".join(setting(status)), style="dim"),
    ]
    if status.seconds:
        parts.append(Text(run_line(status)))
    if status.workers:
        shown = [worker.as_row() for worker in status.workers[:MOST_ROWS]]
        parts.append(worker_table(shown, 16 if width >= WIDE else 10, wrap=wrap))
        parts.append(Text(figures_are_over(status), style="dim"))
    parts += [Text(line, style=style) for line, style in remarks(status)]
    return Group(*parts)


def run_line(status: RunStatus) -> str:
    """How far it is."""
    if status.measurement is not None and status.state in GOING_ON:
        now = msgspec.structs.replace(status.measurement, seconds=status.seconds, samples=status.samples)
        return progress_line(now, {}, status.samples_per_second or None)
    rate = status.samples / status.seconds
    return f"{duration(status.seconds)}, {status.samples:,} samples, {rate:,.0f} samples/s, {status.updates:,} updates"


def setting(status: RunStatus) -> Iterator[str]:
    if status.policy:
        yield in_force(status)
    if status.optimizer:
        yield status.optimizer
    if status.correction and status.correction != "none":
        yield f"stale gradients: {status.correction}"
    if status.workers_asked is not None:
        yield f"began with {status.workers_asked} workers" if status.workers_asked > 1 else "began with 1 worker"
    if status.cluster:
        yield f"on {status.cluster}"
    yield time.strftime("%Y-%m-%d %H:%M", time.localtime(status.began))


def in_force(status: RunStatus) -> str:
    """The policy, and how it came to be that one."""
    began = f"began with {status.began_with}" if status.began_with not in ("", status.chosen_by) else ""
    said = [f"chosen by {status.chosen_by}" if status.chosen_by else "", began]
    return f"{status.policy} ({', '.join(filter(None, said))})" if any(said) else status.policy


def figures_are_over(status: RunStatus, rows: int = MOST_ROWS) -> str:
    """`rows`: so many workers are shown."""
    more = len(status.workers) - rows
    hidden = f"and {more} more; " if more > 0 else ""
    unseen = f"{status.unseen} more did nothing in that time; " if status.unseen else ""
    span = "the whole run" if not status.since else f"the last {duration(status.seconds - status.since)}"
    ended = "workers as they were at its end; " if status.state in (STOPPED, KILLED) else ""
    return f"{hidden}{ended}samples/s, waited and stale (mean staleness) are over {span}; {unseen}".rstrip("; ")


def remarks(status: RunStatus) -> Iterator[tuple[str, str]]:
    """Each with its colour."""
    waits = [worker.latest_wait for worker in status.workers if worker.latest_wait and worker.state != WAITS]
    if waits:
        yield f"the latest wait, which is over: {waits[0]}", ""
    yield from lasting_remarks(status)


def lasting_remarks(status: RunStatus) -> Iterator[tuple[str, str]]:
    """Those that do not come and go from one second to the next."""
    for failure in status.failures[-FAILURES:]:
        yield str(failure), "yellow"
    if len(status.failures) > FAILURES:
        yield f"{len(status.failures)} workers died in all", "yellow"
    if status.evaluations:
        told = (
            f"{duration(found.seconds)} " + " ".join(figure(name, value) for name, value in found.figures.items())
            for found in status.evaluations
        )
        yield "evaluations: after " + "; ".join(told), ""
    if status.checkpoint is not None:
        yield f"checkpoint: {duration(status.checkpoint.age)} ago, of update {status.checkpoint.updates:,}", ""
    elif status.state == RUNNING:
        yield "checkpoint: none yet", ""
    yield from ((line, "") for line in _progress(status))


def _progress(status: RunStatus) -> Iterator[str]:
    if status.state == STARTING:
        yield "the workers are being started"
        return
    left = f"about {duration(status.seconds_left)} left" if status.seconds_left is not None else ""
    if status.samples_asked:
        done = f"{status.samples:,} of {status.samples_asked:,} samples ({status.samples / status.samples_asked:.0%})"
        pace = f" at {status.samples_per_second:,.0f} samples/s" if left else ""
        yield ", ".join(part for part in (done, left + pace) if part)
    elif left:
        yield left
    if status.state == KILLED:
        goes_on = (
            "there is no checkpoint to go on from"
            if status.checkpoint is None
            else "--resume goes on from its checkpoint"
        )
        yield f"its process ended without a word; {goes_on}"
    elif status.state == STOPPED and not status.seconds:
        yield "it ended before any worker had begun"
    if status.why:
        yield f"it was ended before its work was done: {status.why}"


def duration(seconds: float) -> str:
    """In the two largest units."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24:02d} h"


def runs_table(runs: Sequence[RunStatus], below: Path, width: int) -> Table:
    """A narrow one has shares of samples instead of numbers, and no updates."""
    wide = width >= NARROW
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), collapse_padding=True)
    table.add_column("run", overflow="fold")
    table.add_column("policy", overflow="fold")
    table.add_column("workers", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for heading in ("samples", *(["updates"] if wide else []), "evaluated"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("began", no_wrap=True)
    for run in runs:
        table.add_row(
            Text(str(Path(run.run).relative_to(below))),
            Text(run.problem or in_force(run), style="red" if run.problem else ""),
            "-" if run.workers_asked is None else str(run.workers_asked),
            Text(run.state, style=STYLES[run.state]),
            samples_done(run, wide),
            *([f"{run.updates:,}" if run.updates else "-"] if wide else []),
            evaluated(run),
            time.strftime("%m-%d %H:%M", time.localtime(run.began)),
        )
    return table


def samples_done(run: RunStatus, wide: bool) -> str:
    if not run.samples:
        return "-"
    if not run.samples_asked:
        return f"{run.samples:,}"
    share = f"{run.samples / run.samples_asked:.0%}"
    return f"{run.samples:,} ({share})" if wide else share


def evaluated(run: RunStatus) -> str:
    if not run.evaluations:
        return "-"
    figures = run.evaluations[-1].figures
    if "accuracy" in figures:
        return f"{figures['accuracy']:.1%}"
    return " ".join(figure(name, value) for name, value in list(figures.items())[:1]) or "-"

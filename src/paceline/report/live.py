"""A run while it goes on: one live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from paceline.core.messages import AT_THE_END, WorkerLeft
from paceline.recording.metrics import RunMetrics
from paceline.recording.progress_log import Evaluation, Measurement
from paceline.recording.trace import Record
from paceline.report.gantt import COMPUTING, STYLES, WAITING
from paceline.report.tables import percent

BAR = 24  # cells
MOST_WORKERS = 16
LINE_EVERY = 10.0  # seconds between two plain lines
EVALUATION_EVERY = 2.0  # and between two that tell of evaluations


class RunView(Protocol):
    """Whoever shows a run."""

    def observe(self, record: Record) -> None: ...

    def measured(self, measurement: Measurement) -> None: ...

    def evaluated(self, evaluation: Evaluation) -> None: ...


class LiveTable:
    def __init__(self, title: str, live: Live) -> None:
        self._title = title
        self._live = live
        self._metrics = RunMetrics()
        self._figures: dict[str, float] = {}

    def observe(self, record: Record) -> None:
        self._metrics.observe(record)
        lost = loss_of_a_worker(record)
        if lost:
            self._live.console.print(f"{self._title}: {lost}", highlight=False, markup=False, style="yellow")

    def evaluated(self, evaluation: Evaluation) -> None:
        self._figures = evaluation.figures

    def measured(self, measurement: Measurement) -> None:
        self._live.update(Group(*self._lines(measurement)), refresh=True)

    def _lines(self, now: Measurement) -> Iterator[Text | Table]:
        yield Text.assemble((self._title, "bold"), "  ", progress_line(now, self._figures))
        table = Table(box=None, pad_edge=False, show_header=True, header_style="dim")
        for heading in ("worker", "pushes", "samples/s", "waited"):
            table.add_column(heading, justify="right")
        table.add_column("")
        table.add_column("", overflow="ellipsis", no_wrap=True, ratio=1)
        members = self._metrics.members(now.seconds)
        for each in members[:MOST_WORKERS]:
            waited = round(min(1.0, each.waiting_share) * BAR)
            bar = Text.assemble((COMPUTING * (BAR - waited), STYLES[COMPUTING]), (WAITING * waited, STYLES[WAITING]))
            rate = each.samples / now.seconds if now.seconds else 0.0
            state = Text(each.reason or "waits", style="yellow") if each.waiting else Text("computes", style="green")
            table.add_row(str(each.worker), f"{each.pushes:,}", f"{rate:,.0f}", percent(each.waiting_share), bar, state)
        yield table
        if len(members) > MOST_WORKERS:
            yield Text(f"and {len(members) - MOST_WORKERS} more", style="dim")


class PlainLines:
    """One line now and then."""

    def __init__(self, title: str, console: Console) -> None:
        self._title = title
        self._console = console
        self._next = LINE_EVERY
        self._next_evaluation = 0.0

    def observe(self, record: Record) -> None:
        lost = loss_of_a_worker(record)
        if lost:
            self._print(lost)

    def evaluated(self, evaluation: Evaluation) -> None:
        if evaluation.seconds < self._next_evaluation:
            return
        self._next_evaluation = evaluation.seconds + EVALUATION_EVERY
        figures = ", ".join(figure(name, value) for name, value in evaluation.figures.items())
        self._print(f"{evaluation.seconds:.1f} s, {evaluation.samples:,} samples: {figures}")

    def measured(self, measurement: Measurement) -> None:
        if measurement.seconds >= self._next:
            self._next = measurement.seconds + LINE_EVERY
            self._print(progress_line(measurement, {}))

    def _print(self, line: str) -> None:
        self._console.print(f"{self._title}: {line}", highlight=False, markup=False, soft_wrap=True)


def loss_of_a_worker(record: Record) -> str:
    """In words, if somebody left who was not expected to."""
    match record.event:
        case WorkerLeft(worker, reason) if reason not in AT_THE_END:
            return f"worker {worker} left after {record.now:.1f} s: {reason}"
        case _:
            return ""


def progress_line(now: Measurement, figures: dict[str, float]) -> str:
    """How far a run is, in one line."""
    epoch = "" if now.epoch is None else f"epoch {min(now.epoch, now.epochs):.1f} of {now.epochs}"
    rate = now.samples / now.seconds if now.seconds else 0.0
    loss = "" if now.loss is None else f"training loss {now.loss:.3g}"
    found = [figure(name, value) for name, value in figures.items()]
    parts = [f"{now.seconds:.0f} s", epoch, f"{now.samples:,} samples", f"{rate:,.0f} samples/s", loss, *found]
    return ", ".join(part for part in parts if part)


def figure(name: str, value: float) -> str:
    return f"{name} {value:.1%}" if name == "accuracy" else f"{name} {value:.4g}"


@contextmanager
def view_of(title: str, console: Console, *, quiet: bool = False) -> Iterator[RunView | None]:
    """What suits the console: a live table, plain lines, or nothing."""
    if quiet:
        yield None
    elif console.is_terminal:
        waiting = Text(f"{title}  starting the workers", style="dim")
        with Live(waiting, console=console, auto_refresh=False, transient=True) as live:
            yield LiveTable(title, live)
    else:
        yield PlainLines(title, console)

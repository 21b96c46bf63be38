"""A run while it goes on: one live table on a terminal or in a notebook, plain lines elsewhere.

The loop of the run only hands over what there is to see; a thread of its own draws it, so that a slow terminal holds up
nobody.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from paceline.core.messages import (
    AT_THE_END,
    NO_CORRECTION_EXPECTED,
    PolicyChanged,
    UpdateRule,
    WentBack,
    WorkerJoined,
    WorkerLeft,
    WorkerSuspected,
)
from paceline.lifecycle.roster import SENT_AWAY
from paceline.recording.metrics import RunMetrics, WorkerNow
from paceline.recording.observer import Observer
from paceline.recording.progress_log import Evaluation, Failure, Logged, Measurement
from paceline.recording.trace import Record
from paceline.report.gantt import COMPUTING, STYLES, WAITING
from paceline.report.notebook import display
from paceline.report.tables import percent

BAR = 24  # cells
MOST_ROWS = 16  # workers in the live table
LINE_EVERY = 10.0  # seconds between two plain lines
EVALUATION_EVERY = 2.0  # and between two that tell of evaluations


class Snapshot(msgspec.Struct, frozen=True):
    """A run at one moment, as the live table shows it."""

    measurement: Measurement
    members: tuple[WorkerNow, ...]  # the first few
    more: int  # members that the table has no room for
    figures: Mapping[str, float]  # of the latest evaluation, and of the loops' own
    rule: str = ""  # how updates are made
    policy: str = ""  # in force, if it is not the one that the run began with


class Drawer:
    """A thread that draws what the run hands over: every line, and of several snapshots the latest.

    Leave its `with` block, and all is drawn and the thread has ended. What the drawing raises is raised once in the
    thread of the run: at the next hand-over, or at the end of the block.
    """

    def __init__(self, draw: Callable[[Sequence[str], Snapshot | str | None], None]) -> None:
        """`draw(lines, snapshot)`: print the lines; show the snapshot, if there is a new one. A snapshot of a run that
        has not begun is a line about its start."""
        self._draw = draw
        self._problem: BaseException | None = None
        self._changed = threading.Condition()  # guards the next three; nothing is drawn while it is held
        self._lines: list[str] = []
        self._snapshot: Snapshot | str | None = None
        self._ended = False
        # A daemon: if the terminal takes nothing, the second Ctrl-C ends the process all the same.
        self._thread = threading.Thread(target=self._run, name="paceline drawer", daemon=True)

    def __enter__(self) -> Drawer:
        self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()
        self._raise_problem()

    def print(self, line: str) -> None:
        self._raise_problem()
        with self._changed:
            self._lines.append(line)
            self._changed.notify()

    def show(self, snapshot: Snapshot | str) -> None:
        self._raise_problem()
        with self._changed:
            self._snapshot = snapshot
            self._changed.notify()

    def _raise_problem(self) -> None:
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem

    def _run(self) -> None:
        try:
            while self._draw_next():
                pass
        except BaseException as problem:  # a SystemExit too: rich raises it when nobody reads its output any more
            self._problem = problem

    def _draw_next(self) -> bool:
        """Draw what was handed over; False: the run has ended, and there is nothing left."""
        with self._changed:
            while not (self._lines or self._snapshot or self._ended):
                self._changed.wait()
            lines, self._lines = self._lines, []
            snapshot, self._snapshot = self._snapshot, None
        if not lines and snapshot is None:
            return False
        self._draw(lines, snapshot)
        return True


class _Teller(Observer):
    """Says what happens to workers, as it happens."""

    tells = True

    def __init__(self, title: str, drawer: Drawer) -> None:
        self._title = title
        self._drawer = drawer
        self._failed: set[int] = set()  # workers of which it was said why
        self._first_join: float | None = None  # when the group began
        self._rule = ""
        self._policy = ""  # in force, if it was changed

    def worker_failed(self, failure: Failure) -> None:
        self._failed.add(failure.worker)
        self._print(str(failure))

    def observe(self, record: Record) -> None:
        if isinstance(record.event, PolicyChanged):
            why = f": {record.event.why}" if record.event.why else ""
            self._print(f"{record.event.policy} takes over after {record.now:.1f} s{why}")
            self.goes_on_with(record.event)
        news = news_of_a_worker(record)
        if isinstance(record.event, WorkerJoined):
            self._first_join = record.now if self._first_join is None else self._first_join
            if record.now > self._first_join:
                news = f"worker {record.event.worker} joined after {record.now:.1f} s"
        if news and not (isinstance(record.event, WorkerLeft) and record.event.worker in self._failed):
            self._print(news)

    def goes_on_with(self, changed: PolicyChanged) -> None:
        # A policy that chooses others is in force all the while.
        self._title = changed.by or changed.policy
        self._policy = f"{changed.by} ({changed.policy})" if changed.by else changed.policy
        if changed.updates is not None:
            self._rule = rule_line(changed.updates)
            _tell_plainly(changed.updates, self._title, self._drawer)

    def _print(self, line: str) -> None:
        self._drawer.print(f"{self._title}: {line}")


class LiveTable(_Teller):
    def __init__(self, title: str, drawer: Drawer) -> None:
        super().__init__(title, drawer)
        self._metrics = RunMetrics()
        self._figures: Mapping[str, float] = {}
        self._logged: dict[str, dict[int, float]] = {}  # by name and worker: the latest

    def starting(self, line: str) -> None:
        self._drawer.show(line)

    def begun(self, rule: UpdateRule) -> None:
        self._rule = rule_line(rule)
        _tell_plainly(rule, self._title, self._drawer)

    def observe(self, record: Record) -> None:
        self._metrics.observe(record)
        super().observe(record)

    def evaluated(self, evaluation: Evaluation) -> None:
        self._figures = evaluation.figures

    def logged(self, logged: Logged) -> None:
        for name, value in logged.figures.items():
            self._logged.setdefault(name, {})[logged.worker] = value

    def measured(self, measurement: Measurement) -> None:
        members = self._metrics.members(measurement.seconds)
        shown = tuple(members[:MOST_ROWS])
        present = {member.worker for member in members}
        own = {name: mean_of(values, present) for name, values in self._logged.items()}
        figures = {**self._figures, **own}
        more = len(members) - len(shown)
        self._drawer.show(Snapshot(measurement, shown, more, figures, self._rule, self._policy))


def mean_of(values: Mapping[int, float], present: Set[int]) -> float:
    """Over the workers that are there; if none of them is, over all that there were."""
    counted = [value for worker, value in values.items() if worker in present] or list(values.values())
    return sum(counted) / len(counted)


class PlainLines(_Teller):
    """One line now and then."""

    def __init__(self, title: str, drawer: Drawer) -> None:
        super().__init__(title, drawer)
        self._next = LINE_EVERY
        self._next_evaluation = 0.0

    def starting(self, line: str) -> None:
        self._print(line)

    def begun(self, rule: UpdateRule) -> None:
        self._print(rule_line(rule))
        _tell_plainly(rule, self._title, self._drawer)

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


def rule_line(rule: UpdateRule) -> str:
    """How updates are made, in a few words."""
    corrected = "" if rule.correction == "none" else f", stale gradients: {rule.correction}"
    return f"{rule.optimizer}{corrected}"


def _tell_plainly(rule: UpdateRule, title: str, drawer: Drawer) -> None:
    if rule.doubt:
        drawer.print(f"{title}: {rule.doubt}")
    if rule.correction == "none" and rule.why not in NO_CORRECTION_EXPECTED:
        drawer.print(f"{title}: stale gradients are applied as they are: {rule.why}")


def news_of_a_worker(record: Record) -> str:
    """In words, if one left that was not expected to, or is silent, or all of them went back."""
    match record.event:
        case WorkerSuspected() | WentBack():
            return str(record.event)
        case WorkerLeft(worker, reason) if reason == SENT_AWAY:
            return f"worker {worker} was sent away after {record.now:.1f} s"
        case WorkerLeft(worker, reason) if reason not in AT_THE_END:
            return f"worker {worker} left after {record.now:.1f} s: {reason}"
        case _:
            return ""


def progress_line(now: Measurement, figures: Mapping[str, float], pace: float | None = None) -> str:
    """How far a run is, in one line. `pace`: samples per second lately; None: on average."""
    if now.epoch is None:
        epoch = ""
    elif now.epochs is None:
        epoch = f"epoch {now.epoch:.1f}"
    else:
        epoch = f"epoch {min(now.epoch, now.epochs):.1f} of {now.epochs}"
    average = now.samples / now.seconds if now.seconds else 0.0
    rate = average if pace is None else pace
    loss = "" if now.loss is None else f"training loss {now.loss:.3g}"
    found = [figure(name, value) for name, value in figures.items()]
    parts = [f"{now.seconds:.0f} s", epoch, f"{now.samples:,} samples", f"{rate:,.0f} samples/s", loss, *found]
    return ", ".join(part for part in parts if part)


def figure(name: str, value: float) -> str:
    return f"{name} {value:.1%}" if name == "accuracy" else f"{name} {value:.4g}"


def table_of(title: str, snapshot: Snapshot) -> Group:
    """A line about the run, and one row per worker."""
    run = Text.assemble((snapshot.policy or title, "bold"), "  ", progress_line(snapshot.measurement, snapshot.figures))
    rule = [Text(snapshot.rule, style="dim")] if snapshot.rule else []
    more = [Text(f"and {snapshot.more} more", style="dim")] if snapshot.more else []
    return Group(run, *rule, worker_table(snapshot.members), *more)


def worker_table(members: Sequence[WorkerNow], bar: int = BAR, *, wrap: bool = False) -> Table:
    """One row per worker. `wrap`: reasons are shown whole, over several lines if need be."""
    with_staleness = any(member.staleness is not None for member in members)
    table = Table(box=None, pad_edge=False, show_header=True, header_style="dim")
    for heading in ("worker", "pushes", "samples/s", "waited", *(["stale"] if with_staleness else [])):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("", ratio=1)  # the one that gives way where there is little room
    for member in members:
        waited = round(min(1.0, member.waiting_share) * bar)
        drawn = Text.assemble((COMPUTING * (bar - waited), STYLES[COMPUTING]), (WAITING * waited, STYLES[WAITING]))
        cells = [str(member.worker), f"{member.pushes:,}", f"{member.samples_per_second:,.0f}"]
        cells.append(percent(member.waiting_share))
        if with_staleness:
            cells.append("-" if member.staleness is None else f"{member.staleness:.1f}")
        doing = _doing(member)
        doing.no_wrap, doing.overflow = not wrap, "fold" if wrap else "ellipsis"
        table.add_row(*cells, drawn, doing)
    return table


def _doing(member: WorkerNow) -> Text:
    if member.apart:
        return Text(member.apart, style="dim")
    if member.waiting:
        return Text(member.reason or "waits", style="yellow")
    return Text("computes", style="green")


class Quiet(Observer):
    """Shows nothing at all."""

    def starting(self, line: str) -> None:
        pass


class OnlyTheStart(Observer):
    """Of a run that nobody watches: what its processes are at, where they take long to start."""

    def starting(self, line: str) -> None:
        print(f"paceline: {line}", file=sys.stderr, flush=True)


def sight_of(title: str, snapshot: Snapshot | str) -> RenderableType:
    return Text(f"{title}  {snapshot}", style="dim") if isinstance(snapshot, str) else table_of(title, snapshot)


@contextmanager
def view_of(title: str, console: Console, *, quiet: bool = False) -> Iterator[Observer]:
    """What suits the console: a live table, plain lines, or nothing."""
    first = sight_of(title, "starting the workers")
    if quiet:
        yield Quiet()
    elif console.is_jupyter:
        with Drawer(_drawing_in_a_notebook(title, display(first))) as drawer:
            yield LiveTable(title, drawer)
    elif console.is_terminal:
        with Live(first, console=console, auto_refresh=False, transient=True) as live:

            def draw(lines: Sequence[str], snapshot: Snapshot | str | None) -> None:
                for line in lines:
                    console.print(line, highlight=False, markup=False, style="yellow")
                if snapshot is not None:
                    live.update(sight_of(title, snapshot), refresh=True)

            with Drawer(draw) as drawer:
                yield LiveTable(title, drawer)
    else:
        with Drawer(lambda lines, _: _print_plainly(lines, console)) as drawer:
            yield PlainLines(title, drawer)


def _drawing_in_a_notebook(
    title: str, show: Callable[[RenderableType], None]
) -> Callable[[Sequence[str], Snapshot | str | None], None]:
    """The latest snapshot, and all lines so far below it. What stays in the end has the workers as they last were."""
    said: list[Text] = []
    seen: list[RenderableType] = []
    members: tuple[WorkerNow, ...] = ()

    def draw(lines: Sequence[str], snapshot: Snapshot | str | None) -> None:
        nonlocal members
        said.extend(Text(line, style="yellow") for line in lines)
        if isinstance(snapshot, Snapshot):
            members = snapshot.members or members
            snapshot = msgspec.structs.replace(snapshot, members=members)
        seen[:] = seen if snapshot is None else [sight_of(title, snapshot)]
        show(Group(*seen, *said))

    return draw


def _print_plainly(lines: Sequence[str], console: Console) -> None:
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

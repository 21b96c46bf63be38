"""`paceline simulate`: policies side by side in virtual time, before any money is spent."""

from __future__ import annotations

import math
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import msgspec
from rich.console import Console
from rich.progress import Progress, TaskID
from typer import Exit, Option

from paceline.cli import options
from paceline.cli.arguments import freeze as frozen
from paceline.cli.arguments import policy_names, size_of_group, slowdown, switches, times_of_group, times_of_workers
from paceline.core.messages import GradientArrived
from paceline.experiment import Simulation, policy_for, run_directory, run_end, simulate, worker_speeds
from paceline.recording.metrics import Summary
from paceline.recording.observer import Observer
from paceline.recording.timeline import Timeline
from paceline.recording.trace import Record
from paceline.report.console import output
from paceline.report.gantt import gantt, legend
from paceline.report.tables import remarks, summary_table
from paceline.runtimes.simulated.simulator import RunEnd

GANTT_ROUNDS = 8  # iterations of the slowest worker that the strip shows
AS_LEARNED = "0.000001s"  # the unit of time is unknown, so nothing but what is learned decides
PROGRESS_EVERY = 20_000  # records between two movements of the progress bar


def simulate_command(
    policy: Annotated[
        list[str] | None,
        Option("--policy", "-p", help="A policy such as ssp:staleness=3; repeat it to compare. Default: all."),
    ] = None,
    intervals: Annotated[str | None, Option(help="Time of an iteration of each worker: 1.0,1.9")] = None,
    workers: options.SimulatedWorkers = None,
    speed: Annotated[
        str | None, Option(help="How fast they are: constant:seconds=1, lognormal:sigma=0.3, exponential:a=0.2")
    ] = None,
    trace: Annotated[
        Path | None, Option(help="Iteration times: a CSV (worker,iteration,seconds), or a run directory.")
    ] = None,
    jitter: Annotated[float, Option(help="Sigma of a lognormal factor on every iteration.")] = 0.0,
    push_delay: Annotated[float, Option(help="Time from a worker to the server.")] = 0.0,
    pull_delay: Annotated[float, Option(help="Time from the server to a worker.")] = 0.0,
    slow: Annotated[
        list[str] | None, Option(help="WORKER=FACTOR[@BEGIN..END]: this worker is slower, for a while.")
    ] = None,
    join: Annotated[list[str] | None, Option(help="WORKER@TIME: this worker joins late.")] = None,
    fail: Annotated[list[str] | None, Option(help="WORKER@TIME: this worker fails.")] = None,
    evict: Annotated[list[str] | None, Option(help="WORKER@TIME: this worker is sent away.")] = None,
    freeze: Annotated[
        list[str] | None, Option(help="WORKER@BEGIN..[END]: this worker stands still, and is set aside meanwhile.")
    ] = None,
    switch: options.Switches = None,
    patience: Annotated[
        str | None,
        Option(help="How long at least (5s), or at most (..60s), a silent worker is waited for; off: without end."),
    ] = None,
    duration: Annotated[float | None, Option(help="End at this time; a push exactly then still counts.")] = None,
    updates: Annotated[int | None, Option(help="End after so many updates.")] = None,
    pushes: Annotated[int | None, Option(help="End after so many pushes.")] = None,
    seed: Annotated[int, Option(help="Decides every random number.")] = 0,
    trace_out: Annotated[
        Path | None, Option(help="Write the trace of each policy into a run directory below this one.")
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print a JSON array instead of a table.")] = False,
    strip: Annotated[
        bool | None, Option("--gantt/--no-gantt", help="Show when every worker computes and waits; on a terminal: yes.")
    ] = None,
) -> None:
    """Compare policies in virtual time: iterations, waiting, staleness.

    Times may be in any unit, as long as it is the same everywhere.
    """
    names = policy_names(policy or ["all"])
    times, size = times_of_group(workers, intervals), size_of_group(workers)
    same_speed = "constant" if size is not None and times is None and trace is None else None
    simulation = Simulation(
        intervals=times,
        workers=size,
        speed=speed or same_speed,
        trace=None if trace is None else str(trace),
        jitter=jitter,
        push_delay=push_delay,
        pull_delay=pull_delay,
        slowdowns=(*(slowdown(text, "--slow") for text in slow or ()), *(frozen(text) for text in freeze or ())),
        joins=times_of_workers(join or [], "--join"),
        failures=times_of_workers(fail or [], "--fail"),
        evictions=times_of_workers(evict or [], "--evict"),
        switches=switches(switch or []),
        duration=duration,
        updates=updates,
        pushes=pushes,
        seed=seed,
        patience=patience or (AS_LEARNED if freeze else "off"),
    )
    speeds = worker_speeds(simulation)
    policies = {name: str(policy_for(name, len(speeds))) for name in names}
    console = output()
    shown = GANTT_ROUNDS * max(worker_speed.mean for worker_speed in speeds.values())
    wants_strip = (console.is_terminal if strip is None else strip) and not as_json
    summaries: list[Summary] = []
    if wants_strip:
        console.print(legend())
    try:
        for name, policy_name in policies.items():
            timeline = Timeline(shown)
            into = None if trace_out is None else run_directory(trace_out, policy_name, simulation)
            with _interruptible() as interrupt, _progress(name, run_end(simulation, speeds)) as progress:
                observers = [interrupt, progress, *([timeline] if wants_strip else [])]
                summary = simulate(name, simulation, speeds=speeds, trace_file=into, observers=observers)
            summaries.append(summary)
            if wants_strip:
                console.print(gantt(summary.policy, timeline, summary.seconds, console.width))
    except KeyboardInterrupt:
        print(f"paceline: interrupted; {len(summaries)} of {len(names)} policies were finished", file=sys.stderr)
        if summaries and not as_json:
            console.print(summary_table(summaries))
        raise Exit(130) from None
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(summaries)).decode())
        return
    console.print(summary_table(summaries), "")
    for remark in remarks(summaries):
        console.print(remark, highlight=False, markup=False)


class _Interrupt(Observer):
    """Ends the run at Ctrl-C, between two records, so that no record of a trace is torn."""

    def __init__(self) -> None:
        self.pressed = False

    def note(self, number: int, frame: FrameType | None) -> None:
        if self.pressed:  # a second time: whatever takes so long, end it
            raise KeyboardInterrupt
        self.pressed = True

    def observe(self, record: Record) -> None:
        if self.pressed:
            raise KeyboardInterrupt


@contextmanager
def _interruptible() -> Iterator[Observer]:
    interrupt = _Interrupt()
    before = signal.signal(signal.SIGINT, interrupt.note)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupt.pressed:
        raise KeyboardInterrupt


class _Progress(Observer):
    """Moves a progress bar, which draws itself in a thread of its own."""

    def __init__(self, bar: Progress, task: TaskID, end: RunEnd) -> None:
        self._bar, self._task, self._end = bar, task, end
        self._seen = 0

    def observe(self, record: Record) -> None:
        self._seen += 1
        if self._seen % PROGRESS_EVERY != 0:
            return
        if math.isfinite(self._end.duration):
            self._bar.update(self._task, completed=record.now)
        elif math.isfinite(self._end.pushes):
            self._bar.update(self._task, completed=self._seen)
        elif isinstance(record.event, GradientArrived):
            self._bar.update(self._task, completed=record.event.version)


@contextmanager
def _progress(name: str, end: RunEnd) -> Iterator[Observer]:
    """A progress bar on a terminal's stderr, and nothing elsewhere."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        if console.is_terminal:
            yield _Progress(bar, bar.add_task(name, total=min(end.duration, end.updates, end.pushes)), end)
        else:
            yield Observer()

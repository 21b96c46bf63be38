"""Policies side by side in virtual time, with real learning: every policy, every seed, every learning rate.

Each trial is one line of a file that is appended to as results come, so that an interrupted comparison goes on where it
was. Trials run in several processes, each in one thread; what they find does not depend on that.
"""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import statistics
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from paceline.core.errors import ConfigurationError
from paceline.core.messages import Estimates
from paceline.experiment.simulation import Simulation, worker_speeds
from paceline.recording.observer import Observer
from paceline.recording.progress_log import Evaluation
from paceline.recording.timeline import Span, Timeline
from paceline.recording.trace import Record
from paceline.report.tables import LearningRow

if TYPE_CHECKING:  # torch takes a second to import, and a command that only prints its help shall not wait for it
    from paceline.experiment.tasks import TaskOptions

RESULTS = "results.jsonl"
GANTT_ROUNDS = 8  # iterations of the slowest worker whose spans are kept
GANTT_WORKERS = 16
MOST_CHOICES = 500  # of which the estimates are kept: all, or every second, fourth, ...


class Comparison(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that the trials have in common, as the first line of their results keeps it."""

    task: str
    simulation: Simulation
    epochs: int
    data: str | None = None
    model: str | None = None
    optimizer: str = "sgd"
    learning_rate: float | None = None
    momentum: float | None = None
    batch_size: int | None = None
    lr_scaling: str = "auto"
    stale: str = "auto"
    evaluate_every: int | None = None
    test_samples: int | None = None  # evaluate on the first so many only
    stop_at: float | None = None  # end a run when it finds this accuracy
    keep_spans: bool = True  # for a Gantt chart, of the first seed
    weight_decay: float | None = None
    nesterov: bool = False
    schedule: bool = True
    train_samples: int | None = None  # train on the first so many only

    def task_options(self, factor: float = 1.0) -> TaskOptions:
        """`factor`: on the learning rate."""
        from paceline.experiment.tasks import TaskOptions

        options = TaskOptions(
            self.task,
            self.model,
            None if self.data is None else Path(self.data),
            self.optimizer,
            self.learning_rate,
            self.momentum,
            self.batch_size,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
            epochs=self.epochs,
            schedule=self.schedule,
        )
        return msgspec.structs.replace(options, learning_rate=options.rate * factor)


class Trial(msgspec.Struct, frozen=True):
    policy: str
    seed: int
    factor: float = 1.0  # on the learning rate


class CurvePoint(msgspec.Struct, frozen=True, array_like=True):
    """One evaluation of a learning curve."""

    seconds: float
    samples: int
    accuracy: float
    loss: float | None  # None: not finite


class ChosenK(msgspec.Struct, frozen=True, array_like=True):
    """What DBW chose for an update, and by what: gain and time are those of the chosen k."""

    seconds: float
    k: int
    gain: float
    time: float
    variance: float | None
    squared_norm: float | None
    smoothness: float | None


class Outcome(msgspec.Struct, frozen=True):
    """What one trial came to. `problem`: why it ended before its time."""

    trial: Trial
    seconds: float
    samples: int
    waiting_share: float
    mean_staleness: float
    curve: list[CurvePoint]
    choices: list[ChosenK]  # of a policy that estimates
    spans: list[list[Span]]  # of the first workers, in the first seconds
    problem: str = ""

    def time_to(self, target: float) -> float | None:
        return next((point.seconds for point in self.curve if point.accuracy >= target), None)

    @property
    def final_accuracy(self) -> float:
        return self.curve[-1].accuracy if self.curve else 0.0


def run_trial(comparison: Comparison, trial: Trial) -> Outcome:
    """One policy, one seed, one learning rate. A run that diverges is an outcome, not an error."""
    try:
        return _run_trial(comparison, trial)
    finally:
        gc.collect()  # a simulator and its driver hold each other, and every version of the model with them


def _run_trial(comparison: Comparison, trial: Trial) -> Outcome:
    import torch

    from paceline.experiment.tasks import task_of
    from paceline.experiment.virtual_training import train_virtually
    from paceline.training.gradients import DivergedError

    torch.set_num_threads(1)
    task = task_of(comparison.task_options(trial.factor), seed=trial.seed)
    task = replace(
        task, train=_first(task.train, comparison.train_samples), test=_first(task.test, comparison.test_samples)
    )
    curve: list[CurvePoint] = []

    def note(evaluation: Evaluation) -> bool:
        figures = evaluation.figures
        curve.append(CurvePoint(evaluation.seconds, evaluation.samples, figures["accuracy"], figures["loss"]))
        return comparison.stop_at is not None and figures["accuracy"] >= comparison.stop_at

    choices = _Choices()
    speeds = worker_speeds(comparison.simulation)
    timeline = Timeline(GANTT_ROUNDS * max(speed.mean for speed in speeds.values()))
    try:
        result = train_virtually(
            task,
            trial.policy,
            msgspec.structs.replace(comparison.simulation, seed=trial.seed),
            epochs=comparison.epochs,
            lr_scaling=comparison.lr_scaling,
            stale=comparison.stale,
            evaluate_every=comparison.evaluate_every,
            speeds=speeds,
            observers=[choices, timeline],
            on_evaluation=note,
        )
    except DivergedError as problem:
        last = curve[-1] if curve else CurvePoint(0.0, 0, 0.0, None)
        return Outcome(trial, last.seconds, last.samples, 0.0, 0.0, curve, choices.kept, [], str(problem))
    summary = result.summary
    spans = list(timeline.spans(result.seconds).values())[:GANTT_WORKERS]
    if trial.seed > 0 or not comparison.keep_spans:
        spans = []
    return Outcome(
        trial, result.seconds, result.samples, summary.waiting_share, summary.mean_staleness, curve, choices.kept, spans
    )


def _first(dataset: Any, samples: int | None) -> Any:
    from torch.utils.data import Subset

    return dataset if samples is None else Subset(dataset, range(min(samples, len(dataset))))


class _Choices(Observer):
    """Keeps the estimates of a run; of a long one evenly every second, fourth, ..."""

    def __init__(self) -> None:
        self.kept: list[ChosenK] = []
        self._seen, self._every = 0, 1

    def observe(self, record: Record) -> None:
        if record.estimates is None:
            return
        if self._seen % self._every == 0:
            self.kept.append(_choice(record.now, record.estimates))
            if len(self.kept) > MOST_CHOICES:
                del self.kept[1::2]
                self._every *= 2
        self._seen += 1


def _choice(now: float, seen: Estimates) -> ChosenK:
    at = seen.k - 1
    return ChosenK(now, seen.k, seen.gain[at], seen.time[at], seen.variance, seen.squared_norm, seen.smoothness)


def run_trials(comparison: Comparison, trials: Sequence[Trial], directory: Path, processes: int) -> Iterator[Outcome]:
    """The outcomes that are there already, and then the others as they come, in any order."""
    path = directory / RESULTS
    known = _resume(path, comparison)
    wanted = dict.fromkeys(trials)
    yield from (outcome for outcome in known if outcome.trial in wanted)
    done = {outcome.trial for outcome in known}
    missing = [trial for trial in wanted if trial not in done]
    for outcome in _compute(comparison, missing, processes):
        with path.open("ab") as file:
            file.write(msgspec.json.encode(outcome) + b"\n")
        yield outcome


def _compute(comparison: Comparison, trials: Sequence[Trial], processes: int) -> Iterator[Outcome]:
    if processes == 1 or len(trials) < 2:
        yield from (run_trial(comparison, trial) for trial in trials)
        return
    pool = _pool(processes)
    try:
        for future in as_completed([pool.submit(run_trial, comparison, trial) for trial in trials]):
            yield future.result()
    except BaseException:
        _pool.cache_clear()
        pool.shutdown(wait=False, cancel_futures=True)
        raise


@lru_cache(maxsize=1)
def _pool(processes: int) -> ProcessPoolExecutor:
    """Kept for the next trials: a new process takes seconds to import torch and to read the data."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(processes, context, initializer=_end_with_parent)


def _end_with_parent() -> None:
    """A command that is killed leaves nothing running: a process of the pool would finish its trial first."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _resume(path: Path, comparison: Comparison) -> list[Outcome]:
    """The outcomes in the file, which begins with the comparison that they belong to."""
    header = msgspec.json.encode(comparison)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(header + b"\n")
            return []
        first, *lines = path.read_bytes().splitlines(keepends=True)
    except (OSError, ValueError) as problem:
        raise ConfigurationError(f"{path}: cannot be used: {problem}") from None
    if first.rstrip(b"\n") != header:
        raise ConfigurationError(
            f"{path}: holds the results of another comparison; choose another directory, or ask for the same again"
        )
    whole = [line for line in lines if line.endswith(b"\n")]
    if len(whole) < len(lines):  # its writer was killed in the middle of a line
        path.write_bytes(b"".join([first, *whole]))
    return [msgspec.json.decode(line, type=Outcome) for line in whole]


class Row(msgspec.Struct, frozen=True):
    """One policy over all seeds, at the learning rate that suited it best."""

    policy: str
    factor: float
    times: list[float | None]  # to the target, by seed
    seconds: float
    samples: float
    waiting_share: float
    mean_staleness: float
    accuracy: float
    problems: list[str]

    @property
    def time(self) -> tuple[float, float] | None:
        """Mean and standard deviation of the time to the target; None: some seed never reached it."""
        reached = [time for time in self.times if time is not None]
        if not reached or len(reached) < len(self.times):
            return None
        return statistics.mean(reached), statistics.stdev(reached) if len(reached) > 1 else 0.0


def rows_of(outcomes: Sequence[Outcome], policies: Sequence[str], target: float | None) -> list[Row]:
    """A row per policy, in their order."""
    rows = []
    for policy in policies:
        by_factor: dict[float, list[Outcome]] = {}
        for outcome in outcomes:
            if outcome.trial.policy == policy:
                by_factor.setdefault(outcome.trial.factor, []).append(outcome)
        candidates = [row_of(policy, factor, found, target) for factor, found in sorted(by_factor.items())]
        if candidates:
            rows.append(min(candidates, key=_quality))
    return rows


def row_of(policy: str, factor: float, outcomes: list[Outcome], target: float | None) -> Row:
    """The figures of these outcomes, which differ by their seed only."""
    outcomes = sorted(outcomes, key=lambda outcome: outcome.trial.seed)
    mean: Callable[[Sequence[float]], float] = statistics.mean
    return Row(
        policy=policy,
        factor=factor,
        times=[] if target is None else [outcome.time_to(target) for outcome in outcomes],
        seconds=mean([outcome.seconds for outcome in outcomes]),
        samples=mean([outcome.samples for outcome in outcomes]),
        waiting_share=mean([outcome.waiting_share for outcome in outcomes]),
        mean_staleness=mean([outcome.mean_staleness for outcome in outcomes]),
        accuracy=mean([outcome.final_accuracy for outcome in outcomes]),
        problems=[outcome.problem for outcome in outcomes if outcome.problem],
    )


def learning_rows(rows: Iterable[Row]) -> list[LearningRow]:
    """As a table shows them."""
    return [
        LearningRow(
            row.policy,
            row.factor,
            row.time,
            row.seconds,
            row.samples,
            row.waiting_share,
            row.mean_staleness,
            row.accuracy,
        )
        for row in rows
    ]


def _quality(row: Row) -> tuple[float, float, float, float]:
    """Less is better: did not diverge, soonest at the target, most accurate in the end; of equals the nearest to 1."""
    time = row.time
    return (len(row.problems), math.inf if time is None else time[0], -row.accuracy, abs(math.log(row.factor)))

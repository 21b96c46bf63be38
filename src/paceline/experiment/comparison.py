"""Policies side by side in virtual time, with real learning: every policy, every seed, every learning rate.

Each trial is one line of a file that is appended to as results come, so that an interrupted comparison goes on where it
was. Trials run in several processes, each in one thread; what they find does not depend on that.
"""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from paceline.core.errors import ConfigurationError
from paceline.core.messages import Estimates
from paceline.experiment.own_loop import OwnFunctions, anew
from paceline.experiment.simulation import Simulation, worker_speeds
from paceline.recording.observer import Observer
from paceline.recording.progress_log import Evaluation
from paceline.recording.timeline import Span, Timeline
from paceline.recording.trace import Record

if TYPE_CHECKING:  # torch takes a second to import, and a command that only prints its help shall not wait for it
    from paceline.experiment.tasks import TaskOptions
    from paceline.experiment.training import RunResult

ACCURACY = "accuracy"
RESULTS = "results.jsonl"
GANTT_ROUNDS = 8  # iterations of the slowest worker whose spans are kept
GANTT_WORKERS = 16
MOST_CHOICES = 500  # of which the estimates are kept: all, or every second, fourth, ...


class Comparison(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that the trials have in common, as the first line of their results keeps it."""

    task: str
    simulation: Simulation
    epochs: int | None  # None: other limits end a run
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
    stop_mean_of: int = 1  # as the mean of so many evaluations, one after another
    keep_spans: bool = True  # for a Gantt chart, of the first seed
    weight_decay: float | None = None
    nesterov: bool = False
    schedule: bool = True
    train_samples: int | None = None  # train on the first so many only
    own: str | None = None  # a loop of the user's own instead of a task: what it is called, and a digest of its code
    not_finite: str = "stop"  # of such a loop
    steps: int | None = None  # full rounds, of such a loop

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
    accuracy: float  # or what the outcome goes by instead
    loss: float | None  # None: not finite, or not told


class LearningCurve:
    """The evaluations of a trial, by accuracy, or by the first figure that there is."""

    def __init__(self, stop_at: float | None, mean_of: int = 1) -> None:
        self.points: list[CurvePoint] = []
        self.figure = ACCURACY
        self._stop_at, self._mean_of = stop_at, mean_of

    @property
    def shows(self) -> str | msgspec.UnsetType:
        return msgspec.UNSET if self.figure == ACCURACY else self.figure

    def note(self, evaluation: Evaluation) -> bool:
        """Returns whether the trial is there."""
        figures = evaluation.figures
        self.figure = ACCURACY if ACCURACY in figures else next(iter(figures), self.figure)
        if self._stop_at is not None and self.figure != ACCURACY:
            raise ConfigurationError(
                f"the evaluation finds {', '.join(figures) or 'nothing'}, and no accuracy that could reach a target"
            )
        if self.figure not in figures:
            return False  # no loss was told
        value = figures[self.figure]
        self.points.append(CurvePoint(evaluation.seconds, evaluation.samples, value, figures.get("loss")))
        return (
            self._stop_at is not None
            and time_to(self._stop_at, self.points[-self._mean_of :], self._mean_of) is not None
        )


def time_to(target: float, curve: Sequence[CurvePoint], mean_of: int = 1) -> float | None:
    """When the mean of so many evaluations, one after another, was this accuracy for the first time."""
    for last in range(mean_of, len(curve) + 1):
        if math.fsum(point.accuracy for point in curve[last - mean_of : last]) >= target * mean_of:
            return curve[last - 1].seconds
    return None


class ChosenK(msgspec.Struct, frozen=True, array_like=True):
    """What DBW chose for an update, and by what: gain and time are those of the chosen k."""

    seconds: float
    k: int
    gain: float
    time: float
    variance: float | None
    squared_norm: float | None
    smoothness: float | None
    slope: float | None = None


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
    shows: str | msgspec.UnsetType = msgspec.UNSET  # the figure that the curve shows, if that is not the accuracy

    @property
    def figure(self) -> str:
        return ACCURACY if isinstance(self.shows, msgspec.UnsetType) else self.shows

    def time_to(self, target: float) -> float | None:
        return time_to(target, self.curve)

    @property
    def final_accuracy(self) -> float:
        nothing = 0.0 if self.figure == ACCURACY and self.problem else math.nan
        return self.curve[-1].accuracy if self.curve else nothing


def run_trial(comparison: Comparison, trial: Trial, own: OwnFunctions | None = None) -> Outcome:
    """One policy, one seed, one learning rate. A run that diverges is an outcome, not an error.

    `own`: what the user wrote, if it is no task."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _run_trial(comparison, trial, own)
    finally:
        torch.set_num_threads(threads)
        gc.collect()  # a simulator and its driver hold each other, and every version of the model with them


def _run_trial(comparison: Comparison, trial: Trial, own: OwnFunctions | None) -> Outcome:
    from paceline.training.gradients import DivergedError
    from paceline.training.remote_optimizer import GradientError

    learned, choices = LearningCurve(comparison.stop_at, comparison.stop_mean_of), _Choices()
    curve = learned.points
    speeds = worker_speeds(comparison.simulation)
    timeline = Timeline(GANTT_ROUNDS * max(speed.mean for speed in speeds.values()))
    try:
        result = _train(
            comparison,
            trial,
            own,
            epochs=comparison.epochs,
            lr_scaling=comparison.lr_scaling,
            stale=comparison.stale,
            evaluate_every=comparison.evaluate_every,
            speeds=speeds,
            observers=[choices, timeline],
            on_evaluation=learned.note,
        )
    except (DivergedError, GradientError) as problem:
        last = curve[-1] if curve else CurvePoint(0.0, 0, 0.0, None)
        said, shows = str(problem), learned.shows
        return Outcome(trial, last.seconds, last.samples, 0.0, 0.0, curve, choices.kept, [], said, shows)
    summary = result.summary
    spans = list(timeline.spans(result.seconds).values())[:GANTT_WORKERS]
    if trial.seed > 0 or not comparison.keep_spans:
        spans = []
    return Outcome(
        trial,
        result.seconds,
        result.samples,
        summary.waiting_share,
        summary.mean_staleness,
        curve,
        choices.kept,
        spans,
        shows=learned.shows,
    )


def _train(comparison: Comparison, trial: Trial, own: OwnFunctions | None, **options: Any) -> RunResult:
    from paceline.experiment.tasks import task_of
    from paceline.experiment.virtual_loops import OwnLoop, train_loops_virtually
    from paceline.experiment.virtual_training import train_virtually

    simulation = msgspec.structs.replace(comparison.simulation, seed=trial.seed)
    if own is not None:
        loop = OwnLoop(anew(own.train), None if own.evaluate is None else anew(own.evaluate))
        options |= {"not_finite": comparison.not_finite, "factor": trial.factor, "steps": comparison.steps}
        return train_loops_virtually(loop, trial.policy, simulation, **options)
    task = task_of(comparison.task_options(trial.factor), seed=trial.seed)
    task = replace(
        task, train=_first(task.train, comparison.train_samples), test=_first(task.test, comparison.test_samples)
    )
    return train_virtually(task, trial.policy, simulation, **options)


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
    learned = seen.variance, seen.squared_norm, seen.smoothness, seen.slope
    return ChosenK(now, seen.k, seen.gain[at], seen.time[at], *learned)


def run_trials(
    comparison: Comparison,
    trials: Sequence[Trial],
    directory: Path | None,
    processes: int,
    own: OwnFunctions | None = None,
) -> Iterator[Outcome]:
    """The outcomes that are there already, and then the others as they come, in any order. `directory`: where they are
    kept; None: nowhere."""
    path = None if directory is None else directory / RESULTS
    known = [] if path is None else _resume(path, comparison)
    wanted = dict.fromkeys(trials)
    yield from (outcome for outcome in known if outcome.trial in wanted)
    done = {outcome.trial for outcome in known}
    missing = [trial for trial in wanted if trial not in done]
    for outcome in _compute(comparison, missing, processes, own):
        if path is not None:
            with path.open("ab") as file:
                file.write(msgspec.json.encode(outcome) + b"\n")
        yield outcome


def _compute(
    comparison: Comparison, trials: Sequence[Trial], processes: int, own: OwnFunctions | None
) -> Iterator[Outcome]:
    if processes == 1 or len(trials) < 2 or (own is not None and not own.crosses):
        yield from (run_trial(comparison, trial, own) for trial in trials)
        return
    pool = _pool(processes)
    try:
        for future in as_completed([pool.submit(run_trial, comparison, trial, own) for trial in trials]):
            yield future.result()
    except BaseException as problem:
        _pool.cache_clear()
        for process in list(pool._processes.values()):
            process.kill()  # or this process would wait for what they are at, whatever its user wants
        pool.shutdown(wait=False, cancel_futures=True)
        if isinstance(problem, BrokenProcessPool):
            raise ConfigurationError(
                "a process of the comparison ended at once: it was killed (out of memory?), or the call that compares"
                " does not stand under `if __name__ == '__main__':`"
            ) from None
        raise


@lru_cache(maxsize=1)
def _pool(processes: int) -> ProcessPoolExecutor:
    """Kept for the next trials: a new process takes seconds to import torch and to read the data."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(processes, context, initializer=_prepare)


def _prepare() -> None:
    """A command that is killed leaves nothing running: a process of the pool would finish its trial first.

    Loaders of a user's own start as they would in any program; a spawned process would spawn its own as well.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C goes to the whole terminal, and the command answers it
    multiprocessing.set_start_method(None, force=True)

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

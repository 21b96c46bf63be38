"""A user's own loop in virtual time: real gradients and updates, in the order in which a given group makes them."""

from __future__ import annotations

import statistics
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from paceline.core.coordinator import Coordinator
from paceline.core.errors import PacelineError
from paceline.core.messages import UpdateApplied
from paceline.experiment.collector import warn_if_not_corrected, warned
from paceline.experiment.foresight import foresee
from paceline.experiment.limits import limits_of
from paceline.experiment.result import RunResult
from paceline.experiment.simulation import (
    Simulation,
    evictions_of,
    policy_for,
    simulated_workers,
    switches_of,
    worker_speeds,
)
from paceline.experiment.virtual_training import VirtualEvaluations, end_of, refuse_diverged
from paceline.lifecycle.messages import MakeUpdate
from paceline.policies import Policy
from paceline.recording.metrics import RunMetrics
from paceline.recording.observer import Observer
from paceline.recording.progress_log import Evaluation
from paceline.recording.trace import TraceWriter
from paceline.runtimes.intervals import patience_of
from paceline.runtimes.serving.duties import figures_of
from paceline.runtimes.simulated.loops import LoopSimulator
from paceline.runtimes.speeds import SpeedModel
from paceline.training.choices import UpdateOptions
from paceline.training.loop_learner import LoopFailedError, LoopLearner, Train
from paceline.training.update_rules import corrects, rule_under
from paceline.training.worker import CPU, seed_everything
from paceline.training.worker_state import random_state, set_random_state

TRAINING_LOSS = "training loss"  # what is measured where nobody evaluates

Evaluate = Callable[[dict[str, Tensor]], Any]


class OwnLoop(NamedTuple):
    """What a user wrote. Each gives the function as a new process would find it."""

    train: Callable[[], Train]
    evaluate: Callable[[], Evaluate] | None = None


class _Evaluator:
    """Stands for the process that evaluates in a real run, with random numbers of its own."""

    def __init__(self, evaluate: Evaluate, seed: int) -> None:
        self._evaluate = evaluate
        seed_everything(seed)
        self._random = random_state(CPU)

    def __call__(self, state: dict[str, Tensor]) -> dict[str, float]:
        set_random_state(self._random, CPU)
        try:
            found = self._evaluate(state)
        except PacelineError:
            raise
        except Exception:
            raise LoopFailedError(f"the evaluation raised:\n{traceback.format_exc().rstrip()}") from None
        self._random = random_state(CPU)
        return figures_of(found)


class _EvaluatedLoops(LoopLearner):
    """Loops whose model is evaluated on the way; without an evaluation, the mean loss of what was pushed is kept."""

    simulator: LoopSimulator
    evaluations: VirtualEvaluations
    evaluator: _Evaluator | None
    every: int | None
    watching: Sequence[Observer]

    def begin(self, seats: Sequence[int]) -> None:
        super().begin(seats)
        warn_if_not_corrected(self.store.rule)
        for observer in self.watching:
            observer.begun(self.store.rule)

    def make_update(self, command: MakeUpdate) -> UpdateApplied:
        before = self.store.samples
        done = super().make_update(command)
        self.evaluations.every = self.every or self.epoch_samples
        self.evaluations.look(self.store, before, self.simulator)
        return done

    def figures(self) -> dict[str, float]:
        if self.evaluator is not None:
            return self.evaluator(self.state())
        losses, self.losses = self.losses, []
        return {TRAINING_LOSS: statistics.fmean(losses)} if losses else {}


def train_loops_virtually(
    loop: OwnLoop,
    policy: Policy | str,
    simulation: Simulation,
    *,
    epochs: int | None = 1,
    steps: int | None = None,
    lr_scaling: str = "auto",
    stale: str = "auto",
    not_finite: str = "stop",
    factor: float = 1.0,
    evaluate_every: int | None = None,
    speeds: Mapping[int, SpeedModel] | None = None,
    trace_file: Path | None = None,
    observers: Sequence[Observer] = (),
    on_evaluation: Callable[[Evaluation], bool | None] | None = None,
) -> RunResult:
    """As `train_virtually`, for a loop of the user's own. `factor`: on its learning rates.

    It is evaluated each epoch of the data set that the loops share, or every `evaluate_every` samples, and at the end.
    """
    speeds = worker_speeds(simulation) if speeds is None else speeds
    chosen = policy_for(policy, len(speeds))
    learner = _EvaluatedLoops(
        loop.train,
        len(speeds),
        epochs=epochs,
        seed=simulation.seed,
        updates=UpdateOptions(lr_scaling, stale, chosen.applies_stale and len(speeds) > 1),
        statistics=chosen.wants_statistics,
        not_finite=not_finite,
        factor=factor,
    )
    metrics = RunMetrics()
    writer = None if trace_file is None else TraceWriter(trace_file, str(chosen))
    learner.watching = [metrics, *([writer] if writer else []), *observers]
    simulator = LoopSimulator(
        simulated_workers(simulation, speeds),
        Coordinator(chosen),
        learner.watching,
        learner,
        epochs=epochs,
        limit=limits_of(epochs, steps, None, None).of_work(len(speeds)),
        push_delay=simulation.push_delay,
        pull_delay=simulation.pull_delay,
        time_scale=min(speed.mean for speed in speeds.values()),
        patience=patience_of(simulation.patience, "patience"),
        switches=switches_of(simulation, len(speeds)),
        evictions=evictions_of(simulation),
        think=foresee,
        corrects=lambda: corrects(learner.store),
        rule_for=lambda policy: warned(rule_under(learner.store, policy, several=len(speeds) > 1)),
    )
    learner.simulator, learner.every = simulator, evaluate_every
    learner.evaluator = None if loop.evaluate is None else _Evaluator(loop.evaluate(), simulation.seed)
    learner.evaluations = VirtualEvaluations(learner.figures, evaluate_every, observers, on_evaluation)
    try:
        simulator.run(end_of(simulation, speeds))
        refuse_diverged(learner.store)
        learner.evaluations.take_the_last(learner.store, simulator)
        return RunResult(
            learner.state(),
            metrics.summary(str(chosen), simulator.now),
            learner.store.samples,
            simulator.samples_dropped,
            evaluations=learner.evaluations.found,
        )
    finally:
        if writer is not None:
            writer.close(simulator.now)
        learner.close()

"""Training in virtual time: real gradients and updates, in the order in which they would happen on a given group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from paceline.core.coordinator import Coordinator
from paceline.core.messages import UpdateApplied
from paceline.experiment.collector import warned
from paceline.experiment.foresight import foresee, simulator_with
from paceline.experiment.result import RunResult
from paceline.experiment.simulation import (
    Simulation,
    evictions_of,
    policy_for,
    run_end,
    simulated_workers,
    switches_of,
    worker_speeds,
)
from paceline.lifecycle.messages import MakeUpdate
from paceline.lifecycle.plan import plan_of
from paceline.lifecycle.work import NO_LIMIT
from paceline.policies import Policy
from paceline.recording.metrics import RunMetrics
from paceline.recording.observer import Observer
from paceline.recording.progress_log import Evaluation
from paceline.recording.trace import TraceWriter
from paceline.runtimes.intervals import patience_of
from paceline.runtimes.simulated.simulator import RunEnd, Simulator
from paceline.runtimes.speeds import SpeedModel
from paceline.training.choices import UpdateOptions
from paceline.training.gradients import DivergedError
from paceline.training.learner import Learner
from paceline.training.parameters import ParameterStore
from paceline.training.task import Task
from paceline.training.update_rules import corrects, rule_under


class VirtualEvaluations:
    """Evaluates every so many samples, in no virtual time at all."""

    def __init__(
        self,
        evaluate: Callable[[], dict[str, float]],
        every: int | None,
        observers: Sequence[Observer],
        on_evaluation: Callable[[Evaluation], bool | None] | None,
    ) -> None:
        self.every = every
        self.found: list[Evaluation] = []
        self._evaluate = evaluate
        self._observers = observers
        self._on_evaluation = on_evaluation

    def look(self, store: ParameterStore, before: int, simulator: Simulator) -> None:
        """`before`: the samples before the latest update."""
        if self.every is not None and store.samples // self.every > before // self.every:
            self.take(store, simulator)

    def take_the_last(self, store: ParameterStore, simulator: Simulator) -> None:
        if not self.found or self.found[-1].version != store.version:
            self.take(store, simulator)

    def take(self, store: ParameterStore, simulator: Simulator) -> None:
        evaluation = Evaluation(simulator.now, store.samples, store.version, self._evaluate())
        self.found.append(evaluation)
        if store.wants_figures and (figure := store.figure_of(evaluation.figures)) is not None:
            store.feed(figure.value)
        for observer in self._observers:
            observer.evaluated(evaluation)
        if self._on_evaluation is not None and self._on_evaluation(evaluation):
            simulator.halt()


class _EvaluatedLearner(Learner):
    simulator: Simulator
    evaluations: VirtualEvaluations

    def make_update(self, command: MakeUpdate) -> UpdateApplied:
        before = self.store.samples
        done = super().make_update(command)
        self.evaluations.look(self.store, before, self.simulator)
        return done


def train_virtually(
    task: Task,
    policy: Policy | str,
    simulation: Simulation,
    *,
    epochs: int = 1,
    lr_scaling: str = "auto",
    stale: str = "auto",
    evaluate_every: int | None = None,
    speeds: Mapping[int, SpeedModel] | None = None,
    trace_file: Path | None = None,
    observers: Sequence[Observer] = (),
    on_evaluation: Callable[[Evaluation], bool | None] | None = None,
) -> RunResult:
    """Train a task under a policy on simulated workers. The same arguments give the same weights, to the bit.

    The run ends with its epochs, or at the end that the simulation names. With a test set it is evaluated each epoch,
    or every `evaluate_every` samples, and at the end; when `on_evaluation` returns True, that is the end.
    """
    speeds = worker_speeds(simulation) if speeds is None else speeds
    chosen = policy_for(policy, len(speeds))
    learner = _EvaluatedLearner(
        task,
        epochs=epochs,
        seed=simulation.seed,
        updates=UpdateOptions(lr_scaling, stale, chosen.applies_stale and len(speeds) > 1),
        statistics=chosen.wants_statistics,
    )
    learner.store.open(plan_of(learner.work, epochs, NO_LIMIT, len(speeds)))
    metrics = RunMetrics()
    writer = None if trace_file is None else TraceWriter(trace_file, str(chosen))
    watching = [metrics, *([writer] if writer else []), *observers]
    rule = learner.store.rule_for(statistics=chosen.wants_statistics)
    warned(rule)
    for observer in watching:
        observer.begun(rule)
    simulator = simulator_with(simulation.costs)(
        simulated_workers(simulation, speeds),
        Coordinator(chosen),
        watching,
        push_delay=simulation.push_delay,
        pull_delay=simulation.pull_delay,
        time_scale=min(speed.mean for speed in speeds.values()),
        learner=learner,
        patience=patience_of(simulation.patience, "patience"),
        switches=switches_of(simulation, len(speeds)),
        evictions=evictions_of(simulation),
        think=foresee,
        corrects=lambda: corrects(learner.store),
        rule_for=lambda policy: warned(rule_under(learner.store, policy, several=len(speeds) > 1)),
    )
    learner.simulator = simulator
    every = None if task.test is None else evaluate_every or len(task.train)
    learner.evaluations = VirtualEvaluations(learner.evaluate, every, observers, on_evaluation)
    try:
        simulator.run(end_of(simulation, speeds))
    finally:
        if writer is not None:
            writer.close(simulator.now)
    refuse_diverged(learner.store)
    if task.test is not None:
        learner.evaluations.take_the_last(learner.store, simulator)
    return RunResult(
        learner.state(),
        metrics.summary(str(chosen), simulator.now),
        learner.store.samples,
        simulator.samples_dropped,
        evaluations=learner.evaluations.found,
    )


def end_of(simulation: Simulation, speeds: Mapping[int, SpeedModel]) -> RunEnd:
    """With its epochs, or where the simulation says."""
    has_end = any(limit is not None for limit in (simulation.duration, simulation.updates, simulation.pushes))
    return run_end(simulation, speeds) if has_end else RunEnd()


def refuse_diverged(store: ParameterStore) -> None:
    """After the last gradient there was no loss to tell it."""
    if not torch.isfinite(store.flat).all():
        raise DivergedError("a parameter is not finite at the end of the run: it diverged")

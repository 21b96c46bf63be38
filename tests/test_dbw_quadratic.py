"""DBW end to end on a quadratic whose smoothness, gradient and noise are known: its estimates against the truth.

Sample i has its own minimum c_i and the loss L/2 |x - c_i|^2, and the c_i have mean 0. So the loss of all samples is
F(x) = L/2 |x|^2 plus a constant, its gradient is L x, and a batch has the gradient L (x - mean c). An epoch is a
permutation: batches are drawn without replacement, and the expected sample variance of their gradients is exactly
L^2 S^2 / batch, with S^2 = sum |c_i|^2 / (samples - 1). In a space of many dimensions all of this is sharp.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise, takewhile
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F
from record_keeper import RecordKeeper
from torch import nn
from torch.utils.data import TensorDataset

from paceline.core.messages import (
    ApplyUpdate,
    Estimates,
    Gradient,
    GradientArrived,
    Statistics,
    UpdateApplied,
    WorkerLeft,
)
from paceline.experiment.simulation import Simulation
from paceline.experiment.training import RunResult, fit
from paceline.experiment.virtual_training import train_virtually
from paceline.policies.gain_model import LEAST_SMOOTHNESS
from paceline.recording.progress_log import Choice, read_metrics
from paceline.recording.replay import first_difference, replay
from paceline.recording.trace import Record, Trace
from paceline.training.data import order_of
from paceline.training.task import Task

Vector = npt.NDArray[np.float64]

WORKERS = 4
STRAGGLING = Simulation(workers=WORKERS, speed="exponential:a=0.6")
SIGMAS = 4  # how far a mean of random numbers may lie from its expectation


@dataclass(frozen=True)
class Quadratic:
    smoothness: float = 4.0
    learning_rate: float = 0.2
    dimensions: int = 512
    samples: int = 2048
    batch: int = 4
    radius: float = 3.0  # |c_i|, of each sample
    distance: float = 5.0  # |x| at the beginning

    @property
    def centres(self) -> Vector:
        """Corners of a cube, each with the one opposite: their mean is 0 to the bit."""
        signs = np.random.default_rng(0).choice((-1.0, 1.0), (self.samples // 2, self.dimensions))
        half = self.radius / math.sqrt(self.dimensions) * signs
        return np.concatenate([half, -half])

    @property
    def start(self) -> Vector:
        return np.full(self.dimensions, self.distance / math.sqrt(self.dimensions))

    @property
    def variance(self) -> float:
        """What the sample variance of the gradients of an update is expected to be."""
        return self.smoothness**2 * self.radius**2 * self.samples / (self.samples - 1) / self.batch

    @property
    def task(self) -> Task:
        """The model's one layer holds x; its input is such a number that the mean squared error has this smoothness."""
        model = nn.Linear(1, self.dimensions, bias=False).double()
        with torch.no_grad():
            model.weight.copy_(torch.from_numpy(self.start).unsqueeze(1))
        one = math.sqrt(self.smoothness * self.dimensions / 2)
        x = torch.full((self.samples, 1), one, dtype=torch.float64)
        optimizer = partial(torch.optim.SGD, lr=self.learning_rate)
        data = TensorDataset(x, one * torch.from_numpy(self.centres))
        return Task(model, F.mse_loss, data, optimizer=optimizer, batch_size=self.batch)


@dataclass
class Update:
    """One update of a run, worked out on paper from the names of its gradients."""

    at: Vector  # x before it
    gradients: list[Vector]
    losses: list[float]
    eta: float  # with which the mean was applied
    statistics: Statistics | None = None
    estimates: Estimates | None = None

    @property
    def k(self) -> int:
        return len(self.gradients)


@dataclass
class OnPaper:
    """Follows the records of a run, while everybody is there, with nothing but the formulas above."""

    problem: Quadratic
    linear: bool  # whether the learning rate is proportional to the share of a round
    workers: int = WORKERS
    x: Vector = field(init=False)
    updates: list[Update] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.x = self.problem.start
        self._centres = self.problem.centres
        self._versions = [self.x]
        self._arrived: dict[Gradient, tuple[Vector, float]] = {}

    def follow(self, records: Iterable[Record]) -> OnPaper:
        for record in records:
            match record.event:
                case GradientArrived():
                    self._arrived[record.event.gradient] = self._gradient(record.event)
                case UpdateApplied(version, statistics):
                    self.updates[version - 1].statistics = statistics
                    self.updates[version - 1].estimates = record.estimates
                case _:
                    pass
            for command in record.commands:
                if isinstance(command, ApplyUpdate):
                    self._apply([self._arrived[each] for each in command.gradients], record.estimates)
        return self

    def _gradient(self, event: GradientArrived) -> tuple[Vector, float]:
        problem, x = self.problem, self._versions[event.version]
        [unit] = event.units
        own = self._centres[order_of(problem.samples, 0, unit.epoch)[unit.begin : unit.end].numpy()]
        loss = problem.smoothness / 2 * float(((x - own) ** 2).sum(axis=1).mean())
        return problem.smoothness * (x - own.mean(axis=0)), loss

    def _apply(self, parts: list[tuple[Vector, float]], estimates: Estimates | None) -> None:
        gradients, losses = map(list, zip(*parts, strict=True))
        eta = self.problem.learning_rate * (len(parts) / self.workers if self.linear else 1.0)
        self.updates.append(Update(self.x, gradients, losses, eta, estimates=estimates))
        self.x = self.x - eta * np.mean(gradients, axis=0)
        self._versions.append(self.x)


def train(
    problem: Quadratic, policy: str, group: Simulation = STRAGGLING, *, scaling: str = "linear", epochs: int = 1000
) -> tuple[RunResult, list[Record]]:
    """A real training in virtual time, and all that happened."""
    keeper = RecordKeeper()
    result = train_virtually(problem.task, policy, group, epochs=epochs, lr_scaling=scaling, observers=[keeper])
    return result, keeper.records


def updates_of(
    problem: Quadratic, policy: str, updates: int, group: Simulation = STRAGGLING, *, scaling: str = "linear"
) -> list[Update]:
    """The first so many updates of a run, on paper. The weights on paper are those of the run."""
    ending = Simulation(**{name: getattr(group, name) for name in group.__struct_fields__} | {"updates": updates})
    result, records = train(problem, policy, ending, scaling=scaling)
    paper = OnPaper(problem, scaling == "linear").follow(records)
    assert result.model_state["weight"].numpy().ravel() == pytest.approx(paper.x, rel=1e-9, abs=1e-12)
    assert len(paper.updates) == updates
    return paper.updates


def scaling_of(rate: str) -> str:
    """What the store must do for the policy's `rate` to be true."""
    return {"fixed": "none", "proportional": "linear"}[rate]


def paper_estimates(updates: Sequence[Update]) -> list[tuple[float, float, float | None]]:
    """V, N and L of each update, as the paper has them; the first has no L. One gradient keeps the last V."""
    found: list[tuple[float, float, float | None]] = []
    variance = math.nan
    last: tuple[float, float, float, float] | None = None
    for each in updates:
        mean, loss = np.mean(each.gradients, axis=0), float(np.mean(each.losses))
        if each.k > 1:
            variance = sum(float(((own - mean) ** 2).sum()) for own in each.gradients) / (each.k - 1)
        noise = variance / each.k
        norm = max(float(mean @ mean) - noise, 0.0)
        smoothness = None
        if last is not None:
            before, eta, last_norm, last_noise = last
            smoothness = 2 * (loss - before + eta * last_norm) / (eta**2 * (last_norm + last_noise))
        found.append((variance, norm, smoothness))
        last = loss, each.eta, norm, noise
    return found


def paper_choice(estimates: Estimates, k: int = 0) -> int:
    """The number that is worth most per second; of several the largest; all, if none is worth anything.

    `k`: that of the update before, where the loss rose.
    """
    workers = len(estimates.gain)
    if max(estimates.gain) <= 0:
        return workers
    worth = {number: estimates.gain[number - 1] / estimates.time[number - 1] for number in range(1, workers + 1)}
    best = max(number for number, each in worth.items() if each == max(worth.values()))
    return max(best, min(k + 1, workers)) if k else best


# -- what the store sees --


@pytest.mark.parametrize(
    "policy", ["dbw:estimator=paper", "dbw:estimator=paper,late=interrupt", "dbw:estimator=paper,late=pull"]
)
def test_statistics_of_an_update_are_those_of_its_gradients(policy: str) -> None:
    problem = Quadratic()
    updates = updates_of(problem, policy, 40)
    for each in updates:
        seen = each.statistics
        assert seen is not None and seen.gradients == each.k
        mean = np.mean(each.gradients, axis=0)
        assert seen.squared_norm == pytest.approx(float(mean @ mean), rel=1e-9)
        assert seen.loss == pytest.approx(np.mean(each.losses), rel=1e-9)
        assert seen.learning_rate == problem.learning_rate
        if each.k == 1:
            assert seen.variance is None
        else:
            spread = sum(float(((own - mean) ** 2).sum()) for own in each.gradients)
            assert seen.variance == pytest.approx(spread / (each.k - 1), rel=1e-9)
    assert len({each.k for each in updates}) > 2


# -- V, N and L --


@pytest.mark.slow
@pytest.mark.parametrize("rate", ["fixed", "proportional"])
def test_variance_gradient_and_smoothness_are_estimated_without_bias(rate: str) -> None:
    """The means over all updates, against the truth: they lie within a few of their standard deviations.

    A mean of k gradients is off by z, whose d components each have the variance V / (k d). To first order that gives
    the deviations below; V / k itself, estimated from k gradients, is off by at most sqrt(4 / d) of it.
    """
    problem = Quadratic(samples=8192)
    group = Simulation(workers=WORKERS, speed="exponential:a=0.3")  # so that k is seldom 1, which has no V of its own
    policy = f"dbw:estimator=paper,window=100000,loss_rule=false,rate={rate}"
    updates = updates_of(problem, policy, 150, group, scaling=scaling_of(rate))
    found = updates[-1].estimates
    assert found is not None
    assert found.variance is not None and found.squared_norm is not None and found.smoothness is not None
    true_norms = [problem.smoothness**2 * float(each.at @ each.at) for each in updates]
    noises = [problem.variance / each.k for each in updates]
    per_dimension = 1 / problem.dimensions

    several = [each.k for each in updates if each.k > 1]
    off = problem.variance * math.sqrt(sum(2 * per_dimension / (k - 1) for k in several)) / len(several)
    assert SIGMAS * off < 0.03 * problem.variance
    assert abs(found.variance - problem.variance) < SIGMAS * off

    squares = [4 * per_dimension * noise * (norm + noise) for norm, noise in zip(true_norms, noises, strict=True)]
    off, expected = math.sqrt(sum(squares)) / len(updates), float(np.mean(true_norms))
    assert SIGMAS * off < 0.1 * expected
    assert abs(found.squared_norm - expected) < SIGMAS * off

    squares = []
    for (first, second), (noise, next_noise) in zip(pairwise(updates), pairwise(noises), strict=True):
        assert first.statistics is not None
        of_losses = noise * float(first.at @ first.at) + next_noise * float(second.at @ second.at)
        of_step = first.eta**2 * 4 * noise**2
        squares.append(4 * per_dimension * (of_losses + of_step) / (first.eta**2 * first.statistics.squared_norm) ** 2)
    off = math.sqrt(sum(squares)) / len(squares)
    assert SIGMAS * off < 0.15 * problem.smoothness
    assert abs(found.smoothness - problem.smoothness) < SIGMAS * off


@pytest.mark.parametrize(("rate", "window"), [("fixed", 1), ("fixed", 5), ("proportional", 3), ("proportional", 20)])
def test_estimates_are_means_over_the_window_and_the_gain_is_the_closed_form_with_them(rate: str, window: int) -> None:
    problem = Quadratic(dimensions=16)  # noisy: all three change all the time
    updates = updates_of(problem, f"dbw:estimator=paper,window={window},rate={rate}", 40, scaling=scaling_of(rate))
    single = paper_estimates(updates)
    assert updates[0].estimates is None  # nothing is known of L
    for number, each in enumerate(updates[1:], start=1):
        found = each.estimates
        assert found is not None
        so_far = list(zip(single[: number + 1], updates, strict=False))
        variance = [own for (own, _, _), update in so_far if update.k > 1]
        norm = [own for (_, own, _), _ in so_far]
        smoothness = [own for (_, _, own), _ in so_far if own is not None]
        assert found.variance == pytest.approx(np.mean(variance[-window:]))
        assert found.squared_norm == pytest.approx(np.mean(norm[-window:]))
        assert found.smoothness == pytest.approx(max(LEAST_SMOOTHNESS, float(np.mean(smoothness[-window:]))), rel=1e-6)
        eta = [problem.learning_rate * (k / WORKERS if rate == "proportional" else 1) for k in range(1, WORKERS + 1)]
        # A step of eta along a mean of k gradients: eta N of the way down, and L / 2 times its square up.
        gain = [
            step * found.squared_norm - found.smoothness / 2 * step**2 * (found.squared_norm + found.variance / k)
            for k, step in enumerate(eta, start=1)
        ]
        assert found.gain == pytest.approx(gain)


# -- T(h, k) --

DIVERGING = Quadratic(smoothness=1.0, learning_rate=2.2, dimensions=4, samples=256, distance=50.0)


def round_trip(a: float, worker: int) -> float:
    """The first time that a worker of `exponential` draws."""
    return 1 - a + a * Random(f"0/{worker}/speed").expovariate(1.0)


def test_time_after_the_first_update_is_when_each_gradient_came() -> None:
    updates = updates_of(Quadratic(dimensions=4, samples=64), "dbw:estimator=paper,blind=true", 1)
    found = updates[0].estimates
    assert found is not None
    assert found.time == pytest.approx(sorted(round_trip(0.6, worker) for worker in range(WORKERS)), abs=1e-8)


@pytest.mark.slow
def test_time_is_the_order_statistic_of_the_round_trip_where_all_start_together() -> None:
    """No update promises a gain, so that all wait for all: of n exponential times the k-th is at H(n) - H(n - k)."""
    rounds, a = 250, 0.6
    policy = "dbw:estimator=paper,rate=fixed,loss_rule=false,memory=1000000"
    updates = updates_of(DIVERGING, policy, rounds, scaling="none")
    assert {each.k for each in updates} == {WORKERS}
    found = updates[-1].estimates
    assert found is not None
    for k, seconds in enumerate(found.time, start=1):
        left = range(WORKERS - k + 1, WORKERS + 1)
        expected = 1 - a + a * sum(1 / each for each in left)
        off = a * math.sqrt(sum(1 / each**2 for each in left) / rounds)
        assert abs(seconds - expected) < SIGMAS * off
        assert SIGMAS * off < 0.11 * expected


@pytest.mark.slow
def test_time_counts_every_gradient_of_an_iteration_from_its_beginning_and_late_ones_too() -> None:
    """Against means of what the records say, for each h and k; the fit moves none by more than its standard error."""
    group = Simulation(workers=WORKERS, speed="exponential:a=0.6", updates=300)
    _, records = train(Quadratic(dimensions=16), "dbw:estimator=paper,window=1,memory=1000000", group)
    began, h, count = {0: 0.0}, {0: WORKERS}, {0: 0}
    seen: dict[tuple[int, int], list[float]] = {}
    found: dict[int, tuple[float, ...]] = {}
    for record in records:
        if isinstance(record.event, GradientArrived):
            version = record.event.version
            count[version] += 1
            seen.setdefault((h[version], count[version]), []).append(record.now - began[version])
        for command in record.commands:
            if isinstance(command, ApplyUpdate):
                version = len(began)
                began[version], h[version], count[version] = record.now, len(command.gradients), 0
        if record.estimates is not None:
            found[h[len(began) - 1]] = record.estimates.time
    compared = 0
    for (previous, k), times in seen.items():
        if previous in found and len(times) >= 20:
            off = float(np.std(times)) / math.sqrt(len(times))
            assert abs(found[previous][k - 1] - np.mean(times)) < off
            compared += 1
    assert compared >= 10


# -- k --


@pytest.mark.parametrize("rate", ["fixed", "proportional"])
def test_k_is_worth_most_per_second_and_the_next_update_has_so_many_gradients(rate: str) -> None:
    problem = Quadratic(dimensions=64, learning_rate=0.1)
    updates = updates_of(problem, f"dbw:estimator=paper,loss_rule=false,rate={rate}", 40, scaling=scaling_of(rate))
    for each, following in pairwise(updates[1:]):
        assert each.estimates is not None
        assert each.estimates.k == paper_choice(each.estimates) == following.k
    assert updates[0].k == updates[1].k == WORKERS  # nothing was known of L
    assert len({each.k for each in updates}) > 2


@pytest.mark.parametrize(("intervals", "first"), [((1.0, 1.0, 1.0, 1.0), 4), ((1.0, 1.0, 2.0, 2.0), 2)])
def test_of_several_that_are_worth_the_same_the_largest_k_is_taken(intervals: tuple[float, ...], first: int) -> None:
    """Without noise the gain is the same for all k; all numbers here are powers of two, so that ties are ties."""
    exact = Quadratic(
        smoothness=1.0, learning_rate=0.5, dimensions=2, samples=64, batch=1, radius=0.0, distance=math.sqrt(2)
    )
    updates = updates_of(exact, "dbw:estimator=paper,rate=fixed", 12, Simulation(intervals=intervals), scaling="none")
    choice = updates[1].estimates
    assert choice is not None
    assert (choice.variance, choice.smoothness) == (0.0, 1.0)
    assert len(set(choice.gain)) == 1 and choice.time == intervals
    assert choice.k == first
    for each, following in pairwise(updates[1:]):
        assert each.estimates is not None
        assert each.estimates.k == paper_choice(each.estimates) == following.k


@pytest.mark.parametrize(("rate", "learning_rate"), [("fixed", 2.2), ("proportional", 2.2 * WORKERS)])
def test_without_a_positive_gain_all_are_waited_for(rate: str, learning_rate: float) -> None:
    """Also where fewer would lose less: with a proportional rate."""
    problem = replace(DIVERGING, learning_rate=learning_rate)
    updates = updates_of(problem, f"dbw:estimator=paper,rate={rate},loss_rule=false", 20, scaling=scaling_of(rate))
    for each in updates[1:]:
        assert each.estimates is not None and max(each.estimates.gain) < 0
        assert each.estimates.k == each.k == WORKERS


@pytest.mark.parametrize("rule", ["true", "false"])
def test_after_a_rise_of_the_loss_by_more_than_1_percent_k_is_at_least_one_more_than_it_was(rule: str) -> None:
    problem = Quadratic(dimensions=64, learning_rate=0.05)
    updates = updates_of(problem, f"dbw:estimator=paper,rate=fixed,loss_rule={rule}", 60, scaling="none")
    matters: dict[str, int] = {"much": 0, "little": 0}  # how often one more would be another k than the best
    for before, each, following in zip(updates, updates[1:], updates[2:], strict=False):
        assert each.estimates is not None
        rise = float(np.mean(each.losses) / np.mean(before.losses))
        best = paper_choice(each.estimates)
        raised = paper_choice(each.estimates, each.k)
        assert each.estimates.k == following.k == (raised if rule == "true" and rise > 1.01 else best)
        if rise > 1:
            matters["much" if rise > 1.01 else "little"] += raised != best
    assert min(matters.values()) >= 1


def test_blind_takes_the_k_that_gets_most_gradients_per_second() -> None:
    updates = updates_of(Quadratic(dimensions=16), "dbw:estimator=paper,blind=true", 60)
    assert all(each.statistics is None for each in updates)
    for each, following in pairwise(updates):
        assert each.estimates is not None and each.estimates.variance is None
        assert each.estimates.gain == (1.0, 2.0, 3.0, 4.0)
        assert each.estimates.k == paper_choice(each.estimates) == following.k
    assert len({each.k for each in updates}) > 1


# -- whole runs --

EPOCHS = 2


@pytest.mark.parametrize(
    "policy",
    [
        *(f"dbw:estimator=paper,late={late}" for late in ("finish", "interrupt", "pull")),
        *(f"dbw:estimator=paper,blind=true,late={late}" for late in ("finish", "interrupt", "pull")),
        *(f"backup:k={k}" for k in range(1, WORKERS + 1)),
    ],
)
def test_all_train_and_every_sample_counts_once_per_epoch(policy: str) -> None:
    problem = Quadratic(dimensions=16, samples=256, learning_rate=0.1)
    result, records = train(problem, policy, epochs=EPOCHS)
    units = {
        record.event.gradient: record.event.units for record in records if isinstance(record.event, GradientArrived)
    }
    counted = sorted(
        (unit.epoch, place)
        for record in records
        for command in record.commands
        if isinstance(command, ApplyUpdate)
        for gradient in command.gradients
        for unit in units[gradient]
        for place in range(unit.begin, unit.end)
    )
    assert counted == [(epoch, place) for epoch in range(EPOCHS) for place in range(problem.samples)]
    assert result.samples == EPOCHS * problem.samples
    assert result.summary.pending == 0
    assert result.model_state["weight"].norm() ** 2 < problem.distance**2 / 20


def test_late_workers_finish_or_are_interrupted_or_push_again() -> None:
    problem = Quadratic(dimensions=16, samples=256, learning_rate=0.1)
    for late in ("finish", "interrupt", "pull"):
        result, records = train(problem, f"dbw:estimator=paper,late={late}", epochs=EPOCHS)
        twice = any(
            len({each.worker for each in command.gradients}) < len(command.gradients)
            for record in records
            for command in record.commands
            if isinstance(command, ApplyUpdate)
        )
        assert (result.summary.discarded > 0) is (late != "interrupt")
        assert (result.summary.interrupted > 0) is (late == "interrupt")
        assert twice is (late == "pull")


@pytest.mark.slow
def test_a_real_run_tells_its_estimates_and_its_replay_comes_to_the_same(tmp_path: Path) -> None:
    """Three processes: the workers' own norms and losses give the statistics that paper gives."""
    problem = Quadratic(dimensions=64, samples=512, learning_rate=0.1)
    task = problem.task
    result = fit(
        task.model,
        task.loss,
        task.train,
        optimizer=task.optimizer,
        batch_size=problem.batch,
        workers=3,
        policy="dbw:estimator=paper,window=7",
        speed="constant:seconds=0.003",
        slowdown={2: 3.0},
        run_dir=tmp_path / "run",
    )
    trace = Trace(tmp_path / "run" / "trace.jsonl")
    together = takewhile(lambda record: not isinstance(record.event, WorkerLeft), trace)
    paper = OnPaper(problem, linear=True, workers=3).follow(together)
    assert result.samples == problem.samples and len(paper.updates) > 30
    single = np.array(paper_estimates(paper.updates), dtype=float)
    for number, each in enumerate(paper.updates):
        seen, mean = each.statistics, np.mean(each.gradients, axis=0)
        assert seen is not None and seen.gradients == each.k
        assert seen.squared_norm == pytest.approx(float(mean @ mean))
        assert seen.loss == pytest.approx(np.mean(each.losses))
        variance, norm, smoothness = single[: number + 1].T
        found = each.estimates
        assert (found is None) is (number == 0)
        if found is not None:
            several = [update.k > 1 for update in paper.updates[: number + 1]]
            assert found.variance == pytest.approx(np.mean(variance[several][-7:]))
            assert found.squared_norm == pytest.approx(np.mean(norm[-7:]))
            assert found.smoothness == pytest.approx(max(LEAST_SMOOTHNESS, np.mean(smoothness[1:][-7:])), rel=1e-6)

    choices = [line for line in read_metrics(tmp_path / "run" / "metrics.jsonl") if isinstance(line, Choice)]
    assert choices == [Choice(each.now, each.estimates) for each in trace if each.estimates is not None]
    assert len(choices) == result.summary.updates - 1
    for each in (choice.estimates for choice in choices):
        assert 1 <= each.k <= len(each.gain) == len(each.time) <= 3
        assert None not in (each.variance, each.squared_norm, each.smoothness)
    assert [each.estimates for each in replay(trace) if each.estimates] == [each.estimates for each in choices]
    assert first_difference(trace) is None

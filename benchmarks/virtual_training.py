"""What training in virtual time costs: memory for many workers, and the simulator's own time per push.

    python benchmarks/virtual_training.py [--out FILE.json] [--repeat 15] [--quick]
The model has one million parameters, the batches are small, and torch has one thread.
- Memory: the peak of a process of its own per policy, beside what it held right before the training.
- Time: a run, and after every 16 of its pushes the same tensor work by hand with torch alone: the batch, forward and
  backward pass, the gradient made flat, the mean, the optimizer's step, and one copy of the parameters per version that
  somebody pulled. Both end with the same parameters, to the bit. What the run takes beyond that is its own cost: every
  further look at a gradient is part of it. Deciding alone is timed by giving the recorded events to a fresh policy.
  For DBW, a run that is told what to decide shows what is left without statistics and choices.
Times are those of the processor, which other processes disturb less, and the median over the repetitions counts, for
every 16 pushes on their own. `best` compares the best of each instead. Still: compare figures within one run only.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from paceline.core.coordinator import Coordinator
from paceline.core.messages import (
    ApplyUpdate,
    Command,
    Decision,
    DiscardGradient,
    Event,
    Gradient,
    GradientArrived,
    InterruptWorker,
    SendParameters,
    UpdateApplied,
)
from paceline.core.progress import Progress
from paceline.experiment.simulation import Simulation
from paceline.experiment.virtual_training import train_virtually
from paceline.policies import Policy
from paceline.policies import policy as build_policy
from paceline.recording.observer import Observer
from paceline.recording.trace import Record
from paceline.training.data import fetch, order_of
from paceline.training.layout import layout_of, views
from paceline.training.optimizers import warm_up
from paceline.training.task import Task

BUDGET = 2_000  # megabytes for 64 workers
ALLOWED = 200  # microseconds per push
LEARNING_RATE, MOMENTUM = 0.01, 0.9
BATCH, SAMPLES = 4, 512
EPOCHS = 1_000  # more than any run here needs: pushes end it
MEMORY_POLICIES = ("asp", "bsp", "elastic-bsp", "ssp", "backup", "dbw")
MEMORY_WORKERS, MANY_WORKERS = 64, 400
MEMORY_ROUNDS = 20  # pushes per worker: enough for a superstep of ElasticBSP
TIMED_POLICIES = ("asp", "bsp", "ssp:staleness=3", "dssp", "elastic-bsp", "backup", "buffered", "dbw")
TIMED_WORKERS = 16
TURN = 16  # pushes in the run, then the same by hand
WARM, PUSHES = 6 * TURN, 12 * TURN  # until every worker has its memory; timed


def task() -> Task:
    """A perceptron of 1.0 million parameters, and noise to learn."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 213), nn.ReLU(), nn.Linear(213, 10))
    data = TensorDataset(
        torch.randn(SAMPLES, 784, generator=generator), torch.randint(10, (SAMPLES,), generator=generator)
    )
    optimizer = partial(torch.optim.SGD, lr=LEARNING_RATE, momentum=MOMENTUM)
    return Task(model, F.cross_entropy, data, optimizer=optimizer, batch_size=BATCH)


def unequal(workers: int, pushes: int) -> Simulation:
    intervals = tuple(1 + 0.5 * worker / workers for worker in range(workers))
    return Simulation(intervals=intervals, jitter=0.5, pushes=pushes)


# -- memory --


def memory(policy: str, workers: int) -> dict[str, float]:
    """In this process, which must be a fresh one."""
    torch.set_num_threads(1)
    warm_up()
    given = task()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    before = pages * resource.getpagesize() / 1e6
    began = time.perf_counter()
    result = train_virtually(given, policy, unequal(workers, MEMORY_ROUNDS * workers), epochs=EPOCHS, stale="none")
    seconds = time.perf_counter() - began
    # It counts what the process held before it was this program, too: the parent has to be smaller than this.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    one = 4e-6 * sum(tensor.numel() for tensor in result.model_state.values())
    return {
        "workers": workers,
        "megabytes_before": before,
        "megabytes_peak": peak,
        "models_per_worker": (peak - before) / one / workers,
        "seconds": seconds,
    }


def measure_memory(cells: Sequence[tuple[str, int]]) -> dict[str, dict[str, float]]:
    found = {}
    print(f"{'policy':<18}{'workers':>8}{'MB before':>11}{'MB peak':>9}{'models/worker':>15}{'seconds':>9}")
    for policy, workers in cells:
        command = [sys.executable, __file__, "--cell", policy, str(workers)]
        cell = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        found[f"{policy}, {workers}"] = cell
        print(
            f"{policy:<18}{workers:>8}{cell['megabytes_before']:>11.0f}{cell['megabytes_peak']:>9.0f}"
            f"{cell['models_per_worker']:>15.2f}{cell['seconds']:>9.1f}",
            flush=True,
        )
    return found


# -- the tensor work of a run, by hand --


class Compute(NamedTuple):
    parameters: list[Tensor]
    indices: Tensor
    into: Tensor


class Update(NamedTuple):
    gradients: list[Tensor]
    factors: list[float]
    rate: float


class Copy(NamedTuple):
    into: Tensor


Step = Compute | Update | Copy


class Plan:
    """What a recorded run has to do with tensors, in as many pieces of memory as it needs."""

    def __init__(self, records: Sequence[Record], given: Task, seed: int) -> None:
        self._entries = layout_of(given.model).parameters
        self._size = sum(entry.size for entry in self._entries)
        self._version = 0
        self._versions: list[tuple[int, Tensor, set[int]]] = []  # number, parameters, the workers that hold them
        self._free: list[Tensor] = []
        self._gradients: dict[Gradient, Tensor] = {}
        orders = {epoch: order_of(SAMPLES, seed, epoch) for epoch in range(len(records) * BATCH // SAMPLES + 1)}
        self.steps: list[Step] = []
        self._reached: list[int] = []  # how many of them have been done when each record is made
        self._done = 0
        for record in records:
            if isinstance(record.event, GradientArrived):
                (unit,) = record.event.units
                indices = orders[unit.epoch][unit.begin : unit.end]
                self.steps.append(self._compute(record.event.gradient, indices))
            self._reached.append(len(self.steps))
            self.steps += [step for command in record.commands if (step := self._follow(command)) is not None]

    def until(self, records: int | None = None) -> list[Step]:
        """What is still to do until so many records have been made; None: until the end."""
        before, self._done = self._done, len(self.steps) if records is None else self._reached[records - 1]
        return self.steps[before : self._done]

    def _follow(self, command: Command) -> Step | None:
        if isinstance(command, ApplyUpdate):
            return self._update(command)
        if isinstance(command, DiscardGradient):
            self._free.append(self._gradients.pop(command.gradient))
            return None
        return self._pull(command.worker)

    def _compute(self, gradient: Gradient, indices: Tensor) -> Compute:
        into = self._gradients[gradient] = self._free.pop() if self._free else torch.empty(self._size)
        (held,) = (flat for _, flat, holders in self._versions if gradient.worker in holders)
        return Compute(list(views(held, self._entries).values()), indices, into)

    def _update(self, command: ApplyUpdate) -> Update:
        gradients = [self._gradients.pop(gradient) for gradient in command.gradients]
        weights = command.weights or (1.0,) * len(gradients)
        self._free += gradients
        self._version += 1
        rate = LEARNING_RATE * min(1.0, len(gradients) / TIMED_WORKERS)
        return Update(gradients, [weight * BATCH / (BATCH * len(gradients)) for weight in weights], rate)

    def _pull(self, worker: int) -> Copy | None:
        """Workers that pulled the same version share a copy; a copy that no worker holds any more is used again."""
        for _, _, holders in self._versions:
            holders.discard(worker)
        for number, _, holders in self._versions:
            if number == self._version:
                holders.add(worker)
                return None
        at = next((at for at, (_, _, holders) in enumerate(self._versions) if not holders), len(self._versions))
        flat = self._versions[at][1] if at < len(self._versions) else torch.empty(self._size)
        self._versions[at : at + 1] = [(self._version, flat, {worker})]
        return Copy(flat)


class ByHand:
    """Carries out the steps of a plan with plain torch."""

    def __init__(self, given: Task) -> None:
        self._model = copy.deepcopy(given.model)
        self._data = given.train
        self._own = list(self._model.parameters())
        self.flat = nn.Parameter(torch.cat([parameter.detach().reshape(-1) for parameter in self._own]))
        self._optimizer = torch.optim.SGD([self.flat], lr=LEARNING_RATE, momentum=MOMENTUM)

    def do(self, steps: Iterable[Step]) -> None:
        for step in steps:
            if isinstance(step, Compute):
                for parameter, held in zip(self._own, step.parameters, strict=True):
                    parameter.data = held
                    parameter.grad = None
                x, y = fetch(self._data, step.indices)
                F.cross_entropy(self._model(x), y).backward()
                torch.cat([parameter.grad.reshape(-1) for parameter in self._own], out=step.into)
            elif isinstance(step, Update):
                mean = step.gradients[0]
                if step.factors != [1.0]:
                    mean.mul_(step.factors[0])
                for gradient, factor in zip(step.gradients[1:], step.factors[1:], strict=True):
                    mean.add_(gradient, alpha=factor)
                self.flat.grad = mean
                self._optimizer.param_groups[0]["lr"] = step.rate
                self._optimizer.step()
            else:
                step.into.copy_(self.flat.detach())


# -- time --


class RecordKeeper(Observer):
    def __init__(self) -> None:
        self.records: list[Record] = []

    def observe(self, record: Record) -> None:
        self.records.append(record)


class Turns(Observer):
    """Does by hand what the run did since its last turn, and times both."""

    def __init__(self, plan: Plan, hand: ByHand) -> None:
        self.run: list[float] = []  # seconds of each turn
        self.by_hand: list[float] = []
        self._plan = plan
        self._hand = hand
        self._records = self._pushes = 0
        self._resumed = time.process_time()

    def observe(self, record: Record) -> None:
        self._records += 1
        self._pushes += isinstance(record.event, GradientArrived)
        if self._pushes < TURN:
            return
        self._pushes = 0
        now = time.process_time()
        self._hand.do(self._plan.until(self._records))
        self.run.append(now - self._resumed)
        self._resumed = time.process_time()
        self.by_hand.append(self._resumed - now)


class AsRecorded(Policy):
    """Decides what was decided before, in no time, and asks for no statistics."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._decisions = iter(
            [decision_of(record) for record in records if not isinstance(record.event, UpdateApplied)]
        )

    def decide(self, event: Event, progress: Progress, now: float) -> Decision:
        return next(self._decisions)

    def __str__(self) -> str:
        return "as recorded"


def decision_of(record: Record) -> Decision:
    commands = record.commands
    update = next((command for command in commands if isinstance(command, ApplyUpdate)), ApplyUpdate(()))
    return Decision(
        apply=update.gradients,
        weights=update.weights,
        discard=tuple(command.gradient for command in commands if isinstance(command, DiscardGradient)),
        release=tuple(command.worker for command in commands if isinstance(command, SendParameters)),
        interrupt=tuple(command.worker for command in commands if isinstance(command, InterruptWorker)),
        reason=record.reason,
    )


def deciding(policy: str, records: Sequence[Record]) -> list[float]:
    """Seconds that the coordinator and the policy take for each event."""
    coordinator = Coordinator(build_policy(policy))
    seconds = []
    for record in records:
        began = time.process_time()
        coordinator.handle(record.event, record.now)
        seconds.append(time.process_time() - began)
    return seconds


class Measured:
    """One policy's repetitions."""

    def __init__(self, policy: str, pushes: int) -> None:
        self.policy = policy
        self._pushes = pushes
        self._task = task()
        self._simulation = unequal(TIMED_WORKERS, WARM + pushes)
        self._has_statistics = build_policy(policy).wants_statistics
        self._turns: list[Turns] = []
        self._as_recorded: list[Turns] = []
        self._decisions: list[list[float]] = []
        keeper = RecordKeeper()
        train_virtually(self._task, policy, self._simulation, epochs=EPOCHS, stale="none", observers=[keeper])
        self._records = keeper.records

    def repeat(self) -> None:
        self._turns.append(self._take_turns(self.policy))
        self._decisions.append(deciding(self.policy, self._records))
        if self._has_statistics:
            self._as_recorded.append(self._take_turns(AsRecorded(self._records)))

    def _take_turns(self, policy: Policy | str) -> Turns:
        told = isinstance(policy, AsRecorded)
        records = [record for record in self._records if not (told and isinstance(record.event, UpdateApplied))]
        plan, hand = Plan(records, self._task, self._simulation.seed), ByHand(self._task)
        turns = Turns(plan, hand)
        result = train_virtually(self._task, policy, self._simulation, epochs=EPOCHS, stale="none", observers=[turns])
        hand.do(plan.until())
        found = torch.cat([tensor.reshape(-1) for tensor in result.model_state.values()])
        assert torch.equal(found, hand.flat.detach()), f"{policy}: by hand it comes to something else"
        return turns

    def figures(self) -> dict[str, Any]:
        arrivals = [at for at, record in enumerate(self._records) if isinstance(record.event, GradientArrived)]
        first, last = arrivals[WARM - 1], arrivals[-1]  # timed: from the one's commands to the decision on the other
        plan = Plan(self._records, self._task, self._simulation.seed)
        plan.until(first + 1)
        steps = plan.until(last + 1)
        updates = sum(isinstance(step, Update) for step in steps)
        decisions = [seconds[first + 1 : last + 1] for seconds in self._decisions]
        runs, hands = timed(self._turns)
        own = [differences(*pair) for pair in zip(runs, hands, strict=True)]
        per_push = 1e6 / self._pushes
        found = {
            "pushes": self._pushes,
            "updates": updates,
            "copies": sum(isinstance(step, Copy) for step in steps),
            "run_microseconds": total(runs) * per_push,
            "unavoidable_microseconds": total(hands) * per_push,
            "ratio": total(runs) / total(hands),
            "own_microseconds": total(own) * per_push,
            "own_microseconds_best": (total(runs, min) - total(hands, min)) * per_push,
            "own_microseconds_all": [sum(turns) * per_push for turns in own],
            "deciding_microseconds": total(decisions) * per_push,
        }
        if self._has_statistics:
            choosing = [isinstance(record.event, UpdateApplied) for record in self._records[first + 1 : last + 1]]
            choice = total([list(compress(seconds, choosing)) for seconds in decisions])
            besides = total([differences(*pair) for pair in zip(*timed(self._as_recorded), strict=True)])
            found["choice_milliseconds_per_update"] = choice / updates * 1e3
            found["statistics_milliseconds_per_update"] = (total(own) - besides - choice) / updates * 1e3
            found["own_microseconds_besides"] = besides * per_push
        return found


def timed(turns: Sequence[Turns]) -> tuple[list[list[float]], list[list[float]]]:
    """Of each repetition, the seconds per turn of the run and by hand."""
    runs = [repetition.run[WARM // TURN :] for repetition in turns]
    return runs, [repetition.by_hand[WARM // TURN :] for repetition in turns]


def differences(ones: Sequence[float], others: Sequence[float]) -> list[float]:
    return [one - other for one, other in zip(ones, others, strict=True)]


def total(repetitions: Sequence[Sequence[float]], of: Callable[[list[float]], float] = statistics.median) -> float:
    """The sum of what each turn, or each event, typically took."""
    return sum(of(list(values)) for values in zip(*repetitions, strict=True))


def measure_time(policies: Sequence[str], pushes: int, repeat: int) -> dict[str, dict[str, Any]]:
    torch.set_num_threads(1)
    contenders = [Measured(policy, pushes) for policy in policies]
    for _ in range(repeat):
        for contender in contenders:
            contender.repeat()
    headings = ("updates", "copies", "run", "by hand", "ratio", "own", "best", "deciding")
    print(f"{'policy':<18}" + "".join(f"{heading:>10}" for heading in headings))
    found = {}
    for contender in contenders:
        row = found[contender.policy] = contender.figures()
        print(
            f"{contender.policy:<18}{row['updates']:>10}{row['copies']:>10}{row['run_microseconds']:>10,.0f}"
            f"{row['unavoidable_microseconds']:>10,.0f}{row['ratio']:>10.2f}{row['own_microseconds']:>10,.0f}"
            f"{row['own_microseconds_best']:>10,.0f}{row['deciding_microseconds']:>10,.0f}"
        )
        if "choice_milliseconds_per_update" in row:
            print(
                f"  {contender.policy}, per update: statistics {row['statistics_milliseconds_per_update']:.2f} ms,"
                f" choice of k {row['choice_milliseconds_per_update']:.2f} ms; besides these"
                f" {row['own_microseconds_besides']:.0f} us per push"
            )
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path, default=Path("benchmarks/results/virtual_training.json"))
    arguments.add_argument("--repeat", type=int, default=15)
    arguments.add_argument("--quick", action="store_true", help="fewer pushes and repetitions, and no large group")
    arguments.add_argument("--cell", nargs=2, metavar=("POLICY", "WORKERS"), help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.cell:
        print(json.dumps(memory(given.cell[0], int(given.cell[1]))))
        return
    load = os.getloadavg()[0]
    parameters = sum(parameter.numel() for parameter in task().model.parameters())
    print(f"memory, {parameters:,} parameters (wanted: {MEMORY_WORKERS} workers within {BUDGET:,} MB)")
    cells = [(policy, MEMORY_WORKERS) for policy in MEMORY_POLICIES]
    many = [] if given.quick else [("asp", MANY_WORKERS)]
    remembered = measure_memory(cells + many)
    repeat, pushes = (min(3, given.repeat), 96) if given.quick else (given.repeat, PUSHES)
    print(f"microseconds per push, {TIMED_WORKERS} workers, batches of {BATCH} (wanted: own cost under {ALLOWED})")
    measured = measure_time(TIMED_POLICIES, pushes, repeat)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    facts = {"cores": os.cpu_count(), "python": platform.python_version(), "torch": torch.__version__}
    facts |= {"parameters": parameters, "batch": BATCH, "repetitions": repeat, "load": [load, os.getloadavg()[0]]}
    given.out.write_text(json.dumps({**facts, "memory": remembered, "time": measured}, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Which policy for a user's own model? Its loop under every policy in virtual time: `paceline.compare`."""

from __future__ import annotations

import io
import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from paceline.core.errors import ConfigurationError
from paceline.experiment.comparison import ACCURACY, Comparison, Outcome, Trial, run_trials
from paceline.experiment.limits import limits_of
from paceline.experiment.own_loop import OwnFunctions, digest_of, own_functions
from paceline.experiment.pictures import draw_comparison
from paceline.experiment.rows import Row, learning_rows, rows_of
from paceline.experiment.simulation import Simulation, policy_for, worker_speeds
from paceline.experiment.worker_times import described_times
from paceline.policies import POLICIES
from paceline.report.tables import learning_table
from paceline.runtimes.speeds import Slowdown

LOOP = "loop "  # how the threads of simulated workers are called
CHOICES_OF_NOT_FINITE = ("stop", "skip")


@dataclass(frozen=True)
class ComparisonResult:
    """`print(result)` shows the table. `rows`: a policy each, over all seeds; `outcomes`: every single run."""

    rows: list[Row]
    outcomes: list[Outcome] = field(repr=False)
    target: float | None = None
    tuned: bool = False

    def __str__(self) -> str:
        text = io.StringIO()
        table = learning_table(learning_rows(self.rows), self.target, tuned=self.tuned)
        Console(file=text, width=200).print(table)
        said = [f"{row.policy}: {problem}" for row in self.rows for problem in row.problems]
        return "\n".join([*(line.rstrip() for line in text.getvalue().splitlines()), *said])

    def draw(self, directory: Path | str, suffix: str = ".svg") -> list[Path]:
        """The pictures, as `paceline compare` draws them."""
        return draw_comparison(self.outcomes, self.rows, Path(directory), target=self.target, suffix=suffix)


def compare(
    train: Callable[..., None],
    *,
    workers: str | int | Sequence[float] | None = None,
    policies: Sequence[str] | None = None,
    seeds: int = 3,
    epochs: int | None = None,
    steps: int | None = None,
    evaluate: Callable[[Any], Any] | None = None,
    evaluate_every: int | None = None,
    target_accuracy: float | None = None,
    stop_at_target: bool = False,
    tune_lr: Sequence[float] = (1.0,),
    speed: str | None = None,
    trace: Path | str | None = None,
    jitter: float = 0.0,
    slowdown: dict[int, float] | None = None,
    budget: float | None = None,
    lr_scaling: str = "auto",
    stale: str = "auto",
    not_finite: str = "stop",
    processes: int | None = None,
    out: Path | str | None = None,
) -> ComparisonResult:
    """Run `train(worker)` under every policy in virtual time, with real gradients, before any real time is spent.

    `workers`: "3x1.0,1x4.0" (three that need a second for an iteration, and one that needs four), a list of such times,
    or a number, with `speed` ("lognormal:seconds=0.02"). `trace`: instead, the times of a CSV or of a run directory.
    `policies`: all by default. `seeds`: runs of each. `epochs`, `steps` (full rounds) and `budget` (virtual seconds):
    the first that is reached ends a run; an epoch, if none of them is given. `evaluate(state)`: as in `launch`; without
    one the training loss is shown. `evaluate_every`: samples; by default an epoch. `target_accuracy`: the time to it is
    measured, and `stop_at_target` ends a run there. `tune_lr`: factors on your learning rate, of which every policy
    gets its best. `jitter`: sigma of a lognormal factor on every iteration. `slowdown`: {3: 4.0}. `processes`: runs at
    a time; functions of a notebook or of another function run in this process, one by one.
    `out`: where results and pictures go; the same comparison then goes on where it was.
    """
    refuse_inside_a_trial()
    functions = own_functions(train, evaluate)
    names = list(POLICIES) if policies is None else list(policies)
    simulation = _simulation(workers, speed, trace, jitter, slowdown, budget)
    if target_accuracy is not None and evaluate is None:
        raise ConfigurationError("target_accuracy: without evaluate nobody finds an accuracy")
    comparison = own_comparison(
        functions,
        name=getattr(train, "__name__", type(train).__name__),
        simulation=simulation,
        epochs=limits_of(epochs, steps, None, budget).epochs,
        steps=steps,
        lr_scaling=lr_scaling,
        stale=stale,
        not_finite=not_finite,
        evaluate_every=evaluate_every,
        stop_at=target_accuracy if stop_at_target else None,
    )
    trials = trials_of(names, seeds, tuple(tune_lr), simulation)
    directory = None if out is None else Path(out)
    found = {
        outcome.trial: outcome
        for outcome in run_trials(comparison, trials, directory, processes or os.cpu_count() or 1, functions)
    }
    outcomes = [found[trial] for trial in trials]
    refuse_without_accuracy(outcomes, target_accuracy)
    result = ComparisonResult(
        rows_of(outcomes, names, target_accuracy), outcomes, target_accuracy, tuned=len(tune_lr) > 1
    )
    if directory is not None:
        result.draw(directory)
    return result


def refuse_inside_a_trial() -> None:
    """A trial loads the user's script; if that compares again, there is no end to it."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(1)  # a new process imports the script: whoever started it says why it ended
    if threading.current_thread().name.startswith(LOOP):
        raise ConfigurationError(
            "a simulated worker loads your script, and the script compares again: put the call of compare under"
            " `if __name__ == '__main__':`"
        )


def own_comparison(functions: OwnFunctions, *, name: str, **options: Any) -> Comparison:
    """What the trials of these functions have in common. `options`: fields of Comparison."""
    not_finite = options.get("not_finite", "stop")
    if not_finite not in CHOICES_OF_NOT_FINITE:
        raise ConfigurationError(f"unknown not_finite {not_finite!r}; there are: {', '.join(CHOICES_OF_NOT_FINITE)}")
    called = getattr(functions.train, "description", name)
    return Comparison(task=name, own=f"{called} {digest_of(functions)}", **options)


def trials_of(names: Sequence[str], seeds: int, factors: tuple[float, ...], simulation: Simulation) -> list[Trial]:
    """Every policy, seed and factor; ConfigurationError if anything about them is impossible."""
    if seeds < 1:
        raise ConfigurationError(f"seeds is {seeds}; it must be at least 1")
    if not factors or not all(0 < factor < float("inf") for factor in factors):
        raise ConfigurationError("tune_lr: must be numbers above 0, as in (0.5, 1, 2)")
    group = worker_speeds(simulation)
    for name in names:
        policy_for(name, len(group))
    return [Trial(name, seed, factor) for seed in range(seeds) for name in names for factor in factors]


def refuse_without_accuracy(outcomes: Sequence[Outcome], target: float | None) -> None:
    figure = outcomes[0].figure
    if target is not None and figure != ACCURACY:
        raise ConfigurationError(f"the evaluation finds {figure}, and no accuracy that could reach a target")


def _simulation(
    workers: str | int | Sequence[float] | None,
    speed: str | None,
    trace: Path | str | None,
    jitter: float,
    slowdown: dict[int, float] | None,
    budget: float | None,
) -> Simulation:
    times: tuple[float, ...] | None = None
    count: int | None = None
    if isinstance(workers, str) and not workers.strip().isdigit():
        times = described_times(workers, "workers")
    elif isinstance(workers, str | int):
        count = int(workers)
    elif workers is not None:
        times = tuple(float(seconds) for seconds in workers)
    slow = tuple(Slowdown(worker, factor) for worker, factor in (slowdown or {}).items())
    return Simulation(
        intervals=times,
        workers=count,
        speed=speed,
        trace=None if trace is None else str(trace),
        jitter=jitter,
        slowdowns=slow,
        duration=budget,
    )

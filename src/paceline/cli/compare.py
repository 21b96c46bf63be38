"""`paceline compare`: learning curves of policies side by side in virtual time, before any money is spent."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from typer import Argument, Context, Option

from paceline.cli import options
from paceline.cli.arguments import numbers, policy_names, size_of_group, slowdown, switches, times_of_group
from paceline.cli.trials import run_with_progress
from paceline.core.errors import ConfigurationError
from paceline.experiment import Simulation
from paceline.experiment.comparison import Comparison
from paceline.experiment.limits import limits_of
from paceline.experiment.own_comparison import own_comparison, refuse_without_accuracy, trials_of
from paceline.experiment.own_loop import OwnFunctions
from paceline.experiment.pictures import caption_of, draw_comparison
from paceline.experiment.rows import learning_rows, rows_of
from paceline.report.console import output, stdout_is_for_json
from paceline.report.tables import learning_table


def compare_command(
    context: Context,
    task: Annotated[
        str,
        Argument(
            metavar="TASK|SCRIPT",
            help="digits, fashion-mnist or cifar10; or a Python file with train(worker), and evaluate(state).",
        ),
    ],
    arguments: Annotated[list[str] | None, Argument(help="For the script, after --; they are in its sys.argv.")] = None,
    policy: Annotated[
        list[str] | None, Option("--policy", "-p", help="A policy such as ssp:staleness=3; repeat it. Default: all.")
    ] = None,
    workers: options.SimulatedWorkers = None,
    speed: options.Speed = None,
    intervals: Annotated[str | None, Option(help="Time of an iteration of each worker: 1.0,1.9")] = None,
    trace: Annotated[
        Path | None,
        Option(
            "--trace",
            "--trace-of",
            help="Iteration times: a CSV (worker,iteration,seconds), or the directory of a run that you have.",
        ),
    ] = None,
    jitter: Annotated[float, Option(help="Sigma of a lognormal factor on every iteration.")] = 0.0,
    slow: options.Slow = None,
    switch: options.Switches = None,
    epochs: Annotated[int | None, Option(help="Passes over the data set.")] = None,
    steps: Annotated[int | None, Option(help="End each run of a script after so many full rounds.")] = None,
    budget: Annotated[float | None, Option(help="End each run at this virtual time.")] = None,
    target_accuracy: options.TargetAccuracy = None,
    seeds: Annotated[int, Option(help="Runs of each policy, with seeds 0, 1, ...")] = 3,
    tune_lr: Annotated[
        str | None, Option(help="Factors on the learning rate, as 0.5,1,2: each policy gets its best.")
    ] = None,
    model: options.Model = None,
    data: options.Data = None,
    optimizer: options.Optimizer = "sgd",
    lr: options.LearningRate = None,
    momentum: options.Momentum = None,
    nesterov: options.Nesterov = False,
    weight_decay: options.WeightDecay = None,
    batch_size: options.BatchSize = None,
    evaluate_every: options.EvaluateEvery = None,
    lr_scaling: options.LrScaling = "auto",
    stale: options.Stale = "auto",
    not_finite: Annotated[
        str, Option(help="At a NaN or infinite gradient of a script: stop that run, or skip and count.")
    ] = "stop",
    processes: Annotated[int | None, Option(help="Runs at a time. Default: as many as there are cores.")] = None,
    out: Annotated[Path, Option(help="Results and plots go here; the same comparison goes on where it was.")] = Path(
        "comparison"
    ),
    stop_at_target: Annotated[bool, Option("--stop-at-target", help="End a run when it is there.")] = False,
    picture_format: Annotated[str, Option("--format", help="Of the plots: svg or png.")] = "svg",
    as_json: options.AsJson = False,
) -> None:
    """Compare policies in virtual time with real gradients: accuracy over time, waiting, staleness."""
    names = policy_names(policy or ["all"])
    simulation = Simulation(
        intervals=times_of_group(workers, intervals),
        workers=size_of_group(workers),
        speed=speed,
        trace=None if trace is None else str(trace),
        jitter=jitter,
        slowdowns=tuple(slowdown(text, "--slow") for text in slow or ()),
        switches=switches(switch or []),
        duration=budget,
    )
    factors = (1.0,) if tune_lr is None else numbers(tune_lr, "--tune-lr")
    _check(seeds, factors, target_accuracy, processes, epochs)
    trials = trials_of(names, seeds, factors, simulation)
    if picture_format not in ("svg", "png"):
        raise ConfigurationError(f"--format {picture_format}: must be svg or png")
    common = Common(simulation, epochs, lr_scaling, stale, evaluate_every, target_accuracy if stop_at_target else None)
    own = None
    if task.endswith(".py") or Path(task).is_file():
        _refuse_for_scripts(context)
        own = _functions(Path(task), tuple(arguments or ()), target_accuracy)
        name = Path(task).stem
        limits = limits_of(epochs, steps, None, budget)
        given = common._replace(epochs=limits.epochs)._asdict()
        comparison = own_comparison(own, name=name, not_finite=not_finite, steps=steps, **given)
    elif steps is not None:
        raise ConfigurationError("--steps is for scripts; --epochs, or --budget in virtual seconds, ends a task's run")
    else:
        name = task
        settings = TaskSettings(data, model, optimizer, lr, momentum, weight_decay, nesterov, batch_size)
        comparison = _of_a_task(task, settings, common, arguments)
    with stdout_is_for_json(as_json):
        outcomes = run_with_progress(name, comparison, trials, out, processes or os.cpu_count() or 1, own)
    refuse_without_accuracy(outcomes, target_accuracy)
    rows = rows_of(outcomes, names, target_accuracy)
    try:
        draw_comparison(
            *(outcomes, rows, out),
            target=target_accuracy,
            suffix=f".{picture_format}",
            caption=caption_of(comparison),
            marks=[(own.at, own.policy) for own in simulation.switches],
        )
    except ConfigurationError as missing:  # no matplotlib: the figures are there all the same
        print(f"paceline: {missing}", file=sys.stderr)
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(rows)).decode())
        return
    console = output()
    console.print(learning_table(learning_rows(rows), target_accuracy, tuned=len(factors) > 1), "")
    if not any(outcome.curve for outcome in outcomes):
        said = "nothing was measured: give the loss, as in optimizer.step(loss), or write an evaluate(state)"
        print(f"paceline: {said}", file=sys.stderr)
    for row in rows:
        for problem in row.problems:
            console.print(f"{row.policy}: {problem}", highlight=False, markup=False)
    console.print(f"results and plots: {out}", highlight=False, markup=False)


class Common(NamedTuple):
    """What a comparison is told, whatever it trains."""

    simulation: Simulation
    epochs: int | None
    lr_scaling: str
    stale: str
    evaluate_every: int | None
    stop_at: float | None


class TaskSettings(NamedTuple):
    data: Path | None
    model: str | None
    optimizer: str
    learning_rate: float | None
    momentum: float | None
    weight_decay: float | None
    nesterov: bool
    batch_size: int | None


def _of_a_task(task: str, settings: TaskSettings, common: Common, arguments: list[str] | None) -> Comparison:
    from paceline.experiment.tasks import TASKS, settings_of, task_of  # torch takes a second to import

    if task not in TASKS:
        raise ConfigurationError(
            f"unknown task {task!r}; there are: {', '.join(TASKS)}; or name a script of yours, as in train.py"
        )
    if arguments:
        raise ConfigurationError(f"{arguments[0]}: a task takes no arguments of its own; a script does")
    chosen = settings._asdict() | {"data": None if settings.data is None else str(settings.data)}
    if common.epochs is None:
        common = common._replace(epochs=settings_of(task).epochs)
    comparison = Comparison(task=task, **chosen, **common._asdict())
    task_of(comparison.task_options())  # or refuse now
    return comparison


def _functions(path: Path, arguments: tuple[str, ...], target: float | None) -> OwnFunctions:
    from paceline.experiment.script import script_functions

    functions = OwnFunctions(*script_functions(path, arguments))
    if target is not None and functions.evaluate is None:
        raise ConfigurationError(f"--target-accuracy: {path} has no evaluate(state) that could find an accuracy")
    return functions


def _refuse_for_scripts(context: Context) -> None:
    """What a script says itself."""
    for name in ("model", "data", "optimizer", "lr", "momentum", "nesterov", "weight_decay", "batch_size"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise ConfigurationError(
                f"--{name.replace('_', '-')} is for the built-in tasks; a script says that itself (--tune-lr puts"
                " factors on its learning rate)"
            )


def _check(
    seeds: int, factors: tuple[float, ...], target: float | None, processes: int | None, epochs: int | None
) -> None:
    for what, value in (("--seeds", seeds), ("--processes", processes), ("--epochs", epochs)):
        if value is not None and value < 1:
            raise ConfigurationError(f"{what} {value}: must be at least 1")
    if not factors or not all(0 < factor < float("inf") for factor in factors):
        raise ConfigurationError("--tune-lr: must be numbers above 0 with commas between them, as in 0.5,1,2")
    if target is not None and not 0 < target <= 1:
        raise ConfigurationError(f"--target-accuracy {target:g}: must be above 0 and at most 1, as in 0.95")

"""`paceline compare`: learning curves of policies side by side in virtual time, before any money is spent."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import msgspec
from typer import Argument, Option

from paceline.cli import options
from paceline.cli.arguments import numbers, policy_names, size_of_group, slowdown, times_of_group
from paceline.cli.trials import run_with_progress
from paceline.core.errors import ConfigurationError
from paceline.experiment import Simulation, policy_for, worker_speeds
from paceline.experiment.comparison import Comparison, Trial, learning_rows, rows_of
from paceline.experiment.pictures import caption_of, draw_comparison
from paceline.report.console import output
from paceline.report.tables import learning_table


def compare_command(
    task: Annotated[str, Argument(help="digits, fashion-mnist or cifar10.")],
    policy: Annotated[
        list[str] | None, Option("--policy", "-p", help="A policy such as ssp:staleness=3; repeat it. Default: all.")
    ] = None,
    workers: options.SimulatedWorkers = None,
    speed: options.Speed = None,
    intervals: Annotated[str | None, Option(help="Time of an iteration of each worker: 1.0,1.9")] = None,
    trace: Annotated[Path | None, Option(help="A CSV of iteration times: worker,iteration,seconds.")] = None,
    jitter: Annotated[float, Option(help="Sigma of a lognormal factor on every iteration.")] = 0.0,
    slow: options.Slow = None,
    epochs: Annotated[int | None, Option(help="Passes over the data set.")] = None,
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
    processes: Annotated[int | None, Option(help="Runs at a time. Default: as many as there are cores.")] = None,
    out: Annotated[Path, Option(help="Results and plots go here; the same comparison goes on where it was.")] = Path(
        "comparison"
    ),
    stop_at_target: Annotated[bool, Option("--stop-at-target", help="End a run when it is there.")] = False,
    picture_format: Annotated[str, Option("--format", help="Of the plots: svg or png.")] = "svg",
    as_json: options.AsJson = False,
) -> None:
    """Compare policies in virtual time with real gradients: accuracy over time, waiting, staleness."""
    from paceline.experiment.tasks import settings_of, task_of  # torch takes a second to import

    names = policy_names(policy or ["all"])
    simulation = Simulation(
        intervals=times_of_group(workers, intervals),
        workers=size_of_group(workers),
        speed=speed,
        trace=None if trace is None else str(trace),
        jitter=jitter,
        slowdowns=tuple(slowdown(text, "--slow") for text in slow or ()),
        duration=budget,
    )
    group = worker_speeds(simulation)
    for name in names:
        policy_for(name, len(group))
    factors = (1.0,) if tune_lr is None else numbers(tune_lr, "--tune-lr")
    _check(seeds, factors, target_accuracy, processes, epochs)
    if picture_format not in ("svg", "png"):
        raise ConfigurationError(f"--format {picture_format}: must be svg or png")
    comparison = Comparison(
        task=task,
        simulation=simulation,
        epochs=settings_of(task).epochs if epochs is None else epochs,
        data=None if data is None else str(data),
        model=model,
        optimizer=optimizer,
        learning_rate=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        nesterov=nesterov,
        batch_size=batch_size,
        lr_scaling=lr_scaling,
        stale=stale,
        evaluate_every=evaluate_every,
        stop_at=target_accuracy if stop_at_target else None,
    )
    task_of(comparison.task_options())  # or refuse now
    trials = [Trial(name, seed, factor) for seed in range(seeds) for name in names for factor in factors]
    outcomes = run_with_progress(task, comparison, trials, out, processes or os.cpu_count() or 1)
    rows = rows_of(outcomes, names, target_accuracy)
    try:
        draw_comparison(
            *(outcomes, rows, out),
            target=target_accuracy,
            suffix=f".{picture_format}",
            caption=caption_of(comparison),
        )
    except ConfigurationError as missing:  # no matplotlib: the figures are there all the same
        print(f"paceline: {missing}", file=sys.stderr)
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(rows)).decode())
        return
    console = output()
    console.print(learning_table(learning_rows(rows), target_accuracy, tuned=len(factors) > 1), "")
    for row in rows:
        for problem in row.problems:
            console.print(f"{row.policy}: {problem}", highlight=False, markup=False)
    console.print(f"results and plots: {out}", highlight=False, markup=False)


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

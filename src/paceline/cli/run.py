"""`paceline run`: a user's own script on local workers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from paceline.cli import options
from paceline.cli.arguments import policy_names


def run_command(
    script: Annotated[Path, Argument(help="A Python file with train(worker), and evaluate(state) if wanted.")],
    arguments: Annotated[list[str] | None, Argument(help="For the script, after --; they are in its sys.argv.")] = None,
    policy: options.Policies = None,
    workers: options.Workers = "2",
    epochs: Annotated[int, Option(help="Passes over the data set.")] = 1,
    target_accuracy: options.TargetAccuracy = None,
    evaluate_every: options.EvaluateEvery = None,
    slow: options.Slow = None,
    speed: options.Speed = None,
    intervals: options.EmulatedIntervals = None,
    trace: options.EmulatedTrace = None,
    lr_scaling: options.LrScaling = "auto",
    stale: options.Stale = "auto",
    device: options.Device = "auto",
    not_finite: options.NotFinite = "stop",
    seed: options.Seed = 0,
    out: options.RunsDirectory = Path("runs"),
    as_json: options.AsJson = False,
    strip: options.Gantt = None,
) -> None:
    """Run train(worker) of a script on local workers."""
    from paceline.cli.training import TrainingRequest, check, train_and_compare  # torch takes a second to import
    from paceline.experiment.script import script_functions

    request = TrainingRequest(
        name=script.stem,
        policies=policy_names(policy or ["bsp"]),
        group=options.group_from(workers, slow, speed, intervals, trace, device),
        epochs=epochs,
        seed=seed,
        lr_scaling=lr_scaling,
        stale=stale,
        not_finite=not_finite,
        evaluate_every=evaluate_every,
        target=target_accuracy,
        out=out,
        as_json=as_json,
        gantt=strip,
    )
    check(request)
    train, evaluate = script_functions(script, tuple(arguments or ()))
    train_and_compare(train, evaluate, request)

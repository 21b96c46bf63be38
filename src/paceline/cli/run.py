"""`paceline run`: a user's own script, on this machine or on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Context

from paceline.cli import options
from paceline.cli.arguments import policy_names
from paceline.core.errors import ConfigurationError
from paceline.policies import DEFAULT


def run_command(
    context: Context,
    script: Annotated[
        Path | None, Argument(help="A Python file with train(worker), and evaluate(state) if wanted.")
    ] = None,
    arguments: Annotated[list[str] | None, Argument(help="For the script, after --; they are in its sys.argv.")] = None,
    policy: options.Policies = None,
    workers: options.Workers = "2",
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    samples: options.Samples = None,
    budget: options.Budget = None,
    target_accuracy: options.TargetAccuracy = None,
    evaluate_every: options.EvaluateEvery = None,
    slow: options.Slow = None,
    speed: options.Speed = None,
    intervals: options.EmulatedIntervals = None,
    trace: options.EmulatedTrace = None,
    lr_scaling: options.LrScaling = "auto",
    stale: options.Stale = "auto",
    device: options.Device = "auto",
    restart: options.Restart = 0,
    patience: options.Patience = "20s",
    cluster: options.Cluster = "local",
    address: options.Address = "auto",
    servers: options.Servers = 1,
    resources: options.Resources = "CPU=1",
    transport: options.Transport = "auto",
    compression: options.Compression = "none",
    not_finite: options.NotFinite = "stop",
    seed: options.Seed = 0,
    out: options.RunsDirectory = Path("runs"),
    checkpoint_every: options.CheckpointEvery = "60s",
    keep: options.Keep = 3,
    compress_trace: options.CompressTrace = False,
    report: options.MakesReport = True,
    resume: options.Resume = None,
    as_json: options.AsJson = False,
    strip: options.Gantt = None,
    tensorboard: options.TensorBoard = None,
) -> None:
    """Run train(worker) of a script, on this machine or on a cluster."""
    if resume is not None:
        given = options.given_beside_resume(context)
    elif script is None:
        raise ConfigurationError("which script? A Python file with train(worker); or --resume RUN")
    from paceline.cli.training import TrainingRequest, check, go_on, train_and_compare  # torch takes a second to import
    from paceline.experiment.configuration import Origin
    from paceline.experiment.script import script_functions

    if resume is not None:
        go_on(resume, given)
        return
    assert script is not None
    request = TrainingRequest(
        name=script.stem,
        policies=policy_names(policy or [DEFAULT]),
        group=options.group_from(workers, slow, speed, intervals, trace, device, restart, patience),
        epochs=epochs,
        steps=steps,
        samples=samples,
        budget=budget,
        seed=seed,
        lr_scaling=lr_scaling,
        stale=stale,
        not_finite=not_finite,
        evaluate_every=evaluate_every,
        target=target_accuracy,
        out=out,
        as_json=as_json,
        gantt=strip,
        tensorboard=tensorboard,
        checkpoint_every=checkpoint_every,
        keep=keep,
        compress_trace=compress_trace,
        report=report,
        cluster=options.cluster_from(cluster, address, servers, resources, transport, compression),
        origin=Origin(script.stem, script=str(script.resolve()), arguments=tuple(arguments or ())),
    )
    check(request)
    train, evaluate = script_functions(script, tuple(arguments or ()))
    train_and_compare(train, evaluate, request)

"""`paceline train`: a built-in task under one policy, or under several for comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Context, Option

from paceline.cli import options
from paceline.cli.arguments import policy_names
from paceline.core.errors import ConfigurationError
from paceline.policies import DEFAULT


def train_command(
    context: Context,
    task: Annotated[str | None, Argument(help="digits, fashion-mnist or cifar10.")] = None,
    policy: options.Policies = None,
    workers: options.Workers = "2",
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    samples: options.Samples = None,
    budget: options.Budget = None,
    model: options.Model = None,
    data: options.Data = None,
    optimizer: options.Optimizer = "sgd",
    lr: options.LearningRate = None,
    momentum: options.Momentum = None,
    nesterov: options.Nesterov = False,
    weight_decay: options.WeightDecay = None,
    batch_size: options.BatchSize = None,
    sharding: Annotated[str, Option(help="dynamic: fast workers take more; static: equal parts.")] = "dynamic",
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
    """Train a built-in task, under one policy or under several, one after another."""
    if resume is not None:
        given = options.given_beside_resume(context)
    elif task is None:
        raise ConfigurationError("which task? digits, fashion-mnist or cifar10; or --resume RUN")
    from paceline.cli.training import TrainingRequest, check, go_on, train_and_compare  # torch takes a second to import
    from paceline.experiment.configuration import Origin
    from paceline.experiment.tasks import TaskOptions, settings_of, task_of

    if resume is not None:
        go_on(resume, given)
        return
    assert task is not None
    settings = settings_of(task)
    wanted = TaskOptions(
        *(task, model, data, optimizer, lr, momentum, batch_size, sharding, weight_decay, nesterov),
        epochs=settings.epochs if epochs is None else epochs,
    )
    limited = any(limit is not None for limit in (epochs, steps, samples, budget))
    request = TrainingRequest(
        name=task,
        policies=policy_names(policy or [DEFAULT]),
        group=options.group_from(workers, slow, speed, intervals, trace, device, restart, patience),
        epochs=epochs if limited else settings.epochs,
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
        origin=Origin(task, task=wanted.as_written()),
    )
    check(request)
    chosen = task_of(wanted, seed=seed)
    train_and_compare(chosen.learn, chosen.evaluate, request)

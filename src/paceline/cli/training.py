"""Runs policies one after another for real, shows each while it goes on, and ends with one table."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from typer import Exit

from paceline.cli.options import OF_CLUSTERS, cluster_from
from paceline.core.errors import ConfigurationError
from paceline.experiment.configuration import MODEL, Origin, read_configuration
from paceline.experiment.group import Group, size_of
from paceline.experiment.limits import limits_of
from paceline.experiment.resuming import TornCheckpointWarning
from paceline.experiment.run_files import fresh_directory
from paceline.experiment.script import script_functions
from paceline.experiment.simulation import policy_for
from paceline.experiment.tasks import read_task_options, task_of
from paceline.experiment.training import InterruptedRun, RunResult, launch
from paceline.recording.timeline import Timeline
from paceline.report.console import output, stdout_is_for_json
from paceline.report.gantt import gantt, legend
from paceline.report.live import view_of
from paceline.report.tables import TrainingRow, training_table, verdict
from paceline.runtimes.intervals import interval_of
from paceline.runtimes.ray_cluster.options import RayCluster
from paceline.runtimes.serving.port import WorkerFailedWarning

GANTT_SECONDS = 2.0


class TrainingRequest(msgspec.Struct, frozen=True):
    """What the user asked for, beside what is to be trained."""

    name: str  # of the task or the script
    policies: list[str]
    group: Group
    epochs: int | None
    steps: int | None
    samples: int | None
    budget: float | None
    seed: int
    lr_scaling: str
    stale: str
    not_finite: str
    evaluate_every: int | None
    target: float | None
    out: Path
    as_json: bool
    gantt: bool | None
    checkpoint_every: str = "60s"
    keep: int = 3
    compress_trace: bool = False
    report: bool = True
    cluster: RayCluster | None = None
    origin: Origin | None = None
    tensorboard: bool | None = None


def go_on(run_dir: Path, given: dict[str, Any]) -> None:
    """Resume the run in this directory. `given`: the options that were typed."""
    before = read_configuration(run_dir)
    origin = before.origin
    if origin is None:
        raise ConfigurationError(f"{run_dir}: was begun by a program: start that again, with resume={str(run_dir)!r}")
    group = before.group
    if "workers" in given:
        number, least, most = size_of(given["workers"])
        group = msgspec.structs.replace(group, workers=number, least=least, most=most)
    changed = {name: given[name] for name in ("restart", "patience") if name in given}
    group = msgspec.structs.replace(group, **changed)
    request = TrainingRequest(
        name=origin.name,
        policies=[before.policy],
        group=group,
        epochs=before.epochs,
        steps=before.steps,
        samples=before.samples,
        budget=before.budget,
        seed=before.seed,
        lr_scaling=before.lr_scaling,
        stale=before.stale,
        not_finite=before.not_finite,
        evaluate_every=before.evaluate_every,
        target=given.get("target_accuracy"),
        out=run_dir.parent,
        as_json=given.get("as_json", False),
        gantt=given.get("strip"),
        tensorboard=given.get("tensorboard"),
        checkpoint_every=before.checkpoint_every or "60s",
        keep=before.keep,
        compress_trace=before.compressed,
        report=before.report,
        cluster=_cluster_of(before.cluster, given),
        origin=origin,
    )
    check(request)
    if origin.task is not None:
        task = task_of(read_task_options(origin.task), seed=before.seed)
        train_and_compare(task.learn, task.evaluate, request, run_dir)
    else:
        assert origin.script is not None
        train_and_compare(*script_functions(Path(origin.script), origin.arguments), request, run_dir)


def _cluster_of(before: RayCluster | None, given: dict[str, Any]) -> RayCluster | None:
    """Where a run goes on: where it was, or where the options that were typed say."""
    typed = {name: given[name] for name in OF_CLUSTERS if name in given}
    if not typed:
        return before
    if before is not None and typed.get("cluster", "ray") == "ray":
        usual = {
            "address": before.address,
            "servers": before.servers,
            "resources": ",".join(f"{name}={amount:g}" for name, amount in before.resources_per_worker.items()),
            "transport": before.transport,
            "compression": before.compression,
        }
    else:
        usual = {"address": "auto", "servers": 1, "resources": "CPU=1", "transport": "auto", "compression": "none"}
    return cluster_from(**{"cluster": "local" if before is None else "ray", **usual, **typed})


def check(request: TrainingRequest) -> None:
    """Refuse what is impossible before anything is loaded or started."""
    limits_of(request.epochs, request.steps, request.samples, request.budget)
    request.group.check(
        epochs=request.epochs,
        lr_scaling=request.lr_scaling,
        stale=request.stale,
        not_finite=request.not_finite,
        evaluate_every=request.evaluate_every,
    )
    if request.target is not None and not 0 < request.target <= 1:
        raise ConfigurationError(f"--target-accuracy {request.target:g}: must be above 0 and at most 1, as in 0.95")
    if request.out.exists() and not request.out.is_dir():
        raise ConfigurationError(f"--out {request.out}: is not a directory")
    interval_of(request.checkpoint_every, "--checkpoint-every")
    if request.keep < 1:
        raise ConfigurationError(f"--keep {request.keep}: must be at least 1")
    for name in request.policies:
        policy_for(name, request.group.workers)


def train_and_compare(
    train: Callable[..., Any],
    evaluate: Callable[..., Any] | None,
    request: TrainingRequest,
    resume: Path | None = None,
) -> None:
    """One run per policy, and the table. `resume`: the directory of the run to go on with."""
    if request.target is not None and evaluate is None:
        raise ConfigurationError(
            f"--target-accuracy: {request.name} has no evaluate(state) that could find an accuracy"
        )
    console = output()
    rows: list[TrainingRow] = []
    failed = False
    try:
        for name in request.policies:
            result = _run(name, train, evaluate, request, console, resume)
            if result.stopped:
                raise InterruptedRun(result)  # by somebody outside, who wants what Ctrl-C does
            failed = failed or bool(result.evaluation_problem)
            rows.append(_row(result, request.target))
    except InterruptedRun as interrupted:
        if interrupted.result is not None:
            rows.append(_row(interrupted.result, request.target))
            command = "train" if request.origin is not None and request.origin.task is not None else "run"
            goes_on = f"paceline {command} --resume {interrupted.result.run_dir}"
            why = f"stopped: {interrupted.result.stopped}" if interrupted.result.stopped else "interrupted"
            print(f"paceline: {why}; {_left_behind(interrupted.result)}. Go on: {goes_on}", file=sys.stderr)
        else:
            print("paceline: interrupted before the workers had begun", file=sys.stderr)
        _show(rows, request, console)
        raise Exit(130) from None
    _show(rows, request, console)
    if failed:
        raise Exit(1)


def _run(
    name: str,
    train: Callable[..., Any],
    evaluate: Callable[..., Any] | None,
    request: TrainingRequest,
    console: Console,
    resume: Path | None,
) -> RunResult:
    safe = re.sub(r"[^A-Za-z0-9.+_-]+", "-", f"{request.name}-{name}")
    directory = fresh_directory(request.out, safe) if resume is None else resume
    errors = Console(stderr=True)
    timeline = Timeline(GANTT_SECONDS)
    if not request.as_json:
        errors.print(f"{name}: {directory}", style="dim", highlight=False, markup=False, soft_wrap=True)
    with (
        stdout_is_for_json(request.as_json),
        view_of(name, errors, quiet=request.as_json) as view,
        warnings.catch_warnings(record=True) as told,
    ):
        warnings.simplefilter("ignore")  # what launch warns of is said below, in one line
        for kind in (TornCheckpointWarning, WorkerFailedWarning):
            warnings.simplefilter("always", kind)
        result = launch(
            train,
            policy=name,
            epochs=request.epochs,
            steps=request.steps,
            samples=request.samples,
            budget=request.budget,
            seed=request.seed,
            lr_scaling=request.lr_scaling,
            stale=request.stale,
            not_finite=request.not_finite,
            evaluate=evaluate,
            evaluate_every=request.evaluate_every,
            run_dir=directory,
            checkpoint_every=request.checkpoint_every,
            keep=request.keep,
            compress_trace=request.compress_trace,
            report=request.report,
            resume=resume,
            origin=request.origin,
            group=request.group,
            cluster=request.cluster,
            tensorboard=request.tensorboard,
            observers=[timeline, view],
        )
    if resume is not None and result.optimizer_state is None:
        print(f"paceline: {directory} had come to its end before; nothing was left to do", file=sys.stderr)
    for warning in told:
        print(f"paceline: {warning.message}", file=sys.stderr)
    told_at_once = {failure.worker for failure in result.failures}
    for gone in (gone for gone in result.summary.departures if gone.worker not in told_at_once):
        print(f"paceline: worker {gone.worker} left after {gone.seconds:.1f} s: {gone.reason}", file=sys.stderr)
    if result.samples_asked is not None and result.samples != result.samples_asked:
        print(f"paceline: {name}: {_used(result)}", file=sys.stderr)
    if result.evaluation_problem:
        print(f"paceline: {name}: the last evaluation failed: {result.evaluation_problem}", file=sys.stderr)
        print(f"paceline: {name}: {_left_behind(result)}", file=sys.stderr)
    wants_strip = console.is_terminal if request.gantt is None else request.gantt
    if wants_strip and not request.as_json:
        if name == request.policies[0]:
            console.print(legend())
        console.print(gantt(result.summary.policy, timeline, result.seconds, console.width))
    return result


def _row(result: RunResult, target: float | None) -> TrainingRow:
    return TrainingRow(
        result.summary.policy,
        result.seconds,
        None if target is None else result.time_to(target),
        result.samples,
        result.samples / result.seconds if result.seconds else 0.0,
        result.summary.waiting_share,
        result.summary.mean_staleness,
        result.summary.updates,
        result.evaluations[-1].figures if result.evaluations else {},
        result.samples_asked,
        None if result.run_dir is None else str(result.run_dir),
        None if result.run_dir is None else str(result.run_dir / MODEL),
    )


def _show(rows: list[TrainingRow], request: TrainingRequest, console: Console) -> None:
    if request.as_json:
        print(msgspec.json.format(msgspec.json.encode([row._asdict() for row in rows])).decode())
    elif rows:
        console.print(training_table(rows, request.target), "")
        if said := verdict(rows, request.target):
            console.print(said, highlight=False, markup=False)


def _left_behind(result: RunResult) -> str:
    found = result.evaluations
    older = (
        f" (the last evaluation is of {found[-1].samples:,})" if found and found[-1].samples < result.samples else ""
    )
    return f"{_used(result)}{older}, and what was learned is in {result.run_dir}"


def _used(result: RunResult) -> str:
    """How many samples, beside what was asked for where that is something else."""
    asked, dropped = result.samples_asked, result.dropped
    if asked is None or asked == result.samples:
        return f"{result.samples:,} samples were used"
    lost = f" ({dropped:,} had gradients that were dropped)" if dropped else ""
    return f"{result.samples:,} of {asked:,} samples that were asked for were used{lost}"

"""Training for real: turns a user's function and a few words about the group into a finished run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from paceline.core.coordinator import Coordinator
from paceline.core.errors import PacelineError
from paceline.experiment.callbacks import Callback, CallbackCaller, Run, check_callbacks
from paceline.experiment.collector import Collector
from paceline.experiment.configuration import Configuration, Origin
from paceline.experiment.foresight import thinker
from paceline.experiment.given import check_given
from paceline.experiment.going_back import goes_back, returned
from paceline.experiment.group import Group, group_of
from paceline.experiment.interruptions import Interruptions
from paceline.experiment.launchers import launcher_for
from paceline.experiment.limits import limits_of
from paceline.experiment.metrics_hook import OnMetrics, hooks
from paceline.experiment.result import InterruptedRun as InterruptedRun
from paceline.experiment.result import RunResult as RunResult
from paceline.experiment.resuming import AUTO, expects_stale, find_resumption, policy_in_force
from paceline.experiment.run_files import RunFiles, in_short, name_of, tensorboards
from paceline.experiment.simulation import policy_for
from paceline.lifecycle.samples import Samples
from paceline.policies import DEFAULT, Policy
from paceline.recording.metrics import RunMetrics
from paceline.recording.observer import Observer
from paceline.recording.progress_log import Evaluation, Failure, read_metrics
from paceline.recording.trace import Trace, trace_in
from paceline.report.live import OnlyTheStart, view_of
from paceline.runtimes.intervals import Interval, interval_of, patience_of
from paceline.runtimes.local.launcher import refuse_inside_a_worker
from paceline.runtimes.local.room import available_memory, refuse_if_too_many
from paceline.runtimes.ray_cluster.options import RayCluster
from paceline.runtimes.serving.duties import Assignment
from paceline.runtimes.serving.server import Server
from paceline.training.checkpoint import Checkpoint
from paceline.training.choices import UpdateOptions
from paceline.training.memory_use import keep_freed_memory
from paceline.training.task import Task
from paceline.training.worker import Worker


@goes_back
def launch(
    train: Callable[[Worker], None],
    *,
    workers: int | str | tuple[int, int] = 2,
    policy: Policy | str = DEFAULT,
    epochs: int | None = None,
    steps: int | None = None,
    samples: int | None = None,
    budget: float | None = None,
    seed: int = 0,
    slowdown: Mapping[int, float] | None = None,
    speed: str | None = None,
    lr_scaling: str = "auto",
    stale: str = "auto",
    device: str = "auto",
    restart: int = 0,
    patience: str = "20s",
    not_finite: str = "stop",
    evaluate: Callable[[dict[str, Tensor]], Any] | None = None,
    evaluate_every: int | None = None,
    run_dir: Path | str | None = None,
    checkpoint_every: str | None = "60s",
    keep: int = 3,
    compress_trace: bool = False,
    report: bool = True,
    resume: Path | str | None = None,
    cluster: RayCluster | None = None,
    group: Group | None = None,
    callbacks: Sequence[Callback] = (),
    observers: Sequence[Observer] = (),
    live: bool | None = None,
    tensorboard: bool | None = None,
    on_metrics: OnMetrics | None = None,
    origin: Origin | None = None,
) -> RunResult:
    """Run `train(worker)` in so many processes, under this policy, and return what they learned.

    train              the loop of a worker. It and `evaluate` may be any functions: also of a notebook's cell, lambdas,
                       and closures. A script is imported by every process, so there the call of `launch` stands under
                       `if __name__ == "__main__":`
    workers            a number, or "2..4", or (2, 4): begin with 2, replace those that die, and let `paceline scale`
                       go up to 4; on a cluster, take what it has up to that
    policy             who waits for whom, as in "ssp:staleness=3"; `paceline policies` lists them. "auto" measures the
                       workers and chooses
    epochs             passes over the data set; 1, if no other limit is given. The first limit that is reached counts
    steps              full rounds: one batch of every worker that the group begins with
    samples            of all workers together
    budget             seconds since the group began
    seed               of all random numbers
    slowdown           {3: 4.0} makes worker 3 four times slower than it is
    speed              emulated time of an iteration, such as "lognormal:seconds=0.02"
    lr_scaling         how the rate follows an update's share of a round: "auto", "linear", "sqrt" or "none"
    stale              "auto" makes up for stale gradients where the policy applies them and the optimizer allows it,
                       "none" never does, "correct" refuses to begin where it cannot
    device             "auto" (the GPUs in turn, or the CPU), "cpu", "cuda", "cuda:1"
    restart            so many deaths of workers are made up for by new ones
    patience           a worker that is silent for much longer than is usual for it is set aside, not before 20
                       seconds; "10s..5m": not before 10 seconds, and after 5 minutes in any case; "off": never
    not_finite         a gradient that is not finite: "stop" ends the run, "skip" goes on without it
    evaluate           evaluate(state) gets a state_dict in a process of its own, and returns a number (accuracy) or a
                       dict of numbers
    evaluate_every     samples between two evaluations; None: an epoch
    run_dir            where configuration, trace, metrics, checkpoints and the final model go; None: nowhere
    checkpoint_every   "30s", "10000 samples" or "500 updates"; None: only at the end
    keep               so many of the newest checkpoints
    compress_trace     it then takes an eighth of the space
    report             write a page about the run into `run_dir` at its end
    resume             the directory of a run to go on with, or "auto": the run in `run_dir`, if there is one
    cluster            where the workers run: a paceline.RayCluster; None: on this machine
    group              all of that about workers and speeds in one object
    callbacks          objects of paceline.Callback: they hear what happens, and may stop the run
    observers          objects of paceline.recording.observer.Observer: they see every decision
    live               show a table of the group while it trains; None: in a notebook only
    tensorboard        write a file for TensorBoard into `run_dir`; None: where the tensorboard package is installed
    on_metrics         on_metrics(figures, step) gets a dict of numbers a few times a second, and the samples so far
    origin             what to write down of the command that asks

    Ctrl-C ends the run cleanly and raises InterruptedRun, which is a KeyboardInterrupt. Wrong input is a
    ConfigurationError, in one sentence. Errors of a run that had begun have what it came to as `result`.
    """
    refuse_inside_a_worker()
    check_given(locals())
    check_callbacks(callbacks, evaluates=evaluate is not None)
    if group is None:
        group = group_of(workers, slowdown=slowdown, speed=speed, device=device, restart=restart, patience=patience)
    limits = limits_of(epochs, steps, samples, budget)
    group.check(epochs=epochs, lr_scaling=lr_scaling, stale=stale, not_finite=not_finite, evaluate_every=evaluate_every)
    if cluster is None:
        refuse_if_too_many(group.workers, available_memory())
    else:
        cluster.check()
    chosen = policy_for(policy, group.workers)
    paces = group.paces()
    devices = group.devices() if cluster is None else lambda index: group.device
    threads = group.threads() if cluster is None else cluster.threads

    configuration = Configuration(
        str(chosen),
        group,
        limits.epochs,
        seed,
        lr_scaling,
        name_of(train),
        stale,
        steps=steps,
        samples=samples,
        budget=budget,
        threads=threads,
        not_finite=not_finite,
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
        keep=keep,
        origin=origin,
        compressed=compress_trace,
        report=report,
        cluster=cluster,
    )
    every = Interval() if checkpoint_every is None else interval_of(checkpoint_every, "checkpoint_every")
    found = None if resume is None else find_resumption(resume, run_dir, configuration)
    checkpoint = None
    updates = UpdateOptions(lr_scaling, stale, expects_stale(found, chosen.applies_stale and group.largest > 1))
    if found is not None:
        run_dir, checkpoint = found
        if checkpoint.facts.lifecycle.over:
            return _finished(run_dir, checkpoint)
    told = {} if checkpoint is None else checkpoint.training["workers"]
    in_force = chosen if checkpoint is None else policy_in_force(chosen, checkpoint, group.workers)

    def assignment(index: int) -> Assignment:
        return Assignment(
            index=index,
            seed=seed,
            epochs=limits.epochs,
            threads=threads,
            device=devices(index),
            not_finite=not_finite,
            pace=paces(index),
            kept=told.get(index),
        )

    metrics, collector = RunMetrics(), Collector(tells=not any(observer.tells for observer in observers))
    callbacks = [*callbacks, *hooks(on_metrics, metrics)]
    caller = CallbackCaller(callbacks)
    with ExitStack() as stack:
        interruptions = stack.enter_context(Interruptions())
        resumed = None if checkpoint is None else checkpoint.facts
        files = None
        if run_dir is not None:
            files = RunFiles(Path(run_dir), configuration, resumed, anew=resume == AUTO)
            stack.enter_context(files)
        if files is not None and checkpoint is not None:
            _catch_up(files.directory, metrics, collector)
        boards = tensorboards(tensorboard, files, metrics, resumed, stack)
        watching = [*observers, *boards, *_views(live, observers, str(chosen), stack)]
        name = name_of(train) if run_dir is None else str(Path(run_dir).resolve())
        launcher = launcher_for(cluster, train, evaluate, assignment, elastic=group.most is not None, name=name)
        stack.enter_context(launcher)
        told_all = [
            *(metrics, collector, *([files.trace, files.metrics, files] if files else []), *watching),
            *([caller] if callbacks else []),
        ]
        server = Server(
            launcher,
            Coordinator(in_force),
            workers=group.workers,
            least=group.least,
            most=group.most,
            epochs=limits.epochs,
            limit=limits.of_work(group.workers),
            budget=budget,
            updates=updates,
            statistics=chosen.wants_statistics,
            evaluate_every=evaluate_every,
            observers=[*told_all, *returned(files, resume, resumed, told_all)],
            control=None if files is None else files.control,
            choose=policy_for,
            thinker=thinker,
            checkpoints=None if files is None else files.checkpoint_options(every),
            resumed=checkpoint,
            restarts=group.restart,
            patience=patience_of(group.patience, "patience"),
        )
        caller.run = Run(server, str(chosen), None if files is None else files.directory, collector.evaluations)
        keep_freed_memory()
        interruptions.loop = server.loop
        failed: PacelineError | None = None
        try:
            with _threads(group.server_threads()):
                server.run()
        except PacelineError as problem:
            failed = problem
            raise problem.with_traceback(None) from None  # the sentence, without the server's insides
        finally:  # what there is of a result is written, however the run ended
            why = caller.run.stopped or in_short(failed) or ("Ctrl-C" if server.loop.interrupted else "")
            result = _finish(server, caller.run, metrics, collector, files, why)
            caller.end(result)
            if failed is not None:
                failed.result = result
        return _returned(result, server, caller)


def _returned(result: RunResult | None, server: Server, caller: CallbackCaller) -> RunResult:
    """Of a run that did not fail."""
    if server.loop.interrupted:
        raise InterruptedRun(result)
    if caller.problem is not None:
        raise caller.problem
    if result is None:  # it was stopped before it began: the server refuses workers that finish without a model
        raise InterruptedRun(None)
    if not result.samples:
        warnings.warn("nothing was trained: no worker called optimizer.step()", stacklevel=3)
    if result.evaluation_problem:
        warnings.warn(f"the last state could not be evaluated: {result.evaluation_problem}", stacklevel=3)
    return result


def _views(live: bool | None, observers: Sequence[Observer], title: str, stack: ExitStack) -> list[Observer]:
    """What shows the run to the user, beside the observers: at least why nothing happens yet."""
    console = Console(stderr=True)
    if live or (live is None and console.is_jupyter):
        return [stack.enter_context(view_of(title, console))]
    if any(type(observer).starting is not Observer.starting for observer in observers):
        return []
    return [OnlyTheStart()]


def _catch_up(run_dir: Path, metrics: RunMetrics, collector: Collector) -> None:
    """What happened before the run was resumed is part of its summary."""
    for record in Trace(trace_in(run_dir), allow_cut_off=True):
        metrics.observe(record)
    lines = read_metrics(run_dir / "metrics.jsonl")
    collector.evaluations.extend(line for line in lines if isinstance(line, Evaluation))
    collector.failures.extend(line for line in lines if isinstance(line, Failure))


def _finished(run_dir: Path, checkpoint: Checkpoint) -> RunResult:
    """The result of a run that had come to its end."""
    metrics, collector, facts = RunMetrics(), Collector(), checkpoint.facts
    _catch_up(run_dir, metrics, collector)
    samples = Samples(facts.epochs)
    samples.resume(facts.lifecycle.samples)
    return RunResult(
        checkpoint.model,
        metrics.summary(facts.policy, facts.seconds),
        facts.samples,
        facts.lifecycle.samples.dropped,
        collector.evaluations,
        run_dir,
        samples_asked=samples.asked,
        failures=collector.failures,
    )


def _finish(
    server: Server, run: Run, metrics: RunMetrics, collector: Collector, files: RunFiles | None, why: str
) -> RunResult | None:
    """Stop all processes, and put together and write what there is; None: the group had not begun."""
    server.stop()
    end = server.now if server.ended_at is None else server.ended_at
    result = None
    try:
        if server.port.aggregation is not None:
            result = RunResult(
                server.port.model_state(),
                metrics.summary(run.began_with, end),
                server.port.store.samples,
                server.lifecycle.samples.dropped,
                collector.evaluations,
                None if files is None else files.directory,
                server.evaluation_problem,
                server.port.store.optimizer_state(),
                server.lifecycle.samples.asked,
                collector.failures,
                run.stopped,
            )
    except PacelineError:
        server.ended_at = None  # a shard is gone, and with it how the run ended
        raise
    finally:
        try:
            server.keep_the_last()
        finally:
            server.close()
    if files is not None:
        files.finish(end, None if result is None else (result.model_state, result.summary, result.samples), why)
    return result


def fit(
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    train: Any,
    test: Any = None,
    *,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    batch_size: int = 32,
    sharding: str = "dynamic",
    scheduler: Callable[..., Any] | None = None,
    scheduler_every: int | str | None = None,
    metric: Callable[[Tensor, Tensor], Tensor] | None = None,
    collate_fn: Callable[[Any], Any] | None = None,
    num_workers: int = 0,
    **options: Any,
) -> RunResult:
    """Train `model` on a data set of (input, target) without writing a loop; it holds the result afterwards.

    `optimizer`: a class or a partial of one, as in partial(torch.optim.SGD, lr=0.1). On `test`, if given, loss and
    accuracy (or `metric`) are computed beside training. `collate_fn` makes a batch of samples, and `num_workers` loader
    processes of every worker load batches ahead. All other options are those of `launch`.
    """
    refuse_inside_a_worker()
    task = Task(
        model,
        loss,
        train,
        test,
        optimizer,
        batch_size,
        sharding,
        scheduler,
        scheduler_every,
        metric,
        collate_fn,
        num_workers,
    )
    task.optimizer_parts()  # its errors come before anything starts
    result = launch(task.learn, evaluate=None if test is None else task.evaluate, **options)
    model.load_state_dict(result.model_state)
    return result


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """So many threads of torch in this process for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)

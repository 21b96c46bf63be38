"""Training for real: turns a user's function and a few words about the group into a finished run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from paceline.core.coordinator import Coordinator
from paceline.core.errors import ConfigurationError
from paceline.experiment.simulation import policy_for
from paceline.policies import Policy
from paceline.recording.metrics import RunMetrics, Summary
from paceline.recording.trace import TraceWriter
from paceline.runtimes.driver import Observer
from paceline.runtimes.local.launcher import worker_processes
from paceline.runtimes.local.server import LocalServer
from paceline.training.worker import Worker


@dataclass(frozen=True)
class RunResult:
    model_state: dict[str, Tensor]
    summary: Summary
    samples: int  # whose gradients became part of an update


def launch(
    train: Callable[[Worker], None],
    *,
    workers: int = 2,
    policy: Policy | str = "bsp",
    epochs: int = 1,
    seed: int = 0,
    slowdown: Mapping[int, float] | None = None,
    lr_scaling: str = "linear",
    trace_file: Path | None = None,
) -> RunResult:
    """Run `train(worker)` in so many processes on this machine, under this policy, and return what they learned.

    `train` must be importable by a new process: a function of a module, not of a notebook's cell or another function.
    `slowdown`: {3: 4.0} makes worker 3 four times slower. `lr_scaling`: linear, sqrt or none, see docs/architecture.md.
    """
    for what, value in (("workers", workers), ("epochs", epochs)):
        if value < 1:
            raise ConfigurationError(f"{what} is {value}; it must be at least 1")
    for worker, factor in (slowdown or {}).items():
        if not 0 <= worker < workers or factor < 1:
            raise ConfigurationError(
                f"slowdown {{{worker}: {factor}}}: workers are 0 to {workers - 1}, factors are at least 1"
            )
    chosen = policy_for(policy, workers)
    metrics = RunMetrics()
    observers: list[Observer] = [metrics.observe]
    writer = None if trace_file is None else TraceWriter(trace_file, str(chosen))
    if writer is not None:
        observers.append(writer.observe)
    with worker_processes(train, workers, seed=seed, slowdown=slowdown or {}) as seats:
        server = LocalServer(
            seats, Coordinator(chosen), epochs, lr_scaling, statistics=chosen.wants_statistics, observers=observers
        )
        try:
            server.run()
        finally:
            server.stop()
            if writer is not None:
                writer.close(server.now)
    samples = 0 if server.ledger is None else server.ledger.applied
    return RunResult(server.model_state(), metrics.summary(str(policy), server.now), samples)

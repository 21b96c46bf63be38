"""Asks a run that goes on for something, and says in sentences what came of it."""

from __future__ import annotations

from pathlib import Path

from typing_extensions import assert_never

from paceline.core.errors import ConfigurationError
from paceline.experiment.configuration import Configuration, read_configuration
from paceline.experiment.run_list import glance
from paceline.policies import policy as build_policy
from paceline.runtimes.local.room import available_memory, refuse_if_too_many
from paceline.runtimes.serving.control import (
    Evict,
    Evicted,
    Request,
    Scale,
    Scaled,
    Stop,
    Stopping,
    Switch,
    Switched,
    ask,
)

LARGEST_NUMBER = 2**53  # of a worker: larger ones do not come out of JSON as they went in
LARGEST_GROUP = 99_999  # workers: more are a slip of the finger


def steer(run: Path, request: Request) -> list[str]:
    """ConfigurationError: the run refuses, or there is none."""
    told = read_configuration(run)
    _check(run, told, request)
    match ask(run, request):
        case Scaled(workers):
            return [f"{workers} workers; a new one needs a few seconds to start, one that leaves pushes first"]
        case Switched(policy, before, doubt):
            same = f"{policy} is in force already"
            return [same if policy == before else f"{policy} takes over from {before}", *([doubt] if doubt else [])]
        case Evicted(worker, workers):
            return [f"worker {worker} is sent away, and what it was at is for others; {_so_many(workers)}"]
        case Stopping() as stopping:
            return [_stops(run, told, stopping)]
        case granted:
            assert_never(granted)


def _check(run: Path, told: Configuration, request: Request) -> None:
    """What is wrong whatever the run is at."""
    match request:
        case Scale(workers):
            _check_size(run, told, workers)
        case Switch(policy):
            build_policy(policy)
        case Evict(worker):
            if not 0 <= worker <= LARGEST_NUMBER:
                raise ConfigurationError(
                    f"there is no worker {worker}: `paceline status {run}` has those that there are"
                )
        case Stop():
            pass
        case _:
            assert_never(request)


def _so_many(workers: int) -> str:
    return f"{workers} workers go on" if workers > 1 else "1 worker goes on"


def _stops(run: Path, told: Configuration, stopping: Stopping) -> str:
    if stopping.ended:
        return "it has ended"
    if not stopping.begun:
        return "it stops before its workers have begun, so there is nothing new to save"
    again = f"start its program again, with resume={str(run)!r}"
    if told.origin is not None:
        again = f"paceline {'run' if told.origin.task is None else 'train'} --resume {run}"
    return f"it stops: every worker pushes once more, and a checkpoint is written. Go on: {again}"


def _check_size(run: Path, told: Configuration, workers: int) -> None:
    least, most = told.group.least or 1, told.group.most
    if workers < least or (most is not None and workers > most):
        limits = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ConfigurationError(f"{workers} workers: this run may have {limits}")
    if workers > LARGEST_GROUP:
        raise ConfigurationError(f"{workers:,} workers: a group has {LARGEST_GROUP:,} at most")
    if told.cluster is None:
        status = glance(run)
        present = len(status.workers) + status.unseen
        if workers > present:
            refuse_if_too_many(workers - present, available_memory(), "more workers")

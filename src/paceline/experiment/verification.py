"""Trains a recorded run again in one process, and compares weights with those that the run came to: to the bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.core.errors import ConfigurationError
from paceline.experiment.rehearsal import LoopFollower
from paceline.experiment.retraining import Retrained, retrain, walk
from paceline.experiment.run_files import CHECKPOINTS, MODEL, Configuration, read_configuration
from paceline.experiment.script import Script, forget_script
from paceline.experiment.tasks import read_task_options, task_of
from paceline.recording.trace import Trace, trace_in
from paceline.training.checkpoint import MODEL as WEIGHTS
from paceline.training.checkpoint import checkpoints_in, load_state
from paceline.training.worker import Worker


class Verdict(NamedTuple):
    updates: int  # that were made again
    agreed: tuple[int, ...]  # the updates after which weights were kept, and are the same to the bit
    differs_at: int | None  # the first after which they are not
    parameter: str = ""  # one that differs there


def train_again(run_dir: Path) -> Verdict:
    """ConfigurationError where that is impossible, and why."""
    configuration = read_configuration(run_dir)
    if configuration.threads is None:
        raise ConfigurationError(f"{run_dir}: its configuration does not say how many threads its workers had")
    kept = {int(path.name): path / WEIGHTS for path in checkpoints_in(run_dir / CHECKPOINTS)}
    agreed: list[int] = []
    differing: list[tuple[int, str]] = []

    def compare(version: int, parameters: Mapping[str, Tensor]) -> None:
        path = kept.get(version)
        if path is not None:
            _note(version, _difference(load_state(path), parameters))

    def _note(version: int, found: str | None) -> None:
        if found is None:
            agreed.append(version)
        else:
            differing.append((version, found))

    last = _made_again(run_dir, configuration, compare)
    if (run_dir / MODEL).exists() and last.version not in kept:
        _note(last.version, _difference(load_state(run_dir / MODEL), last.parameters))
    if not agreed and not differing:
        raise ConfigurationError(f"{run_dir}: holds no weights to compare with: neither a checkpoint nor a final model")
    first = differing[0] if differing else (None, "")
    return Verdict(last.version, tuple(agreed), *first)


def _made_again(run_dir: Path, told: Configuration, compare: Callable[[int, Mapping[str, Tensor]], None]) -> Retrained:
    trace, origin = Trace(trace_in(run_dir), allow_cut_off=True), told.origin
    assert told.threads is not None
    if origin is None:
        raise ConfigurationError(
            f"{run_dir}: was begun by a program; only runs of `paceline train` and `paceline run` can be trained again"
        )
    if origin.task is not None:
        return retrain(
            trace,
            task_of(read_task_options(origin.task), seed=told.seed),
            seed=told.seed,
            lr_scaling=told.lr_scaling,
            stale=told.stale,
            threads=told.threads,
            updated=compare,
        )
    assert origin.script is not None
    path, arguments = Path(origin.script), origin.arguments

    def loop() -> Callable[[Worker], None]:
        forget_script()  # a process loads it anew, after its random numbers were seeded
        return Script(path, arguments, "train")

    follower = LoopFollower(trace, loop, told)
    try:
        return walk(trace, follower, told.threads, compare)
    finally:
        follower.close()


def _difference(state: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> str | None:
    """The name of a parameter that is not the same to the bit."""
    return next((name for name, tensor in parameters.items() if not torch.equal(state[name], tensor)), None)

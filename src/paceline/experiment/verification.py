"""Trains a recorded run again in one process, and compares weights with those that the run came to: to the bit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.core.errors import ConfigurationError
from paceline.experiment.retraining import retrain
from paceline.experiment.run_files import CHECKPOINTS, MODEL, read_configuration
from paceline.experiment.tasks import read_task_options, task_of
from paceline.recording.trace import Trace, trace_in
from paceline.training.checkpoint import MODEL as WEIGHTS
from paceline.training.checkpoint import checkpoints_in, load_state


class Verdict(NamedTuple):
    updates: int  # that were made again
    agreed: tuple[int, ...]  # the updates after which weights were kept, and are the same to the bit
    differs_at: int | None  # the first after which they are not
    parameter: str = ""  # one that differs there


def train_again(run_dir: Path) -> Verdict:
    """ConfigurationError where that is impossible, and why."""
    configuration = read_configuration(run_dir)
    origin = configuration.origin
    if origin is None or origin.task is None:
        raise ConfigurationError(
            f"{run_dir}: only runs of built-in tasks (paceline train) can be trained again: of a loop of your own the"
            " trace does not know what it does"
        )
    if configuration.threads is None:
        raise ConfigurationError(f"{run_dir}: its configuration does not say how many threads its workers had")
    task = task_of(read_task_options(origin.task), seed=configuration.seed)
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

    trace = Trace(trace_in(run_dir), allow_cut_off=True)
    last = retrain(
        trace,
        task,
        seed=configuration.seed,
        lr_scaling=configuration.lr_scaling,
        stale=configuration.stale,
        threads=configuration.threads,
        updated=compare,
    )
    if (run_dir / MODEL).exists() and last.version not in kept:
        _note(last.version, _difference(load_state(run_dir / MODEL), last.parameters))
    if not agreed and not differing:
        raise ConfigurationError(f"{run_dir}: holds no weights to compare with: neither a checkpoint nor a final model")
    first = differing[0] if differing else (None, "")
    return Verdict(last.version, tuple(agreed), *first)


def _difference(state: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> str | None:
    """The name of a parameter that is not the same to the bit."""
    return next((name for name, tensor in parameters.items() if not torch.equal(state[name], tensor)), None)

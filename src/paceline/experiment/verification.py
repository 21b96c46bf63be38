"""Trains a recorded run again in one process, and compares weights with those that the run came to: to the bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.core.errors import ConfigurationError
from paceline.experiment.configuration import CHECKPOINTS, MODEL, Configuration, Origin, read_configuration
from paceline.experiment.rehearsal import LoopFollower
from paceline.experiment.retraining import Retrained, retrain, walk
from paceline.experiment.script import Script, forget_script
from paceline.experiment.tasks import read_task_options, task_of
from paceline.experiment.wires import wire_of
from paceline.recording.progress_log import Measurement, read_metrics
from paceline.recording.trace import Trace, trace_in
from paceline.training.checkpoint import MODEL as WEIGHTS
from paceline.training.checkpoint import checkpoints_in, load_state
from paceline.training.parameters import ParameterStore
from paceline.training.worker import Worker


class Verdict(NamedTuple):
    updates: int  # that were made again
    agreed: tuple[int, ...]  # the updates after which weights were kept, and are the same to the bit
    alike_until: int  # the last update up to which nothing differed, checksums included
    differs_at: int | None  # the first after which something does
    parameter: str = ""  # one that differs there, if the weights were kept


class _Comparison:
    """Of weights made again with all that the run left of its own: weights here and there, checksums in between."""

    def __init__(self, run_dir: Path) -> None:
        self.kept = {int(path.name): path / WEIGHTS for path in checkpoints_in(run_dir / CHECKPOINTS)}
        self._digests = _digests(run_dir)
        self.agreed: list[int] = []
        self.alike_until = 0
        self.first_difference: tuple[int, str] | None = None

    def look(self, store: ParameterStore) -> None:
        version = store.version
        if version in self.kept:
            self.compare(version, load_state(self.kept[version]), store.parameters)
        elif version in self._digests:
            self._note(version, None if self._digests[version] == store.digest else "")

    def compare(self, version: int, state: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> None:
        found = next((name for name, tensor in parameters.items() if not torch.equal(state[name], tensor)), None)
        if found is None:
            self.agreed.append(version)
        self._note(version, found)

    def _note(self, version: int, differs: str | None) -> None:
        if self.first_difference is None:
            if differs is None:
                self.alike_until = version
            else:
                self.first_difference = version, differs


def train_again(run_dir: Path | str, train: Callable[[Worker], None] | None = None) -> Verdict:
    """ConfigurationError where that is impossible, and why.

    `train`: the loop of a run that was begun by a program; of others the run directory knows it.
    """
    run_dir = Path(run_dir)
    configuration = read_configuration(run_dir)
    if configuration.threads is None:
        raise ConfigurationError(f"{run_dir}: its configuration does not say how many threads its workers had")
    if not any(True for _ in Trace(trace_in(run_dir), allow_cut_off=True)):
        raise ConfigurationError(f"{run_dir}: its group had not begun: there is nothing to train again")
    comparison = _Comparison(run_dir)
    last = _made_again(run_dir, configuration, comparison.look, train)
    if (run_dir / MODEL).exists() and last.version not in comparison.kept:
        comparison.compare(last.version, load_state(run_dir / MODEL), last.parameters)
    if not comparison.agreed and comparison.first_difference is None:
        raise ConfigurationError(f"{run_dir}: holds no weights to compare with: neither a checkpoint nor a final model")
    first = comparison.first_difference or (None, "")
    return Verdict(last.version, tuple(comparison.agreed), comparison.alike_until, *first)


def _digests(run_dir: Path) -> dict[int, int]:
    """After some updates, a checksum of the parameters."""
    lines = read_metrics(run_dir / "metrics.jsonl")
    measured = [line for line in lines if isinstance(line, Measurement) and line.updates]
    return {line.updates: line.digest for line in measured if line.digest is not None}


def _made_again(
    run_dir: Path,
    told: Configuration,
    compare: Callable[[ParameterStore], None],
    train: Callable[[Worker], None] | None,
) -> Retrained:
    trace, origin = Trace(trace_in(run_dir), allow_cut_off=True), told.origin
    assert told.threads is not None
    wire = wire_of(run_dir, told)
    if train is None and origin is not None and origin.task is not None:
        return retrain(
            trace,
            task_of(read_task_options(origin.task), seed=told.seed),
            seed=told.seed,
            lr_scaling=told.lr_scaling,
            stale=told.stale,
            threads=told.threads,
            wire=wire,
            updated=compare,
        )
    follower = LoopFollower(trace, _loop_of(run_dir, origin, train), told, wire)
    try:
        return walk(trace, follower, told.threads, compare)
    finally:
        follower.close()


def _loop_of(
    run_dir: Path, origin: Origin | None, train: Callable[[Worker], None] | None
) -> Callable[[], Callable[[Worker], None]]:
    """Gives the user's function, as a new process would find it."""
    if train is not None:
        return lambda: train
    if origin is None or origin.script is None:
        raise ConfigurationError(
            f"{run_dir}: was begun by a program: give its function, as train_again(run_dir, train) of"
            " paceline.experiment.verification"
        )
    script = Script(Path(origin.script), origin.arguments, "train")

    def loaded() -> Callable[[Worker], None]:
        forget_script()  # a process loads it anew, after its random numbers were seeded
        return script

    return loaded

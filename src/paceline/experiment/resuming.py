"""Which checkpoint a run goes on from, and whether it is the same run."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import NamedTuple

from paceline.core.errors import ConfigurationError
from paceline.core.messages import NOT_STALE
from paceline.experiment.configuration import CHECKPOINTS, Configuration, read_configuration
from paceline.experiment.simulation import policy_for
from paceline.policies import Policy
from paceline.recording.trace import Trace, trace_in
from paceline.training.checkpoint import STATE, Checkpoint, TornCheckpointError, checkpoints_in, read_checkpoint

AUTO = "auto"
# What a run must be told as before: the group may be another one.
SAME = ("train", "policy", "epochs", "steps", "samples", "budget", "seed", "lr_scaling", "stale")


class TornCheckpointWarning(UserWarning):
    """A checkpoint was refused, and the one before it taken."""


class NotCorrectedWarning(UserWarning):
    """A run goes on with a larger group, and without a correction of stale gradients."""


class Resumption(NamedTuple):
    run_dir: Path
    checkpoint: Checkpoint


def find_resumption(resume: Path | str, run_dir: Path | str | None, told: Configuration) -> Resumption | None:
    """None: `auto`, and there is nothing to go on from."""
    if resume == AUTO:
        if run_dir is None:
            raise ConfigurationError("resume='auto' needs a run_dir: that is where it looks for checkpoints")
        directory = Path(run_dir)
        if not checkpoints_in(directory / CHECKPOINTS):
            return None
        found = directory, newest(directory)
    else:
        found = _at(Path(resume))
        if run_dir is not None and Path(run_dir).resolve() != found[0].resolve():
            raise ConfigurationError(f"run_dir is {run_dir}, and the run to go on with is in {found[0]}: leave one out")
    _refuse_another_run(found[0], told)
    return Resumption(*found)


def expects_stale(found: Resumption | None, now: bool) -> bool:
    """Whether updates reckon with stale gradients: as this group would, or as the run did that goes on. Its trace has
    one rule, and the moments of its workers are in the checkpoint, also if a single worker goes on."""
    rule = None if found is None else Trace(trace_in(found.run_dir), allow_cut_off=True).header.updates
    before = now if rule is None else rule.why != NOT_STALE
    if now and not before:
        warnings.warn(
            "the run began with one worker, where no gradient is stale: those of a larger group are applied as they"
            " are; a new run that begins with this group would correct them",
            NotCorrectedWarning,
            stacklevel=4,
        )
    return before


def policy_in_force(first: Policy, checkpoint: Checkpoint, workers: int) -> Policy:
    """The policy that the run had when the checkpoint was made, a fresh one. `first`: that it began with."""
    changed = checkpoint.facts.lifecycle.coordinator.changed
    name = str(first) if changed is None else changed.by or changed.policy
    if name == str(first):
        return first
    try:
        return policy_for(name, workers)
    except ConfigurationError as problem:
        raise ConfigurationError(f"the run had been switched to {name}: {problem}") from None


def _at(path: Path) -> tuple[Path, Checkpoint]:
    """`path`: a run's directory, or one of its checkpoints."""
    if (path / STATE).exists():
        return path.parent.parent, read_checkpoint(path)
    if not path.is_dir():
        raise ConfigurationError(f"{path}: there is no such directory, so there is no run to go on with")
    return path, newest(path)


def newest(run_dir: Path) -> Checkpoint:
    """The newest that is whole; those that are not are named, and left where they are."""
    problem = f"{run_dir}: has no checkpoint: there is nothing to go on from"
    for directory in reversed(checkpoints_in(run_dir / CHECKPOINTS)):
        try:
            return read_checkpoint(directory)
        except TornCheckpointError as torn:
            problem = str(torn)
            warnings.warn(f"{torn}; the one before it is taken", TornCheckpointWarning, stacklevel=4)
    raise ConfigurationError(problem)


def _refuse_another_run(run_dir: Path, told: Configuration) -> None:
    before = read_configuration(run_dir)
    for name in SAME:
        was, is_now = getattr(before, name), getattr(told, name)
        if was != is_now:
            raise ConfigurationError(f"{run_dir} is another run: its {name} is {was!r}, and now it is {is_now!r}")

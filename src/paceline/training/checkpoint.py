"""Checkpoints: a model's state as a safetensors file that any tool can read, and all that a run needs to go on.

A checkpoint is a directory, named after the number of updates. It is written aside, reaches the disk, and is renamed: a
directory with that name is whole, and its checksums say so. Loading one runs no code.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from paceline.core.errors import ConfigurationError
from paceline.lifecycle.resumption import LifecycleState
from paceline.training.layout import Layout, dtype_of, views
from paceline.training.trees import put_together, taken_apart

FORMAT = "paceline-checkpoint-1"
MODEL, TRAINING, STATE = "model.safetensors", "training.safetensors", "state.json"
UNFINISHED = ".unfinished"


class Facts(msgspec.Struct, frozen=True):
    """What a checkpoint is of, and where the group stood."""

    policy: str
    seed: int
    epochs: int | None
    seconds: float  # since the group began, without the time that nothing ran
    samples: int
    updates: int
    lifecycle: LifecycleState
    trace_bytes: int  # of the trace, and of the metrics, that had been written
    metrics_bytes: int


class Checkpoint(NamedTuple):
    facts: Facts
    model: dict[str, Tensor]  # a state_dict
    training: Any  # a tree of all else


class Snapshot(NamedTuple):
    """A checkpoint that shares no memory with the run: it can be written while the run goes on."""

    facts: Facts
    model: dict[str, Tensor]
    structure: Any  # of the tree
    tensors: dict[str, Tensor]


def snapshot_of(facts: Facts, model: dict[str, Tensor], training: Any) -> Snapshot:
    """`model`: copies already."""
    return Snapshot(facts, model, *taken_apart(training))


class _Written(msgspec.Struct, frozen=True):
    """state.json"""

    format: str
    checksums: dict[str, int]
    facts: Facts
    training: Any


class TornCheckpointError(ConfigurationError):
    """A checkpoint is not whole, or not of this run; the message names it and says why."""


def write_checkpoint(below: Path, snapshot: Snapshot) -> Path:
    """Whole or not at all, and on the disk when this returns."""
    below.mkdir(parents=True, exist_ok=True, mode=0o700)
    directory = below / f"{snapshot.facts.updates:09d}"
    unfinished = directory.with_suffix(UNFINISHED)
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700)
    try:
        _save(_separate(snapshot.model), unfinished / MODEL, {"updates": str(snapshot.facts.updates)})
        _save(snapshot.tensors, unfinished / TRAINING)
        checksums = {name: _checksum(unfinished / name) for name in (MODEL, TRAINING)}
        written = _Written(FORMAT, checksums, snapshot.facts, snapshot.structure)
        (unfinished / STATE).write_bytes(msgspec.json.encode(written))
        for name in (MODEL, TRAINING, STATE):
            os.chmod(unfinished / name, 0o600)
            _to_disk(unfinished / name)
        _to_disk(unfinished)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    shutil.rmtree(directory, ignore_errors=True)  # of a run that was resumed and came here again
    unfinished.rename(directory)
    _to_disk(below)
    return directory


def read_checkpoint(directory: Path) -> Checkpoint:
    """TornCheckpointError, in words, if it is not whole."""
    try:
        written = msgspec.json.decode((directory / STATE).read_bytes(), type=_Written)
        if written.format != FORMAT:
            raise TornCheckpointError(f"{directory}: format {written.format!r} is unknown here; this reads {FORMAT!r}")
        for name, checksum in written.checksums.items():
            if _checksum(directory / name) != checksum:
                raise TornCheckpointError(f"{directory / name}: is damaged: its checksum is not what was written")
        model, tensors = load_file(directory / MODEL), load_file(directory / TRAINING)
        training = put_together(written.training, tensors)
    except OSError as problem:
        raise TornCheckpointError(f"{directory}: cannot be read as a checkpoint: {problem}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, SafetensorError) as problem:
        raise TornCheckpointError(f"{directory}: is no whole checkpoint: {problem}") from None
    return Checkpoint(written.facts, model, training)


def checkpoints_in(below: Path) -> list[Path]:
    """Those that were finished, the oldest first."""
    return sorted(path for path in below.glob("[0-9]*") if path.is_dir() and path.suffix != UNFINISHED)


def set_aside_after(below: Path, updates: int) -> None:
    """The run goes on from that update: what was kept of later ones, torn or not, belongs to a history that was given
    up. It is renamed, so that nobody goes on from it by mistake."""
    for path in checkpoints_in(below):
        if int(path.name) > updates:
            aside = path.with_name(f"lost-{path.name}")
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)


def save_state(state: Mapping[str, Tensor], path: Path, facts: Mapping[str, str]) -> None:
    """Write it whole or not at all. Tied tensors are written once per key."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    unfinished = path.with_suffix(UNFINISHED)
    try:
        _save(_separate(state), unfinished, facts)
        os.chmod(unfinished, 0o600)
        os.replace(unfinished, path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def load_state(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except Exception as problem:  # safetensors has an error class of its own, and passes on those of the file system
        raise ConfigurationError(f"{path}: cannot be read as a model's state: {problem}") from None


def _save(tensors: Mapping[str, Tensor], path: Path, facts: Mapping[str, str] | None = None) -> None:
    try:
        save_file(dict(tensors), path, metadata=None if facts is None else dict(facts))
    except SafetensorError as problem:  # it has the file system's errors as text
        raise OSError(str(problem)) from None


def _separate(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """safetensors refuses tensors that share memory."""
    return {key: tensor.contiguous().clone() for key, tensor in state.items()}


def _checksum(path: Path) -> int:
    found = 0
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            found = zlib.crc32(piece, found)
    return found


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def saved_parameters(layout: Layout, checkpoint: Checkpoint) -> Tensor:
    """Those of a checkpoint, as this layout has them. ConfigurationError if it is of another model."""
    saved = checkpoint.model
    flat = torch.empty(layout.parameter_count, dtype=layout.dtype)
    keys = {name: key for key, name in layout.keys}
    places = views(flat, layout.parameters)
    for entry in layout.parameters:
        found = saved.get(keys[entry.name])
        if found is None or found.shape != entry.shape or found.dtype != dtype_of(entry.dtype):
            what = "it is not there" if found is None else f"there it is {found.dtype} of {tuple(found.shape)}"
            raise ConfigurationError(f"the checkpoint is of another model: parameter {entry.name!r}: {what}")
        places[entry.name].copy_(found)
    return flat

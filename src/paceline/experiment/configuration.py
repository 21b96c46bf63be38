"""config.json: what a run was told. Reading it does not import torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from paceline.core.errors import ConfigurationError
from paceline.core.messages import UpdateRule
from paceline.experiment.group import Group
from paceline.runtimes.ray_cluster.options import RayCluster

CONFIGURATION = "config.json"
CHECKPOINTS = Path("checkpoints")
MODEL = CHECKPOINTS / "model.safetensors"
AS_THEY_ARE = "none"  # gradients that are not compressed


class Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a command was given to train, so that `--resume` needs to be told nothing again: a task, or a script."""

    name: str
    task: dict[str, Any] | None = None  # TaskOptions
    script: str | None = None
    arguments: tuple[str, ...] = ()


class Configuration(msgspec.Struct, frozen=True, omit_defaults=True):
    """config.json: what a run was told, and, once it has begun, how its updates are made."""

    policy: str
    group: Group
    epochs: int | None
    seed: int
    lr_scaling: str
    train: str
    stale: str = "auto"
    steps: int | None = None
    samples: int | None = None
    budget: float | None = None
    updates: UpdateRule | None = None
    threads: int | None = None  # of torch in every worker
    not_finite: str = "stop"
    evaluate_every: int | None = None
    checkpoint_every: str | None = None
    keep: int = 3
    origin: Origin | None = None
    compressed: bool = False  # the trace
    report: bool = True  # a page about the run is made at its end
    versions: dict[str, str] = {}  # of what it ran with
    cluster: RayCluster | None = None
    wires: tuple[str, ...] = ()  # as `wire`, of the launches that this one goes on from

    @property
    def wire(self) -> str:
        """How gradients come to the server: with which compression, and by which transport."""
        cluster = self.cluster
        if cluster is None or cluster.compression == AS_THEY_ARE:
            return AS_THEY_ARE
        return f"{cluster.compression} by {cluster.transport}"

    @property
    def all_wires(self) -> tuple[str, ...]:
        """Of all launches of the run, in their order, each once."""
        return tuple(dict.fromkeys((*self.wires, self.wire)))


def read_configuration(directory: Path) -> Configuration:
    """What the run in this directory was told; ConfigurationError if there is none."""
    path = directory / CONFIGURATION
    try:
        return msgspec.json.decode(path.read_bytes(), type=Configuration)
    except OSError as problem:
        raise ConfigurationError(f"{path}: cannot be read: {problem.strerror}; is this a run directory?") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise ConfigurationError(f"{path}: is not the configuration of a training run: {problem}") from None

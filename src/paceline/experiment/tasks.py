"""The built-in tasks: a data set, a model and settings that suit both."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
import torch.nn.functional as F
from torch.optim.lr_scheduler import MultiStepLR

from paceline.core.errors import ConfigurationError
from paceline.training.choices import SHARDINGS
from paceline.training.datasets import load
from paceline.training.models import make
from paceline.training.task import Task
from paceline.training.worker import seed_everything

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "nadam": torch.optim.NAdam,
    "adamax": torch.optim.Adamax,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}


class Settings(NamedTuple):
    """What a task takes where the user says nothing. The learning rate is that of SGD for a full round of the group."""

    model: str
    learning_rate: float
    batch_size: int
    epochs: int
    momentum: float = 0.9
    weight_decay: float = 1e-4
    milestones: tuple[float, ...] = ()  # parts of the run after which the rate is a tenth


TASKS: dict[str, Settings] = {
    "digits": Settings("mlp", learning_rate=0.05, batch_size=32, epochs=10),
    "fashion-mnist": Settings("cnn", learning_rate=0.03, batch_size=64, epochs=5),
    # As He et al. 2015 train it.
    "cifar10": Settings("resnet20", learning_rate=0.1, batch_size=64, epochs=10, milestones=(0.5, 0.75)),
}
ADAPTIVE_RATE = 0.001  # of the optimizers that are not SGD


def settings_of(name: str) -> Settings:
    if name not in TASKS:
        raise ConfigurationError(f"unknown task {name!r}; there are: {', '.join(TASKS)}")
    return TASKS[name]


class TaskOptions(msgspec.Struct, frozen=True):
    """A built-in task, and what the user wants changed about it; None: as the settings of the task say."""

    name: str
    model: str | None = None
    data: Path | None = None
    optimizer: str = "sgd"
    learning_rate: float | None = None
    momentum: float | None = None
    batch_size: int | None = None
    sharding: str = "dynamic"
    weight_decay: float | None = None
    nesterov: bool = False
    epochs: int | None = None  # that the schedule is laid out for
    schedule: bool = True  # whether the rate falls as the settings say

    def as_written(self) -> dict[str, Any]:
        """For a file: `read_task_options` is the inverse."""
        return {**msgspec.structs.asdict(self), "data": None if self.data is None else str(self.data.resolve())}

    @property
    def rate(self) -> float:
        """The learning rate that is meant."""
        if self.learning_rate is not None:
            return self.learning_rate
        return settings_of(self.name).learning_rate if self.optimizer == "sgd" else ADAPTIVE_RATE


def read_task_options(written: dict[str, Any]) -> TaskOptions:
    data = written["data"]
    return TaskOptions(**{**written, "data": None if data is None else Path(data)})


def task_of(options: TaskOptions, *, seed: int = 0) -> Task:
    """The seed decides the model's first weights. Tasks share the tensors of their data set: nobody may write to them.

    ConfigurationError if anything about the options is impossible.
    """
    settings = settings_of(options.name)
    if options.sharding not in SHARDINGS:
        raise ConfigurationError(f"unknown sharding {options.sharding!r}; there are: {', '.join(SHARDINGS)}")
    size = settings.batch_size if options.batch_size is None else options.batch_size
    if size < 1:
        raise ConfigurationError(f"batch_size is {size}; it must be at least 1")
    optimizer = _optimizer(options, settings)
    pictures = load(options.name, options.data)
    seed_everything(seed)
    return Task(
        make(options.model or settings.model, pictures.shape, pictures.classes),
        F.cross_entropy,
        pictures.train,
        pictures.test,
        optimizer,
        size,
        options.sharding,
        _schedule(options, settings),
    )


def _schedule(options: TaskOptions, settings: Settings) -> partial[MultiStepLR] | None:
    if not settings.milestones or not options.schedule:
        return None
    epochs = settings.epochs if options.epochs is None else options.epochs
    return partial(MultiStepLR, milestones=[max(1, round(part * epochs)) for part in settings.milestones])


def _optimizer(options: TaskOptions, settings: Settings) -> partial[torch.optim.Optimizer]:
    if options.optimizer not in OPTIMIZERS:
        raise ConfigurationError(f"unknown optimizer {options.optimizer!r}; there are: {', '.join(OPTIMIZERS)}")
    rate = options.rate
    if not 0 < rate < float("inf"):
        raise ConfigurationError(f"the learning rate is {rate:g}; it must be above 0")
    decay = settings.weight_decay if options.weight_decay is None else options.weight_decay
    if not 0 <= decay < float("inf"):
        raise ConfigurationError(f"weight_decay is {decay:g}; it must be at least 0")
    arguments: dict[str, Any] = {"lr": rate, "weight_decay": decay}
    if options.optimizer == "sgd":
        momentum = settings.momentum if options.momentum is None else options.momentum
        if not 0 <= momentum < 1:
            raise ConfigurationError(f"momentum is {momentum:g}; it must be from 0 and below 1")
        if options.nesterov and momentum == 0:
            raise ConfigurationError("nesterov needs a momentum above 0")
        arguments |= {"momentum": momentum, "nesterov": options.nesterov}
    elif options.momentum is not None or options.nesterov:
        raise ConfigurationError(f"momentum is for sgd, not for {options.optimizer}")
    return partial(OPTIMIZERS[options.optimizer], **arguments)

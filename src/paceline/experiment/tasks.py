"""The built-in tasks: a data set, a model and settings that suit both."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
import torch.nn.functional as F

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
    "rmsprop": torch.optim.RMSprop,
}


class Settings(NamedTuple):
    """What a task takes where the user says nothing. The learning rate is meant for a full round of the group.

    Plain SGD: with momentum no single rate suits synchronous and asynchronous policies (docs/training.md).
    """

    model: str
    learning_rate: float
    batch_size: int
    epochs: int
    momentum: float = 0.0


TASKS: dict[str, Settings] = {
    "digits": Settings("mlp", learning_rate=0.5, batch_size=32, epochs=10),
    "fashion-mnist": Settings("cnn", learning_rate=0.3, batch_size=64, epochs=5),
    "cifar10": Settings("resnet20", learning_rate=0.3, batch_size=64, epochs=10),
}


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
    )


def _optimizer(options: TaskOptions, settings: Settings) -> partial[torch.optim.Optimizer]:
    if options.optimizer not in OPTIMIZERS:
        raise ConfigurationError(f"unknown optimizer {options.optimizer!r}; there are: {', '.join(OPTIMIZERS)}")
    rate = settings.learning_rate if options.learning_rate is None else options.learning_rate
    if not 0 < rate < float("inf"):
        raise ConfigurationError(f"the learning rate is {rate:g}; it must be above 0")
    arguments: dict[str, Any] = {"lr": rate}
    if options.optimizer == "sgd":
        momentum = settings.momentum if options.momentum is None else options.momentum
        if not 0 <= momentum < 1:
            raise ConfigurationError(f"momentum is {momentum:g}; it must be from 0 and below 1")
        arguments["momentum"] = momentum
    elif options.momentum is not None:
        raise ConfigurationError(f"momentum is for sgd, not for {options.optimizer}")
    return partial(OPTIMIZERS[options.optimizer], **arguments)

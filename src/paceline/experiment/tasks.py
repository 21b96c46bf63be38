"""The built-in tasks: a data set, a model and settings that suit both."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

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


def task_of(
    name: str,
    *,
    model: str | None = None,
    data: Path | None = None,
    optimizer: str = "sgd",
    learning_rate: float | None = None,
    momentum: float | None = None,
    batch_size: int | None = None,
    sharding: str = "dynamic",
    seed: int = 0,
) -> Task:
    """A built-in task, with anything about it changed that is given. The seed decides the model's first weights."""
    settings = settings_of(name)
    if optimizer not in OPTIMIZERS:
        raise ConfigurationError(f"unknown optimizer {optimizer!r}; there are: {', '.join(OPTIMIZERS)}")
    if sharding not in SHARDINGS:
        raise ConfigurationError(f"unknown sharding {sharding!r}; there are: {', '.join(SHARDINGS)}")
    rate = settings.learning_rate if learning_rate is None else learning_rate
    if not 0 < rate < float("inf"):
        raise ConfigurationError(f"the learning rate is {rate:g}; it must be above 0")
    arguments: dict[str, Any] = {"lr": rate}
    if optimizer == "sgd":
        arguments["momentum"] = settings.momentum if momentum is None else momentum
        if not 0 <= arguments["momentum"] < 1:
            raise ConfigurationError(f"momentum is {arguments['momentum']:g}; it must be from 0 and below 1")
    elif momentum is not None:
        raise ConfigurationError(f"momentum is for sgd, not for {optimizer}")
    size = settings.batch_size if batch_size is None else batch_size
    if size < 1:
        raise ConfigurationError(f"batch_size is {size}; it must be at least 1")
    pictures = load(name, data)
    seed_everything(seed)
    return Task(
        make(model or settings.model, pictures.shape, pictures.classes),
        F.cross_entropy,
        pictures.train,
        pictures.test,
        partial(OPTIMIZERS[optimizer], **arguments),
        size,
        sharding,
    )

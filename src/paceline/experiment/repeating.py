"""The commands that make a run again, look at it otherwise, or go on with it: as they would be typed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from paceline.experiment.configuration import Configuration, Origin
from paceline.experiment.group import Group

USUAL = {"lr_scaling": "auto", "stale": "auto", "not_finite": "stop", "checkpoint_every": "60s", "keep": 3}
OF_A_TASK = ("model", "data", "optimizer", "momentum", "weight_decay", "batch_size", "sharding")


class Step(NamedTuple):
    """What it is for, and what to type."""

    purpose: str
    command: str


def steps(run: Path, told: Configuration | None, *, over: bool) -> list[Step]:
    """`over`: the work of the run is done, so that nothing is left to go on with."""
    found = []
    if told is not None and told.origin is not None:
        found.append(Step("make the run again", shlex.join(_training(told, told.origin))))
        if not over:
            command = "train" if told.origin.task is not None else "run"
            found.append(Step("go on with it", shlex.join(["paceline", command, "--resume", str(run)])))
    found.append(Step("replay its decisions", shlex.join(["paceline", "replay", str(run)])))
    if told is not None and told.threads is not None:
        found.append(
            Step("train it again, to the same weights", shlex.join(["paceline", "replay", str(run), "--weights"]))
        )
    found.append(Step("ask what other policies would make of it", shlex.join(["paceline", "whatif", str(run)])))
    return found


def _training(told: Configuration, origin: Origin) -> Iterator[str]:
    yield "paceline"
    if origin.task is not None:
        yield from ("train", origin.name, *_of_task(origin.task))
    else:
        yield from ("run", str(origin.script))
    yield from ("--policy", told.policy, *_of_group(told.group))
    limits = {"epochs": told.epochs, "steps": told.steps, "samples": told.samples, "budget": told.budget}
    yield from _options({**limits, "seed": told.seed, "evaluate_every": told.evaluate_every})
    given = {name: getattr(told, name) for name in USUAL}
    yield from _options({name: value for name, value in given.items() if value != USUAL[name]})
    yield from ("--compress-trace",) if told.compressed else ()
    yield from () if told.report else ("--no-report",)
    if told.cluster is not None:
        amounts = ",".join(f"{name}={amount:g}" for name, amount in told.cluster.resources_per_worker.items())
        on = {"cluster": "ray", "address": told.cluster.address, "servers": told.cluster.servers, "resources": amounts}
        yield from _options({**on, "transport": told.cluster.transport, "compression": told.cluster.compression})
    if origin.arguments:
        yield from ("--", *origin.arguments)


def _of_task(task: dict[str, Any]) -> Iterator[str]:
    yield from _options({name: task[name] for name in OF_A_TASK if (name, task[name]) not in _USUAL_OF_A_TASK})
    yield from _options({"lr": task["learning_rate"]})
    if task["nesterov"]:
        yield "--nesterov"


_USUAL_OF_A_TASK = {("optimizer", "sgd"), ("sharding", "dynamic")}


def _of_group(group: Group) -> Iterator[str]:
    yield from ("--workers", str(group.workers) if group.most is None else f"{group.least}..{group.most}")
    for slowdown in group.slowdowns:
        lasts = "" if not slowdown.begin and slowdown.end is None else f"@{slowdown.begin:g}.."
        yield from (
            "--slow",
            f"{slowdown.worker}={slowdown.factor:g}{lasts}" + (f"{slowdown.end:g}" if slowdown.end else ""),
        )
    intervals = None if group.intervals is None else ",".join(f"{seconds:g}" for seconds in group.intervals)
    yield from _options({"speed": group.speed, "intervals": intervals, "trace": group.trace})
    usual = Group(group.workers)
    given = {name: getattr(group, name) for name in ("device", "restart", "patience")}
    yield from _options({name: value for name, value in given.items() if value != getattr(usual, name)})


def _options(given: dict[str, Any]) -> Iterator[str]:
    for name, value in given.items():
        if value is not None:
            yield from (f"--{name.replace('_', '-')}", f"{value:g}" if isinstance(value, float) else str(value))

"""Counts pulls in which a worker got parameters of two versions: there must be none, however many shards there are.

    python benchmarks/mixed_pulls.py [--pulls 1000000] [--seconds 60] [--servers 2] [--workers 3] [--policies asp,bsp]

Shards and workers are plain processes, and push and pull a small model as fast as they can, until there were so many
pulls under each policy, or the time is over. Two checks look at every pull. A worker compares what the shards say their
version is (MixedVersionsError ends the run). And the version is in the parameters: they begin with 0, every gradient is
-1 and the rate 1, so each update adds 1 to each number, and all of them must be the same whole number, which must not
fall. First a shard is made to send parameters before the update that they should have: once it says so, once it lies.
Both must be found, or nothing is counted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from crowd.launching import PlainLauncher, PlainProcess
from crowd.model import Layers

import paceline
from paceline.core.errors import PacelineError
from paceline.experiment import training
from paceline.runtimes.serving.duties import begin, work
from paceline.runtimes.sockets import shard_messages as said
from paceline.runtimes.sockets.remote import Errand, RemoteProcess
from paceline.runtimes.sockets.shard import Shard
from paceline.training.aggregation import Aggregation

PARAMETERS = 1_000
POLICIES = ("asp", "ssp", "elastic-bsp", "bsp")
PLANTED = 200  # pulls of a run with a shard that does it wrong


class LateShard(Shard):
    """Sends parameters before the update that they should have."""

    lies = False  # about the version that it sends
    _late: said.Update | None = None

    def _carry_on(self, command: Any, aggregation: Aggregation) -> None:
        if isinstance(command, said.Update):
            self._late = command
            return
        late, self._late = self._late, None
        if late is None or not isinstance(command, said.HandOut):
            super()._carry_on(command, aggregation)
        else:
            self._held(command.seat).parameters.copy_(aggregation.store.flat)
            version = aggregation.store.version + self.lies
            self._loop.send(self._workers[command.seat].channel, said.Parameters(version))
        if late is not None:
            super()._carry_on(late, aggregation)


class LyingShard(LateShard):
    lies = True


class Launcher(PlainLauncher):
    def _place(self, errand: Errand) -> RemoteProcess:
        return PlainProcess(self.begin(self._stack, be_a_worker, errand, self._train))


def be_a_worker(errand: Errand, train: Any) -> None:
    begin(errand.assignment)
    with errand.linked() as link:
        work(errand.assignment, link, lambda: train)


def push_and_pull(worker: paceline.Worker, pulls: int, seconds: float, into: str) -> None:
    """Every pull is looked at; what was found is written down at the end."""
    model = Layers(PARAMETERS)
    optimizer = worker.optimizer(model, torch.optim.SGD, lr=1.0)
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, -1.0)
    views = [parameter.detach() for parameter in parameters]
    first, done, mixed = parameters[0], 0, 0
    before, end = 0.0, time.monotonic() + seconds
    while done < pulls and (done % 64 or time.monotonic() < end):
        first.grad = None if first.grad is None else first.grad.detach()  # as new as a backward pass would make it
        optimizer.step()
        done += 1
        low, high = (bound.item() for bound in torch.cat(views, 1).aminmax())
        mixed += low != high or low != int(low) or low < before
        before = high
    Path(into, f"{worker.index}.json").write_text(json.dumps({"pulls": done, "mixed": mixed, "last_version": before}))


def count(
    policy: str, given: argparse.Namespace, transport: str, pulls: int, wrong: type[Shard] = Shard
) -> dict[str, Any]:
    """`wrong`: what the last shard is."""

    def launcher_for(cluster: Any, *arguments: Any, elastic: bool, name: str) -> Launcher:
        def shard(number: int) -> type[Shard]:
            return wrong if number == given.servers - 1 else Shard

        return Launcher(*arguments, elastic=elastic, servers=given.servers, transport=transport, shard=shard)

    with tempfile.TemporaryDirectory() as into, patch.object(training, "launcher_for", launcher_for):
        each = -(-pulls // given.workers)
        train = partial(push_and_pull, pulls=each, seconds=given.seconds, into=into)
        began = time.monotonic()
        result = paceline.launch(
            train, workers=given.workers, policy=policy, stale="none", lr_scaling="none", epochs=None, device="cpu"
        )
        told = [json.loads(path.read_text()) for path in sorted(Path(into).iterdir())]
    assert len(told) == given.workers, "a worker did not come to its end"
    final = {value for tensor in result.model_state.values() for value in tensor.unique().tolist()}
    return {
        "policy": policy,
        "transport": transport,
        "pulls": sum(own["pulls"] for own in told),
        "mixed": sum(own["mixed"] for own in told),
        "updates": result.summary.updates,
        "final_versions": sorted(final),
        "seconds": time.monotonic() - began,
    }


def check_the_checks(given: argparse.Namespace, transport: str) -> dict[str, Any]:
    """A shard that does it wrong must be found, by both ways of looking."""
    try:
        count("asp", given, transport, PLANTED, LateShard)
        said_so = ""
    except PacelineError as problem:
        said_so = str(problem).strip().splitlines()[-1]
    assert "came together" in said_so, f"a worker did not see that two shards sent two versions: {said_so!r}"
    lied = count("asp", given, transport, PLANTED, LyingShard)
    assert lied["mixed"], "parameters of two versions looked like one"
    print(
        f"{transport}: a shard that is late: {said_so!r}; one that lies: {lied['mixed']} of {lied['pulls']} pulls mixed"
    )
    return {"late": said_so, "lying": lied}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path, default=Path("benchmarks/results/mixed_pulls.json"))
    arguments.add_argument("--pulls", type=int, default=1_000_000, help="under each policy, and over each transport")
    arguments.add_argument("--seconds", type=float, default=60.0, help="that a run may take")
    arguments.add_argument("--servers", type=int, default=2)
    arguments.add_argument("--workers", type=int, default=3)
    arguments.add_argument("--policies", default=",".join(POLICIES))
    arguments.add_argument("--transports", default="tcp,auto", help="auto: memory is shared")
    given = arguments.parse_args()
    transports = given.transports.split(",")
    checks = {transport: check_the_checks(given, transport) for transport in transports}
    rows = []
    for transport in transports:
        for policy in given.policies.split(","):
            rows.append(row := count(policy, given, transport, given.pulls))
            print(
                f"{transport:<5} {policy:<12} {row['pulls']:>10,} pulls  {row['mixed']} mixed  {row['seconds']:.0f} s"
            )
    pulls, mixed = sum(row["pulls"] for row in rows), sum(row["mixed"] for row in rows)
    print(f"{pulls:,} pulls over {given.servers} shards, {mixed} of them mixed")
    about = {"cores": os.cpu_count(), "python": platform.python_version(), "torch": torch.__version__}
    result = {"machine": about, "servers": given.servers, "workers": given.workers, "parameters": PARAMETERS}
    result |= {"pulls": pulls, "mixed": mixed, "checks": checks, "runs": rows}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""How shards are started on a Ray cluster that loses nodes meanwhile; Ray itself is a fake here."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from paceline import RayCluster
from paceline.core.errors import ConfigurationError
from paceline.runtimes.ray_cluster.launcher import MOST_STARTS, RayLauncher


class RayError(Exception):
    pass


class ActorDiedError(RayError):
    pass


class GetTimeoutError(RayError):
    pass


NODE = ActorDiedError("The actor died because its node has died.")
RAISED = ActorDiedError("The actor died because of an error raised in its creation task: no module named paceline")


class FakeRay:
    """Every actor listens at its number among all, unless there is a problem with it."""

    exceptions = SimpleNamespace(RayError=RayError, GetTimeoutError=GetTimeoutError)

    def __init__(self, problems: dict[int, Exception]) -> None:
        self.problems = problems
        self.started = 0
        self.served: list[int] = []
        self.killed: list[int] = []

    def remote(self, kind: type) -> Any:
        return SimpleNamespace(options=lambda **options: SimpleNamespace(remote=self._start))

    def _start(self) -> Any:
        self.started += 1
        number = self.started

        def call(done: Callable[[], None]) -> Any:
            return SimpleNamespace(remote=lambda *arguments: done() or number)

        return SimpleNamespace(number=number, listen=call(lambda: None), serve=call(lambda: self.served.append(number)))

    def get(self, answer: int, timeout: float) -> int:
        if answer in self.problems:
            raise self.problems[answer]
        return answer

    def kill(self, actor: Any, no_restart: bool) -> None:
        self.killed.append(actor.number)


def start(ray: FakeRay) -> Any:
    launcher = RayLauncher(RayCluster(servers=3), lambda worker: None, None, lambda index: None)  # type: ignore[arg-type,return-value]
    launcher._ray, launcher._runtime_env = ray, None
    with ExitStack() as stack:
        return launcher._start_shards(stack)


def test_a_shard_that_dies_with_its_node_before_it_listens_is_started_anew() -> None:
    ray = FakeRay({2: NODE, 4: NODE})
    assert start(ray) == [1, 5, 3]
    assert sorted(ray.served) == [1, 3, 5] and sorted(ray.killed) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("problems", "starts", "said"),
    [
        ({1: RAISED}, 3, "a server could not be started: .* no module named paceline"),
        (dict.fromkeys(range(1, 20), NODE), 3 + MOST_STARTS - 1, "a server could not be started: .* its node"),
    ],
)
def test_what_does_not_get_better_is_said_at_once_or_after_some_starts(
    problems: dict[int, Exception], starts: int, said: str
) -> None:
    ray = FakeRay(problems)
    with pytest.raises(ConfigurationError, match=said):
        start(ray)
    assert ray.started == starts and len(ray.killed) == starts

"""How shards are started on a Ray cluster that loses nodes meanwhile; Ray itself is a fake here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from paceline.core.errors import ConfigurationError
from paceline.runtimes.ray_cluster.shard_places import ShardPlaces
from paceline.runtimes.ray_cluster.watcher import MOST_LIVES


class ActorDiedError(Exception):
    pass


NODE = ActorDiedError("The actor died because its node has died.")
RAISED = ActorDiedError("The actor died because of an error raised in its creation task: no module named paceline")


class FakeRay:
    """Every actor listens at its number among all, unless there is a problem with it."""

    exceptions = SimpleNamespace(RayError=ActorDiedError)

    def __init__(self, problems: dict[int, Exception]) -> None:
        self.problems = problems
        self.started = 0
        self.killed: list[int] = []

    def make(self, number: int, strategy: Any) -> int:
        self.started += 1
        return self.started

    def wait(self, answers: list[int], **options: Any) -> tuple[list[int], list[int]]:
        return answers[:1], answers[1:]

    def get(self, answer: int) -> int:
        if answer in self.problems:
            raise self.problems[answer]
        return answer

    def kill(self, actor: int, no_restart: bool) -> None:
        self.killed.append(actor)


def started(ray: FakeRay) -> Any:
    doubts: Any = SimpleNamespace(strategy="SPREAD", nodes=frozenset(), look=lambda: None)
    return ShardPlaces(ray, doubts, ray.make, lambda actor: actor).wait(3, 10.0)


def test_a_shard_that_dies_with_its_node_before_it_listens_is_started_anew() -> None:
    ray = FakeRay({2: NODE, 4: NODE})
    assert started(ray) == [(1, 1), (5, 5), (3, 3)] and ray.killed == [2, 4]


@pytest.mark.parametrize(
    ("problems", "starts", "said"),
    [
        ({1: RAISED}, 3, "a server could not be started: .* no module named paceline"),
        (dict.fromkeys(range(1, 20), NODE), 3 + MOST_LIVES - 1, "a server could not be started: .* its node"),
    ],
)
def test_what_does_not_get_better_is_said_at_once_or_after_some_starts(
    problems: dict[int, Exception], starts: int, said: str
) -> None:
    ray = FakeRay(problems)
    with pytest.raises(ConfigurationError, match=said):
        started(ray)
    assert ray.started == starts

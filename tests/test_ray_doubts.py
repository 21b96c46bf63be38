"""Nodes that do not answer while Ray believes in them, and what becomes of actors that Ray placed there."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.runtimes.ray_cluster import doubts, watcher
from paceline.runtimes.ray_cluster.doubts import HELLO, Doubts, Node, that_do_not_answer
from paceline.runtimes.ray_cluster.watcher import NODE_DIED, ActorProcess, Watcher

PATIENCE = 0.2  # seconds


@contextmanager
def listening(answer: bytes | None) -> Iterator[int]:
    """A port where somebody answers; with nothing: hangs up; None: accepts, and says no word, as one that is frozen."""
    with ExitStack() as stack:
        listener = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0))))

        def serve() -> None:
            call, _ = listener.accept()
            with call:
                assert call.recv(100) == HELLO
                call.sendall(answer or b"")

        if answer is not None:
            thread = threading.Thread(target=serve)
            thread.start()
            stack.callback(thread.join)
        yield listener.getsockname()[1]


@pytest.fixture
def nobody() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        return int(listener.getsockname()[1])


def test_who_is_gone_or_says_no_word_is_in_doubt(nobody: int) -> None:
    with listening(b"settings") as alive, listening(b"") as rude, listening(None) as frozen:
        ports = {"alive": alive, "rude": rude, "frozen": frozen, "gone": nobody}
        nodes = [Node(name, "127.0.0.1", port) for name, port in ports.items()]
        assert that_do_not_answer([*nodes, Node("nowhere", "256.0.0.1", 1)], PATIENCE) == {"frozen", "gone", "nowhere"}


def test_who_reaches_nobody_doubts_nobody(nobody: int) -> None:
    assert that_do_not_answer([Node("a", "127.0.0.1", nobody)]) == that_do_not_answer([]) == frozenset()


class FakeActor:
    def __init__(self, place: object, end: object) -> None:
        self.node = SimpleNamespace(remote=lambda: place)
        self.end = end


class FakeRay:
    """Answers come when a test says so; an actor answers with a node, or with what killed it."""

    def __init__(self, **ports: int) -> None:
        self.ports = ports
        self.answers: dict[object, Any] = {}
        self.killed: list[Any] = []
        self.strategies: list[Any] = []
        self.actors: list[FakeActor] = []
        self.util = SimpleNamespace(client=SimpleNamespace(ray=SimpleNamespace(is_connected=lambda: False)))

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {
                "Alive": True,
                "NodeID": name,
                "NodeManagerAddress": "127.0.0.1",
                "NodeManagerPort": port,
                "Labels": {"region": "here", "ray.io/node-id": name},
            }
            for name, port in self.ports.items()
        ]

    def get(self, answer: object) -> Any:
        found = self.answers[answer]
        if isinstance(found, Exception):
            raise found
        return found

    def kill(self, actor: Any, no_restart: bool) -> None:
        self.killed.append(actor)

    def make(self, strategy: Any) -> FakeActor:
        self.strategies.append(strategy)
        self.actors.append(FakeActor(object(), object()))
        return self.actors[-1]


class ActorDiedError(Exception):
    pass


def watched(ray: FakeRay) -> tuple[Watcher, ActorProcess]:
    """A watcher that looks when a test says so."""
    watching = Watcher(ray, {})
    watching.close()
    watching._over.clear()
    process = ActorProcess(ray, ray.make, lambda actor: actor.end)
    watching.watch(process)
    return watching, process


def died(watching: Watcher, ray: FakeRay) -> None:
    """The newest actor."""
    end = ray.actors[-1].end
    ray.answers[end] = ActorDiedError("the actor's node was terminated")
    watching._take(end)


def test_one_that_is_lost_before_it_called_gets_another_place_and_in_the_end_none() -> None:
    ray = FakeRay()
    watching, process = watched(ray)
    for lives in range(2, watcher.MOST_LIVES + 1):
        died(watching, ray)
        assert process.exitcode is None and len(ray.actors) == lives and ray.killed[-1] is ray.actors[-2]
    died(watching, ray)
    assert process.exitcode == 1 and process.cause == NODE_DIED
    process.close()


def test_one_that_has_called_is_known_to_the_group_and_its_death_too() -> None:
    ray = FakeRay()
    watching, process = watched(ray)
    process.called = True
    died(watching, ray)
    assert process.cause == NODE_DIED and len(ray.actors) == 1
    process.close()


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (ValueError("no such thing"), "ValueError: no such thing"),
        (ActorDiedError("raised in its creation task:\nno module"), "ActorDiedError: no module"),
    ],
)
def test_what_code_raises_is_no_reason_to_try_again(problem: Exception, said: str) -> None:
    ray = FakeRay()
    watching, process = watched(ray)
    ray.answers[ray.actors[0].end] = problem
    watching._take(ray.actors[0].end)
    assert process.cause == said and len(ray.actors) == 1
    process.close()


def test_one_that_waits_for_a_node_that_does_not_answer_is_moved_and_may_come_back(
    nobody: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "MOVED_AFTER", -1.0)
    monkeypatch.setattr(doubts, "elsewhere", lambda label, nodes: (label, nodes))
    with listening(b"settings") as alive:
        ray = FakeRay()
        watching, process = watched(ray)
        ray.ports = {"a": alive, "b": nobody}
        watching.doubts.look()
        assert watching.doubts.nodes == {"b"} and process.is_misplaced(watching.doubts)
        watching._move(process)
    assert ray.strategies == ["SPREAD", ("ray.io/node-id", {"b"})]
    assert not process.is_misplaced(watching.doubts)
    ray.ports = {}
    watching.doubts.look()
    assert not process.is_misplaced(watching.doubts)  # the node is gone for good
    with listening(b"settings") as alive, listening(b"settings") as thawed:
        ray.ports = {"a": alive, "b": thawed}
        watching.doubts.look()
    assert process.is_misplaced(watching.doubts)
    process.placed = True
    assert not process.is_misplaced(watching.doubts)
    process.close()


def test_from_outside_a_cluster_nobody_is_asked(nobody: int) -> None:
    ray = FakeRay(a=nobody)
    ray.util.client.ray.is_connected = lambda: True
    assert Doubts(ray).strategy == "SPREAD"

"""Nodes that do not answer while Ray still believes in them, and how actors are kept away from them.

Ray takes up to 16 seconds to see that a node was killed, and a minute if it froze. Until then it places actors there,
and they die with the node. So the nodes are asked: a raylet that lives answers to the first bytes of HTTP/2 at once.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # and settings, of which there are none
PATIENCE = 2.0  # seconds for an answer
AT_ONCE = 200  # nodes that are asked together: each takes a descriptor


class Node(NamedTuple):
    name: str
    host: str
    port: int


def that_do_not_answer(nodes: Sequence[Node], patience: float = PATIENCE) -> frozenset[str]:
    """Their names. If none answers, it is we who reach nobody: then nobody is in doubt."""
    silent = {
        name for begin in range(0, len(nodes), AT_ONCE) for name in _silent(nodes[begin : begin + AT_ONCE], patience)
    }
    return frozenset() if len(silent) == len({node.name for node in nodes}) else frozenset(silent)


def _silent(nodes: Sequence[Node], patience: float) -> Iterator[str]:
    """Whoever says a word, or hangs up, is alive."""
    end = time.monotonic() + patience
    with selectors.DefaultSelector() as calls:
        for node in nodes:
            try:
                calls.register(_called(node), selectors.EVENT_WRITE, node)
            except OSError:
                yield node.name
        while calls.get_map() and (left := end - time.monotonic()) > 0:
            for key, ready in calls.select(left):
                call: Any = key.fileobj
                try:
                    if ready & selectors.EVENT_WRITE:
                        call.send(HELLO)
                        calls.modify(call, selectors.EVENT_READ, key.data)
                        continue
                    call.recv(1)
                except ConnectionResetError:
                    pass
                except OSError:
                    yield key.data.name
                calls.unregister(call)
                call.close()
        for key in list(calls.get_map().values()):
            unanswered: Any = key.fileobj
            unanswered.close()
            yield key.data.name


def _called(node: Node) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(node.host, node.port, type=socket.SOCK_STREAM)[0]
    call = socket.socket(family, kind, protocol)
    call.setblocking(False)
    problem = call.connect_ex(address)
    if problem and problem != errno.EINPROGRESS:
        call.close()
        raise OSError(problem, os.strerror(problem))
    return call


class Doubts:
    """Which nodes are in doubt, as of the last look. One thread looks; any may ask."""

    def __init__(self, ray: Any) -> None:
        self.nodes: frozenset[str] = frozenset()
        self._answering: frozenset[str] = frozenset()
        self._ray = ray
        self._label = ""  # by which Ray tells nodes apart
        self._asks = not ray.util.client.ray.is_connected()  # from outside a cluster its nodes may be out of reach
        self.look()

    def look(self) -> None:
        alive = [node for node in self._ray.nodes() if node["Alive"]] if self._asks else []
        self._label = next((label for node in alive if (label := _label_of(node))), "")
        found = [Node(node["NodeID"], node["NodeManagerAddress"], node["NodeManagerPort"]) for node in alive]
        self.nodes = that_do_not_answer(found) if self._label else frozenset()
        self._answering = frozenset(node.name for node in found) - self.nodes

    def differ_from(self, before: frozenset[str]) -> bool:
        """Whether another node does not answer, or one does again. One that is gone for good makes no difference."""
        return bool(self.nodes - before or before & self._answering)

    @property
    def strategy(self) -> Any:
        """For an actor: anywhere, or anywhere else."""
        return elsewhere(self._label, self.nodes) if self.nodes else "SPREAD"


def elsewhere(label: str, nodes: Collection[str]) -> Any:
    from ray.util.scheduling_strategies import NodeLabelSchedulingStrategy, NotIn

    return NodeLabelSchedulingStrategy(hard={label: NotIn(*sorted(nodes))})


def _label_of(node: Mapping[str, Any]) -> str:
    """Its name is not the same in all releases of Ray."""
    return next((label for label, value in node.get("Labels", {}).items() if value == node["NodeID"]), "")

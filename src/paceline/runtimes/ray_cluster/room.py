"""What a cluster lacks for one process more, in words."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any


def what_lacks(ray: Any, wanted: Mapping[str, float], doubted: Collection[str] = ()) -> str:
    """Empty: there is room, as far as Ray says. `doubted`: the ids of nodes that do not answer."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"] and node["NodeID"] not in doubted]
    lacks = in_words(wanted, nodes, ray.available_resources())
    return "; ".join(filter(None, [lacks, _in_doubt(len(doubted))]))


def _in_doubt(nodes: int) -> str:
    if not nodes:
        return ""
    return f"{nodes} node{'s do' if nodes > 1 else ' does'} not answer, and nothing is placed there"


def in_words(wanted: Mapping[str, float], nodes: Sequence[Mapping[str, float]], free: Mapping[str, float]) -> str:
    """`nodes`: what each of them has in all. `free`: what is free on all of them together."""
    wanted = {name: amount for name, amount in wanted.items() if amount}
    needs = f"each needs {' and '.join(f'{amount:g} {name}' for name, amount in wanted.items())}"
    for name, amount in wanted.items():
        most = max((node.get(name, 0) for node in nodes), default=0)
        if most < amount:
            return (
                f"Ray has not placed them: {needs}, and no node has {f'more than {most:g}' if most else 'any'} {name}"
            )
    if any(all(node.get(name, 0) >= amount for name, amount in wanted.items()) for node in nodes):
        for name, amount in wanted.items():
            if free.get(name, 0) < amount:
                total = sum(node.get(name, 0) for node in nodes)
                return f"Ray has not placed them: {needs}, and {free.get(name, 0):g} of {total:g} {name} are free"
        return ""
    return f"Ray has not placed them: {needs}, and no node has all of that"

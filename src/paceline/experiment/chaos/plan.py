"""What goes wrong, and when: a plan is a value, follows from a seed alone, and can be written and read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from random import Random

import msgspec

from paceline.core.errors import ConfigurationError

KINDS = {"kill": 4, "freeze": 4, "slow": 2, "delay": 2, "duplicate": 2, "crash": 1}  # and how often each is chosen
SHARDS, NODES = {"kill-shard": 3}, {"kill-node": 2, "freeze-node": 2}  # of a cluster
ALL = {**KINDS, **SHARDS, **NODES}
LASTING = ("freeze", "slow", "delay", "freeze-node")
LONGEST, ENDLESS = 3.0, 30.0  # seconds that one lasts, and a freeze that is longer than most runs
FACTOR = 6.0  # of a worker that is slow
PER_SECOND = 0.7  # faults
MOST = {"crash": 2, "kill-node": 1, "freeze-node": 1}  # in one plan; of others, any number


class Fault(msgspec.Struct, frozen=True, order=True):
    """`worker`: among those that are there at that moment, counted round and round; also among shards and nodes. A
    crash takes the whole run."""

    at: float  # seconds since the run began
    kind: str
    worker: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        lasts = f"+{self.seconds:g}" if self.kind in LASTING else ""
        return f"crash@{self.at:g}" if self.kind == "crash" else f"{self.kind} {self.worker}@{self.at:g}{lasts}"


def plan_of(seed: int, seconds: float, kinds: Mapping[str, int] = KINDS) -> tuple[Fault, ...]:
    """`kinds`: what may go wrong, and how often each is chosen."""
    random = Random(f"{seed}/chaos")
    number = max(1, round(random.uniform(0.5, 1.5) * PER_SECOND * seconds))
    faults, times = [], Counter[str]()
    for kind in random.choices(list(kinds), list(kinds.values()), k=number):
        times[kind] += 1
        if times[kind] > MOST.get(kind, number):
            continue
        lasts = round(random.uniform(0.05, LONGEST), 2) if kind in LASTING else 0.0
        if kind.startswith("freeze") and random.random() < 0.1:
            lasts = ENDLESS
        worker = 0 if kind == "crash" else random.randrange(8)
        faults.append(Fault(round(random.uniform(0.0, seconds), 2), kind, worker, lasts))
    return tuple(sorted(faults))


def written(plan: tuple[Fault, ...]) -> str:
    return ", ".join(map(str, plan)) or "nothing"


def read_plan(text: str) -> tuple[Fault, ...]:
    """What `written` wrote; ConfigurationError says what makes no sense."""
    if text.strip() == "nothing":
        return ()
    faults = []
    for piece in text.split(","):
        found = re.fullmatch(r"\s*([\w-]+)(?:\s+(\d+))?@(\d+(?:\.\d+)?)(?:\+(\d+(?:\.\d+)?))?\s*", piece)
        if found is None or found[1] not in ALL or (found[1] in LASTING) != (found[4] is not None):
            raise ConfigurationError(
                f"fault {piece.strip()!r}: write kill 1@2.5, freeze 0@3+1.5 (for 1.5 seconds), slow, delay, duplicate"
                " 2@4 or crash@5; on a cluster also kill-shard 0@2, kill-node 0@3 and freeze-node 1@4+2"
            )
        faults.append(Fault(float(found[3]), found[1], int(found[2] or 0), float(found[4] or 0.0)))
    return tuple(sorted(faults))

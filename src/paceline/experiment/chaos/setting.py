"""Whom misfortune befalls: a small group and a policy, chosen by the seed where nobody chose them."""

from __future__ import annotations

import traceback
from random import Random

import msgspec

# Every policy, some with parameters that bring out more of them.
POLICIES = (
    "bsp",
    "asp",
    "ssp:staleness=2",
    "dssp:lower=1,upper=4",
    "elastic-bsp:lookahead=4",
    "elastic-bsp:lookahead=4,inside=gather",
    "backup",
    "backup:late=interrupt",
    "dbw",
    "buffered:size=2",
    "auto:tried=50",
)
PATIENCE = 0.5  # seconds, so that some freezes are longer
CHECKPOINT_EVERY = 1.0  # second
SERVERS = (1, 2, 2, 3)  # of a run on a cluster
WIRES = (("auto", "none"), ("tcp", "none"), ("tcp", "bf16"))  # how its workers reach them, and with what


class Subject(msgspec.Struct, frozen=True):
    """What is trained meanwhile: a built-in task, or a script."""

    name: str  # of the task, or the path of the script
    arguments: tuple[str, ...] = ()  # of the script
    epochs: int | None = None  # None: a script trains for one, a task for as many as the time takes

    @property
    def is_script(self) -> bool:
        return self.name.endswith(".py")


class ClusterSetting(msgspec.Struct, frozen=True):
    servers: int | None  # None: another number in every life
    transport: str
    compression: str

    def servers_in(self, life: int, seed: int) -> int:
        return Random(f"{seed}/{life}/servers").choice(SERVERS) if self.servers is None else self.servers


class Setting(msgspec.Struct, frozen=True):
    policy: str
    workers: str  # as of `launch`
    restart: int = 0
    cluster: ClusterSetting | None = None  # None: this machine


def setting_of(seed: int, policy: str | None = None, workers: str | None = None) -> Setting:
    random = Random(f"{seed}/setting")
    chosen = random.choice(POLICIES)
    group, restart = random.choice([("2", 0), ("3", 0), ("3", 2), ("2", 9), ("2..3", 0), ("3..4", 0)])
    if workers is not None:
        group, restart = workers, 0
    return Setting(policy or chosen, group, restart)


def cluster_setting_of(seed: int, servers: int | None = None) -> ClusterSetting:
    return ClusterSetting(servers, *Random(f"{seed}/cluster").choice(WIRES))


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a run. `problem` empty: all invariants held."""

    problem: str = ""
    happened: tuple[str, ...] = ()  # in order, in words
    updates: int = 0
    samples: int = 0
    lives: int = 1  # of the server
    after_kill: tuple[float, ...] = ()  # seconds until the next update
    after_freeze: tuple[tuple[float, float], ...] = ()  # seconds until it was set aside, and what it usually needs
    after_lost_shard: tuple[float, ...] = ()  # seconds until the group began again


def kind_of(happened: str) -> str:
    """What happened, without when and to whom."""
    return happened.split(": ")[1].split(" process ")[0]


def in_words(problem: Exception) -> str:
    """What it is, and where."""
    where = traceback.extract_tb(problem.__traceback__)[-1]
    return f"{type(problem).__name__}: {problem} ({where.name}, line {where.lineno})"

"""Training with one of four workers four times slower: paceline on this machine, and DDP, on the same emulated group.

Model, data and slowness are those of local_throughput.py: iterations are padded with sleep, the slow worker's to four
times as much, so that two cores are enough for four workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import local_throughput

from peer.measuring import Row, Settings, attempt

WORKERS, BATCH = 4, 8
POLICIES = ("bsp", "elastic-bsp", "asp")


def on_paceline(settings: Settings) -> Iterator[Row]:
    for policy in POLICIES:
        rate = partial(local_throughput.ours, policy, WORKERS, settings.samples, BATCH, True)
        yield attempt(f"paceline local, {policy}", parameters(), rate)


def on_ddp(settings: Settings) -> Iterator[Row]:
    yield attempt("DDP", parameters(), partial(local_throughput.ddp, WORKERS, settings.samples, BATCH, True))


def parameters() -> int:
    return sum(parameter.numel() for parameter in local_throughput.model().parameters())

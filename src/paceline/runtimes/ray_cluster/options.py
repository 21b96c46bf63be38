"""What a user says about a Ray cluster. Importing this does not import ray."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from paceline.core.errors import ConfigurationError
from paceline.core.spec import build

TRANSPORTS = ("auto", "tcp")


class RayCluster(msgspec.Struct, frozen=True, omit_defaults=True):
    """Run the workers as actors of a Ray cluster: `launch(..., cluster=RayCluster())`.

    address               of the cluster: "auto" (the one that this machine belongs to), "host:6379", "ray://...", or
                          "local", which starts one on this machine
    resources_per_worker  what Ray sets aside for each: {"CPU": 1}, {"GPU": 1}, {"CPU": 2, "spot": 1}
    servers               processes that the parameters are spread over; with 1 it is the one that launches the run
    resources_per_server  what Ray sets aside for each of several
    transport             "auto" shares memory with workers on the server's host; "tcp" never does
    compression           of gradients that leave a host: "none", "bf16", "int8", "topk:share=0.01" (docs/slow-wires.md)
    ports                 "20000..20100": servers listen on one of these; None: on any
    silence               seconds without a sign of life after which a worker's node counts as frozen
    runtime_env           as Ray takes it: {"working_dir": "."} brings your code to other hosts
    """

    address: str = "auto"
    resources_per_worker: dict[str, float] = msgspec.field(default_factory=lambda: {"CPU": 1})
    servers: int = 1
    resources_per_server: dict[str, float] = msgspec.field(default_factory=dict)
    transport: str = "auto"
    compression: str = "none"
    ports: str | None = None
    silence: float = 8.0
    runtime_env: dict[str, Any] | None = None

    def check(self) -> None:
        if not isinstance(self.servers, int) or self.servers < 1:
            raise ConfigurationError(f"servers is {self.servers!r}; it must be a number of processes, at least 1")
        if self.transport not in TRANSPORTS:
            raise ConfigurationError(f"unknown transport {self.transport!r}; there are: {', '.join(TRANSPORTS)}")
        if not self.silence > 2:
            raise ConfigurationError(f"silence is {self.silence!r}; it must be more than 2 seconds")
        for what in ("resources_per_worker", "resources_per_server"):
            for name, amount in getattr(self, what).items():
                if not isinstance(amount, int | float) or not 0 <= amount < math.inf:
                    raise ConfigurationError(f"{what}: {name!r} is {amount!r}; it must be a number, 0 or more")
        self.port_range()
        if self.compression != "none":
            from paceline.training.compression import COMPRESSIONS  # imports torch

            build(self.compression, COMPRESSIONS, "compression")

    def port_range(self) -> range | None:
        if self.ports is None:
            return None
        first, dots, last = self.ports.partition("..")
        if dots and first.isdigit() and last.isdigit() and 0 < int(first) <= int(last) < 65536:
            return range(int(first), int(last) + 1)
        raise ConfigurationError(f"ports {self.ports!r}: must be a range, as in 20000..20100")

    @property
    def threads(self) -> int:
        """Of torch, in every worker."""
        return max(1, int(self.resources_per_worker.get("CPU", 1)))

"""Who may see and steer runs: a pure function of what a request says about itself.

The token is in the address of a page and in no cookie: a browser sends cookies along whoever asks, also to other
programs on other ports of this host. What steers a run must carry it in a header, which no form and no link can. A
page of somebody else that gets a browser to ask here is told apart by the host that it asked for (a name that now
points here), and by its origin.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Collection, Mapping
from typing import NamedTuple

BEARER = "Bearer "
READS = ("GET", "HEAD")


class Refusal(NamedTuple):
    status: int
    reason: str


class Access(NamedTuple):
    token: str
    names: Collection[str] = ("localhost",)  # of this host, beside its addresses, which nobody else can take

    def refusal(self, method: str, asked: Mapping[str, str], token: str | None) -> Refusal | None:
        """None: it may. `asked`: the request's headers, in small letters. `token`: in its address."""
        host, origin = asked.get("host", ""), asked.get("origin")
        if not self._is_here(host):
            return Refusal(421, f"{_said(host)} is not an address of this page: open the one that it printed")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return Refusal(403, f"{_said(origin)} may not ask this page for anything")
        told = asked.get("authorization", "")
        given = told.removeprefix(BEARER) if told.startswith(BEARER) else token if method in READS else None
        if given is None or not secrets.compare_digest(given.encode(), self.token.encode()):
            return Refusal(403, "open the address that `paceline watch` printed: it has the token that is needed here")
        return None

    def _is_here(self, host: str) -> bool:
        """A name of somebody else's may point to this host; an address is one."""
        name = _without_port(host)
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return name.lower() in self.names
        return True


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.rpartition(":")[0] if ":" in host else host


def _said(text: str) -> str:
    return repr(text[:80])

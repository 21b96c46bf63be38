"""The synchronisation models, by name. A new one is its own module, one line here, and one scenario in the tests."""

from __future__ import annotations

from paceline.core.spec import build
from paceline.policies.asp import ASP
from paceline.policies.auto import Auto
from paceline.policies.backup import BackupWorkers
from paceline.policies.base import Policy
from paceline.policies.bsp import BSP
from paceline.policies.buffered import Buffered
from paceline.policies.dbw import DBW
from paceline.policies.dssp import DSSP
from paceline.policies.elastic_bsp import ElasticBSP
from paceline.policies.ssp import SSP

POLICIES: dict[str, type[Policy]] = {
    "bsp": BSP,
    "asp": ASP,
    "ssp": SSP,
    "dssp": DSSP,
    "elastic-bsp": ElasticBSP,
    "backup": BackupWorkers,
    "dbw": DBW,
    "buffered": Buffered,
    "auto": Auto,
}
DEFAULT = "auto"  # of runs whose user named none


def policy(text: str) -> Policy:
    """The policy that a string like `ssp:staleness=3` names."""
    return build(text, POLICIES, "policy")


__all__ = ["DEFAULT", "POLICIES", "Policy", "policy"]

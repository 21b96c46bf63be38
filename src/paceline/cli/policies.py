"""`paceline policies`: what there is to choose from."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
from typer import Argument, Option

from paceline.core.spec import parameters
from paceline.policies import POLICIES, policy
from paceline.report.console import output
from paceline.report.tables import parameter_listing, policy_listing


def policies(
    name: Annotated[str | None, Argument(help="One policy, to see what its parameters mean.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print a JSON array instead of a table.")] = False,
) -> None:
    """List the synchronisation policies: what each does, its parameters, its paper."""
    chosen = POLICIES if name is None else {name: type(policy(name))}
    if as_json:
        print(msgspec.json.format(msgspec.json.encode([_as_dict(each) for each in chosen])).decode())
    elif name is None:
        listing = policy_listing((each, kind.summary, parameters(kind), kind.paper) for each, kind in chosen.items())
        output().print(listing)
    else:
        print(sys.modules[chosen[name].__module__].__doc__)
        output().print(parameter_listing(parameters(chosen[name])))


def _as_dict(name: str) -> dict[str, object]:
    kind = POLICIES[name]
    settable = [
        {"name": each.name, "type": each.kind, "default": each.default_text, "meaning": each.meaning}
        for each in parameters(kind)
    ]
    return {"name": name, "summary": kind.summary, "parameters": settable, "paper": kind.paper}

"""`paceline policies`: what there is to choose from."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
from rich.markdown import Markdown
from typer import Argument, Option

from paceline.core.spec import parameters
from paceline.policies import POLICIES, Policy, policy
from paceline.report.console import output
from paceline.report.tables import parameter_listing, policy_listing


def policies(
    name: Annotated[str | None, Argument(help="One policy, to see what its parameters mean.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print a JSON array instead of a table.")] = False,
) -> None:
    """List the synchronisation policies: what each does, its parameters, its paper."""
    chosen = list(POLICIES.values()) if name is None else [type(policy(name))]
    if as_json:
        print(msgspec.json.format(msgspec.json.encode([_as_dict(kind) for kind in chosen])).decode())
    elif name is None:
        output().print(policy_listing((kind.name, kind.summary, parameters(kind), kind.paper) for kind in chosen))
    else:
        (kind,) = chosen
        output().print(Markdown(sys.modules[kind.__module__].__doc__ or kind.summary))
        output().print(parameter_listing(parameters(kind)))


def _as_dict(kind: type[Policy]) -> dict[str, object]:
    settable = [
        {
            "name": parameter.name,
            "type": parameter.kind,
            "default": parameter.default_text,
            "meaning": parameter.meaning,
        }
        for parameter in parameters(kind)
    ]
    return {"name": kind.name, "summary": kind.summary, "parameters": settable, "paper": kind.paper}

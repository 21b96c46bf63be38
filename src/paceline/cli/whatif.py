"""`paceline whatif`: what other policies would have made of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from typer import Argument, Option

from paceline.cli.arguments import policy_names
from paceline.experiment.whatif import changed_in, chosen_in, cost_of_staying, recommendation, whatif
from paceline.policies import policy as build_policy
from paceline.recording.trace import Trace, trace_in
from paceline.report.console import output
from paceline.report.tables import summary_table


def whatif_command(
    run: Annotated[Path, Argument(help="A run directory, or its trace.")],
    policy: Annotated[
        list[str] | None, Option("--policy", "-p", help="A policy such as ssp:staleness=3; repeat it. Default: all.")
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print a JSON array instead of a table.")] = False,
) -> None:
    """Take the iteration times out of the trace of any run, and say what other policies would have made of them."""
    trace = Trace(trace_in(run) if run.is_dir() else run, allow_cut_off=True)
    names = policy_names(policy or ["all"])
    recorded, chosen, was = str(build_policy(trace.header.policy)), chosen_in(trace), changed_in(trace)
    if was is not None and policy is None:  # one that chose others is told as it was
        names = [name for name in names if name != recorded]
    elif was is None and recorded not in {str(build_policy(name)) for name in names}:
        names.insert(0, recorded)
    names += [name for name in ([] if chosen is None else chosen.policies) if name not in names]
    summaries = whatif(trace, names)
    shown = summaries if was is None else [was, *summaries]
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(shown)).decode())
        return
    console = output()
    console.print(summary_table(shown, beside=recorded if was is None else was.policy), "")
    console.print(recommendation(summaries, recorded, was), highlight=False, markup=False, soft_wrap=True)
    if chosen is not None:
        console.print(cost_of_staying(chosen, summaries), highlight=False, markup=False, soft_wrap=True)

"""`paceline runs`: what runs there are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from typer import Argument, Option

from paceline.report.console import output


def runs_command(
    directory: Annotated[Path, Argument(metavar="[DIR]", help="Where the runs are.")] = Path("runs"),
    as_json: Annotated[bool, Option("--json", help="Print one JSON object per run instead of a table.")] = False,
) -> None:
    """List the runs below a directory, the newest first: which go on, which finished, and how far each came."""
    from paceline.experiment.run_list import find_runs, glance
    from paceline.report.status import runs_table

    found = find_runs(directory)
    runs = [glance(run) for run in found.runs]
    if as_json:
        for run in runs:
            print(msgspec.json.encode(run).decode())
        return
    console = output()
    if runs:
        console.print(runs_table(runs, directory, console.width))
    else:
        print(f"there is no run below {directory}")
    if found.foreign:
        names = ", ".join(str(path.relative_to(directory)) for path in found.foreign)
        console.print(f"without a run: {names}", style="dim", highlight=False, markup=False, soft_wrap=True)

"""`paceline report`: one page that shows what a run did, what was lost, and who caused it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from typer import Argument, Option

from paceline.cli.arguments import check_price
from paceline.core.errors import ConfigurationError


def report_command(
    runs: Annotated[list[Path], Argument(metavar="RUN...", help="Run directories, or their traces.")],
    out: Annotated[
        Path | None, Option("--out", "-o", help="Default: report.html in the run; of several runs, in this directory.")
    ] = None,
    price: Annotated[float | None, Option(help="Of one worker for an hour: losses are told in money as well.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print the figures as JSON, and write no page.")] = False,
) -> None:
    """Write a page about runs, finished or not: what was lost to waiting, who caused it, and what to do about it."""
    from paceline.experiment.run_report import REPORT, figures_of, read_run, write_report
    from paceline.report.story import headline, story

    check_price(price)
    if as_json and out is not None:
        raise ConfigurationError("--json prints the figures and writes no page; leave out --out")
    if len(set(runs)) < len(runs):
        raise ConfigurationError("a run is given twice")
    found = [read_run(run, price) for run in runs]
    if as_json:
        figures = [figures_of(run, story(run)) for run in found]
        print(msgspec.json.format(msgspec.json.encode(figures)).decode())
        return
    if out is None:
        alone = runs[0] if runs[0].is_dir() else runs[0].parent
        out = (alone if len(runs) == 1 else Path()) / REPORT
    write_report(found, out)
    for run in found:
        sentences = [*run.notes, *story(run)] if len(found) == 1 else [f"{run.name}: {headline(run)}", *run.notes]
        for sentence in sentences:
            print(sentence)
    print(f"{'' if len(found) > 1 else chr(10)}{out}")

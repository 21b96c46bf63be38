"""`paceline reproduce`: the published experiments as commands, each with a page of what we saw."""

from __future__ import annotations

import os
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from paceline.cli.trials import run_with_progress
from paceline.core.errors import ConfigurationError
from paceline.experiment.comparison import Comparison, Outcome, Trial
from paceline.report.console import output


def reproduce_command(
    name: Annotated[
        str,
        Argument(
            help="elasticbsp-table2, elasticbsp-curves, dssp-table1, dbw-static, optimizers, optimizers-unseen,"
            " autopilot, autopilot-unseen, trace; list: what each is."
        ),
    ],
    full: Annotated[bool, Option("--full", help="At the paper's size, which takes days on a CPU.")] = False,
    seeds: Annotated[int | None, Option(help="Runs of each policy. Default: the experiment's own, mostly 3.")] = None,
    data: Annotated[
        Path | None, Option(help="Where the data set is. Default: Debian's package, or downloaded.")
    ] = None,
    trace: Annotated[
        Path | None,
        Option(help="For trace, optimizers and autopilot: a CSV of iteration times, worker,iteration,seconds."),
    ] = None,
    processes: Annotated[int | None, Option(help="Runs at a time. Default: as many as there are cores.")] = None,
    out: Annotated[Path, Option(help="The page, its pictures and results go here.")] = Path("docs/results"),
) -> None:
    """Run a published experiment, scaled down to about a quarter of an hour on two cores, and write a page about it.

    What is finished is kept: an interrupted experiment goes on where it was.
    """
    from paceline.experiment.reproduction import EXPERIMENTS, ExperimentRequest, index  # torch takes a while to import

    console = output()
    if name == "list":
        for known, experiment in EXPERIMENTS.items():
            console.print(f"{known:<20}{experiment.summary}", highlight=False, markup=False)
        return
    if name not in EXPERIMENTS:
        raise ConfigurationError(f"unknown experiment {name!r}; there are: {', '.join(EXPERIMENTS)}")
    for what, value in (("--seeds", seeds), ("--processes", processes)):
        if value is not None and value < 1:
            raise ConfigurationError(f"{what} {value}: must be at least 1")
    if trace is not None and name not in ("trace", "optimizers", "autopilot"):
        raise ConfigurationError(f"--trace is for the experiments trace, optimizers and autopilot, not for {name}")
    experiment = EXPERIMENTS[name]
    folder = out / (f"{name}-full" if full else name)
    runs = experiment.seeds if seeds is None else seeds
    run = partial(_run, folder=folder, processes=processes or os.cpu_count() or 1)
    page = experiment.run(ExperimentRequest(full, runs, run, folder, data, trace))
    command = ["paceline", "reproduce", name]
    command += ["--full"] if full else []
    command += ["--seeds", str(seeds)] if seeds is not None else []
    command += ["--trace", trace.name] if trace is not None else []
    path = folder.with_suffix(".md")
    path.write_text(page.markdown(shlex.join(command), runs, out))
    (out / "README.md").write_text(index(out))
    for claim in page.claims:
        console.print(f"{'yes' if claim.holds else 'no ':<4}{claim.text}", highlight=False, markup=False)
        console.print(f"    {claim.seen}", style="dim", highlight=False, markup=False)
    console.print(f"\n{page.verdict}: {path}", highlight=False, markup=False)


def _run(part: str, comparison: Comparison, trials: list[Trial], *, folder: Path, processes: int) -> list[Outcome]:
    """See that the data is there before processes start: otherwise every one of them would download it."""
    from paceline.training.datasets import load
    from paceline.training.downloads import download

    path = None if comparison.data is None else Path(comparison.data)
    if not (folder / part).exists():  # otherwise it was there before
        try:
            load(comparison.task, path)
        except ConfigurationError:
            if path is not None:
                raise
            download(comparison.task, tell=partial(print, file=sys.stderr))
    return run_with_progress(part, comparison, trials, folder / part, processes)

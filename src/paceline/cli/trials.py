"""Runs the trials of a comparison with a progress bar, for the commands that have some."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from typer import Exit

from paceline.experiment.comparison import Comparison, Outcome, Trial, run_trials
from paceline.experiment.own_loop import OwnFunctions


def run_with_progress(
    name: str,
    comparison: Comparison,
    trials: Sequence[Trial],
    into: Path,
    processes: int,
    own: OwnFunctions | None = None,
) -> list[Outcome]:
    """The outcomes in the order of the trials. Ctrl-C ends the command; what is finished is kept."""
    console = Console(stderr=True)
    outcomes: dict[Trial, Outcome] = {}
    try:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task(name, total=len(trials))
            for outcome in run_trials(comparison, trials, into, processes, own):
                outcomes[outcome.trial] = outcome
                bar.advance(task)
    except KeyboardInterrupt:
        print(
            f"paceline: interrupted; {len(outcomes)} of {len(trials)} runs are in {into}, and the same command goes on",
            file=sys.stderr,
        )
        raise Exit(130) from None
    return [outcomes[trial] for trial in trials]

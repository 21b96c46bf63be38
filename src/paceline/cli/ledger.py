"""`paceline ledger`: what became of every sample of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from rich.table import Table
from typer import Argument, Exit, Option

from paceline.experiment.balance import balance_of
from paceline.recording.ledger import Balance
from paceline.report.balance import HEADINGS, rows, sentences
from paceline.report.console import output


def ledger_command(
    run: Annotated[Path, Argument(help="A run directory.")],
    as_json: Annotated[bool, Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Say what became of every sample of a run: applied once, given again and why, skipped, or still open."""
    balance = balance_of(run)
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(balance)).decode())
    else:
        console = output()
        if balance.epochs:
            console.print(_table(balance), "")
        for sentence in sentences(balance):
            console.print(sentence, highlight=False, markup=False, soft_wrap=True)
    if not balance.adds_up:
        raise Exit(1)


def _table(balance: Balance) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    for row in rows(balance):
        table.add_row(*row)
    return table

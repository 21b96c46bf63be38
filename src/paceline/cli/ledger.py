"""`paceline ledger`: what became of every sample of a run."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Annotated

import msgspec
from rich.table import Table
from typer import Argument, Exit, Option

from paceline.experiment.balance import balance_of
from paceline.recording.ledger import Balance, EpochBalance
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
        for sentence in _sentences(balance):
            console.print(sentence, highlight=False, markup=False, soft_wrap=True)
    if not balance.adds_up:
        raise Exit(1)


def _table(balance: Balance) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("epoch", "samples", "applied once", "applied again", "skipped", "open"):
        table.add_column(heading, justify="right")
    for numbers, alike in groupby(balance.epochs, _numbers):
        epochs = [epoch.epoch + 1 for epoch in alike]
        name = str(epochs[0]) if len(epochs) == 1 else f"{epochs[0]} to {epochs[-1]}"
        table.add_row(name, *(f"{number:,}" for number in numbers))
    return table


def _numbers(epoch: EpochBalance) -> tuple[int, ...]:
    return (epoch.samples, epoch.applied, epoch.applied_again, epoch.skipped, epoch.open)


def _sentences(balance: Balance) -> list[str]:
    found = [f"{balance.applied:,} samples were applied, {balance.skipped:,} skipped because they were not finite."]
    if balance.pending:
        found.append(f"{balance.pending:,} are in gradients without a fate.")
    if balance.discarded_given_again:
        found.append(f"{balance.discarded_given_again:,} were discarded as late, and given again.")
    for reason, samples in balance.lost_given_again.items():
        found.append(f"{samples:,} were given again: {reason}.")
    if balance.discarded:
        found.append(f"{balance.discarded:,} of the workers' own were discarded.")
    for went_back in balance.returns:
        found.append(f"{str(went_back)[0].upper()}{str(went_back)[1:]}.")
    if balance.undone:
        found.append(
            f"{balance.undone:,} were applied after a checkpoint and before a crash: they were done again, and count"
            " once in the weights."
        )
    found.append("It adds up." if balance.adds_up else "It does not add up: a sample was applied more than once.")
    return found

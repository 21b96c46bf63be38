"""What became of every sample of a run, in rows and in words."""

from __future__ import annotations

from itertools import groupby

from paceline.recording.ledger import Balance, EpochBalance

HEADINGS = ("epoch", "samples", "applied once", "applied again", "skipped", "open")


def rows(balance: Balance) -> list[tuple[str, ...]]:
    """Of epochs; those that are alike and follow each other are one."""
    found = []
    for numbers, alike in groupby(balance.epochs, _numbers):
        epochs = [epoch.epoch + 1 for epoch in alike]
        name = str(epochs[0]) if len(epochs) == 1 else f"{epochs[0]} to {epochs[-1]}"
        found.append((name, *(f"{number:,}" for number in numbers)))
    return found


def _numbers(epoch: EpochBalance) -> tuple[int, ...]:
    return (epoch.samples, epoch.applied, epoch.applied_again, epoch.skipped, epoch.open)


def sentences(balance: Balance) -> list[str]:
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

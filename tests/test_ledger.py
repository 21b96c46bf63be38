"""What became of every sample, from records alone."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from paceline.cli.app import app
from paceline.core.coordinator import Coordinator
from paceline.core.messages import (
    ApplyUpdate,
    BatchSkipped,
    DataOpened,
    DiscardGradient,
    Event,
    Gradient,
    GradientArrived,
    Record,
    Unit,
    UnitsReturned,
    WentBack,
    WorkerJoined,
)
from paceline.experiment.balance import balance_of
from paceline.policies import policy
from paceline.recording.ledger import EpochBalance, Ledger, lost_work
from paceline.recording.trace import FORMAT, Header


def arrived(worker: int, clock: int, *units: Unit, samples: int | None = None) -> GradientArrived:
    total = sum(unit.samples for unit in units) if samples is None else samples
    return GradientArrived(Gradient(worker, clock), 0, total, None, units)


def applied(event: GradientArrived) -> Record:
    return Record(1.0, event, (ApplyUpdate((event.gradient,)),))


FIRST, SECOND = arrived(0, 1, Unit(0, 0, 2)), arrived(1, 1, Unit(0, 2, 4))
RECORDS = [
    Record(0.0, DataOpened(6, 2)),
    applied(FIRST),
    Record(1.0, SECOND, (DiscardGradient(SECOND.gradient, "late"),)),
    Record(2.0, UnitsReturned(1, (Unit(0, 2, 4), Unit(0, 4, 6)), "killed")),
    applied(arrived(0, 2, Unit(0, 2, 4))),
    Record(3.0, BatchSkipped(0, 2, (Unit(0, 4, 6),))),
    Record(4.0, arrived(0, 3, Unit(1, 0, 2))),
]


def test_every_sample_has_its_place() -> None:
    ledger = Ledger()
    for record in RECORDS:
        ledger.observe(record)
    balance = ledger.balance(again=7)
    assert balance.epochs == [EpochBalance(0, 6, 4, 0, 2, 0), EpochBalance(1, 6, 0, 0, 0, 6)] and balance.adds_up
    assert (balance.applied, balance.skipped, balance.pending, balance.undone) == (4, 2, 2, 7)
    assert balance.discarded_given_again == 2 and balance.lost_given_again == {"killed": 4}


def test_a_sample_that_is_applied_twice_is_found() -> None:
    ledger = Ledger()
    for record in (*RECORDS, applied(arrived(1, 2, Unit(0, 0, 1)))):
        ledger.observe(record)
    balance = ledger.balance()
    assert balance.epochs[0] == EpochBalance(0, 6, 3, 1, 2, 0) and not balance.adds_up


def test_parts_of_a_data_set_and_batches_of_the_workers_own() -> None:
    ledger = Ledger()
    ledger.observe(Record(0.0, DataOpened(3000, 1)))
    for part in (0, 1):
        ledger.observe(applied(arrived(part, 1, Unit(0, 0, 1500, part, 2))))
    assert ledger.balance().epochs == [EpochBalance(0, 3000, 3000, 0, 0, 0)]
    own, event = Ledger(), arrived(0, 1, samples=5)
    own.observe(applied(event))
    late = arrived(0, 2, samples=3)
    own.observe(Record(1.0, late, (DiscardGradient(late.gradient, "late"),)))
    balance = own.balance()
    assert (balance.epochs, balance.applied, balance.discarded, balance.discarded_given_again) == ([], 5, 3, 0)


def test_what_was_lost_with_a_crash_may_have_arrived_before_it() -> None:
    lost = [applied(SECOND), Record(2.0, arrived(1, 2, Unit(0, 4, 6)), (ApplyUpdate((FIRST.gradient,)),))]
    assert lost_work(lost, [Record(0.0, FIRST)]) == (2, 4, lost[-1].now - lost[0].now)


@pytest.mark.parametrize(
    "event",
    [DataOpened(3, 1), BatchSkipped(0, 2), UnitsReturned(0, (Unit(0, 0, 1),), "killed"), WentBack(1, 2, 3, "lost")],
)
def test_a_note_changes_nothing(event: Event) -> None:
    coordinator = Coordinator(policy("bsp"))
    coordinator.handle(WorkerJoined(0), 0.0)
    before = msgspec.json.encode(coordinator.state())
    assert coordinator.handle(event, 1.0) == Record(1.0, event)
    assert msgspec.json.encode(coordinator.state()) == before


def test_a_return_to_a_checkpoint_says_what_is_done_again(tmp_path: Path) -> None:
    first, second = WentBack(12, 3, 1048, "a shard was lost"), WentBack(15, 1, 8, "a shard was lost")
    said = "updates 13 to 15 (1,048 samples) are done again"
    assert str(first) == f"the run went back to version 12: {said} (a shard was lost)"
    assert second.undone == "update 16 (8 samples) is done again"
    assert WentBack(0, 0, 0, "lost").undone == "nothing had been done since version 0"
    # The second was lost itself, when the run was resumed after a crash.
    written(tmp_path / "trace.jsonl", [*RECORDS, Record(9.0, first)])
    written(tmp_path / "trace.lost-1.jsonl", [], header=False)
    written(tmp_path / "trace.lost-2.jsonl", [Record(9.5, second), applied(arrived(0, 3, Unit(1, 0, 2)))], header=False)
    balance = balance_of(tmp_path)
    assert balance.returns == [first, second] and balance.undone == 2
    shown = CliRunner().invoke(app, ["ledger", str(tmp_path)]).output
    assert f"The run went back to version 12: {said} (a shard was lost).\nThe run went back to version 15: " in shown


def written(path: Path, records: list[Record], header: bool = True) -> None:
    lines = [msgspec.json.encode(Header(FORMAT, "bsp"))] if header else []
    path.write_bytes(b"".join(line + b"\n" for line in [*lines, *map(msgspec.json.encode, records)]))


def test_the_command_prints_the_balance_and_fails_if_it_does_not_add_up(tmp_path: Path) -> None:
    written(tmp_path / "trace.jsonl", RECORDS)
    written(tmp_path / "trace.lost-1.jsonl", [applied(arrived(0, 3, Unit(1, 0, 2)))], header=False)
    shown = CliRunner().invoke(app, ["ledger", str(tmp_path)])
    assert shown.exit_code == 0 and "It adds up." in shown.output
    assert "2 were applied after a checkpoint and before a crash" in shown.output
    assert (
        "4 were given again: killed." in shown.output and "2 were discarded as late, and given again." in shown.output
    )
    found = msgspec.json.decode(CliRunner().invoke(app, ["ledger", str(tmp_path), "--json"]).output)
    assert found["undone"] == 2 and found["epochs"][0]["applied"] == 4
    written(tmp_path / "trace.jsonl", [*RECORDS, applied(arrived(1, 2, Unit(0, 0, 1)))])
    wrong = CliRunner().invoke(app, ["ledger", str(tmp_path)])
    assert wrong.exit_code == 1 and "It does not add up" in wrong.output

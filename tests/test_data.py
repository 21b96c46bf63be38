"""Who works on which samples: the ledger, the order of an epoch, and batches of every kind."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, NamedTuple

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from paceline.core.errors import ConfigurationError, ProtocolError
from paceline.core.messages import Unit
from paceline.lifecycle.work import WorkLedger
from paceline.training.data import fetch, moved, order_of, samples_of

CPU = torch.device("cpu")
SEED = 3


def spans(units: list[Unit | None]) -> list[tuple[int, int, int] | None]:
    return [None if unit is None else (unit.epoch, unit.begin, unit.end) for unit in units]


# -- the ledger: one order for all --


def test_fast_workers_take_more_and_each_takes_batches_of_its_own_size() -> None:
    ledger = WorkLedger(10, 2)
    asked = [(0, 4), (1, 2), (0, 4), (0, 4), (1, 20), (0, 4)]
    assert spans([ledger.lease(worker, size) for worker, size in asked]) == [
        (0, 0, 4),
        (0, 4, 6),
        (0, 6, 10),
        (1, 0, 4),
        (1, 4, 10),
        None,
    ]
    assert ledger.leased_by(0) == 3 and ledger.leased_by(1) == 2 and ledger.leased_by(7) == 0
    assert ledger.outstanding == 20 and not ledger.available and not ledger.complete


def test_what_comes_back_is_cut_to_the_batches_of_who_takes_it_and_goes_first() -> None:
    ledger = WorkLedger(20, 1)
    ledger.lease(0, 7)
    ledger.give_back(ledger.hand_in(0))
    assert spans([ledger.lease(1, 3) for _ in range(4)]) == [(0, 0, 3), (0, 3, 6), (0, 6, 7), (0, 7, 10)]


def test_a_discarded_gradient_takes_back_its_own_units_and_not_those_that_its_worker_is_at() -> None:
    ledger = WorkLedger(9, 1)
    for _ in range(3):
        ledger.lease(0, 3)
    first, second = ledger.hand_in(0), ledger.hand_in(0)
    assert ledger.leased_by(0) == 1 and (ledger.leased, ledger.undecided) == (3, 6)
    ledger.finish(second)
    ledger.give_back(first)
    assert ledger.leased_by(0) == 1 and ledger.outstanding == 3 and ledger.workers == [0]
    ledger.release(0)  # what it is at
    assert ledger.leased_by(0) == 0 and ledger.outstanding == 0
    assert spans([ledger.lease(1, 3) for _ in range(3)]) == [(0, 0, 3), (0, 6, 9), None]


def test_units_given_up_together_come_back_in_their_order() -> None:
    ledger = WorkLedger(6, 1)
    for _ in range(3):
        ledger.lease(0, 2)
    ledger.release(0, 2)
    ledger.release(0)
    ledger.release(5)  # who never had any
    assert spans([ledger.lease(1, 2) for _ in range(3)]) == [(0, 0, 2), (0, 2, 4), (0, 4, 6)]


def test_dropped_samples_are_counted_and_complete_the_run() -> None:
    ledger = WorkLedger(5, 1)
    ledger.lease(0, 3)
    ledger.lease(0, 3)
    ledger.drop(0)
    assert ledger.dropped == 3 and ledger.leased_by(0) == 1
    ledger.finish(ledger.hand_in(0))
    assert ledger.applied == 2 and ledger.complete and ledger.outstanding == 0


def test_a_push_of_several_batches_finishes_all_of_them() -> None:
    ledger = WorkLedger(8, 1)
    for _ in range(3):
        ledger.lease(0, 2)
    ledger.finish(ledger.hand_in(0, 2))
    assert ledger.applied == 4 and ledger.leased_by(0) == 1
    ledger.finish(())
    assert ledger.applied == 4


def test_nobody_hands_in_more_than_it_has() -> None:
    ledger = WorkLedger(8, 1)
    ledger.lease(3, 2)
    assert spans(ledger.oldest(3, 1)) == [(0, 0, 2)] and ledger.oldest(5, 0) == ()
    with pytest.raises(ProtocolError, match=r"worker 3 .*hands in 2 units of work, and has 1"):
        ledger.oldest(3, 2)
    assert ledger.leased_by(3) == 1


def test_a_ledger_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="the data set is empty"):
        WorkLedger(0, 1)
    with pytest.raises(ConfigurationError, match="batch_size is 0; it must be at least 1"):
        WorkLedger(5, 1).lease(0, 0)


# -- the ledger: a part for each --


def test_with_static_sharding_each_walks_through_its_own_part() -> None:
    ledger = WorkLedger(7, 2, parts=2)
    mine = [ledger.lease(0, 3, part=0) for _ in range(5)]
    assert spans(mine) == [(0, 0, 3), (0, 3, 4), (1, 0, 3), (1, 3, 4), None]
    assert {(unit.part, unit.parts) for unit in mine if unit is not None} == {(0, 2)}
    assert not ledger.available  # the rest is another's
    assert spans([ledger.lease(1, 9, part=1) for _ in range(3)]) == [(0, 0, 3), (1, 0, 3), None]


def test_the_part_of_a_worker_that_is_gone_is_up_for_anybody() -> None:
    ledger = WorkLedger(8, 1, parts=2)
    ledger.lease(0, 2, part=0)
    ledger.lease(1, 4, part=1)
    assert ledger.lease(1, 4, part=1) is None and not ledger.available
    ledger.abandon(0)
    ledger.abandon(0)
    ledger.abandon(5)  # a late joiner never had one
    assert ledger.available
    last = ledger.lease(1, 4, part=1)
    assert last is not None and (last.part, last.begin, last.end) == (0, 2, 4)
    assert not ledger.available and ledger.lease(1, 4, part=1) is None


def test_a_late_joiner_has_no_part_and_takes_what_came_back() -> None:
    ledger = WorkLedger(8, 1, parts=2)
    ledger.lease(0, 4, part=0)
    assert ledger.lease(2, 4, part=2) is None
    ledger.give_back(ledger.hand_in(0))
    assert ledger.available
    assert ledger.lease(2, 3, part=2) == Unit(0, 0, 3, 0, 2)


def test_a_part_without_samples_yields_no_units() -> None:
    ledger = WorkLedger(2, 2, parts=3)
    assert ledger.lease(2, 4, part=2) is None
    ledger.abandon(2)
    assert not ledger.available


# -- whatever happens --

ACTIONS = ("lease", "push", "finish", "give back", "drop", "restart", "die", "join")


class Group:
    """What a server does with a ledger, and beside it which samples really were used."""

    def __init__(self, samples: int, epochs: int, workers: int, static: bool) -> None:
        self.ledger = WorkLedger(samples, epochs, workers if static else 1)
        self.static = static
        self.at: dict[int, list[Unit]] = {worker: [] for worker in range(workers)}  # leased and not pushed
        self.pending: dict[int, list[tuple[Unit, ...]]] = defaultdict(list)  # pushed, without a fate
        self.applied: Counter[tuple[int, int]] = Counter()  # (epoch, sample)
        self.dropped: Counter[tuple[int, int]] = Counter()
        self.next = workers

    def act(self, worker: int, action: str, size: int) -> None:
        if action == "join":
            self.at[self.next] = []
            self.next += 1
        elif self.pending[worker] and action == "finish":
            units = self.pending[worker].pop(size % len(self.pending[worker]))
            for unit in units:
                self.count(self.applied, unit)
            self.ledger.finish(units)
        elif self.pending[worker] and action == "give back":
            self.ledger.give_back(self.pending[worker].pop(0))
        elif worker in self.at:
            self.act_as_member(worker, action, size)

    def act_as_member(self, worker: int, action: str, size: int) -> None:
        at = self.at[worker]
        if action == "lease":
            unit = self.ledger.lease(worker, size, worker if self.static else None)
            if unit is not None:
                assert 1 <= unit.samples <= size
                at.append(unit)
        elif action == "push":
            units = self.ledger.hand_in(worker, len(at))
            assert units == tuple(at)
            self.pending[worker].append(units)
            at.clear()
        elif action == "drop":
            for unit in at:
                self.count(self.dropped, unit)
            self.ledger.drop(worker, len(at))
            at.clear()
        elif action in ("restart", "die"):
            self.ledger.release(worker, len(at) if action == "restart" else None)
            at.clear()
            if action == "die":
                self.ledger.abandon(worker)
                del self.at[worker]

    def count(self, used: Counter[tuple[int, int]], unit: Unit) -> None:
        order = order_of(self.ledger.samples, SEED, unit.epoch, unit.part, unit.parts)
        used.update((unit.epoch, index) for index in order[unit.begin : unit.end].tolist())

    def end(self) -> None:
        """All push and leave, every gradient is applied, and a last one does what is left."""
        for worker in list(self.at):
            self.act(worker, "push", 1)
            self.act(worker, "die", 1)
        for worker, units in list(self.pending.items()):
            for _ in list(units):
                self.act(worker, "finish", 1)
        self.act(0, "join", 1)
        last = self.next - 1
        while self.ledger.available:
            for action in ("lease", "push", "finish"):
                self.act(last, action, 4)


@settings(deadline=None)
@given(
    samples=st.integers(4, 30),
    epochs=st.integers(1, 3),
    workers=st.integers(1, 4),
    static=st.booleans(),
    happenings=st.lists(st.tuples(st.integers(0, 5), st.sampled_from(ACTIONS), st.integers(1, 12)), max_size=50),
)
def test_every_sample_is_applied_or_dropped_once_per_epoch_whatever_happens(
    samples: int, epochs: int, workers: int, static: bool, happenings: list[tuple[int, str, int]]
) -> None:
    group = Group(samples, epochs, workers, static)
    for worker, action, size in happenings:
        group.act(worker, action, size)
        pushed = [units for of_worker in group.pending.values() for units in of_worker]
        ledger = group.ledger
        assert ledger.leased == sum(unit.samples for units in group.at.values() for unit in units)
        assert ledger.undecided == sum(unit.samples for units in pushed for unit in units)
        assert ledger.remaining + ledger.outstanding + ledger.applied + ledger.dropped == samples * epochs
    group.end()
    ledger = group.ledger
    assert group.applied + group.dropped == Counter((e, index) for e in range(epochs) for index in range(samples))
    assert (ledger.applied, ledger.dropped) == (group.applied.total(), group.dropped.total())
    assert ledger.complete and ledger.outstanding == 0 and not ledger.available


# -- the order of an epoch --


def test_an_epoch_is_a_permutation_that_every_process_computes_alike() -> None:
    assert torch.equal(order_of(50, SEED, 1), order_of(50, SEED, 1))
    assert not torch.equal(order_of(50, SEED, 1), order_of(50, SEED, 2))
    assert not torch.equal(order_of(50, SEED, 1), order_of(50, SEED + 1, 1))
    assert sorted(order_of(50, SEED, 1).tolist()) == list(range(50))


@settings(deadline=None)
@given(samples=st.integers(1, 60), parts=st.integers(1, 7), seed=st.integers(-5, 2**64), epoch=st.integers(0, 9))
def test_the_parts_of_an_epoch_make_a_permutation_together(samples: int, parts: int, seed: int, epoch: int) -> None:
    orders = [order_of(samples, seed, epoch, part, parts) for part in range(parts)]
    assert sorted(torch.cat(orders).tolist()) == list(range(samples))
    assert max(map(len, orders)) - min(map(len, orders)) <= 1


def test_a_part_has_the_same_samples_in_every_epoch_in_another_order() -> None:
    first, second = (order_of(60, SEED, epoch, 1, 3).tolist() for epoch in (0, 1))
    assert sorted(first) == sorted(second) and first != second


# -- batches --


class Squares(Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.tensor([float(index), float(index * index)]), index


INDICES = torch.tensor([4, 0, 3])


def test_samples_are_fetched_one_by_one_and_stacked() -> None:
    x, y = fetch(Squares(), INDICES)
    assert x.tolist() == [[4, 16], [0, 0], [3, 9]] and y.tolist() == [4, 0, 3]


def test_a_data_set_that_can_fetch_several_at_once_is_asked_once() -> None:
    subset = Subset(Squares(), [9, 8, 7, 6, 5])
    x, y = fetch(subset, INDICES)
    assert y.tolist() == [5, 9, 6] and x.shape == (3, 2)


def test_a_tensor_data_set_is_indexed_at_once() -> None:
    dataset = TensorDataset(torch.arange(10).view(5, 2), torch.arange(5))
    x, y = fetch(dataset, INDICES)
    assert x.tolist() == [[8, 9], [0, 1], [6, 7]] and y.tolist() == [4, 0, 3]


def test_a_tensor_data_set_with_a_getitem_of_its_own_is_asked_for_its_samples() -> None:
    class Negated(TensorDataset):
        def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
            return tuple(-each for each in super().__getitem__(index))

    (x,) = fetch(Negated(torch.arange(5)), INDICES)
    assert x.tolist() == [-4, 0, -3]


def test_a_list_of_dicts_becomes_a_dict_of_batches() -> None:
    dataset = [{"x": torch.tensor(float(number)), "y": number} for number in range(5)]
    batch = fetch(dataset, INDICES)
    assert batch["x"].tolist() == [4, 0, 3] and batch["y"].tolist() == [4, 0, 3]


class Pair(NamedTuple):
    x: Tensor
    names: list[str]


def test_a_batch_moves_whatever_it_is_made_of() -> None:
    x = torch.ones(2)
    batch = moved({"pair": Pair(x, ["a"]), "list": [x, 3], "tuple": (x, None)}, torch.device("meta"))
    assert isinstance(batch["pair"], Pair) and batch["pair"].x.is_meta and batch["pair"].names == ["a"]
    assert batch["list"][0].is_meta and batch["list"][1] == 3
    assert batch["tuple"][0].is_meta and batch["tuple"][1] is None
    assert moved(x, CPU) is x


THREE = torch.zeros(3, 2)
KINDS_OF_BATCH = [
    pytest.param(THREE, 3, id="a tensor"),
    pytest.param([THREE, torch.zeros(7)], 3, id="a list"),
    pytest.param({"x": THREE, "y": torch.zeros(7)}, 3, id="a dict"),
    pytest.param(((THREE,), 5), 3, id="nested"),
    pytest.param(torch.tensor(1.0), 1, id="a scalar"),
    pytest.param("text", 1, id="no tensor at all"),
    pytest.param([], 1, id="nothing"),
    pytest.param((["a", "b", "c"], THREE), 3, id="names first"),
    pytest.param({"id": 17, "x": THREE}, 3, id="a number first"),
]


@pytest.mark.parametrize(("batch", "samples"), KINDS_OF_BATCH)
def test_a_batch_has_as_many_samples_as_its_first_tensor_is_long(batch: Any, samples: int) -> None:
    assert samples_of(batch) == samples

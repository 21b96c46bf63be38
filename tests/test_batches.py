"""`worker.batches`: samplers, collate functions, loader processes, loaders taken apart, and streams."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from fake_link import FakeLink
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data.distributed import DistributedSampler

from paceline.core.errors import ConfigurationError
from paceline.core.messages import Unit
from paceline.lifecycle.messages import Place
from paceline.training.batches import Options, batches_of
from paceline.training.data import order_of
from paceline.training.randomness import numbers_of_sampler
from paceline.training.worker import Worker

SAMPLES = 20


class Numbers(Dataset[int]):
    """Each sample is its own index."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


class Noisy(Dataset[Tensor]):
    """With random numbers of every kind, as augmentation has."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([index, random.random(), np.random.rand(), float(torch.rand(()))], dtype=torch.float64)


def worker_of(link: FakeLink, **options: Any) -> Worker:
    return Worker(0, link, seed=4, epochs=link.epochs, **options)


def pushing(link: FakeLink, data: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
    """Batches of a worker that pushes each of them."""
    worker = worker_of(link)
    net = nn.Linear(1, 1)
    optimizer = worker.optimizer(net, torch.optim.SGD, lr=0.1)
    for batch in worker.batches(data, *arguments, **options):
        yield batch
        net(torch.ones(1, 1)).sum().backward()
        optimizer.step()


def numbers(data: Any, *arguments: Any, epochs: int = 1, **options: Any) -> list[list[int]]:
    return [batch.tolist() for batch in pushing(FakeLink(epochs), data, *arguments, **options)]


def split(order: Tensor, size: int) -> list[list[int]]:
    return [part.tolist() for part in order.split(size)]


# -- orders --


def test_batches_are_shuffled_anew_each_epoch_unless_they_shall_not_be() -> None:
    assert numbers(Numbers(), 8, epochs=2) == [*split(order_of(20, 4, 0), 8), *split(order_of(20, 4, 1), 8)]
    assert numbers(Numbers(), 8, shuffle=False) == split(torch.arange(20), 8)
    assert numbers(Numbers(), 8, shuffle=False, epochs=2, drop_last=True) == split(torch.arange(16), 8) * 2


def test_a_sampler_decides_the_order_and_its_random_numbers_follow_from_seed_and_epoch() -> None:
    backwards = list(range(SAMPLES))[::-1]
    assert numbers(Numbers(), 8, sampler=backwards) == split(torch.tensor(backwards), 8)
    for make in (lambda: RandomSampler(range(12)), lambda: RandomSampler(range(12), generator=torch.Generator())):
        first, again = (numbers(Numbers(), 4, sampler=make(), epochs=2) for _ in range(2))
        assert first == again and first[:3] != first[3:]
        assert sorted(index for batch in first[:3] for index in batch) == list(range(12))


def test_of_a_sampler_with_replacement_positions_count() -> None:
    weighted = WeightedRandomSampler([0.0] * 10 + [1.0] * 10, num_samples=30)
    link = FakeLink()
    seen = [index for batch in pushing(link, Numbers(), 8, sampler=weighted) for index in batch.tolist()]
    assert len(seen) == 30 and min(seen) >= 10 and max(Counter(seen).values()) > 1
    assert link.ledger is not None and link.ledger.samples == 30 and link.ledger.complete


def test_a_sampler_that_knows_its_epoch_is_told() -> None:
    class Rotated(Sampler[int]):
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[int]:
            return iter([(index + self.epoch) % 4 for index in range(4)])

    assert numbers(Numbers(), 2, sampler=Rotated(), epochs=2) == [[0, 1], [2, 3], [1, 2], [3, 0]]


class OwnNumbers(Sampler[int]):
    def __init__(self, generator: Any, draw: Any) -> None:
        self.generator = generator
        self.draw = draw

    def __iter__(self) -> Iterator[int]:
        return iter([int(self.draw(self.generator)) for _ in range(6)])


GENERATORS = [
    pytest.param(lambda: random.Random(), lambda own: own.randrange(SAMPLES), id="Python"),
    pytest.param(np.random.default_rng, lambda own: own.integers(SAMPLES), id="NumPy"),
    pytest.param(np.random.RandomState, lambda own: own.randint(SAMPLES), id="NumPy's old ones"),
    pytest.param(torch.Generator, lambda own: torch.randint(SAMPLES, (), generator=own), id="torch"),
]


@pytest.mark.parametrize(("make", "draw"), GENERATORS)
def test_generators_that_a_sampler_holds_are_seeded_and_go_on_afterwards(make: Any, draw: Any) -> None:
    first, other = (BatchSampler(OwnNumbers(make(), draw), 3, False) for _ in range(2))
    before = torch.get_rng_state()
    with numbers_of_sampler(first, 5):
        one = list(first)
    with numbers_of_sampler(other, 5):
        assert list(other) == one
    assert torch.equal(torch.get_rng_state(), before)
    seeded = OwnNumbers(make(), draw)
    with numbers_of_sampler(seeded, 5):
        pass
    with numbers_of_sampler(seeded, 6):
        drawn = list(seeded)
    with numbers_of_sampler(seeded, 6):
        assert list(seeded) == drawn


def test_a_sampler_whose_order_cannot_be_agreed_on_is_refused() -> None:
    class Fickle(Sampler[int]):
        walks = 0

        def __iter__(self) -> Iterator[int]:
            self.walks += 1
            return iter(range(self.walks, self.walks + 5))

    with pytest.raises(ConfigurationError, match="the Fickle has another order each time"):
        worker_of(FakeLink()).batches(Numbers(), 2, sampler=Fickle())

    class Shrinking(Sampler[int]):
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[int]:
            return iter(range(4 - self.epoch))

    with pytest.raises(ConfigurationError, match="the Shrinking gives 3 in epoch 2, and gave 4 in the first"):
        numbers(Numbers(), 2, sampler=Shrinking(), epochs=2)


class ByLength(Sampler[list[int]]):
    """Batches of unequal size."""

    def __iter__(self) -> Iterator[list[int]]:
        batches = [[0, 1, 2, 3, 4], [5, 6], [7, 8, 9]]
        return iter([batches[place] for place in torch.randperm(3).tolist()])

    def __len__(self) -> int:
        return 3


def test_a_batch_sampler_makes_whole_batches_and_their_samples_are_counted() -> None:
    link = FakeLink(epochs=2)
    seen = [batch.tolist() for batch in pushing(link, Numbers(), batch_sampler=ByLength())]
    assert [each.samples for each in link.pushed] == [len(batch) for batch in seen]
    for epoch in (seen[:3], seen[3:]):
        assert sorted(map(tuple, epoch)) == [(0, 1, 2, 3, 4), (5, 6), (7, 8, 9)]
    assert link.work is not None and (link.work.samples, link.work.epoch_samples) == (3, 10)


def test_with_static_sharding_parts_lie_between_each_other() -> None:
    found = batches_of(Numbers(), Options(4, sharding="static", shuffle=False), 0)
    source = found.source  # type: ignore[union-attr]
    assert source.wanted(Unit(0, 0, 4, 1, 3)).indices.tolist() == [1, 4, 7, 10]
    walked = batches_of(Numbers(), Options(4, sharding="static", sampler=[*range(10, 20)]), 0)
    assert walked.source.wanted(Unit(0, 0, 4, 1, 3)).indices == [11, 14, 17]  # type: ignore[union-attr]


# -- batches --


def padded(samples: list[list[int]]) -> dict[str, Any]:
    return {"tokens": nn.utils.rnn.pad_sequence([torch.tensor(each) for each in samples]), "names": ["a"] * 3}


def test_ragged_batches_are_what_collate_fn_makes_of_them_and_samples_are_those_of_the_unit() -> None:
    sentences = [list(range(1, 2 + index % 5)) for index in range(7)]
    link = FakeLink()
    seen = list(pushing(link, sentences, 3, collate_fn=padded, shuffle=False))
    assert [tuple(batch["tokens"].shape) for batch in seen] == [(3, 3), (5, 3), (2, 1)]  # time comes first
    assert [each.samples for each in link.pushed] == [3, 3, 1] and seen[0]["names"] == ["a"] * 3


def test_a_batch_that_can_move_itself_does() -> None:
    def packed(samples: list[int]) -> PackedSequence:
        return pack_sequence([torch.ones(2 + index % 2) for index in samples], enforce_sorted=False)

    (first, *_) = worker_of(FakeLink(), device=torch.device("meta")).batches(Numbers(), 4, collate_fn=packed)
    assert isinstance(first, PackedSequence) and first.data.is_meta


def test_what_is_random_in_a_data_set_follows_from_the_unit_and_leaves_the_loop_alone() -> None:
    torch.manual_seed(1)
    one = list(worker_of(FakeLink()).batches(Noisy(), 8))
    left = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), left), "nothing was drawn from the loop's numbers"
    other = list(worker_of(FakeLink()).batches(Noisy(), 8))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))
    assert len({float(row[3]) for batch in one for row in batch}) == SAMPLES


# -- loader processes --


def note_process(number: int) -> None:
    information = get_worker_info()
    assert information is not None and isinstance(information.dataset, Noisy)
    information.dataset.initialised = number  # type: ignore[attr-defined]


def stacked_with_its_process(samples: list[Tensor]) -> tuple[Tensor, int]:
    information = get_worker_info()
    return torch.stack(samples), -1 if information is None else information.dataset.initialised  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "prefetch"), [(1, None), (2, 3), (2, 1), (1, 50)])
def test_loader_processes_give_the_same_batches_in_the_same_order(processes: int, prefetch: int | None) -> None:
    def seen(**options: Any) -> list[tuple[Tensor, int]]:
        return list(pushing(FakeLink(epochs=3), Noisy(), 3, collate_fn=stacked_with_its_process, **options))

    here = seen()
    there = seen(num_workers=processes, prefetch=prefetch, worker_init_fn=note_process)
    assert [batch.tolist() for batch, _ in here] == [batch.tolist() for batch, _ in there] and len(here) == 21
    assert {process for _, process in here} == {-1} and {process for _, process in there} == set(range(processes))


@pytest.mark.slow
def test_units_are_leased_ahead_and_no_more_than_was_asked_for() -> None:
    link = FakeLink(epochs=2)
    most = 0
    for _ in pushing(link, Numbers(), 2, num_workers=1, prefetch=3):
        assert link.ledger is not None
        most = max(most, link.ledger.leased_by(0))
    assert most == 4 and link.ledger is not None and link.ledger.complete


@pytest.mark.slow
def test_a_gradient_of_many_batches_asks_for_more_on_the_way() -> None:
    link = FakeLink(epochs=2)
    worker = worker_of(link)
    net = nn.Linear(1, 1)
    optimizer = worker.optimizer(net, torch.optim.SGD, lr=0.1)
    for number, _ in enumerate(worker.batches(Numbers(), 2, num_workers=1), start=1):
        net(torch.ones(1, 1)).sum().backward()
        if number % 5 == 0:
            optimizer.step()
    assert [(each.samples, each.units) for each in link.pushed] == [(10, 5)] * 4
    assert link.ledger is not None and link.ledger.complete


class Broken(Numbers):
    def __getitem__(self, index: int) -> int:
        if get_worker_info() is not None:
            raise OSError("no such file")
        return index


@pytest.mark.slow
def test_what_goes_wrong_in_a_loader_process_goes_wrong_in_the_loop() -> None:
    with pytest.raises(OSError, match="no such file"):
        list(worker_of(FakeLink()).batches(Broken(), 4, num_workers=1))


def test_a_rehearsal_loads_here_what_loader_processes_loaded() -> None:
    link = FakeLink()
    link.prefetches = False
    batches = list(worker_of(link).batches(Numbers(), 8, num_workers=2, collate_fn=with_its_process))
    assert {process for _, process in batches} == {os.getpid()}


def with_its_process(samples: list[int]) -> tuple[list[int], int]:
    return samples, os.getpid()


# -- a DataLoader --


def test_a_data_loader_is_taken_apart_and_leased() -> None:
    for make, same in (
        (partial(DataLoader, Numbers(), 8, shuffle=True), numbers(Numbers(), 8, epochs=2)),
        (partial(DataLoader, Numbers(), 8), numbers(Numbers(), 8, shuffle=False, epochs=2)),
        (partial(DataLoader, Numbers(), 8, drop_last=True), numbers(Numbers(), 8, shuffle=False, epochs=2)[:2] * 2),
        (partial(DataLoader, Numbers(), 5, sampler=[3, 1, 4, 1, 5, 9]), [[3, 1, 4, 1, 5], [9]] * 2),
        (partial(DataLoader, Numbers(), batch_sampler=[[3, 1], [4]]), [[3, 1], [4]] * 2),
    ):
        link = FakeLink(epochs=2)
        assert [batch.tolist() for batch in pushing(link, make())] == same
        assert link.ledger is not None and link.ledger.complete and all(each.units == 1 for each in link.pushed)


def test_a_data_loader_keeps_its_collate_fn_and_what_it_says_about_loading() -> None:
    loader = DataLoader(
        Numbers(), 4, collate_fn=with_its_process, num_workers=2, prefetch_factor=3, timeout=9, worker_init_fn=print
    )
    found = batches_of(loader, Options(), 0)
    source, loading = found  # type: ignore[misc]
    assert (loading.num_workers, loading.ahead, source.work.ahead) == (2, 6, 6)
    assert (loading.timeout, loading.worker_init_fn) == (9, print)
    link = FakeLink()
    link.prefetches = False
    assert next(worker_of(link).batches(loader))[1] == os.getpid()


def test_a_data_loader_whose_items_are_batches_is_leased_item_by_item() -> None:
    items = [np.arange(size) for size in (3, 1, 2)]
    link = FakeLink()
    seen = [batch.tolist() for batch in pushing(link, DataLoader(items, batch_size=None))]
    assert seen == [[0, 1, 2], [0], [0, 1]]
    assert [each.samples for each in link.pushed] == [1, 1, 1]  # epochs, limits and schedules count items


def test_a_loader_that_shards_already_is_the_workers_own() -> None:
    part = DistributedSampler(Numbers(), num_replicas=2, rank=1, shuffle=False)
    link = FakeLink()
    for loader in (
        DataLoader(Numbers(), 5, sampler=part),
        DataLoader(Numbers(), batch_sampler=BatchSampler(part, 5, False)),
    ):
        assert [batch.tolist() for batch in worker_of(link).batches(loader)] == [[1, 3, 5, 7, 9], [11, 13, 15, 17, 19]]
    assert link.ledger is None


def test_a_loader_that_walks_in_a_way_of_its_own_is_the_workers_own_and_that_is_said() -> None:
    class Twice(DataLoader[int]):
        def __iter__(self) -> Any:
            return iter([batch for batch in super().__iter__() for _ in range(2)])

    with pytest.warns(UserWarning, match="a Twice walks through its data in a way of its own"):
        assert len(list(worker_of(FakeLink()).batches(Twice(Numbers(), 10)))) == 4
    assert len(list(worker_of(FakeLink()).batches(Twice(Numbers(), 10), sharding="own"))) == 4


class WithoutLength(torch.utils.data.Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


def test_a_loader_of_data_without_a_length_is_refused_in_a_sentence() -> None:
    loader = torch.utils.data.DataLoader(WithoutLength(), 2, sampler=[0, 1, 2, 3])
    with pytest.raises(ConfigurationError, match="a WithoutLength, has no length, so its samples cannot be leased"):
        batches_of(loader, Options(), 0)


def test_workers_with_parts_of_their_own_do_not_share_them_by_mistake() -> None:
    def check(data: Any) -> int:
        found = batches_of(data, Options(2), 0)
        return found.source.work.check  # type: ignore[union-attr]

    x = torch.arange(10.0)
    assert check(TensorDataset(x[::2])) != check(TensorDataset(x[1::2]))
    assert check(Subset(Numbers(), [0, 2])) != check(Subset(Numbers(), [1, 3]))
    assert check(Numbers()) == check(Numbers())
    assert batches_of(Numbers(), Options(2, shuffle=False), 0).source.work.check != check(Numbers())  # type: ignore[union-attr]


# -- what can only be walked through --


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(12))


def test_a_stream_is_the_workers_own_or_every_nth_item_of_it_is() -> None:
    link = FakeLink()
    link.place = Place(1, 3)
    assert numbers(Stream(), 5) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]
    assert [batch.tolist() for batch in worker_of(link).batches(Stream(), 3, sharding="static")] == [[1, 4, 7], [10]]
    assert list(worker_of(link).batches(Stream(), sharding="static")) == [1, 4, 7, 10]
    loader = DataLoader(Stream(), 3)
    assert [batch.tolist() for batch in worker_of(link).batches(loader, sharding="static")] == [[1, 4, 7], [10]]
    assert len(list(worker_of(link).batches(loader))) == 4
    assert link.ledger is None


@pytest.mark.slow
def test_loader_processes_of_a_stream_share_its_part() -> None:
    link = FakeLink()
    link.place = Place(1, 2)
    batches = list(worker_of(link).batches(Stream(), 2, sharding="static", num_workers=2))
    assert sorted(index for batch in batches for index in batch.tolist()) == [2, 3, 6, 7, 10, 11]


# -- places, and mistakes --


def test_rank_and_workers_are_known_once_there_is_an_optimizer() -> None:
    link = FakeLink()
    link.place = Place(2, 5)
    worker = worker_of(link)
    with pytest.raises(ConfigurationError, match=r"worker.rank is known once worker.optimizer was called"):
        _ = worker.rank
    with pytest.raises(ConfigurationError, match=r"worker.workers is known once"):
        _ = worker.workers
    worker.optimizer(nn.Linear(1, 1), torch.optim.SGD, lr=0.1)
    assert (worker.rank, worker.workers) == (2, 5)


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
    ({"batch_size": 4, "sampler": [1], "shuffle": True}, "a sampler says what the order is"),
    ({"batch_size": 4, "batch_sampler": [[1]]}, "a batch_sampler makes whole batches"),
    ({"batch_size": 4, "drop_last": True, "sharding": "static"}, "drop_last and sharding='static' do not go"),
    ({"batch_size": 64, "drop_last": True}, "the data set is smaller than one batch of 64"),
    ({"batch_size": 4, "prefetch": 2}, "prefetch needs loader processes: give num_workers as well"),
    ({"batch_size": 4, "prefetch": 0, "num_workers": 1}, "prefetch is 0; it must be at least 1"),
    ({"batch_size": 4, "num_workers": -1}, "num_workers is -1; it must be 0 or more"),
    ({"batch_size": 4, "sharding": "own"}, "sharding='own' is for loaders"),
]


@pytest.mark.parametrize(("options", "message"), MISTAKES)
def test_what_makes_no_sense_is_refused_in_a_sentence(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        worker_of(FakeLink()).batches(Numbers(), **options)


def test_what_makes_no_sense_of_a_stream_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="a Stream can only be walked through, so its samples cannot be"):
        worker_of(FakeLink()).batches(Stream(), 4, sharding="dynamic")
    with pytest.raises(ConfigurationError, match="a Stream can only be walked through: sampler, batch_sampler"):
        worker_of(FakeLink()).batches(Stream(), 4, shuffle=True)
    with pytest.raises(ConfigurationError, match="a SequentialSampler takes its batches as they come"):
        worker_of(FakeLink()).batches(SequentialSampler(range(3)), 4)

"""What a user's loop talks to, with a server in the same process: pushes, batches, mixed precision, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fake_link import FakeLink, flat_of
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from paceline.core.errors import ConfigurationError
from paceline.training.data import order_of
from paceline.training.remote_optimizer import GradientError, RemoteOptimizer
from paceline.training.worker import Worker

SAMPLES = 22


def data() -> TensorDataset:
    x = torch.randn(SAMPLES, 3, generator=torch.Generator().manual_seed(8))
    return TensorDataset(x, (x.sum(1) > 0).long())


def net() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def worker_of(link: FakeLink, index: int = 0, **options: Any) -> Worker:
    return Worker(index, link, seed=0, epochs=link.epochs, **options)


def begin(model: nn.Module, **options: Any) -> tuple[FakeLink, Worker, RemoteOptimizer]:
    link = FakeLink()
    worker = worker_of(link, **options)
    return link, worker, worker.optimizer(model, torch.optim.SGD, lr=0.1)


# -- training --


def test_clipped_gradients_train_as_in_one_process_bit_for_bit() -> None:
    model, same = net(), net()
    link = FakeLink(epochs=2)
    worker = worker_of(link)
    optimizer = worker.optimizer(model, torch.optim.AdamW, lr=0.05)
    plain = torch.optim.AdamW(same.parameters(), lr=0.05)
    x, y = data().tensors
    mine = worker.batches(data(), batch_size=8)
    for indices in [*order_of(SAMPLES, 0, 0).split(8), *order_of(SAMPLES, 0, 1).split(8)]:
        batch = next(mine)
        assert torch.equal(batch[0], x[indices]) and torch.equal(batch[1], y[indices])
        for each, algorithm in ((model, optimizer), (same, plain)):
            algorithm.zero_grad()
            loss = F.cross_entropy(each(x[indices]), y[indices])
            loss.backward()
            nn.utils.clip_grad_norm_(each.parameters(), 0.2)
            algorithm.step()
        assert torch.equal(flat_of(model), flat_of(same))
    assert next(mine, None) is None
    assert all(each.gradient.norm() < 0.2001 for each in link.pushed)
    assert link.ledger is not None and link.ledger.complete


def test_accumulated_batches_are_one_push_with_all_their_samples() -> None:
    model = net()
    link, worker, optimizer = begin(model)
    for number, (x, y) in enumerate(worker.batches(data(), batch_size=4), start=1):
        F.cross_entropy(model(x), y, reduction="sum").backward()
        if number % 4 == 0:
            optimizer.step(1.5)
            optimizer.zero_grad()
    optimizer.step()  # the rest of the epoch
    assert [(each.samples, each.units, each.loss) for each in link.pushed] == [(16, 4, 1.5), (6, 2, None)]
    assert link.ledger is not None and link.ledger.complete


def test_a_second_step_on_the_same_batch_counts_its_samples_again_but_no_unit() -> None:
    model = net()
    link, worker, optimizer = begin(model)
    x, _ = next(worker.batches(data(), batch_size=4))
    for _ in range(2):
        model(x).sum().backward()
        optimizer.step()
    assert [(each.samples, each.units) for each in link.pushed] == [(4, 1), (4, 0)]


def test_the_loss_of_a_push_may_be_a_tensor_a_number_or_unknown() -> None:
    model = net()
    link, _, optimizer = begin(model)
    for loss in (torch.tensor(2.5, requires_grad=True), 3, None):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step(loss)
    assert [each.loss for each in link.pushed] == [2.5, 3, None]


def test_zero_grad_forgets_gradients_or_fills_them_with_zeros() -> None:
    model = net()
    _, _, optimizer = begin(model)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.zero_grad(set_to_none=False)
    assert all(each.grad is not None and not each.grad.any() for each in model.parameters())
    optimizer.zero_grad()
    assert all(each.grad is None for each in model.parameters())


def test_who_joins_late_starts_with_the_parameters_of_the_group() -> None:
    model = net()
    link = FakeLink()
    link.group_begins_with = torch.full_like(flat_of(model), 0.125)
    worker_of(link).optimizer(model, torch.optim.SGD, lr=0.1)
    assert torch.equal(flat_of(model), link.group_begins_with)


def test_workers_begin_with_the_same_random_numbers_and_go_on_with_their_own() -> None:
    draws = []
    for index in (0, 1, 2):
        torch.manual_seed(0)
        worker_of(FakeLink(), index).optimizer(nn.Linear(2, 2), torch.optim.SGD, lr=0.1)
        draws.append(torch.rand(3))
    torch.manual_seed(0)
    nn.Linear(2, 2)
    assert torch.equal(draws[0], torch.rand(3))  # the first goes on as one process would
    assert not torch.equal(draws[0], draws[1]) and not torch.equal(draws[1], draws[2])


def test_a_worker_is_as_slow_as_its_pace_demands() -> None:
    asked: list[tuple[int, float, float]] = []

    def pace(iteration: int, began: float, took: float) -> float:
        asked.append((iteration, began, took))
        return took + 2.0 if iteration == 0 else took / 2

    model = net()
    link, _, optimizer = begin(model, pace=pace)
    for _ in range(2):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    assert link.paused == pytest.approx([2.0])  # one cannot be made faster
    assert [iteration for iteration, _, _ in asked] == [0, 1]
    assert all(took > 0 for _, _, took in asked) and asked[1][1] >= asked[0][1] + asked[0][2]


# -- mixed precision --


def test_mixed_precision_gives_the_gradients_of_plain_training() -> None:
    model, same = net(), net()
    link, worker, optimizer = begin(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for x, y in worker.batches(data(), batch_size=8):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer, loss)
        scaler.update()
        assert not hasattr(optimizer, "grad_scale")
    with torch.autocast("cpu", torch.bfloat16):
        first = order_of(SAMPLES, 0, 0)[:8]
        F.cross_entropy(same(data().tensors[0][first]), data().tensors[1][first]).backward()
    expected = torch.cat([each.grad.reshape(-1) for each in same.parameters() if each.grad is not None])
    torch.testing.assert_close(link.pushed[0].gradient, expected, rtol=0.02, atol=1e-3)
    assert len(link.pushed) == 3 and link.pushed[0].loss == pytest.approx(0.7, abs=0.3)


def test_gradients_unscaled_for_clipping_are_not_divided_twice() -> None:
    model, same = net(), net()
    link, _, optimizer = begin(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    x = torch.ones(2, 3)
    scaler.scale(model(x).square().sum()).backward()
    scaler.unscale_(optimizer)  # type: ignore[arg-type]
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    scaler.step(optimizer)  # type: ignore[arg-type]
    scaler.update()
    same(x).square().sum().backward()
    nn.utils.clip_grad_norm_(same.parameters(), 0.5)
    expected = torch.cat([each.grad.reshape(-1) for each in same.parameters() if each.grad is not None])
    torch.testing.assert_close(link.pushed[0].gradient, expected)


@pytest.mark.parametrize("not_finite", ["stop", "skip"])
@pytest.mark.parametrize("unscale", [False, True])
def test_an_overflow_of_the_scale_is_skipped_and_counted_and_the_scale_falls(not_finite: str, unscale: bool) -> None:
    model = net()
    link, worker, optimizer = begin(model, not_finite=not_finite)
    before = flat_of(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for number, (x, y) in enumerate(worker.batches(data(), batch_size=8)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) * (1e38 if number == 0 else 1.0)
        scaler.scale(loss).backward()
        if unscale:
            scaler.unscale_(optimizer)  # type: ignore[arg-type]
        scaler.step(optimizer)  # type: ignore[arg-type]
        scaler.update()
        if number == 0:
            assert link.skipped == [1] and not link.pushed and torch.equal(flat_of(model), before)
            assert scaler.get_scale() == 2.0**9
    assert [each.samples for each in link.pushed] == [8, 6] and link.skipped == [1]
    assert link.ledger is not None and link.ledger.dropped == 8 and link.ledger.complete


# -- what goes wrong with gradients --


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_stops_the_run_and_names_the_layer(bad: float) -> None:
    model = net()
    link, _, optimizer = begin(model, index=3)
    model(torch.ones(1, 3)).sum().backward()
    model[2].weight.grad[0, 1] = bad  # type: ignore[index]
    with pytest.raises(GradientError, match=r"worker 3: the gradient of '2\.weight' is not finite"):
        optimizer.step()
    assert not link.pushed and not link.skipped


def test_a_gradient_that_is_not_finite_is_skipped_where_that_was_asked_for() -> None:
    model = net()
    link, worker, optimizer = begin(model, not_finite="skip")
    before = flat_of(model)
    for number, (x, y) in enumerate(worker.batches(data(), batch_size=6)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        (loss * float("nan") if number in (0, 1) else loss).backward()
        if number == 0:
            continue  # two batches in one push
        optimizer.step(loss)
        assert torch.equal(flat_of(model), before) == (number == 1)
    assert link.skipped == [2] and [(each.samples, each.units) for each in link.pushed] == [(6, 1), (4, 1)]
    assert link.ledger is not None and link.ledger.dropped == 12 and link.ledger.applied == 10


def test_a_step_without_any_gradient_is_refused() -> None:
    model = net()
    link, _, optimizer = begin(model, index=1)
    with pytest.raises(GradientError, match=r"worker 1: no parameter has a gradient; call backward\(\) before step"):
        optimizer.step()
    assert not link.pushed


@pytest.mark.parametrize("samples", [0, -4])
def test_a_push_of_no_samples_is_refused(samples: int) -> None:
    model = net()
    link, _, optimizer = begin(model)
    model(torch.ones(1, 3)).sum().backward()
    with pytest.raises(ConfigurationError, match=rf"step\(samples={samples}\); it must be at least 1"):
        optimizer.step(samples=samples)
    optimizer.step(samples=7)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert [each.samples for each in link.pushed] == [7, 1]


# -- the optimizer --


def test_a_second_optimizer_is_refused() -> None:
    _, worker, _ = begin(net())
    with pytest.raises(ConfigurationError, match=r"worker\.optimizer was called twice; a run has one model"):
        worker.optimizer(net(), torch.optim.SGD, lr=0.1)


def test_optimizers_that_cannot_be_remote_are_refused() -> None:
    model = net()
    with pytest.raises(ConfigurationError, match="is no optimizer class: give the class and its arguments"):
        worker_of(FakeLink()).optimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="LBFGS computes gradients itself"):
        worker_of(FakeLink()).optimizer(model, torch.optim.LBFGS)
    with pytest.raises(ConfigurationError, match="group 0 has a parameter that is not the model's"):
        worker_of(FakeLink()).optimizer(model, torch.optim.SGD, groups=[{"params": net().parameters()}], lr=0.1)


def test_parameter_groups_train_with_their_own_rates_and_are_shown() -> None:
    model, same = net(), net()
    link = FakeLink()
    groups = [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[2].parameters()}]
    optimizer = worker_of(link).optimizer(model, torch.optim.SGD, groups=groups, lr=0.1)
    plain = torch.optim.SGD([{"params": same[0].parameters(), "lr": 0.5}, {"params": same[2].parameters()}], lr=0.1)
    for each, algorithm in ((model, optimizer), (same, plain)):
        each(torch.ones(2, 3)).square().sum().backward()
        algorithm.step()
    assert torch.equal(flat_of(model), flat_of(same))
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.1]
    assert optimizer.param_groups[1]["params"] == [model[2].weight, model[2].bias]


def test_what_a_loop_would_write_into_param_groups_is_refused_since_it_could_not_reach_the_server() -> None:
    _, _, optimizer = begin(net())
    refused = r"param_groups can only be read here: .* worker\.optimizer\(\.\.\., scheduler="
    with pytest.raises(ConfigurationError, match=refused):
        optimizer.param_groups[0]["lr"] = 0.5
    with pytest.raises(ConfigurationError, match=refused):
        optimizer.param_groups[0].update(lr=0.5)
    with pytest.raises(TypeError):
        optimizer.param_groups[0] = {"lr": 0.5}  # type: ignore[index]
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_param_groups_show_what_the_optimizer_does_by_default() -> None:
    optimizer = worker_of(FakeLink()).optimizer(net(), torch.optim.Adam)
    assert optimizer.param_groups[0]["lr"] == 0.001


# -- batches --


def test_batches_of_a_data_set_need_a_size_and_a_known_sharding() -> None:
    worker = worker_of(FakeLink())
    with pytest.raises(ConfigurationError, match="needs a batch_size"):
        worker.batches(data())
    with pytest.raises(ConfigurationError, match="unknown stale 'often'; there are: auto, correct, none"):
        Worker(0, FakeLink(), seed=0).optimizer(net(), torch.optim.SGD, stale="often", lr=0.1)
    with pytest.raises(ConfigurationError, match="unknown sharding 'fair'; there are: dynamic, static, own"):
        worker.batches(data(), 4, sharding="fair")


def test_the_server_is_told_what_is_wanted() -> None:
    link = FakeLink()
    assert next(worker_of(link).batches(data(), 4, sharding="static"))[0].shape == (4, 3)
    assert link.work is not None and (link.work.samples, link.work.batch_size) == (SAMPLES, 4)
    assert link.work.sharding == "static"


def test_batches_of_ones_own_are_taken_as_they_come() -> None:
    loader = DataLoader(data(), batch_size=8)
    with pytest.raises(ConfigurationError, match="a DataLoader takes batch_size, collate_fn and the like from the"):
        worker_of(FakeLink()).batches(loader, 8)
    with pytest.raises(ConfigurationError, match="a generator takes its batches as they come"):
        worker_of(FakeLink()).batches((x for x in ()), sharding="static")


def test_a_data_loader_of_ones_own_is_walked_through_once_per_epoch_and_its_samples_are_counted() -> None:
    model = net()
    link = FakeLink(epochs=3)
    worker = worker_of(link)
    optimizer = worker.optimizer(model, torch.optim.SGD, lr=0.1)
    for x, y in worker.batches(DataLoader(data(), batch_size=8), sharding="own"):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert [(each.samples, each.units) for each in link.pushed] == [(8, 0), (8, 0), (6, 0)] * 3
    assert link.ledger is None


def test_a_generator_is_used_up_after_its_first_epoch() -> None:
    numbers = (torch.full((2,), float(number)) for number in range(3))
    link = FakeLink(epochs=4)
    assert [batch.tolist() for batch in worker_of(link).batches(numbers)] == [[0, 0], [1, 1], [2, 2]]


class Stream(IterableDataset[Tensor]):
    """Has a length, but cannot be indexed."""

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[Tensor]:
        return iter([torch.zeros(3), torch.ones(3)])


def test_an_iterable_data_set_is_iterated_even_if_it_has_a_length() -> None:
    assert [batch.tolist() for batch in worker_of(FakeLink(epochs=2)).batches(Stream())] == [[0] * 3, [1] * 3] * 2


def test_batches_come_on_the_device_of_the_worker() -> None:
    worker = worker_of(FakeLink(), device=torch.device("meta"))
    x, y = next(worker.batches(data(), 4))
    assert x.is_meta and y.is_meta
    assert next(worker.batches(iter([{"x": torch.zeros(2)}])))["x"].is_meta

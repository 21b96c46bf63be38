"""The torch side without processes: updates, their statistics, what becomes of each gradient, tasks and checkpoints."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from fake_link import FakeLink, flat_of, store_of
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from paceline.core.errors import ConfigurationError
from paceline.core.messages import AT_THE_END, ApplyUpdate, DiscardGradient, Gradient, Statistics
from paceline.training.aggregation import Aggregation, Arrived
from paceline.training.checkpoint import load_state, save_state
from paceline.training.data import WorkLedger, order_of
from paceline.training.parameters import Contribution, ParameterStore
from paceline.training.task import EVALUATED_AT_ONCE, Task
from paceline.training.worker import Worker


def two_zeros() -> nn.Module:
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def sgd(lr_scaling: str = "linear", lr: float = 1.0) -> ParameterStore:
    return store_of(two_zeros(), torch.optim.SGD, lr_scaling, lr=lr)


# -- the store --


def test_an_update_is_the_mean_over_samples() -> None:
    store = sgd()
    one, three = torch.tensor([4.0, 0.0]), torch.tensor([0.0, 4.0])
    store.apply([Contribution(one, 1), Contribution(three, 3)], samples_per_round=4)
    assert store.flat.tolist() == [-1.0, -3.0] and store.version == 1 and store.samples == 4
    assert store.parameters["weight"].tolist() == [[-1.0, -3.0]]


def test_weights_multiply_before_the_division_by_samples() -> None:
    store = sgd()
    gradients = torch.full((2, 2), 2.0)
    store.apply([Contribution(gradients[0], 1, 0.5), Contribution(gradients[1], 1, 1.0)], samples_per_round=2)
    assert store.flat.tolist() == [-1.5, -1.5]
    store.apply([Contribution(torch.ones(2), 2, 0.5)], samples_per_round=2)
    assert store.flat.tolist() == [-2.0, -2.0]


@pytest.mark.parametrize(("scaling", "expected"), [("linear", -0.25), ("sqrt", -0.5), ("none", -1.0)])
def test_the_learning_rate_follows_the_share_of_a_round(scaling: str, expected: float) -> None:
    store = sgd(scaling)
    store.apply([Contribution(torch.ones(2), 8)], samples_per_round=32)
    assert store.flat.tolist() == [expected, expected]
    assert store.optimizer.param_groups[0]["lr"] == store.learning_rate == 1.0
    store.apply([Contribution(torch.ones(2), 64)], samples_per_round=32)  # never more than a round
    assert store.flat.tolist() == [expected - 1, expected - 1]


def test_the_store_keeps_a_copy_of_what_it_began_with() -> None:
    model = two_zeros()
    store = store_of(model, lr=1.0)
    store.apply([Contribution(torch.ones(2), 1)], samples_per_round=1)
    assert model.weight.tolist() == [[0.0, 0.0]] and store.flat.tolist() == [-1.0, -1.0]


def test_an_optimizer_that_cannot_be_made_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"SGD cannot be made: .*learning rate"):
        sgd(lr=-1.0)
    with pytest.raises(ConfigurationError, match=r"SGD cannot be made: .*'speed'"):
        store_of(two_zeros(), speed=1.0)
    with pytest.raises(ConfigurationError, match="unknown lr_scaling 'half'; there are: linear, sqrt, none"):
        sgd("half")


# -- statistics --


def statistics_of(contributions: list[Contribution]) -> Statistics:
    seen = sgd().apply(contributions, samples_per_round=1, statistics=True)
    assert seen is not None
    return seen


def test_statistics_of_an_update_in_closed_form() -> None:
    gradients = torch.tensor([[1.0, 0.0], [3.0, 0.0], [2.0, 3.0]])
    mean = gradients.mean(0)
    norms = (gradients**2).sum(1)
    for known in ([None] * 3, norms.tolist()):
        seen = statistics_of(
            [Contribution(each.clone(), 1, 1.0, float(i), known[i]) for i, each in enumerate(gradients)]
        )
        assert seen.gradients == 3 and seen.loss == 1.0 and seen.learning_rate == 1.0
        assert seen.squared_norm == pytest.approx(float(mean @ mean))
        assert seen.variance == pytest.approx(float(((gradients - mean) ** 2).sum() / 2))
    alone = statistics_of([Contribution(gradients[0], 1)])
    assert alone.variance is None and alone.loss is None and alone.squared_norm == 1.0


def test_the_variance_is_right_on_average_whatever_the_weights_of_the_gradients() -> None:
    # Gradients of known variance around a known mean, in batches of unequal size with unequal weights.
    generator = torch.Generator().manual_seed(0)
    truth, deviation = torch.tensor([2.0, -1.0]), torch.tensor([0.5, 1.5])
    samples, weights = (1, 4, 2, 9), (1.0, 0.5, 0.7, 0.2)
    variances, norms = [], []
    for _ in range(4000):
        drawn = truth + deviation * torch.randn(4, 2, generator=generator)
        seen = statistics_of([Contribution(*each) for each in zip(drawn, samples, weights, strict=True)])
        variances.append(seen.variance)
        shares = torch.tensor([a * b for a, b in zip(samples, weights, strict=True)])
        shares = shares / shares.sum()
        norms.append(seen.squared_norm - float((shares**2).sum()) * 2.5)
    assert sum(variances) / 4000 == pytest.approx(2.5, rel=0.05)  # 0.5^2 + 1.5^2
    assert sum(norms) / 4000 == pytest.approx(5.0, rel=0.05)  # 2^2 + 1^2


def test_nothing_is_said_of_gradients_that_are_too_large_or_weigh_nothing() -> None:
    huge = torch.full((2,), 3e38)
    assert sgd().apply([Contribution(huge, 1)], 1, statistics=True) is None
    assert sgd().apply([Contribution(torch.ones(2), 1, 0.0)], 1, statistics=True) is None
    one = statistics_of([Contribution(torch.ones(2), 1, loss=float("nan")), Contribution(torch.ones(2), 1, 0.0)])
    assert one.variance is None and one.loss is None and one.squared_norm == 2.0


def test_equal_gradients_have_no_variance_and_unknown_losses_are_left_out() -> None:
    same = torch.full((2,), 0.1)
    seen = statistics_of(
        [Contribution(same, 1, loss=2.0), Contribution(same.clone(), 1), Contribution(same.clone(), 1)]
    )
    assert seen.variance is not None and 0 <= seen.variance < 1e-9 and seen.loss == 2.0


# -- from gradients to updates --


def arrive(aggregation: Aggregation, worker: int, clock: int, gradient: Tensor, samples: int = 2) -> Gradient:
    """A push of one unit, which is leased here as well."""
    if aggregation.ledger is not None:
        aggregation.ledger.lease(worker, samples)
    named = Gradient(worker, clock)
    aggregation.enter(worker)
    aggregation.arrive(named, Arrived(gradient, samples), 0 if aggregation.ledger is None else 1)
    return named


def test_an_update_is_made_of_the_gradients_that_are_named_and_their_samples_are_done() -> None:
    ledger = WorkLedger(6, 1)
    aggregation = Aggregation(sgd(), statistics=True, ledger=ledger)
    first = arrive(aggregation, 0, 1, torch.tensor([2.0, 0.0]))
    arrive(aggregation, 1, 1, torch.tensor([9.0, 9.0]))
    third = arrive(aggregation, 2, 1, torch.tensor([0.0, 4.0]))
    seen = aggregation.apply(ApplyUpdate((first, third)))
    assert aggregation.store.flat.tolist() == pytest.approx([-1.0 * 2 / 3, -2.0 * 2 / 3])  # two thirds of a round
    assert seen is not None and seen.gradients == 2 and seen.squared_norm == 1.0 + 4.0
    assert ledger.applied == 4 and ledger.outstanding == 1


def test_statistics_are_computed_only_for_who_wants_them() -> None:
    aggregation = Aggregation(sgd(), statistics=False)
    first = arrive(aggregation, 0, 1, torch.ones(2))
    assert aggregation.apply(ApplyUpdate((first,))) is None


def test_the_weights_of_a_policy_are_used() -> None:
    aggregation = Aggregation(sgd(), statistics=False)
    both = (arrive(aggregation, 0, 1, torch.ones(2)), arrive(aggregation, 1, 1, torch.ones(2)))
    aggregation.apply(ApplyUpdate(both, (0.5, 0.0)))
    assert aggregation.store.flat.tolist() == [-0.25, -0.25]


def test_a_round_is_one_batch_of_everybody_and_who_has_not_pushed_counts_as_the_average() -> None:
    aggregation = Aggregation(sgd(), statistics=False)
    large = arrive(aggregation, 0, 1, torch.ones(2), samples=6)
    small = arrive(aggregation, 1, 1, torch.ones(2), samples=2)
    for silent in (2, 3):
        aggregation.enter(silent)
    aggregation.apply(ApplyUpdate((small,)))  # 2 of (6 + 2) / 2 * 4
    assert aggregation.store.flat.tolist() == [-0.125, -0.125]
    for gone in (0, 2, 3):
        aggregation.leave(gone, "failed")
    aggregation.apply(ApplyUpdate((large,)))  # 6 of 2: never more than a round
    assert aggregation.store.flat.tolist() == [-1.125, -1.125]


@pytest.mark.parametrize("reason", AT_THE_END)
def test_a_round_stays_what_it_was_when_only_the_work_runs_out(reason: str) -> None:
    aggregation = Aggregation(sgd(), statistics=False)
    pushed = [arrive(aggregation, worker, 1, torch.ones(2), samples=4) for worker in range(4)]
    for worker in range(3):
        aggregation.apply(ApplyUpdate((pushed[worker],)))
        aggregation.leave(worker, reason)
    aggregation.apply(ApplyUpdate((pushed[3],)))  # the stalest of all, and still a quarter of a round
    assert aggregation.store.flat.tolist() == [-1.0, -1.0]
    aggregation.enter(4)  # work came back to one of the three
    again = arrive(aggregation, 4, 1, torch.ones(2), samples=4)
    aggregation.apply(ApplyUpdate((again,)))
    assert aggregation.store.flat.tolist() == [-1.25, -1.25]
    aggregation.leave(3, "failed")  # this one makes the group smaller
    last = arrive(aggregation, 4, 2, torch.ones(2), samples=4)
    aggregation.apply(ApplyUpdate((last,)))
    assert aggregation.store.flat.tolist() == pytest.approx([-1.25 - 1 / 3] * 2)


def test_what_the_last_worker_left_behind_is_measured_by_the_last_round_that_there_was() -> None:
    aggregation = Aggregation(sgd(), statistics=False)
    first = arrive(aggregation, 0, 1, torch.ones(2), samples=4)
    second = arrive(aggregation, 1, 1, torch.ones(2), samples=4)
    aggregation.apply(ApplyUpdate((first,)))
    aggregation.leave(0, "failed")
    aggregation.leave(1, "failed")
    aggregation.apply(ApplyUpdate((second,)))
    assert aggregation.store.flat.tolist() == [-1.0, -1.0]


def test_a_gradient_moved_aside_survives_what_its_worker_writes_next() -> None:
    aggregation = Aggregation(sgd(), statistics=False)
    slot = torch.ones(2)
    first = arrive(aggregation, 0, 1, slot)
    aggregation.move_aside(first)
    aggregation.move_aside(Gradient(5, 1))  # whose fate is known already
    slot.fill_(100.0)
    aggregation.apply(ApplyUpdate((first,)))
    assert aggregation.store.flat.tolist() == [-1.0, -1.0] and slot.tolist() == [100.0, 100.0]


def test_a_worker_that_leaves_gives_back_what_it_was_at_and_keeps_what_it_pushed() -> None:
    ledger = WorkLedger(6, 1)
    aggregation = Aggregation(sgd(), statistics=False, ledger=ledger)
    slot = torch.ones(2)
    pushed = arrive(aggregation, 0, 1, slot)
    ledger.lease(0, 2)
    aggregation.leave(0, "failed")
    slot.fill_(100.0)  # its process came back
    assert ledger.leased_by(0) == 0 and ledger.outstanding == 1
    again = ledger.lease(1, 9)
    assert again is not None and (again.begin, again.end) == (2, 4)
    aggregation.apply(ApplyUpdate((pushed,)))
    assert ledger.applied == 2 and aggregation.store.flat.tolist() == [-1.0, -1.0]
    aggregation.leave(7, "failed")  # who never pushed


def test_the_samples_of_a_discarded_gradient_go_back_or_are_counted_where_nobody_can_give_them_back() -> None:
    ledger = WorkLedger(6, 1)
    aggregation = Aggregation(sgd(), statistics=False, ledger=ledger)
    late = arrive(aggregation, 0, 1, torch.ones(2))
    aggregation.discard(DiscardGradient(late, "late"))
    assert ledger.available and ledger.outstanding == 0 and aggregation.dropped == 0
    own = Aggregation(sgd(), statistics=False)
    own.discard(DiscardGradient(arrive(own, 0, 1, torch.ones(2), samples=5), "late"))
    assert own.dropped == 5


def test_the_samples_that_go_back_are_those_of_the_gradient_that_was_discarded() -> None:
    """A policy may take the newer one of two gradients of a worker, and its commands apply before they discard."""
    ledger = WorkLedger(5, 1)
    aggregation = Aggregation(sgd(), statistics=False, ledger=ledger)
    older = arrive(aggregation, 0, 1, torch.ones(2), samples=2)
    newer = arrive(aggregation, 0, 2, torch.ones(2), samples=3)
    aggregation.apply(ApplyUpdate((newer,)))
    aggregation.discard(DiscardGradient(older, "too old"))
    assert ledger.applied == 3
    back = ledger.lease(1, 9)
    assert back is not None and (back.begin, back.end) == (0, 2)


# -- tasks --


def classes(samples: int = EVALUATED_AT_ONCE + 88) -> TensorDataset:
    x = torch.randn(samples, 4, generator=torch.Generator().manual_seed(2))
    return TensorDataset(x, (x.sum(1) > 0).long() + (x[:, 0] > 1).long())


def classifier() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))


def test_an_evaluation_gives_loss_and_accuracy_of_the_whole_test_set() -> None:
    test = classes()
    task = Task(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), F.cross_entropy, test, test)
    state = classifier().state_dict()
    figures = task.evaluate(state)
    x, y = test.tensors
    output = x @ state["0.weight"].T + state["0.bias"]
    assert figures.keys() == {"loss", "accuracy"}
    assert figures["accuracy"] == pytest.approx((output.argmax(1) == y).double().mean().item(), abs=1e-12)
    assert figures["loss"] == pytest.approx(F.cross_entropy(output, y).item(), rel=1e-6)


def test_a_metric_takes_the_place_of_accuracy() -> None:
    test = classes()
    task = Task(classifier(), F.cross_entropy, test, test, metric=lambda output, y: (y == 1).float().mean())
    figures = task.evaluate(classifier().state_dict())
    assert figures.keys() == {"loss", "metric"}
    assert figures["metric"] == pytest.approx((test.tensors[1] == 1).double().mean().item(), rel=1e-6)


def test_a_regression_has_no_accuracy() -> None:
    x = torch.randn(20, 4)
    test = TensorDataset(x, torch.zeros(20, 1))
    figures = Task(nn.Linear(4, 1), F.mse_loss, test, test).evaluate(nn.Linear(4, 1).state_dict())
    assert figures.keys() == {"loss"}


def test_pictures_with_a_class_for_every_pixel_have_an_accuracy() -> None:
    torch.manual_seed(4)
    test = TensorDataset(torch.randn(6, 2, 3, 3), torch.ones(6, 3, 3).long())
    model = nn.Conv2d(2, 2, 1)
    figures = Task(model, F.cross_entropy, test, test).evaluate(model.state_dict())
    right = (model(test.tensors[0]).argmax(1) == 1).double().mean().item()
    assert figures["accuracy"] == pytest.approx(right, abs=1e-12)


def test_a_task_learns_what_a_plain_loop_learns_bit_for_bit() -> None:
    train, model, same = classes(40), nn.Linear(4, 3), nn.Linear(4, 3)
    same.load_state_dict(model.state_dict())
    optimizer = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    link = FakeLink(epochs=2)
    Task(model, F.cross_entropy, train, optimizer=optimizer, batch_size=16).learn(Worker(0, link, seed=5, epochs=2))
    plain = optimizer(same.parameters())
    losses = []
    for indices in [*order_of(40, 5, 0).split(16), *order_of(40, 5, 1).split(16)]:
        plain.zero_grad()
        loss = F.cross_entropy(same(train.tensors[0][indices]), train.tensors[1][indices])
        loss.backward()
        plain.step()
        losses.append(loss.item())
    assert torch.equal(flat_of(model), flat_of(same))
    assert [each.samples for each in link.pushed] == [16, 16, 8] * 2
    assert [each.loss for each in link.pushed] == losses
    assert link.ledger is not None and link.ledger.complete


def test_the_optimizer_of_a_task_is_a_class_or_a_partial_of_one() -> None:
    def task(optimizer: object) -> Task:
        return Task(classifier(), F.cross_entropy, classes(4), optimizer=optimizer)  # type: ignore[arg-type]

    assert task(torch.optim.Adam).optimizer_parts() == (torch.optim.Adam, {})
    assert task(partial(torch.optim.SGD, lr=0.5)).optimizer_parts() == (torch.optim.SGD, {"lr": 0.5})
    with pytest.raises(ConfigurationError, match="name the optimizer's arguments"):
        task(partial(torch.optim.SGD, 0.5)).optimizer_parts()
    for wrong in ("sgd", torch.optim.SGD(classifier().parameters(), lr=0.1), partial(print)):
        with pytest.raises(ConfigurationError, match="optimizer class"):
            task(wrong).optimizer_parts()


# -- checkpoints --


def test_a_state_comes_back_from_a_file_with_tied_and_turned_tensors(tmp_path: Path) -> None:
    weight = torch.arange(6.0).view(2, 3)
    state = {"a": weight, "tied": weight, "turned": weight.t(), "count": torch.tensor(7), "mask": torch.tensor([True])}
    path = tmp_path / "new" / "model.safetensors"
    save_state(state, path, {"policy": "bsp"})
    found = load_state(path)
    assert found.keys() == state.keys() and all(torch.equal(found[key], state[key]) for key in state)
    assert found["count"].dtype == torch.int64 and list(path.parent.iterdir()) == [path]


def test_a_file_that_is_no_state_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"missing\.safetensors: cannot be read as a model's state"):
        load_state(tmp_path / "missing.safetensors")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ConfigurationError, match="text: cannot be read as a model's state"):
        load_state(tmp_path / "text")

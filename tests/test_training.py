"""The torch side without processes: updates, their statistics, what becomes of each gradient, tasks and checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from fake_link import FakeLink, flat_of, store_of
from torch import nn
from torch.utils.data import TensorDataset

from paceline.core.errors import ConfigurationError
from paceline.core.messages import Gradient, GradientArrived, Statistics, Unit, UpdateApplied
from paceline.lifecycle.messages import MakeUpdate, Part
from paceline.lifecycle.validation import PortView
from paceline.training import parameters
from paceline.training.aggregation import Aggregation
from paceline.training.checkpoint import load_state, save_state
from paceline.training.data import order_of
from paceline.training.parameters import ParameterStore
from paceline.training.task import EVALUATED_AT_ONCE, Task
from paceline.training.updates import Contribution
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
    with pytest.raises(ConfigurationError, match="unknown lr_scaling 'half'; there are: auto, linear, sqrt, none"):
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


def update_of(
    *gradients: Gradient, samples: int = 2, per_round: float = 2.0, weights: Sequence[float] = ()
) -> MakeUpdate:
    """Of gradients that their workers pushed from seats with the same numbers."""
    given = weights or (1.0,) * len(gradients)
    parts = [
        Part(GradientArrived(gradient, 0, 2, 0.5), gradient.worker, weight, 3)
        for gradient, weight in zip(gradients, given, strict=True)
    ]
    return MakeUpdate(1, tuple(parts), per_round)


def test_an_update_is_made_of_the_gradients_that_are_named_and_knows_where_they_come_from() -> None:
    aggregation = Aggregation(sgd(), statistics=True)
    for seat, gradient in enumerate([[2.0, 0.0], [9.0, 9.0], [0.0, 4.0]]):
        aggregation.hand_in(seat, torch.tensor(gradient))
    done = aggregation.make_update(update_of(Gradient(0, 1), Gradient(2, 1), per_round=6.0))
    assert aggregation.store.flat.tolist() == pytest.approx([-1.0 * 2 / 3, -2.0 * 2 / 3])  # two thirds of a round
    assert done.version == aggregation.store.version == 1
    seen = done.statistics
    assert seen is not None and (seen.gradients, seen.squared_norm, seen.loss) == (2, 1.0 + 4.0, 0.5)


def test_a_contribution_carries_worker_version_staleness_samples_and_units(monkeypatch: pytest.MonkeyPatch) -> None:
    applied: list[Sequence[Contribution]] = []

    def note(contributions: Sequence[Contribution], rate: object) -> tuple[torch.Tensor, None]:
        applied.append(contributions)
        return torch.zeros(2), None

    monkeypatch.setattr(parameters, "combine", note)
    aggregation = Aggregation(sgd(), statistics=False)
    pulled = torch.zeros(2)
    aggregation.hand_in(7, torch.ones(2), 2.0, pulled)
    arrived = GradientArrived(Gradient(4, 9), 5, 3, 0.25, (Unit(0, 3, 6),))
    aggregation.make_update(MakeUpdate(8, (Part(arrived, 7, 0.5, 2),), 3.0))
    (contribution,) = applied[0]
    assert contribution[1:-2] == (3, 0.5, 0.25, 2.0, 4, 5, 2, (Unit(0, 3, 6),))
    assert contribution.pulled is pulled


def test_statistics_are_computed_only_for_a_policy_that_wants_them() -> None:
    aggregation = Aggregation(sgd(), statistics=False)
    aggregation.hand_in(0, torch.ones(2))
    assert aggregation.make_update(update_of(Gradient(0, 1))) == UpdateApplied(1, None)


def test_the_weights_of_a_policy_are_used() -> None:
    aggregation = Aggregation(sgd(), statistics=False)
    for seat in (0, 1):
        aggregation.hand_in(seat, torch.ones(2))
    aggregation.make_update(update_of(Gradient(0, 1), Gradient(1, 1), per_round=4.0, weights=(0.5, 0.0)))
    assert aggregation.store.flat.tolist() == [-0.25, -0.25]


def test_a_gradient_that_is_set_aside_survives_what_its_worker_writes_next() -> None:
    aggregation = Aggregation(sgd(), statistics=False)
    slot = torch.ones(2)
    aggregation.hand_in(0, slot)
    aggregation.set_aside(Gradient(0, 1), 0, 0)
    slot.fill_(100.0)
    aggregation.hand_in(0, slot)
    assert aggregation.view() == PortView(0, (Gradient(0, 1),))
    aggregation.forget(0)
    aggregation.forget(0)
    aggregation.make_update(update_of(Gradient(0, 1)))
    assert aggregation.store.flat.tolist() == [-1.0, -1.0] and slot.tolist() == [100.0, 100.0]
    assert aggregation.view() == PortView(1, ())


def test_memory_that_is_lent_is_free_again_once_the_fate_of_its_gradient_is_decided() -> None:
    aggregation = Aggregation(sgd(), statistics=False, owns_memory=True)
    lent = [torch.ones(2) for _ in range(3)]
    for seat, memory in enumerate(lent):
        aggregation.hand_in(seat, memory)
    aggregation.set_aside(Gradient(1, 1), 1, 0)
    assert aggregation.free == []
    aggregation.make_update(update_of(Gradient(0, 1), Gradient(1, 1)))
    aggregation.discard(Gradient(2, 1), 2)
    assert [memory.data_ptr() for memory in aggregation.free] == [memory.data_ptr() for memory in lent]


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

"""The torch side without processes: the ledger of work, the layout of models, and the parameter store."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import nn

from paceline.core.errors import ConfigurationError
from paceline.training.data import Unit, WorkLedger, order_of
from paceline.training.layout import Layout, Segment, difference, layout_of
from paceline.training.parameters import Contribution, OptimizerSpec, ParameterStore, statistics_of

# -- the ledger --


@given(
    samples=st.integers(1, 30),
    batch=st.integers(1, 12),
    epochs=st.integers(1, 3),
    fates=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["finish", "give back", "die"])), max_size=60),
)
def test_every_sample_is_applied_once_per_epoch_whatever_happens(
    samples: int, batch: int, epochs: int, fates: list[tuple[int, str]]
) -> None:
    ledger = WorkLedger(samples, batch, epochs)
    used: dict[tuple[int, int], int] = {}
    held: dict[int, list[Unit]] = {}

    def finish(worker: int) -> None:
        unit = held[worker].pop(0)
        ledger.finish(worker)
        for position in range(unit.begin, unit.end):
            used[unit.epoch, position] = used.get((unit.epoch, position), 0) + 1

    for worker, fate in fates:
        unit = ledger.lease(worker)
        if unit is None:
            break
        held.setdefault(worker, []).append(unit)
        if fate == "finish":
            finish(worker)
        else:
            ledger.give_back(worker, 1 if fate == "give back" else None)
            held[worker] = held[worker][1:] if fate == "give back" else []
    for worker, units in held.items():
        for _ in list(units):
            finish(worker)
    while (unit := ledger.lease(9)) is not None:
        held.setdefault(9, []).append(unit)
        finish(9)
    assert ledger.complete and ledger.outstanding == 0 and ledger.returned == 0
    assert used == {(epoch, position): 1 for epoch in range(epochs) for position in range(samples)}


def test_an_epoch_is_a_permutation_that_every_process_computes_alike() -> None:
    assert torch.equal(order_of(50, 3, 1), order_of(50, 3, 1))
    assert not torch.equal(order_of(50, 3, 1), order_of(50, 3, 2))
    assert sorted(order_of(50, 3, 1).tolist()) == list(range(50))


def test_a_ledger_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="the data set is empty"):
        WorkLedger(0, 8, 1)
    with pytest.raises(ConfigurationError, match="batch_size is 0; it must be at least 1"):
        WorkLedger(5, 0, 1)


# -- the layout --


def test_a_model_lives_in_its_segment() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    before = {name: each.clone() for name, each in model.state_dict().items()}
    layout = layout_of(model)
    flat = torch.zeros(layout.segment_bytes // 4)
    segment = Segment(layout, flat)
    segment.bind(model)
    for name, each in model.state_dict().items():
        assert torch.equal(each, before[name])
    segment.parameters.fill_(0.5)
    assert all(bool((each == 0.5).all()) for each in model.parameters())
    model(torch.randn(8, 3)).sum().backward()
    assert segment.gradient.abs().sum() > 0
    assert torch.equal(segment.buffers[:2], model[1].running_mean)  # type: ignore[arg-type]


def test_models_that_cannot_be_laid_out_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="nothing to train"):
        layout_of(nn.ReLU())
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(ConfigurationError, match="parameters of float32 and float64; one type is needed"):
        layout_of(mixed)


def test_the_first_difference_between_two_models_is_named() -> None:
    one = layout_of(nn.Sequential(nn.Linear(3, 2)))
    wider = layout_of(nn.Sequential(nn.Linear(4, 2)))
    assert difference(one, wider) == "its parameter '0.weight' has shape (2, 4), not (2, 3)"
    assert difference(one, layout_of(nn.Linear(3, 2))) == "it has no parameter '0.weight'"
    longer = layout_of(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)))
    assert "it has a parameter '1.bias' that the others do not have" in difference(one, longer)
    assert "differ" in difference(one, Layout("float64", one.parameters, one.buffers))


# -- the store --


def store_of(lr_scaling: str = "linear", **arguments: float) -> ParameterStore:
    layout = layout_of(nn.Linear(2, 1, bias=False))
    spec = OptimizerSpec(torch.optim.SGD, {"lr": 1.0, **arguments}, [(["weight"], {})])
    return ParameterStore(layout, torch.zeros(2), spec, lr_scaling)


def test_an_update_is_the_mean_over_samples() -> None:
    store = store_of()
    one, three = torch.tensor([4.0, 0.0]), torch.tensor([0.0, 4.0])
    store.apply([Contribution(one, 1), Contribution(three, 3)], samples_per_round=4)
    assert store.flat.tolist() == [-1.0, -3.0] and store.version == 1


def test_weights_multiply_before_the_division_by_samples() -> None:
    store = store_of()
    gradient = torch.tensor([2.0, 2.0])
    store.apply([Contribution(gradient, 1, 0.5), Contribution(gradient, 1, 1.0)], samples_per_round=2)
    assert store.flat.tolist() == [-1.5, -1.5]


@pytest.mark.parametrize(("scaling", "expected"), [("linear", -0.25), ("sqrt", -0.5), ("none", -1.0)])
def test_the_learning_rate_follows_the_share_of_a_round(scaling: str, expected: float) -> None:
    store = store_of(scaling)
    store.apply([Contribution(torch.ones(2), 8)], samples_per_round=32)
    assert store.flat.tolist() == [expected, expected]
    assert store.optimizer.param_groups[0]["lr"] == 1.0
    store.apply([Contribution(torch.ones(2), 64)], samples_per_round=32)  # never more than a round
    assert store.flat.tolist() == [expected - 1, expected - 1]


def test_an_optimizer_that_cannot_be_made_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"SGD cannot be made: .*learning rate"):
        store_of(lr=-1.0)
    with pytest.raises(ConfigurationError, match="unknown lr_scaling 'half'; there are: linear, sqrt, none"):
        store_of("half")


def test_statistics_of_an_update_in_closed_form() -> None:
    gradients = torch.tensor([[1.0, 0.0], [3.0, 0.0], [2.0, 3.0]])
    seen = statistics_of([Contribution(each, 1, loss=float(number)) for number, each in enumerate(gradients)])
    mean = gradients.mean(0)
    assert seen.gradients == 3 and seen.loss == 1.0
    assert seen.squared_norm == pytest.approx(float(mean @ mean))
    assert seen.variance == pytest.approx(float(((gradients - mean) ** 2).sum() / 2))
    alone = statistics_of([Contribution(gradients[0], 1)])
    assert alone.variance is None and alone.loss is None and alone.squared_norm == 1.0

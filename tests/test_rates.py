"""The rates in force, without the parameters: always those of a store that is told the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from fake_link import flat_of
from sharded_stores import GROUPS, OPENED, Tensors, Update, described, script
from torch import optim
from torch.optim import lr_scheduler

from paceline.core.errors import ConfigurationError
from paceline.training.optimizers import ELEMENTWISE, OptimizerSpec
from paceline.training.parameters import ParameterStore
from paceline.training.rates import Rates, rates_of
from paceline.training.updates import Contribution

SCHEDULES: dict[str, Callable[..., Any] | None] = {
    "none": None,
    "step": partial(lr_scheduler.StepLR, step_size=1, gamma=0.5),
    "waits": lr_scheduler.CosineAnnealingLR,
    "cycle": partial(lr_scheduler.OneCycleLR, max_lr=0.5, total_steps=50),
    "plateau": partial(lr_scheduler.ReduceLROnPlateau, patience=0),
}


def spec_with(schedule: str, every: str | int = 9, kind: Any = optim.SGD, **arguments: Any) -> OptimizerSpec:
    _, spec = described(Tensors(), kind, GROUPS, lr=0.1, **arguments)
    return spec._replace(scheduler=SCHEDULES[schedule], scheduler_every=every)


def store_with(spec: OptimizerSpec) -> ParameterStore:
    model = Tensors()
    return ParameterStore(described(model, optim.SGD, lr=0.1)[0], flat_of(model), spec)


def tell(store: ParameterStore, rates: Rates, update: Update) -> None:
    flat = store.flat.clone()
    store.apply([Contribution(flat.clone(), push.samples) for push in update.pushes], update.samples_per_round)
    rates.advance([push.samples for push in update.pushes], update.samples_per_round)
    if store.wants_figures:
        for one in (store, rates):
            figure = one.figure_of({"loss": 1.0, "accuracy": 0.5})
            assert figure is not None
            one.feed(figure.value)


def assert_the_same(store: ParameterStore, rates: Rates) -> None:
    assert (rates.version, rates.samples, rates.epoch_samples) == (store.version, store.samples, store.epoch_samples)
    assert (rates.rates, rates.learning_rate) == (store.rates, store.learning_rate)
    assert rates.wants_figures == store.wants_figures
    known = store.state()
    assert rates.state() == {name: known[name] for name in rates.state()}


@pytest.mark.parametrize(
    ("schedule", "every"),
    [
        *((schedule, every) for schedule in SCHEDULES for every in ("epoch", "round", 9)),
        *((schedule, "step") for schedule in SCHEDULES if schedule != "waits"),  # nobody knows how many there will be
    ],
)
def test_the_rates_are_those_of_a_store_that_is_told_the_same(schedule: str, every: str | int) -> None:
    spec = spec_with(schedule, every, momentum=0.9)
    store, rates = store_with(spec), rates_of(spec)
    assert_the_same(store, rates)
    store.open(OPENED)
    rates.open(OPENED)
    updates = script(12)
    for update in updates[:6]:
        tell(store, rates, update)
        assert_the_same(store, rates)
    again, resumed = store_with(spec), rates_of(spec)
    state = store.state()
    again.resume(store.flat, state)
    resumed.resume(state)
    assert resumed.rates == rates.rates
    for update in updates[6:]:
        tell(again, resumed, update)
        assert_the_same(again, resumed)
    assert schedule == "none" or again.learning_rate != pytest.approx(0.1)


def test_the_rates_are_another_object_only_if_they_change() -> None:
    rates = rates_of(spec_with("step", 10))
    first = rates.rates
    rates.advance([4, 4], 8)
    assert rates.rates is first
    rates.advance([4], 8)
    assert rates.rates is not first and rates.rates == tuple(rate / 2 for rate in first)


@pytest.mark.parametrize("kind", [*ELEMENTWISE, optim.Adafactor, optim.Muon], ids=lambda kind: kind.__name__)
def test_every_optimizer_has_rates_without_parameters(kind: Any) -> None:
    rates = rates_of(spec_with("step", 4, kind))
    rates.advance([4], 4)
    assert rates.learning_rate == pytest.approx(0.05) and len(rates.rates) == 3


def test_a_schedule_that_must_know_the_work_says_so() -> None:
    rates = rates_of(spec_with("waits"))
    with pytest.raises(ConfigurationError, match="T_max is filled in with"):
        rates.advance([4], 4)

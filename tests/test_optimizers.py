"""The optimizer on the server: exactly torch's, whatever the parameters look like there, and schedules by samples."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
from fake_link import flat_of
from torch import Tensor, nn
from torch.optim import lr_scheduler

from paceline.core.errors import ConfigurationError
from paceline.training import pieces
from paceline.training.layout import layout_of, views
from paceline.training.optimizers import ELEMENTWISE, OptimizerSpec, spec_of
from paceline.training.parameters import ParameterStore
from paceline.training.updates import Contribution

STEPS = 20


class OddSizes(nn.Module):
    """No size is a multiple of what a processor works on at once, so every stretch has a rest."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        for number, shape in enumerate([(7, 5), (13,), (), (3, 3, 3), (129, 17), (31,), (0, 2), (1, 1)]):
            self.register_parameter(f"p{number}", nn.Parameter(torch.randn(shape, generator=generator)))


def spec_for(
    model: nn.Module, kind: type[torch.optim.Optimizer], groups: list[dict[str, Any]] | None = None, **arguments: Any
) -> OptimizerSpec:
    names = {id(each): name for name, each in model.named_parameters()}
    return spec_of(layout_of(model), names, kind, groups, arguments)


def gradients(model: nn.Module, steps: int = STEPS) -> Iterable[Tensor]:
    generator = torch.Generator().manual_seed(2)
    size = flat_of(model).numel()
    for _ in range(steps):
        yield torch.randn(size, generator=generator).to(flat_of(model).dtype)


def train_both(model: nn.Module, spec: OptimizerSpec, plain: torch.optim.Optimizer) -> ParameterStore:
    """The same gradients for the store and for an optimizer of the model itself."""
    layout = layout_of(model)
    store = ParameterStore(layout, flat_of(model), spec)
    for gradient in gradients(model):
        for name, each in views(gradient.clone(), layout.parameters).items():
            model.get_parameter(name).grad = each.clone()
        plain.step()
        store.apply([Contribution(gradient, 4)], samples_per_round=4)
    return store


O = torch.optim  # noqa: E741
CASES: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (O.SGD, {"lr": 0.1}),
    "sgd maximize": (O.SGD, {"lr": 0.1, "maximize": True}),
    "momentum": (O.SGD, {"lr": 0.1, "momentum": 0.9}),
    "nesterov": (O.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "weight decay": (O.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "dampening": 0.3}),
    "momentum foreach": (O.SGD, {"lr": 0.1, "momentum": 0.9, "foreach": True}),
    "momentum fused": (O.SGD, {"lr": 0.1, "momentum": 0.9, "fused": True}),
    "adam": (O.Adam, {"lr": 0.01}),
    "adam foreach": (O.Adam, {"lr": 0.01, "foreach": True}),
    "adam fused": (O.Adam, {"lr": 0.01, "fused": True}),
    "amsgrad": (O.Adam, {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1}),
    "adamw": (O.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "adamax": (O.Adamax, {"lr": 0.01}),
    "nadam": (O.NAdam, {"lr": 0.01}),
    "radam": (O.RAdam, {"lr": 0.1}),
    "rmsprop": (O.RMSprop, {"lr": 0.01}),
    "rmsprop centered": (O.RMSprop, {"lr": 0.01, "centered": True, "momentum": 0.9}),
    "adagrad": (O.Adagrad, {"lr": 0.1}),
    "adadelta": (O.Adadelta, {"lr": 0.5}),
    "rprop": (O.Rprop, {"lr": 0.01}),
    "asgd": (O.ASGD, {"lr": 0.01}),
}


@pytest.mark.parametrize("longest", [pieces.LONGEST, 100])
@pytest.mark.parametrize("case", CASES)
def test_the_store_does_what_torch_does_tensor_by_tensor_bit_for_bit(
    case: str, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "LONGEST", longest)
    kind, arguments = CASES[case]
    model = OddSizes()
    store = train_both(model, spec_for(model, kind, **arguments), kind(list(model.parameters()), **arguments))
    assert torch.equal(store.flat, flat_of(model))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", ["sgd", "weight decay", "rmsprop centered", "adam"])
def test_numbers_of_any_length_are_treated_as_torch_treats_them(case: str, dtype: torch.dtype) -> None:
    kind, arguments = CASES[case]
    model = OddSizes().to(dtype)
    store = train_both(model, spec_for(model, kind, **arguments), kind(list(model.parameters()), **arguments))
    assert store.flat.dtype == dtype and torch.equal(store.flat, flat_of(model))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_an_optimizer_goes_on_bit_for_bit_with_numbers_of_any_length(case: str, dtype: torch.dtype) -> None:
    kind, arguments = CASES[case]
    model = OddSizes().to(dtype)
    stores = [ParameterStore(layout_of(model), flat_of(model), spec_for(model, kind, **arguments)) for _ in range(2)]
    for number, gradient in enumerate(gradients(model, steps=8)):
        if number == 4:
            stores[1].resume(stores[0].flat, copy.deepcopy(stores[0].state()))
        for store in stores if number >= 4 else stores[:1]:
            store.apply([Contribution(gradient.clone(), 4)], samples_per_round=4)
    assert torch.equal(*(store.flat for store in stores))


def test_what_an_optimizer_remembers_of_no_tensor_survives_a_parameter_without_a_gradient() -> None:
    class Counts(torch.optim.SGD):
        def step(self, closure: None = None) -> None:  # type: ignore[override]
            self.state["steps"] = (self.state["steps"] or 0) + 1  # type: ignore[index, operator]
            super().step()

    model = OddSizes()
    store = ParameterStore(layout_of(model), flat_of(model), spec_for(model, Counts, lr=0.1))
    for number, gradient in enumerate(gradients(model, steps=3)):
        store.apply([Contribution(gradient, 4, absent=(0,) if number == 2 else ())], samples_per_round=4)
    assert store.optimizer.state["steps"] == 3  # type: ignore[index]


def test_every_optimizer_that_is_given_flat_parameters_is_compared_with_torch() -> None:
    assert {kind for kind, _ in CASES.values()} == set(ELEMENTWISE)


def test_an_elementwise_optimizer_sees_neighbours_of_one_group_as_one_tensor() -> None:
    model = OddSizes()
    store = ParameterStore(layout_of(model), flat_of(model), spec_for(model, O.SGD, lr=0.1))
    (group,) = store.optimizer.param_groups
    assert [each.shape for each in group["params"]] == [(flat_of(model).numel(),)]


@pytest.mark.parametrize("longest", [1, 13, 100, 2000, 10_000])
def test_long_stretches_are_cut_wherever_parameters_begin_and_each_is_known_by_those_in_it(
    longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "LONGEST", longest)
    model = OddSizes()
    sizes = [each.numel() for each in model.parameters()]
    found = pieces.pieces_of(layout_of(model), spec_for(model, O.AdamW, lr=0.1))
    assert [piece.begin for piece in found] == [0, *(piece.end for piece in found[:-1])]
    assert found[-1].end == sum(sizes) and max(piece.size for piece in found) <= longest
    for number, size in enumerate(sizes):
        begin = sum(sizes[:number])
        inside = [piece for piece in found if number in piece.numbers]
        assert sum(min(piece.end, begin + size) - max(piece.begin, begin) for piece in inside) == size
        assert inside and all(piece.begin < begin + size and piece.end > begin for piece in inside if size)


@pytest.mark.parametrize("longest", [7, 100])
def test_what_is_known_of_stretches_goes_out_and_comes_in_by_parameters(
    longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "LONGEST", longest)
    model = OddSizes()
    plain = O.AdamW(list(model.parameters()), lr=0.01)
    spec = spec_for(model, O.AdamW, lr=0.01)
    store = train_both(model, spec, plain)
    state, theirs = store.optimizer_state(), plain.state_dict()
    for number, known in theirs["state"].items():
        assert all(torch.equal(state["state"][number][name], value) for name, value in known.items())
    began = ParameterStore(layout_of(model), store.flat, spec._replace(state=theirs))
    resumed = ParameterStore(layout_of(model), flat_of(OddSizes()), spec)
    resumed.resume(store.flat, copy.deepcopy(store.state()))
    others = [store, began, resumed]
    for gradient in gradients(model, 5):
        for each in others:
            each.apply([Contribution(gradient.clone(), 4)], samples_per_round=4)
    for each in others:  # from here on one parameter has no gradient: they are told apart
        each.apply([Contribution(gradient.clone(), 4, absent=(4,))], samples_per_round=4)
    assert torch.equal(store.flat, began.flat) and torch.equal(store.flat, resumed.flat)


def test_the_size_of_a_step_is_looked_at_all_over_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = OddSizes()
    sizes = []
    for longest in (10_000, 100):
        monkeypatch.setattr(pieces, "LONGEST", longest)
        store = ParameterStore(layout_of(model), flat_of(model), spec_for(model, O.AdamW, lr=0.01))
        assert store.step_size is None
        scale = torch.linspace(0.01, 10, store.flat.numel())
        for gradient in gradients(model):
            store.apply([Contribution(gradient * scale, 4)], samples_per_round=4)
        sizes.append(store.step_size)
    assert sizes[0] == pytest.approx(sizes[1], rel=0.05)


class NormalizedSGD(torch.optim.Optimizer):
    """Divides each tensor's gradient by that tensor's own norm: it must see the real tensors."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for each in group["params"]:
                each.sub_(group["lr"] * each.grad / (each.grad.norm() + 1e-9))


def test_any_other_optimizer_sees_the_real_shapes() -> None:
    model = OddSizes()
    store = train_both(model, spec_for(model, NormalizedSGD, lr=0.1), NormalizedSGD(list(model.parameters()), 0.1))
    shapes = [each.shape for each in store.optimizer.param_groups[0]["params"]]
    assert shapes == [each.shape for each in model.parameters()]
    assert torch.equal(store.flat, flat_of(model))


def test_a_subclass_of_an_elementwise_optimizer_may_do_anything_and_sees_the_real_shapes() -> None:
    class Watching(torch.optim.SGD):
        pass

    model = OddSizes()
    store = ParameterStore(layout_of(model), flat_of(model), spec_for(model, Watching, lr=0.1))
    assert len(store.optimizer.param_groups[0]["params"]) == len(list(model.parameters()))


def test_an_optimizer_without_a_learning_rate_is_refused_with_a_sentence() -> None:
    class Fixed(torch.optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {})

    model = nn.Linear(2, 2)
    with pytest.raises(ConfigurationError, match="Fixed has no learning rate"):
        ParameterStore(layout_of(model), flat_of(model), spec_for(model, Fixed))


# -- parameter groups --


def test_groups_have_their_own_learning_rate_wherever_their_parameters_lie() -> None:
    model = OddSizes()
    p = dict(model.named_parameters())
    groups: list[dict[str, Any]] = [
        {"params": (p[name] for name in ("p0", "p3", "p4")), "lr": 0.5, "momentum": 0.0},
        {"params": [p["p1"], p["p2"], p["p5"], p["p6"]]},
        {"params": p["p7"], "weight_decay": 0.1},
    ]
    spec = spec_for(model, O.SGD, groups, lr=0.1, momentum=0.9)
    assert [names for names, _ in spec.groups] == [["p0", "p3", "p4"], ["p1", "p2", "p5", "p6"], ["p7"]]
    groups[0]["params"] = [p["p0"], p["p3"], p["p4"]]
    store = train_both(model, spec, O.SGD(groups, lr=0.1, momentum=0.9))
    assert torch.equal(store.flat, flat_of(model))
    assert [group["lr"] for group in store.optimizer.param_groups] == [0.5, 0.1, 0.1]
    assert store.learning_rate == 0.5


def test_a_small_update_scales_the_rate_of_every_group() -> None:
    model = nn.Linear(1, 1)
    groups = [{"params": [model.weight], "lr": 0.5}, {"params": [model.bias]}]
    store = ParameterStore(layout_of(model), torch.zeros(2), spec_for(model, O.SGD, groups, lr=4.0))
    store.apply([Contribution(torch.ones(2), 2)], samples_per_round=8)
    assert store.flat.tolist() == [-0.125, -1.0]
    assert [group["lr"] for group in store.optimizer.param_groups] == [0.5, 4.0]


def test_parameters_in_no_group_are_left_alone_and_frozen_ones_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    model[1].requires_grad_(False)
    spec = spec_for(model, O.SGD, [{"params": [model[0].bias, model[1].weight]}], lr=1.0)
    assert spec.groups == [(["0.bias"], {})]
    store = ParameterStore(layout_of(model), torch.zeros(2), spec)
    store.apply([Contribution(torch.ones(2), 1)], samples_per_round=1)
    assert store.flat.tolist() == [0.0, -1.0]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (lambda model: [{"lr": 0.1}], "parameter group 0 has no 'params'"),
        (lambda model: [{"params": [nn.Parameter(torch.zeros(2))]}], "parameter group 0 has a parameter that is not"),
        (lambda model: [{"params": [model.weight]}, {"params": ["bias"]}], "parameter group 1 has a parameter that is"),
        (lambda model: list(model.parameters()), "group 0 .*(dict|params)"),
        (lambda model: [{"params": [model.weight]}, {"params": [model.weight, model.bias]}], "'weight'.* groups"),
        (lambda model: [{"params": [model.weight, model.weight]}], "'weight'.* group"),
    ],
)
def test_groups_that_make_no_sense_are_refused(groups: Callable[[nn.Module], Any], message: str) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(ConfigurationError, match=message):
        ParameterStore(layout_of(model), flat_of(model), spec_for(model, O.SGD, groups(model), lr=0.1))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1), "is no optimizer class: give the class and its arg"),
        (partial(torch.optim.SGD, lr=0.1), "is no optimizer class"),
        ("sgd", "'sgd' is no optimizer class"),
        (nn.Linear, "is no optimizer class"),
        (torch.optim.LBFGS, "LBFGS computes gradients itself"),
    ],
)
def test_what_cannot_be_an_optimizer_on_a_server_is_refused(kind: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        spec_for(nn.Linear(2, 2), kind)


# -- schedules --

ScheduleOf = Callable[[torch.optim.Optimizer], Any]

SCHEDULES: dict[str, ScheduleOf] = {
    "StepLR": partial(lr_scheduler.StepLR, step_size=2, gamma=0.5),
    "CosineAnnealingLR": partial(lr_scheduler.CosineAnnealingLR, T_max=8),
    "OneCycleLR": partial(lr_scheduler.OneCycleLR, max_lr=1.0, total_steps=9),
    "LambdaLR": partial(lr_scheduler.LambdaLR, lr_lambda=lambda step: 1 / (1 + step)),
    "ExponentialLR": partial(lr_scheduler.ExponentialLR, gamma=0.9),
}


def scheduled(schedule: ScheduleOf | None, every: int | None = None) -> ParameterStore:
    model = nn.Linear(2, 1, bias=False)
    spec = spec_for(model, O.SGD, lr=0.4, momentum=0.9)
    return ParameterStore(layout_of(model), torch.zeros(2), spec._replace(scheduler=schedule, scheduler_every=every))


def rates_of_torch(schedule: ScheduleOf, steps: int) -> list[float]:
    """What the schedule makes of the learning rate, step by step."""
    optimizer = O.SGD([nn.Parameter(torch.zeros(1))], lr=0.4, momentum=0.9)
    scheduler = schedule(optimizer)
    rates = [optimizer.param_groups[0]["lr"]]
    for _ in range(steps):
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(
    "sizes", [[10] * 8, [3] * 27, [1, 25, 4, 30, 20], [80]], ids=["even", "small", "uneven", "one"]
)
def test_a_schedule_counts_samples_whatever_the_size_of_updates(name: str, sizes: list[int]) -> None:
    rates = rates_of_torch(SCHEDULES[name], 8)
    store = scheduled(SCHEDULES[name], every=10)
    seen = 0
    assert store.learning_rate == rates[0]
    for size in sizes:
        store.apply([Contribution(torch.ones(2), size)], samples_per_round=40)
        seen += size
        assert store.samples == seen
        assert store.learning_rate == store.optimizer.param_groups[0]["lr"] == pytest.approx(rates[seen // 10])


def test_without_a_word_on_it_a_schedule_steps_once_per_epoch() -> None:
    store = scheduled(partial(lr_scheduler.StepLR, step_size=1, gamma=0.5))
    store.epoch_samples = 100
    rates = []
    for _ in range(5):
        store.apply([Contribution(torch.ones(2), 50)], samples_per_round=50)
        rates.append(store.learning_rate)
    assert rates == pytest.approx([0.4, 0.2, 0.2, 0.1, 0.1])


def test_a_schedule_that_cannot_know_how_long_an_epoch_is_is_refused() -> None:
    store = scheduled(SCHEDULES["StepLR"])
    with pytest.raises(ConfigurationError, match="with batches of your own give scheduler_every, in samples"):
        store.apply([Contribution(torch.ones(2), 1)], samples_per_round=1)


@pytest.mark.parametrize(
    ("schedule", "every", "message"),
    [
        (lr_scheduler.StepLR, 10, "the scheduler cannot be made: .*step_size"),
        (
            partial(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=0),
            10,
            "the scheduler cannot be made: .*total_steps",
        ),
        (SCHEDULES["StepLR"], 0, "scheduler_every is 0; it must be at least 1 sample"),
        (SCHEDULES["StepLR"], "year", "scheduler_every is 'year'; it may be 'epoch', 'round', 'step' or samples"),
    ],
)
def test_schedules_that_make_no_sense_are_refused(schedule: ScheduleOf, every: int | str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        scheduled(schedule, every)


def test_a_schedule_that_is_used_up_says_so_in_a_sentence() -> None:
    store = scheduled(partial(lr_scheduler.OneCycleLR, max_lr=1.0, total_steps=2), every=10)
    with pytest.raises(ConfigurationError, match="scheduler"):
        store.apply([Contribution(torch.ones(2), 50)], samples_per_round=50)


def test_a_schedule_never_complains_about_the_order_of_steps() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store = scheduled(SCHEDULES["CosineAnnealingLR"], every=1)
        store.apply([Contribution(torch.ones(2), 5)], samples_per_round=10)

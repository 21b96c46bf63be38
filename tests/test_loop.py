"""A loop that does what plain PyTorch loops do comes to the same bits, and what cannot work is told in a sentence."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fake_link import FakeLink, flat_of
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from paceline.core.errors import ConfigurationError, PacelineError
from paceline.core.messages import DataOpened
from paceline.lifecycle.work import Limit
from paceline.training.choices import UpdateOptions
from paceline.training.data import order_of
from paceline.training.layout import layout_of
from paceline.training.optimizers import OptimizerSpec, spec_difference, spec_of
from paceline.training.parameters import ParameterStore
from paceline.training.remote_optimizer import GradientError, RemoteOptimizer
from paceline.training.updates import Contribution
from paceline.training.worker import Worker

SAMPLES, BATCH, EPOCHS = 22, 4, 3
ROUNDS = 6 * EPOCHS  # the last batch of an epoch has 2 samples


def data() -> TensorDataset:
    x = torch.randn(SAMPLES, 3, generator=torch.Generator().manual_seed(8))
    return TensorDataset(x, (x.sum(1) > 0).long())


def worker_of(link: FakeLink, index: int = 0, **options: Any) -> Worker:
    return Worker(index, link, seed=0, epochs=link.epochs, **options)


class Branches(nn.Module):
    """Of three heads one is used at a time."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.body = nn.Linear(3, 4)
        self.heads = nn.ModuleList(nn.Linear(4, 2) for _ in range(3))

    def forward(self, x: Tensor, head: int = 0) -> Tensor:
        found: Tensor = self.heads[head](torch.tanh(self.body(x)))
        return found


def net() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def batches_of_all_epochs() -> list[Tensor]:
    return [indices for epoch in range(EPOCHS) for indices in order_of(SAMPLES, 0, epoch).split(BATCH)]


# -- schedules --


def warm_up_and_cosine(optimizer: optim.Optimizer, total_steps: int) -> lr_scheduler.LRScheduler:
    warm_up = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)
    cosine = lr_scheduler.CosineAnnealingLR(optimizer, total_steps - 4)
    return lr_scheduler.SequentialLR(optimizer, [warm_up, cosine], milestones=[4])


FILLED_IN: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
    (partial(lr_scheduler.OneCycleLR, max_lr=0.2), partial(lr_scheduler.OneCycleLR, max_lr=0.2, total_steps=ROUNDS)),
    (lr_scheduler.CosineAnnealingLR, partial(lr_scheduler.CosineAnnealingLR, T_max=ROUNDS)),
    (warm_up_and_cosine, partial(warm_up_and_cosine, total_steps=ROUNDS)),
    (partial(lr_scheduler.StepLR, step_size=5), partial(lr_scheduler.StepLR, step_size=5)),
]


@pytest.mark.parametrize(("schedule", "plain_schedule"), FILLED_IN)
def test_a_schedule_per_round_is_that_of_a_plain_loop_bit_for_bit_and_its_rate_is_shown(
    schedule: Callable[..., Any], plain_schedule: Callable[..., Any]
) -> None:
    model, same = net(), net()
    worker = worker_of(FakeLink(epochs=EPOCHS))
    optimizer = worker.optimizer(model, optim.AdamW, lr=0.1, scheduler=schedule, scheduler_every="round")
    plain = optim.AdamW(same.parameters(), lr=0.1)
    plain_scheduler = plain_schedule(plain)
    x, y = data().tensors
    mine = worker.batches(data(), BATCH)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # SequentialLR steps before the optimizer does
        for number, indices in enumerate(batches_of_all_epochs()):
            next(mine)
            assert worker.epoch == number // 6
            assert optimizer.param_groups[0]["lr"] == plain.param_groups[0]["lr"]
            for each, algorithm in ((model, optimizer), (same, plain)):
                algorithm.zero_grad()
                F.cross_entropy(each(x[indices]), y[indices]).backward()
                algorithm.step()
            plain_scheduler.step()
    assert next(mine, None) is None
    assert torch.equal(flat_of(model), flat_of(same))


def scheduled(schedule: Callable[..., Any], every: int | str | None, **options: Any) -> ParameterStore:
    model = nn.Linear(2, 1, bias=False)
    spec = OptimizerSpec(optim.SGD, {"lr": 0.4}, [(["weight"], {})], schedule, every)
    return ParameterStore(layout_of(model), torch.zeros(2), spec, UpdateOptions("linear", **options))


def rates_of(store: ParameterStore, updates: int, samples: int, per_round: float) -> list[float]:
    found = []
    for _ in range(updates):
        store.apply([Contribution(torch.ones(2), samples, pulled=torch.zeros(2))], per_round)
        found.append(store.learning_rate)
    return found


@pytest.mark.parametrize("may_be_stale", [False, True])
def test_a_round_is_as_many_updates_as_make_one_up(may_be_stale: bool) -> None:
    store = scheduled(partial(lr_scheduler.StepLR, step_size=1, gamma=0.5), "round", may_be_stale=may_be_stale)
    assert rates_of(store, 6, 8, 24.0) == [0.4, 0.4, 0.2, 0.2, 0.2, 0.1]


@pytest.mark.parametrize(("every", "steps"), [("epoch", 3), (None, 3), (10, 5), ("round", 4)])
@pytest.mark.parametrize("may_be_stale", [False, True])
def test_how_many_steps_there_are_is_filled_in_whatever_they_count(
    every: int | str | None, steps: int, may_be_stale: bool
) -> None:
    seen = []

    def note(optimizer: optim.Optimizer, total_steps: int) -> lr_scheduler.LRScheduler:
        seen.append(total_steps)
        return lr_scheduler.ConstantLR(optimizer, 0.5, total_iters=99)

    store = scheduled(note, every, may_be_stale=may_be_stale)
    with pytest.raises(ConfigurationError, match="total_steps is filled in with worker"):
        store.apply([Contribution(torch.ones(2), 1, pulled=torch.zeros(2))], 1)
    store.open(DataOpened(20, None, total=50, rounds=4))
    store.open(DataOpened(20, None, total=50, rounds=4))
    assert seen == [steps] and store.learning_rate == 0.2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rates_of(store, 3, 20, 20)


def test_a_state_to_begin_with_stands_for_its_steps_where_updates_are_parts_of_a_round() -> None:
    model = nn.Linear(2, 1, bias=False)
    plain = optim.Adam(model.parameters(), lr=0.1)
    for _ in range(10):
        model.weight.grad = torch.ones_like(model.weight)
        plain.step()
    layout = layout_of(model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    spec = spec_of(layout, names, optim.Adam, None, {"lr": 0.1})._replace(state=plain.state_dict())
    store = ParameterStore(layout, model.weight.detach().flatten().clone(), spec)
    store.apply([Contribution(torch.ones(2), 1)], 2)
    assert store.optimizer_state()["state"][0]["step"].item() == pytest.approx(2 * 10.5)  # of half a round each


def test_a_schedule_that_was_filled_in_stays_where_it_ended() -> None:
    store = scheduled(lr_scheduler.CosineAnnealingLR, "round")
    store.open(DataOpened(20, None, total=40, rounds=2))
    rates = rates_of(store, 5, 20, 20)
    assert rates[1:] == pytest.approx([0.0] * 4, abs=1e-12)


def test_of_a_run_without_an_end_in_sight_nothing_can_be_filled_in() -> None:
    store = scheduled(lr_scheduler.CosineAnnealingLR, "round")
    with pytest.raises(
        ConfigurationError, match=r"T_max cannot be filled in.*limit the run by epochs, steps or samples"
    ):
        store.open(DataOpened(20, None))
    store = scheduled(lr_scheduler.CosineAnnealingLR, 10)
    with pytest.raises(ConfigurationError, match="T_max cannot be filled in"):
        store.open(DataOpened(20, None))


@pytest.mark.parametrize("opened", [False, True])
def test_a_schedule_goes_on_where_it_was(opened: bool) -> None:
    make = partial(lr_scheduler.OneCycleLR, max_lr=0.2)
    first, second = scheduled(make, "round"), scheduled(make, "round")
    if opened:
        first.open(DataOpened(20, 1, total=400, rounds=20))
        rates_of(first, 7, 10, 20)
    second.resume(first.flat, copy.deepcopy(first.state()))
    assert second.rates == first.rates
    for store in (first, second):
        store.open(DataOpened(20, 1, total=400, rounds=20))
    assert rates_of(second, 9, 10, 20) == rates_of(first, 9, 10, 20)


@pytest.mark.parametrize(
    ("mode", "figures", "name"),
    [
        ("min", {"accuracy": 0.5, "loss": 2.0}, "loss"),
        ("max", {"loss": 2.0, "accuracy": 0.5}, "accuracy"),
        ("max", {"loss": 2.0, "metric": 0.5}, "metric"),
        ("min", {"error": 0.5, "other": 1.0}, "error"),
    ],
)
def test_a_plateau_is_seen_in_what_evaluations_find(mode: str, figures: dict[str, float], name: str) -> None:
    store = scheduled(partial(lr_scheduler.ReduceLROnPlateau, mode=mode, patience=0, factor=0.5), None)
    assert store.wants_figures
    figure = store.figure_of(figures)
    assert figure == (name, figures[name]) and store.figure_of({}) is None
    rates_of(store, 3, 1, 1)
    for _ in range(2):
        store.feed(figure.value)
    assert store.rates == (0.2,)


# -- parameters without a gradient --


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
        (optim.AdamW, {"lr": 0.02}),
        (optim.Adagrad, {"lr": 0.1}),
        (optim.Adafactor, {"lr": 0.1}),
    ],
)
@pytest.mark.parametrize("heads", [[0, 1, 0, 2, 2, 1, 0], [-1, -1, 0, 2, -1, 1]])
def test_a_parameter_without_a_gradient_is_left_as_it_is_bit_for_bit(
    kind: type[optim.Optimizer], options: dict[str, Any], heads: list[int]
) -> None:
    model, same = Branches(), Branches()
    link = FakeLink()
    optimizer = worker_of(link).optimizer(model, kind, **options)
    plain = kind(same.parameters(), **options)  # type: ignore[call-arg]
    for number, head in enumerate(heads):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(number))
        for each, algorithm in ((model, optimizer), (same, plain)):
            algorithm.zero_grad()
            chosen = range(3) if head < 0 else [head]
            torch.stack([each(x, one).square().sum() for one in chosen]).sum().backward()
            algorithm.step()
        assert torch.equal(flat_of(model), flat_of(same))
    assert_same_tree(optimizer.state_dict(), plain.state_dict())


def assert_same_tree(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert_same_tree(value, other[key])
    elif isinstance(one, Tensor):
        assert torch.equal(one, other) and one.dtype == other.dtype
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            assert_same_tree(mine, theirs)
    else:
        assert one == other


def two_parameters(stale: bool = False) -> ParameterStore:
    model = nn.Linear(2, 1)
    spec = OptimizerSpec(optim.SGD, {"lr": 1.0, "momentum": 0.5}, [(["weight", "bias"], {})])
    return ParameterStore(layout_of(model), torch.ones(3), spec, UpdateOptions("linear", may_be_stale=stale))


def test_where_some_have_no_gradient_the_mean_is_over_all_samples() -> None:
    store = two_parameters()
    absent = Contribution(torch.tensor([2.0, 2.0, 0.0]), 3, absent=(1,))
    there = Contribution(torch.tensor([2.0, 2.0, 4.0]), 1)
    store.apply([absent, there], 4)
    assert store.flat.tolist() == [-1.0, -1.0, 0.0]  # as DistributedDataParallel with find_unused_parameters
    store.apply([absent._replace(gradient=torch.zeros(3)), absent._replace(gradient=torch.zeros(3))], 4)
    assert store.flat.tolist() == [-2.0, -2.0, 0.0]  # nobody has it: not even its momentum moves it


def test_a_correction_leaves_what_nobody_has_a_gradient_of() -> None:
    store = two_parameters(stale=True)
    assert store.corrects
    pulled = store.flat.clone()
    store.apply([Contribution(torch.ones(3), 1, pulled=pulled)], 1)
    before = store.flat.clone()
    store.apply([Contribution(torch.tensor([1.0, 1.0, 0.0]), 1, pulled=before.clone(), absent=(1,))], 1)
    assert store.flat[2] == before[2] and store.flat[0] != before[0]


def test_an_optimizer_that_tells_parameters_apart_goes_on_where_it_was() -> None:
    first, second = two_parameters(), two_parameters()
    first.apply([Contribution(torch.ones(3), 1)], 1)
    first.apply([Contribution(torch.tensor([1.0, 1.0, 0.0]), 1, absent=(1,))], 1)
    second.resume(first.flat, copy.deepcopy(first.state()))
    for store in (first, second):
        store.apply([Contribution(torch.ones(3), 1)], 1)
    assert torch.equal(first.flat, second.flat)


# -- several types --


def mixed() -> nn.Module:
    torch.manual_seed(3)
    return nn.ModuleDict(
        {"a": nn.Linear(3, 4).double(), "b": nn.Linear(4, 4).bfloat16(), "c": nn.Linear(4, 2), "d": nn.Linear(2, 2)}
    )


def run_mixed(model: Any, x: Tensor) -> Tensor:
    hidden = torch.tanh(model["a"](x.double()))
    hidden = torch.tanh(model["b"](hidden.bfloat16()))
    found: Tensor = model["d"](torch.tanh(model["c"](hidden.float())))
    return found


@pytest.mark.parametrize(
    ("kind", "options"),
    [(optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}), (optim.AdamW, {"lr": 0.02})],
)
def test_parameters_of_several_types_are_trained_each_in_its_own_bit_for_bit(
    kind: type[optim.Optimizer], options: dict[str, Any]
) -> None:
    model, same = mixed(), mixed()
    link = FakeLink(epochs=2)
    worker = worker_of(link)
    optimizer = worker.optimizer(model, kind, **options)
    plain = kind(same.parameters(), **options)  # type: ignore[call-arg]
    for x, y in worker.batches(data(), BATCH):
        for each, algorithm in ((model, optimizer), (same, plain)):
            algorithm.zero_grad()
            F.cross_entropy(run_mixed(each, x), y).backward()
            algorithm.step()
        for mine, theirs in zip(model.parameters(), same.parameters(), strict=True):
            assert mine.dtype == theirs.dtype and torch.equal(mine, theirs)
    assert link.store.flat.dtype == torch.float64
    assert_same_tree(dict(link.store.parameters), {name: p.detach() for name, p in same.named_parameters()})
    assert_same_tree(link.segment.state(), dict(same.state_dict()))
    assert_same_tree(optimizer.state_dict(), plain.state_dict())
    again = ParameterStore(link.store.layout, link.store.flat.clone().zero_(), link.spec)
    again.resume(link.store.flat, copy.deepcopy(link.store.state()))
    for store in (again, link.store):
        store.apply([Contribution(torch.ones_like(store.flat), 1)], 1)
    assert torch.equal(again.flat, link.store.flat)


def test_several_types_are_not_corrected_and_that_is_said() -> None:
    model = mixed()
    layout = layout_of(model)
    names = [entry.name for entry in layout.parameters]
    spec = OptimizerSpec(optim.SGD, {"lr": 0.1}, [(names, {})])
    flat = torch.zeros(layout.parameter_count, dtype=layout.dtype)
    store = ParameterStore(layout, flat, spec, UpdateOptions(may_be_stale=True))
    assert store.rule.why == "parameters of several types cannot be corrected; those of one can"


# -- the optimizer's state --


def train_a_little(model: nn.Module, optimizer: Any, steps: int) -> None:
    for number in range(steps):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(number))
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()


def test_the_state_is_what_torch_would_have_and_another_optimizer_may_begin_with_it() -> None:
    model, same = net(), net()
    first = worker_of(FakeLink()).optimizer(
        model, optim.AdamW, groups=[{"params": model[2].parameters(), "lr": 0.5}, {"params": model[0].parameters()}]
    )
    plain = optim.AdamW([{"params": same[2].parameters(), "lr": 0.5}, {"params": same[0].parameters()}])
    train_a_little(model, first, 3)
    train_a_little(same, plain, 3)
    state = first.state_dict()
    assert_same_tree(state, plain.state_dict())
    further, theirs = net(), net()
    second = worker_of(FakeLink()).optimizer(
        further,
        optim.AdamW,
        groups=[{"params": further[2].parameters(), "lr": 0.5}, {"params": further[0].parameters()}],
        state=state,
    )
    plain = optim.AdamW([{"params": theirs[2].parameters(), "lr": 0.5}, {"params": theirs[0].parameters()}])
    plain.load_state_dict(state)
    train_a_little(further, second, 3)
    train_a_little(theirs, plain, 3)
    assert torch.equal(flat_of(further), flat_of(theirs))


def test_a_state_that_knows_different_things_of_parameters_tells_them_apart() -> None:
    plain_model, model = Branches(), Branches()
    plain = optim.Adam(plain_model.parameters(), lr=0.01)
    train_a_little(plain_model, plain, 2)  # two of three heads were never used
    model.load_state_dict(plain_model.state_dict())
    optimizer = worker_of(FakeLink()).optimizer(model, optim.Adam, lr=0.01, state=plain.state_dict())
    train_a_little(plain_model, plain, 2)
    train_a_little(model, optimizer, 2)
    assert torch.equal(flat_of(model), flat_of(plain_model))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"weights": 1}, r"worker.optimizer\(state=...\) takes the state_dict\(\) of an optimizer"),
        ({"state": {7: {}}}, "the optimizer's state is of 1 parameters, and the model trains 4"),
        (
            {"state": {number: {"momentum_buffer": torch.zeros(2)} for number in range(4)}},
            r"another model: 'momentum_buffer' of '0.weight' has shape \(2,\), not \(5, 3\)",
        ),
    ],
)
def test_a_state_of_something_else_is_refused(state: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        worker_of(FakeLink()).optimizer(net(), optim.SGD, lr=0.1, momentum=0.9, state=state)


def test_a_state_is_refused_where_every_worker_has_moments_of_its_own() -> None:
    spec = OptimizerSpec(optim.SGD, {"lr": 1.0}, [(["weight"], {})], state={"state": {}})
    with pytest.raises(ConfigurationError, match="not possible where stale gradients are corrected"):
        ParameterStore(layout_of(nn.Linear(2, 1)), torch.zeros(3), spec, UpdateOptions(may_be_stale=True))


# -- limits --


@pytest.mark.parametrize(
    ("epochs", "limit", "counts", "last_epoch"),
    [
        (None, Limit(batches=8), [4, 4, 4, 4, 4, 2, 4, 4], 1),
        (None, Limit(samples=29), [4, 4, 4, 4, 4, 2, 4, 3], 1),
        (1, Limit(samples=29), [4, 4, 4, 4, 4, 2], 0),
        (2, Limit(batches=3, samples=99), [4, 4, 4], 0),
    ],
)
def test_batches_end_with_whatever_limit_comes_first(
    epochs: int | None, limit: Limit, counts: list[int], last_epoch: int
) -> None:
    model = net()
    link = FakeLink(epochs, limit)
    worker = worker_of(link)
    optimizer = worker.optimizer(model, optim.SGD, lr=0.1)
    assert worker.epochs == epochs and worker.epoch == 0
    found = []
    for x, y in worker.batches(data(), BATCH):
        found.append(len(x))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert found == counts and worker.epoch == last_epoch
    assert link.ledger is not None and link.ledger.complete and not worker.unused


def test_batches_of_ones_own_end_when_it_is_enough() -> None:
    model = net()
    link = FakeLink(epochs=None)
    worker = worker_of(link)
    optimizer = worker.optimizer(model, optim.SGD, lr=0.1)
    for number, (x, y) in enumerate(worker.batches(DataLoader(data(), BATCH), sharding="own"), start=1):
        assert worker.epoch == (number - 1) // 6
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        link.enough = number == 8
    assert len(link.pushed) == 8


# -- what cannot work is told --


def begin(**options: Any) -> tuple[nn.Module, Worker, RemoteOptimizer]:
    model = net()
    worker = worker_of(FakeLink(epochs=None), index=3)
    return model, worker, worker.optimizer(model, optim.SGD, lr=0.1, **options)


def step_twice() -> None:
    model, _, optimizer = begin()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    optimizer.step()


def step_with_closure() -> None:
    _, _, optimizer = begin()
    optimizer.step(lambda: 0.0)  # type: ignore[arg-type]


def own_scheduler() -> None:
    _, _, optimizer = begin()
    lr_scheduler.StepLR(optimizer, 10)


def own_one_cycle() -> None:
    _, _, optimizer = begin()
    lr_scheduler.OneCycleLR(optimizer, 0.1, 10)


def parameters_instead_of_a_model() -> None:
    worker_of(FakeLink()).optimizer(net().parameters(), optim.SGD, lr=0.1)  # type: ignore[arg-type]


def an_instance() -> None:
    model = net()
    worker_of(FakeLink()).optimizer(model, optim.SGD(model.parameters(), lr=0.1))  # type: ignore[arg-type]


def sparse_adam() -> None:
    worker_of(FakeLink()).optimizer(net(), optim.SparseAdam)


def lbfgs() -> None:
    worker_of(FakeLink()).optimizer(net(), optim.LBFGS)


def load_later() -> None:
    _, _, optimizer = begin()
    optimizer.load_state_dict({})


def add_a_group() -> None:
    _, _, optimizer = begin()
    optimizer.add_param_group({})


def never_step() -> None:
    _, worker, _ = begin()
    for _ in worker.batches(data(), BATCH):
        pass


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (step_twice, r"worker 3: step\(\) was called twice without a backward\(\) in between"),
        (step_with_closure, r"worker 3: step\(\) takes the loss, not a function"),
        (own_scheduler, r"lives on the server.* scheduler=partial\(StepLR, step_size=10\)"),
        (own_one_cycle, r"lives on the server.* scheduler=partial\(StepLR, step_size=10\)"),
        (parameters_instead_of_a_model, r"worker.optimizer takes the model itself, not a generator"),
        (an_instance, "a SGD object is no optimizer class: give the class and its arguments"),
        (sparse_adam, "SparseAdam needs sparse gradients"),
        (lbfgs, "LBFGS computes gradients itself"),
        (load_later, r"give it a state when it is made, as in worker.optimizer\(.*state="),
        (add_a_group, r"give all groups when it is made, as groups="),
        (never_step, r"worker 3 took 7 batches, more than the data set has, without calling optimizer.step\(\)"),
    ],
)
def test_what_cannot_work_is_told_in_a_sentence(act: Callable[[], None], message: str) -> None:
    with pytest.raises(PacelineError, match=message) as caught:
        act()
    assert isinstance(caught.value, ConfigurationError | GradientError) and "\n" not in str(caught.value)


def test_a_worker_knows_how_many_batches_it_took_without_a_step() -> None:
    worker = worker_of(FakeLink())
    worker.optimizer(net(), optim.SGD, lr=0.1)
    assert len(list(worker.batches(data(), BATCH))) == worker.unused == 6


def test_gradients_may_be_added_to_without_being_set_to_zero() -> None:
    model, _, optimizer = begin()
    for _ in range(2):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    optimizer.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert isinstance(optimizer, optim.Optimizer) and not optimizer.state and "lr" in repr(optimizer)


def spec_for(**changes: Any) -> OptimizerSpec:
    model = net()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    arguments = {"lr": 0.1} | changes.pop("arguments", {})
    spec = spec_of(layout_of(model), names, changes.pop("kind", optim.SGD), None, arguments)
    return spec._replace(**changes)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (spec_for(), ""),
        (spec_for(scheduler=None), ""),
        (spec_for(kind=optim.AdamW), "it is AdamW, not SGD"),
        (spec_for(arguments={"lr": 0.2}), "its lr is 0.2, not 0.1"),
        (spec_for(arguments={"lr": torch.tensor(0.5)}), "its lr is 0.5, not 0.1"),
        (spec_for(arguments={"lr": torch.zeros(100)}), "its lr is a tensor of (100,), not 0.1"),
        (spec_for(arguments={"momentum": 0.9}), "its momentum is 0.9, not 'not given'"),
        (spec_for(groups=[(["0.weight"], {})]), "its parameter groups are others"),
        (
            spec_for(scheduler=partial(lr_scheduler.StepLR, step_size=3)),
            "its scheduler is partial(StepLR, (), {step_size: 3}), not None",
        ),
        (spec_for(scheduler_every="round"), "its scheduler_every is 'round', not None"),
    ],
)
def test_in_what_two_optimizers_differ(other: OptimizerSpec, message: str) -> None:
    assert spec_difference(spec_for(), other) == message

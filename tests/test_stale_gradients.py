"""What is done about stale gradients: worker moments, the secant, a round's second moment; and when it is on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from fake_link import flat_of
from torch import Tensor, nn, optim

from paceline.core.errors import ConfigurationError
from paceline.core.messages import UpdateRule
from paceline.policies import POLICIES, policy
from paceline.training.choices import UpdateOptions
from paceline.training.layout import Layout, layout_of
from paceline.training.optimizers import OptimizerSpec, spec_of
from paceline.training.parameters import ParameterStore
from paceline.training.stale import correction as correction_module
from paceline.training.stale import rules as rules_module
from paceline.training.stale.blocks import (
    CHUNK,
    MOST_BLOCKS,
    SAMPLES,
    Chunk,
    Chunks,
    Stretch,
    blocks_of,
    partition_of,
    sample_positions,
)
from paceline.training.stale.moments import WorkerMoments
from paceline.training.stale.noise import Noise
from paceline.training.stale.rules import RULES, refusal
from paceline.training.stale.secant import Secant
from paceline.training.updates import Contribution

ASYNCHRONOUS = UpdateOptions(may_be_stale=True)


def described(
    model: nn.Module, kind: Any = optim.SGD, groups: Any = None, **arguments: Any
) -> tuple[Layout, OptimizerSpec]:
    layout = layout_of(model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return layout, spec_of(layout, names, kind, groups, arguments)


class Numbers(nn.Module):
    def __init__(self, *start: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([start], dtype=torch.float64))


def store_of(
    kind: Any = optim.SGD, options: UpdateOptions = ASYNCHRONOUS, start: Sequence[float] = (0.0, 0.0), **arguments: Any
) -> ParameterStore:
    model = Numbers(*start)
    layout, spec = described(model, kind, **arguments)
    return ParameterStore(layout, flat_of(model), spec, options)


def push(
    store: ParameterStore, worker: int, gradient: Sequence[float], *, workers: int = 2, pulled: Tensor | None = None,
    version: int | None = None, departed: Sequence[int] = (), weight: float = 1.0,
) -> None:  # fmt: skip
    version = store.version if version is None else version
    contribution = Contribution(
        torch.tensor(gradient, dtype=torch.float64),
        1,
        weight,
        worker=worker,
        version=version,
        staleness=store.version - version,
        pulled=store.flat.clone() if pulled is None else pulled,
    )
    store.apply([contribution], workers, departed=departed)


# -- worker moments --


def test_every_worker_has_a_velocity_of_its_own_and_looks_one_step_ahead() -> None:
    store = store_of(lr=0.1, momentum=0.5)
    push(store, 0, [1.0, 0.0])
    assert store.flat.tolist() == pytest.approx([-0.05 * 1.5, 0.0])  # half a round: m = 1, contributes 1 + 0.5 m
    push(store, 1, [0.0, 1.0], version=0)  # it was there from the beginning
    assert store.flat.tolist() == pytest.approx([-0.05 * 1.5, -0.05 * 1.5])  # nothing of worker 0's velocity
    push(store, 0, [0.0, 0.0])
    assert store.flat.tolist() == pytest.approx([-0.05 * (1.5 + 0.25), -0.05 * 1.5])  # m = 0.5, contributes 0.5 m


@pytest.mark.parametrize("arguments", [{"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"momentum": 0.5}])
@pytest.mark.parametrize("fused", [True, False])
def test_a_lasting_gradient_moves_as_far_per_round_as_without_correction(
    arguments: dict[str, Any], fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not fused:
        monkeypatch.setattr(correction_module, "FUSED_STEP", None)
    ours, torchs = (store_of(lr=0.1, options=UpdateOptions(may_be_stale=stale), **arguments) for stale in (True, False))
    moved: dict[str, list[float]] = {"ours": [], "torch's": []}
    for _ in range(100):
        before = ours.flat[0].item(), torchs.flat[0].item()
        for worker in range(4):
            push(ours, worker, [1.0, 2.0], workers=4)
        push(torchs, 0, [1.0, 2.0], workers=1)
        moved["ours"].append(before[0] - ours.flat[0].item())
        moved["torch's"].append(before[1] - torchs.flat[0].item())
    expected = 0.1 / (1 - arguments["momentum"])
    assert moved["ours"][-1] == pytest.approx(expected, rel=1e-3) == pytest.approx(moved["torch's"][-1], rel=1e-3)


@pytest.mark.parametrize(("nesterov", "rounds"), [(False, 1.0), (True, 2.0)])
@pytest.mark.parametrize("fused", [True, False])
def test_parameters_are_where_momentum_will_have_carried_them(
    nesterov: bool, rounds: float, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heavy ball w with the velocity v gets as far as w - lr (beta + beta^2 + ...) v if it is left alone."""
    if not fused:
        monkeypatch.setattr(correction_module, "FUSED_STEP", None)
    store = store_of(lr=0.1, momentum=0.8, nesterov=nesterov)
    place, velocity = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    way = 0.8 * (1 - 0.8**rounds) / (1 - 0.8)
    for gradient in ([1.0, 0.0], [-2.0, 1.0], [0.5, 3.0], [0.0, -1.0]):
        push(store, 0, gradient, workers=1)
        velocity = 0.8 * velocity + torch.tensor(gradient)
        place = place - 0.1 * velocity
        assert store.flat.tolist() == pytest.approx((place - 0.1 * way * velocity).tolist())


def test_dampening_and_weight_decay_are_those_of_the_optimizer() -> None:
    damped, plain = store_of(lr=0.1, momentum=0.5, dampening=0.5), store_of(lr=0.05, momentum=0.5)
    decaying = store_of(lr=0.1, momentum=0.5, weight_decay=0.5, start=(2.0, 4.0))
    for worker in (0, 1, 0, 1):
        push(damped, worker, [1.0, 3.0])
        push(plain, worker, [1.0, 3.0])
        push(decaying, worker, [0.0, 0.0])
    assert damped.flat.tolist() == pytest.approx(plain.flat.tolist())
    first = 2.0 * (1 - 0.05 * 1.5 * 0.5)  # the gradient is 0.5 * 2, and contributes one and a half times
    assert decaying.flat[0].item() < first and decaying.flat[1].item() == pytest.approx(2 * decaying.flat[0].item())


def test_a_joiner_begins_with_the_mean_of_the_group_and_a_worker_that_was_there_with_nothing() -> None:
    moments = WorkerMoments(torch.zeros(2), groups=1)
    for worker, value in ((0, 1.0), (1, 3.0)):
        moment = moments.of(worker, joined_late=False)
        assert moment.vector.tolist() == [0.0, 0.0] and moment.weights == [0.0]
        moment.vector.fill_(value)
        moment.weights = [value / 4]
    joined = moments.of(2, joined_late=True)
    assert joined.vector.tolist() == [2.0, 2.0] and joined.weights == [0.5]
    assert moments.of(2, joined_late=True) is joined
    assert moments.of(3, joined_late=False).vector.tolist() == [0.0, 0.0]
    empty = WorkerMoments(torch.zeros(2), groups=1)
    assert empty.of(7, joined_late=True).vector.tolist() == [0.0, 0.0]


def test_a_worker_that_leaves_gives_its_velocity_up_with_the_next_update_and_the_others_keep_theirs() -> None:
    store = store_of(lr=0.1, momentum=0.5)
    push(store, 0, [1.0, 0.0])
    push(store, 1, [0.0, 1.0], version=0)  # it was there from the beginning
    before = store.flat.clone()
    push(store, 0, [0.0, 0.0], departed=[0])  # its last gradient is still its own
    assert (store.flat - before).tolist() == pytest.approx([-0.05 * 0.25, 0.0])
    before = store.flat.clone()
    push(store, 2, [0.0, 0.0])  # a joiner has the mean of those who are left
    assert (store.flat - before).tolist() == pytest.approx([0.0, -0.05 * 0.25])
    push(store, 0, [0.0, 8.0])  # a last gradient of it that nobody had decided on: it leaves nothing behind
    before = store.flat.clone()
    push(store, 3, [0.0, 0.0])
    assert (store.flat - before).tolist() == pytest.approx([0.0, -0.05 * 0.5 * 0.5 * (0.5 + 0.25)])


def test_a_departure_makes_no_bump() -> None:
    """Four workers descend a slope together; when one leaves, the others go on at the same speed per round."""
    store = store_of(lr=0.1, momentum=0.9)
    for _ in range(80):
        for worker in range(4):
            push(store, worker, [1.0, 1.0], workers=4)
    speeds = []
    for number in range(6):
        before = store.flat[0].item()
        for worker in range(3):
            push(store, worker, [1.0, 1.0], workers=3, departed=[3] if number == worker == 0 else ())
        speeds.append(before - store.flat[0].item())
    assert speeds == pytest.approx([1.0] * 6, rel=1e-3)


def test_one_worker_twice_in_an_update_counts_one_after_the_other() -> None:
    together, apart = store_of(lr=0.1, momentum=0.5), store_of(lr=0.05, momentum=0.5)
    contributions = [
        Contribution(torch.tensor([value, 0.0], dtype=torch.float64), 1, worker=0, pulled=together.flat.clone())
        for value in (1.0, 2.0)
    ]
    together.apply(contributions, 2)
    for value in (1.0, 2.0):
        push(apart, 0, [value, 0.0], workers=1)
    assert together.flat.tolist() == pytest.approx(apart.flat.tolist())


# -- Adam --


@pytest.mark.parametrize("kind", [optim.Adam, optim.AdamW, optim.NAdam, optim.Adamax, optim.RMSprop])
def test_a_lasting_gradient_moves_an_adaptive_optimizer_as_far_per_round_as_torchs_own(kind: Any) -> None:
    ours, torchs = (store_of(kind, UpdateOptions(may_be_stale=stale), lr=0.01) for stale in (True, False))
    for _ in range(600):
        before = ours.flat.clone(), torchs.flat.clone()
        for worker in range(4):
            push(ours, worker, [3.0, -0.5], workers=4)
        push(torchs, 0, [3.0, -0.5], workers=1)
    assert (ours.flat - before[0]).tolist() == pytest.approx((torchs.flat - before[1]).tolist(), rel=0.02)


def test_the_first_step_of_adam_is_as_long_as_the_rate() -> None:
    store = store_of(optim.Adam, lr=0.01)
    for worker in range(4):
        push(store, worker, [5.0, -1e-3], workers=4)
    assert store.flat.tolist() == pytest.approx([-0.01, 0.01], rel=1e-3)


@pytest.mark.parametrize(("kind", "name"), [(optim.AdamW, "decoupled"), (optim.Adam, "decoupled_weight_decay=True")])
def test_decoupled_weight_decay_keeps_its_size_per_round(kind: Any, name: str) -> None:
    arguments = {"decoupled_weight_decay": True} if kind is optim.Adam else {}
    store = store_of(kind, lr=0.1, weight_decay=0.2, start=(1.0, 1.0), **arguments)
    for worker in range(8):
        push(store, worker, [0.0, 0.0], workers=8)
    assert store.flat.tolist() == pytest.approx([1 - 0.1 * 0.2] * 2, rel=1e-3)


def test_noise_is_one_where_gradients_agree_and_one_over_the_group_where_they_are_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = Noise(2)
    for _ in range(16):
        row = torch.ones(1, 4096)
        noise.observe(torch.cat([row, torch.randn(1, 4096, generator=generator)]), 1 / 16)
    assert noise.ratios[0] == pytest.approx(1.0) and noise.ratios[1] == pytest.approx(1 / 16, rel=0.1)
    noise.observe(torch.zeros(2, 4096), 1.0)
    assert noise.ratios == pytest.approx([1.0, (1 / 16 + 1) / 2], rel=0.01)  # half of it is new


def test_noise_is_foretold_while_the_first_round_goes_on() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = Noise(1)
    for number in range(15):
        noise.observe(1 + torch.randn(1, 4096, generator=generator), 1 / 16)  # as much signal as noise
        assert noise.ratios[0] == pytest.approx(1.0 if number == 0 else 0.5 + 0.5 / 16, rel=0.15)


@pytest.mark.parametrize("kind", [optim.Adam, optim.Adamax, optim.RMSprop])
def test_no_first_step_is_longer_than_a_few_rates_whatever_an_update_is_made_of(kind: Any) -> None:
    """One worker's second gradient in the same update carries its first along: their mean can be next to nothing where
    what is applied is not."""
    store = store_of(kind, lr=0.01)
    gradients = [[1.0, 1.0], [-1.0, 1.0], [1e-6, 1.0]]
    contributions = [
        Contribution(torch.tensor(values, dtype=torch.float64), 1, worker=worker, pulled=store.flat.clone())
        for worker, values in zip((0, 0, 1), gradients, strict=True)
    ]
    store.apply(contributions, 3)
    assert float(store.flat.abs().max()) < 0.1 * (3 if kind is optim.RMSprop else 1)


# -- the secant --


class Sights:
    """Gradients as a secant sees them, of parameters that are given."""

    def __init__(self, blocks: int) -> None:
        self.secant, self._version = Secant(blocks), 0

    def see(
        self, worker: int, gradient: Tensor, pulled: Tensor, now: Tensor, *, version: int, metric: Tensor | None = None
    ) -> None:
        """Pulled at `version`; the update begins at the parameters `now`."""
        self.secant.begin(now)
        contribution = Contribution(gradient, 1, worker=worker, version=version, staleness=self._version - version)
        self.secant.observe(contribution, gradient, pulled, metric, 1.0)
        self._version += 1

    def others(self, now: Tensor) -> None:
        """An update that this worker has no part in."""
        self.secant.begin(now)
        self._version += 1


def test_the_secant_finds_the_curvature_of_every_block() -> None:
    curvatures = torch.tensor([[0.5], [8.0]])
    generator = torch.Generator().manual_seed(1)
    sights, parameters = Sights(2), torch.randn(2, 64, generator=generator)
    for version in range(0, 40, 2):
        sights.see(0, curvatures * parameters, parameters, parameters, version=version)
        sights.others(parameters)
        parameters = parameters + 0.1 * torch.randn(2, 64, generator=generator)
    assert sights.secant.curvatures == pytest.approx([0.5, 8.0], rel=1e-4)


def test_a_workers_own_update_is_no_part_of_the_way_but_what_it_waited_for_is() -> None:
    """Its own update goes the wrong way, as far as its noise is large."""
    sights, start, own = Sights(1), torch.zeros(1, 2), torch.tensor([[0.0, -5.0]])
    moves = torch.tensor([[1.0, 0.0]])
    sights.see(0, start + own, start, start, version=0)  # all of the gradient is noise
    sights.others(start + own)
    pulled = start + own + moves  # it waited until worker 1's update
    sights.see(0, 3.0 * pulled, pulled, pulled, version=2)
    assert sights.secant.curvatures == pytest.approx([3.0])


def test_parameters_that_were_pulled_before_the_own_update_do_not_have_it() -> None:
    """A policy lets the worker go on and applies its gradient later."""
    sights, start = Sights(1), torch.zeros(1, 2)
    moves = torch.tensor([[1.0, 0.0]])
    sights.others(start)
    sights.see(0, start, start, start + moves, version=0)
    sights.see(0, 3.0 * moves, start + moves, start + 7 * moves, version=1)
    assert sights.secant.curvatures == pytest.approx([3.0])


def test_with_a_metric_lengths_are_measured_as_the_optimizer_steps() -> None:
    sights, start, way = Sights(1), torch.zeros(1, 2), torch.tensor([[1.0, 2.0]])
    sights.see(0, start, start, start, version=0)
    sights.see(0, torch.tensor([[6.0, 12.0]]), way, start, version=1, metric=torch.full((1, 2), 3.0))
    assert sights.secant.curvatures == pytest.approx([2.0])


@pytest.mark.parametrize("rise", [-1.0, math.nan, math.inf])
def test_where_the_loss_curves_down_or_nothing_is_known_there_is_no_curvature(rise: float) -> None:
    sights, start, way = Sights(1), torch.zeros(1, 2), torch.ones(1, 2)
    sights.see(0, start, start, start, version=0)
    assert sights.secant.curvatures == [0.0]
    sights.see(0, torch.full((1, 2), rise), way, start, version=1)
    assert sights.secant.curvatures == [0.0]
    sights.secant.forget(0)
    sights.see(0, way, way, start, version=2)
    assert sights.secant.curvatures == [0.0]


def test_a_gradient_changes_along_itself_as_far_as_gradients_have_changed_along_the_way() -> None:
    """A loss that is flat but in one direction: what the group moves in others is no matter."""
    sights, steep = Sights(1), torch.tensor([[1.0, 0.0]])
    place, way = torch.tensor([[2.0, 0.0]]), torch.tensor([[-0.5, 3.0]])
    sights.see(0, place * steep, place, place, version=0)
    assert sights.secant.changes(place * steep, way) == [0.0]  # nothing is known yet
    sights.others(place)
    place = place + way
    gradient = place * steep
    sights.see(0, gradient, place, place, version=2)
    # The rise is 0.5^2 along the way, and the gradient 1.5: along the way it falls by 0.75.
    assert sights.secant.steepnesses == pytest.approx([0.5**2 / 0.75**2])
    assert sights.secant.changes(gradient, way) == pytest.approx([-(0.5**2) / 0.75])
    assert sights.secant.changes(gradient, torch.tensor([[0.0, 9.0]])) == [0.0]
    assert sights.secant.changes(gradient, 100 * way) == [-1.0]  # never more than the whole of it
    assert sights.secant.changes(gradient, torch.full((1, 2), math.nan)) == [0.0]


def test_flat_directions_are_spared_where_gradients_are_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise is where the loss curves, as in a regression on one feature; the other has a weak slope that lasts."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(400, generator=generator, dtype=torch.float64).tolist()

    def moved() -> float:
        """In the flat direction; it would be 0.25 without any correction."""
        store, workers = store_of(lr=0.5), 8
        pulled = {worker: (store.flat.clone(), 0) for worker in range(workers)}
        for number, value in enumerate(noise):
            worker = number % workers
            parameters, version = pulled[worker]
            gradient = [float(parameters[0]) + 3.0 * value, 0.01]
            push(store, worker, gradient, workers=workers, pulled=parameters, version=version)
            pulled[worker] = store.flat.clone(), store.version
        return -float(store.flat[1])

    monkeypatch.setattr(rules_module, "SPARED", 0.0)
    spared = moved()
    monkeypatch.setattr(correction_module, "_of_noise", lambda ratio: 0.0)
    assert moved() < 0.2 < spared < 0.25


@pytest.mark.parametrize(
    ("arguments", "curvature", "needed"),
    [
        ({"lr": 0.1}, 0.0, 0.0),
        ({"lr": 0.1}, 6.0, 0.0),
        ({"lr": 0.1}, 24.0, 0.75),
        ({"lr": 0.1, "momentum": 0.5}, 6.0, 0.75),
        ({"lr": 0.1, "momentum": 0.9}, 6.0, 0.99),
    ],
)
def test_what_a_delay_does_not_harm_is_left_alone(arguments: dict[str, Any], curvature: float, needed: float) -> None:
    rule = rules_module.RULES[optim.SGD](optim.SGD([torch.zeros(1)], **arguments).param_groups[0])
    assert rule.needed(curvature) == pytest.approx(needed)


def loss_after(
    rounds: int, kind: Any, stale: str, *, workers: int = 8, curvature: float = 1.0, **arguments: Any
) -> float:
    """A quadratic under ASP with equal workers: all gradients are one round old."""
    store = store_of(kind, UpdateOptions(stale=stale, may_be_stale=True), start=(1.0, -1.0), **arguments)
    pulled = {worker: (store.flat.clone(), 0) for worker in range(workers)}
    for _ in range(rounds):
        for worker in range(workers):
            parameters, version = pulled[worker]
            gradient = (curvature * parameters).tolist()
            push(store, worker, gradient, workers=workers, pulled=parameters, version=version)
            pulled[worker] = store.flat.clone(), store.version
    return float(store.flat.square().sum()) / 2


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (optim.SGD, {"lr": 2.0}),
        (optim.SGD, {"lr": 1.5, "momentum": 0.9}),
        (optim.SGD, {"lr": 1.5, "momentum": 0.9, "nesterov": True}),
    ],
)
def test_what_diverges_as_it_is_converges_with_the_correction(kind: Any, arguments: dict[str, Any]) -> None:
    assert not loss_after(60, kind, "none", **arguments) < 1e3
    assert loss_after(60, kind, "auto", **arguments) < 1e-3


def test_nothing_is_taken_back_of_a_gradient_that_is_fresh() -> None:
    store = store_of(lr=1.0)
    for value in (1.0, 2.0, 3.0):
        push(store, 0, [value, 0.0], workers=1)
    assert store.flat.tolist() == pytest.approx([-6.0, 0.0])


# -- blocks --


def test_a_block_is_a_weight_with_the_biases_that_follow() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2, bias=False))
    layout, spec = described(model, lr=0.1)
    assert blocks_of(layout, spec) == [(Stretch(0, 0, 12 + 4 + 4 + 4),), (Stretch(0, 24, 32),)]
    empty = nn.ParameterList([torch.zeros(4, 3), torch.zeros(0, 3)])
    assert blocks_of(*described(empty, lr=0.1)) == [(Stretch(0, 0, 12),)]


def test_blocks_keep_to_their_groups_and_leave_out_what_nobody_trains() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(2, 1))
    groups = [{"params": model[0].parameters()}, {"params": [model[2].weight], "lr": 0.2}]
    layout, spec = described(model, groups=groups, lr=0.1)
    assert blocks_of(layout, spec) == [(Stretch(0, 0, 16),), (Stretch(1, 26, 28),)]
    chunks = Chunks(blocks_of(layout, spec), 29)
    assert chunks.parts == [Chunk(0, 0), None, Chunk(1, 1), None]
    assert [len(part) for part in chunks.of(torch.zeros(29))] == [16, 10, 2, 1]
    store = ParameterStore(layout, torch.zeros(29), spec, ASYNCHRONOUS)
    contribution = Contribution(torch.ones(29), 1, worker=0, pulled=torch.zeros(29))
    store.apply([contribution], 1)
    assert store.flat.tolist() == pytest.approx([-0.1] * 16 + [0.0] * 10 + [-0.2] * 2 + [0.0])


def test_many_layers_share_blocks_and_large_ones_are_cut_into_chunks() -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(50)))
    layout, spec = described(model, lr=0.1)
    blocks = blocks_of(layout, spec)
    assert len(blocks) == MOST_BLOCKS and blocks[0][0].begin == 0 and blocks[-1][0].end == 300
    assert all(len(block) == 1 for block in blocks)
    assert all(one[0].end == following[0].begin for one, following in pairwise(blocks))
    decaying = [{"params": [layer.weight for layer in model]}, {"params": [layer.bias for layer in model]}]
    mixed = blocks_of(*described(model, groups=decaying, lr=0.1))
    assert len(mixed) == MOST_BLOCKS and mixed[-1][-2:] == (Stretch(0, 294, 298), Stretch(1, 298, 300))
    assert Chunks([(Stretch(0, 0, 2 * CHUNK + 1),)], 2 * CHUNK + 1).parts == [Chunk(0, 0)] * 3


def test_equally_many_numbers_of_every_block_are_looked_at() -> None:
    blocks = [(Stretch(0, 0, 100_000),), (Stretch(0, 100_000, 100_005), Stretch(1, 100_005, 100_010))]
    positions = sample_positions(partition_of(blocks))
    assert positions.shape == (2, SAMPLES // 2)
    assert len(set(positions[0].tolist())) == SAMPLES // 2 and set(positions[1].tolist()) == set(
        range(100_000, 100_010)
    )
    assert sample_positions(partition_of([(Stretch(0, 0, 5),)])).tolist() == [[0, 1, 2, 3, 4]]


# -- when it is on --


def test_it_is_on_exactly_where_gradients_can_be_stale() -> None:
    fresh = {"bsp", "backup", "dbw", "auto"}  # which begins as bsp
    assert {name for name in POLICIES if not policy(name).applies_stale} == fresh
    assert not policy("elastic-bsp:inside=gather").applies_stale
    assert store_of(lr=0.1, options=UpdateOptions(may_be_stale=False)).rule == UpdateRule(
        "SGD", "linear", "none", "no gradient is stale"
    )
    assert store_of(lr=0.1, options=UpdateOptions(stale="none", may_be_stale=True)).rule == UpdateRule(
        "SGD", "linear", "none", "as asked for"
    )
    assert store_of(lr=0.1).rule == UpdateRule("SGD", "auto", "secant")
    assert store_of(lr=0.1, momentum=0.9).rule.correction == "worker moments + secant"
    assert store_of(optim.AdamW, lr=0.1).rule == UpdateRule(
        "AdamW", "auto", "worker moments + secant + second moment of a round"
    )


class Own(optim.SGD):
    pass


@pytest.mark.parametrize(
    ("kind", "arguments", "why"),
    [
        (optim.Adagrad, {}, "Adagrad cannot be corrected; SGD, Adam, AdamW, NAdam, Adamax and RMSprop can"),
        (Own, {}, "Own cannot be corrected"),
        (optim.Adam, {"amsgrad": True}, "Adam with amsgrad=True cannot be corrected; without it it can"),
        (optim.SGD, {"maximize": True}, "SGD with maximize=True cannot be corrected"),
    ],
)
def test_what_cannot_be_corrected_runs_as_it_is_and_says_so_or_is_refused(
    kind: Any, arguments: dict[str, Any], why: str
) -> None:
    store = store_of(kind, lr=0.1, **arguments)
    assert store.rule.correction == "none" and store.rule.why.startswith(why) and not store.corrects
    with pytest.raises(ConfigurationError, match=f"stale='correct' is impossible: {why}"):
        store_of(kind, UpdateOptions(stale="correct", may_be_stale=True), lr=0.1, **arguments)
    store_of(kind, UpdateOptions(stale="correct"), lr=0.1, **arguments)  # no gradient is stale: nothing to correct


def test_short_types_run_as_they_are() -> None:
    assert "bfloat16 cannot be corrected" in refusal(optim.SGD, [{}], torch.bfloat16)
    assert all(refusal(kind, [{}], torch.float32) == "" for kind in RULES)


def test_an_unknown_choice_is_refused_and_the_optimizers_own_comes_first() -> None:
    with pytest.raises(ConfigurationError, match="unknown stale 'often'; there are: auto, correct, none"):
        store_of(lr=0.1, options=UpdateOptions(stale="often", may_be_stale=True))
    model = Numbers(0.0)
    layout, spec = described(model, lr=0.1)
    assert not ParameterStore(layout, flat_of(model), spec._replace(stale="none"), ASYNCHRONOUS).corrects


def test_statistics_are_those_of_the_gradients_as_they_came() -> None:
    store = store_of(lr=0.1, momentum=0.9)
    gradients = [torch.tensor(values, dtype=torch.float64) for values in ([1.0, 0.0], [0.0, 1.0])]
    contributions = [
        Contribution(gradient, 1, loss=2.0, worker=worker, pulled=store.flat.clone())
        for worker, gradient in enumerate(gradients)
    ]
    seen = store.apply(contributions, 2, statistics=True)
    assert seen is not None and (seen.squared_norm, seen.variance, seen.loss) == (0.5, 1.0, 2.0)
    assert seen.learning_rate == pytest.approx(1.0)  # momentum included


def test_a_schedule_reaches_the_corrected_step_without_a_complaint(recwarn: pytest.WarningsRecorder) -> None:
    model = Numbers(0.0, 0.0)
    layout, spec = described(model, lr=1.0)
    halving: Callable[[Any], Any] = lambda optimizer: optim.lr_scheduler.StepLR(optimizer, 1, 0.5)  # noqa: E731
    store = ParameterStore(layout, flat_of(model), spec._replace(scheduler=halving, scheduler_every=1), ASYNCHRONOUS)
    for _ in range(3):
        push(store, 0, [1.0, 0.0], workers=1)
    assert store.flat.tolist() == [-1.75, 0.0] and not recwarn.list


def test_lr_scaling_as_the_user_wants_it() -> None:
    for scaling, moved in (("linear", 0.25), ("sqrt", 0.5), ("none", 1.0)):
        store = store_of(lr=1.0, options=UpdateOptions(scaling, may_be_stale=True))
        push(store, 0, [1.0, 0.0], workers=4)
        assert store.flat.tolist() == pytest.approx([-moved, 0.0]) and store.rule.lr_scaling == scaling


def test_a_gradient_of_half_the_weight_is_half_a_gradient_and_decays_as_much() -> None:
    half, whole = (store_of(lr=0.1, momentum=0.5, weight_decay=0.1, start=(1.0, 2.0)) for _ in range(2))
    for _ in range(3):
        push(half, 0, [2.0, 4.0], weight=0.5)
        push(whole, 0, [1.0, 2.0])
    assert half.flat.tolist() == pytest.approx(whole.flat.tolist())


@pytest.mark.parametrize("kind", [optim.SGD, optim.AdamW])
@pytest.mark.parametrize("scaling", ["linear", "sqrt"])
def test_weight_decay_keeps_its_size_per_round_whatever_the_scaling(kind: Any, scaling: str) -> None:
    store = store_of(kind, UpdateOptions(scaling, may_be_stale=True), lr=0.1, weight_decay=0.2, start=(1.0, 1.0))
    for worker in range(16):
        push(store, worker, [0.0, 0.0], workers=16)
    assert store.flat.tolist() == pytest.approx([1 - 0.1 * 0.2] * 2, rel=1e-3)


def test_a_large_epsilon_is_part_of_the_metric() -> None:
    """With it Adam is SGD at rate / epsilon, and what converges as it is still does."""
    assert loss_after(60, optim.Adam, "auto", lr=0.5, eps=1.0, betas=(0.5, 0.9)) < 1e-3


def test_momentum_may_come_later() -> None:
    store = store_of(lr=0.1, momentum=0.0)
    push(store, 0, [1.0, 0.0])
    store.optimizer.param_groups[0]["momentum"] = 0.5
    push(store, 0, [1.0, 0.0])
    assert store.flat.tolist() == pytest.approx([-0.05 - 0.05 * 1.5, 0.0])


def test_an_optimizer_without_parameters_is_left_alone() -> None:
    model = Numbers(0.0)
    layout, spec = described(model, groups=[{"params": []}], lr=0.1)
    assert ParameterStore(layout, flat_of(model), spec, ASYNCHRONOUS).rule.why == "the optimizer has no parameters"

"""Parts of a model: stores over them do to the bit what one store over the whole does, and remember the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from fake_link import flat_of
from hypothesis import given, settings
from sharded_stores import GROUPS, LAYERS, STALE, Shapes, Stores, Tensors, Update, described, pair_of, same, script
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler

from paceline.core.messages import Gradient, Statistics
from paceline.training import pieces
from paceline.training.aggregation import Aggregation
from paceline.training.choices import AS_USUAL, UpdateOptions
from paceline.training.layout import Layout, layout_of
from paceline.training.optimizers import ELEMENTWISE
from paceline.training.parameters import ParameterStore
from paceline.training.sharded_state import merged_pending, merged_state, split_pending, split_state
from paceline.training.sharding import merged_statistics, parts_of
from paceline.training.stale import blocks
from paceline.training.stale.blocks import MOST_BLOCKS
from paceline.training.trees import put_together, taken_apart

CASES: dict[str, tuple[type[optim.Optimizer], dict[str, Any]]] = {
    "sgd": (optim.SGD, {"lr": 0.1}),
    "momentum": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "nesterov": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "damped": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}),
    "adam": (optim.Adam, {"lr": 0.01, "weight_decay": 0.1}),
    "adamw": (optim.AdamW, {"lr": 0.01}),
    "adamax": (optim.Adamax, {"lr": 0.01}),
    "nadam": (optim.NAdam, {"lr": 0.01}),
    "rmsprop": (optim.RMSprop, {"lr": 0.01, "momentum": 0.5}),
}
PLAIN_CASES: dict[str, tuple[type[optim.Optimizer], dict[str, Any]]] = {
    "foreach": (optim.AdamW, {"lr": 0.01, "foreach": True}),
    "fused": (optim.AdamW, {"lr": 0.01, "fused": True}),
    "radam": (optim.RAdam, {"lr": 0.1}),
    "adagrad": (optim.Adagrad, {"lr": 0.1}),
    "adadelta": (optim.Adadelta, {"lr": 0.5}),
    "rprop": (optim.Rprop, {"lr": 0.01}),
    "asgd": (optim.ASGD, {"lr": 0.01}),
}


class WholeTensors(optim.Optimizer):
    """One of a user's own: it divides by the norm of a tensor, and remembers one number of each, and one of all."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})
        self.state["calls"] = 0  # type: ignore[index]

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.state["calls"] += 1  # type: ignore[index, operator]
        for group in self.param_groups:
            for tensor in group["params"]:
                if tensor.grad is not None:
                    about = self.state[tensor]
                    about["norm"] = 0.5 * about.get("norm", torch.zeros(1)) + tensor.grad.norm()
                    about["count"] = about.get("count", 0) + 1
                    size = float(about["norm"]) + 1
                    tensor.sub_(tensor.grad / size, alpha=group["lr"] / math.sqrt(about["count"]))


class FirstParameter(WholeTensors):
    """One that cannot bear a group without parameters."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)
        self.devices = [group["params"][0].device for group in self.param_groups]


# -- where it is cut --


def sizes_of(model: nn.Module, shards: int, groups: Sequence[int | None] = ()) -> list[int]:
    return [part.end - part.begin for part in parts_of(*described(model, optim.SGD, groups, lr=0.1), shards)]


def test_parts_are_of_whole_layers_and_about_equally_large() -> None:
    model = nn.Sequential(*(nn.Linear(10, size) for size in (10, 10, 30, 10, 10)))
    assert [sizes_of(model, shards) for shards in (1, 2, 3)] == [[770], [220, 550], [220, 330, 220]]


@given(
    st.lists(st.sampled_from([(3, 4), (5,), (), (2, 2, 2), (0, 2), (20, 9), (1, 1)]), min_size=1, max_size=12),
    st.lists(st.sampled_from([0, 1, None]), max_size=3),
    st.integers(1, 6),
)
@settings(max_examples=60, deadline=None)
def test_parts_make_up_the_whole(shapes: Shapes, groups: list[int | None], shards: int) -> None:
    model = Tensors(shapes)
    layout, spec = described(model, optim.SGD, groups if set(groups) - {None} else (), lr=0.1)
    parts = parts_of(layout, spec, shards)
    assert 1 <= len(parts) <= shards
    assert (parts[0].begin, parts[-1].end) == (0, layout.parameter_count)
    assert all(one.end == following.begin for one, following in pairwise(parts))
    assert tuple(entry for part in parts for entry in part.layout.parameters) == layout.parameters
    assert all(part.layout.parameter_count == part.end - part.begin for part in parts)
    assert all(layout.parameters[part.first] == part.layout.parameters[0] for part in parts)
    for group, (names, options) in enumerate(spec.groups):
        assert sorted(names) == sorted(name for part in parts for name in part.spec.groups[group][0])
        assert all(part.spec.groups[group][1] == options for part in parts)
    assert len(parts) == 1 or all(any(names for names, _ in part.spec.groups) for part in parts)
    every = range(len(layout.parameters))
    assert [number + part.first for part in parts for number in part.numbers(every)] == list(every)


def test_there_are_no_more_parts_than_layers() -> None:
    assert sizes_of(nn.Linear(3, 4), 3) == [16]
    assert len(sizes_of(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), 3)) == 2
    assert len(sizes_of(nn.Sequential(*(nn.Linear(2, 2) for _ in range(50))), 50)) == MOST_BLOCKS


@pytest.mark.parametrize("kind", [*ELEMENTWISE, optim.Adafactor, optim.Muon], ids=lambda kind: kind.__name__)
def test_every_optimizer_of_torch_bears_a_group_without_parameters(kind: Any) -> None:
    model = Tensors([(3, 4), (4, 5)])
    layout, spec = described(model, kind, [0, 1], lr=0.01)
    whole, sharded = pair_of(model, layout, spec, 2)
    assert [len(names) for names, _ in sharded.parts[1].spec.groups] == [0, 1]
    for stores in (whole, sharded):
        stores.play(script(3))
    assert torch.equal(whole.flat, sharded.flat) and not torch.equal(whole.flat, flat_of(model))


def test_an_optimizer_that_does_not_bear_one_is_not_cut() -> None:
    model = Tensors([(3, 4), (4, 5)])
    assert len(parts_of(*described(model, FirstParameter, [0, 1], lr=0.01), 2)) == 1
    assert len(parts_of(*described(model, WholeTensors, [0, 1], lr=0.01), 2)) == 2
    assert len(parts_of(*described(model, FirstParameter, lr=0.01), 2)) == 2  # no group is lost


# -- updates --


@pytest.mark.parametrize("options", [AS_USUAL, STALE], ids=["plain", "corrected"])
@pytest.mark.parametrize("case", CASES)
def test_parts_are_updated_to_the_bit_as_the_whole_is(case: str, options: UpdateOptions) -> None:
    kind, arguments = CASES[case]
    model = Tensors()
    for groups in ([], GROUPS):
        layout, spec = described(model, kind, groups, **arguments)
        whole, sharded = pair_of(model, layout, spec, 3, options)
        assert len(sharded.parts) == 3
        assert all(store.corrects == options.may_be_stale for store in [*whole.stores, *sharded.stores])
        for stores in (whole, sharded):
            stores.play(script(12, seed=len(case)))
        assert torch.equal(whole.flat, sharded.flat) and torch.isfinite(whole.flat).all()
        if options.may_be_stale:
            assert max(whole.state()["correction"]["secant"]["curvatures"]) > 0
        assert {store.rule for store in sharded.stores} == {whole.stores[0].rule}


@pytest.mark.parametrize("options", [AS_USUAL, STALE], ids=["plain", "corrected"])
@pytest.mark.parametrize("case", CASES)
def test_so_are_they_where_the_policy_changes_to_one_that_applies_stale_gradients_and_back(
    case: str, options: UpdateOptions
) -> None:
    """Resumed on the way as well, in the middle of what a change begins."""
    kind, arguments = CASES[case]
    model = Tensors()
    layout, spec = described(model, kind, GROUPS, **arguments)
    whole, sharded = pair_of(model, layout, spec, 3, options)
    at, courses = 0, [True, False, True] if options is AS_USUAL else [False, True, False]
    for number, may_be_stale in enumerate([None, *courses]):
        for length in (1, 4):
            updates = script(length, seed=number, begin=at, parameters=len(LAYERS) if number == 3 else 0)
            if may_be_stale is False:  # the last gradients of the policy before come first
                updates = [updates[0], *(fresh(update, at + place) for place, update in enumerate(updates) if place)]
            at += length
            for stores in (whole, sharded):
                stores.play(updates, may_be_stale=may_be_stale)
            assert torch.equal(whole.flat, sharded.flat) and torch.isfinite(whole.flat).all()
            assert same(whole.state(), sharded.state())
            sharded = sharded.resumed(2 + number % 2)
    assert {store.corrects for store in [*whole.stores, *sharded.stores]} == {courses[-1]}


def fresh(update: Update, version: int) -> Update:
    """The same with gradients that are not stale."""
    return update._replace(pushes=tuple(push._replace(version=version) for push in update.pushes))


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_so_are_those_of_optimizers_that_cannot_be_corrected(case: str) -> None:
    kind, arguments = PLAIN_CASES[case]
    model = Tensors()
    whole, sharded = pair_of(model, *described(model, kind, GROUPS, **arguments), 3)
    for stores in (whole, sharded):
        stores.play(script(8, parameters=len(LAYERS)))
    assert torch.equal(whole.flat, sharded.flat)


SHAPES = st.lists(
    st.sampled_from([(3, 4), (5,), (), (2, 3, 2), (0, 2), (20, 9), (1, 1), (33, 65)]), min_size=2, max_size=10
)


@given(
    SHAPES, st.lists(st.sampled_from([0, 1, 2, None]), max_size=4), st.sampled_from(list(CASES)), st.integers(2, 5),
    st.booleans(), st.booleans(), st.integers(0, 1000), st.sampled_from([torch.float32, torch.float64]),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
@pytest.mark.slow
def test_whatever_the_model_its_groups_and_its_updates_are(
    shapes: Shapes, groups: list[int | None], case: str, shards: int, corrected: bool, absent: bool, seed: int,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    kind, arguments = CASES[case]
    model = Tensors([(4, 3), *shapes], [dtype])
    layout, spec = described(model, kind, [0, *groups] if groups else (), **arguments)
    whole, sharded = pair_of(model, layout, spec, shards, STALE if corrected else AS_USUAL)
    updates = script(9, seed=seed, parameters=len(shapes) + 1 if absent else 0)
    for stores in (whole, sharded):
        stores.play(updates[:6])
    assert torch.equal(whole.flat, sharded.flat)
    assert same(whole.state(), sharded.state())
    again = sharded.resumed(3)
    for stores in (whole, again):
        stores.play(updates[6:])
    assert torch.equal(whole.flat, again.flat)


@pytest.mark.parametrize("options", [AS_USUAL, STALE], ids=["plain", "corrected"])
@pytest.mark.parametrize("case", ["nesterov", "adamw"])
def test_pieces_chunks_and_many_layers_make_no_difference(
    case: str, options: UpdateOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "LONGEST", 100)
    monkeypatch.setattr(blocks, "CHUNK", 256)
    kind, arguments = CASES[case]
    model = Tensors([(6, 7 + number) for number in range(40)])
    layout, spec = described(model, kind, [0, 0, 1], **arguments)
    whole, sharded = pair_of(model, layout, spec, 3, options)
    for stores in (whole, sharded):
        stores.play(script(6))
    assert len(sharded.parts) == 3 and torch.equal(whole.flat, sharded.flat)
    assert same(whole.state(), sharded.state())


@pytest.mark.slow
@pytest.mark.parametrize("options", [AS_USUAL, STALE], ids=["plain", "corrected"])
@pytest.mark.parametrize("case", ["momentum", "adamw"])
def test_nor_do_those_of_large_layers(case: str, options: UpdateOptions) -> None:
    kind, arguments = CASES[case]
    model = Tensors([(701, 503), (503,), (1203, 1001), (77,), (311, 1009)])
    whole, sharded = pair_of(model, *described(model, kind, **arguments), 3, options)
    for stores in (whole, sharded):
        stores.play(script(3))
    assert len(sharded.parts) == 3 and torch.equal(whole.flat, sharded.flat)


@pytest.mark.parametrize("options", [AS_USUAL, STALE], ids=["plain", "corrected"])
@pytest.mark.parametrize("every", ["epoch", "round", 9])
def test_schedules_are_the_same_in_all_parts(every: str | int, options: UpdateOptions) -> None:
    model = Tensors()
    layout, spec = described(model, optim.SGD, GROUPS, lr=0.1, momentum=0.9)
    spec = spec._replace(scheduler=partial(lr_scheduler.StepLR, step_size=1, gamma=0.5), scheduler_every=every)
    whole, sharded = pair_of(model, layout, spec, 3, options)
    for stores in (whole, sharded):
        stores.open()
        stores.play(script(10))
    assert {store.rates for store in sharded.stores} == {whole.stores[0].rates}
    assert whole.stores[0].learning_rate < 0.1
    assert torch.equal(whole.flat, sharded.flat) and same(whole.state(), sharded.state())


@pytest.mark.parametrize("options", [AS_USUAL, STALE], ids=["plain", "corrected"])
@pytest.mark.parametrize("case", ["momentum", "adamw"])
def test_parameters_without_a_gradient_stay_as_they_are(case: str, options: UpdateOptions) -> None:
    kind, arguments = CASES[case]
    model = Tensors()
    whole, sharded = pair_of(model, *described(model, kind, GROUPS, **arguments), 3, options)
    for update in script(10, parameters=len(LAYERS)):
        whole.apply(update)
        sharded.apply(update)
        assert torch.equal(whole.flat, sharded.flat)
    assert same(whole.state(), sharded.state())


@pytest.mark.parametrize("dtypes", [[torch.float32, torch.bfloat16], [torch.float64, torch.float32]], ids=str)
@pytest.mark.parametrize("options", [AS_USUAL, STALE], ids=["plain", "stale"])
@pytest.mark.parametrize("case", ["momentum", "adamw"])
def test_parts_of_a_model_of_several_types_are_held_as_the_whole_is(
    case: str, options: UpdateOptions, dtypes: list[torch.dtype]
) -> None:
    kind, arguments = CASES[case]
    model = Tensors([(4, 5), (3, 7), (20, 3), (9,), (30, 1)], dtypes)
    whole, sharded = pair_of(model, *described(model, kind, **arguments), 4, options)
    assert {store.flat.dtype for store in sharded.stores} == {dtypes[0]}
    for stores in (whole, sharded):
        stores.play(script(6, parameters=5))
    assert torch.equal(whole.flat, sharded.flat) and same(whole.state(), sharded.state())
    assert {store.rule for store in sharded.stores} == {whole.stores[0].rule}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_short_types_are_the_same_to_the_bit_where_an_update_is_one_gradient(dtype: torch.dtype) -> None:
    model = Tensors(dtypes=[dtype])
    whole, sharded = pair_of(model, *described(model, optim.SGD, lr=0.1, momentum=0.9), 3)
    alone = [update._replace(pushes=update.pushes[:1]) for update in script(8)]
    for stores in (whole, sharded):
        stores.play(alone)
    assert torch.equal(whole.flat, sharded.flat)
    for stores in (whole, sharded):
        stores.play(script(8, begin=8))
    torch.testing.assert_close(whole.flat, sharded.flat, rtol=0.05, atol=0.05)


# -- statistics --


@pytest.mark.parametrize("options", [AS_USUAL, STALE], ids=["plain", "corrected"])
@pytest.mark.parametrize("case", ["sgd", "momentum", "adamw", "rmsprop"])
def test_statistics_of_parts_add_up(case: str, options: UpdateOptions) -> None:
    kind, arguments = CASES[case]
    model = Tensors(dtypes=[torch.float64])
    whole, sharded = pair_of(model, *described(model, kind, **arguments), 3, options)
    updates = script(8)
    for one, other in zip(*(stores.play(updates, statistics=True) for stores in (whole, sharded)), strict=True):
        assert one is not None and other is not None
        assert (one.gradients, one.loss, one.lr_scaling) == (other.gradients, other.loss, other.lr_scaling)
        assert other.squared_norm == pytest.approx(one.squared_norm, rel=1e-12)
        assert other.variance == (None if one.variance is None else pytest.approx(one.variance, rel=1e-9))
        if kind is optim.SGD:
            assert one.learning_rate == other.learning_rate
        elif one.learning_rate is not None:
            assert other.learning_rate == pytest.approx(one.learning_rate, rel=0.3)


def test_what_one_part_cannot_say_nobody_can() -> None:
    seen = Statistics(2, 4.0, 1.0, 0.5, 0.1, "linear")
    assert merged_statistics([seen, None]) is None
    assert merged_statistics([seen]) == seen
    assert merged_statistics([seen, seen]) == Statistics(2, 8.0, 2.0, 0.5, 0.1, "linear")


def test_the_size_of_a_step_is_a_mean_over_the_parts_that_know_it() -> None:
    def merged(*known: tuple[float, float | None]) -> float | None:
        seen = merged_statistics([Statistics(1, norm, learning_rate=size) for norm, size in known])
        assert seen is not None
        return seen.learning_rate

    assert merged((1.0, None), (1.0, None)) is None
    assert merged((1.0, None), (1.0, 0.1)) == 0.1
    assert merged((3.0, 0.2), (1.0, 0.4)) == pytest.approx(0.25)
    assert merged((0.0, 0.2), (0.0, 0.4)) == pytest.approx(0.3)


# -- states --


@pytest.mark.parametrize("absent", [0, len(LAYERS)], ids=["all there", "some absent"])
@pytest.mark.parametrize("options", [AS_USUAL, STALE], ids=["plain", "corrected"])
@pytest.mark.parametrize("case", CASES)
def test_a_run_goes_on_with_any_number_of_parts(case: str, options: UpdateOptions, absent: int) -> None:
    kind, arguments = CASES[case]
    model = Tensors()
    layout, spec = described(model, kind, GROUPS, **arguments)
    spec = spec._replace(scheduler=partial(lr_scheduler.StepLR, step_size=1, gamma=0.5))
    never_stopped = Stores(layout, flat_of(model), spec, None, options)
    never_stopped.open()
    stores = Stores(layout, flat_of(model), spec, None, options)
    stores.open()
    updates = script(12, parameters=absent)
    for begin, shards in zip(range(0, 12, 3), [2, 3, 1, None], strict=True):
        never_stopped.play(updates[begin : begin + 3])
        stores.play(updates[begin : begin + 3])
        assert torch.equal(never_stopped.flat, stores.flat)
        state = stores.state()
        assert same(state, never_stopped.stores[0].state())
        stores = stores.resumed(shards)
        assert same(state, stores.state())


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_states_of_other_optimizers_are_cut_and_merged_as_well(case: str) -> None:
    kind, arguments = PLAIN_CASES[case]
    going_on(Tensors(), kind, GROUPS, arguments)


@pytest.mark.parametrize(
    ("kind", "shapes"),
    [(WholeTensors, LAYERS), (optim.Adafactor, [(3, 4), (5,), (7, 7), (9, 2)]), (optim.Muon, [(3, 4), (5, 2), (7, 7)])],
)
def test_what_is_known_of_whole_tensors_stays_with_them(kind: Any, shapes: Shapes) -> None:
    going_on(Tensors(shapes), kind, [0, 1], {"lr": 0.01})


def going_on(model: nn.Module, kind: Any, groups: Sequence[int | None], arguments: dict[str, Any]) -> None:
    layout, spec = described(model, kind, groups, **arguments)
    never_stopped, stores = pair_of(model, layout, spec, 2)
    updates = script(9, parameters=len(layout.parameters))
    for begin, shards in zip(range(0, 9, 3), [3, 1, None], strict=True):
        never_stopped.play(updates[begin : begin + 3])
        stores.play(updates[begin : begin + 3])
        assert torch.equal(never_stopped.flat, stores.flat)
        assert same(stores.state(), never_stopped.state())
        stores = stores.resumed(shards)
        assert same(stores.state(), never_stopped.state())


def test_an_optimizer_begins_with_a_state_in_all_parts() -> None:
    """What one of its parameters missed the parts must know, though only one of them has it."""
    model = Tensors()
    plain = optim.AdamW(model.parameters(), lr=0.01)
    for step in range(4):
        for number, parameter in enumerate(model.parameters()):
            parameter.grad = torch.ones_like(parameter) if step or number else None
        plain.step()
    layout, spec = described(model, optim.AdamW, lr=0.01)
    whole, sharded = pair_of(model, layout, spec._replace(state=plain.state_dict()), 3)
    states = split_state(whole.stores[0].state(), sharded.parts)
    for part, store, state in zip(sharded.parts, sharded.stores, states, strict=True):
        store.resume(part.of(whole.flat), state)
    for stores in (whole, sharded):
        stores.play(script(6))
    assert torch.equal(whole.flat, sharded.flat) and same(whole.state(), sharded.state())


def test_parts_that_know_different_things_are_told_apart_in_the_whole() -> None:
    model = Tensors([(3, 4), (4, 5)])
    layout, spec = described(model, optim.AdamW, lr=0.01)
    sharded = Stores(layout, flat_of(model), spec, 2)
    sharded.play(script(2))
    states = [store.state() for store in sharded.stores]
    states[1]["optimizer"]["state"][0]["step"] += 1
    merged = merged_state(sharded.parts, states)
    assert merged["apart"] and [float(merged["optimizer"]["state"][at]["step"]) for at in (0, 1)] == [2, 3]


def test_a_state_that_was_merged_or_cut_shares_no_memory() -> None:
    model = Tensors()
    sharded = Stores(*described_with_memory(model), 3, STALE)
    sharded.play(script(3))
    state = sharded.state()
    kept, (before, _) = sharded.flat, taken_apart(state)
    others = split_state(state, sharded.parts)
    for part, store in zip(sharded.parts, Stores(*described_with_memory(model), 3, STALE).stores, strict=True):
        store.resume(part.of(kept), others[sharded.parts.index(part)])
        store.apply([sharded._contribution(script(1, begin=3)[0].pushes[0], part, store)], 4)
    sharded.play(script(2, begin=3))
    again, tensors = taken_apart(state)
    assert before == again and tensors.keys()
    assert same(put_together(again, tensors), state)


def described_with_memory(model: nn.Module) -> tuple[Layout, Tensor, Any]:
    layout, spec = described(model, optim.SGD, lr=0.1, momentum=0.9)
    return layout, flat_of(model), spec


# -- gradients without a fate --


@pytest.mark.parametrize("options", [AS_USUAL, STALE], ids=["plain", "corrected"])
def test_gradients_without_a_fate_are_cut_and_merged(options: UpdateOptions) -> None:
    model = Tensors()
    layout, spec = described(model, optim.SGD, lr=0.1)
    aggregation = Aggregation(ParameterStore(layout, flat_of(model), spec, options), statistics=False)
    pending = [(Gradient(worker, 5), worker) for worker in range(3)]
    for gradient, seat in pending:
        vector, pulled = torch.randn(layout.parameter_count), flat_of(model) if options.may_be_stale else None
        aggregation.hand_in(seat, vector, 3.0, pulled, (0, 4) if seat else ())
        aggregation.set_aside(gradient, seat, 7)
    kept = aggregation.kept(pending)
    two, three = (parts_of(layout, spec, shards) for shards in (2, 3))
    again = merged_pending(three, split_pending(merged_pending(two, split_pending(kept, two)), three))
    assert same(again, [(*entry[:3], None, *entry[4:]) for entry in kept])
    if options.may_be_stale:
        assert len({id(entry[4]) for entry in again}) == 1  # one copy for all that were computed on it
        assert [len({id(entry[4]) for entry in own}) for own in split_pending(kept, three)] == [1, 1, 1]
    resumed = Aggregation(ParameterStore(layout, flat_of(model), spec, options), statistics=False)
    resumed.resume(again)
    assert resumed.view() == aggregation.view()


def test_the_layout_of_a_part_says_nothing_of_other_tensors() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    parts = parts_of(*described(model, optim.SGD, lr=0.1), 2)
    assert [(part.layout.others, part.layout.keys, part.layout.mixed) for part in parts] == [((), (), False)] * 2
    assert layout_of(model).others

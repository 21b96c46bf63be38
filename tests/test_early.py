"""Gradients that go ahead of their push: which are final, when it pays, and that nobody can tell the difference."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Sequence

import pytest
import torch
from fake_link import FakeLink, segment_of
from torch import Tensor, nn

from paceline.training.early import (
    LEAST_GAIN,
    RESTS,
    STEADY_STEPS,
    TERM,
    EarlyGradients,
    Experience,
    Stage,
)
from paceline.training.layout import layout_of
from paceline.training.replica import Replica
from paceline.training.worker import Worker

SIDE = 400  # 640 kB of float32: more than a piece


class FakeWay:
    """A wire that is busy for a second per step."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int]] = []
        self.said: list[str] = []
        self.seconds = 0.0
        self.per_step = 1.0

    def send(self, begin: int, end: int) -> None:
        self.sent.append((begin, end))

    def keep(self) -> None:
        self.said.append("keep")

    def drop(self) -> None:
        self.said.append("drop")

    def lend(self, gradients: Sequence[Tensor]) -> bool:
        """Whoever sends stretches here is to find them in the segment."""
        return False

    def busy(self) -> float | None:
        self.seconds += self.per_step
        return self.seconds


class Loop:
    """A model, its gradients, and a clock that goes on by a second at each look."""

    def __init__(self, model: nn.Module | None = None) -> None:
        torch.manual_seed(1)
        self.model = model or nn.Sequential(nn.Linear(SIDE, SIDE), nn.Tanh(), nn.Linear(SIDE, SIDE))
        self.segment = segment_of(layout_of(self.model))
        self.replica = Replica(self.model, self.segment)
        self.way = FakeWay()
        self._now = 0.0
        self.early = EarlyGradients(self.replica._on_device, self.replica._slot_list, self.way, self._tick)

    def _tick(self) -> float:
        self._now += 1
        return self._now

    def backward(self, size: int = SIDE) -> None:
        self.model(torch.randn(2, size)).pow(2).sum().backward()

    def settle(self, *, scaled: bool = False) -> set[int]:
        """As a step does."""
        there = set(self.early.settle(scaled=scaled))
        self.replica.hand_in(self.replica.absent(), there)
        return there

    def step(self, change: Callable[[nn.Module], object] = lambda model: None) -> set[int]:
        self.model.zero_grad()
        self.backward()
        change(self.model)
        return self.settle()

    def learn(self) -> None:
        for _ in range(STEADY_STEPS):
            assert self.step() == set()
        assert self.stage is Stage.SENDS and not self.way.sent

    @property
    def stage(self) -> Stage:
        return self.early.experience.stage

    @property
    def expected(self) -> Tensor:
        gradients = [parameter.grad for parameter in self.model.parameters()]
        zeros = [torch.zeros_like(parameter) for parameter in self.model.parameters()]
        return torch.cat(
            [(zero if one is None else one.to_dense()).reshape(-1) for one, zero in zip(gradients, zeros, strict=True)]
        )

    def is_right(self) -> bool:
        return torch.equal(self.segment.gradient, self.expected)


# -- what the steps of a loop lead to --


def walk(experience: Experience, steps: int, steady: bool = True, gain: float | None = 1.0) -> Stage:
    for _ in range(steps):
        experience.note(steady, gain)
    return experience.stage


def test_every_transition_of_the_table() -> None:
    experience = Experience(LEAST_GAIN)
    assert walk(experience, STEADY_STEPS - 1) is Stage.LEARNS
    assert walk(experience, 1) is Stage.SENDS
    assert walk(experience, TERM - 1, gain=None) is Stage.SENDS
    assert walk(experience, 1, gain=None) is Stage.LEARNS
    assert walk(experience, 1, gain=LEAST_GAIN / 2) is Stage.RESTS
    assert walk(experience, RESTS[0] - 1) is Stage.RESTS
    assert walk(experience, 1) is Stage.LEARNS
    assert walk(experience, 1, steady=False) is Stage.RESTS
    assert walk(experience, 2 * RESTS[0] - 1) is Stage.RESTS
    assert walk(experience, 1) is Stage.LEARNS
    assert walk(experience, STEADY_STEPS) is Stage.SENDS
    assert walk(experience, 1, steady=False) is Stage.RESTS
    assert walk(experience, 4 * RESTS[0]) is Stage.LEARNS


def test_a_loop_that_always_changes_gradients_is_looked_at_ever_more_seldom() -> None:
    experience, looks = Experience(0.0), 0
    for _ in range(20_000):
        looks += experience.stage is not Stage.RESTS
        experience.note(False)
    assert looks < 40


def test_where_nobody_knows_what_the_wire_does_nothing_is_sent_ahead() -> None:
    assert walk(Experience(0.0), STEADY_STEPS, gain=None) is Stage.RESTS


# -- which gradients are final --


def test_gradients_that_stay_as_they_are_made_go_ahead() -> None:
    loop = Loop()
    loop.learn()
    there = loop.step()
    assert {0, 2} <= there and loop.is_right()  # the weights; a bias that comes after the last piece waits
    assert loop.way.said == ["drop", "keep"]
    numbers = torch.zeros_like(loop.segment.gradient)
    for begin, end in loop.way.sent:
        numbers[begin:end] += 1
    begins = loop.early._begins
    for number in range(4):
        assert (numbers[begins[number] : begins[number + 1]] == (number in there)).all()


def clip(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)


def clamp_data(model: nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.data.clamp_(-1e-3, 1e-3)


def write_by_numpy(model: nn.Module) -> None:
    parameter = next(model.parameters())
    assert parameter.grad is not None
    parameter.grad.numpy()[0, 0] = 7.0


def replace(model: nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad = 2 * parameter.grad


def remove_one(model: nn.Module) -> None:
    next(model.parameters()).grad = None


def again(model: nn.Module) -> None:
    model(torch.randn(2, SIDE)).sum().backward()


CHANGES = [clip, clamp_data, write_by_numpy, replace, remove_one, again]


@pytest.mark.parametrize("change", CHANGES)
def test_a_gradient_that_was_changed_is_sent_whole_and_nothing_goes_ahead_for_a_while(
    change: Callable[[nn.Module], object],
) -> None:
    loop = Loop()
    loop.learn()
    loop.step()
    assert loop.way.said[-1] == "keep"
    assert loop.step(change) == set() and loop.is_right()
    assert loop.way.said[-1] == "drop" and loop.stage is Stage.RESTS
    sent = len(loop.way.sent)
    for _ in range(RESTS[0]):
        assert loop.step(change) == set() and loop.is_right()
    assert len(loop.way.sent) == sent and loop.stage is Stage.LEARNS


@pytest.mark.parametrize("change", [clip, replace, remove_one, again])
def test_a_loop_that_changes_gradients_never_sends_ahead_and_has_no_hooks(
    change: Callable[[nn.Module], object],
) -> None:
    loop = Loop()
    for _ in range(RESTS[0]):
        loop.step(change)
    assert not loop.way.sent and not loop.way.said
    assert not any(parameter._post_accumulate_grad_hooks for parameter in loop.model.parameters())


def test_a_gradient_that_a_scaler_still_has_to_divide_is_sent_whole() -> None:
    loop = Loop()
    loop.learn()
    loop.model.zero_grad()
    loop.backward()
    assert loop.settle(scaled=True) == set() and loop.way.said[-1] == "drop"


def test_gradients_of_a_batch_that_was_given_up_count_for_nothing() -> None:
    loop = Loop()
    loop.learn()
    loop.backward()
    loop.model.zero_grad()
    loop.backward()
    assert loop.settle() == set() and loop.is_right() and loop.way.said[-1] == "drop"


def test_a_wire_that_is_fast_is_left_alone() -> None:
    loop = Loop()
    loop.way.per_step = LEAST_GAIN / 2
    for _ in range(STEADY_STEPS):
        loop.step()
    assert loop.stage is Stage.RESTS


def test_a_step_that_is_long_beside_its_push_is_left_alone() -> None:
    loop = Loop()
    loop.way.per_step = 20 * LEAST_GAIN
    for _ in range(STEADY_STEPS):
        loop._now += 30 * loop.way.per_step
        loop.step()
    assert loop.stage is Stage.RESTS


class Odd(nn.Module):
    """A sparse gradient, a parameter that is used every other time, one that never is, and one of another type."""

    def __init__(self) -> None:
        super().__init__()
        self.many = nn.Embedding(SIDE, SIDE, sparse=True)
        self.first, self.second = nn.Linear(SIDE, SIDE), nn.Linear(SIDE, SIDE)
        self.unused = nn.Linear(SIDE, SIDE)
        self.small = nn.Linear(SIDE, SIDE).bfloat16()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        hidden = self.first(x) + self.many(torch.tensor([1, 2]))
        if self.calls % 2:
            hidden = self.second(hidden)
        return self.small(hidden.bfloat16())


def test_absent_sparse_and_other_gradients_wait_for_the_push() -> None:
    loop = Loop(Odd())
    loop.learn()
    names = list(loop.replica.parameters)
    for _ in range(4):
        there = loop.step()
        assert loop.is_right() and loop.way.said[-1] == "keep"
        assert {names[number] for number in there} <= {"first.weight", "first.bias", "second.weight", "second.bias"}
        assert names.index("first.weight") in there


def test_minus_zero_is_not_zero() -> None:
    loop = Loop(nn.Linear(SIDE, 2 * SIDE, bias=False))
    loop.learn()

    def negate(model: nn.Module) -> None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.data.mul_(-1)

    loop.model.zero_grad()
    (0.0 * loop.model(torch.randn(2, SIDE))).sum().backward()
    negate(loop.model)
    assert loop.settle() == set() and loop.way.said[-1] == "drop"


# -- what else a user does with a model --


@pytest.mark.parametrize("sends", [False, True])
def test_a_model_can_be_copied_saved_pickled_and_compiled(sends: bool) -> None:
    loop = Loop()
    if sends:
        loop.learn()
        loop.step()
    twin = copy.deepcopy(loop.model)
    for parameter in twin.parameters():
        assert not parameter._post_accumulate_grad_hooks
    file = io.BytesIO()
    torch.save(loop.model, file)
    file.seek(0)
    for other in (torch.load(file, weights_only=False), pickle.loads(pickle.dumps(loop.model)), twin):
        other(torch.randn(2, SIDE)).sum().backward()
    assert not loop.early._made
    loop.model.zero_grad()
    torch.compile(loop.model, backend="eager", fullgraph=True)(torch.randn(2, SIDE)).sum().backward()
    assert loop.settle() or not sends
    assert loop.is_right() and (loop.way.said[-1] == "keep" if sends else loop.stage is Stage.LEARNS)


def test_a_worker_has_hooks_only_where_gradients_travel_and_are_many() -> None:
    for way, side, hooked in [(None, SIDE, False), (FakeWay(), 3, False), (FakeWay(), SIDE, True)]:
        link, model = FakeLink(), nn.Linear(side, 2 * side)
        link.ahead = way
        Worker(0, link, seed=1).optimizer(model, torch.optim.SGD, lr=0.1)
        assert bool(model.weight._post_accumulate_grad_hooks) is hooked  # type: ignore[attr-defined]


@pytest.mark.parametrize("not_finite", [False, True])
def test_training_comes_to_the_same_bits_with_and_without(not_finite: bool) -> None:
    def trained(way: FakeWay | None) -> tuple[Tensor, list[float], int]:
        torch.manual_seed(2)
        link, model = FakeLink(), nn.Sequential(nn.Linear(SIDE, SIDE), nn.Tanh(), nn.Linear(SIDE, SIDE))
        link.ahead = way
        optimizer = Worker(0, link, seed=1, not_finite="skip").optimizer(model, torch.optim.SGD, lr=1e-4, momentum=0.9)
        if optimizer._early is not None:
            optimizer._early.experience = Experience(0.0)
        for turn in range(3 * STEADY_STEPS):
            optimizer.zero_grad()
            x = torch.randn(4, SIDE)
            if not_finite and turn == 2 * STEADY_STEPS:
                x[0, 0] = float("nan")
            loss = model(x).pow(2).sum()
            loss.backward()
            optimizer.step(loss, samples=4)
        return link.segment.parameters.clone(), [pushed.squared_norm for pushed in link.pushed], len(link.skipped)

    way = FakeWay()
    early, late = trained(way), trained(None)
    assert torch.equal(early[0], late[0]) and early[1:] == late[1:]
    assert way.sent and "keep" in way.said and early[2] == int(not_finite)


# -- gradients that are sent from where they lie --


class Lender(FakeWay):
    """A wire that takes them, or not."""

    def __init__(self, takes: bool = True) -> None:
        super().__init__()
        self.takes = takes
        self.lent: list[Tensor] = []

    def lend(self, gradients: Sequence[Tensor]) -> bool:
        if self.takes:
            self.lent = list(gradients)
        return self.takes


def test_long_gradients_are_lent_and_the_segment_stays_as_it_is() -> None:
    loop, way = Loop(), Lender()
    loop.backward()
    norm = loop.replica.lend(way)
    own = [parameter.grad for parameter in loop.model.parameters()]
    assert all(lent is gradient for lent, gradient in zip(way.lent, own, strict=True))
    assert not loop.segment.gradient.any()
    assert norm == pytest.approx(loop.replica.hand_in(), rel=1e-4)


@pytest.mark.parametrize("why", ["short", "absent", "not finite", "strided", "a shard sees the segment"])
def test_gradients_that_cannot_cross_as_they_are_are_handed_in(why: str) -> None:
    loop = Loop(nn.Linear(10, 10)) if why == "short" else Loop()
    way = Lender(takes=why != "a shard sees the segment")
    loop.backward(10 if why == "short" else SIDE)
    first = next(loop.model.parameters())
    assert first.grad is not None
    if why == "absent":
        first.grad = None
    elif why == "not finite":
        first.grad[0, 0] = float("inf")
    elif why == "strided":
        first.grad = first.grad.t().contiguous().t()
    assert loop.replica.lend(way) is None and not way.lent


def test_training_with_lent_gradients_comes_to_the_same_bits() -> None:
    def trained(way: FakeWay | None) -> Tensor:
        link, model = FakeLink(), nn.Sequential(nn.Linear(SIDE, SIDE), nn.BatchNorm1d(SIDE), nn.Linear(SIDE, SIDE))
        torch.manual_seed(2)
        link.ahead = way
        optimizer = Worker(0, link, seed=1).optimizer(model, torch.optim.SGD, lr=1e-4)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, SIDE)).pow(2).sum().backward()
            if isinstance(way, Lender):
                way.into = link.segment.gradient
            optimizer.step(samples=4)
        return torch.cat([link.segment.parameters, *(other.flatten() for other in link.segment.others.values())])

    class Delivers(Lender):
        """To whoever is at the other end."""

        into: Tensor

        def lend(self, gradients: Sequence[Tensor]) -> bool:
            self.into.copy_(torch.cat([gradient.flatten() for gradient in gradients]))
            return super().lend(gradients)

    torch.manual_seed(3)
    lent = trained(way := Delivers())
    torch.manual_seed(3)
    assert torch.equal(lent, trained(None)) and way.lent

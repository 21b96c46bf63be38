"""Switching the policy of a run while it goes on: in virtual time, on stores, and what becomes of moments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, permutations
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
import torch.nn.functional as F
from group import handle
from record_keeper import RecordKeeper
from test_conformance import EPOCHS, task
from test_policy_change import PAIRED
from test_stale_gradients import ASYNCHRONOUS, push, store_of
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from paceline.core.coordinator import Coordinator
from paceline.core.errors import ConfigurationError, TraceError
from paceline.core.messages import ApplyUpdate, PolicyChanged, UpdateApplied
from paceline.experiment.chaos.virtual import BATCH, SAMPLES, Books
from paceline.experiment.foresight import foresee
from paceline.experiment.retraining import retrain
from paceline.experiment.simulation import Simulation, Switch, policy_for, simulate
from paceline.experiment.virtual_training import train_virtually
from paceline.lifecycle.lifecycle import Lifecycle
from paceline.lifecycle.messages import SizeRequested
from paceline.lifecycle.work import Work
from paceline.policies import policy
from paceline.recording.replay import first_difference
from paceline.recording.trace import Trace
from paceline.runtimes.serving.control import Refused, Scale, Scaled
from paceline.runtimes.serving.control import Switch as SwitchRequest
from paceline.runtimes.serving.loop import Loop
from paceline.runtimes.serving.requests import Requests
from paceline.runtimes.simulated.simulator import PolicySwitch, RunEnd, SimulatedWorker, Simulator
from paceline.runtimes.speeds import Lognormal
from paceline.training.choices import UpdateOptions
from paceline.training.parameters import ParameterStore
from paceline.training.stale.moments import Moment, WorkerMoments
from paceline.training.task import Task
from paceline.training.trees import put_together, taken_apart
from paceline.training.updates import Contribution

GROUP = Simulation(intervals=(1.0, 1.1, 1.3, 3.0), jitter=0.2, seed=5)
TOGETHER = 8  # switches of one run


def switched(*switches: tuple[str, float], **changes: Any) -> Simulation:
    return msgspec.structs.replace(GROUP, switches=tuple(Switch(*switch) for switch in switches), **changes)


# -- in virtual time --


def switch_to_and_fro(first: str, second: str, seed: int) -> int:
    """A run that changes between two policies at random moments, with a worker that joins and one that fails; every
    sample is applied once, and its events lead to the same commands. Returns how often it changed."""
    chance, keeper = Random(seed), RecordKeeper()
    workers = [
        SimulatedWorker(number, Lognormal(mean, 0.3).start(f"{seed}/{number}"), joins, fails)
        for number, (mean, joins, fails) in enumerate(
            [(1, 0, None), (1, 0, chance.uniform(3, 12)), (1, 5, None), (3, 0, None)]
        )
    ]
    times = sorted(chance.uniform(0, 16) for _ in range(TOGETHER))
    switches = [PolicySwitch(at, policy((second, first)[number % 2])) for number, at in enumerate(times)]
    books = Books(Work(SAMPLES, BATCH), 1)
    simulator = Simulator(
        workers, Coordinator(policy(first)), [keeper], learner=books, switches=switches, think=foresee
    )
    simulator.run(RunEnd())
    assert Counter(books.applied.values()) == {1: SAMPLES}
    again, updates = Coordinator(policy(first)), 0
    for record in keeper.records:
        assert handle(record.event, again, record.now) == record
        updates += sum(isinstance(command, ApplyUpdate) for command in record.commands)
    assert updates == books.version
    return sum(isinstance(record.event, PolicyChanged) and not record.event.by for record in keeper.records)


@pytest.mark.slow
def test_a_thousand_switches_between_all_pairs_of_policies_lose_nothing() -> None:
    pairs = permutations(PAIRED, 2)
    assert sum(switch_to_and_fro(*pair, seed) for seed, pair in enumerate(pairs)) >= 1000


@pytest.mark.parametrize(
    "pair", list(pairwise(["bsp", "asp", "backup:k=2,late=interrupt", "elastic-bsp:lookahead=2", "bsp"]))
)
def test_a_run_that_switches_to_and_fro_loses_nothing(pair: tuple[str, str]) -> None:
    assert switch_to_and_fro(*pair, seed=1) == TOGETHER


def test_a_simulation_switches_when_it_is_told_to_and_replays(tmp_path: Path) -> None:
    keeper = RecordKeeper()
    group = switched(("asp", 10.0), ("asp", 15.0), ("ssp:staleness=1", 20.0), duration=40.0)
    summary = simulate("bsp", group, trace_file=tmp_path / "trace", observers=[keeper])
    changes = [(record.now, record.event) for record in keeper.records if isinstance(record.event, PolicyChanged)]
    assert changes == [(10.0, PolicyChanged("asp")), (20.0, PolicyChanged("ssp:staleness=1"))]
    assert first_difference(Trace(tmp_path / "trace")) is None
    assert summary.policy == "bsp" and [change.policy for change in summary.changes] == ["asp", "ssp:staleness=1"]


@pytest.mark.parametrize(
    ("switch", "problem"),
    [
        (("asp", -1.0), "time of the switch to asp is -1"),
        (("backup:k=9", 1.0), "backup:k=9"),
        (("asap", 1.0), "unknown policy 'asap'"),
    ],
)
def test_a_simulation_refuses_switches_that_are_impossible(switch: tuple[str, float], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        simulate("bsp", switched(switch))


# -- training --

COURSE = [("asp", 3.0), ("bsp", 9.0), ("elastic-bsp:lookahead=2", 15.0), ("dbw", 21.0), ("buffered:size=2", 26.0)]
OPTIMIZERS: dict[str, Any] = {
    "sgd": partial(torch.optim.SGD, lr=0.1),
    "momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "nesterov": partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True),
    "adamw": partial(torch.optim.AdamW, lr=0.01),
    "nadam": partial(torch.optim.NAdam, lr=0.01),
    "adamax": partial(torch.optim.Adamax, lr=0.01),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01, momentum=0.5),
}


@pytest.mark.parametrize("first", ["bsp", "ssp"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_run_that_switched_is_retrained_to_the_bit(optimizer: str, first: str, tmp_path: Path) -> None:
    job = replace(task(), optimizer=OPTIMIZERS[optimizer])
    group = switched(*COURSE, failures={1: 12.0}, joins={2: 4.0})
    result = train_virtually(job, first, group, epochs=3 * EPOCHS, trace_file=tmp_path / "trace")
    trace = Trace(tmp_path / "trace")
    assert first_difference(trace) is None and result.samples == 320 * 3 * EPOCHS
    changes = [record.event for record in trace if isinstance(record.event, PolicyChanged)]
    assert [change.may_be_stale for change in changes] == [True, False, True, False, True]
    assert all("secant" in change.updates.correction for change in changes if change.may_be_stale)
    job = replace(task(), optimizer=OPTIMIZERS[optimizer])
    again = retrain(trace, job, seed=5, threads=torch.get_num_threads())
    for name, tensor in again.parameters.items():
        assert torch.equal(result.model_state[name], tensor)
        assert torch.isfinite(tensor).all()


def test_a_trace_whose_updates_would_be_made_in_another_way_after_a_switch_is_refused(tmp_path: Path) -> None:
    train_virtually(task(), "bsp", switched(("asp", 3.0)), trace_file=tmp_path / "trace")
    with pytest.raises(TraceError, match=r"after the change to asp: .* secant, and these would be with .*: none"):
        retrain(Trace(tmp_path / "trace"), task(), seed=5, stale="none")


def test_a_switch_of_one_worker_leaves_torch_s_optimizer_alone() -> None:
    alone = Simulation(intervals=(1.0,))
    switched_alone = msgspec.structs.replace(alone, switches=(Switch("asp", 3.0), Switch("bsp", 7.0)))
    first, second = (train_virtually(task(), "bsp", group) for group in (alone, switched_alone))
    assert [change.policy for change in second.summary.changes] == ["asp", "bsp"]
    assert all(torch.equal(tensor, second.model_state[name]) for name, tensor in first.model_state.items())


def test_dbw_gets_statistics_from_the_next_update_on(tmp_path: Path) -> None:
    train_virtually(task(), "asp", switched(("dbw", 5.0), ("bsp", 15.0)), epochs=EPOCHS, trace_file=tmp_path / "trace")
    records = list(Trace(tmp_path / "trace"))
    told = [record.now for record in records if isinstance(record.event, UpdateApplied)]
    assert told and 5.0 < min(told) < 9.0 and max(told) < 15.0
    assert any(record.estimates is not None for record in records)


# -- moments --

ROUND = 2  # workers


def a_round(store: ParameterStore, *gradient: float, single: bool = False, may_be_stale: bool | None = None) -> Tensor:
    """Both workers have this gradient. `single`: one after the other, the second on what the first had, too. Returns
    how far the parameters move."""
    before = store.flat.clone()
    contributions = [
        Contribution(
            torch.tensor(gradient, dtype=torch.float64),
            1,
            worker=worker,
            version=store.version,
            staleness=worker * single,
            pulled=before.clone(),
        )
        for worker in range(ROUND)
    ]
    for parts in [[own] for own in contributions] if single else [contributions]:
        store.apply(parts, ROUND, may_be_stale=may_be_stale)
    return store.flat - before


GRADIENT = (1.0, -0.5)
KINDS = [
    *((torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, **more}) for more in ({}, {"nesterov": True}, {"dampening": 0.2})),
    *((kind, {"lr": 0.1}) for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.Adamax)),
    *((torch.optim.RMSprop, {"lr": 0.1, **more}) for more in ({}, {"momentum": 0.9})),
    (torch.optim.Adam, {"lr": 0.1, "betas": (0.0, 0.99)}),
    (torch.optim.SGD, {"lr": 0.1}),
]


@pytest.mark.parametrize(("kind", "arguments"), [own for own in KINDS if own[1].get("betas") is None])
def test_what_is_taken_over_and_handed_back_at_once_is_what_it_was(kind: Any, arguments: dict[str, Any]) -> None:
    store = store_of(kind, UpdateOptions(), **arguments)
    for number in range(30):
        a_round(store, 1.0 + number % 3, -0.5)
    before = {name: value.clone() for name, value in store.optimizer.state[store._tensors[0]].items()}
    store._follow_policy(True, [])
    assert store.corrects and not store.optimizer.state
    store._follow_policy(False, [])
    assert not store.corrects
    after = store.optimizer.state[store._tensors[0]]
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert value.dtype == after[name].dtype
        torch.testing.assert_close(after[name], value, rtol=1e-6 if name == "mu_product" else 1e-12, atol=1e-7)


@pytest.mark.parametrize(("kind", "arguments"), KINDS)
def test_a_gradient_that_lasts_moves_the_model_as_far_before_and_after_a_switch(
    kind: Any, arguments: dict[str, Any]
) -> None:
    store = store_of(kind, UpdateOptions(), **arguments)
    for _ in range(100):
        usual = a_round(store, *GRADIENT)
    for _ in range(3):
        torch.testing.assert_close(a_round(store, *GRADIENT, single=True, may_be_stale=True), usual, rtol=0.03, atol=0)
    assert store.corrects
    for _ in range(3):
        torch.testing.assert_close(a_round(store, *GRADIENT, may_be_stale=False), usual, rtol=0.03, atol=0)
    assert not store.corrects


@pytest.mark.parametrize(("kind", "arguments"), KINDS[:-2])
def test_momentum_carries_on_over_a_switch_and_back(kind: Any, arguments: dict[str, Any]) -> None:
    """Without any gradient the model moves on by what was gathered: about as far with switches as without."""
    if kind is torch.optim.RMSprop and "momentum" not in arguments:
        return
    steady, changing = store_of(kind, UpdateOptions(), **arguments), store_of(kind, UpdateOptions(), **arguments)
    for store in (steady, changing):
        for _ in range(50):
            a_round(store, *GRADIENT)
    moved = [store.flat.clone() for store in (steady, changing)]
    for _ in range(30):
        a_round(steady, 0.0, 0.0)
    for may_be_stale in (True, False):
        a_round(changing, 0.0, 0.0, single=may_be_stale, may_be_stale=may_be_stale)
    for _ in range(28):
        a_round(changing, 0.0, 0.0, may_be_stale=False)
    ratio = (changing.flat - moved[1]) / (steady.flat - moved[0])
    assert ((ratio > 0.7) & (ratio < 1.3)).all(), ratio


@pytest.mark.parametrize(("kind", "arguments"), KINDS)
def test_a_parameter_whose_first_gradient_comes_with_a_switch_does_not_jump(
    kind: Any, arguments: dict[str, Any]
) -> None:
    steady, changing = store_of(kind, UpdateOptions(), **arguments), store_of(kind, UpdateOptions(), **arguments)
    for store in (steady, changing):
        for _ in range(50):
            a_round(store, 1.0, 0.0)
    usual = a_round(steady, 1.0, 1.0)
    assert abs(a_round(changing, 1.0, 1.0, single=True, may_be_stale=True)[1]) < 3 * abs(usual[1])


def test_a_correction_goes_on_until_no_gradient_is_stale() -> None:
    store = store_of(torch.optim.SGD, ASYNCHRONOUS, lr=0.1, momentum=0.9)
    a_round(store, *GRADIENT, single=True, may_be_stale=True)
    old = store.flat.clone()
    push(store, 0, GRADIENT)
    late = Contribution(torch.ones(2, dtype=torch.float64), 1, worker=1, version=2, staleness=1, pulled=old)
    store.apply([late], ROUND, may_be_stale=False)
    assert store.corrects
    a_round(store, *GRADIENT, may_be_stale=False)
    assert not store.corrects


def test_a_store_that_stopped_correcting_resumes_as_such_and_one_that_began_does_too() -> None:
    for options, now in ((UpdateOptions(), True), (ASYNCHRONOUS, False)):
        store, again = (store_of(torch.optim.AdamW, options, lr=0.1) for _ in range(2))
        a_round(store, *GRADIENT)
        a_round(store, *GRADIENT, single=now, may_be_stale=now)
        assert store.corrects is now
        again.resume(store.flat, put_together(*taken_apart(store.state())))
        assert again.corrects is now and again.rule == store.rule
        for one in (store, again):
            a_round(one, *GRADIENT, single=now, may_be_stale=now)
        assert torch.equal(store.flat, again.flat)


def test_a_gradient_without_the_parameters_that_it_was_computed_on_is_taken_for_a_fresh_one() -> None:
    stores = [store_of(torch.optim.SGD, UpdateOptions(), lr=0.1, momentum=0.9) for _ in range(2)]
    for number, store in enumerate(stores):
        a_round(store, *GRADIENT)
        pulled = store.flat.clone() if number else None
        store.apply(
            [Contribution(torch.ones(2, dtype=torch.float64), 1, worker=0, version=1, pulled=pulled)],
            ROUND,
            may_be_stale=True,
        )
    assert torch.equal(stores[0].flat, stores[1].flat)


def test_workers_begin_with_the_group_s_moment_for_a_round_and_then_with_the_mean() -> None:
    moments = WorkerMoments(torch.zeros(1), 1)
    moments.start = Moment(torch.tensor([4.0]), [0.5])
    first = moments.of(0, joined_late=True)
    assert first.vector.tolist() == [4.0] and first.weights == [0.5]
    first.vector.fill_(8.0)
    assert moments.of(1, joined_late=False).vector.tolist() == [4.0]
    moments.start = None
    assert moments.of(2, joined_late=True).vector.tolist() == [6.0]


# -- no bump --


def quadratic(optimizer: Any) -> Task:
    """Curvatures from 1 to 0.01, and noise of 0.01 that no model explains."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(512, 8, generator=generator) * torch.logspace(0, -1, 8)
    y = x.sum(1, keepdim=True) + 0.1 * torch.randn(512, 1, generator=generator)
    model = nn.Linear(8, 1, bias=False)
    nn.init.zeros_(model.weight)
    data = TensorDataset(x, y)
    return Task(model, F.mse_loss, data, data, optimizer, 8)


def losses(optimizer: Any, switches: Sequence[tuple[str, float]]) -> list[float]:
    """After every round of four equal workers that begin under bsp."""
    group = Simulation(
        intervals=(1.0,) * 4, jitter=0.1, switches=tuple(Switch(name, at) for name, at in switches), seed=0
    )
    result = train_virtually(quadratic(optimizer), "bsp", group, epochs=6, evaluate_every=32)
    return [evaluation.figures["loss"] for evaluation in result.evaluations]


def forget_moments(store: ParameterStore, may_be_stale: bool, contributions: Sequence[Contribution]) -> None:
    """What a store would do that carried nothing over."""
    if may_be_stale and not store.corrects:
        store._correction = store._make_correction()
    elif not may_be_stale and not any(contribution.staleness for contribution in contributions):
        store._correction, store._rounds = None, 0.0
    else:
        return
    store.optimizer.state.clear()


TO_AND_FRO = ("asp", "bsp", "elastic-bsp:lookahead=3", "bsp")


@pytest.mark.slow
def test_switches_do_not_hold_momentum_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """On its way down flat directions; a run that forgets what it gathered every six rounds stays behind."""
    optimizer = partial(torch.optim.SGD, lr=0.02, momentum=0.9)
    switches = [(TO_AND_FRO[number % 4], 6.0 + 6 * number) for number in range(12)]
    steady, changing = losses(optimizer, []), losses(optimizer, switches)
    assert changing[-1] < 1.1 * steady[-1]
    monkeypatch.setattr(ParameterStore, "_follow_policy", forget_moments)
    assert losses(optimizer, switches)[-1] > 1.5 * steady[-1]


@pytest.mark.slow
def test_switches_make_no_bump_with_adamw(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the minimum, where an optimizer that begins anew makes a step as long as its rate in every direction."""
    optimizer = partial(torch.optim.AdamW, lr=0.1)
    switches = [("asp", 60.0), ("bsp", 70.0), ("elastic-bsp:lookahead=3", 80.0)]
    steady, changing = losses(optimizer, []), losses(optimizer, switches)
    usual = max(steady[60:])
    assert max(changing[60:]) < 1.1 * usual
    monkeypatch.setattr(ParameterStore, "_follow_policy", forget_moments)
    assert max(losses(optimizer, switches)[60:]) > 1.5 * usual


# -- requests --


def test_requests_that_cannot_be_met_are_refused_and_change_nothing() -> None:
    lifecycle = Lifecycle(Coordinator(policy("backup:k=2")), range(3))
    delivered: list[Any] = []
    over: list[bool] = []
    port = SimpleNamespace(aggregation=None)
    requests, others = (Requests(lifecycle, port, None, choose, largest=3) for choose in (policy_for, None))  # type: ignore[arg-type]
    for own in (requests, others):
        own.attach(Loop(), delivered.append, lambda: bool(over), lambda: False)
    refusals = [requests._answer(Scale(0)), requests._answer(Scale(1)), requests._answer(SwitchRequest("asp"))]
    assert [refusal.reason for refusal in refusals if isinstance(refusal, Refused)] == [
        "0 workers: there must be at least 1",
        "policy 'backup:k=2': k=2 gradients per update need at least 2 workers, and there are 1",
        "the group has not begun yet: ask again when it trains",
    ]
    assert others._answer(SwitchRequest("asp")) == Refused("the policy of this run cannot be switched")
    assert requests._answer(Scale(2)) == Scaled(3) and delivered == [SizeRequested(2)]  # nobody carries it out here
    with pytest.raises(ConfigurationError, match="has not begun yet"):
        requests.want("asp")
    over.append(True)
    assert requests._answer(SwitchRequest("asp")) == Refused("its training is over")
    requests.want("asp")
    requests.look()
    assert delivered == [SizeRequested(2)]

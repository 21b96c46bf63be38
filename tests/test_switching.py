"""Switching the policy of a run while it goes on: in virtual time, on stores, and what becomes of moments."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import pairwise, permutations
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import torch
from record_keeper import RecordKeeper
from test_conformance import EPOCHS, task
from test_policy_change import PAIRED

from paceline.core.coordinator import Coordinator
from paceline.core.errors import ConfigurationError, TraceError
from paceline.core.messages import ApplyUpdate, PolicyChanged
from paceline.experiment.chaos.virtual import BATCH, SAMPLES, Books
from paceline.experiment.retraining import retrain
from paceline.experiment.simulation import Simulation, Switch, simulate
from paceline.experiment.virtual_training import train_virtually
from paceline.lifecycle.work import Work
from paceline.policies import policy
from paceline.recording.replay import first_difference
from paceline.recording.trace import Trace
from paceline.runtimes.simulated.simulator import PolicySwitch, RunEnd, SimulatedWorker, Simulator
from paceline.runtimes.speeds import Lognormal

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
        for number, (mean, joins, fails) in enumerate([(1, 0, None), (1, 0, chance.uniform(3, 12)), (1, 5, None), (3, 0, None)])
    ]
    times = sorted(chance.uniform(0, 16) for _ in range(TOGETHER))
    switches = [PolicySwitch(at, policy((second, first)[number % 2])) for number, at in enumerate(times)]
    books = Books(Work(SAMPLES, BATCH), 1)
    simulator = Simulator(workers, Coordinator(policy(first)), [keeper], learner=books, switches=switches)
    simulator.run(RunEnd())
    assert Counter(books.applied.values()) == {1: SAMPLES}
    again, updates = Coordinator(policy(first)), 0
    for record in keeper.records:
        if isinstance(record.event, PolicyChanged):
            repeated = again.change_policy(policy(record.event.policy), record.now)
        else:
            repeated = again.handle(record.event, record.now)
        assert repeated == record
        updates += sum(isinstance(command, ApplyUpdate) for command in record.commands)
    assert updates == books.version
    return sum(isinstance(record.event, PolicyChanged) for record in keeper.records)


@pytest.mark.slow
def test_a_thousand_switches_between_all_pairs_of_policies_lose_nothing() -> None:
    pairs = permutations(PAIRED, 2)
    assert sum(switch_to_and_fro(*pair, seed) for seed, pair in enumerate(pairs)) >= 1000


@pytest.mark.parametrize("pair", list(pairwise(["bsp", "asp", "backup:k=2,late=interrupt", "elastic-bsp:lookahead=2", "bsp"])))
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

"""How many shards a group needs, and simulations in which messages, bytes and updates take time."""

from __future__ import annotations

import pytest
from record_keeper import RecordKeeper

from paceline.core.coordinator import Coordinator
from paceline.core.errors import ConfigurationError
from paceline.experiment.capacity import (
    HEADROOM,
    Costs,
    Group,
    demand,
    descriptors_needed,
    durations_of,
    memory_of,
    shards_needed,
    simulated_pace,
)
from paceline.experiment.simulation import Simulation, policy_for, simulated_workers, worker_speeds
from paceline.policies import POLICIES
from paceline.runtimes.simulated.costly import CostlySimulator, Durations, Queue
from paceline.runtimes.simulated.simulator import RunEnd, Simulator

COSTS = Costs(
    decision=1e-4, per_shard=1e-5, words=5e-5, received=1e-9, sent=2e-9, update=1e-9, wire=1e9, memory=64 * 2**30
)


def test_what_one_push_costs_with_two_shards() -> None:
    durations = durations_of(Group(10, 1.0, 1_000_000), COSTS, 2)
    assert durations.decision == pytest.approx(1.2e-4)  # and 1e-5 for each of two shards
    assert durations.wire_in == durations.wire_out == pytest.approx(2e-3)  # 2 MB at 1 GB/s
    assert durations.take_in == pytest.approx(5e-5 + 2e-3)
    assert durations.update == pytest.approx(5e-4)
    assert durations.hand_out == pytest.approx(4e-3)
    assert not durations.one_process and durations_of(Group(10, 1.0, 1_000_000), COSTS, 1).one_process


def test_compression_is_about_gradients_only() -> None:
    durations = durations_of(Group(10, 1.0, 1_000_000, bytes_per_number=1.0), COSTS, 1)
    assert durations.wire_in == pytest.approx(durations.wire_out / 4)


def test_one_server_does_the_work_of_both() -> None:
    found = demand(Group(10, 1.0, 1_000_000), COSTS, 1)
    each = 1e-4 + 5e-5 + 4e-3 + 1e-3 + 8e-3
    assert found.server == found.shard == pytest.approx(10 * each)
    assert found.busiest[0] in ("server", "shard") and found.fits


def test_memory_is_two_vectors_per_worker_however_few_of_them_wait() -> None:
    group = Group(1_000, 0.5, 10_000_000, state=1)
    assert memory_of(group, 1) == pytest.approx(2_002 * 4e7)  # 80 GB
    assert memory_of(group, 8) == pytest.approx(memory_of(group, 1) / 8)
    assert memory_of(Group(1_000, 0.5, 10_000_000, set_aside=1_000), 1) == pytest.approx(3_002 * 4e7)


def test_the_fewest_shards_that_are_enough() -> None:
    group = Group(1_000, 1.0, 1_000_000)
    found = shards_needed(group, COSTS)
    assert found is not None and found.fits and found.busiest[1] <= HEADROOM
    assert not demand(group, COSTS, found.shards - 1).fits


def test_memory_alone_may_ask_for_more_shards() -> None:
    few = Group(1_000, 1_000.0, 10_000_000)  # one push a second
    found = shards_needed(few, COSTS)
    assert found is not None and found.shards == 2 and demand(few, COSTS, 1).busiest[1] < 0.2


def test_no_number_of_shards_helps_a_server_that_cannot_decide_so_often() -> None:
    assert shards_needed(Group(100_000, 1.0, 1_000), COSTS) is None


def test_descriptors() -> None:
    assert descriptors_needed(Group(1_000, 1.0, 1)) == 6_000


@pytest.mark.parametrize("what", ["workers", "seconds", "parameters", "bytes_per_number"])
def test_nothing_is_not_a_group(what: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{what} is 0; it must be a number above 0"):
        Group(**{"workers": 1, "seconds": 1.0, "parameters": 1, what: 0})


def test_a_queue_serves_one_after_the_other() -> None:
    queue = Queue()
    assert [queue.serve(0.0, 2.0), queue.serve(1.0, 2.0), queue.serve(9.0, 1.0)] == [2.0, 4.0, 10.0]
    assert queue.busy == 5.0


SIMULATION = Simulation(intervals=(1.0, 1.1, 1.3, 4.0), jitter=0.1, duration=60.0, seed=3)


@pytest.mark.parametrize("policy", list(POLICIES))
def test_without_costs_it_is_the_simulator(policy: str) -> None:
    speeds = worker_speeds(SIMULATION)
    plain, costly = RecordKeeper(), RecordKeeper()
    workers = simulated_workers(SIMULATION, speeds)
    Simulator(workers, Coordinator(policy_for(policy, 4)), [plain]).run(RunEnd(60.0))
    workers = simulated_workers(SIMULATION, speeds)
    CostlySimulator(workers, Coordinator(policy_for(policy, 4)), [costly], durations=Durations()).run(RunEnd(60.0))
    assert costly.records == plain.records


EACH = Durations(decision=0.1, wire_in=0.2, take_in=0.3, update=0.4, hand_out=0.5, wire_out=0.6)


def test_a_worker_alone_waits_for_each_of_them_once() -> None:
    """1 s of computing, and 2.1 s on the way; before its first iteration there is nothing but the way to it."""
    pace = simulated_pace("asp", Simulation(intervals=(1.0,), duration=1.1 + 30 * 3.1), EACH)
    assert pace.pushes_per_second * (1.1 + 30 * 3.1) == pytest.approx(30)


@pytest.mark.parametrize("policy", ["asp", "ssp", "bsp", "elastic-bsp"])
def test_a_large_group_goes_at_the_pace_of_its_bottleneck(policy: str) -> None:
    simulation = Simulation(workers=50, speed="constant:seconds=1", duration=500.0)
    pace = simulated_pace(policy, simulation, EACH)
    assert pace.shard == pytest.approx(1.0, abs=0.15) and pace.server < 0.15
    assert pace.pushes_per_second == pytest.approx(1 / (0.3 + 0.4 + 0.5), rel=0.15)


def test_one_process_has_the_work_of_server_and_shard() -> None:
    simulation = Simulation(workers=50, speed="constant:seconds=1", duration=500.0)
    alone = Durations(decision=0.5, take_in=0.5, one_process=True)
    apart = Durations(decision=0.5, take_in=0.5)
    assert simulated_pace("asp", simulation, alone).pushes_per_second == pytest.approx(1.0, rel=0.1)
    assert simulated_pace("asp", simulation, apart).pushes_per_second == pytest.approx(2.0, rel=0.1)


def test_an_update_costs_as_much_as_its_gradients() -> None:
    """BSP makes one update of two gradients, and nothing of what `backup` discards is added."""
    simulation = Simulation(intervals=(1.0, 1.0), duration=100.0)
    only_updates = Durations(update=1.0)
    assert simulated_pace("bsp", simulation, only_updates).shard == pytest.approx(2 / 3, abs=0.03)
    assert simulated_pace("backup:k=1", simulation, only_updates).shard <= 0.51

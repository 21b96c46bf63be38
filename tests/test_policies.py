"""Each policy's rule, one small story at a time. Tests are named after what the papers say."""

from __future__ import annotations

import pytest
from group import Group
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.errors import ConfigurationError
from paceline.core.messages import (
    ApplyUpdate,
    Gradient,
    GradientArrived,
    InterruptWorker,
    SendParameters,
    Statistics,
    UpdateApplied,
)
from paceline.policies import POLICIES, policy
from paceline.policies.dssp import extra_iterations
from paceline.policies.elastic_bsp import ElasticBSP
from paceline.policies.printed_dbw import PrintedEstimator


def group_of(text: str, workers: int = 2, **options: object) -> Group:
    group = Group(text, **options)  # type: ignore[arg-type]
    for worker in range(workers):
        group.join(worker)
    return group


def run(group: Group, *workers: int) -> None:
    for worker in workers:
        group.push(worker)


# -- BSP --


def test_bsp_counts_the_gradient_of_a_worker_that_left_after_its_push() -> None:
    group = group_of("bsp", 3)
    run(group, 0, 1)
    group.leave(0)
    assert group.push(2).commands[0] == ApplyUpdate((Gradient(0, 1), Gradient(1, 1), Gradient(2, 1)))


def test_bsp_finishes_the_round_when_the_missing_worker_leaves() -> None:
    group = group_of("bsp", 3)
    run(group, 0, 1)
    assert group.why(1) == "worker 1 waits: the round still needs worker 2"
    assert group.leave(2).commands == (
        ApplyUpdate((Gradient(0, 1), Gradient(1, 1))),
        SendParameters(0),
        SendParameters(1),
    )


def test_bsp_says_how_many_more_are_missing() -> None:
    group = group_of("bsp", 4)
    run(group, 3)
    assert group.why(3) == "worker 3 waits: the round still needs worker 0 and 2 more"
    assert group.leave(1).commands == ()


def test_bsp_lets_a_joiner_in_at_once_only_while_the_round_is_untouched() -> None:
    group = group_of("bsp", 2)
    run(group, 0)
    group.join(5)
    assert 5 in group.newcomers
    run(group, 1)
    assert 5 in group.computing
    group.join(6)
    assert 6 in group.computing


# -- SSP (Ho et al. 2013) --


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_ssp_lead_seen_at_an_arrival_is_at_most_staleness_plus_one(staleness: int) -> None:
    group = group_of(f"ssp:staleness={staleness}")
    run(group, *[0] * (staleness + 1))
    assert group.why(0) == f"worker 0 waits: {staleness + 1} ahead of worker 1, limit {staleness}"
    assert set(group.push(1).commands) == {ApplyUpdate((Gradient(1, 1),)), SendParameters(1), SendParameters(0)}


def test_ssp_releases_everybody_within_the_limit_when_the_slowest_leaves() -> None:
    group = group_of("ssp:staleness=1", 4)
    run(group, 0, 0, 1, 1, 2, 2)
    group.leave(1)
    assert list(group.waiting) == [0, 2]
    assert group.leave(3).commands == (SendParameters(0), SendParameters(2))


# -- DSSP (Zhao et al. 2019) --


def test_dssp_figure_2_gives_three_extra_iterations() -> None:
    # s_L = 1, r in 0..4: the slowest pushes next when the fastest would end its third extra iteration.
    assert extra_iterations(fastest=2.0, fast_interval=1.0, slowest=0.5, slow_interval=4.4, limit=4) == 3


@given(st.floats(0, 50), st.floats(0.01, 10), st.floats(0, 50), st.floats(0.01, 10), st.integers(0, 20))
def test_dssp_controller_is_the_nearest_pair_of_all(
    fastest: float, fast_interval: float, slowest: float, slow_interval: float, limit: int
) -> None:
    pairs = [
        (abs((slowest + (k + 1) * slow_interval) - (fastest + r * fast_interval)), r)
        for r in range(limit + 1)
        for k in range(limit + 1)
    ]
    assert extra_iterations(fastest, fast_interval, slowest, slow_interval, limit) == min(pairs)[1]


def leading(text: str) -> Group:
    """Worker 0 pushes every second, worker 1 every fourth: both intervals are known, worker 0 leads by 5."""
    group = group_of(text)
    run(group, 0, 0, 0, 0)
    group.push(1, after=0.0)
    run(group, 0, 0, 0, 0)
    group.push(1, after=0.0)
    assert group.coordinator.progress.lead(0) == 6
    return group


def test_dssp_grants_as_many_extra_iterations_as_the_controller_says() -> None:
    group = leading("dssp:lower=6,upper=12")
    run(group, 0)  # lead 7: the slowest's next push is 3 iterations away
    run(group, 0, 0)
    assert 0 in group.computing
    run(group, 0)  # the controller is asked again: the push of the slowest is now; r* = 0
    assert group.why(0) == "worker 0 waits until it leads by at most 6: 10 ahead of worker 1, upper 12"


def test_dssp_literal_grant_runs_one_more() -> None:
    group = leading("dssp:lower=6,upper=12,literal_grant=true")
    run(group, 0, 0, 0, 0)
    assert 0 in group.computing


def test_dssp_grants_nothing_without_an_interval_of_the_slowest() -> None:
    group = group_of("dssp:lower=1,upper=9")
    run(group, 0, 0)
    assert 0 in group.waiting
    one_push = group_of("dssp:lower=0,upper=9")
    run(one_push, 0)
    assert 0 in one_push.waiting


def test_dssp_only_the_fastest_asks_the_controller() -> None:
    group = group_of("dssp:lower=1,upper=20", 3)
    for _ in range(2):
        run(group, 0, 1)
        group.push(2, after=5.0)
    for worker in (0, 0, 0, 1, 1):
        group.push(worker, after=0.1)
    assert 0 in group.computing
    assert "worker 1 waits until it leads by at most 1" in group.why(1)


def test_dssp_capped_waits_at_the_upper_bound_and_uncapped_does_not() -> None:
    for text, waits in (("dssp:lower=1,upper=6", True), ("dssp:lower=1,upper=6,capped=false", False)):
        group = group_of(text)
        for _ in range(2):
            run(group, 0)
            group.push(1, after=9.0)
        pushes = 0
        while 0 in group.computing and pushes < 8:
            group.push(0)
            pushes += 1
        assert (0 in group.waiting) is waits
        assert group.coordinator.progress.lead(0) == (7 if waits else 8)


def test_dssp_wait_next_goes_on_with_the_next_push_of_the_slowest() -> None:
    group = group_of("dssp:lower=1,upper=9,wait=next")
    run(group, 0, 0)
    assert group.why(0) == "worker 0 waits for the next push of worker 1: 2 ahead of worker 1, upper 9"
    assert SendParameters(0) in group.push(1).commands


def test_dssp_wait_next_ends_when_the_slowest_leaves_and_survives_who_waits_leaving() -> None:
    group = group_of("dssp:lower=0,upper=9,wait=next", 4)
    run(group, 0, 2)
    assert list(group.waiting) == [0, 2]  # both for worker 1
    group.leave(2)
    assert group.leave(1).commands == (SendParameters(0),)


def test_dssp_wait_next_capped_waits_on_while_another_is_as_slow() -> None:
    group = group_of("dssp:lower=0,upper=1,wait=next", 3)
    for _ in range(2):
        group.now += 10
        for worker in range(3):
            group.push(worker, after=0.0)
    group.push(0, after=0.5)
    group.push(0, after=0.5)  # lead 2, beyond upper, while workers 1 and 2 are both slowest
    assert group.why(0) == "worker 0 waits for the next push of worker 1: 2 ahead of worker 1, upper 1"
    group.push(1)
    assert 0 in group.waiting
    group.push(2)
    assert 0 in group.computing


def test_dssp_bounds_must_be_in_order() -> None:
    with pytest.raises(ConfigurationError, match="upper=2 is below lower=3"):
        policy("dssp:lower=3,upper=2")


# -- ElasticBSP (Zhao et al. 2019, journal figure 5) --


def watched(text: str) -> Group:
    """Worker 0 every second, worker 1 every third; two pushes of each are seen at time 6."""
    group = group_of(text)
    run(group, 0, 0)
    group.push(0, after=0.999)
    group.push(1, after=0.001)
    run(group, 0, 0)
    group.push(0, after=0.999)
    group.push(1, after=0.001)
    return group


def test_elastic_bsp_monitors_predicts_and_runs_to_the_barrier() -> None:
    group = watched("elastic-bsp:lookahead=5")
    run(group, 0, 0)
    group.push(0, after=0.999)
    assert group.why(0) == "worker 0 waits at the barrier for 1 of 2 workers"
    assert group.push(1, after=0.001).commands[1:] == (SendParameters(0), SendParameters(1))
    assert set(group.computing.values()) == {group.version}


def test_elastic_bsp_every_superstep_monitors_again_or_only_the_first() -> None:
    for monitoring, free in (("every", True), ("first", False)):
        group = watched(f"elastic-bsp:lookahead=5,monitoring={monitoring}")
        run(group, 0, 0)
        group.push(0, after=0.999)
        group.push(1, after=0.001)
        run(group, 0, 0, 0)
        assert (0 in group.computing) is free  # planned from intervals 1 and 3: three iterations, then the barrier


def test_elastic_bsp_wait_at_the_barrier_never_leaks_into_an_interval() -> None:
    group = watched("elastic-bsp:lookahead=5,monitoring=first")
    run(group, 0, 0, 0)
    group.push(1, after=20.0)
    intervals = group.coordinator.policy._intervals  # type: ignore[attr-defined]
    assert [intervals.expected(worker) for worker in (0, 1)] == pytest.approx([1.0, 23.0])


def test_elastic_bsp_gather_makes_one_update_without_staleness() -> None:
    group = watched("elastic-bsp:lookahead=5,inside=gather")
    assert group.version == 0
    run(group, 0, 0, 0)
    update = group.push(1).commands[0]
    assert isinstance(update, ApplyUpdate) and len(update.gradients) == 12
    assert group.version == 1


def test_elastic_bsp_plans_when_the_unwatched_worker_leaves() -> None:
    group = group_of("elastic-bsp:lookahead=3", 3)
    run(group, 0, 1, 0, 1)
    group.leave(2)
    group.push(0)
    group.push(1)
    assert group.version == 6 and set(group.computing.values()) == {6}


def test_elastic_bsp_barrier_comes_when_the_last_missing_worker_leaves() -> None:
    group = watched("elastic-bsp:lookahead=5")
    run(group, 0, 0, 0)
    assert 0 in group.waiting
    group.leave(1)
    assert 0 in group.computing


def test_elastic_bsp_a_joiner_enters_at_the_barrier_and_is_monitored() -> None:
    group = watched("elastic-bsp:lookahead=5,monitoring=first")
    group.join(7)
    assert group.why(7) == "worker 7 enters at the next barrier"
    run(group, 0, 0, 0, 1)
    assert 7 in group.computing
    run(group, 0, 0, 0, 0, 0)
    assert 0 in group.computing  # nobody is held before worker 7 was watched


def test_elastic_bsp_a_joiner_comes_in_at_once_when_everybody_else_left() -> None:
    group = group_of("elastic-bsp:lookahead=3,inside=gather", 1)
    group.push(0)
    group.join(1)
    group.leave(0)
    assert 1 in group.computing and group.version == 1


# -- Backup workers (Chen et al. 2016) --


def test_backup_takes_the_first_k_and_discards_late_ones() -> None:
    group = group_of("backup:k=2", 3)
    run(group, 0)
    assert group.why(0) == "worker 0 waits: the update has 1 of the 2 gradients that it needs"
    assert group.push(1).commands == (
        ApplyUpdate((Gradient(0, 1), Gradient(1, 1))),
        SendParameters(0),
        SendParameters(1),
    )
    late = group.push(2)
    assert late.reason == "worker 2 was late: it computed on version 0 of 1"
    assert group.fates[Gradient(2, 1)] == "discarded"
    assert group.computing[2] == 1


def test_backup_interrupt_restarts_those_who_still_compute() -> None:
    group = group_of("backup:k=2,late=interrupt", 4)
    run(group, 3)
    assert group.push(1).commands[3:] == (InterruptWorker(0), InterruptWorker(2))
    assert set(group.computing.values()) == {1}


def test_backup_pull_lets_a_worker_contribute_twice_to_one_update() -> None:
    group = group_of("backup:k=3,late=pull", 3)
    run(group, 0, 0)
    assert group.push(1).commands[0] == ApplyUpdate((Gradient(0, 1), Gradient(0, 2), Gradient(1, 1)))
    assert not group.waiting
    run(group, 2)
    assert group.fates[Gradient(2, 1)] == "discarded"


def test_backup_without_k_keeps_one_worker_in_reserve() -> None:
    group = group_of("backup", 3)
    run(group, 0, 2)
    assert group.version == 1
    alone = group_of("backup", 1)
    alone.push(0)
    assert alone.version == 1


def test_backup_who_left_blocks_nobody() -> None:
    group = group_of("backup:k=3", 4)
    run(group, 0)
    assert group.leave(2).commands == ()
    run(group, 1)
    group.leave(3)
    assert group.version == 1


def test_backup_cannot_ask_for_more_than_there_are() -> None:
    with pytest.raises(ValueError, match="k=5 gradients per update need at least 5 workers, and there are 4"):
        policy("backup:k=5").check_group(4)
    policy("backup:k=4").check_group(4)
    policy("backup").check_group(1)
    policy("asp").check_group(1)


# -- Buffered (FedBuff) --


def test_buffered_one_update_per_size_arrivals_and_nobody_waits() -> None:
    group = group_of("buffered:size=3,exponent=1,divide=size", 2)
    run(group, 0, 0)
    assert group.version == 0
    group.push(0)
    assert group.version == 1
    run(group, 0, 1)
    update = group.push(0).commands[0]
    assert update == ApplyUpdate((Gradient(0, 4), Gradient(1, 1), Gradient(0, 5)), (1.0, 0.5, 1.0))


def test_buffered_dividing_by_the_weights_is_a_true_weighted_mean() -> None:
    group = group_of("buffered:size=2,exponent=1,divide=weights", 2)
    run(group, 0, 0)
    gradient = GradientArrived(Gradient(1, 1), 0, samples=3)
    group.coordinator.handle(gradient, 9.0)
    update = group.coordinator.handle(GradientArrived(Gradient(0, 3), 1, samples=1), 9.0).commands[0]
    # Weights 1/2 and 1, samples 3 and 1: 4 samples count as 2.5.
    assert update == ApplyUpdate((Gradient(1, 1), Gradient(0, 3)), pytest.approx((0.5 * 4 / 2.5, 4 / 2.5)))  # type: ignore[arg-type]


def test_buffered_discards_what_is_too_old() -> None:
    group = group_of("buffered:size=1,max_staleness=1", 2)
    run(group, 0, 0)
    assert group.push(1).reason == "the gradient of worker 1 has staleness 2, limit 1"
    assert group.fates[Gradient(1, 1)] == "discarded"


def test_buffered_without_a_size_takes_an_eighth_of_the_workers() -> None:
    group = group_of("buffered:divide=size", 9)
    group.push(0)
    assert group.version == 0
    group.push(1)
    assert group.version == 1
    group.push(2)
    assert group.leave(8).commands == (ApplyUpdate((Gradient(2, 1),), (2**-0.5,)),)  # one is enough for eight
    group.push(3)
    assert group.version == 3


def test_buffered_empties_the_buffer_when_the_last_worker_leaves() -> None:
    group = group_of("buffered:size=9", 2)
    run(group, 0, 1)
    assert group.leave(0).commands == ()
    assert group.leave(1).commands == (ApplyUpdate((Gradient(0, 1), Gradient(1, 1)), (1.0, 1.0)),)


# -- DBW (Xu et al. 2020) --


def feed(group: Group, rounds: int, slow: int = 3) -> None:
    """Workers 0..2 push after a second, worker `slow` eight seconds later, as often as it still computes on time."""
    for _ in range(rounds):
        for worker in range(3):
            if worker in group.computing:
                group.push(worker, after=1.0 if worker == 0 else 0.0)
        if slow in group.computing:
            group.push(slow, after=8.0)


def test_dbw_waits_for_all_without_statistics() -> None:
    group = group_of("dbw:estimator=paper", 4)
    feed(group, 3)
    assert group.version == 3


def test_dbw_stops_waiting_for_a_straggler_when_noise_is_low() -> None:
    group = group_of("dbw:estimator=paper,learning_rate=0.1,rate=fixed", 4)
    for loss in (1.0, 0.92):
        group.statistics = Statistics(gradients=4, squared_norm=1.0, variance=0.01, loss=loss)
        feed(group, 1)
    assert group.coordinator.policy.wanted(group.coordinator.progress) == 3  # type: ignore[attr-defined]


def test_dbw_waits_for_all_when_no_k_promises_a_gain() -> None:
    noisy = Statistics(gradients=4, squared_norm=0.1, variance=100.0, loss=1.0)
    group = group_of("dbw:estimator=paper,learning_rate=0.1,rate=fixed", 4, statistics=noisy)
    feed(group, 3)
    assert group.coordinator.policy.wanted(group.coordinator.progress) == 4  # type: ignore[attr-defined]


def test_dbw_loss_rule_asks_for_one_more_after_the_loss_rose() -> None:
    for rule, expected in (("true", 4), ("false", 3)):
        group = group_of(f"dbw:estimator=paper,learning_rate=0.1,rate=fixed,loss_rule={rule}", 4)
        for loss in (1.0, 0.92, 0.84, 0.76, 0.77):
            group.statistics = Statistics(gradients=3, squared_norm=1.0, variance=0.01, loss=loss)
            feed(group, 1)
        assert group.coordinator.policy.wanted(group.coordinator.progress) == expected  # type: ignore[attr-defined]


def test_dbw_blind_goes_by_time_alone_and_keeps_its_books_small() -> None:
    group = group_of("dbw:estimator=paper,blind=true", 4)
    feed(group, 2)
    assert group.coordinator.policy.wanted(group.coordinator.progress) == 3  # type: ignore[attr-defined]
    feed(group, 300)
    estimator = group.coordinator.policy._estimator  # type: ignore[attr-defined]
    assert isinstance(estimator, PrintedEstimator)
    assert len(estimator.iterations) == 256
    assert estimator.iterations[group.version].h == 3


def test_dbw_a_gradient_of_a_forgotten_version_teaches_nothing() -> None:
    group = group_of("dbw:estimator=paper,blind=true", 2)
    group.push(0)
    group.push(1, after=9.0)
    while group.version < 300:
        group.push(0 if 0 in group.computing else 1, after=0.001)
    group.push(1)
    assert group.fates[Gradient(1, group.clock[1])] == "discarded"


def test_dbw_survives_the_last_worker_leaving() -> None:
    group = group_of("dbw:estimator=paper,blind=true", 2)
    run(group, 0, 1, 0)
    group.leave(1)
    group.push(0)
    group.leave(0)
    with_statistics = group_of("dbw:estimator=paper", 1, statistics=Statistics(1, 1.0, None, 1.0))
    with_statistics.push(0)
    with_statistics.leave(0)
    assert not with_statistics.open


def test_dbw_statistics_may_come_after_everybody_left() -> None:
    group = group_of("dbw:estimator=paper", 2)
    run(group, 0)
    group.leave(0)
    group.leave(1)
    assert group.version == 1
    assert group.coordinator.handle(UpdateApplied(1, Statistics(1, 1.0, None, 1.0)), 9.0).commands == ()


# -- all --


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_is_described(name: str) -> None:
    kind = POLICIES[name]
    assert kind.name == name and kind.summary and kind.paper
    assert str(policy(name)) == name
    assert "Paper" in (__import__(kind.__module__, fromlist=["x"]).__doc__ or "")


def test_only_dbw_looks_at_gradients_and_only_when_it_sees() -> None:
    wants = [text for text in (*POLICIES, "dbw:blind=true") if policy(text).wants_statistics]
    assert wants == ["dbw"]


@pytest.mark.parametrize("name", POLICIES)
def test_one_worker_alone_never_waits(name: str) -> None:
    group = group_of(name, 1)
    for _ in range(12):
        group.push(0)
    assert 0 in group.computing


# -- taking over in the middle of a run (all pairs: test_policy_change.py) --


def test_by_default_all_that_is_pending_becomes_one_update_and_nobody_waits() -> None:
    group = group_of("bsp", 3)
    run(group, 1, 0)
    group.join(3)
    assert group.change("asp").commands == (
        ApplyUpdate((Gradient(1, 1), Gradient(0, 1))),
        SendParameters(1),
        SendParameters(0),
        SendParameters(3),
    )
    assert group.change("bsp").commands == ()


def leading_and_waiting() -> Group:
    """Worker 0 leads by 3 and worker 2 by 1; both wait, and worker 1 computes."""
    group = group_of("asp", 3)
    run(group, 0, 0)
    group.change("bsp")
    run(group, 0, 2)
    assert [group.coordinator.progress.lead(worker) for worker in group.waiting] == [3, 1]
    return group


@pytest.mark.parametrize("text", ["ssp:staleness=1", "dssp:lower=1,upper=9", "dssp:lower=1,upper=9,wait=next"])
def test_a_policy_with_a_limit_lets_only_those_within_it_go_on(text: str) -> None:
    group = leading_and_waiting()
    assert group.change(text).commands == (ApplyUpdate((Gradient(0, 3), Gradient(2, 1))), SendParameters(2))
    assert group.why(0) == "workers more than 1 ahead of worker 1 wait"
    run(group, 1)
    assert (0 in group.computing) is ("next" in text)
    run(group, 1, 2)
    assert 0 in group.computing


@pytest.mark.parametrize("text", ["ssp:staleness=3", "dssp:lower=3", "dssp:lower=3,wait=next"])
def test_a_policy_with_a_limit_that_nobody_exceeds_lets_all_go_on(text: str) -> None:
    group = leading_and_waiting()
    group.join(4)
    assert group.change(text).commands[1:] == (SendParameters(0), SendParameters(2), SendParameters(4))


def test_elastic_bsp_begins_with_a_superstep_that_watches() -> None:
    group = group_of("bsp", 2)
    group.push(0, after=3.0)
    group.change("elastic-bsp:lookahead=5", after=1.0)
    elastic = group.coordinator.policy
    assert isinstance(elastic, ElasticBSP)
    assert elastic._began == 4.0
    run(group, 0, 0, 1)
    assert elastic._quota is None
    run(group, 1)
    assert elastic._quota is not None


def test_elastic_bsp_measures_an_interrupted_worker_from_the_interrupt() -> None:
    group = group_of("backup:k=1,late=interrupt", 2)
    group.push(0, after=5.0)
    group.change("elastic-bsp:lookahead=5")
    group.push(1, after=2.0)
    assert group.coordinator.policy._intervals.expected(1) == 2.0  # type: ignore[attr-defined]


def test_backup_interrupt_restarts_only_those_whose_gradient_would_come_too_late() -> None:
    group = group_of("asp", 3)
    run(group, 0, 1)  # they compute on versions 1, 2 and 0
    assert group.change("backup:k=2,late=interrupt").commands == (InterruptWorker(0), InterruptWorker(2))
    pending = group_of("bsp", 3)
    run(pending, 1)
    assert pending.change("backup:k=2,late=interrupt").commands[1:] == (
        SendParameters(1),
        InterruptWorker(0),
        InterruptWorker(2),
    )
    assert group.change("backup:k=2").commands == ()


def test_buffered_weighs_what_it_takes_over() -> None:
    group = group_of("buffered:size=3,exponent=0", 2)
    run(group, 0, 0, 0)
    run(group, 1, 0)  # of versions 0 and 1
    assert group.change("buffered:size=3,exponent=1,divide=size").commands == (
        ApplyUpdate((Gradient(1, 1), Gradient(0, 4)), (0.5, 1.0)),
    )


def iteration_of(group: Group, version: int) -> tuple[float, int, int]:
    estimator = group.coordinator.policy._estimator  # type: ignore[attr-defined]
    assert isinstance(estimator, PrintedEstimator)
    iteration = estimator.iterations[version]
    return iteration.began, iteration.h, iteration.gradients


def test_dbw_begins_with_the_version_after_the_change_and_waits_for_all() -> None:
    group = group_of("backup:k=2", 3)
    run(group, 0)
    group.change("dbw:estimator=paper,blind=true", after=3.0)
    assert iteration_of(group, 1) == (4.0, 1, 0)
    run(group, 0)
    assert iteration_of(group, 1) == (4.0, 1, 1)
    assert group.why(0) == "worker 0 waits: the update has 1 of the 3 gradients that it needs"


def test_dbw_keeps_the_beginning_of_a_version_that_goes_on() -> None:
    group = group_of("asp", 2)
    group.push(0, after=2.0)
    group.change("dbw:estimator=paper,blind=true", after=1.0)
    assert iteration_of(group, 1) == (2.0, 0, 0)  # worker 0 was given this version at 2
    empty = Group("asp")
    empty.change("dbw:estimator=paper,blind=true", after=1.0)
    assert iteration_of(empty, 0) == (1.0, 0, 0)

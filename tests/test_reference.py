"""The simulator against `reference.py`, a second and independent account of every policy's timing."""

from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Timing, closest_points, measure

from paceline.experiment import Simulation, simulate

pytestmark = pytest.mark.slow

GROUPS = (
    (1000,),
    (1000, 1913),
    (1000, 2000),  # every second push of worker 0 falls on one of worker 1
    (2000, 1000),
    (1913, 1000, 1000),
    (600, 400, 300, 200),  # ties everywhere
    (700, 1000, 1301, 3011),
    (1000, 1000, 1000, 3000),
    (1000, 1000, 1000, 1000, 1000),
    (1013, 1187, 1249, 1361, 1499),
    (500, 700, 700, 1000, 1000, 2600),
)
FLAGS = ("true", "false")
LATE = ("finish", "interrupt", "pull")
DSSP_VARIANTS = {"capped": FLAGS, "wait": ("gap", "next"), "literal_grant": FLAGS}


def combinations(name: str, **parameters: tuple[object, ...]) -> list[str]:
    """The policy strings of all combinations of these values; the value "-" leaves the parameter out."""
    return [
        text(name, {key: value for key, value in zip(parameters, values, strict=True) if value != "-"})
        for values in product(*parameters.values())
    ]


def text(name: str, parameters: dict[str, object]) -> str:
    """A policy string."""
    listed = ",".join(f"{key}={value}" for key, value in parameters.items())
    return f"{name}:{listed}" if listed else name


POLICIES = {
    "bsp": ["bsp"],
    "asp": ["asp"],
    "ssp": combinations("ssp", staleness=("-", 0, 1, 2, 5, 15)),
    "dssp": [
        "dssp",
        *combinations("dssp", lower=(3,), upper=(15,), **DSSP_VARIANTS),
        *combinations("dssp", lower=(0, 1), upper=(1, 4), **DSSP_VARIANTS),
        *combinations("dssp", lower=(2,), upper=(2,), **DSSP_VARIANTS),
    ],
    "elastic-bsp": combinations(
        "elastic-bsp", lookahead=("-", 1, 2, 5, 20), monitoring=("-", "every", "first"), inside=("-", "apply", "gather")
    ),
    "backup": combinations("backup", k=("-", 1, 2, 3, 4, 5, 6), late=("-", *LATE)),
    "dbw": [
        *combinations("dbw", estimator=("paper",), late=("-", *LATE), learning_rate=("-", 0.1)),
        *combinations("dbw", estimator=("paper",), rate=("fixed",), window=(20,), loss_rule=FLAGS, memory=(5,)),
    ],
    "buffered": [
        *combinations("buffered", size=("-", 1, 2, 3, 7), max_staleness=("-", "none", 0, 1, 2)),
        *combinations("buffered", exponent=(0, 1), divide=("size", "weights")),
    ],
}


def simulated(policy: str, intervals: tuple[int, ...], duration: int) -> Timing:
    """What paceline's simulator says."""
    summary = simulate(policy, Simulation(intervals=intervals, duration=duration))
    assert summary.seconds == duration
    assert summary.waiting_share == pytest.approx(summary.waiting_seconds / duration / len(intervals))
    assert [one.worker for one in summary.workers] == list(range(len(intervals)))
    return Timing(
        pushes=summary.pushes,
        updates=summary.updates,
        discarded=summary.discarded,
        max_lead=summary.max_lead,
        max_staleness=summary.max_staleness,
        mean_staleness=pytest.approx(summary.mean_staleness),
        waiting_seconds=pytest.approx(summary.waiting_seconds),
        pushes_of=[one.pushes for one in summary.workers],
        waiting_of=[pytest.approx(one.waiting_seconds) for one in summary.workers],
    )


def difference(policy: str, intervals: tuple[int, ...], duration: int) -> dict[str, str]:
    """The figures in which simulator and reference differ."""
    found, expected = vars(simulated(policy, intervals, duration)), vars(measure(policy, intervals, duration))
    return {
        name: f"simulated {found[name]}, reference {expected[name]}"
        for name in expected
        if found[name] != expected[name]
    }


def needed(policy: str) -> int:
    """How many workers a policy string asks for."""
    k = re.search(r"\bk=(\d+)", policy)
    return int(k[1]) if k else 1


@pytest.mark.parametrize("intervals", GROUPS, ids=str)
@pytest.mark.parametrize("name", POLICIES)
def test_all_parameters_keep_the_time_of_the_reference(name: str, intervals: tuple[int, ...]) -> None:
    policies = [policy for policy in POLICIES[name] if needed(policy) <= len(intervals)]
    differences = {policy: difference(policy, intervals, 60_000) for policy in policies}
    assert {policy: found for policy, found in differences.items() if found} == {}


@pytest.mark.parametrize("intervals", [(1000, 1913), (700, 1000, 1301, 3011)], ids=str)
@pytest.mark.parametrize(
    "policy",
    [
        *(name for name in POLICIES if name != "dbw"),
        *("dbw:estimator=paper", "dssp:capped=false,wait=next", "elastic-bsp:monitoring=first"),
    ],
)
def test_a_long_run_keeps_the_time_of_the_reference(policy: str, intervals: tuple[int, ...]) -> None:
    assert difference(policy, intervals, 1_000_000) == {}


@pytest.mark.parametrize(
    ("duration", "pushes", "waiting"), [(999, 0, 0), (1000, 1, 0), (1912, 1, 912), (1913, 2, 913), (2913, 3, 913)]
)
def test_the_end_of_a_run_counts_its_last_instant(duration: int, pushes: int, waiting: int) -> None:
    run = measure("bsp", (1000, 1913), duration)
    assert (run.pushes, run.waiting_seconds) == (pushes, waiting)
    assert difference("bsp", (1000, 1913), duration) == {}


def random_parameters(name: str, workers: int) -> st.SearchStrategy[dict[str, object]]:
    """Any parameters of a policy that decide its timing, each of them there or left out."""
    flag, late = st.sampled_from(FLAGS), st.sampled_from(LATE)
    limits = st.tuples(st.integers(0, 4), st.integers(0, 12)).map(lambda pair: {"lower": pair[0], "upper": sum(pair)})
    optional: dict[str, dict[str, st.SearchStrategy[object]]] = {
        "ssp": {"staleness": st.integers(0, 6)},
        "dssp": {"capped": flag, "wait": st.sampled_from(("gap", "next")), "literal_grant": flag},
        "elastic-bsp": {
            "lookahead": st.integers(1, 18),
            "monitoring": st.sampled_from(("every", "first")),
            "inside": st.sampled_from(("apply", "gather")),
        },
        "backup": {"k": st.integers(1, workers), "late": late},
        "dbw": {"late": late},
        "buffered": {"size": st.integers(1, 8), "max_staleness": st.integers(0, 4) | st.just("none")},
    }
    given = {"estimator": st.just("paper")} if name == "dbw" else {}  # the reference has no other
    others = st.fixed_dictionaries(given, optional=optional.get(name, {}))
    return st.builds(lambda some, more: some | more, limits, others) if name == "dssp" else others


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_any_group_keeps_the_time_of_the_reference(name: str, data: st.DataObject) -> None:
    intervals = tuple(data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=6), label="intervals"))
    policy = text(name, data.draw(random_parameters(name, len(intervals)), label="parameters"))
    assert difference(policy, intervals, data.draw(st.integers(1, 150), label="duration")) == {}


@pytest.mark.parametrize("intervals", [(1000, 2000), (1000, 1000, 1000, 3000)], ids=str)
def test_the_reference_gives_the_known_gains_over_bsp(intervals: tuple[int, ...]) -> None:
    bsp, asp, elastic, ssp, dssp = (
        measure(policy, intervals, 3_000_000).pushes for policy in ("bsp", "asp", "elastic-bsp", "ssp", "dssp")
    )
    gain = {2: 1.5, 4: 2.5}[len(intervals)]
    assert asp / bsp == pytest.approx(gain, rel=0.01)
    assert elastic / bsp == pytest.approx(gain, rel=0.01)
    assert ssp / bsp == pytest.approx(1, rel=0.01)
    assert dssp / bsp == pytest.approx(1, rel=0.01)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=4),
    st.integers(1, 5),
)
def test_the_reference_finds_the_closest_points_of_all_combinations(workers: list[tuple[int, int]], steps: int) -> None:
    ends = {worker: [start + i * step for i in range(1, steps + 1)] for worker, (start, step) in enumerate(workers)}
    chosen = [ends[worker][index - 1] for worker, index in closest_points(ends).items()]
    best = min((max(points) - min(points), max(points)) for points in product(*ends.values()))
    assert (max(chosen) - min(chosen), max(chosen)) == best

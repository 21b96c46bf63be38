"""Policies are values until they run, and can be made from values again: parameters, and the state between events."""

from __future__ import annotations

import dataclasses
import pickle
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from group import VARIANTS, Group, StoppingGroup
from test_exhaustive import finish
from test_policy_change import ROUNDS, runs_of

from paceline.core.coordinator import Coordinator
from paceline.core.errors import ConfigurationError
from paceline.core.messages import NOTHING, Decision, Event, Gradient, GradientArrived, Statistics
from paceline.core.progress import Progress
from paceline.core.spec import parameter
from paceline.core.state import kept
from paceline.experiment import Simulation, policy_for, simulate
from paceline.policies import POLICIES, Policy, policy
from paceline.policies.backup import BackupWorkers
from paceline.policies.base import WaitingByStanding
from paceline.policies.buffered import Buffered
from paceline.policies.dbw import DBW
from paceline.policies.dssp import DSSP
from paceline.policies.elastic_bsp import ElasticBSP
from paceline.policies.ssp import SSP

# -- parameters --


@pytest.mark.parametrize(
    ("kind", "given", "text"),
    [
        (SSP, {"staleness": -1}, "ssp:staleness=-1"),
        (SSP, {"staleness": 1.5}, "ssp:staleness=1.5"),
        (SSP, {"staleness": True}, "ssp:staleness=true"),
        (SSP, {"staleness": None}, "ssp:staleness=none"),
        (SSP, {"staleness": 10**400}, "ssp:staleness=1" + "0" * 400),
        (DSSP, {"wait": "foo"}, "dssp:wait=foo"),
        (DSSP, {"wait": 3}, "dssp:wait=3"),
        (DSSP, {"capped": 2}, "dssp:capped=2"),
        (DSSP, {"lower": 3, "upper": 2}, "dssp:lower=3,upper=2"),
        (ElasticBSP, {"search": "grid", "objective": "total"}, "elastic-bsp:search=grid,objective=total"),
        (BackupWorkers, {"k": 0}, "backup:k=0"),
        (DBW, {"learning_rate": 0}, "dbw:learning_rate=0"),
        (DBW, {"learning_rate": float("nan")}, "dbw:learning_rate=nan"),
        (Buffered, {"exponent": 10.5}, "buffered:exponent=10.5"),
    ],
)
def test_a_wrong_parameter_gets_the_same_answer_from_python_as_from_a_string(
    kind: type[Policy], given: dict[str, object], text: str
) -> None:
    with pytest.raises(ConfigurationError) as from_python:
        kind(**given)
    with pytest.raises(ConfigurationError) as from_text:
        policy(text)
    assert str(from_python.value) == str(from_text.value)
    assert str(from_python.value).count("policy ") == 1


def test_text_for_a_number_is_quoted_in_the_answer() -> None:
    with pytest.raises(ValueError, match="policy 'ssp': staleness='3' is not possible; staleness is int >= 0"):
        SSP(staleness="3")  # type: ignore[arg-type]


def test_an_int_will_do_for_a_float_and_none_where_it_is_a_choice() -> None:
    assert str(DBW(learning_rate=1)) == "dbw:learning_rate=1"
    assert str(BackupWorkers(k=None)) == "backup"


def test_a_policy_says_every_digit_of_its_parameters() -> None:
    assert str(DBW(learning_rate=0.1234567891)) == "dbw:learning_rate=0.1234567891"
    assert policy(str(DBW(learning_rate=1e-9 / 3))).learning_rate == 1e-9 / 3  # type: ignore[attr-defined]


@dataclass(eq=False)
class Counting(Policy):
    """Somebody's own: it does not call the base's __post_init__."""

    name = "counting"
    limit: int = parameter(3, "how far it counts", least=0)

    def __post_init__(self) -> None:
        self.decisions = 0

    def decide(self, event: Event, progress: Progress, now: float) -> Decision:
        self.decisions += 1
        return NOTHING


def test_a_run_checks_the_parameters_of_a_policy_that_does_not_do_so_itself() -> None:
    with pytest.raises(ConfigurationError) as caught:
        policy_for(Counting(limit=-1), 2)
    assert str(caught.value) == (
        "policy 'counting': limit=-1 is not possible; limit is int >= 0, default 3 (how far it counts)"
    )


# -- a policy that is given to a run --


def trace_of(given: Policy | str, path: Path) -> bytes:
    simulate(given, Simulation(intervals=(1.0, 1.3, 2.1), jitter=0.1, duration=20.0), trace_file=path)
    return path.read_bytes()


@pytest.mark.parametrize("text", VARIANTS)
def test_one_policy_object_gives_the_same_bytes_in_every_run(text: str, tmp_path: Path) -> None:
    given = policy(text)
    first = trace_of(given, tmp_path / "trace.jsonl")
    assert trace_of(given, tmp_path / "trace.jsonl") == first == trace_of(str(given), tmp_path / "trace.jsonl")
    assert given.state() == policy(text).state()  # it has not run itself


@pytest.mark.parametrize("text", VARIANTS)
def test_a_policy_that_has_run_elsewhere_begins_anew(text: str, tmp_path: Path) -> None:
    group = Group(text)
    for worker in range(3):
        group.join(worker)
    group.everybody_moves(5)
    used = group.coordinator.policy
    assert isinstance(used, Policy)
    assert trace_of(used, tmp_path / "trace.jsonl") == trace_of(str(used), tmp_path / "trace.jsonl")


# -- state: stop after any event, go on from JSON (StoppingGroup) --

MEASURED = Statistics(gradients=2, squared_norm=1.0, variance=0.5, loss=1.0, learning_rate=0.1, lr_scaling="sqrt")


@pytest.mark.parametrize("measured", [False, True])
@pytest.mark.parametrize("text", VARIANTS)
def test_a_run_that_stops_after_every_event_goes_on_as_if_it_had_not(text: str, measured: bool) -> None:
    group = StoppingGroup(text, statistics=MEASURED if measured else None)
    for worker in range(3):
        group.join(worker)
    for round_number in range(12):
        for worker in sorted(group.computing):
            if worker in group.computing and (worker != 2 or round_number % 3 == 0):
                group.push(worker, after=0.3 + 0.1 * worker)
        if round_number == 6:
            group.join(3, after=0.1)
        if round_number == 8:
            group.leave(1)
    finish(group)


@pytest.mark.slow
@pytest.mark.parametrize("text", VARIANTS)
def test_every_small_run_that_stops_after_every_event_goes_on_as_if_it_had_not(text: str) -> None:
    for saved in runs_of(text, StoppingGroup):
        finish(pickle.loads(saved), ROUNDS)


@pytest.mark.parametrize("text", VARIANTS)
def test_a_state_does_not_change_when_those_that_it_was_taken_from_or_given_to_go_on(text: str) -> None:
    group = Group(text, statistics=MEASURED)
    for worker in range(3):
        group.join(worker)
    group.everybody_moves(5)
    state = group.coordinator.state()
    written = msgspec.json.encode(state)
    group.everybody_moves(3)
    assert msgspec.json.encode(state) == written != msgspec.json.encode(group.coordinator.state())
    twin = Coordinator(policy(text))
    twin.resume(state)
    for member in list(twin.progress.members.values()):
        if not member.waiting:
            twin.handle(GradientArrived(Gradient(member.worker, member.clock + 1), member.version), 99.0)
    assert msgspec.json.encode(state) == written != msgspec.json.encode(twin.state())


@pytest.mark.parametrize("name", POLICIES)
def test_whatever_a_policy_holds_is_a_parameter_or_kept_or_made_again_from_progress(name: str) -> None:
    for field in dataclasses.fields(POLICIES[name]):
        made_again = field.default_factory is WaitingByStanding
        assert field.init + ("kept" in field.metadata) + made_again == 1, field.name


def test_what_a_policy_forgets_to_declare_is_named_before_it_is_lost() -> None:
    with pytest.raises(TypeError, match=r"'counting' has no state: declare decisions as a field with kept\(\.\.\.\)"):
        Counting().state()


def test_a_policy_of_ones_own_declares_what_it_keeps() -> None:
    @dataclass(eq=False)
    class Declared(Counting):
        decisions: int = kept(0)

    used, again = Declared(limit=1), Declared(limit=1)
    for _ in range(3):
        used.decide(NOTHING, Progress(), 0.0)  # type: ignore[arg-type]
    again.resume(used.state(), Progress())
    assert again.decisions == 3


@pytest.mark.parametrize("name", POLICIES)
def test_a_fresh_policy_has_the_same_parameters_and_no_past(name: str) -> None:
    used = policy(name)
    assert str(used.fresh()) == name and used.fresh() is not used

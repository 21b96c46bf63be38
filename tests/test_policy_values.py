"""Policies are values until they run."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from paceline.core.errors import ConfigurationError
from paceline.core.messages import NOTHING, Decision, Event
from paceline.core.progress import Progress
from paceline.core.spec import parameter
from paceline.experiment import policy_for
from paceline.policies import Policy, policy
from paceline.policies.backup import BackupWorkers
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

"""Things built from one string, and the answers to strings that name nothing."""

from __future__ import annotations

import pytest

from paceline.core.errors import ConfigurationError
from paceline.core.spec import parameters
from paceline.policies import POLICIES, policy


@pytest.mark.parametrize(
    "text",
    [
        "bsp",
        "ssp:staleness=7",
        "dssp:lower=2,upper=9,capped=false,wait=next,literal_grant=true",
        "elastic-bsp:lookahead=30,monitoring=first,inside=gather",
        "backup:late=interrupt,k=12",
        "dbw:learning_rate=0.25,blind=true",
        "buffered:size=8,exponent=0,max_staleness=3",
    ],
)
def test_a_policy_says_the_string_that_builds_it(text: str) -> None:
    assert str(policy(text)) == text


def test_defaults_and_spellings() -> None:
    assert str(policy("ssp:staleness=3")) == "ssp"
    assert str(policy("backup:k=none")) == "backup"
    assert str(policy("dssp:capped=FALSE,")) == "dssp:capped=false"
    assert str(policy("asp:")) == "asp"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bps", "unknown policy 'bps' (did you mean 'bsp'?); there are: " + ", ".join(POLICIES)),
        ("", "unknown policy ''; there are: " + ", ".join(POLICIES)),
        (
            "ssp:stale=3",
            "policy 'ssp' has no parameter 'stale' (did you mean 'staleness'?); its parameters: "
            "staleness (int >= 0, default 3)",
        ),
        ("bsp:x=1", "policy 'bsp' has no parameter 'x'; its parameters: none"),
        ("ssp:staleness=3,staleness=4", "policy 'ssp': parameter 'staleness' is given twice"),
        (
            "ssp:staleness=-1",
            "policy 'ssp': staleness=-1 is not possible; staleness is int >= 0, default 3"
            " (largest lead with which a worker goes on)",
        ),
        (
            "ssp:staleness",
            "policy 'ssp': staleness without a value is not possible; staleness is int >= 0, default 3"
            " (largest lead with which a worker goes on)",
        ),
        (
            "ssp:staleness=" + "9" * 400,
            f"policy 'ssp': staleness={'9' * 400} is not possible; staleness is int >= 0, default 3"
            " (largest lead with which a worker goes on)",
        ),
        (
            "dbw:learning_rate=0",
            "policy 'dbw': learning_rate=0 is not possible; learning_rate is float > 0, default 0.05"
            " (eta for a full round, where the optimizer's own rate is not known)",
        ),
        (
            "dbw:learning_rate=nan",
            "policy 'dbw': learning_rate=nan is not possible; learning_rate is float > 0, default 0.05"
            " (eta for a full round, where the optimizer's own rate is not known)",
        ),
        (
            "dssp:wait=never",
            "policy 'dssp': wait=never is not possible; wait is gap|next, default gap"
            " (until the lead is at most lower, or the slowest's next push)",
        ),
        (
            "dssp:capped=perhaps",
            "policy 'dssp': capped=perhaps is not possible; capped is true|false, default true"
            " (hold the lead within upper; false: as printed)",
        ),
        (
            "backup:k=1.5",
            "policy 'backup': k=1.5 is not possible; k is int >= 1 or none, default none"
            " (gradients per update; none: all workers but one)",
        ),
    ],
)
def test_a_wrong_name_or_parameter_is_answered_with_what_exists(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        policy(text)
    assert str(caught.value) == message


def test_ranges_with_an_upper_end_are_said_and_held() -> None:
    from paceline.core.spec import build
    from paceline.runtimes.speeds import SPEEDS

    with pytest.raises(ConfigurationError, match="a=2 is not possible; a is float >= 0 <= 1, default 1"):
        build("exponential:a=2", SPEEDS, "speed")


@pytest.mark.parametrize("name", POLICIES)
def test_every_parameter_has_a_meaning_and_a_default_within_its_range(name: str) -> None:
    for each in parameters(POLICIES[name]):
        assert each.meaning
        assert each.parse(each.default_text) == each.default

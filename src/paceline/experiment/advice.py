"""What other policies would have made of a run, from times that are taken evenly from all of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from paceline.core.errors import ConfigurationError
from paceline.core.questions import NO_COSTS, Costs
from paceline.experiment.simulation import policy_for
from paceline.experiment.whatif import recommendation, simulated_again
from paceline.policies import POLICIES
from paceline.policies import policy as build_policy
from paceline.policies.auto import Auto
from paceline.recording.iteration_times import Recording
from paceline.recording.metrics import Summary
from paceline.report.contents import Advice

ITERATIONS_FOR_ADVICE = 2_000  # DBW takes seconds to be simulated with them, all others none


def advice_on(
    policy: str,
    workers: Mapping[int, Recording],
    seconds: float,
    until: float,
    costs: Costs = NO_COSTS,
    run: Summary | None = None,
) -> Advice | None:
    """`workers`: with iterations of so many seconds, out of a run that has taken `until`; some parts of a long one, so
    that it is not simulated eight times over. `run`: as it was by then, if its policy changed. None: there is nothing
    to say."""
    recorded = _recorded(policy)
    if len(workers) < 2 or seconds <= 0 or recorded is None:
        return None
    policies = [name for name in _policies(recorded, len(workers)) if run is None or name != Auto.name]
    summaries = simulated_again(workers, seconds, policies, costs)
    return Advice(summaries, recommendation(summaries, recorded, run), seconds, until)


def _recorded(policy: str) -> str | None:
    try:
        return str(build_policy(policy))
    except ConfigurationError:  # one that only its author has
        return None


def _policies(recorded: str, workers: int) -> Iterator[str]:
    """The recorded one first, and all others that can work with so many workers, as they are without a word. One that
    chooses among the others is no answer to the question which of them is best."""
    yield recorded
    for name in POLICIES:
        if name == Auto.name:
            continue
        with contextlib.suppress(ConfigurationError):
            chosen = str(policy_for(name, workers))
            if chosen != recorded:
                yield name

"""What other policies would have made of a run: its own times, simulated again."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import msgspec
import pytest

from paceline.cli import main
from paceline.core.errors import TraceError
from paceline.core.messages import GradientArrived
from paceline.core.questions import Costs
from paceline.experiment import Simulation, simulate
from paceline.experiment.advice import advice_on
from paceline.experiment.simulation import Switch
from paceline.experiment.whatif import changed_in, chosen_in, cost_of_staying, recommendation, whatif
from paceline.policies import POLICIES
from paceline.recording.iteration_times import IterationTimes, in_parts, iteration_times
from paceline.recording.metrics import Summary
from paceline.recording.trace import Trace, TraceWriter
from paceline.runtimes.speeds import Slowdown

GROUP = Simulation(intervals=(1.0, 1.1, 1.3, 4.0), duration=200.0)


@pytest.fixture
def recorded(tmp_path: Path) -> Trace:
    """A run under BSP, which wastes most of its time."""
    simulate("bsp", GROUP, trace_file=tmp_path / "trace.jsonl")
    return Trace(tmp_path / "trace.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy", [*(name for name in POLICIES if name != "auto"), "auto:tried=50", "ssp:staleness=1", "dbw:blind=true"]
)
def test_of_a_simulated_run_it_says_what_simulating_directly_says(policy: str, recorded: Trace) -> None:
    (found,) = whatif(recorded, [policy])
    direct = simulate(policy, GROUP)
    for figure in ("updates", "pushes", "applied", "discarded", "max_lead", "max_staleness", "supersteps"):
        assert getattr(found, figure) == getattr(direct, figure)
    for figure in ("seconds", "waiting_seconds", "waiting_share", "mean_staleness"):
        assert getattr(found, figure) == pytest.approx(getattr(direct, figure))


def test_random_times_are_taken_as_they_came(tmp_path: Path) -> None:
    group = Simulation(workers=3, speed="lognormal:sigma=0.5", duration=100.0, seed=4)
    simulate("asp", group, trace_file=tmp_path / "trace.jsonl")
    (found,) = whatif(Trace(tmp_path / "trace.jsonl"), ["ssp"])  # which does no more iterations than ASP did
    assert found.pushes == simulate("ssp", group).pushes
    assert found.waiting_share == pytest.approx(simulate("ssp", group).waiting_share)


def test_workers_join_and_leave_when_they_did(tmp_path: Path) -> None:
    group = Simulation(intervals=(1.0, 1.5, 2.0), duration=60.0, joins={1: 10.0}, failures={2: 30.0})
    simulate("asp", group, trace_file=tmp_path / "trace.jsonl")
    workers = iteration_times(Trace(tmp_path / "trace.jsonl")).workers()
    assert {worker: (each.joined_at, each.left_at) for worker, each in workers.items()} == {
        0: (0.0, None),
        1: (10.0, None),
        2: (0.0, 30.0),
    }
    (found,) = whatif(Trace(tmp_path / "trace.jsonl"), ["bsp"])
    assert found.pushes == simulate("bsp", group).pushes


def test_an_interrupted_iteration_is_not_an_iteration_time(tmp_path: Path) -> None:
    group = Simulation(intervals=(1.0, 1.0, 5.0), duration=50.0)
    simulate("backup:k=2,late=interrupt", group, trace_file=tmp_path / "trace.jsonl")
    workers = iteration_times(Trace(tmp_path / "trace.jsonl")).workers()
    assert list(workers) == [0, 1] and set(workers[0].times) == {1.0}  # the third never finished one


def test_an_interrupt_that_comes_too_late_for_a_push_does_not_begin_its_iteration_anew(tmp_path: Path) -> None:
    group = Simulation(intervals=(1.0, 1.02), push_delay=0.05, duration=10.0)
    simulate("backup:k=1,late=interrupt", group, trace_file=tmp_path / "trace.jsonl")
    workers = iteration_times(Trace(tmp_path / "trace.jsonl")).workers()
    assert workers[0].times == pytest.approx([1.05] * 9)
    assert workers[1].times == pytest.approx([1.07] * 6)  # at other times it was interrupted early enough


@pytest.mark.slow
def test_parts_of_a_long_run_stand_for_all_of_it() -> None:
    """Also for what comes late in it: a beginning alone would say that nobody is slow."""
    group = Simulation(
        intervals=(1.0, 1.0, 1.0, 1.0), duration=4000.0, jitter=0.02, slowdowns=(Slowdown(3, 5.0, 600.0, None),)
    )
    times = IterationTimes()
    simulate("bsp", group, observers=[times])
    workers, seconds = in_parts(times.workers(), 4000.0, 300)
    assert sum(len(each.times) for each in workers.values()) == pytest.approx(300, rel=0.2) and seconds < 450
    assert in_parts(times.workers(), 4000.0, times.pushes) == (times.workers(), 4000.0)
    advice = advice_on("bsp", workers, seconds, 4000.0)
    assert advice is not None and advice.sentence.startswith("take elastic-bsp: ") and advice.until == 4000.0
    bsp = next(summary for summary in advice.summaries if summary.policy == "bsp")
    assert bsp.waiting_share == pytest.approx(simulate("bsp", group).waiting_share, abs=0.1)


def test_parts_know_who_was_there_and_forget_nobody_who_is_slow() -> None:
    """An iteration may last longer than from one part to the next."""
    group = Simulation(intervals=(1.0, 1.0, 1.0, 700.0), duration=2000.0, joins={1: 1000.0}, failures={2: 400.0})
    times = IterationTimes()
    simulate("asp", group, observers=[times])
    workers, seconds = in_parts(times.workers(), 2000.0, 400)
    assert workers[1].joined_at == pytest.approx(seconds / 2) and workers[2].left_at == pytest.approx(seconds / 5)
    assert set(workers[3].times) == {700.0}


def test_the_recommendation_names_the_policy_its_gain_and_why(recorded: Trace) -> None:
    said = recommendation(whatif(recorded, ["bsp", "ssp", "elastic-bsp", "asp"]), "bsp")
    assert said.startswith("take elastic-bsp: 2.") and "times the gradients of bsp in the same time" in said
    equal = Simulation(intervals=(1.0, 1.0), duration=50.0)
    same = [simulate(policy, equal) for policy in ("bsp", "asp", "ssp")]
    assert recommendation(same, "ssp") == "stay with ssp: no other policy would use more gradients in the same time"
    assert recommendation(same, "another").startswith("take bsp: its workers would wait 0%")
    assert recommendation(same, "bsp").startswith("stay with bsp: its workers would wait 0%")


def test_a_run_whose_policy_changed_is_compared_as_it_was(tmp_path: Path) -> None:
    group = msgspec.structs.replace(GROUP, switches=(Switch("asp", 100.0),))
    as_simulated = simulate("bsp", group, trace_file=tmp_path / "trace.jsonl")
    trace = Trace(tmp_path / "trace.jsonl")
    run = changed_in(trace)
    assert run is not None and run.applied == as_simulated.applied and changed_in_nothing(tmp_path) is None
    found = whatif(trace, ["bsp", "asp", "elastic-bsp"])
    more = next(each for each in found if each.policy == "elastic-bsp").used_per_second / run.used_per_second - 1
    said = recommendation(found, "bsp", run)
    assert said.startswith(f"elastic-bsp alone would have used {more:.0%} more gradients than the run as it was; its")
    fewer = recommendation([each for each in found if each.policy == "bsp"], "bsp", run)
    assert re.match(r"bsp alone would have used \d+% fewer gradients than the run as it was", fewer)
    same = msgspec.structs.replace(run, policy="asp")
    assert recommendation([same], "bsp", run).startswith("asp alone would have used as many gradients as the run as")


def changed_in_nothing(directory: Path) -> Summary | None:
    simulate("bsp", GROUP, trace_file=directory / "fixed.jsonl")
    return changed_in(Trace(directory / "fixed.jsonl"))


def test_what_the_server_costs_is_reckoned_with(tmp_path: Path) -> None:
    """As the run itself was told it: many small updates are no gain where the server is the limit."""
    group = Simulation(intervals=(1.0, 1.0, 1.0, 1.0), duration=200.0, costs=Costs(update=0.4))
    simulate("auto:tried=100", group, trace_file=tmp_path / "trace.jsonl")
    (asp,) = whatif(Trace(tmp_path / "trace.jsonl"), ["asp"])
    assert simulate("asp", group).used_per_second == pytest.approx(2.5, rel=0.01), "an update takes 0.4 s"
    assert 2.0 < asp.used_per_second < 2.55, "and not the 3 that iterations alone would allow"


def test_of_those_about_as_fast_the_freshest_is_recommended_and_it_says_so(recorded: Trace) -> None:
    said = recommendation(whatif(recorded, ["bsp", "elastic-bsp", "asp"]), "bsp")
    assert re.search(r"; asp would use [12]% more, which are older$", said)


def test_the_policy_of_the_run_is_recognised_however_it_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate("ssp:staleness=3", GROUP, trace_file=tmp_path / "trace.jsonl")
    arguments = ["--policy", "ssp:staleness=3", "--policy", "bsp", "--json"]
    monkeypatch.setattr(sys, "argv", ["paceline", "whatif", str(tmp_path), *arguments])
    with pytest.raises(SystemExit):
        main()
    names = [found["policy"] for found in json.loads(capsys.readouterr().out)]
    assert names == ["ssp", "bsp"] and Trace(tmp_path / "trace.jsonl").header.policy == "ssp"


def test_a_trace_without_pushes_is_refused(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "trace.jsonl", "bsp")
    writer.close(3.0)
    with pytest.raises(TraceError, match="nobody pushed anything"):
        whatif(Trace(tmp_path / "trace.jsonl"), ["bsp"])


def test_the_command_prints_a_table_a_sentence_or_json(
    recorded: Trace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert any(isinstance(record.event, GradientArrived) for record in recorded)

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["paceline", "whatif", str(recorded.path.parent), *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code in (0, None)
        return capsys.readouterr().out

    table = run("--policy", "asp")
    assert table.splitlines()[-1].startswith("take asp: ") and "\nbsp " in table
    assert [each["policy"] for each in json.loads(run("--policy", "asp", "--json"))] == ["bsp", "asp"]


def test_of_a_run_under_auto_it_says_what_it_would_have_cost_to_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    used = simulate("auto:tried=50", GROUP, trace_file=tmp_path / "trace.jsonl").applied
    chosen = chosen_in(Trace(tmp_path / "trace.jsonl"))
    assert chosen is not None and chosen.used == used and chosen.policies[0] == "bsp" and len(chosen.policies) > 1
    monkeypatch.setattr(sys, "argv", ["paceline", "whatif", str(tmp_path), "-p", "asp"])
    with pytest.raises(SystemExit):
        main()
    table = capsys.readouterr().out
    bsp, asp = (simulate(policy, GROUP).applied for policy in ("bsp", "asp"))
    said = table.splitlines()[-1]
    assert said.startswith(f"auto:tried=50 used {used:,} gradients; it would have been {bsp} with bsp alone (")
    assert f"{1 - bsp / used:.0%} less)" in said and "\nauto:tried=50 " in table
    more = cost_of_staying(msgspec.structs.replace(chosen, used=asp - 1, policies=["asp"]), [simulate("asp", GROUP)])
    assert more == f"auto:tried=50 used {asp - 1:,} gradients; it would have been {asp:,} with asp alone (0% more)"


def test_where_nobody_chose_a_policy_there_is_nothing_to_say_about_staying(recorded: Trace) -> None:
    assert chosen_in(recorded) is None

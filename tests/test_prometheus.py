"""How runs are, in Prometheus' text format: its own parser reads it back."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
from command_line import Command, command
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from paceline.experiment import Simulation, simulate
from paceline.recording.progress_log import Evaluation, Failure, Measurement
from paceline.recording.prometheus import STATES, prometheus_text
from paceline.recording.status import FINISHED, RUNNING, CheckpointStatus, RunStatus, WorkerStatus

RUN = RunStatus(
    run="runs/mine",
    state=RUNNING,
    began=1_795_000_000.5,
    policy="ssp:staleness=3",
    optimizer="SGD",
    seconds=12.5,
    samples=19_385,
    samples_asked=287_400,
    updates=600,
    samples_per_second=1543.25,
    seconds_left=174.0,
    workers=(
        WorkerStatus(0, "waits", 204, 520.0, 0.64, 0.2, "worker 0 waits: 4 ahead of worker 2, limit 3", ""),
        WorkerStatus(2, "computes", 200, 506.0, 0.0, None, "", ""),
    ),
    measurement=Measurement(12.0, 19_000, 13.5, 200, 590, 3, 0.1, 0.04),
    evaluations=(
        Evaluation(10.0, 9, 1, {"loss": 1.0}),
        Evaluation(12.0, 18_000, 580, {"loss": math.nan, "top 5": 0.9}),
    ),
    failures=(Failure(1, 3.0, "killed"),),
    checkpoint=CheckpointStatus(495, 2.4),
)


def read(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """By name and labels, as Prometheus' own parser has it; each name stands there once, with its kind and help."""
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    assert all(family.documentation and family.type in ("counter", "gauge") for family in families)
    assert all(
        sample.name.endswith("_total") == (family.type == "counter") for family in families for sample in family.samples
    )
    return {
        sample.name: {tuple(other.labels.items()): other.value for other in family.samples}
        for family in families
        for sample in family.samples
    }


def test_every_figure_by_hand() -> None:
    found = read(prometheus_text([RUN]))
    run = ("run", "runs/mine")
    single = {name: values[(run,)] for name, values in found.items() if (run,) in values}
    assert single == {
        "paceline_run_began_seconds": 1_795_000_000.5,
        "paceline_training_seconds_total": 12.5,
        "paceline_samples_total": 19_385,
        "paceline_samples_asked": 287_400,
        "paceline_updates_total": 600,
        "paceline_samples_per_second": 1543.25,
        "paceline_seconds_left": 174.0,
        "paceline_epoch": 13.5,
        "paceline_workers": 3,
        "paceline_training_loss": 0.04,
        "paceline_learning_rate": 0.1,
        "paceline_evaluation_samples": 18_000,
        "paceline_worker_deaths_total": 1,
        "paceline_checkpoint_age_seconds": 2.4,
        "paceline_checkpoint_updates": 495,
    }
    assert found["paceline_run_info"] == {
        (run, ("policy", "ssp:staleness=3"), ("optimizer", "SGD"), ("correction", ""), ("cluster", "")): 1
    }
    states = {dict(labels)["state"]: value for labels, value in found["paceline_run_state"].items()}
    assert states == {state: float(state == RUNNING) for state in STATES}
    assert math.isnan(found["paceline_evaluation"][run, ("figure", "loss")])
    assert found["paceline_evaluation"][run, ("figure", "top 5")] == 0.9
    first, second = ("worker", "0"), ("worker", "2")
    assert set(found["paceline_worker_state"]) == {
        (run, first, ("state", "waits")),
        (run, second, ("state", "computes")),
    }
    assert found["paceline_worker_pushes_total"] == {(run, first): 204, (run, second): 200}
    assert found["paceline_worker_samples_per_second"] == {(run, first): 520.0, (run, second): 506.0}
    assert found["paceline_worker_waiting_share"] == {(run, first): 0.64, (run, second): 0.0}
    assert found["paceline_worker_staleness"] == {(run, first): 0.2}  # of the other nobody knows it


def test_what_nobody_knows_is_not_there_and_several_runs_share_their_families() -> None:
    ended = msgspec.structs.replace(RUN, run="runs/ended", state=FINISHED)
    families = read(prometheus_text([ended]))
    assert "paceline_checkpoint_updates" in families and "paceline_checkpoint_age_seconds" not in families
    starting = RunStatus("runs/new", "starting", 5.0)
    found = read(prometheus_text([RUN, starting]))
    assert len(found["paceline_samples_total"]) == 2 and len(found["paceline_run_info"]) == 2
    for name in ("seconds_left", "epoch", "training_loss", "checkpoint_updates", "worker_staleness", "evaluation"):
        assert all(dict(labels)["run"] == "runs/mine" for labels in found[f"paceline_{name}"])
    assert prometheus_text([]) == ""


@settings(max_examples=25)
@given(st.text(st.characters(codec="utf-8")), st.floats())
def test_any_name_and_any_number_can_be_read_back(name: str, value: float) -> None:
    evaluation = Evaluation(1.0, 1, 1, {name: value})
    text = prometheus_text([msgspec.structs.replace(RUN, run=name, evaluations=(evaluation,))])
    ((labels, number),) = read(text)["paceline_evaluation"].items()
    assert labels == (("run", name), ("figure", name))
    assert number == value or (math.isnan(number) and math.isnan(value))


@pytest.fixture
def paceline(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command(monkeypatch, capsys)


def test_the_command(tmp_path: Path, paceline: Command) -> None:
    simulate("bsp", Simulation(intervals=(1.0, 2.0), duration=9.0), trace_file=tmp_path / "trace.jsonl")
    outcome = paceline("status", tmp_path, "--prometheus")
    assert outcome.code == 0 and read(outcome.out)["paceline_updates_total"] == {(("run", str(tmp_path)),): 4}
    for other in (["--watch"], ["--json"], ["--address", "auto"]):
        refused = paceline("status", tmp_path, "--prometheus", *other)
        assert refused.code == 2 and "leave out --watch, --json and --address" in refused.err
    assert paceline("status", tmp_path / "nowhere", "--prometheus").code == 2

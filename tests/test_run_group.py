"""The group of a real run, with every sentence of refusal, and the files that a run leaves behind."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from paceline.core.errors import ConfigurationError
from paceline.core.messages import UpdateRule, WorkerJoined
from paceline.experiment.configuration import MODEL, Configuration, read_configuration
from paceline.experiment.group import MOST_PROCESSES, Group, group_of, size_of
from paceline.experiment.run_files import RunFiles, fresh_directory, name_of
from paceline.recording.metrics import RunMetrics
from paceline.recording.progress_log import Evaluation, Measurement, MetricsWriter, read_metrics
from paceline.recording.trace import Record, Trace
from paceline.runtimes.pace import Pace
from paceline.runtimes.speeds import Constant, Lognormal, Recorded, Slowdown
from paceline.training.checkpoint import load_state


def check(group: Group, **changed: Any) -> None:
    options: dict[str, Any] = {
        "epochs": 1,
        "lr_scaling": "linear",
        "stale": "auto",
        "not_finite": "stop",
        "evaluate_every": None,
    }
    group.check(**{**options, **changed})


# -- sizes --


@pytest.mark.parametrize(
    ("given", "found"),
    [(4, (4, None, None)), ("4", (4, None, None)), (" 2..4 ", (2, 2, 4)), ("3..3", (3, 3, 3))],
)
def test_a_size_is_a_number_or_a_range(given: int | str, found: tuple[int, int | None, int | None]) -> None:
    assert size_of(given) == found


@pytest.mark.parametrize("given", ["", "two", "2..", "..4", "2...4", "-1", "1.5", "2-4"])
def test_a_size_that_is_neither_is_refused(given: str) -> None:
    with pytest.raises(ConfigurationError, match=r"must be a number or a range, as in 4 or 2\.\.4"):
        size_of(given)


@pytest.mark.parametrize("given", ["4..2", "0..3", "0..0"])
def test_a_range_that_is_empty_or_begins_with_nobody_is_refused(given: str) -> None:
    with pytest.raises(ConfigurationError, match="a range begins with at least 1, and does not end below that"):
        size_of(given)


def test_a_size_that_is_no_whole_number_is_refused_with_a_sentence() -> None:
    with pytest.raises(ConfigurationError, match=r"workers 2\.5: must be a number or a range"):
        size_of(2.5)  # type: ignore[arg-type]


# -- what is refused --


@pytest.mark.parametrize(
    ("group", "options", "message"),
    [
        (Group(0), {}, "workers is 0; it must be at least 1"),
        (Group(-2), {}, "workers is -2; it must be at least 1"),
        (Group(2), {"epochs": 0}, "epochs is 0; it must be at least 1"),
        (Group(2), {"epochs": 1.5}, "epochs is 1.5; it must be"),
        (Group(2), {"evaluate_every": 0}, "evaluate_every is 0; it must be at least 1"),
        (Group(MOST_PROCESSES + 1), {}, f"workers is {MOST_PROCESSES + 1}; at most {MOST_PROCESSES} fit here"),
        (Group(2, 2, MOST_PROCESSES + 1), {}, f"workers is {MOST_PROCESSES + 1}; at most {MOST_PROCESSES} fit here"),
        (Group(2), {"lr_scaling": "half"}, "unknown lr_scaling 'half'; there are: auto, linear, sqrt, none"),
        (Group(2), {"not_finite": "cry"}, "unknown not_finite 'cry'; there are: stop, skip"),
        (Group(2, slowdowns=(Slowdown(2, 2.0),)), {}, "slowdown of worker 2: workers are 0 to 1"),
        (Group(2, slowdowns=(Slowdown(-1, 2.0),)), {}, "slowdown of worker -1: workers are 0 to 1"),
        (Group(2, slowdowns=(Slowdown(1, 0.5),)), {}, "by 0.5 from 0 to inf: the factor must be at least 1"),
        (Group(2, slowdowns=(Slowdown(1, math.inf),)), {}, "the factor must be at least 1"),
        (Group(2, slowdowns=(Slowdown(1, math.nan),)), {}, "the factor must be at least 1"),
        (Group(2, slowdowns=(Slowdown(1, 2.0, 5.0, 5.0),)), {}, "from 5 to 5: .*before the end"),
        (Group(2, slowdowns=(Slowdown(1, 2.0, -1.0),)), {}, "from -1 to inf: .*beginning from 0"),
        (Group(2, device="tpu9"), {}, "unknown device 'tpu9'; give cpu, cuda, cuda:1 or the like, or auto"),
        (Group(2, device=""), {}, "unknown device ''"),
        (Group(2, intervals=(1.0,)), {}, "intervals must be 2 numbers above 0, one per worker; there are 1"),
        (Group(2, intervals=(1.0, 0.0)), {}, "intervals must be 2 numbers above 0"),
        (Group(2, intervals=(1.0, math.inf)), {}, "intervals must be 2 numbers above 0"),
        (Group(2, speed="warp"), {}, "unknown speed 'warp'"),
        (Group(2, speed="constant:seconds=0"), {}, "seconds"),
        (Group(2, trace="/nowhere/times.csv"), {}, "/nowhere/times.csv: cannot be read"),
        (Group(1, intervals=(1.0,), speed="constant"), {}, "at most one way: intervals, a speed, or a trace"),
        (Group(1, speed="constant", trace="x"), {}, "at most one way: intervals, a speed, or a trace"),
        (Group(2, least=3, most=4), {}, "least"),
        (Group(2, least=0, most=4), {}, "least"),
        (Group(5, least=1, most=4), {}, "most"),
    ],
)
def test_a_group_that_makes_no_sense_is_refused(group: Group, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check(group, **options)


def test_cuda_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigurationError, match="device 'cuda:1' was asked for, but there is no CUDA here"):
        check(Group(2, device="cuda:1"))


# -- what is accepted --


@pytest.mark.parametrize(
    "group",
    [
        Group(1),
        Group(2, 2, 4, "cpu", (Slowdown(3, 1.0), Slowdown(0, 9.0, 1.0, 2.0))),
        Group(2, intervals=(0.1, 0.2)),
        Group(3, speed="lognormal:seconds=0.02"),
    ],
)
def test_a_group_that_makes_sense_passes(group: Group) -> None:
    check(group, evaluate_every=10)


def test_what_launch_is_given_becomes_a_group() -> None:
    group = group_of("2..4", slowdown={1: 3}, speed="constant:seconds=0.5", device="cpu")
    assert group == Group(2, 2, 4, "cpu", (Slowdown(1, 3.0),), speed="constant:seconds=0.5")
    assert group_of(3) == Group(3)


def test_workers_share_the_graphics_cards_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [Group(2, device="cpu").devices()(index) for index in range(2)] == ["cpu", "cpu"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert Group(2).devices()(1) == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for device in ("auto", "cuda"):
        assert [Group(3, device=device).devices()(index) for index in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert Group(3, device="cuda:1").devices()(0) == "cuda:1"


def test_a_graphics_card_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigurationError, match="device 'cuda:2'"):
        check(Group(1, device="cuda:2"))


def test_the_threads_of_torch_are_shared_among_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: 8)
    assert [Group(workers).threads() for workers in (1, 3, 8, 20)] == [8, 2, 1, 1]
    assert [Group(workers).server_threads() for workers in (1, 3, 8, 20)] == [4, 2, 1, 1]


def test_paces_come_from_intervals_a_speed_a_trace_or_slowdowns(tmp_path: Path) -> None:
    slow = Slowdown(1, 2.0)
    assert Group(2).paces()(0) is None
    pace = Group(2, slowdowns=(slow,)).paces()
    assert pace(0) is None and pace(1) == Pace(None, (slow,))
    pace = Group(2, intervals=(0.1, 0.2), slowdowns=(slow,)).paces()
    assert pace(0) == Pace(Constant(0.1), ()) and pace(1) == Pace(Constant(0.2), (slow,))
    assert pace(3) == Pace(Constant(0.2), ())  # who joins later takes the turn of an earlier one
    assert Group(2, speed="lognormal:sigma=0.1").paces()(1) == Pace(Lognormal(sigma=0.1), ())
    (tmp_path / "times.csv").write_text("worker,iteration,seconds\n0,0,0.5\n0,1,0.25\n")
    assert Group(2, trace=str(tmp_path / "times.csv")).paces()(1) == Pace(Recorded((0.5, 0.25)), ())


# -- run files --

GROUP = Group(2, 2, 4, "cpu", (Slowdown(1, 3.0, 1.0), Slowdown(0, 2.0, 0.0, 9.5)), intervals=(0.1, 0.2))


def train(worker: object) -> None:
    """What a user would launch."""


TOLD = Configuration("asp", GROUP, 1, 0, "auto", "train")


def test_a_run_leaves_its_configuration_trace_metrics_summary_and_model(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "run"
    told = Configuration("bsp", GROUP, 3, 7, "sqrt", name_of(train), "none")
    rule = UpdateRule("SGD", "sqrt", "none", "as asked for")
    with RunFiles(directory, told) as files:
        before = read_configuration(directory)
        assert set(before.versions) == {"paceline", "torch", "python"}
        assert before == msgspec.structs.replace(told, versions=before.versions)
        files.begun(rule)
        files.trace.begun(rule)
        files.trace.observe(Record(0.0, WorkerJoined(0)))
        files.metrics.evaluated(Evaluation(1.0, 10, 1, {"accuracy": 0.5}))
        assert (directory / "control").exists()
        summary = RunMetrics().summary("bsp", 2.5)
        files.finish(2.5, ({"weight": torch.ones(2)}, summary, 20))
    found = read_configuration(directory)
    assert found == msgspec.structs.replace(before, updates=rule) and found.train == f"{__name__}.train"
    trace = Trace(directory / "trace.jsonl")
    assert trace.header.policy == "bsp" and trace.header.updates == rule and len(list(trace)) == 1 and trace.end == 2.5
    assert json.loads((directory / "summary.json").read_text())["policy"] == "bsp"
    assert load_state(directory / MODEL)["weight"].tolist() == [1.0, 1.0]
    assert read_metrics(directory / "metrics.jsonl") == [Evaluation(1.0, 10, 1, {"accuracy": 0.5})]
    assert not (directory / "control").exists()


def test_a_run_without_a_result_leaves_a_whole_trace_all_the_same(tmp_path: Path) -> None:
    with RunFiles(tmp_path, TOLD) as files:
        files.trace.observe(Record(0.0, WorkerJoined(0)))
    assert len(list(Trace(tmp_path / "trace.jsonl"))) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "trace.jsonl", "metrics.jsonl"}


def test_a_directory_that_holds_a_run_already_is_refused_and_untouched(tmp_path: Path) -> None:
    with RunFiles(tmp_path, TOLD):
        pass
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ConfigurationError, match="holds a run already; choose another directory"):
        RunFiles(tmp_path, TOLD).__enter__()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for directory in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigurationError, match=f"{directory}: cannot be written"):
            RunFiles(directory, TOLD).__enter__()


def test_a_run_that_cannot_begin_leaves_nothing_open_and_no_trace(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(ConfigurationError, match="cannot be written"):
        RunFiles(tmp_path, TOLD).__enter__()
    assert not (tmp_path / "trace.jsonl").exists()  # or the directory would hold a run from now on


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not the configuration of a training run"),
        (b"{", "is not the configuration of a training run"),
        (b'{"policy": "bsp"}', "is not the configuration of a training run: .*group"),
        (b'{"policy": "b\xff"}', "is not the configuration of a training run"),
    ],
)
def test_a_configuration_that_is_none_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ConfigurationError, match=message):
        read_configuration(tmp_path)


def test_a_directory_without_a_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"cannot be read: No such file or directory; is this a run directory\?"
    ):
        read_configuration(tmp_path)


def test_every_run_gets_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.strftime", lambda form: "20260101-120000")
    names = []
    for _ in range(3):
        directory = fresh_directory(tmp_path, "bsp")
        directory.mkdir()
        names.append(directory.name)
    assert names == ["20260101-120000-bsp", "20260101-120000-bsp-2", "20260101-120000-bsp-3"]


# -- metrics --


def measurement(seconds: float, loss: float | None = 0.5) -> Measurement:
    return Measurement(seconds, 10, 0.5, 2, 3, 4, 0.1, loss)


def test_measurements_are_kept_once_in_a_while_and_evaluations_always(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path / "metrics.jsonl", every=1.0)
    found = [Evaluation(float(number), 5, number, {"loss": 0.25}) for number in range(2)]
    for seconds in (0.0, 0.5, 0.99, 1.0, 1.5, 3.0, 3.5):
        writer.measured(measurement(seconds))
    for each in found:
        writer.evaluated(each)
    writer.close()
    assert read_metrics(tmp_path / "metrics.jsonl") == [*map(measurement, (0.0, 1.0, 3.0)), *found]


def test_metrics_of_a_run_that_was_killed_are_read_up_to_the_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    writer.measured(measurement(0.0, loss=None))
    writer.evaluated(Evaluation(1.0, 5, 1, {"loss": 0.25}))
    writer.close()
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for end in range(first, len(whole)):
        path.write_bytes(whole[:end])
        assert read_metrics(path) == [measurement(0.0, loss=None)]


def test_figures_of_a_model_that_diverged_can_be_read_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    writer.measured(measurement(0.0, loss=math.nan))
    writer.evaluated(Evaluation(1.0, 5, 1, {"accuracy": 0.1, "loss": math.nan}))
    writer.close()
    first, second = read_metrics(path)
    assert isinstance(first, Measurement) and first.samples == 10
    assert isinstance(second, Evaluation) and second.figures["accuracy"] == 0.1

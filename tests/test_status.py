"""`paceline status` and `paceline runs`: what they say of a run's directory, whatever state it is in."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import msgspec
import pytest
from command_line import Command, command

from paceline.cli import status
from paceline.core.messages import (
    ApplyUpdate,
    DataOpened,
    Gradient,
    GradientArrived,
    PolicyChanged,
    Record,
    SendParameters,
    UpdateRule,
    WorkerJoined,
    WorkerLeft,
    WorkerSuspected,
)
from paceline.experiment.configuration import Configuration
from paceline.experiment.group import Group
from paceline.experiment.run_files import in_short
from paceline.experiment.run_lock import lock, somebody_is_at
from paceline.experiment.run_report import read_run
from paceline.experiment.run_status import RunReader
from paceline.recording.lately import Lately
from paceline.recording.lines import GrowingLines, LinesWriter
from paceline.recording.metrics import RunMetrics
from paceline.recording.progress_log import Evaluation, Failure, Measurement, MetricsWriter
from paceline.recording.trace import TraceWriter
from paceline.report.status import in_force
from paceline.runtimes.ray_cluster import listing
from paceline.runtimes.ray_cluster.found import ActorSeen, ClusterRuns, RunOnCluster, actor_name, runs_of

RULE = UpdateRule("SGD", "auto", "worker moments")


@pytest.fixture
def paceline(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.delenv("COLUMNS", raising=False)
    return command(monkeypatch, capsys)


def pushes(rounds: int) -> list[Record]:
    """Two workers under BSP, a round per second: worker 0 pushes after 0.5 s, and waits for worker 1."""
    records = [Record(0.0, WorkerJoined(worker), (SendParameters(worker),)) for worker in (0, 1)]
    records.append(Record(0.0, DataOpened(80, 10, 800, 40)))
    for number in range(1, rounds + 1):
        first, second = Gradient(0, number), Gradient(1, number)
        records.append(Record(number - 0.5, GradientArrived(first, number - 1, 10), (), "worker 0 waits for worker 1"))
        commands = (ApplyUpdate((first, second)), SendParameters(0), SendParameters(1))
        records.append(Record(float(number), GradientArrived(second, number - 1, 10), commands))
    return records


def write_run(directory: Path, rounds: int = 8, *, end: float | None = None, over: bool = False, why: str = "") -> Path:
    """`end`: it was closed then; `over`: for want of work; `why`: before its time."""
    directory.mkdir(parents=True)
    configuration = Configuration("bsp", Group(2), 10, 0, "auto", "mine.train", updates=RULE)
    (directory / "config.json").write_bytes(msgspec.json.encode(configuration))
    trace = TraceWriter(directory / "trace.jsonl", "bsp")
    trace.begun(RULE)
    for record in pushes(rounds):
        trace.observe(record)
    for worker in (0, 1) if over else ():
        trace.observe(Record(float(rounds), WorkerLeft(worker, "no work left")))
    trace.close(0.0 if end is None else end, why)
    if end is None:  # it was killed
        lines = (directory / "trace.jsonl").read_bytes().splitlines(keepends=True)
        (directory / "trace.jsonl").write_bytes(b"".join(lines[:-1]))
    metrics = MetricsWriter(directory / "metrics.jsonl")
    metrics.measured(Measurement(rounds - 1.0, 20 * (rounds - 1), 1.0, 10, rounds - 1, 2, 0.1, 0.5))
    metrics.evaluated(Evaluation(rounds - 1.0, 20, 1, {"accuracy": 0.75, "loss": float("nan")}))
    metrics.worker_failed(Failure(7, 1.5, "killed by SIGKILL"))
    metrics.close()
    return directory


def hold(directory: Path, request: pytest.FixtureRequest) -> None:
    """As if a process were at it."""
    descriptor = lock(directory)
    request.addfinalizer(lambda: os.close(descriptor))


# -- one run --


def test_a_run_that_goes_on(tmp_path: Path, paceline: Command, request: pytest.FixtureRequest) -> None:
    run = write_run(tmp_path / "mine")
    hold(run, request)
    (run / "checkpoints" / "000000007").mkdir(parents=True)
    (run / "checkpoints" / "000000008.unfinished").mkdir()
    found = json.loads(paceline("status", run, "--json").out)
    assert (found["state"], found["policy"], found["optimizer"], found["correction"]) == (
        "running",
        "bsp",
        "SGD",
        "worker moments",
    )
    assert (found["samples"], found["samples_asked"], found["updates"], found["cluster"]) == (
        160,
        800,
        8,
        "this machine",
    )
    assert found["samples_per_second"] == 20 and found["seconds_left"] == 32
    first, second = found["workers"]
    assert (first["state"], first["iterations"], first["samples_per_second"]) == ("computes", 8, 10)
    assert first["waiting_share"] == 0.5 and second["waiting_share"] == 0
    assert first["staleness"] == 0 and first["latest_wait"] == "worker 0 waits for worker 1"
    assert found["failures"][0]["worker"] == 7 and found["evaluations"][0]["figures"]["accuracy"] == 0.75
    assert found["checkpoint"]["updates"] == 7

    shown = paceline("status", run)
    assert shown.code == 0 and shown.err == ""
    for part in ("running", "SGD, stale gradients: worker moments", "160 of 800 samples (20%), about 32 s left"):
        assert part in shown.out
    assert "worker 7 died after 1.5 s: killed by SIGKILL" in shown.out and "of update 7" in shown.out


@pytest.mark.parametrize(
    ("end", "over", "state"), [(8.0, True, "finished"), (8.0, False, "stopped"), (None, False, "killed")]
)
def test_how_a_run_ended(end: float | None, over: bool, state: str, tmp_path: Path, paceline: Command) -> None:
    run = write_run(tmp_path / "mine", end=end, over=over)
    found = json.loads(paceline("status", run, "--json", "--watch").out)
    assert found["state"] == state and found["seconds_left"] is None and found["since"] == 0
    assert [worker["state"] for worker in found["workers"]] == ["left" if over else "computes"] * 2
    assert state in paceline("status", run).out


def test_why_a_run_ended_before_its_work_was_done(tmp_path: Path, paceline: Command) -> None:
    run = write_run(tmp_path / "mine", end=8.0, why="worker 1 raised: ValueError: my data are bad")
    assert "before its work was done: worker 1 raised: ValueError: my data are bad" in paceline("status", run).out
    assert json.loads(paceline("status", run, "--json").out)["why"].startswith("worker 1 raised")
    assert read_run(run).notes == [
        "This run was ended before its work was done: worker 1 raised: ValueError: my data are bad."
    ]
    assert in_short(None) == "" and in_short(ValueError("one")) == "one"
    assert in_short(ValueError("worker 0 raised:\n  File x\n  ValueError: bad\n")) == "worker 0 raised: ValueError: bad"


def test_a_policy_that_chooses_others_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "mine", end=8.0)
    status = msgspec.structs.replace(RunReader(run).look(), policy="asp", began_with="auto", chosen_by="auto")
    assert in_force(status) == "asp (chosen by auto)"
    lines = (run / "metrics.jsonl").read_bytes().replace(b'"policy":""', b'"policy":"asp"')
    (run / "metrics.jsonl").write_bytes(lines.replace(b'"chosen_by":""', b'"chosen_by":"auto"'))
    assert in_force(RunReader(run).look()) == "asp (chosen by auto, began with bsp)", "however much happened since"
    assert in_force(msgspec.structs.replace(status, began_with="bsp")) == "asp (chosen by auto, began with bsp)"
    assert in_force(msgspec.structs.replace(status, chosen_by="")) == "asp (began with auto)"


def test_a_run_that_starts(tmp_path: Path, paceline: Command, request: pytest.FixtureRequest) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "trace.jsonl").touch()
    hold(tmp_path / "mine", request)
    outcome = paceline("status", tmp_path / "mine")
    assert outcome.code == 0 and "starting" in outcome.out


def test_a_trace_that_was_cut_off_in_a_line(tmp_path: Path, paceline: Command) -> None:
    run = write_run(tmp_path / "mine")
    trace = run / "trace.jsonl"
    trace.write_bytes(trace.read_bytes()[:-30])
    found = json.loads(paceline("status", run, "--json").out)
    assert (found["state"], found["updates"], found["workers"][0]["state"]) == ("killed", 7, "waits")
    assert found["workers"][0]["reason"] == "worker 0 waits for worker 1"


def test_only_the_end_of_a_long_trace_is_read(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    run = write_run(tmp_path / "mine", rounds=100)
    hold(run, request)
    whole, part = RunReader(run).look(), RunReader(run, most=2_000).look()
    assert part.since > 90 and whole.since == 70
    assert (part.updates, part.samples, part.samples_asked) == (whole.updates, whole.samples, whole.samples_asked)
    assert [worker.staleness for worker in part.workers] == [0, 0]
    assert [worker.iterations for worker in part.workers] == [100, 100]
    assert part.workers[0].waiting_share == pytest.approx(0.5, abs=0.1)


def test_a_run_that_was_switched_names_the_policy_in_force(tmp_path: Path, paceline: Command) -> None:
    directory = write_run(tmp_path / "run")
    corrected = UpdateRule("SGD", "auto", "secant")
    with (directory / "trace.jsonl").open("ab") as trace:
        trace.write(msgspec.json.encode(Record(9.0, PolicyChanged("asp", corrected))) + b"\n")
    assert "asp (began with bsp), SGD, stale gradients: secant, began with 2" in paceline("status", directory).out
    status = RunReader(directory).look()
    assert (status.policy, status.began_with, status.correction) == ("asp", "bsp", "secant")
    metrics = MetricsWriter(directory / "metrics.jsonl", goes_on=True)
    metrics.measured(Measurement(9.5, 160, 1.0, 10, 8, 2, 0.1, 0.5, policy="asp"))
    metrics.close()
    status = RunReader(directory, most=40).look()  # the change is not in what is read of the trace
    assert (status.policy, status.began_with, status.correction) == ("asp", "bsp", "")


def test_a_second_look_reads_what_is_new_and_a_cut_begins_again(tmp_path: Path) -> None:
    run = write_run(tmp_path / "mine", rounds=2)
    reader = RunReader(run)
    assert reader.look().updates == 2
    records = pushes(3)[-2:]
    with (run / "trace.jsonl").open("ab") as trace:
        trace.write(b"".join(msgspec.json.encode(record) + b"\n" for record in records))
    assert reader.look().updates == 3
    lines = (run / "trace.jsonl").read_bytes().splitlines(keepends=True)
    (run / "trace.jsonl").write_bytes(b"".join(lines[:6]))
    assert reader.look().updates == 1


def test_watching_ends_with_the_run(tmp_path: Path, paceline: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "mine", end=8.0, over=True)
    descriptor = lock(run)
    naps = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 11:
            os.close(descriptor)

    monkeypatch.setattr(status.time, "sleep", sleep)
    outcome = paceline("status", run, "--watch", "--json")
    states = [json.loads(line)["state"] for line in outcome.out.splitlines()]
    assert outcome.code == 0 and states == ["running"] * 11 + ["finished"] and naps == [1.0] * 11

    descriptor, naps[:] = lock(run), []
    plain = paceline("status", run, "--watch")
    shown = [line.rpartition(" ")[2] for line in plain.out.splitlines() if line.startswith(str(run))]
    assert shown == ["running", "running", "finished"]  # at first, after ten seconds, and at the end


def test_ctrl_c_ends_watching(
    tmp_path: Path, paceline: Command, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    run = write_run(tmp_path / "mine")
    hold(run, request)

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(status.time, "sleep", interrupted)
    assert paceline("status", run, "--watch").code == 130


def test_wrong_input_is_a_sentence(tmp_path: Path, paceline: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    newer = write_run(tmp_path / "some" / "newer")
    (newer / "trace.jsonl").write_text('{"format":"paceline-trace-9","policy":"bsp"}\n')
    torn = write_run(tmp_path / "torn")
    (torn / "config.json").write_text("{")
    damaged = write_run(tmp_path / "damaged")
    with (damaged / "trace.jsonl").open("a") as trace:
        trace.write('{"now":9.0,"event":{"type":"Nonsense"}}\n')
    (tmp_path / "foreign").mkdir()
    for arguments, said in (
        (("status", "nowhere"), "no such directory"),
        (("status", newer / "trace.jsonl"), "is a file"),
        (("status",), "runs: there is no such directory"),
        (("status", "foreign"), "is not a run directory"),
        (("status", "some"), "there are runs below, the newest is some/newer"),
        (("status", newer), "format 'paceline-trace-9' is unknown here"),
        (("status", torn), "is not the configuration of a training run"),
        (("status", damaged), "not a whole record"),
        (("status", newer, "--address", "auto"), "not both"),
        (("status", "--address", "local"), "would start a new cluster"),
        (("runs",), "runs: there is no such directory"),
        (("runs", newer), "is a run itself"),
    ):
        outcome = paceline(*arguments)
        assert outcome.code == 2 and outcome.err.count("\n") == 1 and said in outcome.err, arguments


# -- all runs --


def test_the_runs_of_a_directory_the_newest_first(
    tmp_path: Path, paceline: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs" / "20261116-101500-mine-bsp", end=8.0, over=True)
    write_run(tmp_path / "runs" / "compared" / "20261117-101500-mine-bsp")
    broken = write_run(tmp_path / "runs" / "20261115-101500-broken")
    (broken / "trace.jsonl").write_text("what is this?\n")
    (tmp_path / "runs" / "foreign").mkdir()
    listed = [json.loads(line) for line in paceline("runs", "--json").out.splitlines()]
    assert [(Path(run["run"]).name[:8], run["state"]) for run in listed] == [
        ("20261117", "killed"),
        ("20261116", "finished"),
        ("20261115", "unreadable"),
    ]
    assert listed[1]["samples"] == 160 and "not a paceline trace" in listed[2]["problem"]
    table = paceline("runs")
    assert table.code == 0 and "75.0%" in table.out and "160 (20%)" in table.out
    assert "without a run: foreign" in table.out
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, paceline("runs").out.splitlines())) <= 80
    assert "20261117-101500-mine-bsp" in paceline("status").out  # the newest


def test_a_directory_without_runs(tmp_path: Path, paceline: Command) -> None:
    assert paceline("runs", tmp_path) == (0, f"there is no run below {tmp_path}\n", "")
    assert paceline("runs", tmp_path, "--json") == (0, "", "")


# -- what it is made of --


def test_figures_over_a_whole_run_are_those_of_its_summary() -> None:
    lately, metrics = Lately(None, from_the_start=True), RunMetrics()
    for record in pushes(9):
        lately.observe(record)
        metrics.observe(record)
    summary = metrics.summary("bsp", 9.0)
    for worker, known in zip(lately.workers(9.0, ended=True), summary.workers, strict=True):
        assert worker.iterations == known.pushes
        assert worker.waiting_share == pytest.approx(known.waiting_seconds / known.member_seconds)
    assert lately.updates == summary.updates and lately.total == 180


def test_silence_and_leaving() -> None:
    lately = Lately(None, from_the_start=True)
    for record in pushes(3):
        lately.observe(record)
    lately.observe(Record(9.0, WorkerSuspected(1, 6.0, 0.5)))
    assert lately.workers(9.0, ended=False)[1].reason == "silent for 6 s; it usually needs 0.5 s"
    lately.observe(Record(10.0, WorkerLeft(1, "evicted")))
    assert [worker.worker for worker in lately.workers(10.0, ended=False)] == [0]
    assert lately.workers(10.0, ended=True)[1].state == "left" and not lately.came_to_its_end


@pytest.mark.parametrize("name", ["lines", "lines.gz"])
def test_lines_of_a_file_that_grows(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    writer = LinesWriter(path)
    for number in range(100):
        writer.write(f"line {number}\n".encode())
    writer.flush()
    whole, end = GrowingLines(path, 10_000), GrowingLines(path, 25)
    assert len(whole.new()) == 100 and whole.from_the_start
    assert end.new()[-2:] == [b"line 98", b"line 99"] and not end.from_the_start
    writer.write(b"line 100\nli")
    writer.end_member()
    assert whole.new() == end.new() == [b"line 100"] and not whole.was_cut
    writer.write(b"ne 101\n")
    writer.close()
    assert whole.new() == end.new() == [b"line 101"]
    in_pieces = GrowingLines(path, 10_000)
    found = [*iter(lambda: in_pieces.new(100), [])]
    assert len(found) > 1 and [line for lines in found for line in lines][-2:] == [b"line 100", b"line 101"]
    path.write_bytes(b"")
    assert whole.was_cut


def test_a_file_that_was_cut_and_has_grown_beyond_that_again(tmp_path: Path) -> None:
    """Whoever slept meanwhile cannot tell it by its size."""
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntwo\nthree\n")
    lines = GrowingLines(path, 10_000)
    lines.new()
    path.write_bytes(b"one\ntwo\nanother\nfour\n")
    assert lines.was_cut


def test_looking_does_not_keep_a_run_from_its_directory(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    assert not somebody_is_at(tmp_path) and not somebody_is_at(tmp_path / "nowhere")
    hold(tmp_path, request)
    assert somebody_is_at(tmp_path)


def test_actors_of_a_cluster_by_run(paceline: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    called = partial(actor_name, "/data/my runs/a", "login", "1f")
    names = [
        called(*of, start) for start, of in enumerate([("server", 0), ("worker", 0), ("worker", 1), ("worker", 2)])
    ]
    seen = [ActorSeen(name, "10.0.0.1" if at < 3 else None, placed=at < 3) for at, name in enumerate(names)]
    again = ActorSeen(actor_name("/data/my runs/a", "login", "2f", "worker", 0, 1))
    others = [ActorSeen("somebody/else"), ActorSeen("paceline/a/b/c/worker/x/1"), ActorSeen("a/b/c/d/worker/1/1")]
    runs = runs_of([*seen, again, *others])
    assert runs == (
        RunOnCluster("/data/my runs/a", "login", (0, 1), (0,), 1, {"10.0.0.1": 3}),
        RunOnCluster("/data/my runs/a", "login", (0,), (), 0, {}),
    )

    monkeypatch.setattr(listing, "looking_at", lambda address: nullcontext(lambda: ClusterRuns(address, runs)))
    shown = paceline("status", "--address", "auto").out
    assert "/data/my runs/a  launched on login\n  2 workers, 1 server, 1 not placed yet; on 10.0.0.1 (3)\n" in shown
    assert "  1 worker, the launching process as server\n" in shown
    (first, _) = json.loads(paceline("status", "--address", "auto", "--json").out)["runs"]
    assert first["workers"] == [0, 1] and first["host"] == "login"
    monkeypatch.setattr(listing, "looking_at", lambda address: nullcontext(lambda: ClusterRuns(address, ())))
    assert paceline("status", "--address", "auto", "--watch").out == "no run of paceline on the Ray cluster at auto\n"

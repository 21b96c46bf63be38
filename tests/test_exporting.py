"""Runs as files of other programs: Perfetto's own engine and Parquet's own reader find what the run's summary has."""

from __future__ import annotations

import csv
import math
import os
from collections import Counter
from pathlib import Path

import pytest
from command_line import Command, command
from pyarrow.parquet import read_table

from paceline.core.errors import ConfigurationError
from paceline.core.messages import ApplyUpdate, Gradient, GradientArrived, SendParameters, WorkerJoined, WorkerLeft
from paceline.experiment import Simulation, Slowdown, simulate
from paceline.experiment.exporting import TABLES, Exporter
from paceline.experiment.run_lock import lock
from paceline.experiment.simulation import Switch
from paceline.policies import policy
from paceline.recording.metrics import Summary
from paceline.recording.progress_log import Evaluation, Failure, Logged, Measurement, MetricsWriter
from paceline.recording.protobuf import LARGEST_FLOAT, single, varint
from paceline.recording.table_files import CsvFiles, ParquetFiles
from paceline.recording.trace import Record, TraceWriter

EVENTFUL = Simulation(
    intervals=(1.0, 1.3, 1.9, 2.6),
    jitter=0.1,
    failures={1: 20.5},
    joins={3: 10.2},
    slowdowns=(Slowdown(2, 3.0, 25.0, 30.0),),
    duration=60.0,
    seed=7,
    switches=(Switch("backup:k=2,late=interrupt", 40.0),),
)
SWITCHED = str(policy("backup:k=2,late=interrupt"))
POLICIES = ["ssp:staleness=2", "backup:k=2,late=interrupt", "elastic-bsp:lookahead=3,inside=gather", "dbw:blind=true"]
WRITTEN = [
    Record(0.0, WorkerJoined(0), (SendParameters(0),)),
    Record(0.0, WorkerJoined(1), (SendParameters(1),)),
    Record(1.0, GradientArrived(Gradient(0, 1), 0, 8, 0.5), (), "worker 0 waits for worker 1"),
    Record(
        3.0,
        GradientArrived(Gradient(1, 1), 0, 24, 0.1),
        (ApplyUpdate((Gradient(0, 1), Gradient(1, 1))), SendParameters(0), SendParameters(1)),
    ),
    Record(4.0, GradientArrived(Gradient(0, 2), 1, 8), (), "worker 0 waits for worker 1"),
    Record(
        5.0, WorkerLeft(1, "its process was killed by SIGKILL"), (ApplyUpdate((Gradient(0, 2),)), SendParameters(0))
    ),
]


@pytest.fixture
def paceline(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command(monkeypatch, capsys)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A whole run by hand: two workers, of which one dies."""
    directory = tmp_path / "the-run"
    directory.mkdir()
    trace = TraceWriter(directory / "trace.jsonl", "bsp")
    for record in WRITTEN:
        trace.observe(record)
    trace.close(6.0)
    metrics = MetricsWriter(directory / "metrics.jsonl")
    metrics.measured(Measurement(1.0, 0, 0.0, 2, 0, 2, 0.1, None))
    metrics.measured(Measurement(5.5, 40, 1.25, 2, 2, 1, 0.05, 0.3, policy="asp"))
    metrics.evaluated(Evaluation(3.0, 32, 1, {"accuracy": 0.75, "seconds": 9.0}))
    metrics.evaluated(Evaluation(5.0, 40, 2, {"accuracy": 0.8, "loss": math.nan}))
    metrics.logged(Logged(3.5, 1, {"gradient norm": 1.5}))
    metrics.worker_failed(Failure(1, 5.0, "its process was killed", signal="SIGKILL"))
    metrics.close()
    (directory / "checkpoints" / "000000001").mkdir(parents=True)
    return directory


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def simulated(directory: Path, named: str) -> Summary:
    directory.mkdir()
    return simulate(named, EVENTFUL, trace_file=directory / "trace.jsonl")


# -- tables --


@pytest.mark.parametrize("named", POLICIES)
def test_tables_come_to_the_figures_of_the_summary(named: str, tmp_path: Path) -> None:
    summary = simulated(tmp_path / "run", named)
    exporter = Exporter(tmp_path / "run")
    exporter.export_tables(CsvFiles(tmp_path / "csv", TABLES, force=False))
    pushes, updates = rows_of(tmp_path / "csv/pushes.csv"), rows_of(tmp_path / "csv/updates.csv")
    workers = rows_of(tmp_path / "csv/workers.csv")
    assert not exporter.note and not exporter.problem
    fates = Counter(push["fate"] for push in pushes)
    assert (fates["applied"], fates["discarded"], fates["pending"]) == (
        summary.applied,
        summary.discarded,
        summary.pending,
    )
    assert len(updates) == summary.updates and sum(int(update["gradients"]) for update in updates) == summary.applied
    assert {update["policy"] for update in updates} == {summary.policy, SWITCHED}
    stale = [int(push["staleness"]) for push in pushes if push["staleness"]]
    assert max(stale) == summary.max_staleness and sum(stale) / len(stale) == pytest.approx(summary.mean_staleness)
    assert sum(float(push["waiting_seconds"]) for push in pushes) == pytest.approx(summary.waiting_seconds)
    assert sum(int(worker["interruptions"]) for worker in workers) == summary.interrupted
    assert [float(push["seconds"]) for push in pushes] == sorted(float(push["seconds"]) for push in pushes)
    assert all(push["fate_reason"] for push in pushes if push["fate"] == "discarded")
    for worker, known in zip(workers, summary.workers, strict=True):
        own = [push for push in pushes if push["worker"] == worker["worker"]]
        assert len(own) == known.pushes == int(worker["pushes"])
        assert float(worker["waiting_seconds"]) == pytest.approx(known.waiting_seconds)
        assert sum(float(push["computing_seconds"]) for push in own) == pytest.approx(
            float(worker["computing_seconds"])
        )
        assert float(worker["computing_seconds"]) + known.waiting_seconds <= known.member_seconds + 1e-9


def test_every_column_by_hand(run: Path, tmp_path: Path) -> None:
    files = CsvFiles(tmp_path / "csv", TABLES, force=False)
    Exporter(run).export_tables(files)
    assert {path.stem for path in files.written} == set(TABLES)
    read = {path.stem: path.read_text().splitlines() for path in files.written}
    assert read["pushes"][1:] == [
        "0,1,1.0,1.0,2.0,worker 0 waits for worker 1,0,0,8,0.5,applied,1,,0",
        "1,1,3.0,3.0,0.0,,0,0,24,0.1,applied,1,,0",
        "0,2,4.0,1.0,1.0,worker 0 waits for worker 1,1,0,8,,applied,2,,0",
    ]
    assert read["updates"][1:] == ["1,3.0,bsp,2,2,32,0.0,0,0.2", "2,5.0,bsp,1,1,8,0.0,0,"]
    assert read["workers"][1:] == [
        "0,,0.0,0.0,,,2,16,2,0,0,2.0,3.0,0.0",
        "1,,0.0,0.0,5.0,its process was killed by SIGKILL,1,24,1,0,0,3.0,0.0,0.0",
    ]
    assert read["measurements"][1:] == ["1.0,0,0.0,0,2,0.1,,bsp", "5.5,40,1.25,2,1,0.05,0.3,asp"]
    assert read["evaluations"] == [
        "seconds,samples,version,accuracy,figure seconds,loss",
        "3.0,32,1,0.75,9.0,",
        "5.0,40,2,0.8,,nan",
    ]
    assert read["logged"] == ["seconds,worker,gradient norm", "3.5,1,1.5"]
    assert read["failures"][1:] == ["1,5.0,its process was killed,,SIGKILL,"]


def test_parquet_has_what_csv_has_with_its_types(run: Path, tmp_path: Path) -> None:
    exporter = Exporter(run)
    exporter.export_tables(CsvFiles(tmp_path, TABLES, force=False))
    exporter.export_tables(ParquetFiles(tmp_path, TABLES, force=False))
    for name in TABLES:
        table = read_table(tmp_path / f"{name}.parquet")
        rows = rows_of(tmp_path / f"{name}.csv")
        assert table.column_names == list(rows[0])
        read = [{key: "" if value is None else str(value) for key, value in row.items()} for row in table.to_pylist()]
        assert read == rows
    assert str(read_table(tmp_path / "pushes.parquet").schema.field("staleness").type) == "int64"


def test_a_long_run_is_written_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.recording.table_files.ROWS_AT_ONCE", 7)
    summary = simulated(tmp_path / "run", "asp")
    Exporter(tmp_path / "run").export_tables(ParquetFiles(tmp_path, TABLES, force=False))
    pushes = read_table(tmp_path / "pushes.parquet")
    assert pushes.num_rows == summary.pushes > 50
    assert pushes.column("seconds").to_pylist() == sorted(pushes.column("seconds").to_pylist())


# -- what cannot be exported, or not all of it --


def test_a_run_that_goes_on_or_was_killed_is_exported_as_far_as_it_is_there(
    run: Path, tmp_path: Path, paceline: Command
) -> None:
    whole = (run / "trace.jsonl").read_bytes()
    (run / "trace.jsonl").write_bytes(b"".join(whole.splitlines(keepends=True)[:-1])[:-30])  # in its last record
    killed = paceline("export", run, "--csv", tmp_path / "csv")
    assert killed.code == 0
    assert killed.err == (
        "paceline: the run was killed, or its process is on another machine: exported is what is in its trace, the"
        " first 4.0 s\n"
    )
    assert [push["fate"] for push in rows_of(tmp_path / "csv/pushes.csv")] == ["applied", "applied", "pending"]
    held = lock(run)
    try:
        goes_on = paceline("export", run, "--csv", tmp_path / "csv", "--force")
    finally:
        os.close(held)
    assert goes_on.code == 0 and goes_on.err.startswith("paceline: the run goes on: exported is")


def test_a_damaged_trace_is_exported_up_to_the_damage_and_that_is_an_error(
    run: Path, tmp_path: Path, paceline: Command
) -> None:
    lines = (run / "trace.jsonl").read_bytes().splitlines(keepends=True)
    (run / "trace.jsonl").write_bytes(b"".join([*lines[:5], b"\xff{]\n", *lines[6:]]))
    outcome = paceline("export", run, "--csv", tmp_path / "csv", "--perfetto", "-o", tmp_path / "trace")
    assert outcome.code == 2
    assert "trace.jsonl, line 6: not a whole record" in outcome.err
    assert "only what is before it, 3.0 s, can be exported" in outcome.err
    assert len(rows_of(tmp_path / "csv/pushes.csv")) == 2 and (tmp_path / "trace").stat().st_size > 200


def test_damaged_metrics_leave_out_their_damaged_lines(run: Path, tmp_path: Path, paceline: Command) -> None:
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"type":"Measurement"\n')
    outcome = paceline("export", run, "--csv", tmp_path / "csv")
    assert outcome.code == 2 and "metrics.jsonl, line 7: not a whole line" in outcome.err
    assert len(rows_of(tmp_path / "csv/measurements.csv")) == 2


def test_wrong_input_is_a_sentence_and_leaves_nothing_behind(
    run: Path, tmp_path: Path, paceline: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "foreign.txt").write_text("hello\n")
    (tmp_path / "starts").mkdir()
    (tmp_path / "starts/trace.jsonl").touch()
    (tmp_path / "empty").mkdir()
    TraceWriter(tmp_path / "empty/trace.jsonl", "bsp").close(0.0)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/updates.csv").touch()
    before = {path for path in tmp_path.rglob("*") if run not in path.parents}
    for arguments, said in {
        (): "Missing argument",
        (run,): "what shall be exported? --perfetto, --csv DIR or --parquet DIR",
        (run, "--csv", "new", "-o", "x"): "-o is the file that --perfetto writes",
        ("nowhere", "--perfetto"): "nowhere: cannot be read: No such file",
        (".", "--perfetto"): "there are runs below, the newest is the-run",
        ("foreign.txt", "--perfetto"): "foreign.txt, line 1: this is not a paceline trace",
        ("starts", "--perfetto"): "starts/trace.jsonl: is empty: its run has not begun",
        ("empty", "--perfetto"): "empty/trace.jsonl: nothing has happened in its run",
        (run, "--perfetto", "-o", "foreign.txt"): "foreign.txt: is there already; give another name, or --force",
        (run, "--perfetto", "-o", "taken"): "taken: is a directory; give the name of a file",
        (run, "--perfetto", "-o", "no/x"): "no/x: cannot be written: No such file or directory",
        (run, "--perfetto", "-o", os.devnull, "--force"): "/dev/null: cannot be replaced by a file",
        (run, "--csv", "foreign.txt"): "foreign.txt: is a file; give the name of a directory",
        (run, "--csv", "taken"): "taken/updates.csv: is there already",
        (run, "--perfetto", "--csv", "taken"): "taken/updates.csv: is there already",
        (run, "--csv", "/proc/nothing"): "/proc/nothing: cannot be written",
    }.items():
        outcome = paceline("export", *arguments)
        assert outcome.code == 2 and said in outcome.err, (arguments, outcome)
    assert {path for path in tmp_path.rglob("*") if run not in path.parents} == before


def test_a_full_disk_leaves_no_half_of_a_file(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def give(files: CsvFiles, name: str, row: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CsvFiles, "give", give)
    with pytest.raises(ConfigurationError, match="csv: cannot be written: No space left on device"):
        Exporter(run).export_tables(CsvFiles(tmp_path / "csv", TABLES, force=False))
    assert list((tmp_path / "csv").iterdir()) == []


def test_without_pyarrow_parquet_is_refused_in_a_sentence(
    run: Path, tmp_path: Path, paceline: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.recording.table_files.find_spec", lambda name: None)
    outcome = paceline("export", run, "--parquet", tmp_path / "new")
    assert outcome.code == 2 and "pip install 'paceline[parquet]'" in outcome.err
    assert not (tmp_path / "new").exists()


# -- Perfetto --


@pytest.mark.slow
def test_perfettos_own_engine_finds_in_the_trace_what_the_summary_has(
    run: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    from trace_processor import TraceProcessor

    cache = request.config.cache.mkdir("perfetto")

    def opened(run: Path) -> TraceProcessor:
        Exporter(run).export_perfetto(run / "out")
        found = TraceProcessor((run / "out").read_bytes(), cache)
        assert not list(found.rows("select name, value from stats where severity != 'info' and value > 0"))
        return found

    for number, named in enumerate(POLICIES):
        summary = simulated(tmp_path / str(number), named)
        engine = opened(tmp_path / str(number))
        seconds = {
            (row["track"], row["name"]): row["total"]
            for row in engine.rows(
                "select t.name as track, s.name as name, sum(s.dur) / 1e9 as total from slice s"
                " join track t on s.track_id = t.id group by 1, 2"
            )
        }
        for worker in summary.workers:
            track = f"worker {worker.worker}"
            assert seconds.get((track, "waits"), 0.0) == pytest.approx(worker.waiting_seconds, abs=1e-6)
            together = seconds[track, "computes"] + worker.waiting_seconds
            assert together == pytest.approx(worker.member_seconds, abs=1e-6)
        names = {row["name"]: row["n"] for row in engine.rows("select name, count(*) n from slice group by 1")}
        assert names["update"] == summary.updates and names.get("discards", 0) == summary.discarded
        assert names["joins"] == len(summary.workers) and names["is lost"] == 1
        assert names.get(f"policy: {SWITCHED}", 0) == len(summary.changes)
        arrows = engine.rows(
            "select b.name as name, count(*) n from flow f join slice a on f.slice_out = a.id"
            " join slice b on f.slice_in = b.id where a.name = 'computes' group by 1"
        )
        ends = {row["name"]: row["n"] for row in arrows}
        assert (ends["update"], ends.get("discards", 0)) == (summary.applied, summary.discarded)
        open_ended = "select count(*) n from slice where dur < 0 or (name = 'waits' and dur = 0)"
        assert [row["n"] for row in engine.rows(open_ended)] == [0]

    engine = opened(run)
    waits = engine.rows(
        "select ts / 1e9 as at, dur / 1e9 as dur, extract_arg(arg_set_id, 'debug.reason') as reason from slice"
        " where name = 'waits' order by ts"
    )
    reason = "worker 0 waits for worker 1"
    assert [tuple(row.values()) for row in waits] == [(1.0, 2.0, reason), (4.0, 1.0, reason)]
    pushed = engine.rows(
        "select extract_arg(arg_set_id, 'debug.clock') as clock, extract_arg(arg_set_id, 'debug.samples') as samples,"
        " extract_arg(arg_set_id, 'debug.loss') as loss from slice where name = 'computes' order by ts, track_id"
    )
    assert {tuple(row.values()) for row in pushed} >= {(1, 8, 0.5), (1, 24, 0.1), (2, 8, None)}
    counters = engine.rows(
        "select t.name as name, c.ts / 1e9 as at, c.value as value from counter c"
        " join counter_track t on c.track_id = t.id order by c.ts"
    )
    counted: dict[str, list[tuple[float, float]]] = {}
    for row in counters:
        counted.setdefault(row["name"], []).append((row["at"], row["value"]))
    assert counted["waiting workers"] == [(1.0, 1.0), (3.0, 0.0), (4.0, 1.0), (5.0, 0.0)]
    assert counted["staleness"] == [(3.0, 0.0), (5.0, 0.0)]
    assert counted["samples per second"] == [(0.0, pytest.approx(32 / 3)), (3.0, 4.0)]
    assert counted["evaluation: accuracy"] == [(3.0, 0.75), (5.0, 0.8)]
    assert counted["gradient norm of worker 1"] == [(3.5, 1.5)] and counted["members"] == [(1.0, 2.0), (5.5, 1.0)]
    assert "evaluation: loss" not in counted  # it was not a number
    instants = engine.rows("select name, ts / 1e9 as at from slice where name in ('checkpoint', 'dies', 'is lost')")
    assert {tuple(row.values()) for row in instants} == {("checkpoint", 3.0), ("dies", 5.0), ("is lost", 5.0)}
    ranked = engine.rows(
        "select a.name as above, t.name as name from track t join track a on t.parent_id = a.id"
        " order by cast(extract_arg(t.source_arg_set_id, 'sibling_order_rank') as int)"
    )
    ordered = [(row["above"], row["name"]) for row in ranked]
    names = ["server", "worker 0", "worker 1", "waiting workers", "staleness", "samples per second"]
    assert ordered[:6] == [("the-run (bsp)", name) for name in names]


def test_texts_without_end_are_not_kept(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many different ones they are written out. Perfetto's own messages read the file."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    monkeypatch.setattr("paceline.recording.perfetto_packets.MOST_NUMBERED", 12)
    Exporter(run).export_perfetto(run / "out")
    packets = Trace.FromString((run / "out").read_bytes()).packet
    written = [argument.string_value for packet in packets for argument in packet.track_event.debug_annotations]
    numbered = [text.str for packet in packets for text in packet.interned_data.debug_annotation_string_values]
    assert b"worker 0 waits for worker 1" in numbered  # an early one
    assert "its process was killed by SIGKILL" in written
    assert all(packet.trusted_packet_sequence_id == 1 for packet in packets)


def test_the_file_has_the_runs_name_and_is_replaced_only_when_asked(
    run: Path, tmp_path: Path, paceline: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = paceline("export", run, "--perfetto")
    assert first == (0, "the-run.perfetto-trace: open it at https://ui.perfetto.dev\n", "")
    assert paceline("export", run / "trace.jsonl", "--perfetto").code == 2
    assert paceline("export", run / "trace.jsonl", "--perfetto", "--force").code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["the-run", "the-run.perfetto-trace"]


def test_wire_format_at_its_edges() -> None:
    assert [varint(number) for number in (0, 127, 128, 300)] == [b"\0", b"\x7f", b"\x80\x01", b"\xac\x02"]
    assert varint(-1) == b"\xff" * 9 + b"\x01"
    assert single(2, 1e300) == single(2, LARGEST_FLOAT) and single(2, -math.inf)[1:] == b"\0\0\x80\xff"

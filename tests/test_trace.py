"""The log of a run: written, read back, replayed to the same bytes, and refused with a line number when damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from paceline.core.errors import ConfigurationError, TraceError
from paceline.core.messages import ApplyUpdate, Gradient, GradientArrived, SendParameters, UpdateRule, WorkerJoined
from paceline.experiment import Simulation, Slowdown, run_directory, simulate
from paceline.policies import POLICIES, Policy, policy
from paceline.policies.ssp import SSP
from paceline.recording.observer import Observer, observe_methods
from paceline.recording.progress_log import Evaluation, Measurement, MetricsWriter
from paceline.recording.replay import first_difference, replay
from paceline.recording.trace import FORMAT, Record, RecordingError, Trace, TraceWriter, cut_to

EVENTFUL = Simulation(
    intervals=(1.0, 1.3, 1.9, 2.6),
    jitter=0.1,
    failures={1: 20.5},
    joins={3: 10.2},
    slowdowns=(Slowdown(2, 3.0, 25.0, 30.0),),
    push_delay=0.05,
    pull_delay=0.02,
    duration=40.0,
    seed=7,
)
VARIANTS = [
    *(name for name in POLICIES if name != "auto"),
    "auto:tried=20",
    "ssp:staleness=0",
    "dssp:lower=1,upper=4,capped=false,wait=next,literal_grant=true",
    "elastic-bsp:lookahead=3,monitoring=first,inside=gather",
    "backup:k=2,late=interrupt",
    "backup:k=3,late=pull",
    "dbw:blind=true",
    "buffered:size=3,max_staleness=1,divide=weights",
]
WRITTEN = [
    Record(0.0, WorkerJoined(0), (SendParameters(0),)),
    Record(1.5, GradientArrived(Gradient(0, 1), 0), (ApplyUpdate((Gradient(0, 1),)), SendParameters(0))),
]


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A trace of two records: a header, lines 2 and 3, and the closing line 4."""
    path = tmp_path / "trace.jsonl"
    writer = TraceWriter(path, "asp")
    for record in WRITTEN:
        writer.observe(record)
    writer.close(2.0)
    return path


def read_all(path: Path, *, allow_cut_off: bool = False) -> Trace:
    trace = Trace(path, allow_cut_off=allow_cut_off)
    list(trace)
    return trace


def test_what_is_written_is_read_back(whole: Path) -> None:
    trace = Trace(whole)
    assert trace.header.policy == "asp" and trace.header.format == FORMAT
    assert trace.end is None and trace.records is None  # nobody has read that far
    assert list(trace) == WRITTEN
    assert trace.end == 2.0 and trace.records == 2
    assert list(trace) == WRITTEN  # and again


def test_the_lines_of_a_trace_are_plain_json(whole: Path) -> None:
    assert whole.read_text().splitlines() == [
        '{"format":"paceline-trace-1","policy":"asp"}',
        '{"now":0.0,"event":{"type":"WorkerJoined","worker":0},"commands":[{"type":"SendParameters","worker":0}]}',
        '{"now":1.5,"event":{"type":"GradientArrived","gradient":[0,1],"version":0},'
        '"commands":[{"type":"ApplyUpdate","gradients":[[0,1]]},{"type":"SendParameters","worker":0}]}',
        '{"end":2.0,"records":2}',
    ]


@pytest.mark.parametrize("text", VARIANTS)
def test_a_run_replays_to_the_same_bytes(text: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    summary = simulate(text, EVENTFUL, trace_file=path)
    assert summary.pushes > 40
    lines = path.read_bytes().splitlines()
    assert [msgspec.json.encode(record) for record in replay(Trace(path))] == lines[1:-1]
    trace = Trace(path)
    assert first_difference(trace) is None
    assert trace.records == len(lines) - 2 and trace.end == summary.seconds == 40.0


def test_a_policy_object_writes_the_string_that_builds_it(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    simulate(policy("ssp:staleness=5"), EVENTFUL, trace_file=path)
    assert Trace(path).header.policy == "ssp:staleness=5"


def test_a_policy_that_paceline_does_not_know_is_given_to_the_replay(whole: Path) -> None:
    whole.write_text(whole.read_text().replace('"policy":"asp"', '"policy":"my-own"'))
    assert list(replay(Trace(whole), policy("asp"))) == WRITTEN


def test_a_tampered_command_is_found(whole: Path) -> None:
    whole.write_text(whole.read_text().replace('},{"type":"SendParameters","worker":0}]}', "}]}"))
    difference = first_difference(Trace(whole))
    assert difference is not None
    line, recorded, replayed = difference
    assert line == 3
    assert recorded == Record(1.5, WRITTEN[1].event, (ApplyUpdate((Gradient(0, 1),)),))
    assert replayed == WRITTEN[1]


def test_a_tampered_reason_is_found(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    simulate("bsp", Simulation(intervals=(1.0, 2.0), duration=4.0), trace_file=path)
    path.write_text(path.read_text().replace("the round still needs worker 1", "it is tired", 1))
    difference = first_difference(Trace(path))
    assert difference is not None and difference[0] == 4


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda good: b"", "line 1: this is not a paceline trace"),
    "foreign JSON": (lambda good: b'{"name": "something else"}\n', "line 1: this is not a paceline trace"),
    "foreign JSON list": (lambda good: b"[1, 2, 3]\n", "line 1: this is not a paceline trace"),
    "text": (lambda good: b"worker,iteration,seconds\n0,0,1\n", "line 1: this is not a paceline trace"),
    "binary": (lambda good: bytes(range(256)) * 4, "line 1: this is not a paceline trace"),
    "another version": (
        lambda good: good.replace(b"paceline-trace-1", b"paceline-trace-9"),
        "line 1: format 'paceline-trace-9' is unknown here; this paceline reads 'paceline-trace-1'",
    ),
    "another version with another header": (
        lambda good: b'{"format":"paceline-trace-9","policies":["asp"]}\n',
        "line 1: format 'paceline-trace-9' is unknown here; this paceline reads 'paceline-trace-1'",
    ),
    "cut in the header": (lambda good: good[:20], "line 1: this is not a paceline trace"),
    "cut after the header": (lambda good: good[:45], "line 2: the trace is cut off: its closing line is missing"),
    "cut in mid-line": (lambda good: good[:200], "line 3: not a whole record: Input data was truncated"),
    "cut at a line boundary": (
        lambda good: good[: good.index(b'{"end"')],
        "line 4: the trace is cut off: its closing line is missing",
    ),
    "cut before a newline": (
        lambda good: good[: good.index(b'\n{"end"')],
        "line 4: the trace is cut off: its closing line is missing",
    ),
    "cut in the closing line": (lambda good: good[:-5], "line 4: not a whole closing line: Input data was truncated"),
    "a record is missing": (
        lambda good: b"\n".join([*good.split(b"\n")[:1], *good.split(b"\n")[2:]]),
        "line 3: 2 records were written, 1 are here",
    ),
    "more after the closing line": (
        lambda good: good + b'{"now":3.0}\n',
        "line 5: there is more after the closing line",
    ),
    "binary in the middle": (
        lambda good: good.replace(b"WorkerJoined", b"\xff\xfe\x00"),
        "line 2: not a whole record: ",
    ),
    "an unknown event": (
        lambda good: good.replace(b"WorkerJoined", b"WorkerSneezed"),
        "line 2: not a whole record: Invalid value 'WorkerSneezed' - at `$.event.type`",
    ),
    "a blank line": (
        lambda good: good.replace(b'\n{"now":1.5', b'\n\n{"now":1.5'),
        "line 3: not a whole record: ",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_with_its_line(damage: str, whole: Path) -> None:
    change, message = DAMAGES[damage]
    good = whole.read_bytes()
    whole.write_bytes(change(good))
    assert whole.read_bytes() != good
    with pytest.raises(TraceError) as caught:
        read_all(whole)
    assert str(caught.value).startswith(f"{whole}, {message}")
    with pytest.raises(TraceError, match="line "):
        first_difference(Trace(whole))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as caught:
        Trace(tmp_path / "nothing.jsonl")
    assert str(caught.value) == f"{tmp_path / 'nothing.jsonl'}: cannot be read: No such file or directory"
    with pytest.raises(TraceError, match="cannot be read: Is a directory"):
        Trace(tmp_path)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "trace.jsonl"
    with pytest.raises(ConfigurationError) as caught:
        simulate("asp", EVENTFUL, trace_file=path)
    assert str(caught.value) == f"{path}: cannot be written: No such file or directory"


@pytest.mark.parametrize(
    ("keep", "records", "end"),
    [(-1, 2, 1.5), (-5, 2, 1.5), (-24, 2, 1.5), (-30, 1, 0.0), (200, 1, 0.0), (46, 0, 0.0), (45, 0, 0.0)],
)
def test_a_killed_run_can_be_read_up_to_its_last_whole_record(keep: int, records: int, end: float, whole: Path) -> None:
    whole.write_bytes(whole.read_bytes()[:keep])
    trace = read_all(whole, allow_cut_off=True)
    assert (trace.records, trace.end) == (records, end)
    assert first_difference(trace) is None


def test_a_whole_trace_is_read_to_its_end_though_it_might_be_cut_off(whole: Path) -> None:
    trace = read_all(whole, allow_cut_off=True)
    assert (trace.records, trace.end) == (2, 2.0)


def test_damage_in_the_middle_is_refused_though_the_trace_might_be_cut_off(whole: Path) -> None:
    whole.write_bytes(whole.read_bytes().replace(b"WorkerJoined", b"WorkerSneezed"))
    with pytest.raises(TraceError, match="line 2: not a whole record"):
        read_all(whole, allow_cut_off=True)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('"policy":"asp"', '"policy":"aspp"', "line 1: unknown policy 'aspp' (did you mean 'asp'?); there are: bsp, "),
        ('"gradient":[0,1]', '"gradient":[5,1]', "line 3: worker 5 (unknown): pushed gradient 1 of worker 5"),
        ('"gradient":[0,1]', '"gradient":[0,4]', "line 3: worker 0 (computing): pushed gradient 4 of worker 0"),
    ],
)
def test_a_replay_that_is_impossible_names_the_line(before: str, after: str, message: str, whole: Path) -> None:
    whole.write_text(whole.read_text().replace(before, after))
    with pytest.raises(TraceError) as caught:
        list(replay(Trace(whole)))
    assert str(caught.value).startswith(f"{whole}, {message}")


def test_the_configuration_beside_a_trace_can_be_read_back(tmp_path: Path) -> None:
    path = run_directory(tmp_path, "ssp:staleness=5", EVENTFUL)
    assert path == tmp_path / "ssp-staleness-5" / "trace.jsonl"

    class Configuration(msgspec.Struct):
        policy: str
        simulation: Simulation

    text = (path.parent / "config.json").read_bytes()
    assert msgspec.json.decode(text, type=Configuration) == Configuration("ssp:staleness=5", EVENTFUL)
    for_ever = Simulation(intervals=(1.0,), slowdowns=(Slowdown(0, 2.0, 5.0),))
    text = (run_directory(tmp_path, "asp", for_ever).parent / "config.json").read_bytes()
    assert msgspec.json.decode(text, type=Configuration).simulation == for_ever


def test_two_policies_never_share_a_run_directory(tmp_path: Path) -> None:
    texts = ["asp", "asp:", "dssp", "dssp:capped=TRUE", "dssp:capped=FALSE", "dbw:learning_rate=1e-05"]
    texts.append("dbw:learning_rate=1e+05")
    assert len({run_directory(tmp_path, text, EVENTFUL) for text in texts}) == len(texts)


def test_the_file_is_never_more_than_a_second_behind_a_run_that_is_measured(tmp_path: Path) -> None:
    now, path = 0.0, tmp_path / "trace.jsonl"
    writer = TraceWriter(path, "asp", clock=lambda: now)

    def on_disk() -> int:
        return len(list(Trace(path, allow_cut_off=True)))

    assert on_disk() == 0  # the header is there at once
    writer.observe(Record(0.0, WorkerJoined(0)))
    now = 0.99
    writer.observe(Record(0.99, WorkerJoined(1)))
    assert on_disk() == 0
    now = 1.0
    writer.observe(Record(1.0, WorkerJoined(2)))
    assert on_disk() == 3  # a second after the last time
    now = 1.1
    writer.observe(Record(1.1, WorkerJoined(3)))
    assert on_disk() == 3
    now = 1.25
    writer.measured(Measurement(1.25, 0, None, 1, 0, 4, 0.1, None))  # nothing happens, and it is measured
    assert on_disk() == 4
    writer.close(2.0)


@pytest.mark.parametrize("given", ["ssp:staleness=3", SSP(3), "dssp:upper=15,lower=3", "bsp"])
def test_the_header_and_the_summary_name_a_policy_alike_however_it_was_given(
    given: str | Policy, tmp_path: Path
) -> None:
    path = tmp_path / "trace.jsonl"
    summary = simulate(given, Simulation(intervals=(1.0, 1.0), duration=3.0), trace_file=path)
    assert summary.policy == Trace(path).header.policy == str(policy(given) if isinstance(given, str) else given)


def test_observers_that_see_no_records_are_left_out_of_the_driver() -> None:
    class Blind(Observer):
        pass

    class Seeing(Observer):
        def observe(self, record: Record) -> None: ...

    class Inheriting(Seeing):
        pass

    seeing, inheriting = Seeing(), Inheriting()
    assert observe_methods([Blind(), seeing, Observer(), inheriting]) == (seeing.observe, inheriting.observe)


def test_a_full_disk_is_reported_once(tmp_path: Path) -> None:
    full = Path("/dev/full")
    with pytest.raises(RecordingError, match=r"^/dev/full: cannot be written: No space left on device$"):
        TraceWriter(full, "bsp")
    writer = TraceWriter(tmp_path / "trace.jsonl", "bsp")
    writer._file.close()
    writer._file = full.open("wb")
    with pytest.raises(RecordingError, match="No space left"):
        writer.close(1.0)
    writer.observe(Record(0.0, WorkerJoined(0)))  # nothing more is said
    writer.close(1.0)
    metrics = MetricsWriter(tmp_path / "metrics.jsonl")
    metrics.close()
    metrics._file = full.open("wb", buffering=0)
    evaluation = Evaluation(0.0, 1, 1, {})
    with pytest.raises(RecordingError, match=r"metrics.jsonl: cannot be written: No space left"):
        metrics.evaluated(evaluation)
    metrics.evaluated(evaluation)
    metrics.close()


def test_a_trace_goes_on_after_what_is_kept_and_the_rest_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    writer = TraceWriter(path, "bsp")
    rule = UpdateRule("SGD", "linear", "none")
    writer.begun(rule)
    writer.observe(Record(0.0, WorkerJoined(0)))
    kept = writer.bytes
    writer.observe(Record(1.0, WorkerJoined(1)))
    assert writer.bytes > kept
    writer._file.close()  # as if it had been killed
    for number in (1, 2):
        beside = cut_to(path, kept)
        assert beside == tmp_path / f"trace.lost-{number}.jsonl" and b'"worker":1' in beside.read_bytes()
        again = TraceWriter(path, "bsp", after=kept)
        with pytest.raises(ConfigurationError, match=r"its updates were made with .* and would go on with"):
            again.begun(UpdateRule("Adam", "sqrt", "none"))
        again.begun(rule)
        again.observe(Record(2.0, WorkerJoined(1)))
        again.close(3.0)
        trace = Trace(path)
        assert [record.now for record in trace] == [0.0, 2.0] and trace.records == 2
    assert cut_to(path, path.stat().st_size) is None

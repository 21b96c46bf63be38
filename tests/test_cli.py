"""The command line as its user meets it: what it prints, what it refuses, and how it ends."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from paceline import __version__
from paceline.cli import main
from paceline.experiment.configuration import Configuration
from paceline.experiment.group import Group
from paceline.policies import POLICIES
from paceline.recording.replay import first_difference
from paceline.recording.trace import Trace

FIELDS = {
    *("policy", "seconds", "updates", "pushes", "discarded", "max_lead", "max_staleness", "mean_staleness"),
    *("waiting_seconds", "waiting_share", "workers"),
}
ESCAPE = "\x1b"


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that changes what a terminal or a pipe is told."""
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "PYTHONIOENCODING", "PYTHONUNBUFFERED", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def paceline(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command in this process."""

    def run(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["paceline", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return Outcome(ended.value.code if isinstance(ended.value.code, int) else 0, out, err)

    return run


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    code = "from paceline.cli import main; main()"
    return subprocess.Popen([sys.executable, "-c", code, *arguments], text=True, stderr=subprocess.PIPE, **options)


def refused(outcome: Outcome) -> str:
    """The one sentence on stderr of an input that was wrong."""
    assert outcome.code == 2 and outcome.out == ""
    assert outcome.err.startswith("paceline: error: ") and outcome.err.endswith("\n")
    assert outcome.err.count("\n") == 1
    return outcome.err.removeprefix("paceline: error: ").rstrip("\n")


# -- simulate --


def test_json_has_the_promised_fields(paceline: Command) -> None:
    outcome = paceline(
        "simulate", "--policy", "ssp:staleness=1", "--intervals", "1.0,1.9", "--duration", "10", "--json"
    )
    assert outcome.code == 0 and outcome.err == ""
    (run,) = json.loads(outcome.out)
    assert set(run) >= FIELDS
    assert run["policy"] == "ssp:staleness=1" and run["seconds"] == 10
    # Worker 1 pushes at 1.9, 3.8, 5.7, 7.6, 9.5. Worker 0 pushes at 1 and 2, where it leads by 1 and goes on; at 3,
    # 4.8, 6.7 and 8.6 it leads by 2, and waits for worker 1's next push.
    assert [(each["worker"], each["pushes"]) for each in run["workers"]] == [(0, 6), (1, 5)]
    assert all(set(each) >= {"worker", "pushes", "waiting_seconds"} for each in run["workers"])
    assert run["waiting_seconds"] == pytest.approx(0.8 + 0.9 + 0.9 + 0.9)
    assert run["waiting_share"] == pytest.approx(run["waiting_seconds"] / 20)
    assert (run["pushes"], run["updates"], run["discarded"], run["max_lead"]) == (11, 11, 0, 2)


def test_all_policies_run_by_that_word_and_without_a_word(paceline: Command) -> None:
    by_word = paceline("simulate", "--policy", "all", "--workers", "3", "--duration", "9", "--json")
    assert [run["policy"] for run in json.loads(by_word.out)] == list(POLICIES)
    assert paceline("simulate", "--workers", "3", "--duration", "9", "--json") == by_word


def test_policies_are_compared_in_the_order_given(paceline: Command) -> None:
    outcome = paceline("simulate", "-p", "asp", "-p", "bsp", "--intervals", "1,2", "--json")
    assert [run["policy"] for run in json.loads(outcome.out)] == ["asp", "bsp"]


def test_the_table_has_a_row_per_policy(paceline: Command) -> None:
    outcome = paceline("simulate", "--policy", "all", "--intervals", "1.0,1.9")
    assert outcome.code == 0 and outcome.err == ""
    assert ESCAPE not in outcome.out and "█" not in outcome.out
    rows = {line.split()[0]: line.split() for line in outcome.out.splitlines() if line.split()[:1]}
    assert rows["bsp"] == ["bsp", "1.053", "1.00x", "23.7%", "100", "0", "1", "0.00", "0", "100"]
    assert rows["asp"] == ["asp", "1.526", "1.45x", "0.0%", "290", "0", "90", "1.00", "2", "0"]
    assert set(POLICIES) <= set(rows)
    assert "longest wait: 23.4, from 81.1, under dssp: worker 0 waits until it leads" in outcome.out
    assert "dbw: without gradients it goes by pace alone" in outcome.out
    printed = paceline("simulate", "--policy", "dbw:estimator=paper", "--intervals", "1.0,1.9")
    assert "dbw:estimator=paper: without gradients it sees no gain" in printed.out


def test_a_table_of_large_numbers_and_long_names_is_whole(paceline: Command) -> None:
    name = "dssp:lower=2,upper=14,capped=false,wait=next,literal_grant=true"
    outcome = paceline("simulate", "-p", name, "--intervals", "0.001,0.0019", "--pushes", "3000")
    assert name in outcome.out and "…" not in outcome.out


def test_a_run_in_which_nothing_happens(paceline: Command) -> None:
    outcome = paceline("simulate", "-p", "bsp", "--intervals", "5,6", "--duration", "1")
    assert outcome.code == 0
    assert outcome.out.splitlines()[3].split() == ["bsp", "0", "-", "0.0%", "0", "0", "0", "0.00", "0", "0"]


def test_a_simulation_that_switches_marks_it(paceline: Command) -> None:
    group = ("simulate", "-p", "bsp", "--intervals", "1,4", "--switch", "asp@16", "--switch", "bsp@24")
    outcome = paceline(*group, "--gantt")
    heading, marks, strip = outcome.out.splitlines()[2:5]
    assert heading == "bsp  0 to 32, asp from 16, bsp from 24" and marks.count("▼") == 2
    cells = len(strip) - 4
    assert marks.index("▼") == 4 + cells // 2 and "░" not in strip[4 + cells // 2 : 4 + 3 * cells // 4]
    (run,) = json.loads(paceline(*group, "--json").out)
    assert run["changes"] == [{"policy": "asp", "seconds": 16.0}, {"policy": "bsp", "seconds": 24.0}]
    for wrong in ("asp", "@3", "asp@soon"):
        said = refused(paceline("simulate", "--workers", "2", "--switch", wrong))
        assert said == f"--switch {wrong}: must be POLICY@TIME, as in asp@20"


def test_switching_a_run_that_is_none_or_to_no_policy_is_refused(paceline: Command, tmp_path: Path) -> None:
    assert "is this a run directory?" in refused(paceline("switch", str(tmp_path), "asp"))
    configuration = Configuration("bsp", Group(2), 10, 0, "auto", "mine.train")
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(configuration))
    assert refused(paceline("switch", str(tmp_path), "asp")).startswith(f"{tmp_path}: no run is going on there; ")
    assert refused(paceline("switch", str(tmp_path), "asap")).startswith("unknown policy 'asap' (did you mean 'asp'?)")


def test_a_strip_for_each_of_a_few_workers(paceline: Command) -> None:
    outcome = paceline("simulate", "-p", "asp", "--workers", "30", "--join", "1@4", "--fail", "2@4", "--gantt")
    lines = outcome.out.splitlines()
    assert lines[0] == "█ computes  ░ waits" and lines[2] == "asp  0 to 8"
    strips = [line[5:] for line in lines[3:16]]
    assert [line[:4].strip() for line in lines[3:16]] == [*map(str, range(11)), "⋮", "29"]
    assert strips[11] == "18 more" and set(strips[0]) == {"█"}
    half = len(strips[0]) // 2
    assert strips[1].startswith(" " * half) and strips[1].endswith("█" * half)
    assert strips[2].rstrip() == "█" * half
    assert not lines[16]


@pytest.mark.parametrize("policy", ["bsp", "ssp", "dssp", "elastic-bsp", "backup", "buffered"])
def test_the_unit_of_time_does_not_matter(policy: str, paceline: Command) -> None:
    seconds = paceline("simulate", "-p", policy, "--intervals", "1,1.913", "--duration", "1000", "--json")
    millis = paceline("simulate", "-p", policy, "--intervals", "1000,1913", "--duration", "1000000", "--json")
    (one,), (other,) = json.loads(seconds.out), json.loads(millis.out)
    for same in ("updates", "pushes", "discarded", "max_lead", "max_staleness", "mean_staleness", "supersteps"):
        assert one[same] == other[same]
    assert other["waiting_share"] == pytest.approx(one["waiting_share"], rel=1e-9)
    assert other["waiting_seconds"] == pytest.approx(1000 * one["waiting_seconds"], rel=1e-9)


def test_everything_that_can_be_said_about_a_run(paceline: Command, tmp_path: Path) -> None:
    arguments = (
        "simulate -p bsp --workers 4 --speed exponential:a=0.2 --jitter 0.05 --push-delay 0.01 --pull-delay 0.02"
        " --slow 1=3@5..10 --slow 2=1.5 --slow 1=2@20.. --join 3@4.5 --fail 0@30 --seed 9 --updates 40 --json"
    )
    outcome = paceline(*arguments.split(), "--trace-out", str(tmp_path))
    assert outcome.code == 0
    (run,) = json.loads(outcome.out)
    assert run["updates"] == 40 and len(run["workers"]) == 4
    configuration = json.loads((tmp_path / "bsp" / "config.json").read_text())
    assert configuration["policy"] == "bsp"
    assert configuration["simulation"] == {
        "workers": 4,
        "speed": "exponential:a=0.2",
        "jitter": 0.05,
        "push_delay": 0.01,
        "pull_delay": 0.02,
        "slowdowns": [
            {"worker": 1, "factor": 3.0, "begin": 5.0, "end": 10.0},
            {"worker": 2, "factor": 1.5, "begin": 0.0},
            {"worker": 1, "factor": 2.0, "begin": 20.0},
        ],
        "joins": {"3": 4.5},
        "failures": {"0": 30.0},
        "updates": 40,
        "seed": 9,
    }


def test_a_recorded_csv_gives_the_workers(paceline: Command, tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text("worker,iteration,seconds\n0,0,1\n0,1,2\n7,0,1.5\n")
    outcome = paceline("simulate", "-p", "asp", "--trace", str(path), "--duration", "6", "--json")
    (run,) = json.loads(outcome.out)
    assert [(each["worker"], each["pushes"]) for each in run["workers"]] == [(0, 4), (7, 4)]


@pytest.mark.slow  # a process of its own
def test_a_recorded_csv_may_come_from_a_pipe() -> None:
    arguments = ("simulate", "-p", "asp", "-p", "bsp", "--trace", "/dev/stdin", "--duration", "6", "--json")
    process = start(*arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    out, err = process.communicate("worker,iteration,seconds\n0,0,1\n1,0,2\n")
    assert err == "" and [run["pushes"] for run in json.loads(out)] == [9, 6]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("-p bps --workers 2", "unknown policy 'bps' (did you mean 'bsp'?); there are: " + ", ".join(POLICIES)),
        ("-p ssp:stale=3 --workers 2", "policy 'ssp' has no parameter 'stale' (did you mean 'staleness'?); its"),
        ("-p ssp:staleness=x --workers 2", "policy 'ssp': staleness=x is not possible; staleness is int >= 0, default"),
        ("-p asp -p asp --workers 2", "policy 'asp' is given twice"),
        ("-p backup:k=5 --workers 4", "policy 'backup:k=5': k=5 gradients per update need at least 5 workers, and"),
        ("", "give the workers exactly one way: as intervals, as workers with a speed, or as a trace"),
        ("--workers 0", "workers is 0; it must be from 1 to 1,000,000"),
        ("--workers -1", "workers is -1; it must be from 1 to 1,000,000"),
        ("--workers 3 --intervals 1,2", "3 workers were asked for, but 2 are described"),
        ("--speed constant", "a speed needs the number of workers that have it"),
        ("--workers 2 --speed warp", "unknown speed 'warp'; there are: constant, lognormal, exponential"),
        ("--intervals -1,2", "interval of worker 0 is -1; it must be a number above 0"),
        ("--intervals 1,0", "interval of worker 1 is 0; it must be a number above 0"),
        ("--intervals 1,two", "--intervals 1,two: must be numbers with commas between them, as in 1.0,1.9"),
        ("--intervals 1,,2", "--intervals 1,,2: must be numbers with commas between them, as in 1.0,1.9"),
        ("--intervals nan", "interval of worker 0 is nan; it must be a number above 0"),
        ("--intervals=", "there must be at least 1 worker"),
        ("--intervals 1,2 --duration 0", "duration is 0; it must be above 0"),
        ("--intervals 1,2 --duration 5 --pushes 5", "duration and pushes were given; a run has one end"),
        ("--intervals 1,2 --jitter -1", "jitter is -1; it must be from 0 to 3"),
        ("--intervals 1,2 --slow 0", "--slow 0: must be WORKER=FACTOR or WORKER=FACTOR@BEGIN..END, as in 3=4.0 or"),
        ("--intervals 1,2 --slow 0=1.2.3", "--slow 0=1.2.3: '1.2.3' is not a number"),
        ("--intervals 1,2 --slow 5=2", "there is no worker 5; there are 0, 1"),
        ("--intervals 1,2 --fail 1", "--fail 1: must be WORKER@TIME, as in 3@20"),
        ("--intervals 1,2 --fail 1@1 --fail 1@2", "--fail 1@2: worker 1 is given twice"),
        ("--intervals 1,2 --join 1@--", "--join 1@--: '--' is not a number"),
    ],
)
def test_wrong_input_is_answered_with_one_sentence(arguments: str, message: str, paceline: Command) -> None:
    assert refused(paceline("simulate", "--gantt", *arguments.split())).startswith(message)


def test_a_wrong_policy_is_found_before_any_is_run(paceline: Command, tmp_path: Path) -> None:
    arguments = ("-p", "asp", "-p", "backup:k=5", "--workers", "4", "--gantt", "--trace-out", str(tmp_path / "runs"))
    assert "k=5 gradients" in refused(paceline("simulate", *arguments))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, ": cannot be read: No such file or directory"),
        ("", ", line 1: no column worker, iteration, seconds; the first line must name worker, iteration and seconds"),
        ("worker,iteration,seconds\n", ": has no rows; one row per worker and iteration is needed"),
        ("worker,iteration,seconds\n0,0,fast\n", ", line 2: seconds is fast; it must be a number above 0"),
    ],
)
def test_a_broken_csv_is_answered_with_one_sentence(
    text: str | None, message: str, paceline: Command, tmp_path: Path
) -> None:
    path = tmp_path / "times.csv"
    if text is not None:
        path.write_text(text)
    assert refused(paceline("simulate", "--trace", str(path))) == f"{path}{message}"


def test_a_directory_that_cannot_be_written_is_answered_with_one_sentence(paceline: Command, tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.touch()
    arguments = ("simulate", "-p", "asp", "--workers", "2", "--trace-out")
    assert refused(paceline(*arguments, str(occupied))) == f"{occupied}/asp: cannot be written: Not a directory"
    (tmp_path / "asp" / "trace.jsonl").mkdir(parents=True)
    assert refused(paceline(*arguments, str(tmp_path))) == (
        f"{tmp_path}/asp/trace.jsonl: cannot be written: Is a directory"
    )


@pytest.mark.parametrize(
    "arguments", [["simulate", "--seed", "two"], ["simulate", "--pushes", "1.5"], ["simulate", "--colour"], ["sing"]]
)
def test_what_is_no_option_or_no_number_is_wrong_input_too(arguments: list[str], paceline: Command) -> None:
    outcome = paceline(*arguments)
    assert outcome.code == 2 and outcome.out == "" and "Error: " in outcome.err


def test_help_and_version(paceline: Command) -> None:
    assert paceline("--version") == Outcome(0, f"paceline {__version__}\n", "")
    for command in ("policies", "simulate", "replay"):
        outcome = paceline(command, "--help")
        assert outcome.code == 0 and outcome.out.startswith(f"Usage: paceline {command}")
        assert command in paceline("--help").out


# -- policies --


def test_policies_are_listed_with_their_parameters(paceline: Command) -> None:
    outcome = paceline("policies")
    assert outcome.code == 0 and ESCAPE not in outcome.out
    for name, kind in POLICIES.items():
        assert re.search(rf"^ {name} ", outcome.out, re.MULTILINE) and kind.paper in outcome.out
    assert "staleness=3" in outcome.out and "literal_grant=false" in outcome.out


def test_one_policy_is_explained(paceline: Command) -> None:
    outcome = paceline("policies", "ssp")
    assert outcome.code == 0
    assert outcome.out.startswith("SSP, stale synchronous parallel: nobody runs more than a fixed number")
    assert re.search(r"staleness +int >= 0 +3 +largest lead with which a worker goes on", outcome.out)
    assert paceline("policies", "ssp:staleness=5") == outcome


def test_policies_as_json(paceline: Command) -> None:
    listed = json.loads(paceline("policies", "--json").out)
    assert [each["name"] for each in listed] == list(POLICIES)
    (ssp,) = json.loads(paceline("policies", "ssp", "--json").out)
    assert ssp == json.loads(paceline("policies", "ssp:staleness=5", "--json").out)[0] == listed[2]
    meaning = "largest lead with which a worker goes on"
    assert ssp["parameters"] == [{"name": "staleness", "type": "int >= 0", "default": "3", "meaning": meaning}]


def test_a_policy_that_does_not_exist(paceline: Command) -> None:
    assert refused(paceline("policies", "sspp")).startswith("unknown policy 'sspp' (did you mean 'ssp'?); there are: ")


# -- replay --


@pytest.fixture
def run_directory(paceline: Command, tmp_path: Path) -> Path:
    paceline("simulate", "-p", "bsp", "--intervals", "1,2", "--duration", "5", "--trace-out", str(tmp_path))
    return tmp_path / "bsp"


def test_replay_of_a_directory_and_of_a_file(run_directory: Path, paceline: Command) -> None:
    trace = run_directory / "trace.jsonl"
    said = f"{trace}: bsp, 7 events replay to the same commands\n"  # two joins, pushes at 1, 2, 3, 4 and 5
    assert paceline("replay", str(run_directory)) == Outcome(0, said, "")
    assert paceline("replay", str(trace)) == Outcome(0, said, "")


def test_replay_of_a_damaged_file(run_directory: Path, paceline: Command) -> None:
    trace = run_directory / "trace.jsonl"
    whole = trace.read_text()
    trace.write_text(whole[:300])
    outcome = paceline("replay", str(trace))
    assert outcome.code == 2 and outcome.out == ""
    assert outcome.err.startswith(f"paceline: error: {trace}, line 4: not a whole record: ")
    trace.write_text(whole.replace("needs worker 1", "needs worker 7", 1))
    outcome = paceline("replay", str(run_directory))
    assert outcome.code == 1 and outcome.out == ""
    first, recorded, replayed = outcome.err.splitlines()
    assert first == f"paceline: error: {trace}, line 4: the replay departs here"
    assert "needs worker 7" in recorded and "needs worker 1" in replayed


def test_replay_of_what_is_no_trace(paceline: Command, tmp_path: Path) -> None:
    outcome = paceline("replay", str(tmp_path))
    assert (outcome.code, outcome.out) == (2, "")
    said = "cannot be read: No such file or directory; is this a run directory?"
    assert outcome.err == f"paceline: error: {tmp_path}/trace.jsonl: {said}\n"


# -- how it ends, and what it writes to --


@pytest.mark.slow  # a process of its own
def test_ctrl_c_ends_a_run_with_a_whole_trace(tmp_path: Path) -> None:
    pipe = tmp_path / "asp" / "trace.jsonl"
    pipe.parent.mkdir()
    os.mkfifo(pipe)  # so that this test meets the run in the middle, and need not guess when that is
    process = start(
        *("simulate", "-p", "bsp", "-p", "asp", "--intervals", "1,2,3", "--pushes", "20000", "--json"),
        *("--trace-out", str(tmp_path)),
        stdout=subprocess.PIPE,
    )
    with pipe.open("rb") as file:
        written = file.read(100_000)
        process.send_signal(signal.SIGINT)
        written += file.read()
    out, err = process.communicate()
    assert (process.returncode, out) == (130, "")
    assert err == "paceline: interrupted; 1 of 2 policies were finished\n"
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(written)
    assert first_difference(Trace(trace)) is None
    assert len(written) < 1_000_000  # of some four million


@pytest.mark.slow  # a process of its own
@pytest.mark.parametrize(
    "arguments",
    [["policies"], ["policies", "ssp", "--json"], ["simulate", "-p", "asp", "--workers", "2", "--json"]],
    ids=" ".join,
)
def test_a_reader_that_is_gone_gets_no_traceback(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = start(*arguments, stdout=writing)
    os.close(writing)
    assert process.communicate()[1] == ""
    assert process.returncode == 1


@pytest.mark.slow  # a process of its own
def test_a_full_disk_is_one_sentence() -> None:
    with open("/dev/full", "w") as full:
        process = start("policies", "--json", stdout=full)
    assert process.communicate()[1] == "paceline: error: [Errno 28] No space left on device\n"
    assert process.returncode == 1


def through_terminal(columns: int, *arguments: str) -> str:
    """What the command shows on a terminal of this width."""
    terminal, far_end = pty.openpty()
    fcntl.ioctl(far_end, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    process = start(*arguments, stdout=far_end, env={**os.environ, "TERM": "xterm-256color"})
    os.close(far_end)
    shown = b""
    while True:
        try:
            shown += os.read(terminal, 65536)
        except OSError:  # Linux says so when the far end was closed
            break
    os.close(terminal)
    assert process.communicate()[1] == "" and process.returncode == 0
    return shown.decode().replace("\r\n", "\n")


@pytest.mark.slow  # a process of its own
@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_shows_who_computes_and_who_waits(columns: int) -> None:
    arguments = ("simulate", "-p", "bsp", "-p", "elastic-bsp", "--intervals", "1,2,1", "--duration", "30")
    shown = through_terminal(columns, *arguments)
    assert ESCAPE in shown
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert all(len(line) <= columns for line in lines)
    assert lines[0] == "█ computes  ░ waits" and lines[2] == "bsp  0 to 16"
    strips = [line.split() for line in lines[3:6]]
    assert [worker for worker, _ in strips] == ["0", "1", "2"]
    assert strips[0][1] == strips[2][1] and set(strips[1][1]) == {"█"}
    assert abs(strips[0][1].count("█") - strips[0][1].count("░")) <= 8  # it computes 1 of 2 seconds, eight times
    rows = {line.split()[0]: line.split() for line in lines if line.split()[:1]}
    assert len(rows["bsp"]) == len(rows["elastic-bsp"]) == 10
    assert ESCAPE not in through_terminal(columns, *arguments, "--json")

"""However a run is ended from outside, its directory is whole and nothing of it stays behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import training_functions as functions

from paceline.recording.progress_log import read_metrics
from paceline.recording.replay import first_difference
from paceline.recording.trace import Trace
from paceline.training.checkpoint import load_state

pytestmark = pytest.mark.slow

INTERRUPTED = 7  # exit code of the script below

SCRIPT = f"""
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

from paceline import InterruptedRun, launch

HERE = Path(__file__).parent

class Descent(torch.optim.SGD):
    '''An optimizer of the script's own.'''

def evaluate(state):
    return float(state["weight"].sum())

def train(worker):
    net = torch.nn.Linear(3, 1)
    optimizer = worker.optimizer(net, Descent, stale="none", lr=1e-6)
    for number, (x,) in enumerate(worker.batches(TensorDataset(torch.ones(64, 3)), batch_size=4)):
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
        if number == 3:
            (HERE / f"trains-{{worker.index}}").touch()
            if sys.argv[1:] == ["stuck"]:
                time.sleep(3600)

if __name__ == "__main__":
    options = dict(workers=1, speed="constant:seconds=0.3") if sys.argv[1:] else dict(workers=2)
    try:
        launch(train, policy="ssp", epochs=10**6, run_dir=HERE / "run", evaluate=evaluate, tensorboard=False, **options)
    except InterruptedRun as stop:
        print("nothing yet" if stop.result is None else stop.result.samples)
        sys.exit({INTERRUPTED})
"""


def until(happened: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + functions.PATIENCE
    while not happened():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def session_of(process: int) -> int | None:
    """The session that it belongs to; None: it has ended."""
    try:
        state, *numbers = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else int(numbers[2])


def processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def members(session: int) -> list[int]:
    return [each for each in processes() if session_of(each) == session]


def shared_memory(process: int) -> set[int]:
    """The inodes of paceline's memory that this process has mapped or open."""
    found = set()
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/maps").read_text().splitlines():
            if "memfd:paceline" in line:
                found.add(int(line.split()[4]))
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(OSError):
                if "memfd:paceline" in os.readlink(descriptor):
                    found.add(descriptor.stat().st_ino)
    return found


def shared_files() -> set[str]:
    """Those in /dev/shm, but not the object stores of a Ray cluster, which may come and go beside this."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("plasma")}


class Session:
    """The script in a session of its own, as in a terminal of its own."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        self.expected = 1 if arguments else 2  # workers
        self.files = shared_files()
        script = directory / "script.py"
        script.write_text(SCRIPT)
        self.launcher = subprocess.Popen(
            [sys.executable, str(script), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.memory: set[int] = set()

    @property
    def workers(self) -> list[int]:
        found = []
        for each in members(self.launcher.pid):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{each}/cmdline").read_bytes().startswith(b"paceline worker"):
                    found.append(each)
        return found

    def trains(self) -> bool:
        assert self.launcher.poll() is None, self.launcher.communicate()[1]
        return all((self.directory / f"trains-{index}").exists() for index in range(self.expected))

    def look_at_memory(self) -> None:
        self.memory = set().union(*map(shared_memory, members(self.launcher.pid)))
        # A segment and the last words of each worker and of the evaluation, and the parcel.
        assert len(self.memory) == 2 * (self.expected + 1) + 1

    def ends(self) -> tuple[str, str]:
        """What it said, once it has ended and nothing of it is left; but not that a busy machine starts slowly."""
        output, errors = self.launcher.communicate(timeout=functions.PATIENCE)
        until(lambda: not members(self.launcher.pid), "processes are left")
        assert not self.memory & set().union(*map(shared_memory, processes()))
        until(lambda: shared_files() <= self.files, "files are left in /dev/shm")
        lines = errors.splitlines(keepends=True)
        return output, "".join(line for line in lines if not line.startswith("paceline: starting "))


@pytest.fixture
def session(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Session]:
    opened = Session(tmp_path, *getattr(request, "param", ()))
    yield opened
    for each in members(opened.launcher.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    opened.launcher.communicate()


def ctrl_c(session: Session) -> None:
    os.killpg(session.launcher.pid, signal.SIGINT)


def ctrl_c_in_many_ways(session: Session) -> None:
    """The terminal sends it to the group, and so does a wrapper. Signals that come while one is still to be heard are
    one, so these are many."""
    for _ in range(200):
        ctrl_c(session)


def polite_kill(session: Session) -> None:
    os.kill(session.launcher.pid, signal.SIGTERM)


def polite_kill_of_all(session: Session) -> None:
    """As a batch system does it; a server that sleeps then hears first that its last worker died."""
    os.killpg(session.launcher.pid, signal.SIGTERM)


@pytest.mark.parametrize(
    ("session", "send"),
    [((), ctrl_c), ((), ctrl_c_in_many_ways), ((), polite_kill), (("sleepy",), polite_kill_of_all)],
    indirect=["session"],
)
def test_a_run_that_is_asked_to_end_writes_everything_and_leaves_nothing(
    send: Callable[[Session], None], session: Session
) -> None:
    until(session.trains, "training did not begin")
    session.look_at_memory()
    send(session)
    output, errors = session.ends()
    assert (session.launcher.returncode, errors) == (INTERRUPTED, "")
    run = session.directory / "run"
    assert {each.name for each in run.iterdir()} == {
        *("checkpoints", "config.json", "metrics.jsonl", "report.html", "summary.json", "trace.jsonl")
    }
    trace = Trace(run / "trace.jsonl")
    assert first_difference(trace) is None
    assert trace.records is not None and trace.records > 3
    assert read_metrics(run / "metrics.jsonl")[-1].samples <= int(output)
    torch.nn.Linear(3, 1).load_state_dict(load_state(run / "checkpoints" / "model.safetensors"))


def test_ctrl_c_before_the_workers_have_begun_leaves_nothing_and_no_worker_complains(session: Session) -> None:
    until(lambda: bool(session.workers), "no worker was started")
    ctrl_c(session)
    output, errors = session.ends()
    assert (session.launcher.returncode, output, errors) == (INTERRUPTED, "nothing yet\n", "")
    trace = Trace(session.directory / "run" / "trace.jsonl")
    assert list(trace) == [] and trace.records == 0
    assert not (session.directory / "run" / "control").exists()


def test_nothing_outlives_a_launcher_that_is_killed_on_the_spot(session: Session) -> None:
    until(session.trains, "training did not begin")
    session.look_at_memory()
    os.kill(session.launcher.pid, signal.SIGKILL)
    _, errors = session.ends()
    assert "Traceback" not in errors
    assert read_metrics(session.directory / "run" / "metrics.jsonl")


@pytest.mark.parametrize("session", [("stuck",)], indirect=True)
def test_a_second_ctrl_c_ends_a_run_at_once_whose_worker_hears_nothing(session: Session) -> None:
    until(session.trains, "training did not begin")
    session.look_at_memory()
    for _ in range(2):
        ctrl_c(session)
        time.sleep(1.0)  # two signals at the same instant are one; if they were, the outcome is still the same
    session.ends()
    assert session.launcher.returncode != 0

"""How a run starts and ends: processes forked from one that has imported torch, wherever the functions come from."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import sysconfig
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import training_functions as functions
from rich.console import Console
from test_local_signals import members, until
from torch import nn

from paceline.core.errors import ConfigurationError, PacelineError
from paceline.experiment.training import launch
from paceline.report import notebook
from paceline.report.live import OnlyTheStart, view_of
from paceline.runtimes.local import room, surroundings
from paceline.runtimes.local.forking import zygote
from paceline.runtimes.local.room import available_memory, refuse_if_too_many
from paceline.runtimes.serving.memory import pack, pickled, unpack
from paceline.runtimes.serving.starting import PATIENCE, Announcer, Stage, in_words
from paceline.training.worker import Worker

# -- what is said while processes start --


def test_a_slow_start_is_told_in_words() -> None:
    ready, running, importing, queued, waiting = Stage
    assert in_words([waiting] * 4, "train.py") == "starting 4 workers: all wait until torch is imported"
    assert in_words([importing], "train.py") == "starting 1 worker: it imports train.py"
    assert in_words([importing, ready, importing, ready], "train.py") == (
        "starting 4 workers: 2 are ready, 2 import train.py"
    )
    assert in_words([running, queued, ready], "") == (
        "starting 3 workers: 1 is ready, 1 runs `train` up to worker.optimizer(...), 1 is still to be started"
    )
    assert in_words([importing], "").endswith("it imports what `train` needs")
    assert in_words([queued, queued, ready], "", "no room").endswith("1 is ready, 2 are still to be started (no room)")
    assert "no room" not in in_words([importing, ready], "", "no room")


def test_a_slow_start_is_told_after_a_while_and_again_when_something_changed() -> None:
    announcer = Announcer()
    assert announcer.news(PATIENCE - 0.1, "one") == ""
    assert announcer.news(PATIENCE, "one") == "one"
    assert announcer.news(PATIENCE + 0.1, "two") == ""
    assert announcer.news(5 * PATIENCE, "one") == ""
    assert announcer.news(5 * PATIENCE, "two") == "two"


def test_every_view_tells_of_a_slow_start(capsys: pytest.CaptureFixture[str]) -> None:
    line = "starting 4 workers: 2 are ready, 2 import train.py"
    OnlyTheStart().starting(line)
    assert capsys.readouterr().err == f"paceline: {line}\n"
    for terminal in (False, True):
        console = Console(file=io.StringIO(), width=100, force_terminal=terminal)
        with view_of("bsp", console) as view:
            view.starting(line)
        assert line in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_notebook_shows_a_page_and_text() -> None:
    forms = notebook.forms_of("a < b")
    assert forms["text/plain"] == "a < b\n" and "a &lt; b" in forms["text/html"]


# -- room --


def test_more_workers_than_the_memory_holds_are_refused_with_the_reason() -> None:
    refuse_if_too_many(64, None)
    refuse_if_too_many(64, room.FIRST + 64 * room.EACH)
    message = r"^64 workers need at least 1.9 GB of memory without any model, and 0.8 GB are free: .* 20 at most$"
    with pytest.raises(ConfigurationError, match=message):
        refuse_if_too_many(64, room.FIRST + 20 * room.EACH + 5)
    with pytest.raises(ConfigurationError, match="room for 0 at most"):
        refuse_if_too_many(1, -1)


def test_the_container_may_have_less_memory_than_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, limit, used = (tmp_path / name for name in ("meminfo", "max", "current"))
    for name, path in (("MEMORY", machine), ("LIMIT", limit), ("USED", used)):
        monkeypatch.setattr(room, name, path)
    assert available_memory() is None
    machine.write_text("MemTotal: 90 kB\nMemAvailable:   50 kB\n")
    limit.write_text("max\n")
    used.write_text("10000\n")
    assert available_memory() == 50 << 10
    limit.write_text("30000\n")
    assert available_memory() == 20000


# -- what travels, and how --


def carried(content: Any, *, imports_main: bool = True) -> Any:
    descriptor = pack(content, imports_main=imports_main)
    try:
        return unpack(descriptor)
    finally:
        os.close(descriptor)


def test_lambdas_closures_and_classes_of_a_function_are_carried_with_what_they_refer_to() -> None:
    table = torch.arange(1000.0)

    class Shifted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + table

    def closure(model: nn.Module) -> torch.Tensor:
        found: torch.Tensor = model(table)
        return found

    call, made, seven = carried((closure, Shifted(), lambda: 7))
    assert torch.equal(call(made), 2 * table) and seven() == 7


def main_module(monkeypatch: pytest.MonkeyPatch, **content: Any) -> types.ModuleType:
    module = types.ModuleType("__main__")
    vars(module).update(content)
    monkeypatch.setitem(sys.modules, "__main__", module)
    return module


def test_what_stands_in_a_main_module_goes_by_name_if_that_is_imported_and_by_value_if_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = main_module(monkeypatch)
    exec("class Net:\n    width = 5\ndef train():\n    return Net.width", vars(module))
    by_name, by_value = (pickled(module.train, imports_main=imports) for imports in (True, False))
    assert b"width" not in by_name and b"width" in by_value
    assert carried(module.train) is module.train
    del module.Net
    assert carried(module.train, imports_main=True) is module.train
    vars(module)["Net"] = types.SimpleNamespace(width=6)
    assert carried((lambda: module.train(),), imports_main=False)[0]() == 6


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({}, {}),
        ({"__file__": "<stdin>"}, {}),
        ({"__file__": __file__}, {"init_main_from_path": __file__}),
        ({"__spec__": types.SimpleNamespace(name="pkg.train")}, {"init_main_from_name": "pkg.train"}),
    ],
    ids=["a notebook", "standard input", "a script", "python -m"],
)
def test_the_main_module_is_imported_where_there_is_one(
    content: dict[str, Any], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main_module(monkeypatch, **content)
    assert surroundings.how_to_import_main() == expected
    assert surroundings.name_of_main() == next(iter(expected.values()), "").rpartition("/")[2]
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert surroundings.how_to_import_main() == {}


def test_a_command_of_paceline_is_not_imported_by_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.cli import main

    main_module(monkeypatch, __file__=__file__, main=main)
    assert surroundings.how_to_import_main() == {}


def test_packages_that_the_users_modules_have_are_imported_once_but_not_where_there_are_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main_module(monkeypatch, msgspec=msgspec, Console=Console, launch=launch, Path=Path, own=functions, text="x")
    found = surroundings.imported_packages()
    assert {"msgspec", "rich.console", "paceline.experiment.training"} <= set(found)
    assert "pathlib" not in found and "training_functions" not in found and "pytest" not in found
    assert Path(msgspec.__file__).is_relative_to(sysconfig.get_path("platlib"))
    monkeypatch.setattr(surroundings, "GPU", str(tmp_path))
    assert surroundings.imported_packages() == []


# -- real processes --


def run_python(*arguments: str, given: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        input=given,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=functions.PATIENCE,
        check=False,
    )


LOOP = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from paceline import launch
data = TensorDataset(torch.ones(64, 3))
class Descent(torch.optim.SGD): pass
def train(worker):
    net = nn.Linear(3, 1)
    decay = lambda epoch: 0.9 ** epoch
    optimizer = worker.optimizer(
        net, Descent, lr=0.1, stale="none", scheduler=lambda it: torch.optim.lr_scheduler.LambdaLR(it, decay)
    )
    for x, in worker.batches(data, batch_size=8):
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
"""
LAUNCH = 'print(launch(train, workers=2, evaluate=lambda state: float(state["bias"])).samples)\n'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        (["-c", LOOP + LAUNCH], ""),
        (["-"], LOOP + LAUNCH),
        (["-i", "-c", "pass"], f"exec({LOOP!r})\n{LAUNCH}"),
    ],
    ids=["python -c", "python -", "python -i"],
)
def test_functions_that_stand_in_no_file_are_trained(arguments: list[str], given: str) -> None:
    ended = run_python(*arguments, given=given)
    assert ended.returncode == 0, ended.stderr
    assert "64" in ended.stdout and "Traceback" not in ended.stderr, ended.stderr


@pytest.mark.slow
def test_paceline_is_a_module_that_can_be_run(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(LOOP)
    ended = run_python("-m", "paceline", "run", "script.py", "--workers", "2", "--json", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert msgspec.json.decode(ended.stdout)[0]["samples"] == 64


def title_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode()


def looks_around(worker: Worker, directory: Path, variable: str) -> None:
    """Writes down what its process sees, and computes with two threads: a pool that was forked would hang."""
    torch.set_num_threads(2)
    large = torch.ones(400, 400)
    facts = {
        "title": title_of(os.getpid()),
        "short": Path("/proc/self/comm").read_text().strip(),
        "parent": title_of(os.getppid()),
        "zygote": os.getppid(),
        "sum": float((large @ large).tanh().sum()),
        "variable": os.environ.get(variable),
        "directory": os.getcwd(),
        "descriptors": sorted(os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.exists()),
    }
    print(f"this is {worker.index}", flush=True)
    functions.write(directory / f"facts-{worker.index}", facts)
    functions.train_sgd(worker)


@pytest.mark.slow
def test_workers_are_children_of_one_process_and_look_like_their_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """And so do those of a second run, which the same process forks."""
    variable = "PACELINE_TEST_OF_SURROUNDINGS"
    seen = []
    for number in (1, 2):
        directory = tmp_path / str(number)
        directory.mkdir()
        monkeypatch.chdir(directory)
        monkeypatch.setenv(variable, str(number))
        launch(partial(looks_around, directory=directory, variable=variable), workers=2)
        assert sorted(capfd.readouterr().out.splitlines()) == ["this is 0", "this is 1"]
        facts = [msgspec.json.decode((directory / f"facts-{index}").read_bytes()) for index in (0, 1)]
        assert [fact["title"] for fact in facts] == ["paceline worker 0", "paceline worker 1"]
        assert [fact["short"] for fact in facts] == ["paceline w0", "paceline w1"]
        assert {fact["parent"] for fact in facts} == {"paceline zygote"}
        assert {(fact["variable"], fact["directory"]) for fact in facts} == {(str(number), str(directory))}
        for fact in facts:  # its own pipes and memory, and nothing of the others or of the zygote
            kinds = [entry.partition(":")[0] for entry in fact["descriptors"]]
            assert kinds.count("pipe") == 2 and "socket" not in kinds and "anon_inode" not in kinds
        seen += [fact["zygote"] for fact in facts]
    assert len(set(seen)) == 1


def kills_the_zygote(worker: Worker) -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()


@pytest.mark.slow
def test_where_the_process_that_workers_are_forked_from_dies_the_run_ends_and_the_next_has_another() -> None:
    with pytest.raises(PacelineError, match=r"killed by SIGKILL \(out of memory\?\)"):
        launch(kills_the_zygote, workers=2)
    before = zygote().fileno()
    assert launch(functions.train_sgd, workers=1).samples == functions.SAMPLES
    assert zygote().fileno() == before


STARTS = """
import os, sys, time
from pathlib import Path
from paceline import launch
HERE = Path(__file__).parent
(HERE / f"imports-{os.getpid()}").touch()
if __name__ == "__main__":
    try:
        launch(print, workers=int(sys.argv[1]))
    except KeyboardInterrupt:  # InterruptedRun, once the server listens
        sys.exit(7)
else:
    time.sleep(3600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize(("workers", "when"), [(2, "while torch is imported"), (64, "while the script is imported")])
def test_a_start_can_be_ended_at_any_time_and_leaves_nothing(
    workers: int, when: str, number: int, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(STARTS)
    launcher = subprocess.Popen(
        [sys.executable, str(script), str(workers)], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        wanted: Callable[[], bool]
        if when == "while torch is imported":
            wanted = lambda: len(members(launcher.pid)) > 1  # noqa: E731
        else:
            wanted = lambda: len(list(tmp_path.glob("imports-*"))) == 1 + workers  # noqa: E731
        until(wanted, "nothing was started")
        os.killpg(launcher.pid, number) if number == signal.SIGINT else os.kill(launcher.pid, number)
        said = launcher.communicate(timeout=functions.PATIENCE)[1]
        until(lambda: not members(launcher.pid), "processes are left")
    finally:
        for each in members(launcher.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
    said = "".join(line for line in said.splitlines(keepends=True) if not line.startswith("paceline: starting"))
    assert (launcher.returncode, said) == (7 if number == signal.SIGINT else -number, "")

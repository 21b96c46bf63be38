"""The commands that train for real, as their user meets them."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.cli import main
from paceline.recording.replay import first_difference
from paceline.recording.trace import Trace

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-c", "from paceline.cli import main; main()"]
SCRIPT = ROOT / "examples" / "train_locally.py"


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], cwd=cwd, capture_output=True, text=True, check=False, timeout=120)


def refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    monkeypatch.setattr(sys, "argv", ["paceline", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert ended.value.code == 2 and out == ""
    return err


@pytest.mark.slow
def test_train_compares_policies_and_leaves_a_run_directory_for_each(tmp_path: Path) -> None:
    wanted = ("--policy", "bsp", "--policy", "asp", "--slow", "1=3", "--speed", "constant:seconds=0.002")
    done = run("train", "digits", *wanted, "--epochs", "4", "--target-accuracy", "0.5", "--gantt", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^bsp +\d+\.\d s +1\.00x", done.stdout, flags=re.MULTILINE)
    assert re.search(r"^asp +\d+\.\d s +\d\.\d\dx", done.stdout, flags=re.MULTILINE)
    assert "was the first at 50%" in done.stdout and "░" in done.stdout
    directories = sorted((tmp_path / "runs").iterdir())
    assert [re.sub(r"^\d+-\d+-", "", each.name) for each in directories] == ["digits-bsp", "digits-asp"]
    for each in directories:
        found = {path.name for path in each.iterdir()}
        boards = {name for name in found if name.startswith("events.out.tfevents.")}
        assert len(boards) == 1  # because TensorBoard is installed here
        assert found - boards == {
            "config.json",
            "trace.jsonl",
            "metrics.jsonl",
            "summary.json",
            "checkpoints",
            "report.html",
        }
        assert first_difference(Trace(each / "trace.jsonl")) is None
        assert str(each.relative_to(tmp_path)) in done.stderr


@pytest.mark.slow
def test_run_takes_a_script_with_its_arguments_and_its_evaluation(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    lines = ["import sys", f"sys.path.insert(0, {str(SCRIPT.parent)!r})", "from train_locally import evaluate, train"]
    script.write_text("\n".join([*lines, "assert sys.argv[1:] == ['--x', '3']", ""]))
    options = ("--workers", "2", "--policy", "dssp", "--epochs", "2", "--json")
    done = run("run", str(script), *options, "--", "--x", "3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    (row,) = json.loads(done.stdout)
    assert row["policy"] == "dssp" and row["samples"] == 2048 and 0.5 < row["final"]["accuracy"] <= 1


@pytest.mark.slow
def test_a_train_that_raises_shows_its_traceback_once_and_the_command_fails(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("def train(worker):\n    raise RuntimeError('a bug of mine')\n")
    done = run("run", str(script), cwd=tmp_path)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("RuntimeError: a bug of mine") == 1 and "broken.py" in done.stderr
    (directory,) = (tmp_path / "runs").iterdir()
    assert json.loads((directory / "config.json").read_text())["train"] == str(script)


@pytest.mark.slow
def test_a_terminal_sees_a_live_table(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    arguments = ["train", "digits", "--speed", "constant:seconds=0.02", "--epochs", "3", "--policy", "ssp"]
    process = subprocess.Popen(
        [*COMMAND, *arguments], cwd=tmp_path, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"}
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    os.close(ours)
    assert process.wait(60) == 0
    text = seen.decode()
    assert "starting the workers" in text and "computes" in text and "samples/s" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "poetry"], "unknown task 'poetry'; there are: digits, fashion-mnist, cifar10"),
        (["train", "digits", "--policy", "bps"], "unknown policy 'bps' (did you mean 'bsp'?)"),
        (["train", "digits", "--workers", "0"], "workers is 0; it must be at least 1"),
        (["train", "digits", "--workers", "4..2"], "workers '4..2': a range begins with at least 1"),
        (["train", "digits", "--workers", "many"], "workers 'many': must be a number or a range, as in 4 or 2..4"),
        (["train", "digits", "--epochs", "0"], "epochs is 0; it must be at least 1"),
        (["train", "digits", "--slow", "3=4"], "slowdown of worker 3: workers are 0 to 1"),
        (["train", "digits", "--slow", "much"], "--slow much: must be WORKER=FACTOR"),
        (["train", "digits", "--lr", "-1"], "the learning rate is -1; it must be above 0"),
        (
            ["train", "digits", "--model", "gpt"],
            "unknown model 'gpt'; there are: mlp, cnn, lenet, alexnet, resnet20, resnet110",
        ),
        (["train", "digits", "--optimizer", "lbfgs"], "unknown optimizer 'lbfgs'"),
        (["train", "digits", "--optimizer", "adam", "--momentum", "0.5"], "momentum is for sgd, not for adam"),
        (["train", "digits", "--stale", "often"], "unknown stale 'often'; there are: auto, correct, none"),
        (["train", "digits", "--weight-decay", "-1"], "weight_decay is -1; it must be at least 0"),
        (["train", "digits", "--nesterov", "--momentum", "0"], "nesterov needs a momentum above 0"),
        (["train", "digits", "--lr-scaling", "cubic"], "unknown lr_scaling 'cubic'; there are: auto, linear"),
        (["train", "digits", "--not-finite", "cry"], "unknown not_finite 'cry'; there are: stop, skip"),
        (["train", "digits", "--device", "abacus"], "unknown device 'abacus'"),
        (
            ["train", "digits", "--target-accuracy", "95"],
            "--target-accuracy 95: must be above 0 and at most 1",
        ),
        (["train", "digits", "--policy", "backup:k=3"], "k=3 gradients per update need at least 3 workers"),
        (["train", "digits", "--intervals", "1,2,3"], "intervals must be 2 numbers above 0, one per worker"),
        (["train", "digits", "--intervals", "1,2", "--speed", "constant"], "give emulated speeds at most one way"),
        (["train", "digits", "--sharding", "sideways"], "unknown sharding 'sideways'; there are: dynamic, static"),
        (["train", "digits", "--out", "/dev/null"], "--out /dev/null: is not a directory"),
        (["run", "nowhere.py"], "nowhere.py: there is no such script"),
        (["run", str(ROOT / "tests" / "group.py")], "group.py: has no function train(worker)"),
        (["scale", "nowhere", "4"], "nowhere/config.json: cannot be read: No such file or directory"),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    said = refused(capsys, monkeypatch, *arguments)
    assert message in said and said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []

"""What users get wrong is said once, in words that name the place, and nothing is left behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import training_functions as functions

from paceline.core.errors import ConfigurationError, PacelineError
from paceline.experiment.training import launch
from paceline.recording.replay import first_difference
from paceline.recording.trace import Trace
from paceline.training.worker import Worker

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (functions.raises, r"^worker 1 raised:\nTraceback(.|\n)*RuntimeError: a bug in the user's loop\n$"),
        (functions.exits, r"^worker 1 raised:\nTraceback(.|\n)*SystemExit: enough of this\n$"),
        (functions.not_finite, r"^worker 1: the gradient of '2.bias' is not finite"),
        (functions.forgets_backward, r"^worker \d: no parameter has a gradient; call backward"),
        (
            functions.another_model,
            r"^the model of worker 1 differs from that of worker 0: it has no parameter '0.weight'$",
        ),
        (
            functions.killed_before_the_beginning,
            r"^worker 1: its process was killed by SIGKILL \(out of memory\?\) before the group began",
        ),
        (functions.no_optimizer, r"`train` must call worker.optimizer\(model, ...\)"),
        (functions.steps_after_the_end, r"^worker \d \(finishing\): pushed a gradient after its work was done"),
    ],
)
def test_what_goes_wrong_is_said_once_and_nothing_is_left(
    train: Callable[[Worker], None], message: str, tmp_path: Path
) -> None:
    open_before, before = len(os.listdir("/proc/self/fd")), set(multiprocessing.active_children())
    with pytest.raises(PacelineError, match=message) as caught:
        launch(train, workers=2, run_dir=tmp_path / "run")
    assert str(caught.value).count("Traceback") <= 1
    assert set(multiprocessing.active_children()) <= before
    del caught  # it holds the server's frames, and with them the memory of its workers
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= open_before + 1  # multiprocessing's own, with its first process
    assert first_difference(Trace(tmp_path / "run" / "trace.jsonl")) is None
    assert (tmp_path / "run" / "config.json").exists()


def test_nobody_waits_for_a_worker_that_ended_without_a_model(tmp_path: Path) -> None:
    """The run fails at once, and does not wait for ever."""
    script = tmp_path / "script.py"
    script.write_text(
        "from functools import partial\n"
        "import training_functions\n"
        "from paceline import launch\n"
        "if __name__ == '__main__':\n"
        f"    launch(partial(training_functions.no_optimizer_in_one, directory={str(tmp_path)!r}), workers=2)\n"
    )
    ended = run_script(script)
    assert ended.returncode == 1
    assert "worker 1 finished without a model: `train` must call worker.optimizer" in ended.stderr


def run_script(script: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=functions.PATIENCE,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
        },
    )


def test_a_script_without_the_guard_is_told_about_it_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "from torch.utils.data import TensorDataset\n"
        "from paceline import fit\n"
        "data = TensorDataset(torch.ones(8, 3), torch.ones(8, 1))\n"
        "fit(torch.nn.Linear(3, 1), torch.nn.functional.mse_loss, data, data, workers=2)\n"
    )
    ended = run_script(script)
    assert ended.returncode == 1
    assert ended.stderr.count("Traceback") == 1
    assert "put the call of launch or fit under `if __name__ == '__main__':`" in ended.stderr.splitlines()[-1]


def test_gradients_that_are_not_finite_can_be_skipped_and_are_counted() -> None:
    result = launch(functions.not_finite_once, workers=2, epochs=2, not_finite="skip")
    counted = result.model_state["samples"].round()
    dropped = 2 * functions.SAMPLES - int(counted.sum())
    assert counted[5] == 0
    assert (result.samples, result.dropped) == (int(counted.sum()), dropped)
    assert dropped == 2 * functions.BATCH
    assert counted.max() == 2


def test_a_function_that_cannot_be_sent_is_refused_before_anything_starts_and_the_culprit_named() -> None:
    lock = threading.Lock()
    message = r"cannot pickle '_thread.lock' object \(it is 'lock', to which 'train' refers\); make it inside"

    def train(worker: Worker) -> None:
        lock.acquire()

    with pytest.raises(ConfigurationError, match=message):
        launch(train, workers=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 0}, "workers is 0; it must be at least 1"),
        ({"epochs": 0}, "epochs is 0; it must be at least 1"),
        ({"slowdown": {5: 2.0}}, "workers are 0 to 1"),
        ({"policy": "backup:k=3"}, "k=3 gradients per update need at least 3 workers"),
        ({"workers": "4..2"}, "does not end below that"),
        ({"not_finite": "pray"}, "unknown not_finite 'pray'; there are: stop, skip"),
    ],
)
def test_impossible_arguments_are_refused_before_anything_starts(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        launch(functions.train_sgd, **{"workers": 2, **arguments})  # type: ignore[arg-type]

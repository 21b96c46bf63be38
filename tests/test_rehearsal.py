"""A run of a user's own loop, trained again in one process: to the bit, with dropout, BatchNorm and a DataLoader."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from paceline.core.errors import ConfigurationError
from paceline.core.messages import Record, Unit
from paceline.experiment.configuration import Origin
from paceline.experiment.script import forget_script, script_functions
from paceline.experiment.training import InterruptedRun, launch
from paceline.experiment.verification import train_again
from paceline.recording.observer import Observer
from paceline.training.rehearsed_loop import BEGIN, PUSH, SKIP, DepartedError, RehearsedLoop
from paceline.training.worker import Worker

SCRIPT = """
import os, signal, sys
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

NOISE = torch.randn(4)  # a process draws this after it was seeded

def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(240, 8, generator=generator)
    return TensorDataset(x, (x.sum(1) > 0).long())

class Noisy(Dataset):
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        x, y = self.data[index]
        return x + 0.1 * torch.randn(8), y

def train(worker):
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2))
    optimizer = worker.optimizer(model, torch.optim.AdamW, lr=1e-2)
    if "own" in sys.argv:
        batches = worker.batches(DataLoader(data(), batch_size=8, shuffle=True), sharding="own")
    elif "loaders" in sys.argv:
        batches = worker.batches(DataLoader(Noisy(data()), batch_size=8, shuffle=True, num_workers=1))
    else:
        batches = worker.batches(data(), batch_size=8)
    for number, (x, y) in enumerate(batches):
        if os.environ.get("KILLED") == str(worker.index) and number == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x + NOISE.mean()), y) * (1 + 0.01 * worker.workers)
        if os.environ.get("CHANGED") and number == 5:
            loss = 2 * loss
        loss.backward()
        optimizer.step(loss)
"""


def units(number: int, size: int = 8) -> deque[Unit]:
    return deque(Unit(0, begin, begin + size) for begin in range(0, number * size, size))


def loop_of(train: Callable[[Worker], None], given: int = 10) -> RehearsedLoop:
    return RehearsedLoop(0, train, units(given), seed=0, epochs=1, not_finite="skip")


def steps(worker: Worker) -> None:
    net = nn.Linear(4, 1)
    optimizer = worker.optimizer(net, torch.optim.SGD, lr=0.1)
    for number, (x,) in enumerate(worker.batches(torch.utils.data.TensorDataset(torch.randn(80, 4)), batch_size=8)):
        optimizer.zero_grad()
        loss = (net(x) * torch.rand(1)).sum() * (float("nan") if number == 1 else 1.0)
        loss.backward()
        optimizer.step(loss)


def test_a_loop_goes_as_far_as_it_is_told_with_random_numbers_of_its_own() -> None:
    alone, beside = loop_of(steps), loop_of(steps)
    alone.run_to(BEGIN)
    alone.run_to(PUSH)
    assert alone.segment is not None
    first = alone.segment.gradient.clone()
    beside.run_to(BEGIN)
    torch.manual_seed(99)  # somebody else draws in between
    alone.run_to(SKIP)
    beside.run_to(PUSH)
    assert beside.segment is not None and torch.equal(beside.segment.gradient, first)
    assert beside.pushed == (8, 1)
    for loop in (alone, beside):
        loop.stop()
        loop.stop()


def test_a_loop_that_does_something_else_is_named() -> None:
    loop = loop_of(steps, given=1)
    loop.run_to(BEGIN)
    with pytest.raises(DepartedError, match="process 0 pushed, and should have skipped a batch"):
        loop.run_to(SKIP)
    with pytest.raises(DepartedError, match="process 0 came to its end, and should have pushed"):
        loop.run_to(PUSH)

    def raises(worker: Worker) -> None:
        raise ValueError("no file")

    with pytest.raises(DepartedError, match=r"process 0 raised ValueError\('no file'\), and should have began"):
        loop_of(raises).run_to(BEGIN)


class InterruptAt(Observer):
    """Ctrl-C after so many records."""

    def __init__(self, records: int) -> None:
        self._left = records

    def observe(self, record: Record) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("asp", ("own",)),
        ("bsp", ("own",)),
        ("backup:late=interrupt", ()),
        ("bsp", ("loaders",)),
        ("backup:late=interrupt", ("loaders",)),
    ],
)
def test_a_run_with_a_death_and_a_resumption_is_trained_again_to_the_bit(
    text: str, arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "own.py"
    path.write_text(SCRIPT)
    train, _ = script_functions(path, arguments)
    origin = Origin("own", script=str(path), arguments=arguments)
    run_dir = tmp_path / "run"

    def run(**options: object) -> None:
        launch(
            train, workers=3, policy=text, epochs=4, speed="lognormal:seconds=0.01", origin=origin,
            run_dir=run_dir, checkpoint_every="30 updates", **options,
        )  # type: ignore[arg-type] # fmt: skip

    with monkeypatch.context() as killing:
        killing.setenv("KILLED", "1")
        with pytest.raises(InterruptedRun):
            run(observers=[InterruptAt(60)])
    run(resume=run_dir)
    verdict = train_again(run_dir)
    assert verdict.differs_at is None and verdict.alike_until == verdict.updates > 30
    monkeypatch.setenv("CHANGED", "yes")
    assert train_again(run_dir).differs_at is not None


@pytest.mark.slow
def test_a_run_that_was_begun_by_a_program_is_trained_again_with_its_function(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(SCRIPT)
    train, _ = script_functions(path, ())
    launch(train, workers=1, run_dir=tmp_path / "run")
    with pytest.raises(ConfigurationError, match="was begun by a program: give its function"):
        train_again(tmp_path / "run")

    def loaded_anew(worker: Worker) -> None:
        forget_script()
        train(worker)

    verdict = train_again(tmp_path / "run", loaded_anew)
    assert verdict.differs_at is None and verdict.agreed == (30,)

"""Training in real processes over shared memory: the weights are right, and every sample counts once per epoch."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import training_functions as functions
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from paceline.core.errors import PacelineError
from paceline.core.messages import ApplyUpdate, WorkerLeft
from paceline.experiment.training import RunResult, launch
from paceline.recording.replay import first_difference
from paceline.recording.trace import Trace
from paceline.training.data import order_of
from paceline.training.worker import Worker

pytestmark = pytest.mark.slow

EPOCHS = 2

ALONE = ("bsp", "elastic-bsp", "dbw", "buffered:size=1")  # tests/test_conformance.py has all of them, in virtual time


def one_process(
    net: nn.Module, dataset: TensorDataset, batch: int, kind: type[torch.optim.Optimizer], **arguments: float
) -> dict[str, Tensor]:
    """The same training without any of this."""
    optimizer = kind(net.parameters(), **arguments)
    for epoch in range(EPOCHS):
        for indices in order_of(len(dataset), 0, epoch).split(batch):
            x, y = (tensor[indices] for tensor in dataset.tensors)
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
    return net.state_dict()


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert list(found) == list(expected)
    for key, each in expected.items():
        torch.testing.assert_close(found[key], each)


@pytest.mark.parametrize(
    ("train", "optimizer", "batches"),
    [
        (functions.train_adam, "adam", (8, 8)),
        (functions.train_unequal, "sgd", functions.UNEQUAL),
    ],
)
def test_bsp_gives_the_weights_of_one_process_with_the_batches_concatenated(
    train: Callable[[Worker], None], optimizer: str, batches: tuple[int, ...]
) -> None:
    before = multiprocessing.active_children()  # of other tests, which multiprocessing may not have seen end
    result = launch(train, workers=len(batches), policy="bsp", epochs=EPOCHS)
    kind, arguments = functions.OPTIMIZERS[optimizer]
    same(result.model_state, one_process(functions.model(), functions.data(), sum(batches), kind, **arguments))
    assert result.summary.max_staleness == 0
    assert set(multiprocessing.active_children()) <= set(before)


def test_bsp_with_momentum_gives_the_weights_of_one_process_and_of_data_parallel_pytorch(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ranks = [
        context.Process(target=functions.data_parallel, args=(rank, 2, EPOCHS, str(tmp_path)), daemon=True)
        for rank in range(2)
    ]
    for rank in ranks:
        rank.start()
    result = launch(functions.train_momentum, workers=2, policy="bsp", epochs=EPOCHS)
    for rank in ranks:
        rank.join(functions.PATIENCE)
        assert rank.exitcode == 0
    kind, arguments = functions.OPTIMIZERS["momentum"]
    same(result.model_state, one_process(functions.model(), functions.data(), 16, kind, **arguments))
    same(result.model_state, torch.load(tmp_path / "state.pt"))


@pytest.mark.parametrize("policy", ALONE)
def test_one_worker_alone_is_plain_momentum_bit_for_bit(policy: str) -> None:
    result = launch(functions.train_odd, workers=1, policy=policy, epochs=EPOCHS)
    expected = one_process(
        functions.odd_model(), functions.odd_data(), functions.ODD_BATCH, torch.optim.SGD, **functions.ODD_OPTIMIZER
    )
    for key, each in expected.items():
        assert torch.equal(result.model_state[key], each), key
    assert result.samples == functions.ODD_SAMPLES * EPOCHS


def applied_gradients(trace: Iterable[object]) -> list[tuple[int, int]]:
    """Worker and clock of all that became part of an update."""
    return [
        (each.worker, each.clock)
        for record in trace
        for command in record.commands  # type: ignore[attr-defined]
        if isinstance(command, ApplyUpdate)
        for each in command.gradients
    ]


def each_counted_once(result: RunResult, epochs: int) -> None:
    """Every sample was part of as many updates as there are epochs, and every gradient of at most one."""
    counted = result.model_state["samples"]
    torch.testing.assert_close(counted, torch.full_like(counted, epochs))
    assert result.samples == functions.SAMPLES * epochs
    assert result.summary.pending == 0
    gradients = result.model_state["gradients"]
    torch.testing.assert_close(gradients, gradients.round().clamp(0, 1))
    assert gradients.sum().round() == result.summary.applied


@pytest.mark.parametrize(
    ("policy", "sharding", "last"),
    [
        ("bsp", "static", "dies"),
        ("asp", "dynamic", "breaks"),
        ("elastic-bsp:lookahead=3,inside=gather", "dynamic", "dies"),
        ("backup:k=2,late=interrupt", "static", "dies"),
        ("buffered:size=3,exponent=0", "dynamic", "breaks"),
    ],
)
def test_every_sample_counts_once_per_epoch_beside_a_slow_worker_and_one_that_is_lost(
    policy: str, sharding: str, last: str, tmp_path: Path
) -> None:
    """Batches are of unequal size, the run replays, and what the trace calls applied is what was applied."""
    result = launch(
        partial(functions.count, directory=str(tmp_path), sharding=sharding, last=last),
        workers=3,
        policy=policy,
        epochs=EPOCHS,
        run_dir=tmp_path / "run",
        speed="constant:seconds=0.005",
        slowdown={1: 4.0},
    )
    each_counted_once(result, EPOCHS)
    trace = Trace(tmp_path / "run" / "trace.jsonl")
    assert first_difference(trace) is None
    records = list(trace)
    reasons = [
        record.event.reason for record in records if isinstance(record.event, WorkerLeft) and record.event.worker == 2
    ]
    assert reasons == ["its process was killed by SIGKILL (out of memory?)" if last == "dies" else "finished"]
    if "interrupt" not in policy:
        counted = result.model_state["gradients"]
        assert all(counted[worker, clock - 1] for worker, clock in applied_gradients(records) if worker < 3)


def test_several_batches_make_one_gradient_also_where_the_last_are_fewer() -> None:
    result = launch(functions.count_accumulated, workers=2, policy="bsp")
    each_counted_once(result, 1)


def test_two_steps_per_batch_lose_no_batch_and_see_none_twice(tmp_path: Path) -> None:
    launch(partial(functions.count_twice, directory=str(tmp_path)), workers=2, policy="asp")
    seen = [sample for index in range(2) for sample in json.loads((tmp_path / f"seen-{index}").read_text())]
    assert sorted(seen) == list(range(functions.SAMPLES))


def test_batches_of_their_own_may_come_from_a_loader_with_processes() -> None:
    result = launch(partial(functions.own_loader, processes=1), workers=2, policy="ssp", epochs=EPOCHS)
    assert result.samples == functions.SAMPLES * EPOCHS


def test_a_data_set_with_fewer_samples_than_workers_is_refused() -> None:
    with pytest.raises(PacelineError, match="the data set has 1 samples, fewer than the 2 workers: take fewer workers"):
        launch(functions.tiny_data, workers=2)

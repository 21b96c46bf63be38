"""Training in real processes over shared memory: the weights are right, no sample is lost, nothing is left behind."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import training_functions as functions

from paceline.core.errors import ConfigurationError, PacelineError
from paceline.experiment.training import launch
from paceline.recording.replay import first_difference
from paceline.recording.trace import Trace
from paceline.training.data import order_of
from paceline.training.worker import Worker

pytestmark = pytest.mark.slow

EPOCHS = 2


def single_process(optimizer_name: str, workers: int) -> dict[str, torch.Tensor]:
    """The same training in one process, with the batches of a round concatenated."""
    net, dataset = functions.model(), functions.data()
    kind, arguments = functions.OPTIMIZERS[optimizer_name]
    optimizer = kind(net.parameters(), **arguments)
    for epoch in range(EPOCHS):
        for indices in order_of(functions.SAMPLES, 0, epoch).split(functions.BATCH * workers):
            x, y = (tensor[indices] for tensor in dataset.tensors)
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
    return net.state_dict()


@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_bsp_gives_the_weights_of_one_process_with_the_batches_concatenated(name: str) -> None:
    train: Callable[[Worker], None] = getattr(functions, f"train_{name}")
    result = launch(train, workers=2, policy="bsp", epochs=EPOCHS)
    for key, expected in single_process(name, 2).items():
        torch.testing.assert_close(result.model_state[key], expected)


@pytest.mark.parametrize(
    "policy",
    ["elastic-bsp:inside=gather", "backup:k=1,late=interrupt", "dbw", "buffered:size=3"],
)
def test_every_policy_uses_every_sample_once_per_epoch_and_replays(policy: str, tmp_path: Path) -> None:
    trace = tmp_path / "run" / "trace.jsonl"
    result = launch(functions.train_sgd, workers=2, policy=policy, epochs=EPOCHS, run_dir=tmp_path / "run", slowdown={1: 3.0})
    assert result.samples == functions.SAMPLES * EPOCHS
    assert result.summary.pending == 0
    assert first_difference(Trace(trace)) is None


@pytest.mark.parametrize("policy", ["dssp"])
def test_one_worker_alone_is_plain_sgd_bit_for_bit(policy: str) -> None:
    result = launch(functions.train_sgd, workers=1, policy=policy, epochs=EPOCHS)
    for key, expected in single_process("sgd", 1).items():
        assert torch.equal(result.model_state[key], expected)


def test_a_killed_worker_blocks_nobody_and_its_batch_goes_to_another() -> None:
    result = launch(functions.dies, workers=2, policy="bsp", epochs=1)
    assert result.samples == functions.SAMPLES


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (functions.raises, "worker 1 raised:\nTraceback(.|\n)*RuntimeError: a bug in the user's loop"),
        (functions.not_finite, r"worker \d: the gradient of '0.weight' is not finite"),
        (functions.forgets_backward, r"worker \d: parameter '0.weight' has no gradient; call backward"),
        (
            functions.another_model,
            "the model of worker 1 differs from that of worker 0: it has no parameter '0",
        ),
    ],
)
def test_what_goes_wrong_is_said_once_and_nothing_is_left(train: Callable[[Worker], None], message: str) -> None:
    with pytest.raises(PacelineError, match=message):
        launch(train, workers=2)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 0}, "workers is 0; it must be at least 1"),
        ({"epochs": 0}, "epochs is 0; it must be at least 1"),
        ({"slowdown": {5: 2.0}}, "workers are 0 to 1"),
        ({"policy": "backup:k=3"}, "k=3 gradients per update need at least 3 workers"),
    ],
)
def test_impossible_arguments_are_refused_before_anything_starts(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        launch(functions.train_sgd, **{"workers": 2, **arguments})  # type: ignore[arg-type]

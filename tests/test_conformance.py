"""One decision code, one set of weights: real runs, runs in virtual time and plain PyTorch agree."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from group import QUICK
from torch import nn
from torch.utils.data import TensorDataset

from paceline.core.errors import TraceError
from paceline.experiment.configuration import read_configuration
from paceline.experiment.retraining import retrain
from paceline.experiment.simulation import Simulation
from paceline.experiment.training import fit
from paceline.experiment.virtual_training import train_virtually
from paceline.recording.observer import Observer
from paceline.recording.progress_log import Evaluation
from paceline.recording.trace import Trace
from paceline.training.data import order_of
from paceline.training.task import Task

EPOCHS = 2
BATCH = 16
OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.1),
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=0.01),
}


def task(optimizer: str = "momentum", dtype: torch.dtype = torch.float32) -> Task:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(320, 7, generator=generator, dtype=dtype)
    data = TensorDataset(x, (x.sum(1) > 0).long())
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 2)).to(dtype)
    return Task(model, F.cross_entropy, data, data, OPTIMIZERS[optimizer], BATCH)


def one_process(job: Task, workers: int) -> dict[str, torch.Tensor]:
    """Plain PyTorch, with the batches of a round concatenated."""
    optimizer = job.optimizer(job.model.parameters())
    for epoch in range(EPOCHS):
        for indices in order_of(len(job.train), 0, epoch).split(BATCH * workers):
            x, y = (tensor[indices] for tensor in job.train.tensors)
            optimizer.zero_grad()
            F.cross_entropy(job.model(x), y).backward()
            optimizer.step()
    return job.model.state_dict()


# -- in virtual time --


@pytest.mark.parametrize("policy", [*QUICK, "backup:k=1", "dbw:blind=true", "dssp:capped=false"])
def test_one_virtual_worker_is_plain_sgd_bit_for_bit(policy: str) -> None:
    result = train_virtually(task(), policy, Simulation(intervals=(1.0,)), epochs=EPOCHS)
    for name, expected in one_process(task(), 1).items():
        assert torch.equal(result.model_state[name], expected)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_virtual_bsp_gives_the_weights_of_one_process(optimizer: str) -> None:
    job = partial(task, optimizer, torch.float64)
    result = train_virtually(job(), "bsp", Simulation(intervals=(1.0, 1.3, 2.0, 4.0)), epochs=EPOCHS)
    for name, expected in one_process(job(), 4).items():
        torch.testing.assert_close(result.model_state[name], expected)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("policy", ["bsp", "backup:k=3", "elastic-bsp:inside=gather", "dbw:blind=true"])
def test_where_no_gradient_is_stale_the_correction_changes_nothing(policy: str, optimizer: str) -> None:
    group = Simulation(intervals=(1.0, 1.3, 2.0, 4.0))
    first, second = (train_virtually(task(optimizer), policy, group, stale=stale) for stale in ("auto", "none"))
    for name, tensor in first.model_state.items():
        assert torch.equal(tensor, second.model_state[name])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_trace_is_retrained_with_the_correction_it_was_made_with_and_no_other(optimizer: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    group = Simulation(intervals=(1.0, 1.3, 2.0), failures={1: 12.0}, joins={2: 6.0})
    result = train_virtually(task(optimizer), "asp", group, epochs=EPOCHS, trace_file=path)
    trace = Trace(path)
    assert trace.header.updates is not None and "secant" in trace.header.updates.correction
    assert ("second moment" in trace.header.updates.correction) == (optimizer == "adam")
    for name, tensor in retrain(trace, task(optimizer), seed=0, threads=torch.get_num_threads()).parameters.items():
        assert torch.equal(result.model_state[name], tensor)
    with pytest.raises(TraceError, match=r"were made with .* secant.*, and these would be with .* gradients: none"):
        retrain(trace, task(optimizer), seed=0, stale="none")
    with pytest.raises(TraceError, match=r"lr_scaling=auto.*lr_scaling=sqrt"):
        retrain(trace, task(optimizer), seed=0, lr_scaling="sqrt")


@pytest.mark.parametrize(
    "policy", [*QUICK, "ssp:staleness=3", "backup:k=2,late=interrupt", "backup:k=2,late=pull", "dbw:blind=true"]
)
def test_in_virtual_time_the_same_arguments_give_the_same_bytes_and_use_every_sample(
    policy: str, tmp_path: Path
) -> None:
    group = Simulation(intervals=(1.0, 1.1, 1.3, 4.0), jitter=0.2, failures={1: 9.0}, joins={2: 3.0}, seed=5)
    results = [
        train_virtually(task(), policy, group, epochs=EPOCHS, trace_file=tmp_path / f"{number}") for number in range(2)
    ]
    assert (tmp_path / "0").read_bytes() == (tmp_path / "1").read_bytes()
    assert Trace(tmp_path / "0").header.policy == results[0].summary.policy
    for name, each in results[0].model_state.items():
        assert torch.equal(each, results[1].model_state[name])
    assert results[0].samples == 320 * EPOCHS
    again = retrain(Trace(tmp_path / "0"), task(), seed=5, threads=torch.get_num_threads()).parameters
    for name, each in again.items():
        assert torch.equal(results[0].model_state[name], each)


def test_an_optimizer_that_cannot_be_corrected_is_named_in_a_warning() -> None:
    job = replace(task(), optimizer=partial(torch.optim.Adagrad, lr=0.1))
    with pytest.warns(UserWarning, match="stale gradients are applied as they are: Adagrad cannot be corrected"):
        train_virtually(job, "asp", Simulation(intervals=(1.0, 1.5)))
    train_virtually(job, "asp", Simulation(intervals=(1.0, 1.5)), stale="none")  # nobody has to be told
    train_virtually(job, "bsp", Simulation(intervals=(1.0, 1.5)))


def test_an_observer_of_virtual_training_sees_every_evaluation() -> None:
    seen: list[Evaluation] = []

    class Keeper(Observer):
        def evaluated(self, evaluation: Evaluation) -> None:
            seen.append(evaluation)

    group = Simulation(intervals=(1.0, 1.5))
    result = train_virtually(task(), "asp", group, epochs=EPOCHS, evaluate_every=100, observers=[Keeper()])
    assert len(seen) > EPOCHS and seen == result.evaluations


# -- in real processes --


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["bsp", "elastic-bsp", "backup:k=2,late=interrupt", "buffered:size=3"])
def test_a_real_run_followed_in_virtual_time_gives_the_same_weights(policy: str, tmp_path: Path) -> None:
    job = task()
    result = fit(
        job.model,
        job.loss,
        job.train,
        optimizer=job.optimizer,
        batch_size=BATCH,
        workers=3,
        policy=policy,
        epochs=EPOCHS,
        slowdown={2: 3.0},
        run_dir=tmp_path / "run",
    )
    trace = Trace(tmp_path / "run" / "trace.jsonl")
    assert trace.header.policy == result.summary.policy
    assert trace.header.updates == read_configuration(tmp_path / "run").updates
    assert trace.header.updates is not None
    corrected = trace.header.updates.correction == "worker moments + secant"
    assert corrected == (policy in ("elastic-bsp", "buffered:size=3"))
    weights = retrain(trace, task(), seed=0).parameters
    for name, each in weights.items():
        assert torch.equal(result.model_state[name], each)
        assert torch.equal(job.model.state_dict()[name], each)

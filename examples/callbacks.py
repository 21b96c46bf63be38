"""Hear what a run does, stop it when nothing gets better, keep the best model, and log figures of your own."""

import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import paceline


def dataset(samples: int, seed: int) -> TensorDataset:
    x = torch.randn(samples, 20, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x[:, :5].sum(1) > 0).long())


def train(worker: paceline.Worker) -> None:
    model = nn.Linear(20, 2)
    optimizer = worker.optimizer(model, torch.optim.SGD, lr=0.5)
    for x, y in worker.batches(dataset(1024, seed=0), batch_size=16):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        worker.log({"gradient norm": torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)})
        optimizer.step(loss)


def evaluate(state: dict[str, torch.Tensor]) -> dict[str, float]:
    model = nn.Linear(20, 2)
    model.load_state_dict(state)
    x, y = dataset(256, seed=1).tensors
    with torch.no_grad():
        output = model(x)
    return {"loss": float(F.cross_entropy(output, y)), "accuracy": float((output.argmax(1) == y).float().mean())}


class Print(paceline.Callback):
    def evaluated(self, run, evaluation):
        print(f"{evaluation.samples} samples: accuracy {evaluation.figures['accuracy']:.1%}")

    def logged(self, run, logged):
        print(f"worker {logged.worker}: {logged.figures}")

    def worker_failed(self, run, failure):
        print(failure)
        run.stop("one is enough")


if __name__ == "__main__":
    best = Path(tempfile.mkdtemp()) / "best.safetensors"
    result = paceline.launch(
        train,
        workers=2,
        policy="asp",
        epochs=500,
        evaluate=evaluate,
        callbacks=[Print(), paceline.EarlyStopping("loss", patience=3, least_gain=0.01), paceline.KeepBest(best)],
    )
    print(f"{result.summary.iterations_per_second:.0f} iterations/s, stopped early: {result.stopped}")
    print(f"{result.samples} of {result.samples_asked} samples; the best model is in {best}")

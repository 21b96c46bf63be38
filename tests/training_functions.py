"""Small models, `train` and `evaluate` functions that worker processes import.

A function that takes a directory speaks through files in it with the test and with the other workers.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from paceline.core.messages import ApplyUpdate
from paceline.experiment.training import InterruptedRun, launch
from paceline.recording.observer import Observer
from paceline.recording.trace import Record
from paceline.runtimes.ray_cluster.options import RayCluster
from paceline.training.data import order_of
from paceline.training.remote_optimizer import RemoteOptimizer
from paceline.training.worker import Worker

torch.set_num_threads(1)  # several runs share the cores of a test machine
SAMPLES, BATCH = 96, 8
PATIENCE = 180.0  # seconds that anybody waits for a file; on a machine with a load of 30 processes start slowly


def wait_for(*paths: Path) -> None:
    """Until one of these files is there; a test whose file never comes fails."""
    end = time.monotonic() + PATIENCE
    while not any(path.exists() for path in paths):
        if time.monotonic() > end:
            raise TimeoutError(f"{paths[0].name} did not come within {PATIENCE:g} seconds")
        time.sleep(0.01)


def write(path: Path, content: Any) -> None:
    """Whoever sees this file sees all of it."""
    unfinished = path.with_name(f".{path.name}-{os.getpid()}")  # several workers may write the same file
    unfinished.write_text(json.dumps(content))
    unfinished.rename(path)


# -- plain training --


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(SAMPLES, 6, generator=generator, dtype=torch.float64)
    return TensorDataset(x, (x[:, :3].sum(1) > 0).long())


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).double()


OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.3}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adam": (torch.optim.Adam, {"lr": 0.01}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
}


def loop(worker: Worker, optimizer_name: str, batch_size: int = BATCH) -> None:
    net = model()
    kind, arguments = OPTIMIZERS[optimizer_name]
    optimizer = worker.optimizer(net, kind, **arguments)
    for x, y in worker.batches(data(), batch_size=batch_size):
        push(optimizer, F.cross_entropy(net(x), y))


def push(optimizer: RemoteOptimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step(loss)


def train_sgd(worker: Worker) -> None:
    loop(worker, "sgd")


def train_momentum(worker: Worker) -> None:
    loop(worker, "momentum")


def train_adam(worker: Worker) -> None:
    loop(worker, "adam")


UNEQUAL = (4, 8, 12)  # 24 samples make a round, whoever takes which of them


def train_unequal(worker: Worker) -> None:
    loop(worker, "sgd", UNEQUAL[worker.index])


def data_parallel(rank: int, ranks: int, epochs: int, directory: str) -> None:
    """One rank of PyTorch's own synchronous training, which takes the rank-th batch of every round."""
    import torch.distributed  # not at the top: every worker of every test would pay for it
    from torch.nn.parallel import DistributedDataParallel

    where = Path(directory)
    torch.distributed.init_process_group("gloo", init_method=f"file://{where / 'ranks'}", rank=rank, world_size=ranks)
    net = DistributedDataParallel(model())
    kind, arguments = OPTIMIZERS["momentum"]
    optimizer = kind(net.parameters(), **arguments)
    for epoch in range(epochs):
        for indices in order_of(SAMPLES, 0, epoch).split(BATCH)[rank::ranks]:
            x, y = (tensor[indices] for tensor in data().tensors)
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
    if rank == 0:
        torch.save(net.module.state_dict(), where / "state.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    os._exit(0)  # what is left is torch's own end, which aborts now and then: a thread of it is not joined


# -- one worker: odd sizes in single precision --

ODD_SAMPLES, ODD_BATCH = 67, 9
ODD_OPTIMIZER = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3}


def odd_data() -> TensorDataset:
    x = torch.randn(ODD_SAMPLES, 7, generator=torch.Generator().manual_seed(7))
    return TensorDataset(x, (x[:, :3].sum(1) > 0).long())


def odd_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 5, bias=False), nn.Tanh(), nn.Linear(5, 3))


def train_odd(worker: Worker) -> None:
    net = odd_model()
    optimizer = worker.optimizer(net, torch.optim.SGD, **ODD_OPTIMIZER)
    for x, y in worker.batches(odd_data(), batch_size=ODD_BATCH):
        push(optimizer, F.cross_entropy(net(x), y))


# -- counting: after the run the parameters say what became of every sample and of every gradient --

PUSHES, PROCESSES = SAMPLES, 8  # as many as one worker alone can make of two epochs in batches of two


class Counters(nn.Module):
    """`samples`: how often each was part of an update; `gradients`: the same of the n-th of each process."""

    def __init__(self) -> None:
        super().__init__()
        self.samples = nn.Parameter(torch.zeros(SAMPLES, dtype=torch.float64))
        self.gradients = nn.Parameter(torch.zeros(PROCESSES, PUSHES, dtype=torch.float64))

    def count(self, indices: Tensor, process: int, number: int) -> Tensor:
        return (self.samples[indices].sum() + self.gradients[process, number]) / len(indices)


class Counting(torch.optim.Optimizer):
    """Undoes the mean: an update is sum(samples * gradient) / sum(samples), and each gradient has a 1 of its own."""

    def __init__(self, parameters: Any, lr: float = 1.0) -> None:
        super().__init__(parameters, {"lr": lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            samples, gradients = (each for group in self.param_groups for each in group["params"])
            total = 1 / gradients.grad.max()
            samples.add_(samples.grad * total)
            gradients.add_(gradients.grad * total)


def numbers() -> TensorDataset:
    return TensorDataset(torch.arange(SAMPLES))


def count(
    worker: Worker, directory: str, *, sharding: str = "dynamic", equal: bool = False, last: str = "dies"
) -> None:
    """Worker 2 is killed, or ends its loop, in the middle of its second batch; the others let it get there."""
    net = Counters()
    optimizer = worker.optimizer(net, Counting, stale="none")
    second = Path(directory) / "second"
    size = BATCH if equal else UNEQUAL[worker.index % 3]
    for number, (indices,) in enumerate(worker.batches(numbers(), batch_size=size, sharding=sharding)):
        if worker.index == 2 and number == 1:
            write(second, True)
            if last == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            break
        if worker.index != 2 and number == 2:
            wait_for(second)
        push(optimizer, net.count(indices, worker.index, number))


def count_accumulated(worker: Worker, every: int = 5) -> None:
    """Several batches make one gradient, and what is left at the end makes a last, smaller one."""
    net = Counters()
    optimizer = worker.optimizer(net, Counting, stale="none")
    number = 0
    collected: list[Tensor] = []
    for (indices,) in worker.batches(numbers(), batch_size=BATCH):
        collected.append(indices)
        if len(collected) == every:
            push(optimizer, net.count(torch.cat(collected), worker.index, number))
            number, collected = number + 1, []
    if collected:
        push(optimizer, net.count(torch.cat(collected), worker.index, number))


def count_twice(worker: Worker, directory: str) -> None:
    """Two steps per batch; what was seen is written down."""
    net = Counters()
    optimizer = worker.optimizer(net, Counting, stale="none")
    seen: list[int] = []
    for (indices,) in worker.batches(numbers(), batch_size=BATCH):
        seen += indices.tolist()
        for _ in range(2):
            push(optimizer, net.count(indices, worker.index, 0))
    write(Path(directory) / f"seen-{worker.index}", seen)


# -- torn reads and overwritten gradients --

WIDE = 2_000_000


def move_together(worker: Worker, cycles: int) -> None:
    """All elements change alike, so that in every version they are equal; a pull of two versions would show."""
    net = nn.Linear(WIDE, 1, bias=False)
    nn.init.zeros_(net.weight)
    optimizer = worker.optimizer(net, torch.optim.SGD, lr=1.0)
    one = torch.full_like(net.weight, -1.0)
    before = 0.0
    for _ in worker.batches(iter(range(cycles))):
        first, least, most = net.weight[0, 0].item(), net.weight.min().item(), net.weight.max().item()
        assert least == most == first, f"a torn read: {least} to {most}"
        assert first >= before, f"version {first} came after {before}"
        before = first
        net.weight.grad = one
        optimizer.step()


def hand_in_distinct(worker: Worker) -> None:
    """The n-th gradient of a worker has its one element in a place of its own, and a value of its own."""
    net = Counters()
    optimizer = worker.optimizer(net, torch.optim.SGD, lr=1.0)
    for number in worker.batches(iter(range(PUSHES - 1))):
        optimizer.zero_grad()
        value = worker.index * 100 + number + 1
        net.samples.grad = torch.zeros_like(net.samples)
        net.gradients.grad = torch.zeros_like(net.gradients)
        net.gradients.grad[worker.index, number + 1] = value
        optimizer.step(samples=1 + worker.index)


# -- evaluation --


def evaluate_until_trained(state: dict[str, Tensor], directory: str) -> dict[str, float]:
    """Takes until training is over: if training waited for it, neither would end."""
    wait_for(Path(directory) / "trained")
    return {"weight": float(state["0.weight"].sum())}


def train_and_say_so(worker: Worker, directory: str) -> None:
    loop(worker, "sgd")
    write(Path(directory) / "trained", True)


def evaluate_badly(state: dict[str, Tensor]) -> float:
    raise RuntimeError("a bug in the user's evaluation")


# -- buffers --


class Composite(nn.Module):
    """A model with everything: batch normalisation, a frozen layer, tied weights, a buffer that is not saved."""

    scratch: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.first = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.second = nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.register_buffer("scratch", torch.zeros(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.norm(self.first(self.frozen(x))))


def train_composite(worker: Worker, directory: str) -> None:
    net = Composite()
    optimizer = worker.optimizer(net, torch.optim.SGD, lr=0.1)
    for x, y in worker.batches(data(), batch_size=BATCH):
        push(optimizer, F.cross_entropy(net(x.float() + worker.index), y))
    torch.save({key: each.clone() for key, each in net.named_buffers()}, Path(directory) / f"buffers-{worker.index}.pt")


def evaluate_composite(state: dict[str, Tensor], directory: str) -> float:
    Composite().load_state_dict(state)
    torch.save({key: each.clone() for key, each in state.items()}, Path(directory) / "evaluated.pt")
    return 0.5


# -- groups that change --


def count_elastically(worker: Worker, directory: str) -> None:
    """Worker 1 is killed at its second batch. Everybody holds at its third until the test says `go`."""
    where = Path(directory)
    net = Counters()
    optimizer = worker.optimizer(net, Counting, stale="none")
    write(where / f"joined-{worker.index}", net.samples.tolist())
    for number, (indices,) in enumerate(worker.batches(numbers(), batch_size=2)):
        if worker.index == 1 and number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 2:
            write(where / f"holds-{worker.index}", True)
            wait_for(where / "go")
        push(optimizer, net.count(indices, worker.index, number))


def count_on_a_cluster(worker: Worker, directory: str, batch: int = 2) -> None:
    """Everybody holds at its third batch, and says which process it is, until the test says `go`, or lets it alone."""
    where = Path(directory)
    net = Counters()
    optimizer = worker.optimizer(net, Counting, stale="none")
    for number, (indices,) in enumerate(worker.batches(numbers(), batch_size=batch)):
        if number == 2:
            write(where / f"holds-{worker.index}", os.getpid())
            wait_for(where / "go", where / f"go-{worker.index}")
        push(optimizer, net.count(indices, worker.index, number))


def another_model_later(worker: Worker) -> None:
    """Worker 0 dies at its second batch, and who takes its place has another model."""
    net = Counters() if worker.index < 2 else nn.Linear(6, 2)
    optimizer = worker.optimizer(net, torch.optim.SGD, lr=0.1)
    for number in worker.batches(iter(range(10**9))):
        if worker.index == 0 and number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        push(optimizer, net.count(torch.tensor([0]), worker.index, 0))


def skip_until_dismissed(worker: Worker, directory: str) -> None:
    """Worker 1 has nothing but gradients that are not finite, and goes on with its own batches all the time."""
    where = Path(directory)
    net = nn.Linear(2, 1, bias=False)
    optimizer = worker.optimizer(net, torch.optim.SGD, lr=0.1)
    write(where / f"joined-{worker.index}", True)
    for number in worker.batches(iter(range(10**9))):
        if worker.index == 0 and (where / "go").exists() and number > 100:
            return
        push(optimizer, net.weight.sum() * (1.0 if worker.index == 0 else float("nan")))


def count_until_both_pushed(worker: Worker, directory: str) -> None:
    """Worker 0 stops at its 15th batch until worker 1, which it interrupted all the time, has pushed something."""
    pushed = Path(directory) / "pushed"
    net = Counters()
    optimizer = worker.optimizer(net, Counting, stale="none")
    for number, (indices,) in enumerate(worker.batches(numbers(), batch_size=BATCH)):
        if worker.index == 0 and number == 15:
            wait_for(pushed)
        push(optimizer, net.count(indices, worker.index, number))
        if worker.index == 1 and net.gradients[1].any():
            write(pushed, True)


# -- batches of their own --


def own_loader(worker: Worker, processes: int = 0) -> None:
    net = model()
    optimizer = worker.optimizer(net, torch.optim.SGD, lr=0.1)
    x, y = data().tensors
    part = TensorDataset(x[worker.index :: 2], y[worker.index :: 2])
    for x, y in worker.batches(DataLoader(part, batch_size=BATCH, num_workers=processes), sharding="own"):
        push(optimizer, F.cross_entropy(net(x), y))


# -- loader processes --


def dies_with_loaders(worker: Worker, directory: str) -> None:
    """Worker 1 is killed while its loader processes, which are stopped, have batches of the next steps."""
    net = model()
    optimizer = worker.optimizer(net, torch.optim.SGD, lr=0.1)
    where, before = Path(directory), worker.workers
    died = where / "died"
    for number, (x, y) in enumerate(worker.batches(data(), batch_size=2, num_workers=2)):
        push(optimizer, F.cross_entropy(net(x), y))
        if worker.index == 1 and number == 2:
            loaders = [child.pid for child in multiprocessing.active_children() if child.pid is not None]
            for pid in loaders:
                os.kill(pid, signal.SIGSTOP)
            write(died, {"loaders": loaders, "method": multiprocessing.get_start_method()})
            os.kill(os.getpid(), signal.SIGKILL)
        if worker.index == 0 and number == 2:
            wait_for(died)
    if worker.index == 0:
        write(where / "places", [before, worker.rank, worker.workers])


# -- what goes wrong --


def tiny_data(worker: Worker) -> None:
    optimizer = worker.optimizer(model(), torch.optim.SGD, lr=0.1)
    for _ in worker.batches(TensorDataset(torch.zeros(1, 6)), batch_size=1):
        optimizer.step()


def raises(worker: Worker) -> None:
    if worker.index == 1:
        raise RuntimeError("a bug in the user's loop")
    loop(worker, "sgd")


def raises_later(worker: Worker) -> None:
    """Worker 1 has a bug that shows with its second batch."""
    net = model()
    optimizer = worker.optimizer(net, torch.optim.SGD, lr=0.1)
    for number, (x, y) in enumerate(worker.batches(data(), batch_size=BATCH)):
        if worker.index == 1 and number == 1:
            raise RuntimeError("a bug in the user's loop")
        push(optimizer, F.cross_entropy(net(x), y))
        time.sleep(0.01)


def everybody_raises(worker: Worker) -> None:
    worker.optimizer(model(), torch.optim.SGD, lr=0.1)
    raise RuntimeError("a bug in everybody's loop")


def exits(worker: Worker) -> None:
    if worker.index == 1:
        sys.exit("enough of this")
    loop(worker, "sgd")


def not_finite(worker: Worker) -> None:
    """Worker 1's second layer gets gradients that are not finite."""
    net = model()
    optimizer = worker.optimizer(net, torch.optim.SGD, lr=0.1)
    for x, y in worker.batches(data(), batch_size=BATCH):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        if worker.index == 1:
            last = net.get_parameter("2.bias").grad
            assert last is not None
            last[0] = float("inf")
        optimizer.step()


def not_finite_once(worker: Worker) -> None:
    """The batch with sample 5 has a gradient that is not finite, in every epoch."""
    net = Counters()
    optimizer = worker.optimizer(net, Counting, stale="none")
    for number, (indices,) in enumerate(worker.batches(numbers(), batch_size=BATCH)):
        factor = float("nan") if 5 in indices else 1.0
        push(optimizer, net.count(indices, worker.index, number) * factor)


def forgets_backward(worker: Worker) -> None:
    worker.optimizer(model(), torch.optim.SGD, lr=0.1).step()


def another_model(worker: Worker) -> None:
    net = model() if worker.index == 0 else nn.Linear(6, 2).double()
    worker.optimizer(net, torch.optim.SGD, lr=0.1)


def killed_before_the_beginning(worker: Worker) -> None:
    if worker.index == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    loop(worker, "sgd")


def no_optimizer(worker: Worker) -> None:
    pass


def no_optimizer_in_one(worker: Worker, directory: str) -> None:
    """Worker 1 ends without a model while worker 0 waits for it with its own."""
    ready = Path(directory) / "ready"
    if worker.index == 1:
        wait_for(ready)
        time.sleep(0.5)  # worker 0 is most likely waiting by now; the outcome shall be the same if not
        return
    write(ready, True)
    loop(worker, "sgd")


def steps_after_the_end(worker: Worker) -> None:
    net = model()
    optimizer = worker.optimizer(net, torch.optim.SGD, lr=0.1)
    for x, y in worker.batches(data(), batch_size=BATCH):
        push(optimizer, F.cross_entropy(net(x), y))
    push(optimizer, net(data().tensors[0]).sum())


# -- what used to hold up or spoil a run --


class Marked(nn.Module):
    """A model with a buffer that its worker writes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.register_buffer("mark", torch.zeros(1))


def two_of_three_die(worker: Worker) -> None:
    """Workers 1 and 2 leave a mark and are killed after two steps; the buffers of worker 0 are the group's."""
    net = Marked()
    optimizer = worker.optimizer(net, torch.optim.SGD, lr=0.01)
    for number, (x, _) in enumerate(worker.batches(data(), batch_size=4)):
        net.mark.fill_(1.0 if worker.index == 0 else -100.0)
        push(optimizer, (net.weight.sum() - x.sum()) ** 2)
        if worker.index > 0 and number == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def thousands_of_updates_beside_a_sleeper(worker: Worker, directory: str) -> None:
    """Worker 0 makes more updates than a pipe holds interrupts, while worker 1 computes and reads nothing."""
    net = nn.Linear(1, 1)
    optimizer = worker.optimizer(net, torch.optim.SGD, lr=1e-6)
    done = Path(directory) / "done"
    for number, x in enumerate(worker.batches(torch.ones(1, 1) for _ in range(5000 if worker.index == 0 else 3))):
        loss = net(x).sum()
        if worker.index == 1 and number == 1:
            wait_for(done)
        push(optimizer, loss)
    if worker.index == 0:
        write(done, True)


def dies_with_a_living_child(worker: Worker, directory: str) -> None:
    """A child that outlives the worker (one of its main thread would not) holds its pipes for very long."""
    net = model()
    optimizer = worker.optimizer(net, torch.optim.SGD, lr=0.1)
    for number, (x, y) in enumerate(worker.batches(data(), batch_size=4)):
        push(optimizer, F.cross_entropy(net(x), y))
        if worker.index == 1 and number == 1:
            forking = threading.Thread(target=_fork, args=(Path(directory) / "child",))
            forking.start()
            forking.join()
            os.kill(os.getpid(), signal.SIGKILL)


def _fork(told: Path) -> None:
    child = os.fork()
    if child == 0:
        time.sleep(10 * PATIENCE)
        os._exit(0)
    write(told, child)


SHORT_LIVED = 4


def workers_1_to_4_die(worker: Worker, directory: str) -> None:
    net = model()
    optimizer = worker.optimizer(net, torch.optim.SGD, lr=0.1)
    last = Path(directory) / "last"
    for number, (x, y) in enumerate(worker.batches(data(), batch_size=2)):
        push(optimizer, F.cross_entropy(net(x), y))
        if 1 <= worker.index <= SHORT_LIVED and number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if worker.index == 0:
            wait_for(last)  # so that there is work for all of them
        elif worker.index > SHORT_LIVED and number == 0:
            write(last, True)


def evaluate_until_the_end(state: dict[str, Tensor], directory: str) -> float:
    """Fails on the state of the end, which comes when every worker has finished."""
    if len(list(Path(directory).glob("finished-*"))) == 2:
        raise RuntimeError("the disk is full")
    return float(state["0.weight"].sum())


def train_and_mark_the_end(worker: Worker, directory: str) -> None:
    loop(worker, "sgd")
    write(Path(directory) / f"finished-{worker.index}", True)


# -- runs that are killed and go on --


class Killer(Observer):
    """Kills the launcher on the spot, at some update."""

    def __init__(self, at: int) -> None:
        self._left = at

    def observe(self, record: Record) -> None:
        if any(isinstance(command, ApplyUpdate) for command in record.commands):
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def train_resumable(worker: Worker) -> None:
    """With all that a process alone knows: random layers, buffers."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2)).double()
    optimizer = worker.optimizer(net, torch.optim.AdamW, lr=0.01)
    for x, y in worker.batches(data(), batch_size=BATCH, num_workers=int(os.environ.get("LOADERS", "0"))):
        push(optimizer, F.cross_entropy(net(x), y))
        time.sleep(0.005)


def resumable(directory: str, workers: str, policy: str, kill_at: str) -> None:
    killers = [Killer(int(kill_at))] if int(kill_at) else []
    result = launch(
        train_resumable,
        workers=int(workers),
        policy=policy,
        epochs=12,
        run_dir=directory,
        checkpoint_every="3 updates",
        resume="auto",
        observers=killers,
    )
    digest = hashlib.sha256()
    for name in sorted(result.model_state):
        digest.update(result.model_state[name].numpy().tobytes())
    print(f"{result.samples} samples, {digest.hexdigest()}")


LONG = 40  # epochs


def train_slowly(worker: Worker, directory: str) -> None:
    """The training of train_adam, with a pause after every batch until there is a file `fast`."""
    where = Path(directory)
    net = model()
    kind, arguments = OPTIMIZERS["adam"]
    optimizer = worker.optimizer(net, kind, **arguments)
    for number, (x, y) in enumerate(worker.batches(data(), batch_size=BATCH)):
        push(optimizer, F.cross_entropy(net(x), y))
        if not (where / "fast").exists():
            time.sleep(0.05)
        if number == 8:
            write(where / "trains", True)


def on_a_cluster(directory: str, address: str, servers: str) -> None:
    try:
        launch(
            partial(train_slowly, directory=directory),
            workers=2,
            policy="bsp",
            epochs=LONG,
            run_dir=Path(directory) / "run",
            checkpoint_every="3 updates",
            cluster=RayCluster(address=address, servers=int(servers)),
        )
    except InterruptedRun:
        print("interrupted")


if __name__ == "__main__":
    {"resumable": resumable, "on_a_cluster": on_a_cluster}[sys.argv[1]](*sys.argv[2:])


def stops_itself(worker: Worker, directory: str, wakes: bool) -> None:
    """Worker 1 is stopped; worker 0 lets it go on after a while, or never."""
    net = model()
    optimizer = worker.optimizer(net, torch.optim.SGD, lr=0.1)
    stopped = Path(directory) / "stopped"
    since = None
    for number, (x, y) in enumerate(worker.batches(data(), batch_size=2)):
        time.sleep(0.02)
        push(optimizer, F.cross_entropy(net(x), y))
        if worker.index == 1 and number == 10:
            write(stopped, os.getpid())
            os.kill(os.getpid(), signal.SIGSTOP)
        if worker.index == 0 and wakes and stopped.exists():
            since = since or time.monotonic()
            if time.monotonic() > since + 1.0:
                os.kill(json.loads(stopped.read_text()), signal.SIGCONT)
                wakes = False


def stops_after_its_work(worker: Worker) -> None:
    train_sgd(worker)
    if worker.index == 1:
        os.kill(os.getpid(), signal.SIGSTOP)


def evaluate_and_stop_once(state: dict[str, Tensor], directory: str) -> float:
    """The first evaluator is stopped by somebody."""
    stopped = Path(directory) / "stopped"
    if not stopped.exists():
        write(stopped, os.getpid())
        os.kill(os.getpid(), signal.SIGSTOP)
    return 0.5


def waits_before_its_model(worker: Worker, directory: str) -> None:
    write(Path(directory) / f"holds-{worker.index}", True)
    wait_for(Path(directory) / "go")


def count_and_close_badly(worker: Worker, directory: str) -> None:
    """As count_on_a_cluster; what it does when its loop is unwound fails."""
    try:
        count_on_a_cluster(worker, directory)
    finally:
        if worker.index == 1:
            raise ValueError("it could not be closed")

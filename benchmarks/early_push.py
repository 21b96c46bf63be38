"""Whether it pays to push a layer while the backward pass still computes the one before it.

    python benchmarks/early_push.py [--out FILE.json] [--rates 1gbit,10gbit] [--iterations 12] [--batches 16,64,256]
                                    [--bare]
A worker and a server in two network namespaces with a wire between them (as in compression.py; needs root and Linux).
An iteration is a forward pass, a backward pass, a push of float32 gradients, an update and a pull of float32
parameters. "late" sends when the backward pass has ended, without a hook on any parameter; "hooks" has them and sends
late all the same, as in the steps in which paceline learns; "early" sends ahead. All take turns on one connection; the
median counts. "chosen": paceline would send ahead if the run began now. More samples in a batch make the backward pass
longer, and leave the wire as it is.

`--bare`: sockets and torch only, nothing of paceline, and no update.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import platform
import queue
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from compression import ADDRESS, PORT, as_bytes, enter, receive, wire
from torch import Tensor, nn

from paceline.experiment import training
from paceline.runtimes.serving.duties import begin
from paceline.runtimes.serving.duties import work as duty
from paceline.runtimes.sockets.connecting import Address
from paceline.runtimes.sockets.remote import Errand, Net, RemoteLauncher, RemoteProcess
from paceline.training.early import STEADY_STEPS, EarlyGradients, Stage
from paceline.training.remote_optimizer import RemoteOptimizer
from paceline.training.worker import Worker


def mlp() -> tuple[nn.Module, tuple[int, ...]]:
    """1.3 million parameters in six layers."""
    return nn.Sequential(*(part for _ in range(5) for part in (nn.Linear(512, 512), nn.ReLU())), nn.Linear(512, 10)), (
        512,
    )


def cnn() -> tuple[nn.Module, tuple[int, ...]]:
    """1.2 million parameters, most of them in the last layers, as image models have them."""
    widths = (3, 32, 64, 128, 256)
    stages: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        stages += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*stages, nn.Flatten(), nn.Linear(256 * 4, 768), nn.ReLU(), nn.Linear(768, 10)), (3, 32, 32)


def deep() -> tuple[nn.Module, tuple[int, ...]]:
    """0.9 million parameters in 400 tensors: many small layers, as deep models have them."""
    layers = (part for _ in range(100) for part in (nn.Linear(94, 94), nn.LayerNorm(94), nn.ReLU()))
    return nn.Sequential(*layers, nn.Linear(94, 10)), (94,)


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[int, ...]]]] = {"mlp": mlp, "cnn": cnn, "deep": deep}
MODES = {"late": Stage.RESTS, "hooks": Stage.LEARNS, "early": Stage.SENDS}


# -- paceline's own way: a run with one worker --


class Placed(RemoteProcess):
    def __init__(self, process: Any) -> None:
        super().__init__()
        self._process = process
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        self._process.join()
        self.end("its process died", self._process.exitcode)

    def destroy(self) -> None:
        self._process.kill()


class AcrossTheWire(RemoteLauncher):
    """Places workers at the other end."""

    namespace = ""

    def _open(self, stack: ExitStack) -> Net:
        return Net(ADDRESS, "tcp")

    def _start_shards(self, stack: ExitStack) -> Sequence[Address]:
        return ()

    def _place(self, errand: Errand) -> RemoteProcess:
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=be_a_worker, args=(self.namespace, errand, self._train), daemon=True)
        process.start()
        return Placed(process)


def be_a_worker(namespace: str, errand: Errand, train: Callable[[Worker], None]) -> None:
    enter(namespace)
    begin(errand.assignment)
    with errand.linked() as link:
        duty(errand.assignment, link, lambda: train)


class Turns:
    """Gradients as the modes have them, by turns."""

    def __init__(self, optimizer: RemoteOptimizer) -> None:
        self._optimizer = optimizer
        self._early = optimizer._early
        assert self._early is not None

    def take(self, mode: str) -> None:
        assert self._early is not None
        self._optimizer._early = None if mode == "late" else self._early
        self._early.experience._enter(MODES[mode])
        self._early._hook()

    def begin_anew(self) -> EarlyGradients:
        """As in a run that begins."""
        self.take("hooks")
        assert self._early is not None
        self._early._busy = None
        return self._early


def step(model: nn.Module, optimizer: RemoteOptimizer, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Seconds of the backward pass, and of all of it."""
    optimizer.zero_grad()
    began = time.perf_counter()
    loss = nn.functional.cross_entropy(model(x), y)
    middle = time.perf_counter()
    loss.backward()
    end = time.perf_counter()
    optimizer.step(samples=len(y))
    return end - middle, time.perf_counter() - began


def train(worker: Worker, name: str, batches: list[int], iterations: int, out: str) -> None:
    torch.set_num_threads(1)
    model, shape = MODELS[name]()
    optimizer = worker.optimizer(model, torch.optim.SGD, lr=1e-3)
    turns, rows = Turns(optimizer), []
    for batch in batches:
        x, y = torch.randn(batch, *shape), torch.randint(0, 10, (batch,))
        times: dict[str, list[float]] = {"backward": [], **{mode: [] for mode in MODES}}
        for turn in range(len(MODES) * (iterations + 1)):
            mode = list(MODES)[turn % len(MODES)]
            turns.take(mode)
            backward, whole = step(model, optimizer, x, y)
            times[mode].append(whole)
            if mode == "late":
                times["backward"].append(backward)
        early = turns.begin_anew()
        for _ in range(STEADY_STEPS):
            step(model, optimizer, x, y)
        chosen = early.experience.stage is Stage.SENDS
        rows.append((batch, {key: statistics.median(found[1:]) for key, found in times.items()} | {"chosen": chosen}))
    Path(out).write_text(json.dumps(rows))


def host(server_side: str, worker_side: str, name: str, batches: list[int], iterations: int, out: str) -> None:
    enter(server_side)
    AcrossTheWire.namespace = worker_side

    def launcher_for(cluster: Any, train: Any, evaluate: Any, assignment: Any, *, elastic: bool, name: str) -> Any:
        return AcrossTheWire(train, evaluate, assignment, elastic=elastic)

    training.launcher_for = launcher_for  # type: ignore[assignment]
    options = {"name": name, "batches": batches, "iterations": iterations, "out": out}
    training.launch(partial(train, **options), workers=1, policy="asp", epochs=1, patience="off")  # type: ignore[arg-type]


def measured(rate: str, name: str, batches: list[int], iterations: int) -> list[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    with tempfile.NamedTemporaryFile() as out, wire(rate) as (worker_side, server_side):
        arguments = (server_side, worker_side, name, batches, iterations, out.name)
        server = context.Process(target=host, args=arguments)
        server.start()
        server.join()
        rows = json.loads(Path(out.name).read_text())
    return [{"rate": rate, "model": name, **_row(batch, times)} for batch, times in rows]


def _row(batch: int, times: dict[str, float]) -> dict[str, Any]:
    return {"batch": batch, **times, "gain": times["late"] / times["early"]}


# -- bare --


def serve(namespace: str, ready: Connection, size: int) -> None:
    enter(namespace)
    gradient, parameters = torch.zeros(size), torch.zeros(size)
    with socket.create_server((ADDRESS, PORT)) as listener:
        ready.send(True)
        connection, _ = listener.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while True:
                try:
                    receive_or_end(connection, as_bytes(gradient))
                except EOFError:
                    return
                connection.sendall(as_bytes(parameters))


def receive_or_end(connection: socket.socket, memory: memoryview) -> None:
    while memory:
        count = connection.recv_into(memory)
        if not count:
            raise EOFError
        memory = memory[count:]


class Pusher:
    """Sends the gradients of a model, which lie in the order in which the backward pass makes them."""

    def __init__(self, model: nn.Module, connection: socket.socket) -> None:
        self.parameters = list(model.parameters())[::-1]
        self.size = sum(parameter.numel() for parameter in self.parameters)
        flat, self._slots, at = torch.zeros(self.size), {}, 0
        for parameter in self.parameters:
            self._slots[parameter] = flat[at : at + parameter.numel()]
            at += parameter.numel()
            parameter.register_post_accumulate_grad_hook(self._made)
        self._flat, self._connection, self._early = flat, connection, False
        self._todo: queue.SimpleQueue[Tensor] = queue.SimpleQueue()
        self._sent, self._count = threading.Semaphore(0), 0
        threading.Thread(target=self._send, daemon=True).start()

    def _send(self) -> None:
        while True:
            self._connection.sendall(as_bytes(self._todo.get()))
            self._sent.release()

    def _made(self, parameter: Tensor) -> None:
        if self._early:
            self._copy(parameter)
            self._count += 1
            self._todo.put(self._slots[parameter])  # type: ignore[index]

    def _copy(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        self._slots[parameter].copy_(parameter.grad.flatten())  # type: ignore[index]

    def begin(self, early: bool) -> None:
        self._early, self._count = early, 0

    def push(self) -> None:
        if self._early:
            for _ in range(self._count):
                self._sent.acquire()
            return
        for parameter in self.parameters:
            self._copy(parameter)
        self._connection.sendall(as_bytes(self._flat))


def work(namespace: str, name: str, batches: list[int], iterations: int, answer: Connection) -> None:
    torch.set_num_threads(1)
    enter(namespace)
    model, shape = MODELS[name]()
    with socket.create_connection((ADDRESS, PORT)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pusher, rows = Pusher(model, connection), []
        incoming = torch.zeros(pusher.size)
        for batch in batches:
            x, y = torch.randn(batch, *shape), torch.randint(0, 10, (batch,))
            times: dict[str, list[float]] = {"late": [], "early": [], "backward": []}
            for turn in range(2 * (iterations + 1)):
                early = turn % 2 == 1
                model.zero_grad()
                began = time.perf_counter()
                pusher.begin(early)
                loss = nn.functional.cross_entropy(model(x), y)
                middle = time.perf_counter()
                loss.backward()
                if not early:
                    times["backward"].append(time.perf_counter() - middle)
                pusher.push()
                receive(connection, as_bytes(incoming))
                times["early" if early else "late"].append(time.perf_counter() - began)
            rows.append((batch, {key: statistics.median(found[1:]) for key, found in times.items()}))
    answer.send((pusher.size, rows))


def measured_bare(rate: str, name: str, batches: list[int], iterations: int) -> list[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    size = sum(parameter.numel() for parameter in MODELS[name]()[0].parameters())
    with wire(rate) as (worker_side, server_side):
        here, there = context.Pipe()
        server = context.Process(target=serve, args=(server_side, there, size), daemon=True)
        server.start()
        here.recv()
        answer, told = context.Pipe()
        worker = context.Process(target=work, args=(worker_side, name, batches, iterations, told), daemon=True)
        worker.start()
        _, rows = answer.recv()
        worker.join()
        server.join()
    return [{"rate": rate, "model": name, **_row(batch, times)} for batch, times in rows]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path, default=Path("benchmarks/results/early_push.json"))
    arguments.add_argument("--rates", default="1gbit,10gbit", help="of the wire, as tc reads them")
    arguments.add_argument("--batches", default="16,64,256")
    arguments.add_argument("--iterations", type=int, default=12)
    arguments.add_argument("--models", default=",".join(MODELS))
    arguments.add_argument("--bare", action="store_true", help="without paceline")
    given = arguments.parse_args()
    batches = list(map(int, given.batches.split(",")))
    rows = []
    for rate in given.rates.split(","):
        for name in given.models.split(","):
            for row in (measured_bare if given.bare else measured)(rate, name, batches, given.iterations):
                rows.append(row)
                print(
                    f"{rate:>8} {name:<4} batch {row['batch']:>4}: backward {1e3 * row['backward']:>7.1f} ms,",
                    *(f"{mode} {1e3 * row[mode]:>7.1f}," for mode in MODES if mode in row),
                    f"{row['gain']:.2f}x{', chosen' if row.get('chosen') else ''}",
                    flush=True,
                )
    facts = {
        "bare": given.bare,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps({**facts, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()

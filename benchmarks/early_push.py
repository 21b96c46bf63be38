"""Whether it pays to push a layer while the backward pass still computes the one before it.

    python benchmarks/early_push.py [--out FILE.json] [--rates 1gbit,10gbit] [--iterations 12] [--batches 16,64,256]
A worker and a server in two network namespaces with a wire between them (as in compression.py; needs root and Linux),
bare: sockets and torch, nothing of paceline decides anything. An iteration is a forward pass, a backward pass, a push
of float32 gradients and a pull of float32 parameters. "late" sends when the backward pass has ended; "early" has a hook
on every parameter that copies its gradient and hands it to a thread which sends. Both take turns on one connection; the
median counts. More samples in a batch make the backward pass longer, and leave the wire as it is.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import queue
import socket
import statistics
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from compression import ADDRESS, PORT, as_bytes, enter, receive, wire
from torch import Tensor, nn


def mlp() -> tuple[nn.Module, tuple[int, ...]]:
    """1.3 million parameters in six layers."""
    return nn.Sequential(*(part for _ in range(5) for part in (nn.Linear(512, 512), nn.ReLU())), nn.Linear(512, 10)), (
        512,
    )


def cnn() -> tuple[nn.Module, tuple[int, ...]]:
    """1.2 million parameters, most of them in the last layers, as image models have them."""
    widths = (3, 32, 64, 128, 256)
    stages: list[nn.Module] = []
    for before, after in zip(widths, widths[1:], strict=False):
        stages += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*stages, nn.Flatten(), nn.Linear(256 * 4, 768), nn.ReLU(), nn.Linear(768, 10)), (3, 32, 32)


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[int, ...]]]] = {"mlp": mlp, "cnn": cnn}


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


def measured(rate: str, name: str, batches: list[int], iterations: int) -> list[dict[str, Any]]:
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
    return [
        {
            "rate": rate,
            "model": name,
            "parameters": size,
            "batch": batch,
            **times,
            "gain": times["late"] / times["early"],
        }
        for batch, times in rows
    ]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path, default=Path("benchmarks/results/early_push.json"))
    arguments.add_argument("--rates", default="1gbit,10gbit", help="of the wire, as tc reads them")
    arguments.add_argument("--batches", default="16,64,256")
    arguments.add_argument("--iterations", type=int, default=12)
    given = arguments.parse_args()
    batches = list(map(int, given.batches.split(",")))
    rows = []
    for rate in given.rates.split(","):
        for name in MODELS:
            for row in measured(rate, name, batches, given.iterations):
                rows.append(row)
                print(
                    f"{rate:>8} {name:<4} batch {row['batch']:>4}: backward {1e3 * row['backward']:>7.1f} ms, late"
                    f" {1e3 * row['late']:>7.1f}, early {1e3 * row['early']:>7.1f}: {row['gain']:.2f}x",
                    flush=True,
                )
    facts = {"cores": os.cpu_count(), "python": platform.python_version(), "torch": torch.__version__}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps({**facts, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()

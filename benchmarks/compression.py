"""What compressed gradients cost a processor, and what they save on a slow wire.

    python benchmarks/compression.py [--out FILE.json] [--rate 1gbit] [--quick]
First encoding and decoding, on one thread, beside a plain copy of the gradient in turn; the fastest of many counts. A
compression pays on wires up to its break-even rate: there the bytes that it saves take as long as its work.
Then a worker and a server in two network namespaces with a wire of `--rate` between them (tc tbf at both ends, TCP):
the time from a finished gradient to new parameters, which is to encode, to push, to decode and to pull float32
parameters as they are. The fastest of many counts, the median stands beside it. This part needs root and Linux, and is
left out otherwise.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import math
import multiprocessing
import os
import platform
import socket
import statistics
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.core.spec import build
from paceline.training.compression import COMPRESSIONS

SIZES = (1_000_000, 10_000_000)
CODECS = ("none", "bf16", "int8", "topk:share=0.1", "topk:share=0.01", "topk:share=0.001")
SECONDS, QUICK_SECONDS = 2.0, 0.2  # that a pass of a row should take, about
PASSES = 5  # over all codecs in turn: a busy moment of the machine then hits each of them
CYCLES, QUICK_CYCLES = 20, 3
ADDRESS, PORT = "10.213.0.2", 7700
HEADER = struct.Struct("<q")  # bytes of the payload that follows


def gradient_of(size: int) -> Tensor:
    """Numbers of very different sizes, as gradients have."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(size, generator=generator) * torch.rand(size, generator=generator).pow_(3)


# -- the processor --


class Speed:
    """The fastest copy, encoding and decoding so far."""

    def __init__(self, codec: str, size: int) -> None:
        self.codec = codec
        self.compression = build(codec, COMPRESSIONS, "compression")
        self.gradient, self.into = gradient_of(size), torch.empty(size)
        self.encoder = self.compression.encoder(size, self.gradient.dtype)
        self.decoder = self.compression.decoder(size, self.gradient.dtype)
        self.received = torch.zeros(self.decoder.largest_bytes, dtype=torch.uint8)
        self.sent: list[int] = []
        self.copy = self.encode = self.decode = math.inf

    def run(self, seconds: float) -> None:
        end = time.perf_counter() + seconds
        for count in itertools.count():
            if count >= 3 and time.perf_counter() > end:
                return
            began = time.perf_counter()
            self.into.copy_(self.gradient)
            copied = time.perf_counter()
            payload = self.encoder.encode(self.gradient, len(self.sent))
            encoded = time.perf_counter()
            length = 0
            for part in payload:
                self.received[length : length + len(part)] = torch.frombuffer(part, dtype=torch.uint8)
                length += len(part)
            self.sent.append(length)
            arrived = time.perf_counter()
            self.decoder.decode(self.received[:length], self.into)
            self.decode = min(self.decode, time.perf_counter() - arrived)
            self.copy = min(self.copy, copied - began)
            self.encode = min(self.encode, encoded - copied)

    def row(self, copy: float) -> dict[str, Any]:
        """`copy`: the fastest beside any of the codecs."""
        size, sent = len(self.gradient), statistics.mean(self.sent)
        saved = 4 * size - sent
        return {
            "parameters": size,
            "codec": self.codec,
            "bytes": sent,
            "copy_seconds": copy,
            "encode_seconds": self.encode,
            "decode_seconds": self.decode,
            "encode_copies": self.encode / copy,
            "decode_copies": self.decode / copy,
            "break_even_gigabits": 8e-9 * saved / (self.encode + self.decode) if saved else None,
        }


def speeds_at(size: int, seconds: float) -> list[dict[str, Any]]:
    measured = [Speed(codec, size) for codec in CODECS]
    for _ in range(PASSES):
        for speed in measured:
            speed.run(seconds)
    copy = min(speed.copy for speed in measured)
    return [speed.row(copy) for speed in measured]


# -- the wire --


@contextmanager
def wire(rate: str) -> Iterator[tuple[str, str]]:
    """Two network namespaces, joined by a wire that carries so much in each direction."""
    worker, server = f"worker-{os.getpid()}", f"server-{os.getpid()}"
    try:
        for name in (worker, server):
            _ip("netns", "add", name)
        _ip("-n", worker, "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", server)
        for name, address in ((worker, "10.213.0.1/24"), (server, f"{ADDRESS}/24")):
            _ip("-n", name, "addr", "add", address, "dev", "wire")
            _ip("-n", name, "link", "set", "wire", "up")
            shape = f"tc -n {name} qdisc add dev wire root tbf rate {rate} burst 256kb latency 50ms"
            subprocess.run(shape.split(), check=True)
        yield worker, server
    finally:
        for name in (worker, server):
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def enter(namespace: str) -> None:
    """Sockets that this process makes from now on are of that namespace."""
    with open(f"/run/netns/{namespace}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0):
            raise OSError(ctypes.get_errno(), "setns")


def receive(connection: socket.socket, memory: memoryview) -> None:
    while memory:
        memory = memory[connection.recv_into(memory) :]


def send(connection: socket.socket, parts: list[memoryview]) -> None:
    for part in parts:
        connection.sendall(part)


def as_bytes(tensor: Tensor) -> memoryview:
    return tensor.view(torch.uint8).numpy().data


def serve(namespace: str, ready: Connection, rows: int) -> None:
    """One connection per row: its codec and size, then gradients in, parameters out until it closes."""
    torch.set_num_threads(1)
    enter(namespace)
    with socket.create_server((ADDRESS, PORT)) as listener:
        ready.send(True)
        for _ in range(rows):
            codec, size = ready.recv()
            decoder = build(codec, COMPRESSIONS, "compression").decoder(size, torch.float32)
            received = torch.zeros(decoder.largest_bytes, dtype=torch.uint8)
            parameters, gradient, header = torch.zeros(size), torch.zeros(size), memoryview(bytearray(HEADER.size))
            connection, _ = listener.accept()
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while connection.recv_into(header, HEADER.size, socket.MSG_WAITALL):
                    (length,) = HEADER.unpack(header)
                    receive(connection, as_bytes(received)[:length])
                    decoder.decode(received[:length], gradient)
                    send(connection, [as_bytes(parameters)])


def push_and_pull(namespace: str, codec: str, size: int, cycles: int, answer: Connection) -> None:
    torch.set_num_threads(1)
    enter(namespace)
    gradient, parameters = gradient_of(size), torch.zeros(size)
    encoder = build(codec, COMPRESSIONS, "compression").encoder(size, gradient.dtype)
    times, pushes = [], []
    with socket.create_connection((ADDRESS, PORT)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(cycles + 1):
            began = time.perf_counter()
            payload = encoder.encode(gradient, len(pushes))
            length = sum(map(len, payload))
            send(connection, [memoryview(HEADER.pack(length)), *payload])
            receive(connection, as_bytes(parameters))
            times.append(time.perf_counter() - began)
            pushes.append(length)
    answer.send((min(times[1:]), statistics.median(times[1:]), statistics.mean(pushes)))


def on_the_wire(rate: str, cycles: int) -> list[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    cases = [(size, codec) for size in SIZES for codec in CODECS]
    rows: list[dict[str, Any]] = []
    with wire(rate) as (worker_side, server_side):
        here, there = context.Pipe()
        server = context.Process(target=serve, args=(server_side, there, len(cases)), daemon=True)
        server.start()
        here.recv()
        for size, codec in cases:
            here.send((codec, size))
            answer, told = context.Pipe()
            worker = context.Process(target=push_and_pull, args=(worker_side, codec, size, cycles, told), daemon=True)
            worker.start()
            seconds, median, pushed = answer.recv()
            worker.join()
            plain = next((row["seconds"] for row in rows if row["parameters"] == size), seconds)
            row = {"parameters": size, "codec": codec, "pushed_bytes": pushed, "pulled_bytes": 4 * size}
            rows.append({**row, "seconds": seconds, "median_seconds": median, "times_as_fast": plain / seconds})
            print(
                f"{size:>11,} {codec:<17} {pushed / 1e6:>9.2f} MB {1e3 * seconds:>9.1f} ms, median {1e3 * median:.1f},"
                f" {plain / seconds:.2f}x",
                flush=True,
            )
        server.join()
    return rows


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path, default=Path("benchmarks/results/compression.json"))
    arguments.add_argument("--rate", default="1gbit", help="of the wire, as tc reads it")
    arguments.add_argument("--quick", action="store_true", help="a short look, less exact")
    given = arguments.parse_args()
    torch.set_num_threads(1)
    speeds = []
    for size in SIZES:
        for row in speeds_at(size, QUICK_SECONDS if given.quick else SECONDS):
            speeds.append(row)
            rate = row["break_even_gigabits"]
            print(
                f"{size:>11,} {row['codec']:<17} {row['bytes'] / 1e6:>9.2f} MB"
                f" ms: copy {1e3 * row['copy_seconds']:.2f}"
                f" encode {1e3 * row['encode_seconds']:.2f} ({row['encode_copies']:.1f}x)"
                f" decode {1e3 * row['decode_seconds']:.2f} ({row['decode_copies']:.1f}x)"
                f"{'' if rate is None else f', pays up to {rate:.1f} Gbit/s'}",
                flush=True,
            )
    facts = {"cores": os.cpu_count(), "python": platform.python_version(), "torch": torch.__version__, "threads": 1}
    found: dict[str, Any] = {**facts, "speeds": speeds}
    if os.geteuid() == 0 and platform.system() == "Linux":
        cycles = QUICK_CYCLES if given.quick else CYCLES
        found |= {"rate": given.rate, "push_and_pull": on_the_wire(given.rate, cycles)}
    else:
        print("no wire: this part needs root on Linux")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

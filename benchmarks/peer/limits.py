"""The limits: memory traffic that no parameter server can avoid, and the same bytes through a bare loopback socket."""

from __future__ import annotations

import multiprocessing
import selectors
import socket
import tempfile
from collections.abc import Callable, Iterator

import torch

from peer.measuring import Row, Settings, attempt, iterate, result

spawning = multiprocessing.get_context("spawn")


def measure(settings: Settings) -> Iterator[Row]:
    for size in settings.sizes:
        yield attempt("bare add_ + copy_, one process", size, lambda size=size: memory(size, settings, 1))
        yield attempt("bare add_ + copy_, two at a time", size, lambda size=size: memory(size, settings, 2))
        yield attempt("raw loopback echo", size, lambda size=size: echo(size, settings))


def memory(size: int, settings: Settings, processes: int) -> float:
    """One update and one copy of the parameters, with one thread; nobody is told anything."""
    alone = Settings(**{**vars(settings), "workers": processes})
    return in_processes(_add_and_copy, size, alone)


def _add_and_copy(index: int, size: int, settings: Settings, into: str) -> None:
    torch.set_num_threads(1)
    gradient, parameters, replica = torch.ones(size), torch.zeros(size), torch.zeros(size)

    def step() -> None:
        parameters.add_(gradient, alpha=-1e-6)
        replica.copy_(parameters)

    iterate(step, index, size, settings, into, waits=False)


def echo(size: int, settings: Settings) -> float:
    """Every client sends so many float32 and gets as many back, from one server thread with a selector."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = spawning.Process(target=_serve_echo, args=(listener, size, settings.workers), daemon=True)
        server.start()
        try:
            return in_processes(_echo_client, size, settings, listener.getsockname()[1])
        finally:
            server.join(5)
            server.terminate()
            server.join()


def _echo_client(index: int, size: int, settings: Settings, into: str, port: int) -> None:
    sent, received = memoryview(bytearray(4 * size)), memoryview(bytearray(4 * size))
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def step() -> None:
            connection.sendall(sent)
            have = 0
            while have < 4 * size:
                have += connection.recv_into(received[have:])

        iterate(step, index, size, settings, into, waits=False)


class _Echo:
    """One connection of the server: a buffer that fills up, and is then sent back."""

    def __init__(self, connection: socket.socket, size: int) -> None:
        self.connection = connection
        self.buffer = memoryview(bytearray(4 * size))
        self.at = 0
        self.events = selectors.EVENT_READ

    def go_on(self) -> bool:
        """Read or write what can be read or written now; False at the end of the connection."""
        try:
            if self.events == selectors.EVENT_READ:
                received = self.connection.recv_into(self.buffer[self.at :])
                if received == 0:
                    return False
                self.at += received
            if self.at == len(self.buffer) and self.events == selectors.EVENT_READ:
                self.at, self.events = 0, selectors.EVENT_WRITE
            if self.events == selectors.EVENT_WRITE:
                self.at += self.connection.send(self.buffer[self.at :])
                if self.at == len(self.buffer):
                    self.at, self.events = 0, selectors.EVENT_READ
        except BlockingIOError:
            pass
        return True


def _serve_echo(listener: socket.socket, size: int, clients: int) -> None:
    with selectors.DefaultSelector() as selector:
        for _ in range(clients):
            connection = listener.accept()[0]
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_READ, _Echo(connection, size))
        while selector.get_map():
            for key, _ in selector.select():
                before = key.data.events
                if not key.data.go_on():
                    selector.unregister(key.fileobj)
                    key.data.connection.close()
                elif key.data.events != before:
                    selector.modify(key.fileobj, key.data.events, key.data)


def in_processes(target: Callable[..., None], size: int, settings: Settings, *more: object) -> float:
    """`target(index, size, settings, into, *more)` in so many processes, and what they measured."""
    with tempfile.TemporaryDirectory() as into:
        processes = [
            spawning.Process(target=target, args=(index, size, settings, into, *more), daemon=True)
            for index in range(settings.workers)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        return result(into, settings.workers)

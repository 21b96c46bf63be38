"""The limit of the network: the same bytes there and back through bare loopback sockets, with nothing done to them.

One server thread with a selector, every client in a process of its own, buffers made beforehand.
"""

from __future__ import annotations

import multiprocessing
import selectors
import socket
from collections.abc import Iterator
from functools import partial

from peer.measuring import Row, Settings, case, iterate, rows_of

NAME = "raw loopback echo"
spawning = multiprocessing.get_context("spawn")


def measure(settings: Settings) -> Iterator[Row]:
    yield from rows_of(partial(_run, settings), [(NAME, size) for size in settings.sizes], settings.workers)


def _run(settings: Settings, into: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        clients = [
            spawning.Process(target=_client, args=(index, settings, into, port), daemon=True)
            for index in range(settings.workers)
        ]
        for client in clients:
            client.start()
        for size in settings.sizes:
            _serve(listener, size, settings.workers)
        for client in clients:
            client.join()


def _client(index: int, settings: Settings, into: str, port: int) -> None:
    for size in settings.sizes:
        sent, received = memoryview(bytearray(4 * size)), memoryview(bytearray(4 * size))
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            step = partial(_there_and_back, connection, sent, received)
            iterate(step, index, size, settings, case(into, NAME, size), waits=False)


def _there_and_back(connection: socket.socket, sent: memoryview, received: memoryview) -> None:
    connection.sendall(sent)
    have = 0
    while have < len(received):
        have += connection.recv_into(received[have:])


class _Echo:
    """One connection of the server: a buffer that fills up, and is then sent back."""

    def __init__(self, connection: socket.socket, size: int) -> None:
        self.connection = connection
        self.buffer = memoryview(bytearray(4 * size))
        self.at = 0
        self.event = selectors.EVENT_READ

    def go_on(self) -> bool:
        """Read or write what can be read or written now; False at the end of the connection."""
        if self.event == selectors.EVENT_READ:
            received = self.connection.recv_into(self.buffer[self.at :])
            if received == 0:
                return False
            self.at += received
        else:
            self.at += self.connection.send(self.buffer[self.at :])
        if self.at == len(self.buffer):
            self.at = 0
            self.event = selectors.EVENT_WRITE if self.event == selectors.EVENT_READ else selectors.EVENT_READ
        return True


def _serve(listener: socket.socket, size: int, clients: int) -> None:
    """Until all clients have closed their connections."""
    with selectors.DefaultSelector() as selector:
        for _ in range(clients):
            connection = listener.accept()[0]
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_READ, _Echo(connection, size))
        while selector.get_map():
            for key, _ in selector.select():
                before = key.data.event
                if not key.data.go_on():
                    selector.unregister(key.fileobj)
                    key.data.connection.close()
                elif key.data.event != before:
                    selector.modify(key.fileobj, key.data.event, key.data)

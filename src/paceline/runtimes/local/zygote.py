"""The process that all others of a run are forked from: it has imported torch, once for all of them.

It computes nothing and has no threads of its own, so that a fork of it is as good as new. It tells the launcher of
every process that it forked, and how it ended. It dies with the launcher, and its children with it, whatever happens.
This module imports nothing heavy: what the launcher needs of it are the messages.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import msgspec

from paceline.runtimes.local.children import die_with
from paceline.runtimes.local.process_title import show_as

TITLE = "paceline zygote"
MOST_BYTES, MOST_DESCRIPTORS = 1 << 16, 16  # of one message


class Import(msgspec.Struct, frozen=True, tag=True):
    """Import these before the next process is forked, as far as they can be imported."""

    modules: list[str]


class Fork(msgspec.Struct, frozen=True, tag=True):
    """Comes with the descriptors of `Given`."""

    number: int


class Kill(msgspec.Struct, frozen=True, tag=True):
    number: int


ToZygote: TypeAlias = Import | Fork | Kill


class Ready(msgspec.Struct, frozen=True, tag=True):
    """It has imported torch: what it is asked for happens at once."""


class Forked(msgspec.Struct, frozen=True, tag=True):
    number: int
    pid: int


FromZygote: TypeAlias = Ready | Forked


class Given(NamedTuple):
    """Descriptors that come with a request."""

    ended: int  # of the zygote: it writes the exit code there
    output: int
    errors: int
    letter: int  # a pickled process.Letter
    reading: int
    writing: int
    segment: int
    parcel: int
    words: int  # memory for the last line that it writes to stderr


class Child(NamedTuple):
    number: int
    pid: int
    ended: int


class Zygote:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._selector = selectors.DefaultSelector()
        self._selector.register(connection, selectors.EVENT_READ)
        self._children: dict[int, Child] = {}  # by their pidfd
        self._decode = msgspec.json.Decoder(ToZygote).decode

    def serve(self) -> Given | None:
        """Do what the launcher asks for, until it is gone. In a process that was forked: what that was given."""
        self.tell(Ready())
        while True:
            for key, _ in self._selector.select():
                if key.fd in self._children:
                    self._bury(key.fd)
                    continue
                try:
                    content, descriptors, _, _ = socket.recv_fds(self._connection, MOST_BYTES, MOST_DESCRIPTORS)
                except ConnectionResetError:  # it went without having read all that it was told
                    return None
                if not content:
                    return None
                message = self._decode(content)
                if isinstance(message, Fork):
                    if (given := self._fork(message.number, Given(*descriptors))) is not None:
                        return given
                elif isinstance(message, Kill):
                    self._kill(message.number)
                else:
                    _import(message.modules)

    def tell(self, message: FromZygote) -> None:
        with contextlib.suppress(BrokenPipeError):  # the launcher is gone; the next look at its messages says so
            self._connection.send(msgspec.json.encode(message))

    def _fork(self, number: int, given: Given) -> Given | None:
        zygote = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy's threads survive a fork, but Python warns of any
            pid = os.fork()
        if pid == 0:
            die_with(zygote)
            self._let_go()
            os.close(given.ended)
            return given
        for descriptor in given[1:]:
            os.close(descriptor)
        descriptor = os.pidfd_open(pid)
        self._children[descriptor] = Child(number, pid, given.ended)
        self._selector.register(descriptor, selectors.EVENT_READ)
        self.tell(Forked(number, pid))
        return None

    def _let_go(self) -> None:
        """In a new process: of all that is the zygote's."""
        self._selector.close()
        self._connection.close()
        for descriptor, child in self._children.items():
            os.close(descriptor)
            os.close(child.ended)

    def _bury(self, descriptor: int) -> None:
        child = self._children.pop(descriptor)
        self._selector.unregister(descriptor)
        os.close(descriptor)
        code = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
        with contextlib.suppress(BrokenPipeError):  # nobody wants to know any more
            os.write(child.ended, str(code).encode())
        os.close(child.ended)

    def _kill(self, number: int) -> None:
        for child in self._children.values():
            if child.number == number:
                os.kill(child.pid, signal.SIGKILL)  # it was not waited for, so the number is still its own


def _import(modules: list[str]) -> None:
    for module in modules:
        with contextlib.suppress(Exception, SystemExit):  # whoever needs it will see the error
            importlib.import_module(module)
    gc.collect()
    gc.freeze()  # or the collector of every process would write to the pages that they all share


def main(descriptor: int, launcher: int) -> None:
    """The main function of the zygote, and of every process that is forked from it."""
    die_with(launcher)
    for number in (signal.SIGINT, signal.SIGTERM):  # the launcher answers them, for all of its processes
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    show_as(TITLE, TITLE)
    from paceline.runtimes.local.process import run  # imports torch: only now
    from paceline.training.memory_use import keep_freed_memory

    keep_freed_memory()
    _import([])
    with socket.socket(fileno=descriptor) as connection:
        given = Zygote(connection).serve()
    if given is None:
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _run_to_the_end(lambda: run(given))


def _run_to_the_end(act: Callable[[], None]) -> None:
    """As a process of its own would: wait for threads, do what was left for the exit, write what is buffered. But do
    not take the interpreter apart, which would make copies of all the pages that are shared."""
    code = 0
    try:
        act()
    except SystemExit as problem:
        code = problem.code if isinstance(problem.code, int) else int(problem.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    for end in (threading._shutdown, atexit._run_exitfuncs, sys.stdout.flush, sys.stderr.flush):  # type: ignore[attr-defined]
        with contextlib.suppress(Exception):
            end()
    os._exit(code)

"""The launcher's side of the zygote: asks it for processes, and never waits for it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence

import msgspec

from paceline.core.errors import PacelineError
from paceline.runtimes.local.zygote import Fork, FromZygote, Import, Kill, Ready, ToZygote
from paceline.runtimes.serving.failures import cause_of

AT_ONCE = 8  # requests without an answer: Linux limits the descriptors that are on their way
COMMAND = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[3]);"
    " from paceline.runtimes.local.zygote import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)


class ZygoteDiedError(PacelineError):
    """The process that workers are forked from has ended, and all of them with it."""


class NewProcess:
    """A process that the zygote was asked for. `ended` can be read when it has ended."""

    def __init__(self, number: int, zygote: ZygoteHandle) -> None:
        self.number = number
        self.pid: int | None = None  # until the zygote has forked it
        self.ended, self.tell_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._zygote = zygote
        self._code: int | None = None

    @property
    def exitcode(self) -> int | None:
        """As of multiprocessing: negative is a signal. None: it goes on. Where the zygote died, so did this one."""
        if self._code is None:
            try:
                told = os.read(self.ended, 16)
            except BlockingIOError:
                return None
            self._code = int(told) if told else -signal.SIGKILL
        return self._code

    @property
    def cause(self) -> str:
        return cause_of(self.exitcode)

    def kill(self) -> None:
        self._zygote.kill(self)

    def join(self, timeout: float | None = None) -> None:
        if self.exitcode is None:
            waiting = select.poll()
            waiting.register(self.ended, select.POLLIN)
            waiting.poll(None if timeout is None else timeout * 1000)

    def close(self) -> None:
        os.close(self.ended)


class ZygoteHandle:
    def __init__(self) -> None:
        self._connection, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = json.dumps([entry or os.getcwd() for entry in sys.path])
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        command = [sys.executable, *flags, "-c", COMMAND, str(other.fileno()), str(os.getpid()), path]
        with other, without_interrupts():
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[other.fileno()])
        self._connection.setblocking(False)
        self.end = weakref.finalize(self, _end, self._process, self._connection, os.getpid())
        self._owner = os.getpid()
        self._decode = msgspec.json.Decoder(FromZygote).decode
        self.is_ready = False
        self._numbers = 0
        self._waiting: deque[tuple[NewProcess, Sequence[int]]] = deque()
        self._asked: dict[int, NewProcess] = {}  # that it did not answer yet
        self._imported: set[str] = set()
        self._wanted: list[str] = []

    def fileno(self) -> int:
        return self._connection.fileno()

    @property
    def is_usable(self) -> bool:
        """In the process that started it, while it lives."""
        return self._owner == os.getpid() and self.end.alive and self._process.poll() is None

    def want(self, modules: Sequence[str]) -> None:
        """Processes that are asked for from now on shall find these imported."""
        self._wanted += [module for module in modules if module not in self._imported]
        self._imported.update(modules)

    def start(self, descriptors: Sequence[int]) -> NewProcess:
        """A new process, which begins when the zygote has time. `descriptors`: those of zygote.Given after `ended`; the
        caller may close them at once."""
        self._numbers += 1
        new = NewProcess(self._numbers, self)
        self._waiting.append((new, [new.tell_end, *(os.dup(descriptor) for descriptor in descriptors)]))
        self._send_what_waits()
        return new

    def hear(self) -> None:
        """Take in what the zygote says. Does not wait for it."""
        with contextlib.suppress(BlockingIOError):
            while content := self._received():
                message = self._decode(content)
                if isinstance(message, Ready):
                    self.is_ready = True
                elif (new := self._asked.pop(message.number, None)) is not None:
                    new.pid = message.pid
            raise ZygoteDiedError(self._last_words())
        self._send_what_waits()

    def kill(self, new: NewProcess) -> None:
        for entry in list(self._waiting):
            if entry[0] is new:
                self._waiting.remove(entry)
                _close(entry[1])
                return
        with contextlib.suppress(OSError):  # it is gone, or has too much to read: then its end ends all
            self._send(Kill(new.number))

    def _received(self) -> bytes:
        try:
            return self._connection.recv(4096)
        except ConnectionResetError:
            return b""

    def _send_what_waits(self) -> None:
        if not self.is_ready:
            return
        try:
            if self._wanted and self._waiting:
                self._send(Import(self._wanted))
                self._wanted = []
            while self._waiting and len(self._asked) < AT_ONCE:
                new, descriptors = self._waiting[0]
                self._send(Fork(new.number), descriptors)
                self._waiting.popleft()
                _close(descriptors)
                self._asked[new.number] = new
        except BlockingIOError:
            return  # when it answers, the rest is sent
        except OSError:
            raise ZygoteDiedError(self._last_words()) from None

    def _send(self, message: ToZygote, descriptors: Sequence[int] = ()) -> None:
        socket.send_fds(self._connection, [msgspec.json.encode(message)], descriptors)

    def _last_words(self) -> str:
        for _, descriptors in self._waiting:
            _close(descriptors)
        self._waiting.clear()
        code = self._process.wait()
        how = f"ended with exit code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
        hint = "; what it said stands above" if code > 0 else " (out of memory?)" if code == -signal.SIGKILL else ""
        return f"the process that workers are forked from {how}{hint}: no worker can run"


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _end(process: subprocess.Popen[bytes], connection: socket.socket, owner: int) -> None:
    if os.getpid() == owner:  # not a process that the launcher was forked into
        connection.close()
        process.kill()
        process.wait()


@contextlib.contextmanager
def without_interrupts() -> Iterator[None]:
    """A new process inherits this: a Ctrl-C goes to the whole terminal, and only the launcher shall answer it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_kept = threading.local()  # a process dies with the thread that started it, so every thread has its own


def zygote() -> ZygoteHandle:
    """The one of this thread: it serves all runs that the thread launches, so only the first waits for its imports."""
    found: ZygoteHandle | None = getattr(_kept, "zygote", None)
    if found is None or not found.is_usable:
        found = _kept.zygote = ZygoteHandle()
    return found

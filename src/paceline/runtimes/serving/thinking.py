"""A process of its own that finds the answers to what the policy asks: nobody waits for it, and it waits for nobody.

It is started with the first question, and ends when its pipe does. One that dies is replaced and asked again; if that
does not help, the answer is that nobody can tell, so that no policy waits for ever.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Sequence

from paceline.core.messages import Answered, Ask
from paceline.core.questions import Answer
from paceline.runtimes.serving.channel import Channel, ClosedError
from paceline.runtimes.serving.loop import Loop

MOST_THINKERS = 3  # that die over one question


class Thinking:
    def __init__(self, loop: Loop, command: Callable[[], Sequence[str]] | None) -> None:
        """`command`: of a process that reads an `Ask` per line and writes an `Answered` per line; None: nobody can."""
        self._loop = loop
        self._command = command
        self._deliver: Callable[[Answered], None] = lambda answered: None
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel[Answered, Ask] | None = None
        self._asked: Ask | None = None  # the latest question, while there is no answer
        self._started = 0  # processes since the last answer

    def attach(self, deliver: Callable[[Answered], None]) -> None:
        self._deliver = deliver

    def ask(self, asked: Ask) -> Answered | None:
        """None: the answer comes later."""
        if self._command is None:
            return Answered(asked.number, Answer())
        self._asked = asked
        self._tell()
        return None

    def _tell(self) -> None:
        assert self._asked is not None and self._command is not None
        if self._channel is None:
            self._channel = self._start(self._command())
            self._loop.watch(self._channel, self._receive)
        self._loop.send(self._channel, self._asked)

    def _start(self, command: Sequence[str]) -> Channel[Answered, Ask]:
        self._started += 1
        # In a session of its own: Ctrl-C is not for it.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        reading, writing = os.dup(self._process.stdout.fileno()), os.dup(self._process.stdin.fileno())
        self._process.stdout.close()
        self._process.stdin.close()
        return Channel(reading, writing, Answered, patient=False)

    def _receive(self) -> None:
        assert self._channel is not None
        try:
            answers = self._channel.received()
        except ClosedError:
            self._replace()
            return
        for answered in answers:
            if self._asked is not None and answered.number == self._asked.number:
                self._asked, self._started = None, 0
                self._deliver(answered)

    def _replace(self) -> None:
        """It died, for which training needs no reason."""
        self.close()
        if self._asked is not None and self._started < MOST_THINKERS:
            self._tell()
        elif self._asked is not None:
            number, self._asked, self._started = self._asked.number, None, 0
            self._deliver(Answered(number, Answer()))

    def close(self) -> None:
        """Whatever it thinks about is not wanted any more."""
        if self._channel is not None and self._process is not None:
            self._loop.forget_channel(self._channel)
            self._channel.close()
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()
            self._channel = self._process = None

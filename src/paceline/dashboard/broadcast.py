"""One look a second for all who watch the same thing, and none while nobody does.

Whoever comes is told everything there is, and from then on what is new. Who cannot keep up is told everything again.
Whoever hears nothing for long may take the connection for lost: there always is a sign of life.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Protocol

import msgspec

EVERY = 1.0  # seconds
SHARE = 0.2  # of a core that looking may take: where looks take long, so do the rests between them
LATEST = 0.2  # weight of the latest look in what one usually takes: now and then one takes longer
REST = 0.1  # part of the time between two looks that there is between them in any case
BEHIND = 8  # messages that somebody may be behind
SIGN_OF_LIFE = 15.0  # seconds without news, after which an empty message says that there is somebody here
UNEXPECTED = "paceline could not read this any further; where `paceline watch` runs, it says why"

Message = dict[str, Any]


class Source(Protocol):
    def look(self) -> Message | None:
        """What is new since the last time; None: nothing."""
        ...

    def whole(self) -> Message:
        """All that was told so far, as one message. After the first look."""
        ...


class Broadcast:
    def __init__(self, source: Source, every: float = EVERY) -> None:
        self._source, self._every = source, every
        self._watching: set[asyncio.Queue[bytes | None]] = set()
        self._alone = asyncio.Lock()  # one look at a time, and nobody comes in the middle of it
        self._reading = threading.Lock()  # also where whoever waited for a look has gone away
        self._looking: asyncio.Task[None] | None = None
        self._said = ""  # of the latest mistake
        self._usual = 0.0  # seconds of a core that a look takes
        self._over = asyncio.Event()

    @property
    def is_watched(self) -> bool:
        return bool(self._watching) or self._alone.locked()

    async def watch(self) -> AsyncIterator[bytes]:
        """Lines of a stream of events, until whoever asked goes away."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(BEHIND)
        entering = asyncio.ensure_future(self._enter(queue))
        try:
            yield b"retry: 1000\n\n"
            while (news := await self._unless_over(_or_a_sign_of_life(entering))) == NOTHING_NEW:
                yield news
            while news is not None:
                yield news
                news = await self._unless_over(self._next(queue))
        finally:
            entering.cancel()
            self._watching.discard(queue)

    def end(self) -> None:
        """No stream goes on: the server ends, and waits for them."""
        self._over.set()

    async def _unless_over(self, waiting: Coroutine[None, None, bytes]) -> bytes | None:
        mine, over = asyncio.ensure_future(waiting), asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait((mine, over), return_when=asyncio.FIRST_COMPLETED)
            return None if over.done() else mine.result()
        finally:
            mine.cancel()
            over.cancel()

    async def _next(self, queue: asyncio.Queue[bytes | None]) -> bytes:
        try:
            news = await asyncio.wait_for(queue.get(), SIGN_OF_LIFE)
        except asyncio.TimeoutError:
            return NOTHING_NEW
        return await self._enter(queue) if news is None else news

    async def _enter(self, queue: asyncio.Queue[bytes | None]) -> bytes:
        async with self._alone:
            # What was seen last is as old as the last one who watched.
            whole = await _apart(self._whole if self._watching else self._whole_by_now)
            self._watching.add(queue)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_again_and_again())
        return whole

    async def _look_again_and_again(self) -> None:
        rest = self._every
        while True:
            await asyncio.sleep(rest)
            if not self._watching:
                self._looking = None
                return
            begun = time.monotonic()
            async with self._alone:
                news = await _apart(self._look_again)
                if news:
                    self._tell(news)
            took = time.monotonic() - begun
            rest = max(self._every - took, REST * self._every, self._usual * (1 / SHARE - 1))

    # -- in a thread --

    def _look(self) -> bytes:
        return self._read(self._source.look)

    def _look_again(self) -> bytes:
        begun = time.thread_time()  # by the clock on the wall a server that was halted would have been at work
        news = self._look()
        self._usual += LATEST * (time.thread_time() - begun - self._usual)
        return news

    def _whole(self) -> bytes:
        return self._read(self._source.whole)

    def _whole_by_now(self) -> bytes:
        news = self._look()
        return self._whole() if self._said == "" else news

    def _read(self, read: Callable[[], Message | None]) -> bytes:
        """A mistake of ours must not end the stream without a word: pages would wait for ever."""
        try:
            with self._reading:
                message = read()
            found = b"" if message is None else _event(message)
            self._said = ""
        except Exception:
            said = traceback.format_exc()
            if said != self._said:
                print(said, file=sys.stderr, end="", flush=True)
            self._said, found = said, _event({"problem": UNEXPECTED})
        return found

    def _tell(self, news: bytes) -> None:
        for queue in [*self._watching]:
            if queue.full():
                self._watching.discard(queue)  # it enters again
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(None)
            else:
                queue.put_nowait(news)


async def _or_a_sign_of_life(waiting: asyncio.Future[bytes]) -> bytes:
    """What is waited for, which goes on meanwhile; or an empty message, where that takes long."""
    done, _ = await asyncio.wait({waiting}, timeout=SIGN_OF_LIFE)
    return waiting.result() if done else NOTHING_NEW


async def _apart(work: Callable[[], bytes]) -> bytes:
    """In a thread that nobody waits for when the program is to end: a long run is not read in a moment."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[bytes] = loop.create_future()

    def finish() -> None:
        found = work()
        with contextlib.suppress(RuntimeError):  # the loop has come to its end
            loop.call_soon_threadsafe(lambda: None if done.done() else done.set_result(found))

    threading.Thread(target=finish, daemon=True).start()
    return await done


def _event(message: Message) -> bytes:
    return b"data: " + msgspec.json.encode(message) + b"\n\n"


NOTHING_NEW = _event({})

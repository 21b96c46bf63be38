"""Who may speak with a run: those that know its secret. What is said before the first message, and nothing else.

    caller   HELLO   magic, role, index, a number that is used once, and a code over all of it
    host     WELCOME another such number, and a code over both
    caller   CONFIRM a code over both, the other way round

A code is an HMAC with the run's secret. The host answers nothing before it has seen a good one, so a stranger learns
not even what listens here. A HELLO that was recorded and is sent again has a number that was seen before, and gets no
answer either; whoever cannot answer the WELCOME is not let in. Both sides only turn bytes into bytes.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable
from typing import NamedTuple

MAGIC = b"paceline\x01"
CODE = 32  # bytes of a code, and of a number that is used once
HELLO = struct.Struct(f"<{len(MAGIC)}scI{CODE}s{CODE}s")
WELCOME = struct.Struct(f"<{CODE}s{CODE}s")
LONGEST = HELLO.size + CODE  # all that a caller may say before it is let in


class RefusedError(Exception):
    """The other side does not know the secret, or is not wanted."""


class Caller(NamedTuple):
    """Who calls: a role of one letter, and its number among those of this role."""

    role: bytes
    number: int


def _code(secret: bytes, *parts: bytes) -> bytes:
    return hmac.digest(secret, b"".join(parts), "sha256")


class CallerSide:
    """`nonce`: fresh random bytes. Feed it what arrives, and send what it returns; `done` when it may begin."""

    def __init__(self, secret: bytes, caller: Caller, nonce: bytes) -> None:
        self._secret, self._nonce = secret, nonce
        self._heard = b""
        head = MAGIC + caller.role + struct.pack("<I", caller.number) + nonce
        self.hello = head + _code(secret, b"hello", head)
        self.done = False

    @property
    def missing(self) -> int:
        """Bytes that the other side has still to say; not one more may be read."""
        return WELCOME.size - len(self._heard)

    def feed(self, heard: bytes) -> bytes:
        self._heard += heard
        if self.missing > 0:
            return b""
        theirs, code = WELCOME.unpack(self._heard)
        if not hmac.compare_digest(code, _code(self._secret, b"welcome", self._nonce, theirs)):
            raise RefusedError("whoever answers there does not know the secret of this run")
        self.done = True
        return _code(self._secret, b"confirm", theirs, self._nonce)


class HostSide:
    """`seen`: the numbers of all callers of this run so far; `wanted`: whether a caller is expected."""

    def __init__(self, secret: bytes, nonce: bytes, seen: set[bytes], wanted: Callable[[Caller], bool]) -> None:
        self._secret, self._nonce, self._seen, self._wanted = secret, nonce, seen, wanted
        self._heard = b""
        self._confirmation = b""  # that is to come
        self.caller: Caller | None = None
        self.done = False

    @property
    def missing(self) -> int:
        expected = HELLO.size if not self._confirmation else CODE
        return expected - len(self._heard)

    def feed(self, heard: bytes) -> bytes:
        self._heard += heard
        if self.missing > 0:
            return b""
        said, self._heard = self._heard, b""
        if self._confirmation:
            if not hmac.compare_digest(said, self._confirmation):
                raise RefusedError("wrong confirmation")
            self.done = True
            return b""
        return self._welcome(said)

    def _welcome(self, said: bytes) -> bytes:
        magic, role, index, theirs, code = HELLO.unpack(said)
        good = hmac.compare_digest(code, _code(self._secret, b"hello", said[:-CODE]))
        caller = Caller(role, index)
        if not good or magic != MAGIC or theirs in self._seen or not self._wanted(caller):
            raise RefusedError("wrong hello")
        self._seen.add(theirs)
        self.caller = caller
        self._confirmation = _code(self._secret, b"confirm", self._nonce, theirs)
        return self._nonce + _code(self._secret, b"welcome", theirs, self._nonce)

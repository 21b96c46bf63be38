"""Processes that end when the one that they belong to ends, however that happens."""

from __future__ import annotations

import ctypes
import os
import signal
import threading

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """From now on this process is killed when its parent ends; at once, if that has happened already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def let_children_die_with_this() -> None:
    """A process that was forked, as those of a loader are, would live on for a while after a `kill -9` of this one."""
    forking: list[int] = []

    def before() -> None:
        # The signal comes when the thread ends that forked: only the main thread lasts as long as the process.
        forking[:] = [os.getpid()] if threading.current_thread() is threading.main_thread() else []

    def after_in_child() -> None:
        if forking:
            die_with(forking[0])

    os.register_at_fork(before=before, after_in_child=after_in_child)

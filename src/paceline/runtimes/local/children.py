"""What a worker's process does so that processes of its own, such as those of a loader, are as in a plain script."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import threading

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """From now on this process is killed when its parent ends; at once, if that has happened already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def let_children_be_as_usual() -> None:
    """They start in the way of the platform, and die with this process.

    multiprocessing makes a process start others as it was started itself; what this one was started by is our affair,
    and a loader would take seconds where a plain script's takes none. A process that was forked would live on for a
    while after a `kill -9` of this one.
    """
    multiprocessing.set_start_method(multiprocessing.get_all_start_methods()[0], force=True)
    forking: list[int] = []

    def before() -> None:
        # The signal comes when the thread ends that forked: only the main thread lasts as long as the process.
        forking[:] = [os.getpid()] if threading.current_thread() is threading.main_thread() else []

    def after_in_child() -> None:
        if forking:
            die_with(forking[0])

    os.register_at_fork(before=before, after_in_child=after_in_child)

"""Processes of this machine, as whoever torments them sees and signals them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for thread in sorted(Path(f"/proc/{pid}/task").iterdir()):
            found += map(int, (thread / "children").read_text().split())
    return found


def tree_of(pid: int) -> list[int]:
    """It, and all that it started."""
    found = [pid]
    for process in found:
        found += children_of(process)
    return found


def title_of(pid: int) -> str:
    """What `ps` shows; empty: it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode(errors="replace")
    return ""


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]
    except OSError:
        return False
    return state not in ("Z", "X")


def used_by(pid: int) -> str:
    """The names of all files that it has open or mapped, among other words; empty: it has ended, or is not ours."""
    used = ""
    with suppress(OSError):
        used = Path(f"/proc/{pid}/maps").read_text()
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # it was just closed
                used += os.readlink(entry) + "\n"
    return used


def listens_to(pid: int, number: int) -> bool:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def send_signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)

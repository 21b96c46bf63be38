"""Runs one peer in a process of its own, and leaves nothing of it behind.

This process adopts whatever its children leave (Linux: PR_SET_CHILD_SUBREAPER). So all that still runs after a peer
has ended is a descendant, and is ended by its id.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from peer.measuring import Row, Settings

SET_CHILD_SUBREAPER = 36
GRACE = 5.0  # seconds for what a peer leaves to end by itself
BENCHMARKS = Path(__file__).parents[1]


def adopt_orphans() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run_peer(name: str, module: str, function: str, settings: Settings, limit: float) -> list[Row]:
    """The rows of this peer; the last one tells why, if it did not come to its end."""
    with tempfile.TemporaryDirectory(prefix="peer-") as directory:
        paths = [Path(directory, file) for file in ("settings", "rows", "output")]
        settings.write(paths[0])
        paths[1].touch()
        command = [sys.executable, "-m", "peer", module, function, str(paths[0]), str(paths[1])]
        with paths[2].open("wb") as output:
            peer = subprocess.Popen(
                command, env=_environment(directory), stdout=output, stderr=output, start_new_session=True
            )
            problem = None
            try:
                if peer.wait(limit):
                    problem = f"exit code {peer.returncode}: {_last_line(paths[2])}"
            except subprocess.TimeoutExpired:
                problem = f"took longer than {limit:g} s"
            finally:
                peer.kill()
                peer.wait()
                end_descendants(0.0 if problem else GRACE)
        rows = [Row(**json.loads(line)) for line in paths[1].read_text().splitlines()]
    return [*rows, Row(name, 0, None, problem)] if problem else rows


def _environment(directory: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(BENCHMARKS), os.environ.get("PYTHONPATH"))))
    return {
        **os.environ,
        "PYTHONPATH": path,
        "GLOO_SOCKET_IFNAME": "lo",
        "RAY_TMPDIR": directory,  # other clusters on this host are not to be found, and do not find this one
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
    }


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it wrote nothing"


def end_descendants(grace: float) -> None:
    until = time.monotonic() + grace
    while left := _descendants():
        if time.monotonic() > until:
            for pid in left:
                _kill(pid)
        time.sleep(0.02)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _descendants() -> list[int]:
    """All living descendants of this process, after those that have ended were waited for."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return []
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # it has ended meanwhile
    found, ours = [], {os.getpid()}
    while new := {pid for pid, parent in parents.items() if parent in ours}:
        found.extend(new)
        ours = new
    return found

"""MXNet's KVStore: a scheduler, one server and the workers, started by hand in MXNet's own environment."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path

from peer.measuring import Row, Settings, rows_of

PACKAGES = ("mxnet==1.9.1", "numpy==1.23.5")
KINDS: dict[str, tuple[str, dict[str, str]]] = {
    "MXNet dist_sync": ("dist_sync", {}),
    "MXNet dist_async": ("dist_async", {}),
    "MXNet dist_async, unix sockets": ("dist_async", {"DMLC_LOCAL": "1"}),
}
LIMIT = 120.0  # seconds for a process to end; MXNet waits for ever for a process that died


def make_environment(directory: Path) -> str:
    """A venv with MXNet's last release. NumPy 1.23.5 has wheels up to Python 3.11; a newer NumPy breaks its import."""
    supported = sys.version_info < (3, 12)
    base = sys.executable if supported else shutil.which("python3.11")
    if base is None:
        raise RuntimeError("MXNet 1.9.1 needs a Python of at most 3.11, and there is no python3.11 here")
    python = directory / "bin" / "python"
    if not python.exists():
        subprocess.run([base, "-m", "venv", str(directory)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    return str(python.absolute())


def try_environment(python: str) -> None:
    tried = subprocess.run([python, "-c", "import mxnet"], capture_output=True, text=True, timeout=LIMIT, check=False)
    if tried.returncode:
        lines = tried.stderr.strip().splitlines() or ["no error was told"]
        raise RuntimeError(f"{python} cannot import it ({lines[-1]})")


def measure(settings: Settings) -> Iterator[Row]:
    for name, (kind, environment) in KINDS.items():
        run = partial(_group, name, kind, environment, settings)
        yield from rows_of(run, [(name, size) for size in settings.sizes], settings.workers)


def _group(name: str, kind: str, environment: Mapping[str, str], settings: Settings, into: str) -> None:
    assert settings.mxnet_python is not None
    common = {
        **os.environ,
        **environment,
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(_free_port()),
        "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": str(settings.workers),
    }
    serve = [settings.mxnet_python, "-c", "import mxnet"]  # the role makes the import a server that ends by itself
    work = [settings.mxnet_python, "-m", "peer.mxnet_worker", name, kind, into, json.dumps(asdict(settings))]
    roles = [("scheduler", serve), ("server", serve), *[("worker", work)] * settings.workers]
    processes = [subprocess.Popen(command, env={**common, "DMLC_ROLE": role}) for role, command in roles]
    try:
        for process in reversed(processes):
            if process.wait(LIMIT):
                raise RuntimeError(f"a process of MXNet ended with exit code {process.returncode}")
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

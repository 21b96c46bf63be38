"""MXNet's KVStore: a scheduler, one server and the workers, started by hand in MXNet's own environment."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path

from peer.measuring import Row, Settings, attempt, result

PACKAGES = ("mxnet==1.9.1", "numpy==1.23.5")
KINDS: dict[str, tuple[str, dict[str, str]]] = {
    "MXNet dist_sync": ("dist_sync", {}),
    "MXNet dist_async": ("dist_async", {}),
    "MXNet dist_async, unix sockets": ("dist_async", {"DMLC_LOCAL": "1"}),
}
LIMIT = 60.0  # seconds for one measurement; MXNet waits for ever for a process that died


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


def measure(settings: Settings) -> Iterator[Row]:
    for size in settings.sizes:
        for name, (kind, environment) in KINDS.items():
            yield attempt(name, size, partial(_group, kind, environment, size, settings))


def _group(kind: str, environment: Mapping[str, str], size: int, settings: Settings) -> float:
    assert settings.mxnet_python is not None
    with socket.socket() as probe, tempfile.TemporaryDirectory() as into:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        common = {
            **os.environ,
            **environment,
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(port),
            "DMLC_NODE_HOST": "127.0.0.1",
            "DMLC_NUM_SERVER": "1",
            "DMLC_NUM_WORKER": str(settings.workers),
        }
        serve = [settings.mxnet_python, "-c", "import mxnet"]  # the role makes the import a server that ends by itself
        work = [settings.mxnet_python, "-m", "peer.mxnet_worker", kind, str(size), into, json.dumps(asdict(settings))]
        roles = [("scheduler", serve), ("server", serve), *[("worker", work)] * settings.workers]
        processes = [subprocess.Popen(command, env={**common, "DMLC_ROLE": role}) for role, command in roles]
        try:
            for process in processes:
                process.wait(LIMIT)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return result(into, settings.workers)

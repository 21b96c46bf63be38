"""The connection to a Ray cluster: made if there is none yet, and then ended with the run."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from paceline.core.errors import ConfigurationError
from paceline.runtimes.ray_cluster.options import RayCluster

SUPPORTED = (2, 40)  # the oldest release of Ray
PATIENCE = 5.0  # seconds for a cluster to answer


def imported_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ConfigurationError("a Ray cluster needs ray: pip install 'paceline[ray]'") from None
    found = tuple(int(part) for part in version("ray").split(".")[:2])
    if found < SUPPORTED:
        raise ConfigurationError(
            f"ray {version('ray')} is too old: paceline needs {'.'.join(map(str, SUPPORTED))} or later"
        )
    return ray


@contextlib.contextmanager
def connected(cluster: RayCluster, *, quiet: bool = False) -> Iterator[Any]:
    """The module `ray`, connected. A connection that was there already is used, and stays. `quiet`: what actors and
    nodes say is not shown here."""
    ray = imported_ray()
    if ray.is_initialized():
        yield ray
        return
    with _notices_on_stderr():
        _connect(ray, cluster, quiet)
        try:
            yield ray
        finally:
            ray.shutdown()


def _connect(ray: Any, cluster: RayCluster, quiet: bool) -> None:
    try:
        _check_that_it_answers(cluster.address)
        with warnings.catch_warnings(), _own_signals():
            warnings.simplefilter("ignore")  # of Ray's own about versions to come
            ray.init(
                address=cluster.address,
                runtime_env=cluster.runtime_env,
                logging_level="warning",
                log_to_driver=not quiet,
                include_dashboard=False if cluster.address == "local" else None,
            )
    except (OSError, ValueError, RuntimeError) as problem:
        said = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
        raise ConfigurationError(
            f"no Ray cluster at {cluster.address!r}: {said}; `ray start --head` begins one, and address='local' one"
            " that lasts as long as the run"
        ) from None


@contextlib.contextmanager
def _notices_on_stderr() -> Iterator[None]:
    """Ray tells every program on a cluster of any node that dies, and prints it where a program's own output goes."""
    from ray._private import worker  # there is no public way

    printed = getattr(worker, "print_to_stdstream", None)
    if printed is None:
        yield
        return

    def print_it(data: dict[str, Any], *arguments: Any, **options: Any) -> None:
        printed({**data, "is_err": True} if data.get("pid") == "raylet" else data, *arguments, **options)

    worker.print_to_stdstream = print_it
    try:
        yield
    finally:
        worker.print_to_stdstream = printed


def _check_that_it_answers(address: str) -> None:
    """Where nothing listens Ray itself would try again for many minutes."""
    host, colon, port = address.rpartition(":")
    if "://" in address or not colon or not port.isdecimal():
        return  # Ray finds it, or says at once why not
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()
    except (OSError, OverflowError) as problem:
        raise ConnectionError(f"nothing answers there ({problem})") from None


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Ray exits at a polite kill, and would leave nobody the time to write a checkpoint."""
    here = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM) if here else None
    try:
        yield
    finally:
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)


def own_address(ray: Any) -> str:
    """Of this node, as the others reach it."""
    return str(ray.util.get_node_ip_address())


def draining_nodes() -> set[str]:
    """The ids of nodes that will be gone soon, where this release of Ray says so."""
    from ray._private.state import state  # there is no public way

    ask = getattr(state, "get_draining_nodes", None)
    return set(ask()) if ask is not None else set()

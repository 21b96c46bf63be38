"""Fetches the published files of a data set into a folder, where a file of the right name is the right file.

A file is written aside and moved when its SHA-256 is right: what is interrupted, cut off or changed on its way leaves
nothing that looks whole, and it does not matter who answers at an address. Nothing is unpacked here.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Generator
from contextlib import closing
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from paceline.core.errors import ConfigurationError

TIMEOUT = 30.0  # seconds without a single byte
PIECE = 10_000_000  # bytes between two reports


class File(NamedTuple):
    name: str
    size: int
    sha256: str


class Source(NamedTuple):
    """Files as they were published, and the folders of the network that have them all, to be tried in this order."""

    folders: tuple[str, ...]
    files: tuple[File, ...]
    instead: str  # what helps where there is no network


FASHION_MNIST_FILES = (
    File("train-images-idx3-ubyte.gz", 26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
    File("train-labels-idx1-ubyte.gz", 29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
    File("t10k-images-idx3-ubyte.gz", 4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
    File("t10k-labels-idx1-ubyte.gz", 5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
)
CIFAR10_ARCHIVE = "cifar-10-binary.tar.gz"  # not the Python version, which is pickled
SOURCES: dict[str, Source] = {
    "fashion-mnist": Source(
        (
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",  # its authors
            "https://storage.googleapis.com/tensorflow/tf-keras-datasets",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        ),
        FASHION_MNIST_FILES,
        "apt-get install dataset-fashion-mnist, or give the folder that has it with --data PATH",
    ),
    "cifar10": Source(
        (
            "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10",  # a copy: its authors' are slow
            "https://cave.cs.toronto.edu/kriz",
            "https://www.cs.toronto.edu/~kriz",
        ),
        (File(CIFAR10_ARCHIVE, 170_052_171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),),
        f"fetch {CIFAR10_ARCHIVE} in another way and give it with --data PATH",
    ),
}


def cache_folder(name: str) -> Path:
    """Where a set is put, and looked for, if nobody says where."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():  # the XDG specification: a relative path is to be ignored
        try:
            cache = Path.home() / ".cache"
        except RuntimeError:
            raise ConfigurationError(f"{name}: you have no home folder; set XDG_CACHE_HOME to a folder") from None
    return cache / "paceline" / name


def download(name: str, into: Path | None = None, tell: Callable[[str], None] = print) -> Path:
    """The folder with the whole set in it. What is there already is checked and not fetched again."""
    source = SOURCES.get(name)
    if source is None:
        raise ConfigurationError(f"{name!r} cannot be downloaded; these can: {', '.join(SOURCES)}")
    folder = cache_folder(name) if into is None else into
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in source.files:
            path = folder / file.name
            if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == file.sha256:
                tell(f"{path}: is there already")
            else:
                _fetch(file, source, folder, tell)
    except BrokenPipeError:  # of `tell`, and no fault of the folder
        raise
    except OSError as problem:
        raise ConfigurationError(f"{folder} cannot hold {name}: {problem.strerror}; try another, --into DIR") from None
    return folder


def _fetch(file: File, source: Source, folder: Path, tell: Callable[[str], None]) -> None:
    """From the first address that has it. An OSError is the folder's; those of the network stay in here."""
    problems: list[str] = []
    for address in (f"{location}/{file.name}" for location in source.folders):
        tell(f"{address}: {file.size:,} bytes")
        # Within the folder, so that moving is renaming; not a temporary file, which nobody else could read.
        with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as aside:
            try:
                _save(address, file, Path(aside, file.name), tell)
                os.replace(Path(aside, file.name), folder / file.name)
                return
            except _UselessAddressError as problem:
                problems.append(f"{address}: {problem}")
                tell(problems[-1])
    raise ConfigurationError(f"{file.name} could not be downloaded ({'; '.join(problems)}): {source.instead}")


class _UselessAddressError(Exception):
    """The file did not come from this address; it may come from another."""


def _save(address: str, file: File, path: Path, tell: Callable[[str], None]) -> None:
    digest, size = hashlib.sha256(), 0
    with closing(_pieces(address, file.size)) as pieces, path.open("wb") as contents:
        for piece in pieces:
            contents.write(piece)
            digest.update(piece)
            size += len(piece)
            if len(piece) == PIECE:
                tell(f"{file.name}: {size:,} of {file.size:,} bytes")
    if size != file.size:
        raise _UselessAddressError(f"{size:,} bytes came instead of {file.size:,}")
    if digest.hexdigest() != file.sha256:
        raise _UselessAddressError(f"another file came, with the SHA-256 {digest.hexdigest()}")


def _pieces(address: str, size: int) -> Generator[bytes, None, None]:
    try:
        with urlopen(Request(address, headers={"User-Agent": "paceline"}), timeout=TIMEOUT) as response:
            if response.length not in (None, size):
                raise _UselessAddressError(f"it has {response.length:,} bytes instead of {size:,}")
            for _ in range(size // PIECE + 1):  # at least a byte more than `size`, and not all of an endless answer
                yield response.read(PIECE)
    except HTTPError as problem:
        problem.close()  # it is an open response
        raise _UselessAddressError(f"{problem.code} {problem.reason}") from None
    except (OSError, HTTPException) as problem:
        cause = problem.reason if isinstance(problem, URLError) else problem
        raise _UselessAddressError(getattr(cause, "strerror", None) or str(cause)) from None
